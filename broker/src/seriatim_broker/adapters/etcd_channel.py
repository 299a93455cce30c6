"""Connections to the coordinator's endpoints: which one a call uses, and with which certificates.

There is one gRPC channel for each endpoint. All of them stay connected, so that another one is ready when one fails. A
call gets an endpoint that is connected *now*. While it waits for one, nothing has been sent. So a write can wait for a
coordinator that is away, and is still never sent twice.

The TLS files are read again every few seconds (`seriatim_api.network.tls`). When one has changed, new channels are
made, and the old ones are closed after 10 s. The modules `etcd` and `etcd_watch` make the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc
import structlog
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc
from seriatim_api.errors import CoordinatorUnavailableError, PreconditionError
from seriatim_api.network.grpc_options import DIAL_OPTIONS
from seriatim_api.network.tls import TlsFiles, TlsSource, explain

_OLD_CHANNEL_GRACE_S: Final = 10.0
"""How long calls on a replaced channel may take to end. Then its watches are cut, and resume on the new channel."""

_TROUBLE_DEADLINE_S: Final = 0.1
"""How long to wait for an error of a channel. A channel that failed gives its error at once."""

_CHANNEL_OPTIONS: Final = (
    *DIAL_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 200),
    # This is also the limit for one try to connect. If a host drops all packets, gRPC tries again after this.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    # etcd closes the connection of a client that pings more often than every 5 s.
    ("grpc.keepalive_time_ms", 6_000),
    # If TCP gets no confirmation of sent bytes for this long, the connection counts as broken (TCP_USER_TIMEOUT).
    ("grpc.keepalive_timeout_ms", 1_000),
    # If no answer to a ping comes for this long, the connection is given up. The option above does not say this in
    # gRPC's present versions, in which the time is 1 min by default.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Without this gRPC sends a ping after nearly every answer, to find out how much may be under way. Each wakes the
    # threads of its pool, and then each of them looks for work ten times within a second.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_retries", 0),
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """TLS for the connections to the coordinator.

    Attributes:
        files: The CA of the coordinator's certificate, and this broker's own certificate. They are read again when they
            change.
        server_name: The name in the coordinator's certificate; None: the host of the endpoint's address.
    """

    files: TlsFiles
    server_name: str | None = None


class Endpoint:
    """One endpoint, with its channel and the stubs on it."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.channel = channel
        self.kv = rpc_pb2_grpc.KVStub(channel)
        self.lease = rpc_pb2_grpc.LeaseStub(channel)
        self.watch = rpc_pb2_grpc.WatchStub(channel)
        self.maintenance = rpc_pb2_grpc.MaintenanceStub(channel)


