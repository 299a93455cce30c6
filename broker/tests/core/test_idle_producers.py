"""Producers that fell silent: what is still known of them, what it costs, and when they are forgotten."""

from __future__ import annotations

import gc
import random
import tracemalloc
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from seriatim_api import errors
from seriatim_api.batch import BatchHeader
from seriatim_api.ids import MemberId, make_offset
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.log import PutBatch
from seriatim_broker.core.values.producers import (
    Entry,
    IdleBlock,
    ProducerTable,
    append_time_of,
    entries_of,
    pack_window,
)

from .support import M00, M01, MS, SECOND, Bench, header, opened_master, opened_slave, replicate

MINUTE = 60_000
HOUR = 60 * MINUTE
CONFIG = BrokerConfig()
SMALL = replace(CONFIG, idle_block_rows=4, producer_count_max=10)
ALL_COMMITTED = make_offset(1 << 20, 0)


def _id(number: int) -> bytes:
    """As random as a client's."""
    return random.Random(number).randbytes(16)


def _batch(number: int, at_ms: int, sequence: int = 0, index: int | None = None) -> BatchHeader:
    """The batch of a producer, in its place."""
    index = number if index is None else index
    return header(sequence, producer=_id(number))._replace(segment=1, base_index=index, append_time_ms=at_ms)


def _table_of(numbers: range, config: BrokerConfig = SMALL, at_ms: int = 0) -> ProducerTable:
    """One batch of each producer, one each millisecond."""
    table = ProducerTable()
    for number in numbers:
        table.record(_batch(number, at_ms + number))
    return table


def _tidy(table: ProducerTable, now_ms: int, config: BrokerConfig = SMALL, committed: int = ALL_COMMITTED) -> None:
    """As often as is due until then."""
    table.tidy(config, now_ms - config.producer_idle_ms, now_ms, committed)


def test_an_idle_block_finds_each_of_its_producers() -> None:
    rows = {_id(number): pack_window([Entry(0, number, 1, number)], number) for number in range(500)}
    twins = {_id(number)[:8] + bytes(8): pack_window([Entry(1, 0, 1, number)], number) for number in range(500)}
    block = IdleBlock.of([*rows.items(), *twins.items()])
    for producer, window in {**rows, **twins}.items():
        assert block.window(block.find(producer)) == window
    assert all(block.find(_id(number)) == -1 for number in range(500, 1000))
    assert dict(block.rows()) == {**rows, **twins}
    assert block.newest_ms == 499
    assert IdleBlock.of(reversed([*rows.items(), *twins.items()])).id == block.id


def test_producers_that_fall_silent_keep_their_newest_batch() -> None:
    table = _table_of(range(4))
    table.record(_batch(0, 10, sequence=1, index=9))
    table.record(_batch(9, 10))
    _tidy(table, 11 + CONFIG.producer_idle_ms)
    assert [block.producer_count for block in table.blocks] == [4], "those that were idle for longest"
    assert list(table.windows) == [_id(9)]
    assert [entry.base_sequence for entry in table.entries(_id(0))] == [1]
    assert table.producer_count == 5
    assert all(table.find(_batch(number, 0)) is not None for number in (1, 2, 3, 9))


def test_a_batch_that_may_still_be_cut_keeps_its_producer_out_of_a_block() -> None:
    table = _table_of(range(4))
    _tidy(table, HOUR, committed=make_offset(1, 3))
    assert not table.blocks
    _tidy(table, HOUR, committed=make_offset(1, 4))
    assert len(table.blocks) == 1


def test_who_comes_back_has_one_window_and_what_it_sent_before_is_still_known() -> None:
    table = _table_of(range(4))
    _tidy(table, HOUR)
    table.record(_batch(2, HOUR, sequence=1, index=50))
    assert table.producer_count == 4
    assert [entry.base_sequence for entry in table.entries(_id(2))] == [0, 1]
    assert len(dict(table.items())) == len(list(table.items())) == 4
    table.change(table.cut(1, 50, [_id(2)]))
    assert [entry.base_sequence for entry in table.entries(_id(2))] == [0], "the new batch was cut: the old one counts"
    assert dict(table.at_rest())[_id(2)] == table.windows[_id(2)]


def test_a_block_whose_producers_mostly_came_back_goes_into_the_next_one() -> None:
    table = _table_of(range(4))
    _tidy(table, HOUR)
    for number in (0, 1):
        table.record(_batch(number, HOUR, sequence=1, index=50 + number))
    for number in range(10, 14):
        table.record(_batch(number, HOUR + number))
    _tidy(table, 2 * HOUR)
    (block,) = table.blocks
    assert {producer for producer, _ in block.rows()} == {_id(number) for number in (0, 1, 2, 3, 10, 11)}
    assert table.producer_count == 8
    assert not table.hidden


