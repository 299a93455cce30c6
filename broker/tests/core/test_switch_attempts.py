"""Switch attempts: which id belongs to which content, and what a member does with messages that come late."""

from __future__ import annotations

from seriatim_api.ids import MemberId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.producers import Table

from .support import M00, M01, M10, M11, M20, M21, MS, Bench, P, fence_answer, first_chain
from .test_idle_blocks import ALL, LIVE, TABLE, _target
from .test_switch import asked_to_prepare

OTHERS = (M00, M01, M10, M11, M21)
A, B = b"A" * 16, b"B" * 16


def link(bench: Bench, *members: MemberId) -> None:
    for member in members:
        bench.link(member)


def asked_in_a_try(bench: Bench, member: MemberId, table: Table, *, unbroken: bool = False) -> msg.PrepareRequest:
    """What M10 is asked if only that member answers the fence, and no member answers to prepare."""
    while not bench.sent(msg.FenceRequest, member):
        bench.wait(100 * MS, OTHERS)
        if bench.part.reading:
            bench.read_chain(first_chain())
    request = bench.sent(msg.FenceRequest, member)[-1]
    bench.clear()
    bench.hear(member, fence_answer(1, request.switch, 1, unbroken=unbroken, commit=1, table=table))
    for _ in range(100):
        if bench.part.switch is None or bench.part.switch.phase.value in ("paused", "reading"):
            break
        bench.wait(100 * MS, OTHERS)
    found: list[msg.PrepareRequest] = [message for to, message in asked_to_prepare(bench) if to == M10.broker]
    bench.clear()
    return found[0]


def test_an_attempt_that_members_may_forget_is_not_used_again() -> None:
    """Otherwise a late message about its first use would count as one about its second use."""
    bench = Bench(M20)
    link(bench, *OTHERS)
    bench.do(ev.SwitchAwayFrom(P, 1))
    bench.read_chain(first_chain())
    one = asked_in_a_try(bench, M01, LIVE)
    two = asked_in_a_try(bench, M00, TABLE, unbroken=True)
    three = asked_in_a_try(bench, M01, LIVE)
    assert one.switch_attempt in two.replaces
    assert two.switch_attempt in three.replaces
    assert three.switch_attempt not in (one.switch_attempt, two.switch_attempt)


def test_a_preparation_that_waited_for_blocks_drops_nothing_when_they_come() -> None:
    bench = _target()
    for attempt, table, replaces in ((B, LIVE, ()), (A, TABLE, (B,)), (B, LIVE, (A,))):
        bench.hear(M20, msg.PrepareRequest(P, 2, attempt, (M10, M11), True, False, table, None, replaces, M00))
        bench.persist()
    assert bench.sent(msg.PrepareAnswer, M20)[-1] == msg.PrepareAnswer(P, 2, B, 1, "")
    bench.hear(M00, msg.BlockAnswer(P, tuple(block.data for block in ALL)))
    bench.persist()
    assert (2, B) in bench.part.preparations


def test_a_switcher_connects_to_the_next_group_also_for_a_table_with_blocks() -> None:
    bench = Bench(M20)
    link(bench, M00, M01)
    bench.do(ev.SwitchAwayFrom(P, 1))
    bench.read_chain(first_chain())
    bench.unlink(M00, refused=True)
    for _ in range(5):
        for request in bench.sent(msg.FenceRequest, M01)[-1:]:
            bench.hear(M01, fence_answer(1, request.switch, 1, commit=1, table=TABLE))
        bench.wait(200 * MS, (M01,))
        if bench.part.reading:
            bench.read_chain(first_chain())
    assert {"g1-0", "g1-1"} <= {effect.broker for effect in bench.all(fx.Connect)}
