"""The coordinator with its faults: requests and answers take time and get lost, and writes happen late.

One `CoordinatorServer` has a `MemoryStore`, and makes the faults on the way to it. Each process has a client of it, a
`SimulatedCoordinator`. The records are linearizable. A request may be lost, and its answer may be lost. A write may be
carried out after its sender was told that the outcome is unknown. A broker cannot know whether the coordinator is down
or the broker itself is cut off. Watches continue at their place, unless it was compacted away.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, TypeVar

from seriatim_api.errors import (
    CompactedError,
    CoordinatorRefusedError,
    CoordinatorUnavailableError,
    SeriatimError,
)

from seriatim_broker.interfaces.coordinator import (
    Compare,
    Delete,
    DeletePrefix,
    Lease,
    Operation,
    Put,
    TxnResult,
    WatchBatch,
)

from .memory_coordinator import DEADLINE_S, MemoryCoordinator, MemoryStore, StoreCopy
from .virtual_time import Timers

WATCH_RETRY_US = 50_000
"""The time after which a watch that cannot reach its client tries again."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class CoordinatorFaults:
    """The probabilities of faults while `CoordinatorServer.is_faulty`. Times are in microseconds.

    Attributes:
        delay_us_max: The longest time for a request, and for an answer.
        txn_lost_share: Share of the writes that do not arrive.
        txn_answer_lost_share: Share of the writes that are carried out and get no answer.
        txn_late_share: Share of the lost writes that are carried out later. This holds in an outage too.
        read_lost_share: Share of the reads that get no answer.
        noticed_us_min: The earliest time at which a client is told that its request has failed.
        noticed_us_max: The latest time, unless the client's own deadline comes before.
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
        isolated: For each client that cannot reach the coordinator (by name), the number of faults that cut it off.
        is_faulty: Whether `CoordinatorFaults` happen.
        is_refusing: Whether the coordinator reads but refuses to write, as etcd does with a full quota.
        keeps_next: Whether it keeps the next write that it refuses, as etcd keeps the write that fills the quota.
        observe: Called for each transaction that wrote, with the client's name, the compares, the operations that were
            done, and the result.
    """

    def __init__(self, timers: Timers, chance: Random, faults: CoordinatorFaults) -> None:
        self.store = MemoryStore(lambda: timers.now_us / 1e6)
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
        """Make a client for the running process."""
        return SimulatedCoordinator(self, name)

    @property
    def is_down(self) -> bool:
        """Whether the coordinator is down. While it is, no lease ends."""
        return self._is_down

    @is_down.setter
    def is_down(self, value: bool) -> None:
        if self._is_down and not value:
            self._back()
        self._is_down = value

    def _back(self) -> None:
        """Come back after an outage.

        Either the process restarted, so that leases count from zero. Or it only stalled, and all leases whose time is
        up end at once.
        """
        if self._chance.random() < 0.7:
            self.restart()
        self._timers.after(1, self._expire)

    def restart(self) -> None:
        """Continue as another process: leases count from zero, and each client resumes its watches."""
        self.store.restart()
        for lease in self.store.leases.values():
            self._timers.after(lease.ttl_s * 1_000_000 + 1, self._expire)
        for watch in self._watches:
            watch.is_lost = True
            watch.loop.call_soon(watch.arrived.set)

    def restore(self, copy: StoreCopy) -> None:
        """Replace the store by an older copy, and continue as another process."""
        self._restore_count += 1
        self.store.restore(copy)
        self.restart()

    def resume(self, watch: _Watch) -> None:
        """Let a watch whose connection was lost continue at its place."""
        watch.is_lost = False
        watch.is_due = True
        self._plan(watch)

    def compact(self, revision: int = 0) -> None:
        """Forget the history before a revision; 0: before the newest one."""
        self.store.compact(revision or self.store.revision)
        for watch in self._watches:
            watch.is_due = True
            self._plan(watch)

    # ---- requests -----------------------------------------------------------------------------------

    def delay_us(self) -> int:
        """Draw the time of a request or of an answer."""
        return self._chance.randint(100, self._faults.delay_us_max)

    def is_reached_by(self, client: str) -> bool:
        """Whether requests of this client arrive, and answers to it."""
        return not self._is_down and not self.isolated.get(client)

    def request(self, call: _Call) -> None:
        """Take a request, and draw what happens to it."""
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
            return  # the request is lost, and the client learns it by its deadline
        if call.restore_count != self._restore_count:
            return  # it was sent to the process before the restore, which is gone
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
        """Make a lease, and set a timer for its end."""
        lease = self.store.grant(ttl_s)
        self._timers.after(lease.ttl_s * 1_000_000 + 1, self._expire)
        return lease

    def keep_alive(self, lease_id: int) -> int:
        """Renew a lease. Returns the seconds that it has again; 0 if it has ended."""
        left_s = self.store.keep_alive(lease_id)
        if left_s:
            self._timers.after(left_s * 1_000_000 + 1, self._expire)
        return left_s

    def _expire(self) -> None:
        if not self._is_down:
            self.store.expire()

    # ---- watches ------------------------------------------------------------------------------------

    def begin(self, watch: _Watch) -> None:
        """Serve a watch from now on."""
        self._watches[watch] = None
        watch.is_due = True
        self._plan(watch)

    def end(self, watch: _Watch) -> None:
        """Stop serving a watch."""
        self._watches.pop(watch, None)

    def watches_of(self, client: SimulatedCoordinator) -> list[_Watch]:
        """The watches of a client."""
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
        """Give a watch all changes since its place."""
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
        """Give the client the answer or the error, on its own event loop."""
        self.loop.call_soon(self._give, answer, error)

    def _give(self, answer: Any, error: SeriatimError | None) -> None:
        if self.answer.done():
            return
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(answer)


@dataclass(slots=True, eq=False)
class _Watch:
    """A client's watch, and its place."""

    client: SimulatedCoordinator
    key: str
    next_revision: int
    prefix: bool = field(kw_only=True)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    is_due: bool = False
    is_lost: bool = False
    is_scheduled: bool = False
    queue: list[WatchBatch | SeriatimError] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def matches(self, key: str) -> bool:
        """Whether the watch follows this key."""
        return key.startswith(self.key) if self.prefix else key == self.key

    def concerns(self, batch: WatchBatch) -> bool:
        """Whether the watch follows a key of this batch."""
        return any(self.matches(event.item.key) for event in batch.events)

    def hand_on(self, what: WatchBatch | SeriatimError) -> None:
        """Give the client a batch or an error, on its own event loop."""
        self.loop.call_soon(self._take, what)

    def _take(self, what: WatchBatch | SeriatimError) -> None:
        self.queue.append(what)
        self.arrived.set()


class SimulatedCoordinator(MemoryCoordinator):
    """A process's client, as an `interfaces.coordinator.Coordinator`.

    If the process is killed, its requests continue, and their answers go nowhere.
    """

    def __init__(self, server: CoordinatorServer, name: str) -> None:
        super().__init__(server.store)
        self.name = name
        self._server = server
        self._txn, self._grant, self._keep_alive = partial(server.txn, name), server.grant, server.keep_alive

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

    async def watch(self, key: str, *, start_revision: int, prefix: bool = False) -> AsyncGenerator[WatchBatch, None]:
        """Follow a key, or all keys under a prefix."""
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
        """End the watches. The client answers nothing any more."""
        await super().close()
        for watch in self._server.watches_of(self):
            watch.arrived.set()
