"""A coordinator that reads and refuses to write: who waits how long, and what members keep of switches meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.errors import CoordinatorRefusedError
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.log import DropPreparation, PutPreparation
from seriatim_broker.core.values.producers import NO_TABLE

from .support import CONFLICT, M00, M01, M10, M11, M20, M21, MS, UNKNOWN, Bench, P, attempt, batches_of, first_chain
from .test_consumer_groups import cross, served
from .test_switch import asked_to_prepare, fenced, prepare_answers, switcher

REFUSED = ev.WriteOutcome.REFUSED
ALL = (M00, M01, M10, M11, M21)


def tried() -> Bench:
    """A switcher whose transaction is on its way."""
    bench = switcher()
    fenced(bench, M00, 0, unbroken=True)
    prepare_answers(bench, M10, M11)
    return bench


def refused_and_tried_again(bench: Bench) -> None:
    """The write is refused, the record is as it was, and after a pause the switch comes as far again."""
    bench.written(REFUSED)
    bench.read_chain(first_chain())
    bench.wait(bench.config.refused_us_max, ALL)
    bench.clear()
    bench.do(ev.ChainRead(P, first_chain(), bench.revision, failed=False))
    fenced(bench, M00, 0, unbroken=True)
    prepare_answers(bench, M10, M11)


def test_a_refused_switch_pauses_longer_each_time() -> None:
    bench = tried()
    for pause_us in (250 * MS, 500 * MS, 1000 * MS, 2000 * MS):
        bench.written(REFUSED)
        bench.read_chain(first_chain())
        bench.clear()
        bench.wait(pause_us - 10 * MS, ALL)
        assert not bench.all(fx.ReadChain)
        assert not bench.sent(msg.FenceRequest)
        bench.wait(20 * MS, ALL)
        assert len(bench.all(fx.ReadChain)) == 1
        bench.read_chain(first_chain())
        fenced(bench, M00, 0, unbroken=True)
        prepare_answers(bench, M10, M11)


def test_while_all_writes_are_refused_nothing_is_fenced() -> None:
    bench = Bench(M20)
    for member in ALL:
        bench.link(member)
    bench.do(ev.WritesRefused(True))
    bench.do(ev.SwitchAwayFrom(P, 1))
    bench.wait(3 * bench.config.refused_us_max, ALL)
    assert not bench.all(fx.ReadChain)
    bench.do(ev.WritesRefused(False))
    bench.read_chain(first_chain())
    assert bench.sent(msg.FenceRequest)


def test_who_plans_a_switch_meanwhile_is_told_and_the_segment_stays_open() -> None:
    bench = switcher()
    bench.part.switch = None
    bench.clear()
    bench.do(ev.WritesRefused(True))
    bench.do(ev.PlanSwitch(7, P))
    (answer,) = bench.all(fx.Resolved)
    assert isinstance(answer.error, CoordinatorRefusedError)
    assert not bench.sent(msg.QuiesceRequest)


def test_the_same_content_is_prepared_under_the_same_attempt() -> None:
    bench = tried()
    first = asked_to_prepare(bench)[-1][1]
    for _ in range(3):
        refused_and_tried_again(bench)
        again = asked_to_prepare(bench)[-1][1]
        assert again == first
    assert len(bench.core.state.switch_attempts[P]) == 1


def test_a_refused_write_may_have_been_kept_and_then_the_switch_is_over() -> None:
    bench = tried()
    write = bench.all(fx.WriteChain)[-1]
    bench.written(REFUSED)
    bench.read_chain(write.chain)
    assert P not in bench.core.partitions, "a broker that is no member has nothing left to do"
    assert not bench.core.state.switch_attempts


@pytest.mark.parametrize(("outcome", "is_decided"), [(CONFLICT, True), (UNKNOWN, False), (REFUSED, False)])
def test_only_an_attempt_that_can_never_be_chosen_is_replaced(outcome: ev.WriteOutcome, is_decided: bool) -> None:
    bench = tried()
    first = asked_to_prepare(bench)[-1][1].switch_attempt
    chain = replace(first_chain(), epoch=2) if outcome is CONFLICT else first_chain()  # a broker wrote another field
    bench.written(outcome)
    bench.read_chain(chain)
    if outcome is REFUSED:
        bench.wait(bench.config.refused_us_max, ALL)
        bench.clear()
        bench.read_chain(chain)
    else:
        bench.effects = bench.effects[-6:]
    request = bench.sent(msg.FenceRequest, M00)[-1]
    bench.clear()
    (batch,) = batches_of(1, (1,))
    answer = msg.FenceAnswer(P, 1, request.switch, True, 1, 5, True, 0, 0, NO_TABLE, False, (batch,))
    bench.hear(M00, answer)
    second = asked_to_prepare(bench)[-1][1]
    assert second.switch_attempt != first
    assert second.replaces == ((first,) if is_decided else ())


def test_an_attempt_of_unknown_end_is_replaced_once_the_record_has_passed_it() -> None:
    bench = tried()
    first = asked_to_prepare(bench)[-1][1].switch_attempt
    bench.written(UNKNOWN)
    bench.clear()
    bench.read_chain(replace(first_chain(), epoch=2))  # by another write: what it compared does not hold any more
    (request,) = bench.sent(msg.FenceRequest, M00)
    (batch,) = batches_of(1, (1,))
    bench.hear(M00, msg.FenceAnswer(P, 1, request.switch, True, 1, 5, True, 0, 0, NO_TABLE, False, (batch,)))
    assert asked_to_prepare(bench)[-1][1].replaces == (first,)


def test_a_member_forgets_what_is_replaced() -> None:
    bench = Bench(M10)
    bench.link(M20)
    bench.prepare(2, (M10, M11), M20, name=b"first-----------")
    bench.prepare(2, (M10, M11), M20, name=b"second----------")
    assert len(bench.writes(PutPreparation)) == 2
    request = msg.PrepareRequest(
        P, 2, attempt(2), (M10, M11), True, False, NO_TABLE, None, (b"first-----------", b"unknown---------")
    )
    bench.hear(M20, request)
    assert [drop.switch_attempt for drop in bench.writes(DropPreparation)] == [b"first-----------"]
    assert {name for _, name in bench.part.preparations} == {b"second----------", attempt(2)}


def test_a_member_that_has_restarted_is_asked_under_another_attempt_at_once() -> None:
    bench = tried()
    first = asked_to_prepare(bench)[-1][1]
    bench.written(CONFLICT)
    bench.clear()
    bench.read_chain(replace(first_chain(), epoch=2))
    fenced(bench, M00, 0, unbroken=True)
    assert asked_to_prepare(bench)[-1][1].switch_attempt == first.switch_attempt
    prepare_answers(bench, M10, refusal="voided")
    again = asked_to_prepare(bench)[-1][1]
    assert again.members == first.members
    assert again.switch_attempt != first.switch_attempt


def test_a_refused_crossing_waits_and_is_tried_again() -> None:
    bench = served()
    write = cross(bench)
    bench.clear()
    bench.do(ev.CursorWritten(P, write.consumer_group, write.serial, REFUSED, 0))
    assert not bench.all(fx.ReadCursor)
    bench.wait(bench.config.refused_us - 10 * MS, (M01,))
    assert not bench.all(fx.ReadCursor)
    assert not bench.all(fx.WriteCursor)
    bench.wait(20 * MS, (M01,))
    assert bench.all(fx.ReadCursor)
    assert not bench.delivered(fx.EndOfSegment)


def test_a_group_does_not_cross_while_all_writes_are_refused() -> None:
    bench = served()
    bench.do(ev.WritesRefused(True))
    bench.ack(bench.length - 1)
    bench.persist_everywhere()
    assert not bench.all(fx.WriteCursor)
    bench.do(ev.WritesRefused(False))
    assert bench.all(fx.WriteCursor)
