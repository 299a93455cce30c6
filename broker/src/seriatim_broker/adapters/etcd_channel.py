"""Connections to the coordinator's endpoints: which one to use, and with which certificates.

One gRPC channel for each endpoint, all of them kept connected, so that another is at hand when one fails. A
call is given an endpoint that is connected *now*: nothing has been sent anywhere while it waits, which is
why a write that finds the coordinator away has a chance to wait for it and still is never sent twice.

TLS files are looked at again every few seconds; when one has changed, new channels are made from them and
the old ones closed after a grace. What goes over the channels is left to `etcd` and `etcd_watch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc
import structlog
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc
from seriatim_api.dialing import DIAL_OPTIONS
from seriatim_api.errors import CoordinatorUnavailableError, PreconditionError
from seriatim_api.tls import TlsFiles, TlsSource, explain

_OLD_CHANNEL_GRACE_S: Final = 10.0
"""How long calls on a replaced channel may take to end; watches are cut then, and resume on the new one."""

_TROUBLE_DEADLINE_S: Final = 0.1
"""A channel that failed says so at once; one that is connecting is not asked for longer."""

_CHANNEL_OPTIONS: Final = (
    *DIAL_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 200),
    # Also how long one attempt to connect may take: a host that swallows packets is tried anew after this.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    # etcd sends clients away that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 6_000),
    # Also for how long what was sent may stay unconfirmed before the connection counts as broken (TCP_USER_TIMEOUT).
    ("grpc.keepalive_timeout_ms", 1_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_retries", 0),
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """How the coordinator is spoken to with TLS.

    Attributes:
        files: Whom to believe that it is the coordinator, and who we are; read again when they change.
        server_name: The name in the server's certificate, where it is not the endpoint's host.
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
    """The endpoints of one coordinator. Belongs to one event loop; channels are made at the first call."""

    def __init__(self, addresses: tuple[str, ...], tls: EtcdTls | None) -> None:
        assert addresses, "a coordinator has at least one endpoint"
        self._addresses = addresses
        self._tls = tls
        self._endpoints: list[Endpoint] = []
        self._preferred = 0
        self._is_closed = False
        self._source: TlsSource | None = None
        self._generation = 0
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def count(self) -> int:
        """How many endpoints there are."""
        return len(self._addresses)

    async def ready(self, end_s: float) -> Endpoint:
        """A connected endpoint, the preferred one if it is.

        Args:
            end_s: Until when to wait for one, by the loop's clock.

        Raises:
            CoordinatorUnavailableError: None in time. Nothing was sent.
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
        """The other endpoints that are connected, each looked at when it is its turn."""
        for other in tuple(self._endpoints):
            if other is not endpoint and other.channel.get_state() is grpc.ChannelConnectivity.READY:
                yield other

    def prefer(self, endpoint: Endpoint) -> None:
        """`endpoint` did well: the next call tries it first."""
        if endpoint in self._endpoints:
            self._preferred = self._endpoints.index(endpoint)

    def avoid(self, endpoint: Endpoint) -> None:
        """`endpoint` did badly: the next call tries another first."""
        if endpoint in self._endpoints:
            self._preferred = (self._endpoints.index(endpoint) + 1) % len(self._endpoints)

    async def trouble(self) -> str:
        """Why TLS keeps connections from coming about; empty if it does not.

        A channel does not say why it is not connected; a call that does not wait for it does.
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
        """Close all channels; calls on them end as unavailable."""
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
        """Make channels at the first call, and again when the certificates' files have changed."""
        self._check_open()
        if self._tls is None:
            if not self._endpoints:
                self._endpoints = [self._make_endpoint(one, None) for one in self._addresses]
            return
        if self._source is None:
            self._source = TlsSource(self._tls.files, _tell_change)
        generation, material = self._source.current()
        if generation == self._generation:
            return
        credentials = grpc.ssl_channel_credentials(material.ca, material.key, material.cert)
        old, self._generation = self._endpoints, generation
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
