"""What a producer table believes of its producers if the clock of a master was set."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from seriatim_api import errors
from seriatim_api.ids import make_offset
from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.state.segment_log import SegmentLog
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.log import LocalSegment, Truncate
from seriatim_broker.core.values.producers import (
    NO_TABLE,
    IdleBlock,
    ProducerTable,
    Table,
    Window,
    append_time_of,
    entries_of,
    leaps,
)

from .support import M00, M01, M10, MS, NONCE, Bench, P, attempt, checksum, header, opened_master, sealed_chain

CONFIG = replace(
    BrokerConfig(adopted_bytes_min=0),
    tidy_ms=100,
    producer_idle_ms=1_000,
    producer_evict_ms=5_000,
    producer_expiry_ms=20_000,
    idle_block_rows=5,
    producer_count_max=6,
    append_time_ahead_ms_max=2_000,
)
MANY = replace(CONFIG, idle_block_rows=2, producer_count_max=50)
"""For more producers than there are here."""

WRONG_MS = 30_000
PRODUCERS = 5


def _id(number: int) -> bytes:
    return bytes([number]) * 16


def _append(bench: Bench, number: int, sequence: int = 0) -> None:
    """A batch of a producer; it is committed at once."""
    bench.append(sequence, producer=_id(number), starts=True, run=sequence)
    bench.persist()
    bench.ack(M01, bench.part.logs[1].tail)


def _master() -> Bench:
    """The master of segment 1, with one committed batch of each producer, 10 ms apart."""
    bench = opened_master(config=CONFIG)
    for number in range(PRODUCERS):
        bench.wait(10 * MS, (M01,))
        _append(bench, number)
    return bench


def _ages_ms(windows: Iterable[tuple[bytes, Window]], now_ms: int) -> dict[int, int]:
    """For how long each producer seems to have been silent."""
    return {producer[0]: now_ms - append_time_of(window) for producer, window in dict(windows).items()}


def _answered(bench: Bench) -> msg.FenceAnswer:
    bench.link(M10)
    bench.hear(M10, msg.FenceRequest(P, 1, attempt(1), b"s" * 16))
    bench.persist()
    (answer,) = bench.sent(msg.FenceAnswer, M10)
    return answer


@pytest.mark.parametrize("wrong_ms", [-WRONG_MS, WRONG_MS])
def test_a_cut_takes_back_a_leap_of_append_time_with_the_batches_behind_it(wrong_ms: int) -> None:
    bench = _master()
    log = bench.part.logs[1]
    right_ms, length = log.last_append_ms, log.tail
    bench.wall_jump_ms = wrong_ms
    bench.append(1, producer=_id(2), starts=True, run=1)
    bench.append(0, producer=_id(8), starts=True)
    assert log.last_append_ms == bench.wall_ms
    answer = _answered(bench)
    assert (answer.length, answer.last_append_ms) == (length, right_ms)
    told = _ages_ms(answer.table, right_ms)
    assert sorted(told) == list(range(PRODUCERS)), "the first batch of the last one was cut"
    assert min(told.values()) == 0
    assert max(told.values()) < CONFIG.producer_idle_ms

    bench.read_chain(sealed_chain(bench.part.chain, length, answer.checksum))
    assert _ages_ms(log.live_table.items(), right_ms) == told
    (cut,) = (write.windows for write in bench.writes(Truncate))
    windows = {producer: window for producer, window in cut or () if window is not None}
    assert _ages_ms(windows.items(), right_ms) == {2: 0}, "the disk has the right times of all others"
    assert [entry.offset for entry in entries_of(windows[_id(2)])] == [make_offset(1, 2)]


def test_no_block_is_made_behind_a_leap_that_may_be_cut() -> None:
    """The leap counts as half of `producer_idle_ms`, so it makes producers idle. But a block could not go back."""
    bench = _master()
    bench.wait(CONFIG.producer_idle_ms * 3 // 4 * MS, (M01,))
    _append(bench, 8)
    bench.wall_jump_ms = -WRONG_MS
    bench.append(1, producer=_id(8), starts=True, run=1)
    table = bench.part.logs[1].live_table
    assert not table.blocks
    bench.persist()
    bench.ack(M01, bench.part.logs[1].tail)
    bench.wait(2 * CONFIG.tidy_ms * MS, (M01,))
    bench.append(2, producer=_id(8), run=1)
    assert [block.producer_count for block in table.blocks] == [PRODUCERS], "the leap is committed now"


def test_a_cut_without_a_leap_leaves_each_window_its_time() -> None:
    bench = _master()
    log = bench.part.logs[1]
    before = dict(log.live_table.windows)
    bench.wait(10 * MS, (M01,))
    bench.append(1, producer=_id(2), starts=True, run=1)
    found = dict(_answered(bench).table)
    assert {producer for producer in found if found[producer] != before[producer]} == {_id(2)}
    assert append_time_of(found[_id(2)]) == log.last_append_ms


def test_a_leap_forward_that_is_cut_leaves_idle_producers_as_old_as_they_were() -> None:
    """They do not follow a leap forward, so they do not go back with the others."""
    bench = _master()
    for sequence in (1, 2):
        bench.wait(CONFIG.producer_idle_ms * MS, (M01,))
        _append(bench, 3, sequence)
    log = bench.part.logs[1]
    right_ms, idle = log.last_append_ms, (0, 1, 2, 4)
    before = _ages_ms(log.live_table.windows.items(), right_ms)
    assert min(before[number] for number in idle) > CONFIG.producer_idle_ms
    bench.wall_jump_ms = CONFIG.producer_expiry_ms // 2
    bench.append(0, producer=_id(8), starts=True)
    told = _ages_ms(_answered(bench).table, right_ms)
    assert {number: told[number] for number in idle} == {number: before[number] for number in idle}
    assert told[3] == 0


def test_a_clock_set_back_while_the_table_is_full_makes_no_producer_old() -> None:
    """No batch tells of it: a new producer was refused, and the table was tidied by the present time to make room."""
    bench = _master()
    _append(bench, 5)
    for _ in range(3):
        bench.wall_jump_ms = -WRONG_MS
        assert isinstance(bench.refusal(0, producer=_id(7), starts=True), errors.TooManyProducersError)
        bench.wait(150 * MS, (M01,))
    bench.wall_jump_ms = 0
    bench.wait(150 * MS, (M01,))
    _append(bench, 5, 1)
    log = bench.part.logs[1]
    ages = _ages_ms(log.live_table.items(), log.last_append_ms)
    assert sorted(ages) == list(range(PRODUCERS + 1))
    assert max(ages.values()) < CONFIG.producer_evict_ms


def test_a_clock_that_was_ahead_while_the_table_was_full_makes_no_producer_young() -> None:
    """A new producer was refused while the clock was ahead. Otherwise the table would stay full until that time."""
    bench = _master()
    _append(bench, 5)
    bench.wall_jump_ms = WRONG_MS
    assert isinstance(bench.refusal(0, producer=_id(7), starts=True), errors.TooManyProducersError)
    bench.wall_jump_ms = 0
    bench.wait(150 * MS, (M01,))
    _append(bench, 5, 1)
    log = bench.part.logs[1]
    ages = _ages_ms(log.live_table.items(), log.last_append_ms)
    assert sorted(ages) == list(range(PRODUCERS + 1))
    assert 0 == min(ages.values()) <= max(ages.values()) < 2 * CONFIG.producer_idle_ms


def test_a_full_table_gets_room_although_append_time_is_far_ahead_of_the_clock() -> None:
    """All its producers have gone, so no batch of theirs takes append time back to the clock."""
    bench = _master()
    bench.wall_jump_ms = WRONG_MS
    _append(bench, 5)
    bench.wall_jump_ms = 0
    for _ in range(2 * CONFIG.producer_evict_ms // 500):
        assert isinstance(bench.refusal(0, producer=_id(7), starts=True), errors.TooManyProducersError | None)
        bench.wait(500 * MS, (M01,))
    assert bench.part.logs[1].live_table.last(_id(7)) is not None


def test_a_clock_that_is_ahead_for_a_moment_makes_no_room_in_a_full_table() -> None:
    bench = _master()
    for sequence in (0, 1, 2):
        _append(bench, 5, sequence)
        bench.wait(CONFIG.producer_idle_ms * 3 // 4 * MS, (M01,))
    bench.wall_jump_ms = WRONG_MS
    assert isinstance(bench.refusal(0, producer=_id(7), starts=True), errors.TooManyProducersError)
    bench.wall_jump_ms = 0
    bench.wait(2 * CONFIG.tidy_ms * MS, (M01,))
    assert isinstance(bench.refusal(0, producer=_id(7), starts=True), errors.TooManyProducersError)
    assert bench.part.logs[1].live_table.producer_count == CONFIG.producer_count_max


def test_a_leap_of_a_batch_counts_although_the_table_leapt_before_it() -> None:
    """A new producer was refused in between, and the table was tidied by the present time to make room."""
    bench = _master()
    bench.wait(CONFIG.producer_idle_ms * 3 // 4 * MS, (M01,))
    _append(bench, 5)
    bench.wall_jump_ms = -WRONG_MS
    assert isinstance(bench.refusal(0, producer=_id(7), starts=True), errors.TooManyProducersError)
    bench.append(1, producer=_id(5), starts=True, run=1)
    bench.wait(2 * CONFIG.tidy_ms * MS, (M01,))
    assert isinstance(bench.refusal(0, producer=_id(7), starts=True, run=1), errors.TooManyProducersError)
    table = bench.part.logs[1].live_table
    assert not table.blocks
    bench.persist()
    bench.ack(M01, bench.part.logs[1].tail)
    bench.wait(2 * CONFIG.tidy_ms * MS, (M01,))
    assert isinstance(bench.refusal(0, producer=_id(7), starts=True, run=2), errors.TooManyProducersError)
    assert table.blocks, "the leap is committed now"


# ---- any steps of a clock -------------------------------------------------------------------------------


class _Story:
    """One partition under a master whose clock is set, in which any switch may cut any batches that are not committed.

    `allowed` is for how long a producer may seem to have been silent: for as long as append time went on since its last
    batch, where a leap counts as half of `producer_idle_ms` unless the producer was idle before it. A cut brings back
    what was allowed at that place, and each leap that it cuts counts as half of `producer_idle_ms` once more. Behind
    two such leaps, a producer that was idle between them may be as old as it was there.
    """

    def __init__(self, seed: int, jumps_ms: tuple[int, ...]) -> None:
        self.random = random.Random(seed)
        self.jumps_ms = jumps_ms
        self.wall_ms = self.now_ms = 1_700_000_000_000  # by a true clock, and the append time of the table
        self.jump_ms = 0
        self.epochs: Counter[bytes] = Counter()
        self.allowed: dict[bytes, int] = {}
        self.longest: dict[bytes, int] = {}  # the most that was allowed since its last batch
        self.blocks: dict[bytes, IdleBlock] = {}
        self.told: list[str] = []
        self.segment_count = 0
        self.open(NO_TABLE, self.now_ms)

    def open(self, table: Table, floor_ms: int) -> None:
        """As `learning._open`."""
        self.segment_count += 1
        self.broker = BrokerState(MANY, M00, 1, NONCE, checksum)
        record = LocalSegment(self.segment_count, attempt(self.segment_count), (M00, M01), True, False)
        self.log = log = SegmentLog(P, record, table, self.blocks)
        log.active = log.unbroken = True
        log.last_append_ms = log.flushed_append_ms = log.tidied_ms = floor_ms
        self.now_ms = floor_ms
        self.leap_count = 0
        # After each batch: the length, what was allowed, the most that was allowed before it, and the number of leaps.
        self.past = [(0, dict(self.allowed), dict(self.longest), 0)]

    def goes_on(self, to_ms: int) -> None:
        """Append time goes on."""
        step_ms = to_ms - self.now_ms
        leapt = leaps(MANY, self.now_ms, to_ms)
        for producer in self.allowed:
            counts_half = leapt and (step_ms < 0 or self.longest[producer] < MANY.producer_idle_ms)
            self.allowed[producer] += MANY.producer_idle_ms // 2 if counts_half else step_ms
            self.longest[producer] = max(self.longest[producer], self.allowed[producer])
        self.leap_count += leapt
        self.now_ms = to_ms

    def append(self) -> None:
        producer, log = _id(self.random.randrange(9)), self.log
        self.broker.now = ev.Moment(0, self.wall_ms + self.jump_ms)
        last = log.live_table.last(producer)
        if last is None:
            self.epochs[producer] += 1
        sequence = 0 if last is None or last.epoch < self.epochs[producer] else last.last_sequence + 1
        batch = log.append(self.broker, header(sequence, epoch=self.epochs[producer], producer=producer), b"body")
        self.goes_on(batch.header.append_time_ms)
        longest = dict(self.longest)
        self.allowed[producer] = self.longest[producer] = 0
        self.past.append((log.tail, dict(self.allowed), longest, self.leap_count))

    def commit(self) -> None:
        log = self.log
        log.advance_commit(self.random.randint(log.commit, log.tail))
        if self.random.random() < 0.5:
            log.advance_flushed(log.commit)
        self.past = [at for at in self.past if at[0] >= log.commit]

    def switch(self) -> None:
        log, random = self.log, self.random
        lengths = (log.commit, log.tail, random.randint(log.commit, log.tail))
        if random.random() < 0.7:
            log.fence(self.broker)
        self.blocks |= {block.id: block for block in log.live_table.blocks}
        tables = {length: log.table_as_of(MANY, length) for length in lengths}  # several switchers ask
        length = random.choice(lengths)
        (kept,) = (at for at in self.past if at[0] == length)
        leaps_ms = (self.leap_count - kept[3]) * MANY.producer_idle_ms // 2
        longest = [at[2] for at in self.past if at[0] > length] + [self.longest, kept[1]]
        for producer in self.longest:
            self.longest[producer] = max(at.get(producer, 0) for at in longest)
        self.allowed = {producer: age_ms + leaps_ms for producer, age_ms in kept[1].items()}
        if self.leap_count - kept[3] > 1:
            self.allowed = {producer: max(age, self.longest[producer]) for producer, age in self.allowed.items()}
        floor_ms = log.append_time_at(length)
        if log.tail > length:
            log.seal(self.broker, length, log.checksum_at(length))
            self.look(log.live_table, floor_ms)
        self.open(tables[length], floor_ms)
        if random.random() < 0.5:
            self.log.live_table.read_on(self.log.live_table.unread_count)

    def look(self, table: ProducerTable, now_ms: int) -> None:
        """No producer seems to be older than is allowed, or much younger than it can be."""
        ages = {producer: now_ms - append_time_of(window) for producer, window in table.items()}
        for producer in list(self.allowed):
            if producer in ages:
                # A window keeps the append time of a batch that was cut without a leap, so it may be a bit ahead.
                assert -MANY.producer_idle_ms <= ages[producer], self.told
                assert ages[producer] <= self.allowed[producer] + MANY.producer_idle_ms, self.told
            else:
                assert self.longest[producer] >= MANY.producer_expiry_ms, self.told
                del self.allowed[producer]

    def run(self, step_count: int) -> None:
        for _ in range(step_count):
            place = self.random.random()
            if place < 0.15:
                self.wall_ms += self.random.choice((10, 60, 200, 600, 1_200, 3_000, 6_000))
            elif place < 0.25:
                self.jump_ms = self.random.choice(self.jumps_ms)
            else:
                step = self.random.choices((self.append, self.commit, self.switch), (9, 2, 1))[0]
                self.told.append(f"{step.__name__} at {self.wall_ms % 10**9} + {self.jump_ms}")
                step()
            self.look(self.log.live_table, self.now_ms)


@pytest.mark.parametrize(
    ("jumps_ms", "seed_count"),
    [
        pytest.param((0,), 15, id="right"),
        pytest.param((0, -WRONG_MS, -2 * WRONG_MS), 80, id="behind"),
        pytest.param((0, WRONG_MS), 40, id="ahead"),
        pytest.param((0, -WRONG_MS, WRONG_MS, 3_000, -3_000), 80, id="any"),
    ],
)
def test_no_producer_seems_to_be_older_than_the_leaps_of_append_time_allow(
    jumps_ms: tuple[int, ...], seed_count: int
) -> None:
    for seed in range(seed_count):
        _Story(seed, jumps_ms).run(60)
