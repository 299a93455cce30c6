"""Producer tables that are too large for a message: a switch and the readers go on all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.ids import MemberId
from seriatim_broker.core.copies import producer_tables
from seriatim_broker.core.dispatch import partitions
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.producers import (
    Entry,
    IdleBlock,
    ProducerTable,
    append_time_of,
    entries_of,
    pack_table,
    pack_window,
)

from .support import (
    M00,
    M01,
    M10,
    M11,
    M20,
    M21,
    SECOND,
    Bench,
    P,
    Serving,
    attempt,
    first_chain,
    opened_master,
    prepared,
    sealed_chain,
    unsettled_chain,
)
from .test_idle_blocks import TABLE
from .test_idle_producers import QUICK, _append, _id, pass_time
from .test_switch import _behind, _fence_second, _switch_second, asked_to_prepare, switcher

ROW_BYTES = 49
"""Of a producer in a table that is spelled out."""


def _fenced(rows_max: int, *, incomplete: bool, idle_s: int = 0) -> tuple[Bench, msg.FenceAnswer]:
    """What a master answers that knows 5 producers, 4 of them in a block, if at most so many may be spelled out."""
    bench = opened_master(config=replace(QUICK, spelled_out_bytes_max=4 + ROW_BYTES * rows_max + 3 * 24))
    bench.link(M20)
    bench.link(M21)
    for number in range(4):
        _append(bench, number)
    pass_time(bench, (M01, M20, M21))
    for sequence in range(4, 4 + idle_s):
        bench.wait(SECOND, (M01, M20, M21))
        _append(bench, 9, sequence, starts=False)
    log = bench.part.logs[1]
    log.record = replace(log.record, incomplete_table=incomplete)
    bench.hear(M20, msg.FenceRequest(P, 1, attempt(1), b"s" * 16))
    bench.persist()
    (answer,) = bench.sent(msg.FenceAnswer, M20)
    return bench, answer


def _too_large(bench: Bench) -> list[fx.Note]:
    return [note for note in bench.all(fx.Note) if note.name == "table_too_large"]


# ---- the new master ----


def _opened_with(row_count: int, **limits: int) -> Bench:
    """A master whose segment was opened with a table of so many producers, each with one batch."""
    table = pack_table({_id(number): pack_window([Entry(0, 0, 1, number)], 1) for number in range(row_count)})
    bench = Bench(config=replace(QUICK, **limits))
    chain = first_chain()
    bench.open(replace(chain, segments=(replace(chain.segments[0], append_floor_ms=bench.wall_ms),)), table=table)
    bench.follow(M01)
    bench.clear()
    return bench


def test_a_new_master_accepts_before_it_has_made_the_windows_of_all_producers() -> None:
    """All of 100,000 took 80 ms, in which no batch of any producer was accepted."""
    bench = _opened_with(5, window_rows_at_once=2)
    live = bench.part.logs[1].live_table
    assert live.unread_count == 5
    repeat, following, gap = (bench.append(sequence, producer=_id(4), starts=True) for sequence in (0, 1, 3))
    bench.persist()
    bench.ack(M01, bench.part.logs[1].tail)
    assert [reply.request for reply in bench.all(fx.AppendAccepted)] == [repeat, following]
    assert [refusal.request for refusal in bench.all(fx.AppendRefused)] == [gap]
    assert live.unread_count == 5
    for left_count in (3, 1, 0):
        bench.wait(bench.config.window_delay_us if left_count == 3 else bench.config.window_pause_us, (M01,))
        assert live.unread_count == left_count
    assert list(live.windows) == [*map(_id, range(5))], "who sent last stands last"


# ---- the fence answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows_max", "told"), [(5, (0, 5)), (4, (1, 1))])
def test_an_incomplete_table_that_cannot_be_spelled_out_keeps_its_names(rows_max: int, told: tuple[int, int]) -> None:
    """Spelled out, 700,000 producers were larger than a message may be: the link broke, and so at each try again."""
    bench, answer = _fenced(rows_max, incomplete=True)
    assert (len(answer.table.blocks), answer.table.row_count) == told
    assert answer.length is not None
    assert answer.incomplete_table
    assert not _too_large(bench)


def test_blocks_that_were_idle_for_long_are_left_out_so_that_the_rest_can_be_spelled_out() -> None:
    """QUICK: after 5 s, as in a table with too many producers."""
    _, early = _fenced(4, incomplete=True, idle_s=2)
    assert early.table.blocks, "not before"
    bench, late = _fenced(4, incomplete=True, idle_s=5)
    assert [producer for producer, _ in late.table] == [_id(9)]
    assert bench.part.logs[1].live_table.producer_count == 5, "the table itself is as it was"


@pytest.mark.parametrize("is_told", [True, False])
def test_a_table_that_is_too_large_for_a_message_gives_no_length(is_told: bool) -> None:
    """A part of the table would pass for all of it, and repeats for new batches (I9). Without a length the next segment
    is opened over this one."""
    bytes_max = 4 + 3 * ROW_BYTES if is_told else 3 * ROW_BYTES
    bench = opened_master(config=replace(QUICK, spelled_out_bytes_max=ROW_BYTES, table_bytes_max=bytes_max))
    bench.link(M21)
    for number in range(3):
        _append(bench, number)
    bench.hear(M21, msg.FenceRequest(P, 1, attempt(1), b"s" * 16))
    bench.persist()
    (answer,) = bench.sent(msg.FenceAnswer, M21)
    assert answer.fenced
    assert (answer.length, answer.table.row_count) == ((3, 3) if is_told else (None, 0))
    assert [dict(note.fields)["producers"] for note in _too_large(bench)] == ([] if is_told else [3])


# ---- several switchers ----

SWITCHERS = (M20, M21, M10)


def _asked_by(bench: Bench, *switchers: MemberId) -> None:
    for member in switchers:
        bench.hear(member, msg.FenceRequest(P, 1, attempt(1), member.broker.encode()))
        bench.persist()


def _answered(bench: Bench) -> list[MemberId]:
    """Who was told the table, of those that may have asked."""
    return [member for member in SWITCHERS if bench.sent(msg.FenceAnswer, member)]


def _with_large_table() -> Bench:
    """A master with a table that switchers get in turns."""
    bench = opened_master(config=replace(QUICK, fence_turn_bytes=ROW_BYTES))
    for member in SWITCHERS:
        bench.link(member)
    _append(bench, 1)
    bench.clear()
    return bench


def test_switchers_get_a_large_table_in_turns() -> None:
    """Two that carried the same table to the same members at once took twice as long."""
    bench = _with_large_table()
    _asked_by(bench, M20, M21, M10)
    assert _answered(bench) == [M20]
    told = [
        progress.size_bytes >= ROW_BYTES for member in SWITCHERS for progress in bench.sent(msg.FenceProgress, member)
    ]
    assert told == [True, True, True]
    _asked_by(bench, M20)
    assert len(bench.sent(msg.FenceAnswer, M20)) == 2, "it is its turn"
    bench.wait(bench.config.fence_turn_us, (M01, *SWITCHERS))
    bench.persist()
    assert _answered(bench) == [M20, M21, M10]


def test_a_switcher_whose_link_is_lost_has_no_turn_any_more() -> None:
    bench = _with_large_table()
    _asked_by(bench, M20, M21)
    bench.unlink(M20)
    bench.persist()
    assert _answered(bench) == [M20, M21]


def test_who_waits_for_its_turn_hears_of_the_record_if_the_first_one_succeeds() -> None:
    bench = _with_large_table()
    _asked_by(bench, M20, M21)
    bench.hear(M20, msg.ChainUpdate(sealed_chain(first_chain(), 1, bench.part.logs[1].tail_checksum), 300))
    bench.persist()
    assert _answered(bench) == [M20]
    assert bench.sent(msg.ChainUpdate, M21)


def test_who_waits_for_its_turn_hears_that_the_coordinator_has_lost_decisions() -> None:
    bench = _with_large_table()
    _asked_by(bench, M20, M21)
    bench.do(ev.OwnRecordSeen("it has no record of g0-0"))
    bench.unlink(M20)
    (answer,) = bench.sent(msg.FenceAnswer, M21)
    assert answer.coordinator_behind
    assert not answer.fenced


def test_a_switcher_waits_for_a_large_table_for_as_long_as_it_takes() -> None:
    """After `fence_timeout_us` it opened over the segment of a master whose certificate was there."""
    bench = switcher(without=(M01,))
    (request,) = bench.sent(msg.FenceRequest, M00)
    size_bytes = bench.config.switch_bytes_per_s  # a second
    bench.hear(M00, msg.FenceProgress(P, 1, request.switch, size_bytes))
    bench.wait(bench.config.fence_timeout_us + SECOND, (M00, M10, M11, M21))
    assert not bench.all(fx.ReadCertificate)
    bench.wait(bench.config.fence_turn_us, (M00, M10, M11, M21))
    assert bench.all(fx.ReadCertificate), "but not longer"


# ---- the switcher ---------------------------------------------------------------------------------------


def test_a_switcher_does_not_merge_a_table_whose_blocks_are_named() -> None:
    bench = _switch_second(_behind(settled=True))
    _fence_second(bench, TABLE)
    assert not bench.sent(msg.TableRequest)
    assert asked_to_prepare(bench)
    assert all(request.incomplete_table and request.table == TABLE for _, request in asked_to_prepare(bench))


@pytest.mark.parametrize(("rows_max", "is_merged"), [(4, True), (3, False)])
def test_a_table_that_a_merge_made_too_large_is_not_sent_and_the_mark_is_passed_on(
    rows_max: int, is_merged: bool
) -> None:
    here, before = (
        pack_table({_id(number): pack_window([Entry(0, 0, 1, number)], 7) for number in numbers})
        for numbers in ((1, 2), (3, 4))
    )
    bench = _switch_second(_behind(settled=True))
    bench.core.state.config = replace(bench.config, spelled_out_bytes_max=4 + ROW_BYTES * rows_max)
    _fence_second(bench, here)
    bench.hear(M01, msg.TableAnswer(P, 1, before))
    requests = [request for _, request in asked_to_prepare(bench)]
    assert {(request.incomplete_table, request.table.row_count) for request in requests} == {
        (not is_merged, 4 if is_merged else 2)
    }


# ---- for readers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_told", [True, False])
def test_a_table_for_readers_is_told_whole_or_an_event_says_why_not(is_told: bool) -> None:
    bench = Serving()
    if not is_told:
        bench.core.state.config = replace(bench.config, spelled_out_bytes_max=ROW_BYTES, table_bytes_max=ROW_BYTES)
    bench.link(M10)
    log = bench.part.logs[1]
    log.opened_with = prepared(1, (M00, M01))
    log.table = ProducerTable(pack_table({_id(number): pack_window([Entry(0, 0, 1, 0)], 7) for number in range(3)}))
    bench.hear(M10, msg.TableRequest(P, 1))
    (answer,) = bench.sent(msg.TableAnswer, M10)
    assert (answer.table is not None) == is_told
    assert [dict(note.fields)["producers"] for note in _too_large(bench)] == ([] if is_told else [3])


# ---- spelling out ---------------------------------------------------------------------------------------


def test_what_is_spelled_out_is_what_the_table_knows_and_no_larger_than_it_says() -> None:
    old, new = (
        IdleBlock.of((_id(number), pack_window([Entry(0, 0, 1, number)], time_ms)) for number in numbers)
        for numbers, time_ms in (((1, 2, 3), 1_000), ((3, 4, 5), 7_000))
    )
    table = ProducerTable()
    table.blocks = (old, new)
    table.hidden = {old.id: 1 << old.find(_id(3))}
    table.windows = {_id(6): pack_window([Entry(0, 0, 1, 8), Entry(0, 1, 1, 9)], 9_000)}
    whole = table.spelled_out(1 << 20, 5_000)
    assert whole is not None
    assert dict(whole) == dict(table.items())
    assert table.spelled_out(whole.size_bytes, 5_000) == whole
    less = table.spelled_out(whole.size_bytes - 1, 8_000)
    assert less is not None
    assert {producer for producer, _ in less} == {_id(3), _id(4), _id(5), _id(6)}
    assert [(len(entries_of(window)), append_time_of(window)) for window in dict(less).values()][-1] == (2, 9_000)
    assert table.spelled_out(whole.size_bytes - 1, 8_001) is None, "nothing that was idle for less"
    assert table.spelled_out(less.size_bytes - 1, 8_000) is None


# ---- tables that readers need ---------------------------------------------------------------------------


def test_tables_for_readers_have_a_limit_and_those_not_used_for_longest_are_forgotten() -> None:
    """They were kept as long as the segments that they are for: 1,000 such segments, 1,000 tables."""
    chain = unsettled_chain(first_chain())
    for _ in range(3):
        chain = sealed_chain(chain, 0, 0, members=(M10, M11), incomplete=True)
    bench = Bench(M20, config=replace(QUICK, before_tables_bytes_max=2 * ROW_BYTES))
    broker, partition = bench.core.state, partitions.find(bench.core.partitions, P)
    partition.chain = chain

    def tell(no: int, row_count: int) -> None:
        table = pack_table({_id(number): pack_window([Entry(0, 0, 1, number)], 1) for number in range(row_count)})
        producer_tables.on_answer(broker, partition, msg.TableAnswer(P, no - 1, table))

    tell(2, 1)
    tell(3, 1)
    assert producer_tables.want_before(broker, partition, 2) is not None, "used: it stands behind the other one"
    tell(4, 1)
    assert list(partition.before_tables) == [2, 4]
    tell(5, 3)
    assert list(partition.before_tables) == [5], "one is kept, however large it is"
