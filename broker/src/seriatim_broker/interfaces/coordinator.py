"""What the broker needs of its coordinator: etcd, the embedded stand-in, or the simulator's model.

The interface is etcd's data model and nothing above it: keys in one sorted space, one revision counter for
all of them, transactions that compare and then write, leases that take keys along when they end, and
watches that begin at any revision still kept. What is stored under which key (chains, groups, members) is
decided elsewhere.

Keys are `str` (UTF-8 on the wire, so that sorting by code point is the coordinator's order); values are
`bytes`.

Every call has a deadline in seconds (`deadline_s`; None takes the implementation's configured default).
Failures:

    CoordinatorUnavailableError   no answer in time, or nobody there. The outcome of a *write* (`txn`,
                                  `grant`, `revoke`) is then unknown: it may have happened, or may happen yet.
                                  Read before doing anything else; never repeat a write blindly.
    CompactedError                the history asked for is gone: list again, then watch from the listing's
                                  revision + 1
    LeaseNotFoundError            a write named a lease that has ended; nothing was written
    MessageTooLargeError          the request is over `REQUEST_SIZE_BYTES_MAX`; nothing was written
    BadRequestError               a request that no coordinator would take (a key put twice in one
                                  transaction, more than `OPERATION_COUNT_MAX` operations); nothing was
                                  written
    CoordinatorRefusedError       the coordinator reads and does not write (a full quota, no right), and will refuse
                                  the next write too until a person acts. Whether *this* write was carried out is
                                  not known: etcd answers so to the one that fills its quota, and keeps it. It will
                                  not be carried out later. Read before doing anything else
    PreconditionError             refused until a person acts (certificates, a wrong address)

Cancelling a call leaves a write's outcome unknown as well.
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
    "none_under",
    "present",
    "unchanged_under",
    "value_is",
    "version_is",
]

OPERATION_COUNT_MAX: Final = 128
"""Most compares, and most operations of either branch, in one transaction: etcd's default `--max-txn-ops`."""

REQUEST_SIZE_BYTES_MAX: Final = 1536 * 1024
"""Largest request: etcd's default `--max-request-bytes`."""

PAGE_ITEM_COUNT: Final = 1000
"""Keys asked for at a time by `list`: chains of about 1 KB then stay well under gRPC's 4 MiB of a message."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it was at some revision.

    Attributes:
        create_revision: The revision that made the key; a key deleted and made again has a new one.
        mod_revision: The revision that last wrote the key; compare on this one to swap.
        version: How often the key was written since it was made, from 1.
        lease: The lease that the key ends with; 0: none.
    """

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Listing:
    """All keys under a prefix, in key order, as of one revision."""

    items: tuple[KeyValue, ...]
    revision: int


class Target(Enum):
    """What of a key a compare looks at. Of a key that is not there the first three are 0."""

    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"
    VERSION = "version"
    VALUE = "value"


class Comparator(Enum):
    """How a compare relates what it found (left) to what it was given (right)."""

    EQUAL = "=="
    NOT_EQUAL = "!="
    LESS = "<"
    GREATER = ">"


