"""Empty segments leave the record of a chain. A reader that names such a number continues at the next segment."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_broker.core.control.rebuild import plan_chain
from seriatim_broker.core.peers.lost_decisions import contradiction
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import (
    FOLDED_MAX,
    Chain,
    Seal,
    check,
    declare_lost,
    foldable,
    open_over,
    seal_and_open,
    settle,
)
from seriatim_broker.core.values.keyed import ConsumerGroupSettings, ConsumerMode
from seriatim_broker.core.values.log import (
    CursorState,
    DropCursor,
    DropSegment,
    PutChain,
    PutCursor,
    RecoveredPartition,
)
from seriatim_broker.core.values.segment import SegmentState

from .support import (
    GROUP,
    M00,
    M01,
    M10,
    M11,
    M20,
    M21,
    TOPIC,
    Bench,
    P,
    Serving,
    batches_of,
    control_record,
    fence_answer,
    first_chain,
    opened_master,
    opening,
    recovered,
    sealed_chain,
    segment_of,
)


def switched(chain: Chain, length: int = 0, *, incomplete: bool = False, **seal: object) -> Chain:
    """The record after one more switch."""
    old = chain.open_segment
    given: dict[str, object] = {"tail_from": None, "tail_copies": (), "eligible": old.members, "size_bytes": 0, **seal}
    sealed = Seal(length=length, checksum=0, server=old.server, **given)  # type: ignore[arg-type]
    members = (M10, M11) if old.no % 2 else (M00, M01)
    return seal_and_open(chain, sealed, opening(old.no + 1, members, incomplete=incomplete), 0)


def numbers(chain: Chain) -> list[int]:
    return [segment.no for segment in chain.segments]


# ---- the record -----------------------------------------------------------------------------------------


def test_empty_switches_leave_two_segments_however_many_there_are() -> None:
    """Before: one segment for each. A client that complains every four seconds brings about 150,000 in a week."""
    count = 2_000
    chain = switched(first_chain(), 5)
    for _ in range(count):
        chain = switched(chain)
    check(chain)
    last = count + 2
    assert numbers(chain) == [1, last - 1, last]
    assert segment_of(chain, last - 1).folded == count - 1
    assert chain.open_segment.base == 5


def test_many_empty_segments_are_folded_a_few_at_a_time() -> None:
    chain = switched(first_chain(), 5)
    for no in range(3, 12):
        chain = open_over(chain, opening(no, (M00, M01), incomplete=True), 0)
    for no in range(2, 11):
        chain = settle(chain, no, Seal(0, 0, M10, (M10,), None, (), 0))
    assert len(switched(chain, incomplete=True).segments) == len(chain.segments) + 1 - FOLDED_MAX
    for _ in range(4):
        chain = switched(chain, incomplete=True)
    assert len(chain.segments) == 4, "the first empty one has a complete table"


def test_segments_with_messages_stay() -> None:
    chain = first_chain()
    for length in (0, 3, 0, 0, 2, 0, 0):
        chain = switched(chain, length)
    assert [(segment.no, segment.sealed_len, segment.base) for segment in chain.segments] == [
        (2, 3, 0), (5, 2, 3), (7, 0, 5), (8, None, 5),
    ]  # fmt: skip


def test_every_number_is_known_folded_or_not_there() -> None:
    chain = first_chain()
    for length in (0, 3, 0, 0, 2, 0, 0):
        chain = switched(chain, length)
    assert [no for no in range(12) if chain.is_folded(no)] == [1, 3, 4, 6]
    following = {no: segment.no for no in range(9) if (segment := chain.from_no(no)) is not None}
    assert following == {0: 2, 1: 2, 2: 2, 3: 5, 4: 5, 5: 5, 6: 7, 7: 7, 8: 8}
    assert chain.from_no(9) is None


def test_an_unsettled_segment_is_not_folded_until_it_is_settled_as_empty() -> None:
    chain = open_over(switched(first_chain(), 5), opening(3, (M00, M01), incomplete=True), 0)
    chain = switched(chain, incomplete=True)
    assert numbers(chain) == [1, 2, 3, 4]
    settled = settle(chain, 2, Seal(0, 0, M10, (M10,), None, (), 0))
    assert numbers(switched(settled, incomplete=True)) == [1, 2, 4, 5], "3 is incomplete, 2 waits for its turn"


def test_a_lost_segment_is_never_folded() -> None:
    chain = switched(switched(first_chain()))
    lost = declare_lost(chain, chain.segments[-2].no)
    assert segment_of(lost, 2).sealed_len == 0
    assert foldable(lost, next_is_incomplete=False) == ()


def test_the_keepers_of_a_tail_stay_until_two_members_are_whole() -> None:
    """`folds-with-tail`: members of segment 2 keep what only one member of segment 1 has."""
    chain = switched(first_chain(), 5, tail_from=4, tail_copies=(M10, M11), eligible=(M00,))
    chain = switched(chain)
    assert foldable(chain, next_is_incomplete=False) == ()
    whole = replace(segment_of(chain, 1), eligible=(M00, M01))
    healed = replace(chain, segments=(whole, *chain.segments[1:]))
    assert [segment.no for segment in foldable(healed, next_is_incomplete=False)] == [2]


@pytest.mark.parametrize(
    ("marks", "folds"),
    [
        ((False, False, False), True),
        ((False, False, True), False),
        ((False, True, True), False),
        ((True, True, True), True),
        ((True, True, False), True),
    ],
)
def test_tables_that_members_forgot_are_not_needed_again(marks: tuple[bool, bool, bool], folds: bool) -> None:
    """`folds-with-table`: of the empty segment, of the one after it, and of the one that is opened."""
    chain = switched(switched(first_chain(), 5, incomplete=marks[0]), incomplete=marks[1])
    assert bool(foldable(chain, next_is_incomplete=marks[2])) is folds


# ---- who folds ------------------------------------------------------------------------------------------


def test_a_switch_folds_the_empty_segment_before_the_open_one() -> None:
    bench = Bench(M20)
    for member in (M00, M01, M10, M11, M21):
        bench.link(member)
    chain = sealed_chain(sealed_chain(first_chain(), 5, 7), 0, 0, (M00, M01))
    bench.do(ev.SwitchAwayFrom(P, 3))
    bench.read_chain(chain)
    assert bench.part.switch is not None
    bench.hear(M01, fence_answer(3, bench.part.switch.id, 2))
    (request,) = bench.sent(msg.FenceRequest, M00)
    bench.hear(M00, fence_answer(3, request.switch, 2))
    for effect in bench.all(fx.Send):
        if isinstance(effect.message, msg.PrepareRequest):
            ask = effect.message
            member = next(member for member in (M10, M11, M21) if member.broker == effect.broker)
            bench.hear(member, msg.PrepareAnswer(P, 4, ask.switch_attempt, 1, ""))
    bench.persist()
    (write,) = bench.all(fx.WriteChain)
    assert numbers(write.chain) == [1, 3, 4]


# ---- members --------------------------------------------------------------------------------------------


def test_the_members_drop_the_log_and_the_record_of_it() -> None:
    bench = opened_master()
    chain = switched(first_chain())
    bench.read_chain(chain)
    bench.clear()
    bench.read_chain(switched(chain))
    assert 1 not in bench.part.logs
    assert [write.segment_no for write in bench.writes(DropSegment)] == [1]
    assert [write.gone for write in bench.writes(PutChain)] == [(1,)]


def test_a_master_that_missed_the_seal_answers_its_producers_failed() -> None:
    bench = opened_master()
    bench.append(0, starts=True)
    bench.persist()
    assert bench.part.logs[1].waiting
    bench.clear()
    bench.read_chain(switched(switched(first_chain())))
    bench.persist()
    assert not bench.accepted()
    assert [error.outcome_known for error in bench.refused().values()] == [True]
    assert 1 not in bench.part.logs


def test_a_member_that_was_away_drops_what_it_had_fenced() -> None:
    bench = Bench(run=2, found=(RecoveredPartition(P, (recovered(1, batches_of(1, (1, 1))),), (), (), ()),))
    bench.read_chain(switched(switched(first_chain())))
    assert 1 not in bench.part.logs
    assert [write.segment_no for write in bench.writes(DropSegment)] == [1]
    assert [log.no for log in bench.part.unsealed_logs()] == [3], "the open one"


def test_committed_messages_in_a_folded_segment_are_kept_for_a_person() -> None:
    found = recovered(1, batches_of(1, (1, 1)), commit=2)
    bench = Bench(run=2, found=(RecoveredPartition(P, (found,), (), (), ()),))
    bench.read_chain(switched(switched(first_chain())))
    assert bench.core.quarantined_logs() == [(P, 1, 0, 2)]
    assert not bench.writes(DropSegment)


def test_a_late_switcher_of_a_folded_segment_is_told_the_record() -> None:
    bench = opened_master()
    bench.link(M20)
    bench.read_chain(switched(switched(first_chain())))
    bench.clear()
    bench.hear(M20, msg.FenceRequest(P, 1, b"attempt-00000001", b"switch"))
    assert bench.sent(msg.ChainUpdate, M20)
    assert not bench.sent(msg.FenceAnswer)


# ---- groups ---------------------------------------------------------------------------------------------


def folded_behind(bench: Serving) -> Chain:
    """Segment 1 has messages, 2 is folded, 3 is empty, 4 is open."""
    assert bench.part.chain is not None
    return switched(switched(bench.part.chain))


def test_a_group_crosses_to_the_next_number_that_is_there() -> None:
    bench = Serving()
    bench.serve()
    bench.read_chain(folded_behind(bench))
    bench.ack(bench.length - 1)
    bench.persist_everywhere()
    assert bench.all(fx.WriteCursor)[-1].record == ev.CursorRecord(3, 1, 0, TOPIC)


def test_a_group_that_stands_in_a_folded_segment_goes_on_in_the_same_epoch() -> None:
    """`leaves-folded`: whichever broker is asked writes the cursor; a consumer hears of no gap and of no end."""
    bench = Serving()
    bench.read_chain(folded_behind(bench))
    bench.join()
    bench.clear()
    bench.cursor(no=2, epoch=4)
    (write,) = bench.all(fx.WriteCursor)
    assert write.record == ev.CursorRecord(3, 4, 0, TOPIC)
    bench.do(ev.CursorWritten(P, GROUP, write.serial, ev.WriteOutcome.DONE, 6))
    assert not bench.delivered(fx.Gap)
    assert not bench.delivered(fx.EndOfSegment)
    assert bench.all(fx.ReadCursor)


def test_control_records_of_a_folded_segment_go_on_at_the_next_one() -> None:
    known = ConsumerGroupSettings(ConsumerMode.KEY_ORDERED)
    bench = Serving(cursors=(CursorState(2, GROUP, 4, 0, 0, settings=known, term_base=9),))
    assert bench.part.cursor_in(2, GROUP) is not None
    bench.read_chain(folded_behind(bench))
    assert bench.part.cursor_in(2, GROUP) is None
    chain = bench.part.chain
    following = chain.segment(3) if chain is not None else None
    assert chain is not None
    assert following is not None
    term = 9 + chain.epoch + 1  # above all that the folded segment can have had
    moved = CursorState(3, GROUP, 4, 0, 0, settings=known, term_base=term - following.server_epoch)
    assert bench.part.cursor_in(3, GROUP) == moved, "what is reported to a rebuild, if the coordinator loses the cursor"
    assert bench.writes(DropCursor) == [DropCursor(P, 2, GROUP)]
    assert bench.writes(PutCursor)[-1].cursor == moved


def test_a_control_record_goes_with_its_segment_also_where_no_log_of_that_is() -> None:
    bench = Serving(cursors=(control_record(4, GROUP, 1, 0, 0),))
    chain = folded_behind(bench)
    bench.read_chain(chain)
    assert 4 not in bench.part.logs
    assert bench.part.cursor_in(4, GROUP) is not None
    following = switched(chain, 1)
    bench.read_chain(replace(following, segments=following.segments[-1:]))
    assert not bench.part.cursors
    assert bench.writes(DropCursor) == [DropCursor(P, 4, GROUP)]


# ---- a coordinator that went back -----------------------------------------------------------------------


def test_a_record_in_which_a_folded_segment_is_open_again_contradicts() -> None:
    before = switched(first_chain(), 5)
    known = switched(switched(before))
    restored = replace(before, epoch=known.epoch + 3)
    assert known.is_folded(2)
    assert "ends with segment 2" in contradiction(known, restored)
    assert not contradiction(before, known)


def test_a_record_that_folds_a_segment_with_messages_contradicts() -> None:
    chain = switched(first_chain(), 5)
    folds = switched(switched(switched(chain)))
    has_data = switched(chain, 3)
    assert folds.is_folded(2)
    assert plan_chain(P, {"a": folds, "b": has_data}, None).conflict
    last = replace(has_data, segments=has_data.segments[:-1])
    assert "sealed twice" in contradiction(last, folds)


def test_states_that_may_be_folded() -> None:
    """Only SEALED. If you add a state, decide here."""
    chain = switched(switched(first_chain()))
    empty = chain.segments[-2]
    for state in SegmentState:
        changed = replace(chain, segments=(*chain.segments[:-2], replace(empty, state=state), chain.open_segment))
        assert bool(foldable(changed, next_is_incomplete=False)) is (state is SegmentState.SEALED)
