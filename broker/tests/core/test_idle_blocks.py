"""Idle blocks between members: offered ahead of a switch, asked for if missing, written before what names them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.log import DropBlock, PutBatch, PutBlock, PutPreparation, RecoveredPartition
from seriatim_broker.core.values.producers import (
    BlockName,
    Entry,
    IdleBlock,
    Table,
    newest_of,
    pack_names,
    pack_table,
    pack_window,
    read_names,
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
    attempt,
    fence_answer,
    first_chain,
    opened_master,
    prepared,
    recovered,
    sealed_chain,
)
from .test_admission import MANY, _id, make_block

FROM_1, FROM_2, FROM_3 = (
    IdleBlock.of((_id(number), pack_window([Entry(0, 0, 1, number)], number)) for number in range(at, at + 4))
    for at in (10, 20, 30)
)
ALL = (FROM_1, FROM_2, FROM_3)
BLOCK_BYTES = 4 + 4 * 49


def _names(*blocks: IdleBlock, hidden: int = 0) -> tuple[BlockName, ...]:
    return tuple(BlockName(block.id, block.producer_count, len(block.data), hidden) for block in blocks)


LIVE = pack_table({_id(1): pack_window([Entry(0, 5, 1, 90)], 99)})
TABLE = replace(LIVE, blocks=_names(*ALL, hidden=2))


def _prepare(bench: Bench, table: Table = TABLE, no: int = 2, name: bytes = b"x" * 16) -> None:
    """M20 asks for a preparation with the table that M00 answered."""
    bench.hear(M20, msg.PrepareRequest(P, no, name, (M10, M11), True, False, table, None, (), M00))


def _target() -> Bench:
    bench = Bench(M10)
    bench.link(M20)
    bench.link(M00)
    return bench


def _give(bench: Bench, *blocks: IdleBlock, member: object = M00) -> None:
    bench.hear(M00, msg.BlockAnswer(P, tuple(block.data for block in blocks)))


def test_names_of_blocks_come_back() -> None:
    names = (*_names(FROM_1), *_names(FROM_2, hidden=9), *_names(FROM_3, hidden=15))
    assert read_names(pack_names(names)) == names
    for cut in (1, 17, 29, 30):
        with pytest.raises(ValueError, match="idle block"):
            read_names(pack_names(names)[:-cut])


# ---- preparing ------------------------------------------------------------------------------------------


def test_a_preparation_is_written_only_with_all_blocks_that_it_names() -> None:
    bench = _target()
    _prepare(bench)
    assert [answer.missing_bytes for answer in bench.sent(msg.PrepareAnswer, M20)] == [3 * BLOCK_BYTES]
    assert [request.blocks for request in bench.sent(msg.BlockRequest, M00)] == [tuple(block.id for block in ALL)]
    _give(bench, FROM_2)
    assert [answer.missing_bytes for answer in bench.sent(msg.PrepareAnswer, M20)] == [3 * BLOCK_BYTES, 2 * BLOCK_BYTES]
    assert not bench.writes(PutPreparation)
    _give(bench, FROM_1, FROM_3)
    assert [write.block for write in bench.writes(PutBlock)] == [FROM_2.id, FROM_1.id, FROM_3.id]
    assert [write.preparation.table for write in bench.writes(PutPreparation)] == [TABLE]
    assert all(answer.missing_bytes for answer in bench.sent(msg.PrepareAnswer, M20)), "not before it is durable"
    bench.persist()
    assert bench.sent(msg.PrepareAnswer, M20)[-1].missing_bytes == 0


def test_what_arrived_for_one_try_is_there_for_the_next() -> None:
    bench = _target()
    _prepare(bench)
    _give(bench, FROM_1, FROM_2)
    bench.clear()
    _prepare(bench, name=b"y" * 16)
    assert [answer.missing_bytes for answer in bench.sent(msg.PrepareAnswer, M20)] == [BLOCK_BYTES]
    _give(bench, FROM_3)
    bench.persist()
    assert {answer.switch_attempt for answer in bench.sent(msg.PrepareAnswer, M20) if not answer.missing_bytes} == {
        b"x" * 16,
        b"y" * 16,
    }


def test_blocks_that_nobody_has_any_more_end_the_try_and_are_not_asked_for_again_and_again() -> None:
    bench = _target()
    _prepare(bench)
    _give(bench, FROM_1, FROM_2)
    asked = len(bench.sent(msg.BlockRequest))
    _give(bench)
    assert bench.sent(msg.PrepareAnswer, M20)[-1].refusal == "idle blocks of the table are missing"
    bench.wait(SECOND, (M00, M20))
    assert len(bench.sent(msg.BlockRequest)) == asked


def test_an_answer_that_comes_twice_ends_no_try() -> None:
    """The member asked again before the first answer was there."""
    bench = _target()
    bench.core.state.config = replace(bench.core.state.config, blocks_asked_max=2)
    _prepare(bench)
    bench.wait(bench.config.block_timeout_us + 1, (M00, M20))
    assert len(bench.sent(msg.BlockRequest, M00)) == 2
    _give(bench, FROM_1, FROM_2)
    _give(bench, FROM_1, FROM_2)
    assert not [answer for answer in bench.sent(msg.PrepareAnswer, M20) if answer.refusal]
    _give(bench, FROM_3)
    bench.persist()
    assert bench.sent(msg.PrepareAnswer, M20)[-1].missing_bytes == 0


def test_blocks_are_asked_for_again_when_no_answer_comes() -> None:
    bench = _target()
    _prepare(bench)
    bench.clear()
    bench.wait(bench.config.block_timeout_us + 1, (M00, M20))
    assert bench.sent(msg.BlockRequest, M00)


def test_the_table_with_its_blocks_counts_when_the_segment_is_opened_and_after_a_restart() -> None:
    chain = sealed_chain(first_chain(), 0, 0, members=(M10, M11))
    bench = _target()
    bench.link(M21)
    _prepare(bench, name=attempt(2))
    _give(bench, *ALL)
    bench.persist()
    bench.hear(M21, msg.ChainUpdate(chain, 102))
    live = bench.part.logs[2].live_table
    again = Bench(
        M10,
        2,
        (
            RecoveredPartition(
                P,
                (recovered(2, (), members=(M10, M11)),),
                (prepared(2, (M10, M11), table=TABLE),),
                blocks=tuple(block.data for block in ALL),
            ),
        ),
    )
    for table in (live, again.part.logs[2].live_table):
        found = {producer: newest_of(window).offset for producer, window in table.items()}
        hidden = {_id(number) for number in range(40)} - set(found)
        assert table.producer_count == len(found) == 1 + 3 * 3, "one row of each block is hidden"
        assert found[_id(1)] == 90
        assert all(table.last(producer) is None for producer in hidden)


# ---- ahead of a switch ----------------------------------------------------------------------------------


def test_a_master_writes_its_blocks_and_offers_them_to_the_next_group() -> None:
    bench = opened_master(config=MANY)
    bench.do(ev.DirectoryChanged((("g0", (M00, M01)), ("g1", (M10, M11)), ("g2", (M20, M21))), (), ()))
    for member in (M10, M11, M20):
        bench.link(member)
    make_block(bench)
    bench.wait(SECOND, (M01, M10, M11, M20))
    (block,) = bench.part.logs[1].live_table.blocks
    assert [write.block for write in bench.writes(PutBlock)] == [block.id]
    for member in (M10, M11):
        assert bench.sent(msg.BlockOffer, member)[-1] == msg.BlockOffer(P, 1, (block.id,))
    assert not bench.sent(msg.BlockOffer, M20), "the next group, and no other"
    bench.hear(M10, msg.BlockRequest(P, (block.id, b"unknown" * 2)))
    assert [answer.contents for answer in bench.sent(msg.BlockAnswer, M10)] == [(block.data,)]


def test_what_is_offered_is_got_one_at_a_time_and_dropped_when_it_is_offered_no_more() -> None:
    bench = _target()
    bench.hear(M00, msg.BlockOffer(P, 1, tuple(block.id for block in ALL)))
    for block in ALL:
        bench.wait(2 * bench.config.block_pause_us, (M00, M20))
        assert [request.blocks for request in bench.sent(msg.BlockRequest, M00)][-1] == (block.id,)
        _give(bench, block)
    assert [write.block for write in bench.writes(PutBlock)] == [block.id for block in ALL]
    bench.persist()
    _prepare(bench)
    assert bench.writes(PutPreparation), "a switch carries the names alone"
    assert len(bench.sent(msg.BlockRequest)) == 3
    bench.clear()
    bench.hear(M00, msg.BlockOffer(P, 1, (FROM_3.id,)))
    bench.wait(2 * bench.config.block_pause_us, (M00, M20))
    assert not bench.writes(DropBlock), "the preparation names them"
    other = _target()
    other.hear(M00, msg.BlockOffer(P, 1, (FROM_1.id,)))
    other.wait(2 * other.config.block_pause_us, (M00, M20))
    _give(other, FROM_1)
    other.hear(M00, msg.BlockOffer(P, 1, (FROM_3.id,)))
    other.wait(2 * other.config.block_pause_us, (M00, M20))
    assert [write.block for write in other.writes(DropBlock)] == [FROM_1.id]


# ---- in a switch ----------------------------------------------------------------------------------------


def _switcher() -> Bench:
    bench = Bench(M20)
    for member in (M00, M01, M10, M11, M21):
        bench.link(member)
    bench.do(ev.SwitchAwayFrom(P, 1))
    bench.read_chain(first_chain())
    (request,) = bench.sent(msg.FenceRequest, M00)
    bench.hear(M00, fence_answer(1, request.switch, 0, unbroken=True, table=TABLE))
    return bench


def test_a_member_that_gets_on_with_its_blocks_has_the_time() -> None:
    bench = _switcher()
    (request,) = bench.sent(msg.PrepareRequest, M10)
    assert (request.table, request.source) == (TABLE, M00)
    for missing_bytes in (40_000_000, 20_000_000, 1):
        bench.hear(M10, msg.PrepareAnswer(P, 2, request.switch_attempt, 1, "", missing_bytes))
        bench.wait(bench.config.transfer_us(missing_bytes), (M00, M01, M10, M11, M21))
        assert bench.part.switch is not None
        assert bench.part.switch.opening.switch_attempt == request.switch_attempt
    for member in (M10, M11):
        bench.hear(member, msg.PrepareAnswer(P, 2, request.switch_attempt, 1, ""))
    assert bench.all(fx.WriteChain)[-1].chain.open_segment.switch_attempt == request.switch_attempt


def test_a_fenced_member_names_its_blocks() -> None:
    bench = opened_master(config=MANY)
    bench.link(M20)
    bench.link(M21)
    make_block(bench)
    bench.hear(M20, msg.FenceRequest(P, 1, attempt(1), b"s" * 16))
    bench.persist()
    (answer,) = bench.sent(msg.FenceAnswer, M20)
    assert (len(answer.table.blocks), answer.table.row_count) == (1, 13)


def test_a_restarted_member_makes_blocks_and_sets_no_timer_before_it_is_ready() -> None:
    """Ticks are not for a core that is not ready: a timer that is due would keep the process turning."""
    master = opened_master(config=MANY)
    make_block(master)
    batches = tuple(write.batch for write in master.writes(PutBatch))
    last_ms = master.part.logs[1].last_append_ms
    found = replace(recovered(1, batches, commit=batches[-1].header.end_index), last_append_ms=last_ms)
    bench = Bench(M01, 2, (RecoveredPartition(P, (found,)),), config=MANY)
    assert not [timer for timer in bench.core.state.timers.heap if timer.kind == "blocks"]
    table = bench.part.logs[1].live_table
    assert [block.producer_count for block in table.blocks] == [4]
    assert dict(table.items()).keys() == dict(master.part.logs[1].live_table.items()).keys()


def test_blocks_that_were_given_to_a_member_stay_when_it_restarts_until_they_are_offered_again() -> None:
    """All brokers restart. What the member was offered is not on its disk, and the one that offers has to start too."""
    bench = Bench(M10, 2, (RecoveredPartition(P, (), blocks=tuple(block.data for block in ALL)),))
    bench.link(M20)
    bench.link(M00)
    bench.read_chain(first_chain())
    bench.core.state.poll(0, "blocks", P)
    bench.wait(SECOND, (M00, M20))
    assert not bench.writes(DropBlock)
    _prepare(bench)
    assert bench.writes(PutPreparation), "and none has to be got in the switch"
    assert not bench.sent(msg.BlockRequest)


def test_blocks_that_a_start_found_go_when_others_are_offered_or_nobody_offers_for_long() -> None:
    for offered in (True, False):
        config = replace(BrokerConfig(), block_keep_us=3 * SECOND)
        bench = Bench(M10, 2, (RecoveredPartition(P, (), blocks=(FROM_1.data,)),), config=config)
        bench.link(M20)
        bench.link(M00)
        bench.core.state.poll(0, "blocks", P)
        bench.wait(SECOND, (M00, M20))
        assert not bench.writes(DropBlock)
        if offered:
            bench.hear(M00, msg.BlockOffer(P, 1, (FROM_2.id,)))
        for _ in range(1 if offered else 4):
            bench.wait(SECOND, (M00, M20))
        assert [write.block for write in bench.writes(DropBlock)] == [FROM_1.id]