class EndpointPool:
    """The endpoints of one coordinator. It belongs to one event loop, and makes channels at the first call."""

    def __init__(self, addresses: tuple[str, ...], tls: EtcdTls | None) -> None:
        assert addresses, "a coordinator has at least one endpoint"
        self._addresses = addresses
        self._tls = tls
        self._endpoints: list[Endpoint] = []
        self._preferred = 0
        self._is_closed = False
        self._source: TlsSource | None = None
        self._certificates_version = 0
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def count(self) -> int:
        """The number of endpoints."""
        return len(self._addresses)

    async def ready(self, end_s: float) -> Endpoint:
        """A connected endpoint: the preferred one if it is connected, otherwise another.

        Args:
            end_s: When to stop waiting, in seconds of the event loop's clock.

        Raises:
            CoordinatorUnavailableError: No endpoint was connected in time. Nothing was sent.
            PreconditionError: The certificates cannot be read.
        """
        while True:
            self._refresh_channels()
            order = self._endpoints[self._preferred :] + self._endpoints[: self._preferred]
            states = []
            for endpoint in order:
                state = endpoint.channel.get_state(try_to_connect=True)
                if state is grpc.ChannelConnectivity.READY:
                    self._preferred = self._endpoints.index(endpoint)
                    return endpoint
                states.append((endpoint, state))
            await self._wait_for_change(states, end_s)

    def others(self, endpoint: Endpoint) -> Iterator[Endpoint]:
        """The other endpoints that are connected. It looks at each endpoint only when the caller asks for the next."""
        for other in tuple(self._endpoints):
            if other is not endpoint and other.channel.get_state() is grpc.ChannelConnectivity.READY:
                yield other

    def holds(self, endpoint: Endpoint | None) -> bool:
        """Whether this endpoint is one of the pool's, and has not been replaced because the certificates changed."""
        return endpoint in self._endpoints

    def prefer(self, endpoint: Endpoint) -> None:
        """Have the next call try `endpoint` first, because it has answered."""
        if endpoint in self._endpoints:
            self._preferred = self._endpoints.index(endpoint)

    def avoid(self, endpoint: Endpoint) -> None:
        """Have the next call try another endpoint first, because `endpoint` has failed."""
        if endpoint in self._endpoints:
            self._preferred = (self._endpoints.index(endpoint) + 1) % len(self._endpoints)

    async def trouble(self) -> str:
        """Why TLS prevents connections, in words for humans; empty if TLS does not prevent them.

        A channel does not say why it is not connected. So this makes a short call, whose error reports it.
        """
        if self._tls is None:
            return ""
        for endpoint in self._endpoints:
            try:
                await endpoint.maintenance.Status(rpc_pb2.StatusRequest(), timeout=_TROUBLE_DEADLINE_S)
            except grpc.aio.AioRpcError as error:
                cause = explain(error.details() or "", shows_certificate=self._tls.files.cert is not None)
                if cause is not None:
                    return f"at {endpoint.address} {cause}"
        return ""

    async def close(self) -> None:
        """Close all channels. Calls on them end with `CoordinatorUnavailableError`."""
        self._is_closed = True
        endpoints, self._endpoints = self._endpoints, []
        await asyncio.gather(*(endpoint.channel.close() for endpoint in endpoints))
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _check_open(self) -> None:
        if self._is_closed:
            raise CoordinatorUnavailableError("the coordinator's adapter is closed")

    async def _wait_for_change(self, states: list[tuple[Endpoint, Any]], end_s: float) -> None:
        timeout_s = end_s - asyncio.get_running_loop().time()
        waits = [asyncio.ensure_future(endpoint.channel.wait_for_state_change(state)) for endpoint, state in states]
        try:
            done, _ = await asyncio.wait(waits, timeout=max(timeout_s, 0.0), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if not done:
            self._check_open()
            names = ", ".join(self._addresses)
            trouble = await self.trouble()
            because = f": {trouble}" if trouble else ""
            raise CoordinatorUnavailableError(f"no connection to the coordinator ({names}) in time{because}")

    # -- channels and certificates ------------------------------------------------------------------------

    def _refresh_channels(self) -> None:
        """Make channels at the first call, and again when the files of the certificates have changed."""
        self._check_open()
        if self._tls is None:
            if not self._endpoints:
                self._endpoints = [self._make_endpoint(one, None) for one in self._addresses]
            return
        if self._source is None:
            self._source = TlsSource(self._tls.files, _tell_change)
        version, material = self._source.current()
        if version == self._certificates_version:
            return
        credentials = grpc.ssl_channel_credentials(material.ca, material.key, material.cert)
        old, self._certificates_version = self._endpoints, version
        self._endpoints = [self._make_endpoint(one, credentials) for one in self._addresses]
        for endpoint in old:
            task = asyncio.create_task(endpoint.channel.close(_OLD_CHANNEL_GRACE_S), name="coordinator-channel-close")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _make_endpoint(self, address: str, credentials: grpc.ChannelCredentials | None) -> Endpoint:
        options = list(_CHANNEL_OPTIONS)
        if credentials is None:
            return Endpoint(address, grpc.aio.insecure_channel(address, options=options))
        assert self._tls is not None
        if self._tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self._tls.server_name))  # type: ignore[arg-type]
        return Endpoint(address, grpc.aio.secure_channel(address, credentials, options=options))


def _tell_change(refused: PreconditionError | None) -> None:
    if refused is None:
        _log.info("coordinator_certificates_reloaded")
    else:
        note = "the old certificates stay in use"
        _log.warning("coordinator_certificates_not_reloaded", reason=refused.message, note=note)
