"""The gRPC services of the embedded coordinator: what we use of etcd's KV, Lease, Watch and Maintenance.

Servicers translate and apply limits; what happens is decided in `store`. Calls of these services that are
not here are answered UNIMPLEMENTED by the generated base classes, the other services (Cluster, Auth) by
gRPC itself.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final, TypeVar

import grpc
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc

from seriatim_broker.embedded import refusal
from seriatim_broker.embedded.requests import REQUEST_SIZE_BYTES_MAX
from seriatim_broker.embedded.store import Store
from seriatim_broker.embedded.watch import WatchStream

VERSION: Final = "3.6.5-embedded"
"""The version of etcd whose behaviour is served; the word behind it says that this is not etcd."""

_Answer = TypeVar("_Answer")


async def _answer(context: Any, call: Awaitable[_Answer]) -> _Answer:
    try:
        return await call
    except refusal.Refusal as refused:
        await context.abort(refused.code, refused.details)
        raise AssertionError("abort raises") from refused


class KVService(rpc_pb2_grpc.KVServicer):  # type: ignore[misc]  # the generated code has no types
    """Keys."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def Range(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Read keys."""
        return await _answer(context, self._store.range(request))

    async def Put(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Write a key."""
        await _check_size(request, context)
        return await _answer(context, self._store.put(request))

    async def DeleteRange(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Delete keys."""
        return await _answer(context, self._store.delete_range(request))

    async def Txn(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Compare, then write."""
        await _check_size(request, context)
        return await _answer(context, self._store.txn(request))

    async def Compact(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Forget history."""
        revision = await _answer(context, self._store.compact(request.revision))
        return self._store.with_header(rpc_pb2.CompactionResponse(), revision)


class LeaseService(rpc_pb2_grpc.LeaseServicer):  # type: ignore[misc]
    """Leases."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def LeaseGrant(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Make a lease."""
        lease_id = request.ID or secrets.randbits(63)
        state = await _answer(context, self._store.grant(lease_id, request.TTL))
        return self._with_header(rpc_pb2.LeaseGrantResponse(ID=state.id, TTL=state.ttl_s))

    async def LeaseRevoke(self, request: Any, context: Any) -> Any:  # noqa: N802
        """End a lease."""
        await _answer(context, self._store.revoke(request.ID))
        return self._with_header(rpc_pb2.LeaseRevokeResponse())

    async def LeaseKeepAlive(  # noqa: N802
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        """Renew leases, one for each request of the stream."""
        async for request in requests:
            ttl_s = await _answer(context, self._store.keep_alive(request.ID))
            yield self._with_header(rpc_pb2.LeaseKeepAliveResponse(ID=request.ID, TTL=ttl_s))

    async def LeaseTimeToLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        """What a lease has left; -1 for one that has ended, as etcd says it."""
        state = self._store.find_lease(request.ID)
        if state is None:
            return self._with_header(rpc_pb2.LeaseTimeToLiveResponse(ID=request.ID, TTL=-1))
        response = rpc_pb2.LeaseTimeToLiveResponse(
            ID=state.id, TTL=self._store.remaining_s(state), grantedTTL=state.ttl_s
        )
        if request.keys:
            response.keys.extend(sorted(state.keys))
        return self._with_header(response)

    async def LeaseLeases(self, request: Any, context: Any) -> Any:  # noqa: N802
        """All leases."""
        response = rpc_pb2.LeaseLeasesResponse()
        for lease_id in self._store.leases.ids():
            response.leases.add(ID=lease_id)
        return self._with_header(response)

    def _with_header(self, response: Any) -> Any:
        return self._store.with_header(response, self._store.durable_revision)


class WatchService(rpc_pb2_grpc.WatchServicer):  # type: ignore[misc]
    """Watches."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def Watch(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        """Serve one stream of watchers; it is read and written through `context`."""
        await _answer(context, WatchStream(self._store, context).run())


class MaintenanceService(rpc_pb2_grpc.MaintenanceServicer):  # type: ignore[misc]
    """What `etcdctl endpoint status` and `health`, and the version check ask."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def Status(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Version and size; the one member is the leader."""
        size_bytes = self._store.mvcc.size_bytes
        revision = self._store.durable_revision
        response = rpc_pb2.StatusResponse(
            version=VERSION,
            dbSize=size_bytes,
            dbSizeInUse=size_bytes,
            leader=self._store.cluster_id,
            raftIndex=revision,
            raftAppliedIndex=revision,
            raftTerm=1,
        )
        return self._store.with_header(response, revision)

    async def Alarm(self, request: Any, context: Any) -> Any:  # noqa: N802
        """No alarms: a store that is full refuses puts, one whose disk failed is gone."""
        if request.action != rpc_pb2.AlarmRequest.GET:
            refused = refusal.not_served("setting and clearing of alarms")
            await context.abort(refused.code, refused.details)
        return self._store.with_header(rpc_pb2.AlarmResponse(), self._store.durable_revision)


async def _check_size(request: Any, context: Any) -> None:
    if request.ByteSize() > REQUEST_SIZE_BYTES_MAX:
        refused = refusal.too_large()
        await context.abort(refused.code, refused.details)


def add_services(server: grpc.aio.Server, store: Store) -> None:
    """Serve `store` on `server`."""
    rpc_pb2_grpc.add_KVServicer_to_server(KVService(store), server)
    rpc_pb2_grpc.add_LeaseServicer_to_server(LeaseService(store), server)
    rpc_pb2_grpc.add_WatchServicer_to_server(WatchService(store), server)
    rpc_pb2_grpc.add_MaintenanceServicer_to_server(MaintenanceService(store), server)
