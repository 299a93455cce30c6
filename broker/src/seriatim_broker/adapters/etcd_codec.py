"""Translation between `interfaces.coordinator` and etcd's messages: requests, answers and errors.

The modules `etcd` and `etcd_watch` make the calls. The generated code comes from the package `aetcd`, of which we use
only the stubs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import grpc
from aetcd.rpc import kv_pb2, rpc_pb2
from seriatim_api.errors import (
    BadRequestError,
    CompactedError,
    CoordinatorRefusedError,
    CoordinatorUnavailableError,
    LeaseNotFoundError,
    MessageTooLargeError,
    PreconditionError,
    SeriatimError,
)

from seriatim_broker.interfaces.coordinator import (
    Comparator,
    Compare,
    Delete,
    DeletePrefix,
    Event,
    EventKind,
    Get,
    KeyValue,
    Operation,
    OperationResult,
    Put,
    Target,
    TxnResult,
)

Message: TypeAlias = Any
"""A generated message; the generated code has no types."""

_ALL_KEYS: Final = b"\0"
"""If both ends of a range have this value, the range has all keys (there is no empty key)."""

TRANSIENT_CODES: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
"""No endpoint was reached, no answer came in time, or the call broke off. Another try or another endpoint may help."""

_REFUSING_CODES: Final = frozenset(
    {
        grpc.StatusCode.RESOURCE_EXHAUSTED,  # "database space exceeded": the quota is used up
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
"""The coordinator answers, but refuses this write and all later ones until an administrator acts."""

_COMPARATORS: Final = {
    Comparator.EQUAL: rpc_pb2.Compare.EQUAL,
    Comparator.NOT_EQUAL: rpc_pb2.Compare.NOT_EQUAL,
    Comparator.LESS: rpc_pb2.Compare.LESS,
    Comparator.GREATER: rpc_pb2.Compare.GREATER,
}
_TARGETS: Final = {
    Target.CREATE_REVISION: rpc_pb2.Compare.CREATE,
    Target.MOD_REVISION: rpc_pb2.Compare.MOD,
    Target.VALUE: rpc_pb2.Compare.VALUE,
}


def encode_key(key: str) -> bytes:
    """The key on the wire. A key of another program that is not UTF-8 survives decoding and encoding."""
    return key.encode("utf-8", "surrogateescape")


def decode_key(key: bytes) -> str:
    """The key that `encode_key` wrote."""
    return key.decode("utf-8", "surrogateescape")


def prefix_range(prefix: str) -> tuple[bytes, bytes]:
    """The first key and the end of the range of all keys that begin with `prefix`."""
    start = encode_key(prefix)
    stem = start.rstrip(b"\xff")
    if not stem:
        return start or _ALL_KEYS, _ALL_KEYS
    return start, stem[:-1] + bytes([stem[-1] + 1])


def decode_item(kv: Message) -> KeyValue:
    """The key of a message, as it was at one revision."""
    return KeyValue(
        key=decode_key(kv.key),
        value=kv.value,
        create_revision=kv.create_revision,
        mod_revision=kv.mod_revision,
        version=kv.version,
        lease=kv.lease,
    )


def decode_items(kvs: Iterable[Message]) -> tuple[KeyValue, ...]:
    """The keys of several messages, in their order."""
    return tuple(map(decode_item, kvs))


def decode_event(event: Message) -> Event:
    """The change of a key that a message reports."""
    kind = EventKind.DELETE if event.type == kv_pb2.Event.DELETE else EventKind.PUT
    return Event(kind, decode_item(event.kv))


def encode_txn(compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]) -> Message:
    """A transaction as a message of etcd."""
    return rpc_pb2.TxnRequest(
        compare=map(_encode_compare, compares),
        success=map(_encode_operation, then),
        failure=map(_encode_operation, otherwise),
    )


def _encode_compare(compare: Compare) -> Message:
    message = rpc_pb2.Compare(result=_COMPARATORS[compare.comparator], target=_TARGETS[compare.target])
    if compare.prefix:
        message.key, message.range_end = prefix_range(compare.key)
    else:
        message.key = encode_key(compare.key)
    setattr(message, compare.target.value, compare.operand)  # the fields have the targets' names
    return message


def _encode_operation(operation: Operation) -> Message:
    message = rpc_pb2.RequestOp()
    if isinstance(operation, Put):
        put = message.request_put
        put.key, put.value, put.lease = encode_key(operation.key), operation.value, operation.lease
    elif isinstance(operation, Delete):
        message.request_delete_range.key = encode_key(operation.key)
    elif isinstance(operation, DeletePrefix):
        deletion = message.request_delete_range
        deletion.key, deletion.range_end = prefix_range(operation.prefix)
    elif isinstance(operation, Get):
        message.request_range.key = encode_key(operation.key)
    else:
        message.request_range.key, message.request_range.range_end = prefix_range(operation.prefix)
    return message


def decode_txn(response: Message) -> TxnResult:
    """The result of a transaction in etcd's answer."""
    results = []
    for answer in response.responses:
        kind = answer.WhichOneof("response")
        if kind == "response_range":
            results.append(OperationResult(items=decode_items(answer.response_range.kvs)))
        else:
            results.append(OperationResult())
    return TxnResult(response.succeeded, response.header.revision, tuple(results))


def make_error(error: grpc.aio.AioRpcError, doing: str) -> SeriatimError:
    """The error of the catalogue that stands for a failed call.

    Args:
        error: gRPC's error.
        doing: What the caller did, for the text.
    """
    code, details = error.code(), error.details() or ""
    text = f"{doing}: the coordinator answered {code.name}: {details}"
    if code in TRANSIENT_CODES:
        return CoordinatorUnavailableError(text)
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        return CompactedError(text)
    if code is grpc.StatusCode.NOT_FOUND and "lease not found" in details:
        return LeaseNotFoundError(text)
    if "request is too large" in details or "larger than max" in details:
        return MessageTooLargeError(text)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "space exceeded" not in details:
        return CoordinatorUnavailableError(text, retry_after_ms=100)  # too many requests at once
    if code in _REFUSING_CODES:
        return CoordinatorRefusedError(text)
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE):
        return BadRequestError(text)
    return PreconditionError(text)
