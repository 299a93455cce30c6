"""Producer tables that are too large for a message: a switch and the readers continue all the same."""

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
    ProducerTable,
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
from .test_admission import MANY, _append, _id, make_block
from .test_idle_blocks import TABLE
from .test_switch import _behind, _fence_second, _switch_second, asked_to_prepare, switcher

ROW_BYTES = 49
"""Of a producer in a table that is spelled out."""


def _fenced(rows_max: int, *, incomplete: bool) -> tuple[Bench, msg.FenceAnswer]:
    """What a master answers that knows 17 producers, 4 of them in a block, if at most this many may be spelled out."""
    bench = opened_master(config=replace(MANY, spelled_out_bytes_max=4 + ROW_BYTES * rows_max))
    bench.link(M20)
    bench.link(M21)
    make_block(bench)
    log = bench.part.logs[1]
    log.record = replace(log.record, incomplete_table=incomplete)
    bench.hear(M20, msg.FenceRequest(P, 1, attempt(1), b"s" * 16))
    bench.persist()
    (answer,) = bench.sent(msg.FenceAnswer, M20)
    return bench, answer


def _too_large(bench: Bench) -> list[fx.Note]:
    return [note for note in bench.all(fx.Note) if note.name == "table_too_large"]


# ---- the fence answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows_max", "told"), [(17, (0, 17)), (16, (1, 13))])
def test_an_incomplete_table_that_cannot_be_spelled_out_keeps_its_names(rows_max: int, told: tuple[int, int]) -> None:
    """Spelled out, 700,000 producers were larger than a message may be: the link broke, and so at each try again."""
    bench, answer = _fenced(rows_max, incomplete=True)
    assert (len(answer.table.blocks), answer.table.row_count) == told
    assert answer.length is not None
    assert answer.incomplete_table
    assert not _too_large(bench)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_table_that_is_too_large_for_a_message_gives_no_length(is_told: bool) -> None:
    """A part of the table would pass for all of it, and repeats for new batches (I9). Without a length the next segment
    is opened over this one."""
    bytes_max = 4 + 3 * ROW_BYTES if is_told else 3 * ROW_BYTES
    bench = opened_master(config=replace(MANY, spelled_out_bytes_max=ROW_BYTES, table_bytes_max=bytes_max))
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
    """Who was sent the table, of those that may have asked."""
    return [member for member in SWITCHERS if bench.sent(msg.FenceAnswer, member)]


def _with_large_table() -> Bench:
    """A master with a table that switchers get in turns."""
    bench = opened_master(config=replace(MANY, fence_turn_bytes=ROW_BYTES))
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


# ---- tables that readers need ---------------------------------------------------------------------------


def test_tables_for_readers_have_a_limit_and_those_not_used_for_longest_are_forgotten() -> None:
    """They were kept as long as the segments that they are for: 1,000 such segments, 1,000 tables."""
    chain = unsettled_chain(first_chain())
    for _ in range(3):
        chain = sealed_chain(chain, 0, 0, members=(M10, M11), incomplete=True)
    bench = Bench(M20, config=replace(MANY, before_tables_bytes_max=2 * ROW_BYTES))
    broker, partition = bench.core.state, partitions.find(bench.core.partitions, P)
    partition.chain = chain

    def tell(no: int, row_count: int) -> None:
        table = pack_table({_id(number): pack_window([Entry(0, 0, 1, number)], 1) for number in range(row_count)})
        producer_tables.on_answer(broker, partition, msg.TableAnswer(P, no - 1, table))

    tell(2, 1)
    tell(3, 1)
    assert producer_tables.want_before(broker, partition, 2) is not None, "used: it stands after the other one"
    tell(4, 1)
    assert list(partition.before_tables) == [2, 4]
    tell(5, 3)
    assert list(partition.before_tables) == [5], "one is kept, however large it is"
