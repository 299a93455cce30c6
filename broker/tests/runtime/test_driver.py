"""The driver with scripted cores: order, coalescing, timers, and what a failed step leads to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, get_args

import pytest
import structlog
from seriatim_api.errors import CorruptionError, DeadlineExceededError
from seriatim_api.ids import PartitionId, make_offset
from seriatim_api.publications import StagedBatch
from seriatim_broker.adapters.system_clock import SystemClock
from seriatim_broker.core.state.consumers import ConsumerGroup, KeyedServed
from seriatim_broker.core.state.keyed.dispatcher import KeyedDispatcher
from seriatim_broker.core.state.partition import Floor, Partition
from seriatim_broker.core.state.window import Window
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import (
    Event,
    LogRead,
    Moment,
    Persisted,
    PlanSwitch,
    StagedFetched,
    Tick,
)
from seriatim_broker.core.values.log import (
    Batch,
    DropPartition,
    Write,
)
from seriatim_broker.core.values.messages import Heartbeat
from seriatim_broker.counters.broker import Counters
from seriatim_broker.runtime.driver import driver as driver_module
from seriatim_broker.runtime.driver import retry_cache
from seriatim_broker.runtime.driver.driver import Driver
from seriatim_broker.testing.simulated_bodies import SimulatedBodies

P = PartitionId(1)


class ScriptedCore:
    """Answers each event as instructed, and remembers all."""

    def __init__(self, answer: Callable[[Event], list[fx.Effect]]) -> None:
        self.answer = answer
        self.events: list[Event] = []
        self.wake_us: int | None = None
        self.partitions: dict[PartitionId, Partition] = {}
        self.arrived = asyncio.Event()

    def start(self, now: Moment) -> list[fx.Effect]:
        return []

    def step(self, event: Event, now: Moment) -> list[fx.Effect]:
        self.events.append(event)
        self.arrived.set()
        if isinstance(event, Tick) and self.wake_us is not None and now.mono_us >= self.wake_us:
            self.wake_us = None
        return self.answer(event)

    def next_wake_us(self) -> int | None:
        return self.wake_us

    async def until(self, condition: Callable[[ScriptedCore], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition(self):
                self.arrived.clear()
                await self.arrived.wait()


class SlowDisk:
    """A storage that is durable when the test says so."""

    is_saturated = False

    def __init__(self) -> None:
        self.submitted: list[list[Write]] = []
        self.report: Callable[[int], None] = lambda _ticket: None
        self.reading = 0
        self.reading_max = 0
        self.is_in_memory = False
        self.error: Exception | None = None

    def on_durable(self, report: Callable[[int], None]) -> None:
        self.report = report

    def submit(self, writes: Any) -> int:
        self.submitted.append(list(writes))
        return len(self.submitted)

    def read_at_once(self, *_: Any) -> list[Batch] | None:
        return [] if self.is_in_memory else None

    async def read(self, *_: Any, sequential: bool = False) -> list[Batch]:
        self.reading += 1
        self.reading_max = max(self.reading_max, self.reading)
        await asyncio.sleep(0)
        self.reading -= 1
        if self.error is not None:
            raise self.error
        return []


class Sink:
    """Links and coordinator work that only note what was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.calls.append((name, *arguments))


def make(answer: Callable[[Event], list[fx.Effect]]) -> tuple[Driver, ScriptedCore, SlowDisk, Sink, list[Any]]:
    core, disk, sink, deaths = ScriptedCore(answer), SlowDisk(), Sink(), []
    driver = Driver(core, disk, SystemClock(), Counters(), deaths.append, SimulatedBodies())  # type: ignore[arg-type]
    driver.start(sink, sink)  # type: ignore[arg-type]
    return driver, core, disk, sink, deaths


async def test_every_kind_of_effect_is_carried_out_by_somebody() -> None:
    driver, *_ = make(lambda _event: [])
    assert set(driver._perform) == set(get_args(fx.Effect))


async def test_writes_of_one_turn_are_one_submit_and_report_the_last_token() -> None:
    tokens = iter(range(1, 100))
    write = DropPartition(P)

    def answer(event: Event) -> list[fx.Effect]:
        return [fx.Persist(next(tokens), (write,))] if isinstance(event, PlanSwitch) else []

    driver, core, disk, _, _ = make(answer)
    driver.feed(PlanSwitch(0, P))
    assert [len(writes) for writes in disk.submitted] == [1], "the disk is idle"
    for number in range(1, 4):
        driver.feed(PlanSwitch(number, P))
    assert len(disk.submitted) == 1, "the disk is busy: the writes of the turn are joined"
    await asyncio.sleep(0)
    assert [len(writes) for writes in disk.submitted] == [1, 3]
    disk.report(1)
    disk.report(2)
    assert [event for event in core.events if isinstance(event, Persisted)] == [Persisted(1), Persisted(4)]
    driver.feed(PlanSwitch(4, P))
    assert len(disk.submitted) == 2, "writes came faster than one by one, so this one waits for others"
    driver.feed(PlanSwitch(5, P))
    await asyncio.sleep(0)
    assert [len(writes) for writes in disk.submitted] == [1, 3, 2]