@dataclass(frozen=True, slots=True)
class Compare:
    """One condition of a transaction.

    With `prefix` it must hold for every key that begins with `key`; where there is none, it is put to a key
    with revisions and version 0. A compare of VALUE fails where there is no key at all, whatever its
    comparator.

    Attributes:
        operand: An `int` for revisions and version, `bytes` for VALUE.
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
    """The key is not there."""
    return Compare(key, Target.CREATE_REVISION, Comparator.EQUAL, 0)


def present(key: str) -> Compare:
    """The key is there, with whatever value."""
    return Compare(key, Target.CREATE_REVISION, Comparator.GREATER, 0)


def mod_revision_is(key: str, revision: int) -> Compare:
    """The key was last written at `revision`; 0: it is not there."""
    return Compare(key, Target.MOD_REVISION, Comparator.EQUAL, revision)


def create_revision_is(key: str, revision: int) -> Compare:
    """The key was made at `revision`; 0: it is not there."""
    return Compare(key, Target.CREATE_REVISION, Comparator.EQUAL, revision)


def version_is(key: str, version: int) -> Compare:
    """The key was written `version` times since it was made; 0: it is not there."""
    return Compare(key, Target.VERSION, Comparator.EQUAL, version)


def value_is(key: str, value: bytes) -> Compare:
    """The key is there with exactly this value."""
    return Compare(key, Target.VALUE, Comparator.EQUAL, value)


def none_under(prefix: str) -> Compare:
    """No key begins with `prefix`."""
    return Compare(prefix, Target.CREATE_REVISION, Comparator.EQUAL, 0, prefix=True)


def unchanged_under(prefix: str, revision: int) -> Compare:
    """No key that begins with `prefix` was written after `revision`; a deleted one goes unnoticed."""
    return Compare(prefix, Target.MOD_REVISION, Comparator.LESS, revision + 1, prefix=True)


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key. `lease` 0 detaches the key from any lease."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one key; not an error if it is not there."""

    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    """Delete every key that begins with `prefix` (the empty prefix: all there is)."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Get:
    """Read one key, as the operations before it in the same transaction left it."""

    key: str


@dataclass(frozen=True, slots=True)
class GetPrefix:
    """Read every key that begins with `prefix`, in key order; meant for few."""

    prefix: str


Operation: TypeAlias = Put | Delete | DeletePrefix | Get | GetPrefix


@dataclass(frozen=True, slots=True)
class OperationResult:
    """What one operation of a transaction gave.

    Attributes:
        items: What `Get` and `GetPrefix` found, in key order; else empty.
        deleted_count: Keys that `Delete` and `DeletePrefix` removed; else 0.
    """

    items: tuple[KeyValue, ...] = ()
    deleted_count: int = 0

    @property
    def item(self) -> KeyValue | None:
        """The key that a `Get` found; None if it is not there."""
        assert len(self.items) <= 1, "a GetPrefix has items, not an item"
        return self.items[0] if self.items else None


@dataclass(frozen=True, slots=True)
class TxnResult:
    """The end of a transaction.

    Attributes:
        succeeded: All compares held, and `then` was carried out; else `otherwise` was.
        revision: The coordinator's revision after it; keys written by it have this mod_revision.
        responses: One for each operation of the branch carried out, in its order.
    """

    succeeded: bool
    revision: int
    responses: tuple[OperationResult, ...]


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted lease.

    Attributes:
        ttl_s: What was granted, in seconds; never less than was asked for. etcd goes no lower than 2 s.
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
        item: After a PUT the key as written. After a DELETE only `key` and `mod_revision` (of the deletion)
            mean something; value is empty, the rest 0.
    """

    kind: EventKind
    item: KeyValue


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Changes in the order of their revisions; all changes of one revision are in one batch.

    Attributes:
        revision: Everything up to and including this revision has been delivered: a caller that must begin
            anew begins at `revision + 1`.
    """

    events: tuple[Event, ...]
    revision: int


class Coordinator(Protocol):
    """The coordinator, as the broker sees it. Safe to call from many tasks of one event loop at once."""

    async def get(self, key: str, *, deadline_s: float | None = None) -> KeyValue | None:
        """Read one key, linearizably: what was acknowledged before the call is seen.

        Where the revision is needed too (to watch a key that is not there), use `txn((), [Get(key)])`.
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

        The empty prefix is all there is. Only keys above `after`, and at most `count_max` of them (at least 1): whoever
        reads in parts asks for each with the last key that it has, and sees another revision each time.

        Asks for `limit_per_page` keys at a time; the deadline is for all pages together.

        Raises:
            CompactedError: The listing's revision was compacted away between two pages; list again.
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
        """If all `compares` hold carry out `then`, else `otherwise`, atomically.

        Durable when the answer is here. A key may be written at most once in a branch.

        Raises:
            CoordinatorUnavailableError: The outcome is unknown. The implementation never sends twice what writes.
            LeaseNotFoundError: A `Put` named a lease that has ended; nothing was done.
            BadRequestError, MessageTooLargeError: Nothing was done.
        """
        ...

    async def grant(self, ttl_s: int, *, deadline_s: float | None = None) -> Lease:
        """Make a lease that ends `ttl_s` seconds after its last keep-alive, and its keys with it.

        Count it from before the call was made, on a monotonic clock. The coordinator may let it live longer
        (after its own restart or change of leader it counts anew), never shorter.
        """
        ...

    async def keep_alive(self, lease: int, *, deadline_s: float | None = None) -> int:
        """Renew a lease once; the seconds it has again, or 0 if it has ended (a new one must be granted)."""
        ...

    async def revoke(self, lease: int, *, deadline_s: float | None = None) -> None:
        """End a lease and delete its keys, in one revision. One that has ended already is no error."""
        ...

    def watch(self, key: str, *, start_revision: int, prefix: bool = False) -> AsyncGenerator[WatchBatch, None]:
        """Follow the changes of `key`, or with `prefix` of every key that begins with it.

        `start_revision` (at least 1) is the first revision of interest, a listing's revision + 1 as a rule;
        one in the future waits for it. Nothing is left out, repeated or reordered, over reconnects and
        restarts of the coordinator as well: the watch takes itself up again after the last revision
        delivered, for as long as it takes, and raises nothing while the coordinator is away. Batches are
        never empty.

        Use it under `contextlib.aclosing`; ending the iteration ends the watch at the server.

        Raises:
            CompactedError: Changes that were not delivered yet have been compacted away.
            PreconditionError: The coordinator refuses this watch until a person acts.
        """
        ...

    async def close(self) -> None:
        """Give back connections and tasks; running watches end. Leases stay, and end by themselves."""
        ...
