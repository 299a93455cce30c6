"""Range, Put, DeleteRange and Txn of etcd's API, on the versions in memory.

A request is checked completely, and then carried out, so that it cannot fail half-way. A transaction is one revision,
and its reads see its earlier writes. A request that etcd would refuse gets etcd's answer. `etcdctl` needs prev_kv,
sorting and the revision filters, so this module has them.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from aetcd.rpc import rpc_pb2

from seriatim_local.embedded import refusal
from seriatim_local.embedded.lease import Leases
from seriatim_local.embedded.mvcc import FROM_KEY, KeyValueMessage, Mvcc

Message: TypeAlias = Any
"""A message of `rpc_pb2`; the generated code has no types."""

OPERATION_COUNT_MAX: Final = 128
"""Most compares, and most operations of either branch, in a transaction: etcd's default."""

REQUEST_SIZE_BYTES_MAX: Final = 1536 * 1024
"""Largest request: etcd's default."""

STORE_SIZE_BYTES_MAX: Final = 512 * 1024 * 1024
"""Limit for all versions in memory, about. Beyond it puts are refused. etcd's limit is 2 GB, on disk."""

_SORT_KEYS: Final = {
    rpc_pb2.RangeRequest.KEY: lambda kv: kv.key,
    rpc_pb2.RangeRequest.VERSION: lambda kv: kv.version,
    rpc_pb2.RangeRequest.CREATE: lambda kv: kv.create_revision,
    rpc_pb2.RangeRequest.MOD: lambda kv: kv.mod_revision,
    rpc_pb2.RangeRequest.VALUE: lambda kv: kv.value,
}


class Requests:
    """Carries out requests on one store. The time `now_s` of the caller's clock decides which leases have ended.

    Raises:
        Refusal: From each call, if etcd would refuse the request. Nothing was changed.
    """

    def __init__(self, mvcc: Mvcc, leases: Leases) -> None:
        self._mvcc = mvcc
        self._leases = leases

    # -- the four calls -----------------------------------------------------------------------------------

    def range(self, request: Message) -> Message:
        """Answer a read."""
        self._check_range(request)
        return self._range(request)

    def put(self, request: Message, now_s: float) -> Message:
        """Carry out a put, as a revision of its own."""
        self._check_put(request, now_s)
        response = self._put(request)
        self._mvcc.commit()
        return response

    def delete_range(self, request: Message) -> Message:
        """Carry out a deletion, as a revision of its own if it deletes a key."""
        _check_key(request.key)
        response = self._delete_range(request)
        self._mvcc.commit()
        return response

    def txn(self, request: Message, now_s: float) -> Message:
        """Carry out a transaction, as one revision if it writes or deletes a key."""
        self._check_txn(request, now_s)
        succeeded = all(self._holds(compare) for compare in request.compare)
        response = rpc_pb2.TxnResponse(succeeded=succeeded)
        for operation in request.success if succeeded else request.failure:
            answer = response.responses.add()
            kind = operation.WhichOneof("request")
            if kind == "request_put":
                answer.response_put.CopyFrom(self._put(operation.request_put))
            elif kind == "request_range":
                answer.response_range.CopyFrom(self._range(operation.request_range))
            else:
                answer.response_delete_range.CopyFrom(self._delete_range(operation.request_delete_range))
        self._mvcc.commit()
        return response

    def delete_lease(self, lease_id: int) -> None:
        """End an existing lease, and delete its keys in one revision."""
        for key in self._leases.remove(lease_id):
            self._mvcc.delete(key)
        self._mvcc.commit()

    # -- checking -----------------------------------------------------------------------------------------

    def _check_range(self, request: Message) -> None:
        _check_key(request.key)
        if request.sort_target not in _SORT_KEYS:
            raise refusal.not_served("this sort_target")
        if request.revision > self._mvcc.revision:
            raise refusal.future_revision()
        if 0 < request.revision < self._mvcc.compact_revision:
            raise refusal.compacted()

    def _check_put(self, request: Message, now_s: float) -> None:
        _check_key(request.key)
        if request.ignore_value or request.ignore_lease:
            raise refusal.not_served("ignore_value and ignore_lease")
        if request.lease and self._leases.find(request.lease, now_s) is None:
            raise refusal.lease_not_found()
        if self._mvcc.size_bytes + len(request.key) + len(request.value) > STORE_SIZE_BYTES_MAX:
            raise refusal.no_space()

    def _check_txn(self, request: Message, now_s: float) -> None:
        if max(len(request.compare), len(request.success), len(request.failure)) > OPERATION_COUNT_MAX:
            raise refusal.too_many_operations()
        for compare in request.compare:
            _check_key(compare.key)
        for branch in (request.success, request.failure):
            for operation in branch:
                self._check_operation(operation, now_s)
            _check_written_once(branch)

    def _check_operation(self, operation: Message, now_s: float) -> None:
        kind = operation.WhichOneof("request")
        if kind == "request_put":
            self._check_put(operation.request_put, now_s)
        elif kind == "request_range":
            self._check_range(operation.request_range)
        elif kind == "request_delete_range":
            _check_key(operation.request_delete_range.key)
        else:
            raise refusal.not_served("a transaction within a transaction")

    # -- carrying out -------------------------------------------------------------------------------------

    def _holds(self, compare: Message) -> bool:
        found = self._mvcc.read(compare.key, compare.range_end)
        if not found:
            # A key that does not exist has revisions and version 0, and no value, so that no compare of VALUE holds.
            return compare.target != rpc_pb2.Compare.VALUE and _compare_one(compare, None)
        return all(_compare_one(compare, kv) for kv in found)

    def _range(self, request: Message) -> Message:
        found = self._mvcc.read(request.key, request.range_end, max(0, request.revision))
        response = rpc_pb2.RangeResponse(count=len(found))
        if request.count_only:
            return response
        found = _filter(request, found)
        order = request.sort_order
        if order != rpc_pb2.RangeRequest.NONE or request.sort_target != rpc_pb2.RangeRequest.KEY:
            descending = order == rpc_pb2.RangeRequest.DESCEND
            found.sort(key=_SORT_KEYS[request.sort_target], reverse=descending)
        if 0 < request.limit < len(found):
            del found[request.limit :]
            response.more = True
        response.kvs.extend(found)
        if request.keys_only:
            for kv in response.kvs:
                kv.value = b""
        return response

    def _put(self, request: Message) -> Message:
        before = self._mvcc.put(request.key, request.value, request.lease)
        self._leases.attach(request.key, request.lease)
        return rpc_pb2.PutResponse(prev_kv=before if request.prev_kv else None)

    def _delete_range(self, request: Message) -> Message:
        response = rpc_pb2.DeleteRangeResponse()
        for key in self._mvcc.key_slice(request.key, request.range_end):
            before = self._mvcc.delete(key)
            if before is None:
                continue
            self._leases.detach(key)
            response.deleted += 1
            if request.prev_kv:
                response.prev_kvs.append(before)
        return response


