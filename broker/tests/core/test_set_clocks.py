"""What a producer table believes of its producers if the clock of a master was set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from seriatim_api import errors
from seriatim_api.ids import make_offset
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.log import Truncate
from seriatim_broker.core.values.producers import Window, append_time_of, entries_of

from .support import M01, M10, MS, Bench, P, attempt, opened_master, sealed_chain

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


def test_a_clock_set_back_while_the_table_is_full_makes_nobody_old() -> None:
    """No batch would tell of it: a new producer is refused, and the table is not tidied by that clock to make room."""
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
