"""The gRPC services of the embedded coordinator: the parts of etcd's KV, Lease, Watch and Maintenance that we use.

Servicers translate and apply limits, and `store` carries out. The generated base classes answer UNIMPLEMENTED to the
other calls of these services. gRPC does the same for etcd's other services (Cluster, Auth).
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final, TypeVar

import grpc
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc

from seriatim_local.embedded import refusal
from seriatim_local.embedded.requests import REQUEST_SIZE_BYTES_MAX
from seriatim_local.embedded.store import Store
from seriatim_local.embedded.watch import WatchStream

VERSION: Final = "3.6.5-embedded"
"""The version of etcd that this imitates. The suffix says that this is not etcd."""

_Answer = TypeVar("_Answer")


async def _answer(context: Any, call: Awaitable[_Answer]) -> _Answer:
    try:
        return await call
    except refusal.Refusal as refused:
        await context.abort(refused.code, refused.details)
        raise AssertionError("abort raises") from refused


class KVService(rpc_pb2_grpc.KVServicer):  # type: ignore[misc]  # the generated code has no types
    """etcd's KV service: keys."""

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
        """Carry out a transaction."""
        await _check_size(request, context)
        return await _answer(context, self._store.txn(request))

    async def Compact(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Compact: forget the revisions before the requested one."""
        revision = await _answer(context, self._store.compact(request.revision))
        return self._store.with_header(rpc_pb2.CompactionResponse(), revision)


class LeaseService(rpc_pb2_grpc.LeaseServicer):  # type: ignore[misc]
    """etcd's Lease service."""

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
        """The seconds that a lease has left; -1 if it has ended, as in etcd."""
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
        """The ids of all leases."""
        response = rpc_pb2.LeaseLeasesResponse()
        for lease_id in self._store.leases.ids():
            response.leases.add(ID=lease_id)
        return self._with_header(response)

    def _with_header(self, response: Any) -> Any:
        return self._store.with_header(response, self._store.durable_revision)


class WatchService(rpc_pb2_grpc.WatchServicer):  # type: ignore[misc]
    """etcd's Watch service."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def Watch(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        """Serve one stream of watchers. It reads and writes the stream through `context`."""
        await _answer(context, WatchStream(self._store, context).run())


class MaintenanceService(rpc_pb2_grpc.MaintenanceServicer):  # type: ignore[misc]
    """The part of etcd's Maintenance service that `etcdctl endpoint status` and `health` and our version check use."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def Status(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The version and the size. The only member is etcd's leader."""
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
        """Answer that there are no alarms. A full store refuses puts, and a process whose disk failed has ended."""
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