async def test_what_leaves_goes_before_the_write_of_its_turn() -> None:
    """For an unflushed topic, the acknowledgement is a message of the step that writes."""
    tokens = iter(range(1, 100))

    def answer(event: Event) -> list[fx.Effect]:
        if not isinstance(event, PlanSwitch):
            return []
        return [fx.Persist(next(tokens), (DropPartition(P),)), fx.Send("b", Heartbeat(1))]

    driver, _, disk, sink, _ = make(answer)
    driver.feed(PlanSwitch(0, P))
    assert sink.calls == [("send", "b", Heartbeat(1))]
    assert not disk.submitted
    await asyncio.sleep(0)
    assert len(disk.submitted) == 1


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_message_that_failed_is_kept_as_long_as_keys_of_its_partition_are_served_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry_cache, "SWEEP_S", 0.0)
    keep = fx.KeepMessage(P, make_offset(1, 5), 300_000)
    driver, core, *_ = make(lambda event: [keep] if isinstance(event, PlanSwitch) else [])
    partition = core.partitions[P] = Partition(P)
    group = ConsumerGroup("g")
    partition.consumer_groups = {"g": group}
    group.served = served = KeyedServed.__new__(KeyedServed)
    served.keyed = KeyedDispatcher(1, Window(0, {}))
    kept = driver._keyed_reads.retry_cache
    driver.feed(PlanSwitch(1, P))
    await turns(5)
    assert len(kept) == 1
    group.drop_deliveries()
    await turns(5)
    assert len(kept) == 0
    driver.feed(PlanSwitch(2, P))
    assert len(kept) == 1
    await driver.stop()
    assert len(kept) == 0


async def test_one_report_for_many_tickets_is_one_event() -> None:
    tokens = iter(range(1, 100))
    driver, core, disk, _, _ = make(
        lambda event: [fx.Persist(next(tokens), (DropPartition(P),))] if isinstance(event, PlanSwitch) else []
    )
    for number in range(3):
        driver.feed(PlanSwitch(number, P))
        await asyncio.sleep(0)
    disk.report(3)
    assert core.events[-1] == Persisted(3)
    assert sum(isinstance(event, Persisted) for event in core.events) == 1


async def test_effects_are_done_in_order_and_events_do_not_nest() -> None:
    order: list[str] = []

    def answer(event: Event) -> list[fx.Effect]:
        assert isinstance(event, PlanSwitch)
        order.append(f"step {event.request}")
        if event.request == first:
            return [fx.Resolved(first, None, None), fx.Connect("b"), fx.ReadChain(P)]
        return []

    driver, _, _, sink, _ = make(answer)

    def reply(_effect: object) -> None:
        order.append("reply")
        driver.feed(PlanSwitch(-1, P))

    first = driver.new_request(reply)
    driver.feed(PlanSwitch(first, P))
    assert order == [f"step {first}", "reply", "step -1"]
    assert [call[0] for call in sink.calls] == ["connect", "read_chain"]
    driver.feed(PlanSwitch(first, P))  # answered already: dropped
    assert order.count("reply") == 1


async def test_a_write_is_overtaken_by_a_record_that_was_only_told() -> None:
    driver, core, *_ = make(lambda _: [])
    assert not driver.is_overtaken(P, 1), "the partition is not known here"
    partition = core.partitions[P] = Partition(P)
    assert not driver.is_overtaken(P, 1)
    partition.awaited = Floor(3, 2)
    assert [driver.is_overtaken(P, epoch) for epoch in (3, 4)] == [True, False]


async def test_a_tick_comes_when_the_core_asked_for_it() -> None:
    driver, core, _, _, _ = make(lambda _event: [])
    due_us = time.monotonic_ns() // 1000 + 20_000
    core.wake_us = due_us
    driver.feed(PlanSwitch(1, P))
    await core.until(lambda c: c.wake_us is None)
    assert time.monotonic_ns() // 1000 >= due_us


async def test_posted_events_keep_their_order_and_give_way() -> None:
    def answer(event: Event) -> list[fx.Effect]:
        if isinstance(event, PlanSwitch) and event.request >= 0:
            until = time.monotonic() + driver_module.SLICE_US / 2e6
            while time.monotonic() < until:
                pass
        return []

    driver, core, _, _, _ = make(answer)
    for number in range(12):
        driver.post(PlanSwitch(number, P))
    assert driver.posted_count > 5
    driver.feed(PlanSwitch(-1, P))  # overtakes
    assert core.events[-1] == PlanSwitch(-1, P)
    await core.until(lambda c: len(c.events) == 13)
    numbers = [event.request for event in core.events if isinstance(event, PlanSwitch)]
    numbers.remove(-1)
    assert numbers == list(range(12))


