"""Figures of consumer groups, and the series that are made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from seriatim_api.errors import UnavailableError
from seriatim_api.ids import PartitionId, make_offset
from seriatim_broker.core.consumers.groups.figures import ConsumerGroupFigures, figures_of
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.positions import BatchPlace, Measure
from seriatim_broker.core.values.segment import SegmentState
from seriatim_broker.counters.consumer_groups import ConsumerGroupTally
from seriatim_broker.metrics.consumer_groups import OTHER, ConsumerGroupMeter, ConsumerGroupName, _Sums
from seriatim_broker.runtime.duties.unread import Unread

from .keyed_support import QUICK, KeyedServing, offsets
from .support import GROUP, M01, MS, SECOND, STREAM, TOPIC, P, Serving

NOW_MS = 1_000_000


def figures(bench: Serving) -> ConsumerGroupFigures:
    """What is measured of the consumer group."""
    found = figures_of(bench.part, bench.part.consumer_groups[GROUP])
    assert found is not None
    return found


def test_all_messages_of_a_group_that_has_only_begun_are_its_lag() -> None:
    bench = KeyedServing("abcab")
    bench.serve()
    found = figures(bench)
    assert (found.lag_messages, found.in_flight_messages, found.consumers) == (5, 5, 1)
    assert found.oldest == offsets([0])[0]


def test_what_is_acknowledged_above_a_message_that_is_not_is_no_lag() -> None:
    bench = KeyedServing("abc")
    bench.serve()
    _, run_b, run_c = bench.runs()
    bench.acks(run_b)
    bench.acks(run_c)
    found = figures(bench)
    assert (found.lag_messages, found.in_flight_messages, found.oldest) == (1, 1, offsets([0])[0])


def test_parked_and_delayed_keys_are_counted_and_their_messages_are_lag() -> None:
    bench = KeyedServing("aabc", policy=replace(QUICK, attempts_max=2))
    bench.serve()
    run_a, run_b, run_c = bench.runs()
    bench.do(ev.ConsumerNack(STREAM, 1, run_a.token, run_a.offsets[0], None, "no", is_last=True))
    bench.nack(run_b, delay_ms=60_000)
    bench.acks(run_c)
    bench.deliver()
    found = figures(bench)
    assert (found.parked_keys, found.delayed_keys, found.forwarding_keys) == (1, 1, 0)
    assert (found.lag_messages, found.aside_messages, found.in_flight_messages) == (3, 2, 0)
    assert found.oldest == offsets([0])[0], "the parked message is the oldest one, although the floor is above it"


def test_an_exclusive_group_has_what_its_consumer_was_given_in_flight() -> None:
    bench = Serving()
    bench.begin()
    bench.deliver()
    before = figures(bench)
    assert before.in_flight_messages == before.lag_messages > 0
    bench.ack(before.lag_messages - 1)
    after = figures(bench)
    assert (after.in_flight_messages, after.lag_messages, after.oldest) == (0, 0, None)


def test_a_group_whose_cursor_is_not_read_has_no_figures() -> None:
    bench = KeyedServing("a")
    bench.join()
    assert figures_of(bench.part, bench.part.consumer_groups[GROUP]) is None


def test_grants_that_end_at_their_deadline_are_noted_with_their_number() -> None:
    bench = KeyedServing("ab", policy=replace(QUICK, grant_ms=1_000))
    bench.serve()
    bench.wait(1_000 * MS + SECOND, (M01,))
    (note,) = [note for note in bench.all(fx.Note) if note.name == "grants_expired"]
    assert dict(note.fields) == {"group": GROUP, "count": 2, "consumer": "consumer-1"}


def test_grants_that_may_repeat_something_are_counted() -> None:
    def repeated(attempts: tuple[int, ...], flags: tuple[bool, ...]) -> int:
        return fx.Granted(range(7, 7 + len(attempts)), (1,) * len(attempts), attempts, flags, (), b"", 1).repeated_count

    assert repeated((1, 1), (False, False)) == 0
    assert repeated((1, 3, 2), (False, False, False)) == 2
    assert repeated((1, 3, 1), (True, True, False)) == 2


# ---- series -----------------------------------------------------------------------------------------------


class Disk:
    """Shows when a message was appended: a second after the one before."""

    def __init__(self) -> None:
        self.lookups = 0
        self.error: UnavailableError | None = None

    async def find(
        self, partition: PartitionId, segment_no: int, until_index: int, measure: Measure, value: int
    ) -> BatchPlace | None:
        """The batch with that index."""
        self.lookups += 1
        if self.error is not None:
            raise self.error
        return BatchPlace(value, value + 1, 0, 0, NOW_MS - 60_000 + 1_000 * value, 0)


class Page:
    """A meter of one broker, and what Prometheus reads of it."""

    def __init__(self, bench: Serving | None = None, series_max: int = 2) -> None:
        self.tally = ConsumerGroupTally()
        self.disk = Disk()
        self.unread: dict[tuple[str, str], int] = {}
        self.unread_at_ms = 0
        core: Any = SimpleNamespace(partitions={P: bench.part} if bench is not None else {})
        self.meter = ConsumerGroupMeter("g0-0", core, self.disk, lambda: NOW_MS, self.tally, self._unread, series_max)

    def _unread(self) -> dict[tuple[str, str], Unread]:
        return {name: Unread(messages, self.unread_at_ms) for name, messages in self.unread.items()}

    async def read(self, name: str) -> dict[ConsumerGroupName, float]:
        """The values of one metric, by consumer group, after a measurement."""
        await self.meter.measure()
        return self.shown(name)

    def shown(self, name: str) -> dict[ConsumerGroupName, float]:
        """The same, as measured last."""
        return {
            ConsumerGroupName(sample.labels["topic"], sample.labels["consumer_group"]): sample.value
            for family in self.meter.collect()
            if family.name == f"seriatim_consumer_group_{name}"
            for sample in family.samples
        }


async def test_a_served_group_has_its_figures_on_the_page() -> None:
    bench = KeyedServing("abc")
    bench.serve()
    page = Page(bench)
    mine = ConsumerGroupName(TOPIC, GROUP)
    assert await page.read("lag_messages") == {mine: 3}
    assert page.shown("consumers") == {mine: 1}
    assert page.shown("oldest_seconds") == {mine: 60}


async def test_a_message_is_looked_up_once() -> None:
    bench = KeyedServing("abc")
    bench.serve()
    page = Page(bench)
    await page.meter.measure()
    await page.meter.measure()
    assert page.disk.lookups == 1
    bench.acks(bench.runs()[0])
    page.disk.error = UnavailableError("the disk is busy")
    assert await page.read("oldest_seconds") == {ConsumerGroupName(TOPIC, GROUP): 60}, "as it was known before"
    assert page.disk.lookups == 2
    page.disk.error = None
    assert await page.read("oldest_seconds") == {ConsumerGroupName(TOPIC, GROUP): 59}


async def test_lookups_have_a_limit_and_all_partitions_get_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim_broker.metrics.consumer_groups.LOOKUPS_MAX", 2)
    parts = {}
    for number in range(5):
        bench = KeyedServing("abc")
        bench.serve()
        bench.part.id = PartitionId(number + 1)
        parts[bench.part.id] = bench.part
    page = Page()
    page.meter._core = SimpleNamespace(partitions=parts)
    for lookups in (2, 4, 5, 5):
        await page.meter.measure()
        assert page.disk.lookups == lookups
    assert len(page.meter._oldest) == 5


async def test_groups_beyond_the_limit_are_added_up() -> None:
    page = Page(series_max=2)
    page.unread = {("t", f"g{number}"): number for number in range(1, 6)}
    assert await page.read("unread_messages") == {
        ConsumerGroupName("t", "g4"): 4,
        ConsumerGroupName("t", "g5"): 5,
        OTHER: 6,
    }


async def test_a_group_without_a_consumer_has_its_unread_messages_and_their_age() -> None:
    page = Page(series_max=1)
    page.unread, page.unread_at_ms = {("t", "a"): 3, ("t", "b"): 2}, NOW_MS - 90_000
    assert await page.read("unread_seconds") == {ConsumerGroupName("t", "a"): 90, OTHER: 90}
    assert page.shown("unread_messages") == {ConsumerGroupName("t", "a"): 3, OTHER: 2}
    assert page.shown("lag_messages") == {ConsumerGroupName("t", "a"): 0, OTHER: 0}


async def test_partitions_with_messages_are_counted_with_and_without_a_consumer() -> None:
    page = Page()
    page.unread = {("t", "a"): 3}
    assert await page.read("unread_partitions") == {ConsumerGroupName("t", "a"): 1}
    assert page.shown("read_partitions") == {ConsumerGroupName("t", "a"): 0}
    sums = _Sums()
    for is_read in (True, False, True):
        sums.add(ConsumerGroupFigures(7, is_read=is_read), 0)
    sums.add_unread(Unread(4, 0, 5))
    both = _Sums()
    both.add_sums(sums)
    both.add_sums(sums)
    assert (both.read_partitions, both.unread_partitions, both.unread_messages) == (4, 10, 8)


async def test_a_group_keeps_its_series_until_another_one_has_twice_as_much() -> None:
    page = Page(series_max=1)
    page.unread = {("t", "a"): 10, ("t", "b"): 9}
    await page.meter.measure()
    page.unread = {("t", "a"): 10, ("t", "b"): 19}
    assert ConsumerGroupName("t", "a") in await page.read("unread_messages")
    page.unread = {("t", "a"): 10, ("t", "b"): 21}
    assert ConsumerGroupName("t", "b") in await page.read("unread_messages")


async def test_all_consumers_of_a_broadcast_group_are_one() -> None:
    page = Page()
    page.unread = {("t", "screens/one"): 1, ("t", "screens/two"): 2}
    assert await page.read("unread_messages") == {ConsumerGroupName("t", "screens"): 3}


async def test_counts_go_to_the_series_that_a_group_has_and_never_fall() -> None:
    bench = KeyedServing("ab")
    bench.serve()
    page = Page(bench, series_max=1)
    counts = page.tally.join(P, GROUP)
    counts.acked_messages += 3
    mine = ConsumerGroupName(TOPIC, GROUP)
    assert await page.read("acked_messages") == {mine: 3}
    counts.acked_messages += 4
    assert await page.read("acked_messages") == {mine: 7}
    page.unread = {("t", "larger"): 1_000}
    counts.acked_messages += 1
    assert await page.read("acked_messages") == {ConsumerGroupName("t", "larger"): 0, OTHER: 1}
    page.unread = {}
    counts.acked_messages += 2
    assert await page.read("acked_messages") == {mine: 2, OTHER: 1}, "what was counted for all others stays"


def test_counts_to_which_no_consumer_adds_are_forgotten_when_they_were_taken() -> None:
    tally = ConsumerGroupTally()
    counts = tally.join(P, GROUP)
    counts.grants += 1
    counts.joined -= 1
    assert [(partition, group) for partition, group, _ in tally.take()] == [(P, GROUP)]
    assert tally.of(P, GROUP) is not counts


async def test_each_read_of_the_page_asks_for_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page()
    measured = asyncio.Queue[None]()

    async def measure() -> None:
        measured.put_nowait(None)

    monkeypatch.setattr(type(page.meter), "measure", lambda _meter: measure())
    monkeypatch.setattr("seriatim_broker.metrics.consumer_groups.MEASURE_S_MIN", 0)
    running = asyncio.create_task(page.meter.run())
    for _ in range(3):
        consume(page.meter.collect())
        await asyncio.wait_for(measured.get(), 60)
    assert measured.empty()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def consume(samples: Iterable[object]) -> None:
    """Read all samples, as Prometheus does."""
    for _ in samples:
        pass


async def test_the_only_group_is_never_among_the_others_also_when_it_is_served_elsewhere_now() -> None:
    bench = KeyedServing("ab")
    bench.serve()
    page, mine = Page(bench), ConsumerGroupName(TOPIC, GROUP)
    counts = page.tally.join(P, GROUP)
    counts.delivered_messages += 2
    assert await page.read("delivered_messages") == {mine: 2}
    counts.delivered_messages += 3
    bench.part.consumer_groups = {}  # another broker serves it now
    counts.joined -= 1
    assert await page.read("delivered_messages") == {mine: 5}
    assert page.shown("lag_messages") == {mine: 0}
    assert await page.read("delivered_messages") == {}


async def test_a_message_in_a_segment_that_this_broker_does_not_have_is_as_old_as_its_seal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A parked key of an older segment: the lag said that the oldest message was 0 s old."""
    bench = KeyedServing("abc")
    bench.serve()
    page, mine = Page(bench), ConsumerGroupName(TOPIC, GROUP)
    chain = bench.part.chain
    assert chain is not None
    elsewhere = replace(chain.open_segment, state=SegmentState.SEALED, sealed_len=9, sealed_at_ms=NOW_MS - 21_000)
    monkeypatch.setattr(bench.part, "chain", SimpleNamespace(topic=TOPIC, segment={elsewhere.no: elsewhere}.get))
    oldest = make_offset(elsewhere.no, 4)
    found = ConsumerGroupFigures(1, 0, parked_keys=1, oldest=oldest)
    monkeypatch.setattr("seriatim_broker.metrics.consumer_groups.figures_of", lambda *_: found)
    monkeypatch.setattr(bench.part, "logs", {})
    assert await page.read("oldest_seconds") == {mine: 21}
    assert page.disk.lookups == 0
    monkeypatch.setattr(bench.part, "logs", {elsewhere.no: SimpleNamespace(readable_below=9)})
    exactly = await page.read("oldest_seconds")
    assert exactly[mine] > 21, "this broker has got a copy, and looks at the message"
    assert (await page.read("oldest_seconds"), page.disk.lookups) == (exactly, 1)
    monkeypatch.setattr(bench.part, "logs", {})
    assert await page.read("oldest_seconds") == exactly, "the copy is gone, and the message is not younger"
