"""Connections to the coordinator's endpoints: which one to use, and with which certificates.

One gRPC channel for each endpoint, all of them kept connected, so that another is at hand when one fails. A
call is given an endpoint that is connected *now*: nothing has been sent anywhere while it waits, which is
why a write that finds the coordinator away has a chance to wait for it and still is never sent twice.

TLS files are looked at again every few seconds; when one has changed, new channels are made from them and
the old ones closed after a grace. What goes over the channels is left to `etcd` and `etcd_watch`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import structlog
from aetcd.rpc import rpc_pb2_grpc
from seriatim_api.errors import CoordinatorUnavailableError, PreconditionError

TLS_CHECK_INTERVAL_S: Final = 5.0
"""How often the certificates' files are looked at, while there are calls."""

_OLD_CHANNEL_GRACE_S: Final = 10.0
"""How long calls on a replaced channel may take to end; watches are cut then, and resume on the new one."""

_CHANNEL_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 200),
    # Also how long one attempt to connect may take: a host that swallows packets is tried anew after this.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    # etcd sends clients away that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    # Channels of other adapters in this process keep their own connections and their own back-off.
    ("grpc.use_local_subchannel_pool", 1),
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """Files of PEM; read again when they change.

    Attributes:
        ca_file: Whom to believe that it is the coordinator.
        cert_file, key_file: Who we are, for mutual TLS; both or neither.
        server_name: The name in the server's certificate, where it is not the endpoint's host.
    """

    ca_file: Path
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        assert (self.cert_file is None) == (self.key_file is None), "a certificate and its key come together"

    @property
    def files(self) -> list[Path]:
        """All files that are named."""
        return [file for file in (self.ca_file, self.cert_file, self.key_file) if file is not None]


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
        self._fingerprint: tuple[object, ...] = ()
        self._tls_checked_at_s = float("-inf")
        self._tls_lock = asyncio.Lock()
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
            await self._refresh_channels()
            self._check_open()
            order = self._endpoints[self._preferred :] + self._endpoints[: self._preferred]
            states = []
            for endpoint in order:
                state = endpoint.channel.get_state(try_to_connect=True)
                if state is grpc.ChannelConnectivity.READY:
                    self._preferred = self._endpoints.index(endpoint)
                    return endpoint
                states.append((endpoint, state))
            await self._wait_for_change(states, end_s)

    def avoid(self, endpoint: Endpoint) -> None:
        """`endpoint` did badly: the next call tries another first."""
        if endpoint in self._endpoints:
            self._preferred = (self._endpoints.index(endpoint) + 1) % len(self._endpoints)

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
            raise CoordinatorUnavailableError(f"no connection to the coordinator ({names}) in time")

    # -- channels and certificates ------------------------------------------------------------------------

    async def _refresh_channels(self) -> None:
        """Make channels at the first call, and again when the certificates' files have changed."""
        if self._endpoints and (self._tls is None or not self._tls_check_is_due()):
            return
        async with self._tls_lock:
            self._check_open()
            if self._tls is None:
                if not self._endpoints:
                    self._endpoints = [self._make_endpoint(one, None) for one in self._addresses]
                return
            if self._endpoints and not self._tls_check_is_due():
                return
            await self._refresh_tls(self._tls)

    def _tls_check_is_due(self) -> bool:
        return asyncio.get_running_loop().time() - self._tls_checked_at_s >= TLS_CHECK_INTERVAL_S

    async def _refresh_tls(self, tls: EtcdTls) -> None:
        try:
            fingerprint = await asyncio.to_thread(_fingerprint, tls)
            if fingerprint != self._fingerprint:
                credentials = await asyncio.to_thread(_read_credentials, tls)
        except OSError as error:
            if self._endpoints:
                # In the middle of being replaced, perhaps: what we have goes on serving.
                _log.warning("coordinator_certificates_unreadable", error=str(error))
                self._tls_checked_at_s = asyncio.get_running_loop().time()
                return
            raise PreconditionError(f"the coordinator's certificates cannot be read: {error}") from error
        self._check_open()
        self._tls_checked_at_s = asyncio.get_running_loop().time()
        if fingerprint == self._fingerprint:
            return
        old, self._fingerprint = self._endpoints, fingerprint
        self._endpoints = [self._make_endpoint(one, credentials) for one in self._addresses]
        if old:
            _log.info("coordinator_certificates_reloaded", files=[str(file) for file in tls.files])
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


def _fingerprint(tls: EtcdTls) -> tuple[object, ...]:
    stats = [file.stat() for file in tls.files]
    return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)


def _read_credentials(tls: EtcdTls) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=tls.ca_file.read_bytes(),
        private_key=tls.key_file.read_bytes() if tls.key_file is not None else None,
        certificate_chain=tls.cert_file.read_bytes() if tls.cert_file is not None else None,
    )
