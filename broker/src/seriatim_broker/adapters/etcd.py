"""The adapter of the coordinator: etcd, or the embedded coordinator, which has the same interface.

It uses the generated stubs of `aetcd` over its own channels, because the client of `aetcd` has no TLS, one endpoint, no
paging, and no watch that resumes. The adapter repeats reads, keep-alives, revocations, and transactions that only read,
until their deadline and at other endpoints too. It sends a transaction that writes, or a grant, at most once. It turns
each gRPC error into an error of the catalogue (`seriatim_api.errors`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

import grpc
import structlog
from aetcd.rpc import rpc_pb2
from seriatim_api.errors import CoordinatorUnavailableError, LeaseNotFoundError
from seriatim_api.network.hedging import first_answer

from seriatim_broker.adapters.etcd_channel import Endpoint, EndpointPool, EtcdTls
from seriatim_broker.adapters.etcd_codec import (
    TRANSIENT_CODES,
    decode_item,
    decode_items,
    decode_txn,
    encode_key,
    encode_txn,
    make_error,
    prefix_range,
)
from seriatim_broker.adapters.etcd_renewal import RenewalStream
from seriatim_broker.adapters.etcd_watch import BACKOFF_S_MAX, BACKOFF_S_MIN, ResumedWatch
from seriatim_broker.interfaces.coordinator import (
    PAGE_ITEM_COUNT,
    Compare,
    Get,
    GetPrefix,
    KeyValue,
    Lease,
    Listing,
    Operation,
    TxnResult,
    WatchBatch,
)

__all__ = ["EtcdConfig", "EtcdCoordinator", "EtcdTls", "is_supported_version"]

_log = structlog.get_logger(__name__)

_Call = Callable[[Endpoint, float], Any]
"""Sends one call to an endpoint, with a time-out in seconds, and returns an awaitable."""

PATIENCE_S: Final = 0.15
"""After this long without an answer a read is also sent to another member of etcd, because a dead one never answers."""

_VERSIONS_MIN: Final = {(3, 5): 23, (3, 6): 5}
"""Oldest supported patch version of each minor version. Older ones can renew a lease that was revoked."""


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """The coordinator's addresses, certificates and default deadline.

    Attributes:
        endpoints: `host:port` of each member of the coordinator.
        tls: Certificates; None: plain text.
        deadline_s: Seconds for each call that gives no deadline of its own.
    """

    endpoints: tuple[str, ...]
    tls: EtcdTls | None = None
    deadline_s: float = 5.0

    def __post_init__(self) -> None:
        assert self.endpoints, "at least one endpoint"
        assert self.deadline_s > 0


class EtcdCoordinator:
    """A `Coordinator` over etcd's v3 API. It belongs to one event loop, and connects at the first call."""

    def __init__(self, config: EtcdConfig) -> None:
        self._config = config
        self._pool = EndpointPool(config.endpoints, config.tls)
        self._renewals = RenewalStream(self._pool)
        self._version_checks: dict[str, asyncio.Task[None]] = {}

    async def trouble(self) -> str:
        """Why TLS prevents a connection, in words for humans; empty if TLS does not prevent one."""
        return await self._pool.trouble()

    async def get(self, key: str, *, deadline_s: float | None = None) -> KeyValue | None:
        """See `Coordinator.get`."""
        request = rpc_pb2.RangeRequest(key=encode_key(key))
        response = await self._repeat(
            f"get of {key!r}", lambda at, s: at.kv.Range(request, timeout=s), self._end_s(deadline_s)
        )
        return decode_item(response.kvs[0]) if response.kvs else None

    async def list(
        self,
        prefix: str,
        *,
        after: str = "",
        count_max: int | None = None,
        limit_per_page: int = PAGE_ITEM_COUNT,
        deadline_s: float | None = None,
    ) -> Listing:
        """See `Coordinator.list`."""
        assert limit_per_page > 0
        end_s = self._end_s(deadline_s)
        start, range_end = prefix_range(prefix)
        start = max(start, after.encode() + b"\0") if after else start
        items: list[KeyValue] = []
        revision = 0
        while True:
            limit = limit_per_page if count_max is None else min(limit_per_page, count_max - len(items))
            request = rpc_pb2.RangeRequest(key=start, range_end=range_end, limit=limit, revision=revision)
            response = await self._repeat(f"list of {prefix!r}", _range_call(request), end_s)
            items += decode_items(response.kvs)
            revision = revision or response.header.revision
            if not response.more or len(items) == count_max:
                return Listing(tuple(items), revision)
            start = response.kvs[-1].key + b"\0"

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
        *,
        deadline_s: float | None = None,
    ) -> TxnResult:
        """See `Coordinator.txn`."""
        request = encode_txn(compares, then, otherwise)
        only_reads = all(isinstance(operation, Get | GetPrefix) for operation in (*then, *otherwise))
        carry_out = self._repeat if only_reads else self._once
        return decode_txn(
            await carry_out("transaction", lambda at, s: at.kv.Txn(request, timeout=s), self._end_s(deadline_s))
        )

    async def grant(self, ttl_s: int, *, deadline_s: float | None = None) -> Lease:
        """See `Coordinator.grant`."""
        assert ttl_s > 0
        request = rpc_pb2.LeaseGrantRequest(TTL=ttl_s)
        response = await self._once(
            "grant", lambda at, s: at.lease.LeaseGrant(request, timeout=s), self._end_s(deadline_s)
        )
        return Lease(response.ID, response.TTL)

    async def keep_alive(self, lease: int, *, deadline_s: float | None = None) -> int:
        """See `Coordinator.keep_alive`."""
        end_s = self._end_s(deadline_s)
        left_s = await self._renewals.renew(lease, end_s)
        if left_s is not None:
            return left_s
        request = rpc_pb2.LeaseKeepAliveRequest(ID=lease)
        response = await self._repeat("keep-alive", lambda at, s: _keep_alive_once(at, request, s), end_s)
        return max(0, int(response.TTL))

    async def revoke(self, lease: int, *, deadline_s: float | None = None) -> None:
        """See `Coordinator.revoke`."""
        request = rpc_pb2.LeaseRevokeRequest(ID=lease)
        try:
            await self._repeat(
                "revocation", lambda at, s: at.lease.LeaseRevoke(request, timeout=s), self._end_s(deadline_s)
            )
        except LeaseNotFoundError:
            return

    def watch(self, key: str, *, start_revision: int, prefix: bool = False) -> AsyncGenerator[WatchBatch, None]:
        """See `Coordinator.watch`."""
        return ResumedWatch(self._pool, key, start_revision=start_revision, prefix=prefix).batches()

    async def close(self) -> None:
        """See `Coordinator.close`."""
        self._renewals.close()
        await self._pool.close()
        for check in self._version_checks.values():
            check.cancel()
        await asyncio.gather(*self._version_checks.values(), return_exceptions=True)

    # -- calls --------------------------------------------------------------------------------------------

    def _end_s(self, deadline_s: float | None) -> float:
        return asyncio.get_running_loop().time() + (self._config.deadline_s if deadline_s is None else deadline_s)

    async def _once(self, doing: str, call: _Call, end_s: float) -> Any:
        """Send a call once, to an endpoint that is connected."""
        endpoint = await self._ready(end_s)
        try:
            return await self._attempt(doing, call, endpoint, end_s - asyncio.get_running_loop().time())
        except grpc.aio.AioRpcError as error:
            raise make_error(error, doing) from error

    async def _repeat(self, doing: str, call: _Call, end_s: float) -> Any:
        """Send a call until an endpoint answers. The call may be carried out twice, also at the same time."""
        loop = asyncio.get_running_loop()
        backoff_s = BACKOFF_S_MIN
        while True:
            first = await self._ready(end_s)
            # A member of etcd passes a call on to etcd's leader. If that leader is gone, the call is lost. So a try
            # gets half of the time that is left, and there is time for another try.
            timeout_s = end_s - loop.time() if self._pool.count == 1 else (end_s - loop.time()) / 2
            endpoints = chain((first,), self._pool.others(first))
            attempts = (partial(self._attempt, doing, call, endpoint, timeout_s) for endpoint in endpoints)
            try:
                return await first_answer(attempts, PATIENCE_S, is_passing=_is_transient)
            except grpc.aio.AioRpcError as error:
                if not _is_transient(error) or loop.time() + backoff_s >= end_s:
                    raise make_error(error, doing) from error
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    async def _attempt(self, doing: str, call: _Call, endpoint: Endpoint, timeout_s: float) -> Any:
        try:
            answer = await call(endpoint, max(timeout_s, 0.001))
        except grpc.aio.AioRpcError as error:
            if _is_transient(error):
                self._pool.avoid(endpoint)
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The caller did not cancel: the channel was closed during the call.
            raise CoordinatorUnavailableError(f"{doing}: the connection was closed") from error
        self._pool.prefer(endpoint)
        return answer

    async def _ready(self, end_s: float) -> Endpoint:
        endpoint = await self._pool.ready(end_s)
        if endpoint.address not in self._version_checks:
            self._version_checks[endpoint.address] = asyncio.create_task(
                self._check_version(endpoint), name="coordinator-version-check"
            )
        return endpoint

    async def _check_version(self, endpoint: Endpoint) -> None:
        """Warn if an endpoint's version is not supported. It runs beside calls, so that it delays no switch."""
        try:
            status = await endpoint.maintenance.Status(rpc_pb2.StatusRequest(), timeout=self._config.deadline_s)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            self._version_checks.pop(endpoint.address, None)  # the next call starts the check again
            return
        if not is_supported_version(status.version):
            _log.warning(
                "etcd_version_not_supported",
                endpoint=endpoint.address,
                version=status.version,
                supported="3.5.23 or newer, 3.6.5 or newer",
                why="older versions can renew a lease that was revoked",
            )


def is_supported_version(version: str) -> bool:
    """Whether we support this version of etcd. etcd gives it as `3.6.16`, perhaps with a suffix."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        return False
    major, minor, patch = (int(number) for number in found.groups())
    patch_min = _VERSIONS_MIN.get((major, minor))
    if patch_min is not None:
        return patch >= patch_min
    return (major, minor) > max(_VERSIONS_MIN)


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, grpc.aio.AioRpcError) and error.code() in TRANSIENT_CODES


def _range_call(request: Any) -> _Call:
    return lambda at, timeout_s: at.kv.Range(request, timeout=timeout_s)


async def _keep_alive_once(endpoint: Endpoint, request: Any, timeout_s: float) -> Any:
    """Renew the lease once, on a stream for this call only."""
    call = endpoint.lease.LeaseKeepAlive(timeout=timeout_s)
    try:
        await call.write(request)
        response = await call.read()
        if response is grpc.aio.EOF:
            raise CoordinatorUnavailableError("keep-alive: the coordinator ended the stream")
        return response
    finally:
        call.cancel()
