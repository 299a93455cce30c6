"""The duty of retention: when it looks, what it reads, and what it asks the core for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from seriatim_api import errors
from seriatim_api.ids import MemberId, PartitionId, make_offset
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.values.chain import Chain, Opening, Seal, create, seal_and_open
from seriatim_broker.core.values.effects import Led, LedListed
from seriatim_broker.core.values.events import CursorRecord, Event, ListLed, Trim
from seriatim_broker.core.values.log import SafeCursor
from seriatim_broker.core.values.positions import BatchPlace, Measure
from seriatim_broker.core.values.segment import Segment, Start
from seriatim_broker.interfaces.coordinator import Put
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.records import cursor_to_value
from seriatim_broker.runtime.duties.retention import ASKED_S, Retention, RetentionSettings
from seriatim_broker.runtime.duties.stage_floors import StageFloors
from seriatim_broker.runtime.duties.unread import Unread
from seriatim_broker.runtime.membership.registration import Seen
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

pytestmark = pytest.mark.asyncio

KEYS = Keys("c")
BEGIN_MS = 1_000_000_000


def chain_of(id_: int) -> Chain:
    """A partition with one open segment."""
    members = (MemberId("g0-0", "a" * 32), MemberId("g0-1", "b" * 32))
    opening = Opening(b"attempt-00000001", "g0", members, 1, False)
    return create(PartitionId(id_), "topic", 0, True, ("g0",), opening, BEGIN_MS)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.ahead_s = 0.0

    def wall_ms(self) -> int:
        return BEGIN_MS + round((self.now_s + self.ahead_s) * 1000)

    def monotonic_us(self) -> int:
        return round(self.now_s * 1_000_000)


class Bench:
    """A broker that leads partitions, each with a batch of ten messages every second; and its disk, which counts."""

    def __init__(self, kept_s: dict[int, int], *, retain_unread: bool = False) -> None:
        self.clock = Clock()
        self.events: list[Event] = []
        self.reads: list[tuple[PartitionId, Measure]] = []
        self.led = {id_: Led(PartitionId(id_), chain_of(id_), 1000, 9000, ()) for id_ in kept_s}
        self.coordinator = MemoryCoordinator(MemoryStore())
        any_self = cast(Any, self)
        self.floors = StageFloors(self.coordinator, KEYS)
        self.seen = Seen()
        self.duty = Retention(
            self.coordinator,
            KEYS,
            any_self,
            any_self,
            self.clock,
            RetentionSettings(60),
            self.floors,
            any_self,
        )
        topics = {
            f"{KEYS.topics}{id_}": records_pb2.TopicRecord(
                partition_ids=[id_],
                settings=records_pb2.TopicSettings(retention_ms=s * 1000, retain_unread=retain_unread),
            ).SerializeToString()
            for id_, s in kept_s.items()
        }
        self.duty._topics_changed(topics, tuple(topics))

    def begin_at(self, id_: int, index: int) -> None:
        """The partition was trimmed."""
        led = self.led[id_]
        segment = replace(led.chain.open_segment, begin=Start(index, index, 9 * index))
        self.led[id_] = replace(led, chain=replace(led.chain, segments=(segment,)))

    # ---- the driver ----

    def new_request(self, answer: Callable[[Any], None]) -> int:
        self._answer = answer
        return 1

    def forget_request(self, request: int) -> None:
        pass

    def feed(self, event: Event) -> None:
        if isinstance(event, ListLed):
            self._answer(LedListed(event.request, tuple(led for id_, led in self.led.items() if id_ > event.after)))
        else:
            self.events.append(event)

    # ---- the storage ----

    async def find(self, partition: PartitionId, _no: int, until: int, measure: Measure, value: int) -> Any:
        self.reads.append((partition, measure))
        batches = (BatchPlace(at, at + 10, 9 * at, 90, BEGIN_MS + at * 100, at) for at in range(0, until, 10))
        return next((batch for batch in batches if batch.reaches(measure, value)), None)

    async def look_at(self, s: float) -> tuple[list[Event], set[int]]:
        """What is asked of the core, and the partitions of which the disk was read."""
        self.clock.now_s = s
        self.events.clear()
        self.reads.clear()
        await self.duty.look()
        return list(self.events), {int(partition) for partition, _ in self.reads}


async def test_what_is_too_old_is_asked_to_go_from_the_beginning_of_a_batch() -> None:
    bench = Bench({1: 60})
    events, _ = await bench.look_at(80.55)
    revision = (await bench.coordinator.list(KEYS.cursors_of(PartitionId(1)))).revision
    assert events == [Trim(PartitionId(1), 1, 1, Start(210, 210, 1890), 1, revision)]


async def test_the_first_batch_of_an_idle_partition_is_read_once() -> None:
    bench = Bench({1: 3600})
    assert (await bench.look_at(0))[1] == {1}
    for minute in range(1, 60):
        assert await bench.look_at(60 * minute) == ([], set())
    events, read = await bench.look_at(3600 * 1.06)
    assert read == {1}
    assert isinstance(events[0], Trim)


async def test_it_is_read_again_when_the_segment_begins_elsewhere() -> None:
    bench = Bench({1: 3600})
    await bench.look_at(0)
    bench.begin_at(1, 500)
    assert (await bench.look_at(60))[1] == {1}


async def test_a_topic_that_keeps_little_is_looked_at_more_often_and_no_other_with_it() -> None:
    bench = Bench({1: 60, 2: 3 * 86400})
    seen: list[set[int]] = []
    for tick in range(13):
        bench.begin_at(1, 10 * tick)
        bench.begin_at(2, 10 * tick)
        seen.append((await bench.look_at(10 * tick))[1])
    assert [1 in read for read in seen] == [True] * 13
    assert [2 in read for read in seen] == [tick % 6 == 0 for tick in range(13)]


async def test_of_a_partition_that_is_led_elsewhere_nothing_is_remembered() -> None:
    bench = Bench({1: 3600, 2: 3600})
    await bench.look_at(0)
    del bench.led[1]
    await bench.look_at(60)
    assert set(bench.duty._firsts) == set(bench.duty._looked) == {2}


async def test_an_unreadable_cursor_keeps_its_partition_and_no_other() -> None:
    bench = Bench({1: 60, 2: 60})
    key = KEYS.cursor(PartitionId(1), "broken")
    await bench.coordinator.txn((), [Put(key, b"\xff\xff\xff")])
    events, _ = await bench.look_at(90)
    assert [event.partition for event in events if isinstance(event, Trim)] == [2]


async def test_an_older_copy_of_the_coordinator_drops_nothing() -> None:
    """Rule `older-drops-nothing`."""
    bench = Bench({1: 60})
    store = bench.coordinator.store
    older = store.copy()
    await bench.coordinator.txn((), [Put("k", b"")])
    events, _ = await bench.look_at(90)
    assert any(isinstance(event, Trim) for event in events)
    store.restore(older)
    assert not (await bench.look_at(180))[0]
    bench.seen = Seen(rebuilt_at_ms=1)
    events, _ = await bench.look_at(270)
    assert any(isinstance(event, Trim) for event in events), "it was rebuilt, and counts from a lower revision"
    bench.seen = Seen(revision=store.revision + 1, rebuilt_at_ms=1)
    assert not (await bench.look_at(360))[0], "another read has seen a higher one"


async def test_a_deleted_group_keeps_nothing() -> None:
    bench = Bench({1: 60}, retain_unread=True)
    deleted = CursorRecord(1, 1, 0, "topic", deleted=True)
    await bench.coordinator.txn((), [Put(KEYS.cursor(PartitionId(1), "gone"), cursor_to_value(deleted, None))])
    events, _ = await bench.look_at(90)
    assert isinstance(events[0], Trim)
    standing = CursorRecord(1, 1, 0, "topic")
    await bench.coordinator.txn((), [Put(KEYS.cursor(PartitionId(1), "slow"), cursor_to_value(standing, None))])
    assert (await bench.look_at(120))[0] == []


async def test_messages_that_are_set_aside_are_unread() -> None:
    """Rule `lists-are-unread`."""
    bench = Bench({1: 60}, retain_unread=True)
    standing = CursorRecord(1, 1, 0, "topic")
    await bench.coordinator.txn((), [Put(KEYS.cursor(PartitionId(1), "parks"), cursor_to_value(standing, None))])
    bench.led[1] = replace(bench.led[1], safe=(("parks", SafeCursor(1, 1, 1000, make_offset(1, 207))),))
    (event,) = (await bench.look_at(90))[0]
    assert isinstance(event, Trim)
    assert event.start is not None
    assert event.start.first == 200, "the batch of the parked message stays"
    bench.led[1] = replace(bench.led[1], safe=(("parks", SafeCursor(1, 1, 1000, 0)),))
    (event,) = (await bench.look_at(180))[0]
    assert isinstance(event, Trim)
    assert event.start is not None
    assert event.start.first > 200


@pytest.mark.parametrize(
    ("safe", "start"),
    [((), 100), ((1, 1, 300, 0), 300), ((1, 1, 50, 0), 100), ((2, 1, 300, 0), 100), ((1, 2, 300, 0), 100)],
)
async def test_what_is_only_on_this_disk_is_unread(safe: tuple[int, ...], start: int) -> None:
    """Rule `durable-floor`: the control record of this member says 900, and not all eligible members have it."""
    bench = Bench({1: 60}, retain_unread=True)
    standing = CursorRecord(1, 1, 100, "topic")
    await bench.coordinator.txn((), [Put(KEYS.cursor(PartitionId(1), "g"), cursor_to_value(standing, None))])
    known = (("g", SafeCursor(*safe)),) if safe else ()
    bench.led[1] = replace(bench.led[1], acked=(("g", 1, 1, 900),), safe=known)
    (event,) = (await bench.look_at(170))[0]
    assert isinstance(event, Trim)
    assert event.start is not None
    assert event.start.first == start


async def test_what_was_set_aside_before_the_cursor_crossed_is_unread() -> None:
    bench = Bench({1: 60}, retain_unread=True)
    standing = CursorRecord(1, 1, 500, "topic", oldest=make_offset(1, 103))
    await bench.coordinator.txn((), [Put(KEYS.cursor(PartitionId(1), "parks"), cursor_to_value(standing, None))])
    (event,) = (await bench.look_at(110))[0]
    assert isinstance(event, Trim)
    assert event.start is not None
    assert event.start.first == 100


async def test_without_retention_unread_messages_are_counted_while_it_is_asked_for_them() -> None:
    bench = Bench({1: 0})
    standing = CursorRecord(1, 1, 400, "topic")
    await bench.coordinator.txn((), [Put(KEYS.cursor(PartitionId(1), "slow"), cursor_to_value(standing, None))])
    assert await bench.look_at(0) == ([], set())
    assert bench.duty.unread(lambda _: True) == {}, "it was asked for the first time now"
    assert await bench.look_at(60) == ([], {1})
    assert bench.duty.unread(lambda _: True) == {("topic", "slow"): Unread(600, BEGIN_MS + 40_000)}
    assert bench.duty.unread(lambda _: False) == {}, "another broker leads the partition now, and counts it"
    assert await bench.look_at(60 + ASKED_S) == ([], set())


async def tell_clocks(bench: Bench, at_s: float) -> None:
    """Three brokers are live. The clock of the first one, which is this one, is a day ahead."""
    for number, ahead_s in enumerate((86_400, 0, 0)):
        told = records_pb2.LiveRecord(wall_ms=BEGIN_MS + round((at_s + ahead_s) * 1000))
        await bench.coordinator.txn((), [Put(KEYS.live(f"g0-{number}"), told.SerializeToString())])


async def test_a_master_whose_clock_is_ahead_drops_nothing_early() -> None:
    """Rule `ahead-drops-nothing`."""
    bench = Bench({1: 300})
    bench.clock.ahead_s = 86_400
    await tell_clocks(bench, 100)
    assert not (await bench.look_at(100))[0]
    await tell_clocks(bench, 400)
    (event,) = (await bench.look_at(400))[0]
    assert isinstance(event, Trim), "what is old by the others' clocks too goes"


async def test_what_is_delayed_stays_until_its_server_says_that_it_is_done() -> None:
    """Rule `trim-pending`."""
    bench = Bench({1: 60})
    opening = Opening(b"attempt-00000002", "g1", bench.led[1].chain.open_segment.members, 1, False)
    chain = bench.led[1].chain
    seal = Seal(40, 1, chain.open_segment.server, chain.open_segment.members, None, (), 360, BEGIN_MS + 10**9)
    chain = seal_and_open(chain, seal, opening, BEGIN_MS + 1_000)
    bench.led[1] = replace(bench.led[1], chain=chain, has_delayed=True)
    assert (await bench.look_at(90))[0] == [], "there is no way to ask"
    pending: dict[int, Any] = {1: 7, 2: 215}
    asked: list[tuple[int, int]] = []

    async def first(_partition: PartitionId, segment: Segment, below: int) -> int:
        asked.append((segment.no, below))
        if isinstance(pending[segment.no], Exception):
            raise pending[segment.no]
        return int(pending[segment.no])

    bench.duty.on_pending(first)
    assert (await bench.look_at(120))[0] == []
    pending[1] = errors.NotServingError("no answer")
    assert (await bench.look_at(150))[0] == []
    pending[1] = 40
    (event,) = (await bench.look_at(180))[0]
    assert isinstance(event, Trim)
    assert (event.no, event.start) == (2, Start(210, 210, 1890)), "from the beginning of the batch with 215 on"
    assert sorted({no for no, _ in asked}) == [1, 2]
    assert {below for no, below in asked if no == 1} == {40}, "all of it is to be moved"
    assert max(below for no, below in asked if no == 2) > 215, "before it is to be dropped"
    pending[2], count = 10_000, len(asked)
    (event,) = (await bench.look_at(210))[0]
    assert isinstance(event, Trim)
    assert event.start is not None
    assert event.start.first > 1000 - 60 * 10 - 10, "as old as it may be"
    assert {no for no, _ in asked[count:]} == {2}, "of segment 1 the answer is known"
