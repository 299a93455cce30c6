"""A handoff whose transaction had no answer: nothing is granted before it is known what has become of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.chain import remove_eligible

from .support import GROUP, M01, SECOND, P
from .test_forwarding import handed_over


@pytest.mark.parametrize("is_unknown", [True, False])
def test_refusal_after_a_try_without_an_answer(is_unknown: bool) -> None:
    bench, written = handed_over()
    handing = bench.keyed.handoff.outgoing
    if is_unknown:
        bench.do(ev.CursorWritten(P, GROUP, written.serial, ev.WriteOutcome.UNKNOWN, 0))
        bench.cursor()
        written = bench.all(fx.WriteCursor)[1]
    bench.do(ev.CursorWritten(P, GROUP, written.serial, ev.WriteOutcome.REFUSED, 0))
    bench.wait(2 * SECOND, (M01,))
    bench.cursor()
    assert (bench.keyed.handoff.outgoing is handing) == is_unknown, "the first try may still be carried out"


@pytest.mark.parametrize("is_unknown", [False, True])
def test_unanswered_handoff_outlives_a_rebuild(is_unknown: bool) -> None:
    """Rule `under-way-stays`: the write may still be carried out."""
    bench, written = handed_over()
    handing = bench.keyed.handoff.outgoing
    if is_unknown:
        bench.do(ev.CursorWritten(P, GROUP, written.serial, ev.WriteOutcome.UNKNOWN, 0))
        bench.cursor()
    bench.clear()
    bench.do(ev.CoordinatorRebuilt())
    bench.look_up()
    assert bench.keyed.handoff.outgoing is handing
    assert not bench.delivered(fx.Joined)
    assert bench.granted() == []


@pytest.mark.parametrize("leaves_late", [False, True])
def test_hand_over_under_way_when_the_last_consumer_leaves(leaves_late: bool) -> None:
    """Rule `under-way-is-kept`: a consumer that joins at once gets nothing before the outcome is known."""
    bench, written = handed_over()
    handing = bench.keyed.handoff.outgoing
    if not leaves_late:
        bench.do(ev.ConsumerGone(1))
    bench.do(ev.CursorWritten(P, GROUP, written.serial, ev.WriteOutcome.UNKNOWN, 0))
    if leaves_late:
        bench.do(ev.ConsumerGone(1))
    bench.cursor()
    bench.join(subscription=2)
    bench.cursor()
    for _ in range(4):
        bench.deliver()
    assert bench.keyed.handoff.outgoing is handing
    assert bench.granted() == []
    again = bench.all(fx.WriteCursor)[1]
    assert again.record == written.record
    bench.do(ev.CursorWritten(P, GROUP, again.serial, ev.WriteOutcome.DONE, 9))
    assert bench.delivered(fx.EndOfSegment)
    assert GROUP not in bench.part.consumer_groups


def test_unanswered_handoff_of_a_server_without_the_right() -> None:
    """Rule `unknown-is-repeated`: a newer chain record does not say what has become of the transaction."""
    bench, written = handed_over()
    cursor = bench.part.consumer_groups[GROUP].cursor
    bench.do(ev.ConsumerGone(1))
    bench.do(ev.CursorWritten(P, GROUP, written.serial, ev.WriteOutcome.UNKNOWN, 0))
    bench.wait(2 * SECOND)  # the other member is silent
    bench.cursor()
    again = bench.all(fx.WriteCursor)[1]
    assert replace(again, serial=written.serial) == written
    bench.join(subscription=2)
    bench.do(ev.CursorWritten(P, GROUP, again.serial, ev.WriteOutcome.UNKNOWN, 0))
    bench.read_chain(remove_eligible(bench.chain, 1, (M01,)))
    bench.cursor()
    for _ in range(4):
        bench.deliver()
    assert bench.granted() == []
    last = bench.all(fx.WriteCursor)[2]
    assert replace(last, serial=written.serial) == written
    bench.do(ev.CursorWritten(P, GROUP, last.serial, ev.WriteOutcome.CONFLICT, 0))
    bench.do(ev.CursorRead(P, GROUP, cursor, 5, known_revision=5))  # begun before the transaction was carried out
    for _ in range(4):
        bench.deliver()
    assert bench.granted() == []
    bench.wait(SECOND, (M01,))
    (*_, read) = bench.all(fx.ReadCursor)
    bench.do(ev.CursorRead(P, GROUP, written.record, 9, known_revision=read.known_revision))
    assert bench.delivered(fx.EndOfSegment)
