"""The embedded coordinator's answers to requests that it does not carry out. They have etcd's codes and words.

The words matter, because clients of etcd (also our adapter and `etcdctl`) recognise some refusals by them.
"""

from __future__ import annotations

import grpc


class Refusal(Exception):  # noqa: N818  (an answer of the protocol, not a fault of this process)
    """A gRPC status as the answer to a request. The request has changed nothing."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details


def _invalid(details: str) -> Refusal:
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, f"etcdserver: {details}")


def no_key() -> Refusal:
    """The request has no key."""
    return _invalid("key is not provided")


def duplicate_key() -> Refusal:
    """The transaction writes a key twice."""
    return _invalid("duplicate key given in txn request")


def too_many_operations() -> Refusal:
    """The transaction has more than `OPERATION_COUNT_MAX` compares or operations."""
    return _invalid("too many operations in txn request")


def too_large() -> Refusal:
    """The request has more than `REQUEST_SIZE_BYTES_MAX` bytes."""
    return _invalid("request is too large")


def not_served(what: str) -> Refusal:
    """The request uses a part of etcd's API that the embedded coordinator does not have."""
    return Refusal(grpc.StatusCode.UNIMPLEMENTED, f"the embedded coordinator does not serve {what}")


def compacted() -> Refusal:
    """The revision was compacted away."""
    return Refusal(grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")


def future_revision() -> Refusal:
    """The revision does not exist yet."""
    return Refusal(grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision")


def no_space() -> Refusal:
    """The store is full."""
    return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")


def lease_not_found() -> Refusal:
    """The lease has ended, or never existed."""
    return Refusal(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")


def lease_exists() -> Refusal:
    """Another lease has this id."""
    return Refusal(grpc.StatusCode.FAILED_PRECONDITION, "etcdserver: lease already exists")


def ttl_too_large() -> Refusal:
    """The lease would be longer than `TTL_S_MAX`."""
    return Refusal(grpc.StatusCode.OUT_OF_RANGE, "etcdserver: too large lease TTL")


def stopping() -> Refusal:
    """The coordinator is stopping, or its disk has failed. The client may ask again."""
    return Refusal(grpc.StatusCode.UNAVAILABLE, "etcdserver: server stopped")
