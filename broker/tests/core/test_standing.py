"""The gate before a restart: what members say of their copies, and what is decided from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from seriatim_api.ids import MemberId
from seriatim_broker.core.control.restarts import Verdict, decide, judge, needs
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain, add_copy, declare_lost
from seriatim_broker.core.values.messages import CopyReport, Standing
from seriatim_broker.core.values.segment import SegmentState

from .support import (
    M00,
    M01,
    M10,
    M11,
    M20,
    M21,
    Bench,
    P,
    Serving,
    batches_of,
    checksum_of,
    first_chain,
    opened_master,
    opened_slave,
    replicate,
    sealed_chain,
    unsettled_chain,
)

BATCHES = batches_of(1, [1, 2, 1])
SEALED = sealed_chain(first_chain(), 4, checksum_of(BATCHES))
EVERYBODY = (M00, M01, M10, M11, M20, M21)


def told(bench: Bench, no: int = 1, without: MemberId = M01) -> CopyReport:
    """What a member says of one segment when it is asked by another."""
    if M21.broker not in bench.sessions:
        bench.link(M21)
    bench.clear()
    bench.hear(M21, msg.CopiesQuestion(9, without, ((P, no),)))
    (answer,) = bench.sent(msg.CopiesAnswer, M21)
    assert answer.serial == 9
    (report,) = answer.reports
    return report


# ---- what a member says ---------------------------------------------------------------------------------


def test_a_sealed_segment_is_whole_only_if_all_of_it_is_on_the_disk() -> None:
    assert told(Serving(M00)) == CopyReport(Standing.IN_SYNC, 5, 2)
    bench = opened_slave()
    replicate(bench, BATCHES)  # not durable yet
    bench.hear(M00, msg.ChainUpdate(SEALED, 105))
    assert bench.part.logs[1].is_in_sync
    assert told(bench).standing is Standing.PARTIAL
    bench.persist()
    assert told(bench) == CopyReport(Standing.IN_SYNC, 4, 2)
    lacking = opened_slave()
    replicate(lacking, BATCHES[:1])
    lacking.hear(M00, msg.ChainUpdate(SEALED, 105))
    lacking.persist()
    assert told(lacking) == CopyReport(Standing.PARTIAL, 1, 2)


def test_a_damaged_copy_is_not_whole() -> None:
    bench = Serving(M00)
    bench.do(ev.FoundDamage(P, 1))
    assert told(bench).standing is Standing.PARTIAL


def test_who_knows_nothing_says_so() -> None:
    assert told(Bench(M10)).standing is Standing.UNKNOWN
    assert told(opened_master(), no=2).standing is Standing.UNKNOWN


def test_only_an_unbroken_master_speaks_of_an_open_segment() -> None:
    bench = opened_slave()
    replicate(bench, BATCHES)
    bench.persist()
    assert told(bench).standing is Standing.PARTIAL


def test_an_open_segment_is_in_step_while_everybody_is_linked_and_there_is_a_place_to_go() -> None:
    bench = opened_master()
    bench.append(0, starts=True)
    bench.persist()
    bench.ack(M01, 1)
    assert told(bench) == CopyReport(Standing.NOWHERE_TO_GO, 1, 1)  # only one member of another group is linked
    bench.link(M20)
    assert told(bench) == CopyReport(Standing.IN_STEP, 1, 1)
    bench.unlink(M01)
    assert told(bench).standing is Standing.OUT_OF_STEP


def test_what_is_in_flight_does_not_count_and_what_is_committed_must_be_there() -> None:
    bench = opened_master()
    bench.link(M20)
    bench.append(0, starts=True)
    bench.persist()
    assert told(bench) == CopyReport(Standing.IN_STEP, 0, 1)
    bench.ack(M01, 1)
    follower = bench.part.logs[1].follower(M01)
    assert follower is not None
    follower.durable = 0  # as after a resumption that has not caught up
    assert told(bench).standing is Standing.OUT_OF_STEP


def test_three_members_can_spare_one_of_their_own() -> None:
    third = MemberId("g0-2", "9" * 32)
    bench = opened_master()
    bench.do(ev.DirectoryChanged((("g0", (M00, M01, third)),)))
    assert told(bench).standing is Standing.NOWHERE_TO_GO
    bench.link(third)
    assert told(bench).standing is Standing.IN_STEP
    bench.do(ev.DirectoryChanged((("g0", (M00, M01)),)))
    assert told(bench).standing is Standing.NOWHERE_TO_GO, "never on fewer than min_copies"


def test_an_answer_counts_once_and_only_from_who_was_asked() -> None:
    bench = Bench(M10)
    bench.link(M00)
    bench.link(M01)
    bench.do(ev.AskCopies(5, M00, M01, ((P, 1), (P, 2))))
    (question,) = bench.sent(msg.CopiesQuestion, M00)
    reports = (CopyReport(Standing.IN_SYNC, 4, 2), CopyReport(Standing.UNKNOWN, 0, 0))
    bench.hear(M01, msg.CopiesAnswer(question.serial, reports))
    bench.hear(M00, msg.CopiesAnswer(question.serial, reports[:1]))
    assert not bench.all(fx.CopiesTold)
    bench.hear(M00, msg.CopiesAnswer(question.serial, reports))
    bench.hear(M00, msg.CopiesAnswer(question.serial, reports))
    assert bench.all(fx.CopiesTold) == [fx.CopiesTold(5, reports)]


def test_a_broker_answers_itself() -> None:
    bench = Serving(M00)
    bench.do(ev.AskCopies(5, M00, M01, ((P, 1),)))
    assert bench.all(fx.CopiesTold) == [fx.CopiesTold(5, (CopyReport(Standing.IN_SYNC, 5, 2),))]


# ---- what is decided ------------------------------------------------------------------------------------


def verdict(
    chain: Chain, member: MemberId, reports: dict[tuple[MemberId, int], CopyReport], there: tuple[MemberId, ...] = ()
) -> Verdict | None:
    found = needs(chain, member)
    answers: dict[Any, CopyReport] = {(who, P, no): report for (who, no), report in reports.items()}
    deciding = decide([judge(need, answers, (there or EVERYBODY).__contains__) for need in found])
    return deciding.verdict if deciding is not None else None


def say(standing: Standing) -> CopyReport:
    return CopyReport(standing, 4, 2)


@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        (Standing.IN_STEP, Verdict.SAFE),
        (Standing.OUT_OF_STEP, Verdict.PEER_AWAY),
        (Standing.NOWHERE_TO_GO, Verdict.NO_OTHER_GROUP),
        (Standing.UNKNOWN, Verdict.UNKNOWN),
        (Standing.PARTIAL, Verdict.UNKNOWN),
        (Standing.IN_SYNC, Verdict.UNKNOWN),
        (None, Verdict.UNKNOWN),
    ],
)
def test_the_master_decides_about_an_open_segment(standing: Standing | None, expected: Verdict) -> None:
    reports = {(M00, 1): say(standing)} if standing is not None else {}
    assert verdict(first_chain(), M01, reports) is expected
    assert verdict(first_chain(), M00, reports) is expected
    assert verdict(first_chain(), M01, {(M01, 1): say(Standing.IN_STEP)}) is Verdict.UNKNOWN, "not asked"


def test_the_text_names_the_partition() -> None:
    (need,) = needs(first_chain(), M01)
    found = judge(need, {(M00, P, 1): say(Standing.IN_STEP)}, EVERYBODY.__contains__)
    assert found.text == "all members of segment 1 of orders/0 have all messages below its commit"


@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        (Standing.IN_SYNC, Verdict.SAFE),
        (Standing.PARTIAL, Verdict.LAST_COPY),
        (Standing.UNKNOWN, Verdict.LAST_COPY),
        (None, Verdict.UNKNOWN),
    ],
)
def test_another_whole_copy_decides_about_a_sealed_segment(standing: Standing | None, expected: Verdict) -> None:
    reports = {(M01, 1): say(standing)} if standing is not None else {}
    assert verdict(SEALED, M00, reports) is expected


def test_a_copy_on_a_member_that_is_not_there_does_not_count() -> None:
    assert verdict(SEALED, M00, {}, (M00, M10, M11)) is Verdict.PEER_AWAY
    assert verdict(SEALED, M00, {(M01, 1): say(Standing.IN_SYNC)}, (M00, M10, M11)) is Verdict.PEER_AWAY


def test_any_of_several_copies_will_do_and_a_silent_one_leaves_it_open() -> None:
    chain = add_copy(SEALED, 1, M20)
    assert verdict(chain, M00, {(M01, 1): say(Standing.PARTIAL), (M20, 1): say(Standing.IN_SYNC)}) is Verdict.SAFE
    assert verdict(chain, M00, {(M01, 1): say(Standing.PARTIAL)}) is Verdict.UNKNOWN
    assert verdict(chain, M00, {(M01, 1): say(Standing.PARTIAL)}, (M00, M01)) is Verdict.LAST_COPY


def test_an_unsettled_segment_keeps_its_members_and_a_lost_one_does_not() -> None:
    unsettled = unsettled_chain(first_chain())
    assert verdict(unsettled, M00, {(M01, 1): say(Standing.IN_SYNC)}) is Verdict.LAST_COPY
    assert verdict(declare_lost(unsettled, 1), M00, {}) is None


def test_the_worst_finding_decides() -> None:
    reports = {(M10, 2): say(Standing.OUT_OF_STEP), (M10, 1): say(Standing.PARTIAL)}
    chain = replace(SEALED, segments=(replace(SEALED.segments[0], members=(M10, M11), eligible=(M10, M11),
                                              server=M10), SEALED.segments[1]))  # fmt: skip
    assert verdict(chain, M11, reports) is Verdict.LAST_COPY
    assert verdict(chain, M11, {**reports, (M10, 1): say(Standing.IN_SYNC)}) is Verdict.PEER_AWAY
    assert verdict(chain, M20, {}) is None


def test_holders_of_a_tail_are_needed_as_well() -> None:
    chain = sealed_chain(first_chain(), 4, checksum_of(BATCHES), tail_from=3, eligible=(M00,))
    (tail, opened) = needs(chain, M10)
    assert (tail.segment_no, tail.state, tail.ask) == (1, SegmentState.SEALED, (M00, M01))
    assert (opened.segment_no, opened.ask) == (2, (M10,))
