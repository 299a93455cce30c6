"""A coordinator in memory: one sorted space of keys, one revision, leases and watches, without files and network.

It is for tests of the runtime that need a coordinator, but not its process. A `MemoryStore` has the data, and several
`MemoryCoordinator` clients may share it. A test may stop it (`is_away`), compact it, or let leases end (`expire`). The
contract tests of the real implementations check it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from seriatim_api.errors import (
    BadRequestError,
    CompactedError,
    CoordinatorUnavailableError,
    LeaseNotFoundError,
    MessageTooLargeError,
)

from seriatim_broker.interfaces.coordinator import (
    OPERATION_COUNT_MAX,
    PAGE_ITEM_COUNT,
    REQUEST_SIZE_BYTES_MAX,
    Comparator,
    Compare,
    Delete,
    DeletePrefix,
    Event,
    EventKind,
    Get,
    KeyValue,
    Lease,
    Listing,
    Operation,
    OperationResult,
    Put,
    Target,
    TxnResult,
    WatchBatch,
)

_Answer = TypeVar("_Answer")

DEADLINE_S = 5.0
TTL_S_MIN = 2
"""Shortest lease, as in etcd."""


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """A copy of a store, as in a backup. It has no keys with a lease, because leases are over when it is used."""

    items: dict[str, KeyValue] = field(default_factory=dict)
    revision: int = 1


@dataclass
class _Lease:
    ttl_s: int
    ends_s: float
    keys: set[str] = field(default_factory=set)


class MemoryStore:
    """The coordinator's data.

    Args:
        now_s: The clock by which leases end; None: that of the running event loop.

    Attributes:
        is_away: While true, the store answers nothing.
        revision: The newest revision.
        compacted: The oldest revision that is kept.
        changed: Set, and replaced, at each change.
        items: The keys that exist.
        history: The changes that are kept.
        leases: The leases that have not ended, by id.
    """

    def __init__(self, now_s: Callable[[], float] | None = None) -> None:
        self._now_s = now_s or (lambda: asyncio.get_running_loop().time())
        self.is_away = False
        self.revision = 1
        self.compacted = 0
        self.changed = asyncio.Event()
        self.items: dict[str, KeyValue] = {}
        self.history: list[WatchBatch] = []
        self.leases: dict[int, _Lease] = {}
        self._lease_serial = 0
        self._tell: list[Callable[[WatchBatch], None]] = []

    def on_write(self, tell: Callable[[WatchBatch], None]) -> None:
        """Call `tell` for each write from now on."""
        self._tell.append(tell)

    # ---- time and faults ----------------------------------------------------------------------------

    async def answer(self, deadline_s: float | None) -> None:
        """Wait until the store can answer.

        Raises:
            CoordinatorUnavailableError: The store is away until the deadline.
        """
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)  # no coordinator answers in the same turn of the loop
        until = loop.time() + (DEADLINE_S if deadline_s is None else deadline_s)
        while self.is_away:
            if loop.time() >= until:
                raise CoordinatorUnavailableError("the coordinator is away")
            await asyncio.sleep(0.005)
        self.expire()

    def expire(self) -> None:
        """End the leases whose time is up."""
        now_s = self._now_s()
        for lease_id in [lease_id for lease_id, lease in self.leases.items() if lease.ends_s <= now_s]:
            self.end_lease(lease_id)

    def compact(self, revision: int) -> None:
        """Forget the changes before `revision`."""
        self.compacted = revision
        self.history = [batch for batch in self.history if batch.revision >= revision]
        self._wake()

    def restart(self) -> None:
        """Restart the coordinator's process: leases count from zero."""
        for lease in self.leases.values():
            lease.ends_s = self._now_s() + lease.ttl_s
        self._wake()

    def copy(self) -> StoreCopy:
        """A backup of the present data."""
        return StoreCopy({key: item for key, item in self.items.items() if not item.lease}, self.revision)

    def restore(self, copy: StoreCopy) -> None:
        """Go back to a copy. Later writes are forgotten, and revisions count on from the copy's."""
        self.items = dict(copy.items)
        self.revision = copy.revision
        self.history = [batch for batch in self.history if batch.revision <= copy.revision]
        self.compacted = min(self.compacted, copy.revision)
        self.leases.clear()
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    # ---- leases -------------------------------------------------------------------------------------

    def grant(self, ttl_s: int) -> Lease:
        """Make a lease of at least `TTL_S_MIN` seconds."""
        self._lease_serial += 1
        ttl_s = max(ttl_s, TTL_S_MIN)
        self.leases[self._lease_serial] = _Lease(ttl_s, self._now_s() + ttl_s)
        return Lease(self._lease_serial, ttl_s)

    def keep_alive(self, lease_id: int) -> int:
        """Renew a lease. Returns the seconds that it has again; 0 if it has ended."""
        lease = self.leases.get(lease_id)
        if lease is None:
            return 0
        lease.ends_s = self._now_s() + lease.ttl_s
        return lease.ttl_s

    def end_lease(self, lease_id: int) -> None:
        """End a lease, and delete its keys."""
        lease = self.leases.pop(lease_id, None)
        if lease is not None and lease.keys:
            self._write([Delete(key) for key in sorted(lease.keys)])

    # ---- keys ---------------------------------------------------------------------------------------

    def under(self, prefix: str, after: str = "") -> list[KeyValue]:
        """All keys that begin with a prefix and are above `after`, ascending."""
        return [self.items[key] for key in sorted(self.items) if key.startswith(prefix) and key > after]

    def txn(self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]) -> TxnResult:
        """Carry out a transaction.

        Raises:
            BadRequestError: No coordinator would take the transaction. Nothing was done.
            MessageTooLargeError: The transaction is too large. Nothing was done.
            LeaseNotFoundError: A `Put` named a lease that has ended. Nothing was done.
        """
        for branch in (then, otherwise):
            _check(compares, branch)
        succeeded = all(self._holds(compare) for compare in compares)
        operations = then if succeeded else otherwise
        for operation in operations:
            if isinstance(operation, Put) and operation.lease and operation.lease not in self.leases:
                raise LeaseNotFoundError(f"lease {operation.lease} has ended")
        responses = self._write(operations)
        return TxnResult(succeeded, self.revision, tuple(responses))

    def _holds(self, compare: Compare) -> bool:
        if not compare.prefix:
            return _compare(compare, self.items.get(compare.key))
        found = self.under(compare.key)
        return all(_compare(compare, item) for item in found) if found else _compare(compare, None)

    def _write(self, operations: Sequence[Operation]) -> list[OperationResult]:
        events: list[Event] = []
        revision = self.revision + 1
        responses = [self._apply(operation, revision, events) for operation in operations]
        if events:
            self.revision = revision
            batch = WatchBatch(tuple(events), revision)
            self.history.append(batch)
            self._wake()
            for tell in self._tell:
                tell(batch)
        return responses

    def _apply(self, operation: Operation, revision: int, events: list[Event]) -> OperationResult:
        if isinstance(operation, Put):
            old = self.items.get(operation.key)
            if old is not None and old.lease in self.leases:
                self.leases[old.lease].keys.discard(operation.key)
            if operation.lease:
                self.leases[operation.lease].keys.add(operation.key)
            created = old.create_revision if old is not None else revision
            version = old.version + 1 if old is not None else 1
            item = KeyValue(operation.key, operation.value, created, revision, version, operation.lease)
            self.items[operation.key] = item
            events.append(Event(EventKind.PUT, item))
            return OperationResult()
        if isinstance(operation, Delete | DeletePrefix):
            exact = isinstance(operation, Delete)
            prefix = operation.key if isinstance(operation, Delete) else operation.prefix
            gone = [item for item in self.under(prefix) if not exact or item.key == prefix]
            for item in gone:
                del self.items[item.key]
                if item.lease in self.leases:
                    self.leases[item.lease].keys.discard(item.key)
                events.append(Event(EventKind.DELETE, KeyValue(item.key, b"", 0, revision, 0)))
            return OperationResult()
        if isinstance(operation, Get):
            found = self.items.get(operation.key)
            return OperationResult((found,) if found is not None else ())
        return OperationResult(tuple(self.under(operation.prefix)))