def _check_key(key: bytes) -> None:
    if not key:
        raise refusal.no_key()


def _check_written_once(branch: Message) -> None:
    """Check that a branch puts each key once, and puts no key that one of its deletions covers.

    Raises:
        Refusal: It does.
    """
    puts = [operation.request_put.key for operation in branch if operation.HasField("request_put")]
    if len(puts) != len(set(puts)):
        raise refusal.duplicate_key()
    for operation in branch:
        if not operation.HasField("request_delete_range"):
            continue
        deletion = operation.request_delete_range
        if any(_covers(deletion.key, deletion.range_end, key) for key in puts):
            raise refusal.duplicate_key()


def _covers(start: bytes, range_end: bytes, key: bytes) -> bool:
    if not range_end:
        return key == start
    return start <= key and (range_end == FROM_KEY or key < range_end)


def _compare_one(compare: Message, kv: KeyValueMessage | None) -> bool:
    target = compare.target
    left: Any
    right: Any
    if target == rpc_pb2.Compare.VALUE:
        assert kv is not None
        left, right = kv.value, compare.value
    elif target == rpc_pb2.Compare.MOD:
        left, right = kv.mod_revision if kv is not None else 0, compare.mod_revision
    elif target == rpc_pb2.Compare.CREATE:
        left, right = kv.create_revision if kv is not None else 0, compare.create_revision
    elif target == rpc_pb2.Compare.VERSION:
        left, right = kv.version if kv is not None else 0, compare.version
    else:
        left, right = kv.lease if kv is not None else 0, compare.lease
    if compare.result == rpc_pb2.Compare.EQUAL:
        return bool(left == right)
    if compare.result == rpc_pb2.Compare.NOT_EQUAL:
        return bool(left != right)
    return bool(left > right) if compare.result == rpc_pb2.Compare.GREATER else bool(left < right)


def _filter(request: Message, found: list[KeyValueMessage]) -> list[KeyValueMessage]:
    if request.max_mod_revision:
        found = [kv for kv in found if kv.mod_revision <= request.max_mod_revision]
    if request.min_mod_revision:
        found = [kv for kv in found if kv.mod_revision >= request.min_mod_revision]
    if request.max_create_revision:
        found = [kv for kv in found if kv.create_revision <= request.max_create_revision]
    if request.min_create_revision:
        found = [kv for kv in found if kv.create_revision >= request.min_create_revision]
    return found
