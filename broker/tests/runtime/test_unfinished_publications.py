"""What is decided is finished by the controller; records of unnamed jobs go."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest
from seriatim_api.errors import DeadlineExceededError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.values.writers import (
    EPHEMERAL_KEPT_MS,
    NEW_KEPT_MS,
    ManifestPlace,
    WriterRecord,
    WriterState,
)
from seriatim_broker.interfaces.coordinator import Put
from seriatim_broker.runtime.controller import unfinished_publications
from seriatim_broker.runtime.controller.unfinished_publications import (
    AGAIN_S,
    AGAIN_S_MAX,
    AT_ONCE_MAX,
    DECIDED_S,
    ROUND_SHARE,
    UnfinishedPublications,
)
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.records import writer_to_record
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

pytestmark = pytest.mark.asyncio

KEYS = Keys("c")
INCARNATION = "ab" * 16
PLACE = ManifestPlace(PartitionId(91), (1,), 1, 1, b"m" * 16)
DECIDED = WriterRecord(b"w" * 16, "orders", 1, "", WriterState.DECIDED, 7, PLACE)
DONE = replace(DECIDED, state=WriterState.DONE, ephemeral=True)


_NOTHING = asyncio.Event()
_NOTHING.set()


class Bench:
    """An elected broker, its clocks in the hands of the test, and who finishes publications."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator(MemoryStore())
        self.duty = UnfinishedPublications(self.coordinator, KEYS, self)
        self.duty.on_finish(self._finish)
        self.now_s = 0.0
        self.asked: list[tuple[str, str]] = []
        self.fails = False
        self.holds: dict[str, asyncio.Event] = {}  # writers whose publications hang

    def wall_ms(self) -> int:
        return round(self.now_s * 1000)

    def monotonic_us(self) -> int:
        return round(self.now_s * 1e6)

    async def _finish(self, incarnation: str, writer: str) -> None:
        self.asked.append((incarnation, writer))
        await self.holds.get(writer, _NOTHING).wait()
        if self.fails:
            raise DeadlineExceededError("not yet")

    async def tell(self, record: WriterRecord | None, writer: str = "nightly") -> None:
        """A record was written, or deleted."""
        key = KEYS.writer(INCARNATION, writer)
        if record is None:
            self.duty._changed({}, [key])
            return
        value = writer_to_record(record).SerializeToString()
        await self.coordinator.txn((), [Put(key, value)])
        self.duty._changed({key: value}, [key])

    async def tell_clocks(self, *at_s: float) -> None:
        """Brokers are live, and their clocks say that."""
        for number, told_s in enumerate(at_s):
            record = records_pb2.LiveRecord(wall_ms=round(told_s * 1000))
            await self.coordinator.txn((), [Put(KEYS.live(f"g0-{number}"), record.SerializeToString())])

    async def forget(self, at_s: float) -> None:
        """Look for what may go, then."""
        await self.tell_clocks(at_s, at_s)
        self.now_s = at_s
        await self.duty.forget()

    async def look(self, at_s: float) -> int:
        """How many were asked for then."""
        self.now_s = at_s
        self.asked.clear()
        await self.duty.look()
        for _ in range(3):
            await asyncio.sleep(0)
        return len(self.asked)


async def test_what_has_been_decided_for_a_while_is_finished() -> None:
    bench = Bench()
    await bench.tell(DECIDED)
    assert await bench.look(DECIDED_S - 0.1) == 0, "its publisher has it for itself"
    assert await bench.look(DECIDED_S) == 1
    assert bench.asked == [(INCARNATION, "nightly")]


async def test_what_is_done_meanwhile_is_left_alone() -> None:
    for after in (replace(DONE, ephemeral=False), None):
        bench = Bench()
        await bench.tell(DECIDED)
        await bench.tell(after)
        assert await bench.look(100) == 0


async def test_what_cannot_be_finished_is_tried_again_and_again_less_and_less_often() -> None:
    bench = Bench()
    bench.fails = True
    await bench.tell(DECIDED)
    tries = [second for second in range(300) if await bench.look(second)]
    pauses = [after - before for before, after in itertools.pairwise(tries)]
    assert pauses[0] == AGAIN_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == AGAIN_S_MAX


async def test_a_record_that_is_written_again_while_decided_is_not_put_off() -> None:
    bench = Bench()
    await bench.tell(DECIDED)
    bench.now_s = 1.9
    await bench.tell(replace(DECIDED, epoch=2))
    assert await bench.look(DECIDED_S) == 1


async def test_the_next_publication_has_a_time_of_its_own() -> None:
    """What was between two records may not be seen."""
    bench = Bench()
    await bench.tell(DECIDED)
    bench.now_s = 1.9
    await bench.tell(replace(DECIDED, sequence=8))
    assert await bench.look(DECIDED_S) == 0
    assert await bench.look(1.9 + DECIDED_S) == 1


async def test_how_many_wait_and_for_how_long() -> None:
    bench = Bench()
    assert (bench.duty.waiting_count, bench.duty.waiting_s) == (0, 0.0)
    await bench.tell(replace(DECIDED, decided_at_ms=5000))
    await bench.tell(replace(DECIDED, decided_at_ms=2000), "older")
    bench.now_s = 12
    assert (bench.duty.waiting_count, bench.duty.waiting_s) == (2, 10.0)
    await bench.tell(DONE, "older")
    assert (bench.duty.waiting_count, bench.duty.waiting_s) == (1, 7.0)


async def test_few_are_finished_at_once() -> None:
    bench = Bench()
    for number in range(AT_ONCE_MAX + 3):
        await bench.tell(DECIDED, f"w{number}")
    assert await bench.look(DECIDED_S) == AT_ONCE_MAX
    assert await bench.look(DECIDED_S) == 3