def _compare(compare: Compare, item: KeyValue | None) -> bool:
    left: int | bytes
    if compare.target is Target.VALUE:
        if item is None:
            return False
        left = item.value
    elif item is None:
        left = 0
    elif compare.target is Target.CREATE_REVISION:
        left = item.create_revision
    else:
        left = item.mod_revision
    right = compare.operand
    if compare.comparator is Comparator.EQUAL:
        return left == right
    if compare.comparator is Comparator.NOT_EQUAL:
        return left != right
    if isinstance(left, int) and isinstance(right, int):
        return left < right if compare.comparator is Comparator.LESS else left > right
    assert isinstance(left, bytes)
    assert isinstance(right, bytes)
    return left < right if compare.comparator is Comparator.LESS else left > right


def _check(compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
    """Raise an error for a transaction that no coordinator would take."""
    if len(compares) > OPERATION_COUNT_MAX or len(operations) > OPERATION_COUNT_MAX:
        raise BadRequestError(f"a transaction has at most {OPERATION_COUNT_MAX} compares and operations")
    size = sum(len(op.key.encode()) + len(op.value) for op in operations if isinstance(op, Put))
    if size > REQUEST_SIZE_BYTES_MAX:
        raise MessageTooLargeError(f"a request has at most {REQUEST_SIZE_BYTES_MAX} bytes")
    written: set[str] = set()
    prefixes = [op.prefix for op in operations if isinstance(op, DeletePrefix)]
    prefixes += [op.key for op in operations if isinstance(op, Delete)]
    for operation in operations:
        if not isinstance(operation, Put):
            continue
        deleted = [p for p in prefixes if operation.key.startswith(p)]
        exact = [op.key for op in operations if isinstance(op, Delete)]
        deleted = [p for p in deleted if p not in exact or p == operation.key]
        if operation.key in written or deleted:
            raise BadRequestError(f"{operation.key} is written twice in one transaction")
        written.add(operation.key)


class MemoryCoordinator:
    """A client of a `MemoryStore`, as an `interfaces.coordinator.Coordinator`."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self._closed = False
        self._txn, self._grant, self._keep_alive = store.txn, store.grant, store.keep_alive

    async def _ask(self, carry_out: Callable[[], _Answer], deadline_s: float | None, *, is_write: bool) -> _Answer:
        """Send a request to the store, which carries it out. `is_write`: it may change the store."""
        if self._closed:
            raise CoordinatorUnavailableError("this client is closed")
        await self.store.answer(deadline_s)
        return carry_out()

    async def get(self, key: str, *, deadline_s: float | None = None) -> KeyValue | None:
        """Read one key."""
        return await self._ask(lambda: self.store.items.get(key), deadline_s, is_write=False)

    async def list(
        self,
        prefix: str,
        *,
        after: str = "",
        count_max: int | None = None,
        limit_per_page: int = PAGE_ITEM_COUNT,
        deadline_s: float | None = None,
    ) -> Listing:
        """Read all keys under a prefix."""
        assert limit_per_page > 0
        store = self.store
        return await self._ask(
            lambda: Listing(tuple(store.under(prefix, after)[:count_max]), store.revision), deadline_s, is_write=False
        )

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
        *,
        deadline_s: float | None = None,
    ) -> TxnResult:
        """Carry out a transaction."""
        is_write = any(isinstance(operation, Put | Delete | DeletePrefix) for operation in (*then, *otherwise))
        return await self._ask(lambda: self._txn(compares, then, otherwise), deadline_s, is_write=is_write)

    async def grant(self, ttl_s: int, *, deadline_s: float | None = None) -> Lease:
        """Make a lease."""
        return await self._ask(lambda: self._grant(ttl_s), deadline_s, is_write=True)

    async def keep_alive(self, lease: int, *, deadline_s: float | None = None) -> int:
        """Renew a lease."""
        return await self._ask(lambda: self._keep_alive(lease), deadline_s, is_write=False)

    async def revoke(self, lease: int, *, deadline_s: float | None = None) -> None:
        """End a lease."""
        await self._ask(lambda: self.store.end_lease(lease), deadline_s, is_write=True)

    async def watch(self, key: str, *, start_revision: int, prefix: bool = False) -> AsyncGenerator[WatchBatch, None]:
        """Follow a key, or all keys under a prefix."""
        store = self.store
        following = start_revision
        while not self._closed:
            if following < store.compacted:
                raise CompactedError("compacted", compact_revision=store.compacted)
            changed = store.changed
            for batch in [] if store.is_away else list(store.history):
                if batch.revision < following:
                    continue
                following = batch.revision + 1
                events = tuple(
                    event
                    for event in batch.events
                    if event.item.key == key or (prefix and event.item.key.startswith(key))
                )
                if events:
                    yield WatchBatch(events, batch.revision)
            if changed is store.changed:
                await _either(changed, 0.02)
                store.expire()

    async def close(self) -> None:
        """End the watches. The client answers nothing any more."""
        self._closed = True


async def _either(changed: asyncio.Event, at_most_s: float) -> None:
    """Wait for a change, but at most `at_most_s` seconds, because leases also end without a call."""
    try:
        async with asyncio.timeout(at_most_s):
            await changed.wait()
    except TimeoutError:
        return