async def test_reads_are_bounded_and_a_failed_one_is_none() -> None:
    def answer(event: Event) -> list[fx.Effect]:
        if isinstance(event, PlanSwitch):
            return [fx.ReadLog(serial, P, 1, 0, 10, 100) for serial in range(100)]
        return []

    driver, core, disk, _, deaths = make(answer)
    driver.feed(PlanSwitch(1, P))
    await core.until(lambda c: sum(isinstance(event, LogRead) for event in c.events) == 100)
    assert disk.reading_max == driver_module.READS_IN_FLIGHT_MAX
    for round_no, error in ((2, CorruptionError("a bit was flipped")), (3, DeadlineExceededError("slow"))):
        disk.error = error
        driver.feed(PlanSwitch(round_no, P))
        await core.until(lambda c, count=100 * round_no: sum(isinstance(e, LogRead) for e in c.events) == count)  # type: ignore[misc]
        assert core.events[-1] == LogRead(99, None, is_damaged=isinstance(error, CorruptionError))
    assert deaths == []


async def test_what_is_in_memory_is_answered_at_once_and_holds_up_no_read_that_waits() -> None:
    def answer(event: Event) -> list[fx.Effect]:
        if isinstance(event, PlanSwitch):
            return [fx.ReadLog(serial, P, 1, 0, 10, 100) for serial in range(100)]
        return []

    driver, core, disk, _, deaths = make(answer)
    driver.feed(PlanSwitch(1, P))
    disk.is_in_memory = True  # from now on: those that wait for their turn
    await core.until(lambda c: sum(isinstance(event, LogRead) for event in c.events) == 100)
    assert disk.reading_max == driver_module.READS_IN_FLIGHT_MAX
    driver.feed(PlanSwitch(2, P))
    assert sum(isinstance(event, LogRead) for event in core.events) == 200, "in the same turn"
    assert deaths == []


async def test_a_contradicted_disk_is_logged_as_an_error() -> None:
    driver, *_ = make(lambda _event: [fx.Note("switched", P, ()), fx.Note("disk_contradicts_chain", P, ())])
    with structlog.testing.capture_logs() as lines:
        driver.feed(PlanSwitch(1, P))
    levels = {line["event"]: line["log_level"] for line in lines}
    assert levels == {"switched": "info", "disk_contradicts_chain": "error"}


async def test_a_failed_step_ends_everything() -> None:
    def answer(_event: Event) -> list[fx.Effect]:
        raise AssertionError("a rule is broken")

    driver, core, disk, _, deaths = make(answer)
    driver.feed(PlanSwitch(1, P))
    driver.feed(PlanSwitch(2, P))
    disk.report(1)
    assert [str(error) for error in deaths] == ["a rule is broken"]
    assert driver.is_dead
    assert len(core.events) == 1


async def test_a_staged_batch_whose_fetch_fails_is_not_had_now_and_ends_nothing() -> None:
    staged = StagedBatch(90, 1, 5, b"c" * 16)
    driver, core, _, _, deaths = make(
        lambda event: [fx.FetchStaged(8, P, staged)] if isinstance(event, PlanSwitch) else []
    )

    async def fails(_effect: fx.FetchStaged) -> StagedFetched:
        raise ValueError("a bug")

    driver.on_fetch(fails)
    driver.feed(PlanSwitch(1, P))
    await core.until(lambda core: len(core.events) > 1)
    assert core.events[1:] == [StagedFetched(8, P, None)]
    assert not deaths


@pytest.mark.parametrize("where", ["wake", "submit", "report", "slice", "story"])
async def test_what_fails_in_a_callback_of_the_loop_ends_everything(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Any:
        raise AssertionError(f"{where} is broken")

    class Untold(PlanSwitch):
        def __repr__(self) -> str:
            raise AssertionError("the story is broken, too")

    answers: list[fx.Effect] = [fx.Persist(1, (DropPartition(P),))]
    driver, core, disk, _, deaths = make(lambda _event: answers)
    if where == "wake":
        monkeypatch.setattr(core, "next_wake_us", fails)
    elif where == "submit":
        monkeypatch.setattr(disk, "submit", fails)
    elif where == "slice":
        monkeypatch.setattr(driver, "_feed_counted", fails)
        driver._lane.append(PlanSwitch(2, P))
        driver._loop.call_soon(driver._next_slice)
    elif where == "story":
        monkeypatch.setattr(core, "answer", fails)
    driver.feed(Untold(1, P) if where == "story" else PlanSwitch(1, P))
    if where == "report":
        await asyncio.sleep(0)
        monkeypatch.setattr(type(driver._clock), "monotonic_us", fails)
        disk.report(1)
    await asyncio.sleep(0)
    assert [str(error) for error in deaths] == [f"{where} is broken"]
    assert driver.is_dead
    driver.feed(PlanSwitch(3, P))
    assert len(deaths) == 1