def test_after_seven_idle_days_a_producer_is_forgotten_and_not_before() -> None:
    table = _table_of(range(7))
    table.record(_batch(6, 6, sequence=1, index=9))
    _tidy(table, HOUR)
    assert (len(table.blocks), len(table.windows)) == (1, 3)
    _tidy(table, CONFIG.producer_expiry_ms + 2)
    assert table.producer_count == 7, "the newest of the block has a millisecond left, the oldest of the rest two"
    _tidy(table, CONFIG.producer_expiry_ms + 3)
    assert [table.last(_id(number)) is None for number in range(7)] == [True] * 4 + [False] * 3
    _tidy(table, CONFIG.producer_expiry_ms + 5)
    assert [table.last(_id(number)) is None for number in range(7)] == [True] * 6 + [False]


def test_a_full_table_forgets_who_was_idle_for_longest_but_nobody_of_the_last_hour() -> None:
    table = _table_of(range(10))
    _tidy(table, 10 + CONFIG.producer_idle_ms)
    assert len(table.blocks) == 1
    table.tidy(SMALL, 2, 2 + HOUR, 0)
    assert table.producer_count == 10
    table.tidy(SMALL, 3, 3 + HOUR, 0)
    assert table.producer_count == 6
    assert table.last(_id(3)) is None
    assert table.last(_id(4)) is not None


def test_a_clock_that_leaps_ahead_makes_nobody_idle() -> None:
    """A leap is the time between two batches: it says nothing of producers that were heard right before it."""
    config = replace(SMALL, producer_count_max=100)
    half_ms = CONFIG.producer_idle_ms // 2
    years_ms = 10 * 365 * 24 * HOUR
    table = _table_of(range(10), at_ms=HOUR)
    table.tidy(config, HOUR + 9, years_ms, ALL_COMMITTED)
    assert table.producer_count == len(table.windows) == 10
    assert {append_time_of(window) for window in table.windows.values()} == {
        years_ms - half_ms - age_ms for age_ms in range(10)
    }
    table.tidy(config, years_ms, years_ms + half_ms, ALL_COMMITTED)
    assert [block.producer_count for block in table.blocks] == [4], "and are idle as soon as they did not send again"
    table.tidy(config, years_ms + half_ms, HOUR + 10, ALL_COMMITTED)
    assert table.producer_count == 10
    assert all(append_time_of(window) <= HOUR + 10 for _, window in table.items()), "set back: none is in the future"


def test_producers_of_a_partition_with_one_batch_an_hour_are_idle_one_day() -> None:
    table = ProducerTable()
    before_ms = 0
    for number in range(12):
        now_ms = (number + 1) * HOUR
        table.record(_batch(number, now_ms))
        table.tidy(CONFIG, before_ms, now_ms, ALL_COMMITTED)
        before_ms = now_ms
    table.tidy(CONFIG, before_ms, before_ms + 7 * 24 * HOUR, ALL_COMMITTED)
    assert table.producer_count < 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 200_000)), max_size=120), st.data())
