"""What the embedded coordinator answers to a request that it does not carry out: etcd's own codes and words.

The words matter: clients of etcd (our adapter and `etcdctl` among them) tell some refusals apart by them.
"""

from __future__ import annotations

import grpc


class Refusal(Exception):  # noqa: N818  (an answer of the protocol, not a fault of this process)
    """A request that changes nothing and is answered with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details


def _invalid(details: str) -> Refusal:
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, f"etcdserver: {details}")


def no_key() -> Refusal:
    """A request without a key."""
    return _invalid("key is not provided")


def duplicate_key() -> Refusal:
    """A transaction that writes a key twice."""
    return _invalid("duplicate key given in txn request")


def too_many_operations() -> Refusal:
    """A transaction over the limit."""
    return _invalid("too many operations in txn request")


def too_large() -> Refusal:
    """A request over the limit of bytes."""
    return _invalid("request is too large")


def not_served(what: str) -> Refusal:
    """A part of etcd's API that has no use here."""
    return Refusal(grpc.StatusCode.UNIMPLEMENTED, f"the embedded coordinator does not serve {what}")


def compacted() -> Refusal:
    """A revision that is gone."""
    return Refusal(grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")


def future_revision() -> Refusal:
    """A revision that is not there yet."""
    return Refusal(grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision")


def no_space() -> Refusal:
    """The store is full."""
    return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")


def lease_not_found() -> Refusal:
    """A lease that has ended."""
    return Refusal(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")


def lease_exists() -> Refusal:
    """A lease's id that is taken."""
    return Refusal(grpc.StatusCode.FAILED_PRECONDITION, "etcdserver: lease already exists")


def ttl_too_large() -> Refusal:
    """A lease for longer than anybody may ask."""
    return Refusal(grpc.StatusCode.OUT_OF_RANGE, "etcdserver: too large lease TTL")


def stopping() -> Refusal:
    """The server is on its way out; ask again."""
    return Refusal(grpc.StatusCode.UNAVAILABLE, "etcdserver: server stopped")
