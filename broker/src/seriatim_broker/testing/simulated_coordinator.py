"""The coordinator as brokers meet it: answers take time, get lost, or come before anybody knows of the deed.

One `CoordinatorServer` holds a `MemoryStore` and everything that may go wrong on the way to it; each process has a
`SimulatedCoordinator`, its client. The records themselves are linearizable. A request may be lost, its answer may be
lost, and a write may be carried out after its sender was told that nobody knows. To a broker an outage and its own
isolation look the same. Watches go on where they were, unless that was compacted meanwhile.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from seriatim_api.errors import (
    CompactedError,
    CoordinatorRefusedError,
    CoordinatorUnavailableError,
    SeriatimError,
)

from seriatim_broker.interfaces.coordinator import (
    PAGE_ITEM_COUNT,
    Compare,
    Delete,
    DeletePrefix,
    KeyValue,
    Lease,
    Listing,
    Operation,
    Put,
    TxnResult,
    WatchBatch,
)

from .memory_coordinator import DEADLINE_S, MemoryStore, StoreCopy
from .virtual_time import Timers

WATCH_RETRY_US = 50_000
"""How often a watch that cannot reach its client is taken up again."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class CoordinatorFaults:
    """What goes wrong with requests while `CoordinatorServer.is_faulty`, as probabilities; times in microseconds.

    Attributes:
        delay_us_max: A request, and its answer, takes at most this.
        txn_lost_share: Writes that do not arrive.
        txn_answer_lost_share: Writes that are carried out and not answered.
        txn_late_share: Of the writes that are lost, in an outage too: those that are carried out later after all.
        read_lost_share: Reads that are not answered.
        noticed_us_min, noticed_us_max: When a client is told that a request has failed, if not by its own deadline.
    """

    delay_us_max: int = 1_000
    txn_lost_share: float = 0.0
    txn_answer_lost_share: float = 0.0
    txn_late_share: float = 0.0
    read_lost_share: float = 0.0
    noticed_us_min: int = 50_000
    noticed_us_max: int = 1_000_000


Observe = Callable[[str, Sequence[Compare], Sequence[Operation], TxnResult], None]