def test_the_blocks_hide_nothing_and_change_nothing(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    """Compared with the plain list of batches: no producer is forgotten, and the newest batch is always the newest."""
    config = replace(CONFIG, idle_block_rows=3, producer_count_max=1000)
    table, twin = ProducerTable(), ProducerTable()
    newest: dict[int, BatchHeader] = {}
    now_ms = 0
    for index, (number, pause_ms) in enumerate(steps):
        before_ms, now_ms = now_ms, now_ms + pause_ms
        sequence = newest[number].base_sequence + 1 if number in newest else 0
        newest[number] = _batch(number, now_ms, sequence, index)
        for one in (table, twin):
            one.record(newest[number])
            one.tidy(config, before_ms, now_ms, make_offset(1, index + 1))
        if data.draw(st.integers(0, 9)) == 0:
            table = ProducerTable(table.at_rest(), (), {block.id: block for block in table.blocks})
    assert table.producer_count == len(newest) == len(list(table.items()))
    for number, batch in newest.items():
        found = table.last(batch.producer)
        assert found is not None
        assert found == twin.last(batch.producer)
        assert found.offset == make_offset(1, batch.base_index)
        assert append_time_of(dict(table.items())[batch.producer]) == batch.append_time_ms, number
    for block in twin.blocks:
        assert 2 * twin.hidden.get(block.id, 0).bit_count() <= 2 * block.producer_count
    assert all(entries_of(window) for _, window in twin.items())


# ---- in a partition -------------------------------------------------------------------------------------

QUICK = replace(
    CONFIG,
    tidy_ms=100,
    producer_idle_ms=1_000,
    producer_evict_ms=5_000,
    producer_expiry_ms=20_000,
    idle_block_rows=4,
    producer_count_max=12,
)


def _append(bench: Bench, number: int, sequence: int = 0, run: int = 0, starts: bool = True) -> int:
    """A batch of a producer; it is committed at once."""
    request = bench.append(sequence, producer=_id(number), run=run, starts=starts)
    bench.persist()
    if bench.part.logs[1].unbroken:
        bench.ack(M01, bench.part.logs[1].tail)
    return request


def pass_time(bench: Bench, beating: tuple[MemberId, ...], run: int = 0) -> None:
    """Two seconds pass, in which producer 9 sends."""
    last = bench.part.logs[1].live_table.last(_id(9))
    first = last.base_sequence + 1 if last is not None else 0
    for sequence in range(first, first + 4):
        bench.wait(SECOND // 2, beating)
        _append(bench, 9, sequence, run=run, starts=sequence == first)


def test_a_master_and_its_follower_come_to_the_same_blocks() -> None:
    master, slave = opened_master(config=QUICK), opened_slave(config=QUICK)
    chance = random.Random(3)
    for run in range(120):
        number = chance.randrange(11)
        last = master.part.logs[1].live_table.last(_id(number))
        _append(master, number, last.base_sequence + 1 if last is not None else 0, run=run)
        log = master.part.logs[1]
        replicate(slave, (master.writes(PutBatch)[-1].batch,), log.commit)
        for bench in (master, slave):
            bench.wait(chance.randrange(SECOND), (M00, M01))
    assert master.part.logs[1].live_table.blocks
    assert [b.id for b in master.part.logs[1].live_table.blocks] == [b.id for b in slave.part.logs[1].live_table.blocks]


def test_one_producer_too_many_is_refused_until_another_may_be_forgotten() -> None:
    bench = opened_master(config=QUICK)
    for number in range(12):
        _append(bench, number)
    late = _append(bench, 12)
    refusal = bench.refused()[late]
    assert isinstance(refusal, errors.TooManyProducersError)
    assert refusal.retriable
    assert refusal.outcome_known
    assert _id(12) not in bench.part.logs[1].runs, "of one that is not taken up nothing is kept"
    known = _append(bench, 3, 1, starts=False)
    assert known in bench.accepted(), "who is known goes on"
    for sequence in range(2, 6):  # the log's time moves on, and the idle ones become blocks
        bench.wait(2 * SECOND, (M01,))
        _append(bench, 3, sequence, starts=False)
    bench.wait(2 * QUICK.tidy_ms * MS, (M01,))  # the last batch was one after a pause, and was not committed yet
    again = _append(bench, 12, run=1)
    assert again in bench.accepted()


def test_a_table_full_of_producers_that_have_all_gone_makes_room_though_nothing_is_appended() -> None:
    bench = opened_master(config=QUICK)
    for number in range(12):
        _append(bench, number)
    for run in range(1, 12):
        bench.wait(2 * SECOND, (M01,))
        _append(bench, 12, run=2 * run - 1)  # to the table this is a leap of the clock until it is asked again
        bench.wait(2 * QUICK.tidy_ms * MS, (M01,))
        late = _append(bench, 12, run=2 * run)
        if late in bench.accepted():
            assert run >= 3, "no producer of the last five seconds is forgotten"
            return
    raise AssertionError("no producer was forgotten")


def test_an_expired_producer_is_told_that_it_is_not_known_and_goes_on_in_another_epoch() -> None:
    bench = opened_master(config=QUICK)
    for number in range(5):
        _append(bench, number)
    for sequence in range(13):
        bench.wait(2 * SECOND, (M01,))
        _append(bench, 9, sequence, starts=not sequence)
    assert bench.part.logs[1].live_table.last(_id(0)) is None
    refused = _append(bench, 0, 1, run=1)
    assert isinstance(bench.refused()[refused], errors.SequenceGapError)
    request = bench.append(0, producer=_id(0), epoch=1, run=2, starts=True)
    bench.persist()
    bench.ack(M01, bench.part.logs[1].tail)
    assert request in bench.accepted()


def test_the_run_of_an_idle_producer_is_forgotten_with_its_window() -> None:
    bench = opened_master(config=QUICK)
    for number in range(4):
        _append(bench, number)
    pass_time(bench, (M01,))
    assert bench.part.logs[1].live_table.blocks
    assert set(bench.part.logs[1].runs) == {_id(9)}
    refused = _append(bench, 2, 1, starts=False)
    assert isinstance(bench.refused()[refused], errors.RunRefusedError), "it begins another run, as after a switch"
    assert _append(bench, 2, 1, run=1) in bench.accepted()


def test_an_idle_producer_takes_less_than_100_bytes() -> None:
    """174 bytes as a window; a block has 48 for each, and 8 to find it."""
    count = 20_000
    tracemalloc.start()
    try:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        table = ProducerTable()
        now_ms = 0
        for number in range(count):
            table.record(_batch(number, number))
        for _ in range(30):
            now_ms += CONFIG.producer_idle_ms
            table.tidy(CONFIG, now_ms - CONFIG.producer_idle_ms, now_ms, ALL_COMMITTED)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert table.producer_count == count
    assert (after - before) / count < 100
