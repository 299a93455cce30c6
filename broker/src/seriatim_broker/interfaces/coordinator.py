"""The coordinator that the broker needs: etcd, the embedded coordinator, or the simulator's model.

The interface is etcd's data model, with nothing on top. All keys are in one sorted space, with one revision counter.
Transactions compare and then write. A lease takes its keys along when it ends. A watch begins at any revision that is
still kept. Other modules decide which record has which key (`runtime.coordinator.keys`).

Keys are `str`. They are UTF-8 on the wire, so the coordinator's order is the order by code point. Values are `bytes`.

Each call has a deadline in seconds (`deadline_s`; None: the implementation's default). Calls fail with:

    CoordinatorUnavailableError   No answer came in time, or no coordinator could be reached. The outcome of a *write*
                                  (`txn`, `grant`, `revoke`) is then unknown: it may have happened, or may still
                                  happen. The caller must read before it does anything else, and must never simply
                                  repeat the write.
    CompactedError                The history that the caller asked for is gone. List again, then watch from the
                                  listing's revision + 1.
    LeaseNotFoundError            A write named a lease that has ended. Nothing was written.
    MessageTooLargeError          The request is over `REQUEST_SIZE_BYTES_MAX`. Nothing was written.
    BadRequestError               No coordinator would take the request (it puts a key twice in one transaction, or has
                                  more than `OPERATION_COUNT_MAX` operations). Nothing was written.
    CoordinatorRefusedError       The coordinator reads and does not write (its quota is full, or the broker has no
                                  right). It will refuse the next write too, until an administrator acts. It is not
                                  known whether *this* write was carried out, because etcd gives the same answer to the
                                  write that fills its quota, and keeps that write. It will not be carried out later.
                                  The caller must read before it does anything else.
    PreconditionError             The coordinator refuses the call until an administrator acts (certificates, a wrong
    address).

If a write is cancelled, its outcome is unknown too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias

from seriatim_api.errors import CompactedError, CoordinatorUnavailableError, LeaseNotFoundError

__all__ = [
    "OPERATION_COUNT_MAX",
    "PAGE_ITEM_COUNT",
    "REQUEST_SIZE_BYTES_MAX",
    "CompactedError",
    "Comparator",
    "Compare",
    "Coordinator",
    "CoordinatorUnavailableError",
    "Delete",
    "DeletePrefix",
    "Event",
    "EventKind",
    "Get",
    "GetPrefix",
    "KeyValue",
    "Lease",
    "LeaseNotFoundError",
    "Listing",
    "Operation",
    "OperationResult",
    "Put",
    "Target",
    "TxnResult",
    "WatchBatch",
    "absent",
    "create_revision_is",
    "mod_revision_is",
    "present",
    "unchanged_under",
    "value_begins_with",
    "value_is",
]

OPERATION_COUNT_MAX: Final = 128
"""Most compares, and most operations of either branch, in one transaction: etcd's default `--max-txn-ops`."""

REQUEST_SIZE_BYTES_MAX: Final = 1536 * 1024
"""Largest request: etcd's default `--max-request-bytes`."""

PAGE_ITEM_COUNT: Final = 1000
"""Keys in one page of `list`. With chains of about 1 KB a page stays well under gRPC's 4 MiB for a message."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it was at one revision.

    Attributes:
        create_revision: The revision that made the key. A key that was deleted and made again has a new one.
        mod_revision: The revision that last wrote the key. A compare-and-swap compares this one.
        version: How often the key was written since it was made, from 1.
        lease: The lease with which the key ends; 0: none.
    """

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Listing:
    """The keys under a prefix, in key order, as they were at one revision."""

    items: tuple[KeyValue, ...]
    revision: int


class Target(Enum):
    """The property of a key that a compare reads. If the key does not exist, the revisions are 0."""

    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"
    VALUE = "value"


class Comparator(Enum):
    """The operator between the value that the coordinator has (left) and the operand (right)."""

    EQUAL = "=="
    NOT_EQUAL = "!="
    LESS = "<"
    GREATER = ">"