async def test_each_of_many_has_its_turn_within_half_an_hour() -> None:
    """Rule `each-has-its-turn`."""
    bench = Bench()
    for number in range(ROUND_SHARE * (AT_ONCE_MAX + 4)):
        await bench.tell(DECIDED, f"w{number}")
    assert await bench.look(DECIDED_S) == AT_ONCE_MAX + 4


async def test_those_that_hang_keep_no_other_one_from_its_turn() -> None:
    bench = Bench()
    for number in range(AT_ONCE_MAX + 3):
        bench.holds[f"h{number}"] = asyncio.Event()
        await bench.tell(DECIDED, f"h{number}")
    assert await bench.look(DECIDED_S) == AT_ONCE_MAX
    bench.holds["h0"].set()
    await asyncio.sleep(0)
    bench.now_s = DECIDED_S + 1
    await bench.tell(DECIDED, "new")
    await bench.look(DECIDED_S + 20)
    assert len(bench.asked) == 1, "one has ended, so there is room for one"
    for hold in bench.holds.values():
        hold.set()
    assert await bench.look(DECIDED_S + 20) == 0
    assert (INCARNATION, "new") not in bench.asked
    await bench.look(DECIDED_S + 20)
    assert (INCARNATION, "new") in bench.asked
    assert (INCARNATION, "h1") not in bench.asked, "it was tried just now"


async def test_a_try_that_fails_in_a_way_that_nobody_thought_of_is_tried_again() -> None:
    bench = Bench()

    async def fails(_incarnation: str, writer: str) -> None:
        bench.asked.append(("", writer))
        raise ValueError("a bug")

    bench.duty.on_finish(fails)
    await bench.tell(DECIDED)
    assert await bench.look(DECIDED_S) == 1
    assert await bench.look(DECIDED_S + AGAIN_S) == 1


async def test_a_record_that_cannot_be_read_harms_no_other() -> None:
    bench = Bench()
    bench.duty._changed({KEYS.writer(INCARNATION, "newer"): b"\xff"}, [KEYS.writer(INCARNATION, "newer")])
    await bench.tell(DECIDED)
    assert await bench.look(DECIDED_S) == 1


async def test_what_is_forgotten_keeps_nothing_from_its_turn() -> None:
    bench = Bench()
    await bench.tell(DONE, "job")
    asked, go_on, get = asyncio.Event(), asyncio.Event(), bench.coordinator.get

    async def slow(*arguments: Any, **named: Any) -> Any:
        asked.set()
        await go_on.wait()
        return await get(*arguments, **named)

    bench.coordinator.get = slow  # type: ignore[method-assign]
    bench.now_s = EPHEMERAL_KEPT_MS / 1000 + 1
    await bench.tell_clocks(bench.now_s, bench.now_s)
    running = asyncio.create_task(bench.duty.run())
    await asked.wait()
    await bench.tell(DECIDED, "busy")
    assert await bench.look(bench.now_s + DECIDED_S) == 1
    go_on.set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_many_records_are_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is elected where there are 100,000 writers answers others meanwhile."""
    monkeypatch.setattr(unfinished_publications, "RECORDS_PER_TURN", 2)
    bench = Bench()
    for number in range(7):
        await bench.tell(DECIDED, f"w{number}")
    bench.duty._decided.clear()
    running = asyncio.create_task(bench.duty.run())
    seen = set()
    while len(bench.duty._decided) < 7:
        await asyncio.sleep(0)
        seen.add(len(bench.duty._decided))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert {2, 4, 6} <= seen


async def test_records_of_unnamed_jobs_go_a_day_after_they_are_done() -> None:
    bench = Bench()
    await bench.tell(DONE, "job")
    await bench.tell(replace(DONE, ephemeral=False), "named")
    key = KEYS.writer(INCARNATION, "job")
    await bench.forget(EPHEMERAL_KEPT_MS / 1000)
    assert await bench.coordinator.get(key) is not None
    await bench.forget(EPHEMERAL_KEPT_MS / 1000 + 1)
    assert await bench.coordinator.get(key) is None
    assert await bench.coordinator.get(KEYS.writer(INCARNATION, "named")) is not None


async def test_records_of_writers_that_were_only_opened_go_after_a_month() -> None:
    bench = Bench()
    opened = WriterRecord(b"w" * 16, "orders", 7, opened_at_ms=1000)
    await bench.tell(opened, "idle")
    await bench.tell(opened, "busy")
    await bench.forget(NEW_KEPT_MS / 1000)
    assert await bench.coordinator.get(KEYS.writer(INCARNATION, "idle")) is not None
    newer = writer_to_record(replace(opened, epoch=8, opened_at_ms=2_000_000)).SerializeToString()
    await bench.coordinator.txn((), [Put(KEYS.writer(INCARNATION, "busy"), newer)])  # which the duty has not seen yet
    await bench.forget(NEW_KEPT_MS / 1000 + 2)
    assert await bench.coordinator.get(KEYS.writer(INCARNATION, "idle")) is None
    assert await bench.coordinator.get(KEYS.writer(INCARNATION, "busy")) is not None


async def test_a_controller_ahead_removes_no_record_that_may_be_asked_for() -> None:
    bench = Bench()
    await bench.tell(DONE, "job")
    bench.now_s = EPHEMERAL_KEPT_MS / 1000 + 60
    await bench.tell_clocks(bench.now_s, 1.0)
    await bench.duty.forget()
    assert await bench.coordinator.get(KEYS.writer(INCARNATION, "job")) is not None