class CoordinatorServer:
    """The coordinator's one process.

    Attributes:
        isolated: Clients (by name) that cannot reach it; a count, since several faults may say so.
        is_faulty: Whether `CoordinatorFaults` strike.
        is_refusing: Whether it reads and refuses to write, as etcd does that has used up its quota.
        keeps_next: And whether it keeps the next write that it refuses: the one that filled the quota.
        observe: Told every transaction that wrote: by whom, what was compared and done, and the result.
    """

    def __init__(self, timers: Timers, chance: Random, faults: CoordinatorFaults) -> None:
        self.store = MemoryStore()
        self.isolated: dict[str, int] = {}
        self._restore_count = 0
        self.is_faulty = False
        self.is_refusing = False
        self.keeps_next = False
        self.observe: Observe = lambda *_: None
        self._timers = timers
        self._chance = chance
        self._faults = faults
        self._is_down = False
        self._watches: dict[_Watch, None] = {}
        self.store.on_write(self._written)

    def client(self, name: str) -> SimulatedCoordinator:
        """A client for the process that is running."""
        return SimulatedCoordinator(self, name)

    @property
    def is_down(self) -> bool:
        """Whether nobody can reach it; no lease ends meanwhile."""
        return self._is_down

    @is_down.setter
    def is_down(self, value: bool) -> None:
        if self._is_down and not value:
            self._back()
        self._is_down = value

    def _back(self) -> None:
        """As after a new leader: leases count anew; or, where it only stalled, all that ran out end at once."""
        if self._chance.random() < 0.7:
            self.restart()
        self._timers.after(1, self._expire)

    def restart(self) -> None:
        """Another process goes on: leases count anew, watches are taken up again by whoever awaits them."""
        self.store.restart_at(self._timers.now_us / 1e6)
        for lease in self.store.leases.values():
            self._timers.after(lease.ttl_s * 1_000_000 + 1, self._expire)
        for watch in self._watches:
            watch.is_lost = True
            watch.loop.call_soon(watch.arrived.set)

    def restore(self, copy: StoreCopy) -> None:
        """An older copy of the store takes its place, under another process."""
        self._restore_count += 1
        self.store.restore(copy)
        self.restart()

    def resume(self, watch: _Watch) -> None:
        """A watch whose connection was lost goes on where it was."""
        watch.is_lost = False
        watch.is_due = True
        self._plan(watch)

    def compact(self, revision: int = 0) -> None:
        """Forget the history before a revision; before the newest one if none is given."""
        self.store.compact(revision or self.store.revision)
        for watch in self._watches:
            watch.is_due = True
            self._plan(watch)

    # ---- requests -----------------------------------------------------------------------------------

    def delay_us(self) -> int:
        """How long one way takes."""
        return self._chance.randint(100, self._faults.delay_us_max)

    def is_reached_by(self, client: str) -> bool:
        """Whether anything gets from one to the other."""
        return not self._is_down and not self.isolated.get(client)

    def request(self, call: _Call) -> None:
        """Take a request."""
        call.restore_count = self._restore_count
        chance, faults = self._chance, self._faults
        if not self.is_reached_by(call.client.name):
            lost, answer_lost, late = True, False, call.is_write and chance.random() < faults.txn_late_share
        elif not self.is_faulty:
            lost = answer_lost = late = False
        elif call.is_write:
            draw = chance.random()
            lost = draw < faults.txn_lost_share
            answer_lost = not lost and draw < faults.txn_lost_share + faults.txn_answer_lost_share
            late = lost and chance.random() < faults.txn_late_share * 3
        else:
            lost, answer_lost, late = chance.random() < faults.read_lost_share, False, False
        if lost or answer_lost:
            noticed = chance.randint(faults.noticed_us_min, faults.noticed_us_max)
            self._timers.after(noticed, self._failed, call)
            if lost and not late:
                return
            if late:
                self._timers.after(noticed + chance.randint(0, 400_000), self._carry_out, call, True)
                return
        self._timers.after(self.delay_us(), self._carry_out, call, answer_lost)

    def _failed(self, call: _Call) -> None:
        call.give(None, CoordinatorUnavailableError("the connection to the coordinator broke"))

    def _carry_out(self, call: _Call, silent: bool) -> None:
        if not self.is_reached_by(call.client.name) and not silent:
            return  # it came too late; the client's deadline tells it
        if call.restore_count != self._restore_count:
            return  # it was sent to members that are no more; those that were restored never hear of it
        answer: Any = None
        error: SeriatimError | None = None
        refuses = self.is_refusing and call.is_write
        try:
            if not refuses or self.keeps_next:
                answer = call.carry_out()
            if refuses:
                self.keeps_next = False
                raise CoordinatorRefusedError("mvcc: database space exceeded")
        except SeriatimError as exc:
            answer, error = None, exc
        if not silent:
            self._timers.after(self.delay_us(), self._answer, call, answer, error)

    def _answer(self, call: _Call, answer: Any, error: SeriatimError | None) -> None:
        if self.is_reached_by(call.client.name):
            call.give(answer, error)

    def txn(
        self, client: str, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> TxnResult:
        """Carry out a transaction."""
        result = self.store.txn(compares, then, otherwise)
        done = then if result.succeeded else otherwise
        if any(isinstance(operation, Put | Delete | DeletePrefix) for operation in done):
            self.observe(client, compares, done, result)
        return result

    # ---- leases -------------------------------------------------------------------------------------

    def grant(self, ttl_s: int) -> Lease:
        """A lease, whose end is looked after."""
        lease = self.store.grant(ttl_s, self._timers.now_us / 1e6)
        self._timers.after(lease.ttl_s * 1_000_000 + 1, self._expire)
        return lease

    def keep_alive(self, lease: int) -> int:
        """Renew."""
        left_s = self.store.keep_alive(lease, self._timers.now_us / 1e6)
        if left_s:
            self._timers.after(left_s * 1_000_000 + 1, self._expire)
        return left_s

    def _expire(self) -> None:
        if not self._is_down:
            self.store.expire(self._timers.now_us / 1e6)

    # ---- watches ------------------------------------------------------------------------------------

    def begin(self, watch: _Watch) -> None:
        """Follow from now on."""
        self._watches[watch] = None
        watch.is_due = True
        self._plan(watch)

    def end(self, watch: _Watch) -> None:
        """Follow no more."""
        self._watches.pop(watch, None)

    def watches_of(self, client: SimulatedCoordinator) -> list[_Watch]:
        """Those that a client follows."""
        return [watch for watch in self._watches if watch.client is client]

    def _written(self, batch: WatchBatch) -> None:
        for watch in self._watches:
            if not watch.is_due and watch.concerns(batch):
                watch.is_due = True
                self._plan(watch)

    def _plan(self, watch: _Watch) -> None:
        if not watch.is_scheduled:
            watch.is_scheduled = True
            self._timers.after(self.delay_us(), self._hand_on, watch)

    def _hand_on(self, watch: _Watch) -> None:
        """Give a watch all that happened since its position."""
        watch.is_scheduled = False
        if watch not in self._watches or watch.is_lost:
            return
        if not self.is_reached_by(watch.client.name):
            watch.is_scheduled = True
            self._timers.after(WATCH_RETRY_US, self._hand_on, watch)
            return
        watch.is_due = False
        store = self.store
        if watch.next_revision < store.compacted:
            self.end(watch)
            watch.hand_on(CompactedError("compacted", compact_revision=store.compacted))
            return
        first = bisect_left(store.history, watch.next_revision, key=lambda batch: batch.revision)
        for batch in store.history[first:]:
            events = tuple(event for event in batch.events if watch.matches(event.item.key))
            if events:
                watch.hand_on(WatchBatch(events, batch.revision))
        watch.next_revision = max(watch.next_revision, store.revision + 1)


class _Call:
    """A request on its way."""

    __slots__ = ("answer", "carry_out", "client", "is_write", "loop", "restore_count")

    def __init__(self, client: SimulatedCoordinator, carry_out: Callable[[], Any], *, is_write: bool) -> None:
        self.client = client
        self.carry_out = carry_out
        self.is_write = is_write
        self.restore_count = 0
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self.loop.create_future()

    def give(self, answer: Any, error: SeriatimError | None) -> None:
        """Tell the client, in its own process."""
        self.loop.call_soon(self._give, answer, error)

    def _give(self, answer: Any, error: SeriatimError | None) -> None:
        if self.answer.done():
            return
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(answer)


class _Watch:
    """A client's watch, and how far it is."""

    __slots__ = (
        "_key",
        "_prefix",
        "arrived",
        "client",
        "is_due",
        "is_lost",
        "is_scheduled",
        "loop",
        "next_revision",
        "queue",
    )

    def __init__(self, client: SimulatedCoordinator, key: str, start_revision: int, *, prefix: bool) -> None:
        self._key = key
        self._prefix = prefix
        self.client = client
        self.loop = asyncio.get_running_loop()
        self.next_revision = start_revision
        self.is_due = False
        self.is_lost = False
        self.is_scheduled = False
        self.queue: list[WatchBatch | SeriatimError] = []
        self.arrived = asyncio.Event()

    def matches(self, key: str) -> bool:
        """Whether it follows this key."""
        return key.startswith(self._key) if self._prefix else key == self._key

    def concerns(self, batch: WatchBatch) -> bool:
        """Whether anything of this is for it."""
        return any(self.matches(event.item.key) for event in batch.events)

    def hand_on(self, what: WatchBatch | SeriatimError) -> None:
        """To the client, in its own process."""
        self.loop.call_soon(self._take, what)

    def _take(self, what: WatchBatch | SeriatimError) -> None:
        self.queue.append(what)
        self.arrived.set()


class SimulatedCoordinator:
    """A process's client; implements `interfaces.coordinator.Coordinator`.

    A process that was killed answers nothing to anybody, and what it asked for goes on.
    """

    def __init__(self, server: CoordinatorServer, name: str) -> None:
        self.name = name
        self._server = server
        self._closed = False

    async def _ask(self, carry_out: Callable[[], _Answer], deadline_s: float | None, *, is_write: bool) -> _Answer:
        if self._closed:
            raise CoordinatorUnavailableError("this client is closed")
        call = _Call(self, carry_out, is_write=is_write)
        self._server.request(call)
        try:
            async with asyncio.timeout(DEADLINE_S if deadline_s is None else deadline_s):
                answer: _Answer = await call.answer
                return answer
        except TimeoutError as exc:
            raise CoordinatorUnavailableError("no answer in time") from exc

    async def get(self, key: str, *, deadline_s: float | None = None) -> KeyValue | None:
        """Read one key."""
        return await self._ask(lambda: self._server.store.items.get(key), deadline_s, is_write=False)

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
        store = self._server.store
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
        """Compare, then write."""
        is_write = any(isinstance(operation, Put | Delete | DeletePrefix) for operation in (*then, *otherwise))
        return await self._ask(
            lambda: self._server.txn(self.name, compares, then, otherwise), deadline_s, is_write=is_write
        )

    async def grant(self, ttl_s: int, *, deadline_s: float | None = None) -> Lease:
        """Make a lease."""
        return await self._ask(lambda: self._server.grant(ttl_s), deadline_s, is_write=True)

    async def keep_alive(self, lease: int, *, deadline_s: float | None = None) -> int:
        """Renew a lease."""
        return await self._ask(lambda: self._server.keep_alive(lease), deadline_s, is_write=False)

    async def revoke(self, lease: int, *, deadline_s: float | None = None) -> None:
        """End a lease."""
        await self._ask(lambda: self._server.store.end_lease(lease), deadline_s, is_write=True)

    async def watch(self, key: str, *, start_revision: int, prefix: bool = False) -> AsyncGenerator[WatchBatch, None]:
        """Follow a key, or all under a prefix."""
        watch = _Watch(self, key, start_revision, prefix=prefix)
        self._server.begin(watch)
        try:
            while not self._closed:
                await watch.arrived.wait()
                watch.arrived.clear()
                if watch.is_lost:
                    self._server.resume(watch)
                queue, watch.queue = watch.queue, []
                for what in queue:
                    if isinstance(what, SeriatimError):
                        raise what
                    yield what
        finally:
            self._server.end(watch)

    async def close(self) -> None:
        """End the watches; nothing is answered any more."""
        self._closed = True
        for watch in self._server.watches_of(self):
            watch.arrived.set()