@dataclass(frozen=True, slots=True)
class Compare:
    """One condition of a transaction.

    With `prefix` it must hold for every key that begins with `key`. If there is no such key, the condition is checked
    with revision 0. A compare of VALUE fails if there is no key, with any comparator.

    Attributes:
        operand: An `int` for revisions, `bytes` for VALUE.
    """

    key: str
    target: Target
    comparator: Comparator
    operand: int | bytes
    prefix: bool = False

    def __post_init__(self) -> None:
        assert isinstance(self.operand, bytes) == (self.target is Target.VALUE), self
        assert self.key or self.prefix, "the empty key cannot be compared"


def absent(key: str) -> Compare:
    """The key does not exist."""
    return Compare(key, Target.CREATE_REVISION, Comparator.EQUAL, 0)


def present(key: str) -> Compare:
    """The key exists, with any value."""
    return Compare(key, Target.CREATE_REVISION, Comparator.GREATER, 0)


def mod_revision_is(key: str, revision: int) -> Compare:
    """The key was last written at `revision`; 0: it does not exist."""
    return Compare(key, Target.MOD_REVISION, Comparator.EQUAL, revision)


def create_revision_is(key: str, revision: int) -> Compare:
    """The key was made at `revision`; 0: it does not exist."""
    return Compare(key, Target.CREATE_REVISION, Comparator.EQUAL, revision)


def value_is(key: str, value: bytes) -> Compare:
    """The key exists, with exactly this value."""
    return Compare(key, Target.VALUE, Comparator.EQUAL, value)


def value_begins_with(key: str, beginning: bytes) -> tuple[Compare, Compare]:
    """The key exists, and its value is longer than `beginning`, begins with it, and continues with a byte below 255."""
    return (
        Compare(key, Target.VALUE, Comparator.GREATER, beginning),
        Compare(key, Target.VALUE, Comparator.LESS, beginning + b"\xff"),
    )


def unchanged_under(prefix: str, revision: int) -> Compare:
    """No key that begins with `prefix` was written after `revision`. This compare does not notice a deleted key."""
    return Compare(prefix, Target.MOD_REVISION, Comparator.LESS, revision + 1, prefix=True)


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key. `lease` 0 detaches the key from any lease."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one key. It is no error if the key does not exist."""

    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    """Delete every key that begins with `prefix` (the empty prefix: all keys)."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Get:
    """Read one key, as the operations before it in the same transaction left it."""

    key: str


@dataclass(frozen=True, slots=True)
class GetPrefix:
    """Read every key that begins with `prefix`, in key order. Use it only for a few keys: it has no pages."""

    prefix: str


Operation: TypeAlias = Put | Delete | DeletePrefix | Get | GetPrefix


@dataclass(frozen=True, slots=True)
class OperationResult:
    """The result of one operation of a transaction.

    Attributes:
        items: The keys that `Get` or `GetPrefix` found, in key order; empty for other operations.
    """

    items: tuple[KeyValue, ...] = ()

    @property
    def item(self) -> KeyValue | None:
        """The key that a `Get` found; None if it does not exist."""
        assert len(self.items) <= 1, "a GetPrefix has items, not an item"
        return self.items[0] if self.items else None


@dataclass(frozen=True, slots=True)
class TxnResult:
    """The result of a transaction.

    Attributes:
        succeeded: True: all compares held, and the coordinator carried out `then`. False: it carried out `otherwise`.
        revision: The coordinator's revision after the transaction. Keys that the transaction wrote have this
            mod_revision.
        responses: One for each operation of the branch that was carried out, in its order.
    """

    succeeded: bool
    revision: int
    responses: tuple[OperationResult, ...]


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted lease.

    Attributes:
        ttl_s: The granted seconds. They are never less than the caller asked for. The least that etcd grants is 2 s.
    """

    id: int
    ttl_s: int


