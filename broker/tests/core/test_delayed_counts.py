"""How many delayed messages wait: counted once, then kept up to date, and held against the limits of the topic."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim_api.errors import SeriatimError, UnavailableError
from seriatim_broker.core.state.delayed import ALL, Ahead
from seriatim_broker.core.values import delayed_messages as dm
from seriatim_broker.core.values.delayed import Amount
from seriatim_broker.core.values.log import DueRow
from seriatim_broker.core.values.segment import SegmentState
from seriatim_broker.runtime.duties import delayed_counts
from seriatim_broker.runtime.duties.delayed_counts import DelayedCounts

from .support import M10, P
from .test_firing import Firing

HOUR_MS = 3_600_000
BATCH = 196
"""Bytes of a batch with the body `body`, and its header."""

SEALED, UNSETTLED = SegmentState.SEALED, SegmentState.UNSETTLED


class Counting:
    """A server of segment 1, whose messages are counted."""

    def __init__(self) -> None:
        self.bench = Firing.opened()
        self.reads = 0
        self.meanwhile: list[Any] = []  # what happens at each read
        self.error: SeriatimError | None = None
        self.counts = DelayedCounts(
            self.bench.core, cast(Any, SimpleNamespace(feed=self.bench.do)), cast(Any, self), cast(Any, self), "g0-0"
        )
        self.counts.on_ask(self.ask)
        self.told: list[Any] = []  # what another broker answers
        self.asked: list[Any] = []

    def wall_ms(self) -> int:
        return self.bench.wall_ms

    def monotonic_us(self) -> int:
        return self.bench.now_us

    async def read_due(self, _partition: int, no: int, after: Any, until_ms: int, count: int) -> list[DueRow]:
        assert no == 1
        assert after < ALL, "no key of a row can be higher"
        if self.error is not None:
            raise self.error
        rows = sorted(row for batch in self.bench.batches() if (row := DueRow.of(batch.header)))
        start = self.bench.part.logs[1].start
        found = [row for row in rows if row[:2] > after and row.index >= start][:count]
        self.reads += len(found)
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return found

    async def ask(self, broker: str, segments: Any, _deadline_s: float) -> Any:
        self.asked.append((broker, list(segments)))
        answer = self.told.pop(0)
        if isinstance(answer, SeriatimError):
            raise answer
        return answer

    async def look(self) -> None:
        """A look, and all that it wants counted."""
        await self.counts.look()
        while not self.counts._to_count.empty():
            await self.counts.count_next()

    async def pending(self) -> Amount:
        """What waits, after two looks: the first one counts."""
        await self.look()
        await self.look()
        found = self.counts.pending((P, 1))
        assert found is not None
        assert self.counts.by_topic() == {"orders": found.messages}
        return found


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    monkeypatch.setattr(delayed_counts, "WRITTEN_S", 0.0)
    return Counting()


def fire(bench: Firing, ms: int) -> None:
    """Time passes, and what becomes due is fired."""
    bench.until_due(ms)
    bench.fired()


async def test_what_waits_is_read_once_and_then_followed(counting: Counting) -> None:
    bench = counting.bench
    bench.send(10)
    bench.send(HOUR_MS, count=4)
    bench.send(-1, count=2)  # an ordinary batch
    bench.send(HOUR_MS)
    bench.serve()
    fire(bench, 20)
    assert await counting.pending() == Amount(5, 2 * BATCH)
    reads = counting.reads
    assert reads == 2, "what is fired is not read"
    bench.send(HOUR_MS, count=3)
    bench.send(50, count=2)
    bench.cancel(1)
    bench.cancel(3)
    bench.serve()
    assert (await counting.pending()).messages == 8
    fire(bench, 60)
    assert await counting.pending() == Amount(6, 4 * BATCH * 6 // 10)
    for index in (2, 4):
        bench.cancel(index)
    bench.do(dm.AskPending(77, P, 1))  # for retention the floor is raised over the ordinary batch
    bench.serve()
    assert bench.part.firing[1].passed.floor == 7
    assert (await counting.pending()).messages == 4
    assert counting.reads == reads


@pytest.mark.parametrize("is_taken_up", [False, True])
async def test_messages_in_volleys_wait_until_they_are_stored(counting: Counting, is_taken_up: bool) -> None:
    bench = counting.bench
    bench.send(10, count=2)
    bench.send(HOUR_MS)
    bench.until_due(20)
    assert bench.volleys() == [[0, 1]]
    if is_taken_up:  # the ledger has the volley, and no row is read yet
        bench.part.firing[1].ahead = Ahead()
    assert (await counting.pending()).messages == 3
    bench.done()
    assert (await counting.pending()).messages == 1


async def test_what_comes_and_goes_during_the_count_is_counted_once(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = counting.bench
    monkeypatch.setattr(delayed_counts, "ROWS_PER_READ", 2)
    for number in range(5):
        bench.send(HOUR_MS + number)
    bench.serve()
    counting.meanwhile = [
        lambda: bench.send(2 * HOUR_MS),
        lambda: (bench.cancel(0), bench.serve()),
        lambda: bench.send(HOUR_MS),
    ]
    assert (await counting.pending()).messages == 6


async def test_a_segment_is_counted_again_when_its_beginning_is_dropped_or_much_has_passed(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = counting.bench
    monkeypatch.setattr(delayed_counts, "PASSED_MAX", 4)
    bench.send(HOUR_MS, count=2)
    bench.send(HOUR_MS)
    assert (await counting.pending()).messages == 3
    reads = counting.reads
    bench.send(50, count=5, body=b"a much longer body")
    fire(bench, 60)
    await counting.counts.look()
    assert counting.counts.pending((P, 1)) == Amount(3, (3 * BATCH + 14) * 3 // 8), "until it is counted"
    assert await counting.pending() == Amount(3, 2 * BATCH), "the bytes of what is left are known again"
    assert counting.reads == reads + 2
    log = bench.part.logs[1]
    log.record = replace(log.record, begin=log.record.begin._replace(first=2))
    assert (await counting.pending()).messages == 1


async def test_a_count_that_cannot_be_read_is_not_known_and_begins_again(counting: Counting) -> None:
    counting.bench.send(HOUR_MS)
    counting.error = UnavailableError("the disk does not answer")
    await counting.look()
    assert counting.counts.pending((P, 1)) is None
    counting.error = None
    assert await counting.pending() == Amount(1, BATCH)


async def test_the_oldest_message_that_is_due_and_not_stored_is_overdue(counting: Counting) -> None:
    bench = counting.bench
    await counting.look()
    assert counting.counts.overdue_s == 0
    bench.send(10)
    bench.send(5_000)
    bench.until_due(3_010)
    await counting.look()
    assert counting.counts.overdue_s == pytest.approx(3.0, abs=0.1), "it is in a volley without an answer"
    bench.done()
    await counting.look()
    assert counting.counts.overdue_s == 0
    bench.send(10, committed=False)
    bench.until_due(1_010)
    await counting.look()
    assert counting.counts.overdue_s == pytest.approx(1.0, abs=0.1), "it is in no volley"


async def test_the_master_is_given_what_waits_in_all_segments(counting: Counting) -> None:
    bench = counting.bench
    bench.send(HOUR_MS, count=3)
    assert (await counting.pending()).messages == 3
    log = bench.part.logs[1]
    assert log.delayed is not None
    assert log.delayed.pending == Amount(3, BATCH)
    assert bench.part.chain is not None
    (own,) = bench.part.chain.segments
    states = {2: SEALED, 3: SEALED, 4: UNSETTLED, 5: SEALED}
    others = [replace(own, no=no, server=M10, state=state, delayed_until_ms=5 - no) for no, state in states.items()]
    bench.part.chain = replace(bench.part.chain, segments=(*others, own))
    for told, messages in (
        ([Amount(4, 5), Amount(10, 5)], 17),
        ([None, Amount(9, 5)], 16),
        (UnavailableError("no answer"), 16),
    ):
        counting.told = [told]
        await counting.look()
        assert log.delayed.pending.messages == messages, "what is not told stays as it was"
    assert counting.asked[0] == (M10.broker, [(P, 2), (P, 3)])
    bench.part.chain = replace(bench.part.chain, segments=(own,))
    await counting.look()
    assert log.delayed.pending.messages == 3