class EventKind(Enum):
    """What happened to a key."""

    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one key.

    Attributes:
        item: After a PUT the key as written. After a DELETE only `key` and `mod_revision` (the revision of the
            deletion) have a meaning; the value is empty, and the other fields are 0.
    """

    kind: EventKind
    item: KeyValue


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Changes in the order of their revisions; all changes of one revision are in one batch.

    Attributes:
        revision: The watch has delivered every change up to and including this revision. A caller that must watch
            again begins at `revision + 1`.
    """

    events: tuple[Event, ...]
    revision: int


class Coordinator(Protocol):
    """The coordinator, as the broker sees it. Many tasks of one event loop may call it at the same time."""

    async def get(self, key: str, *, deadline_s: float | None = None) -> KeyValue | None:
        """Read one key, linearizably: the call sees each write that was acknowledged before it.

        If you need the revision too (to watch a key that does not exist), use `txn((), [Get(key)])`.
        """
        ...

    async def list(
        self,
        prefix: str,
        *,
        after: str = "",
        count_max: int | None = None,
        limit_per_page: int = PAGE_ITEM_COUNT,
        deadline_s: float | None = None,
    ) -> Listing:
        """Read all keys that begin with `prefix`, linearizably, as of one revision.

        To read in parts, give `count_max`, and as `after` the last key of the part before. Each part then has another
        revision.

        Args:
            prefix: The empty prefix means all keys.
            after: Only keys above this one.
            count_max: Maximum number of keys, at least 1; None: all.
            limit_per_page: Keys that the implementation asks for in one request.
            deadline_s: Seconds for all pages together.

        Raises:
            CompactedError: The listing's revision was compacted away between two pages. List again.
        """
        ...

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
        *,
        deadline_s: float | None = None,
    ) -> TxnResult:
        """Carry out `then` if all `compares` hold, and `otherwise` if not, atomically.

        When this returns, the writes are durable. A branch may write a key at most once.

        Raises:
            CoordinatorUnavailableError: The outcome is unknown. The implementation sends a transaction that writes at
                most once.
            LeaseNotFoundError: A `Put` named a lease that has ended. Nothing was done.
            BadRequestError: No coordinator would take the transaction. Nothing was done.
            MessageTooLargeError: The request is over `REQUEST_SIZE_BYTES_MAX`. Nothing was done.
        """
        ...

    async def grant(self, ttl_s: int, *, deadline_s: float | None = None) -> Lease:
        """Make a lease that ends `ttl_s` seconds after its last keep-alive. Its keys end with it.

        The caller counts these seconds from before its call, on a monotonic clock. The coordinator may keep the lease
        for longer (after its restart, or after a change of etcd's leader, it counts from zero), but never for less.
        """
        ...

    async def keep_alive(self, lease: int, *, deadline_s: float | None = None) -> int:
        """Renew a lease once.

        Returns:
            The seconds that the lease has again; 0 if it has ended, so that the caller must grant a new one.
        """
        ...

    async def revoke(self, lease: int, *, deadline_s: float | None = None) -> None:
        """End a lease and delete its keys, in one revision. It is no error if the lease has already ended."""
        ...

    def watch(self, key: str, *, start_revision: int, prefix: bool = False) -> AsyncGenerator[WatchBatch, None]:
        """Follow the changes of `key`, or with `prefix` of every key that begins with it.

        The watch leaves out, repeats and reorders no change, also when it reconnects or when the coordinator restarts.
        While the coordinator is away, the watch raises nothing and waits without a limit. Then it continues after the
        last revision that it delivered. Batches are never empty.

        Use it under `contextlib.aclosing`: when the iteration ends, the watch at the coordinator ends too.

        Args:
            key: A key, or with `prefix` the beginning of keys.
            start_revision: The first revision whose changes to deliver, at least 1; mostly a listing's revision + 1. If
                it is in the future, the watch waits for it. So a watch is silent after the coordinator went back, until
                its revision comes again (`runtime.coordinator.rebuilt_watches`).
            prefix: Whether to follow every key that begins with `key`.

        Raises:
            CompactedError: The coordinator has compacted away changes that were not delivered yet.
            PreconditionError: The coordinator refuses this watch until an administrator acts.
        """
        ...

    async def close(self) -> None:
        """Give back connections and tasks. Running watches end. Leases stay, and end by themselves."""
        ...
