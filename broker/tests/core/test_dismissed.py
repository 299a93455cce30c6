"""Dismissed runs: certified to be over, or without their slot; connected or not, nothing that they say counts."""

from __future__ import annotations

import pytest
from seriatim_api.errors import RunOverError
from seriatim_api.ids import MemberId, RunId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import change_server

from .support import (
    GROUPS,
    M00,
    M01,
    M10,
    M11,
    SECOND,
    Bench,
    P,
    Serving,
    attempt,
    batches_of,
    first_chain,
    opened_master,
    opened_slave,
    replicate,
)

NEW_M01 = MemberId(M01.broker, "9" * 32)


def certify(bench: Bench, member: MemberId, run: int = 1) -> None:
    bench.do(ev.CertificateSeen(RunId(member, run)))


def give_slot_away(bench: Bench) -> None:
    """Another disk registers as g0-1."""
    members = [member for _, group in GROUPS for member in group]
    runs = tuple((NEW_M01 if member == M01 else member, 1) for member in members)
    bench.do(ev.DirectoryChanged((("g0", (M00,)), *GROUPS[1:]), runs))


DISMISSALS = {"certified": lambda bench: certify(bench, M01), "replaced": give_slot_away}


@pytest.mark.parametrize("how", DISMISSALS)
def test_a_master_does_not_count_a_dismissed_follower_and_switches(how: str) -> None:
    bench = opened_master()
    request = bench.append(0, starts=True)
    bench.persist()
    DISMISSALS[how](bench)
    assert bench.all(fx.Disconnect) == [fx.Disconnect(M01.broker, 1)]
    bench.ack(M01, 1)
    assert request not in bench.accepted()
    assert bench.part.switch is not None
    assert bench.part.switch.reason == "peer dead"


@pytest.mark.parametrize("how", DISMISSALS)
def test_a_dismissed_run_that_connects_again_is_cut_again(how: str) -> None:
    bench = opened_master()
    DISMISSALS[how](bench)
    bench.clear()
    bench.link(M01)
    assert bench.all(fx.Disconnect) == [fx.Disconnect(M01.broker, 2)]
    bench.hear(M01, msg.TailAnswer(P, 1, attempt(1), 0, 0, 0))
    assert not bench.sent(msg.Replicate, M01)
    assert not bench.core.state.is_linked(M01)
    assert bench.core.state.is_gone(M01)


def test_a_later_run_of_the_same_disk_is_welcome() -> None:
    bench = opened_master()
    certify(bench, M01)
    bench.clear()
    bench.link(M01, run=2)
    assert not bench.all(fx.Disconnect)
    assert bench.core.state.is_linked(M01)


def test_the_disk_that_has_the_slot_now_is_welcome() -> None:
    bench = opened_master()
    give_slot_away(bench)
    bench.clear()
    bench.link(NEW_M01)
    assert not bench.all(fx.Disconnect)
    assert bench.core.state.is_linked(NEW_M01)


def test_a_disk_that_is_not_known_yet_is_not_taken_for_a_former_one() -> None:
    bench = opened_master()
    bench.link(NEW_M01)
    assert bench.core.state.is_linked(NEW_M01)


def test_a_slave_follows_a_dismissed_master_no_more_and_switches() -> None:
    bench = opened_slave()
    batches = batches_of(1, [1, 1])
    replicate(bench, batches[:1])
    certify(bench, M00)
    bench.persist()
    assert not bench.sent(msg.ReplicateAck), "what waited for the disk is not acknowledged either"
    replicate(bench, batches[1:])
    assert bench.part.logs[1].tail == 1
    assert bench.part.switch is not None


def test_what_a_dismissed_member_prepared_does_not_count() -> None:
    bench = opened_master()
    for member in (M10, M11):
        bench.link(member)
    bench.do(ev.SwitchAwayFrom(P, 1))
    bench.read_chain(first_chain())
    bench.persist()
    running = bench.part.switch
    assert running is not None
    asked = bench.sent(msg.PrepareRequest, M10)
    assert asked
    certify(bench, M11)
    bench.hear(M10, msg.PrepareAnswer(P, 2, asked[-1].switch_attempt, 1, ""))
    bench.hear(M11, msg.PrepareAnswer(P, 2, asked[-1].switch_attempt, 1, ""))
    assert not bench.all(fx.WriteChain)
    assert running.opening.broker_group != "g1"


def test_a_run_that_reads_its_own_certificate_ends_and_does_nothing_more() -> None:
    bench = opened_master()
    request = bench.append(0, starts=True)
    bench.persist()
    bench.clear()
    certify(bench, M00)
    (end,) = bench.effects
    assert isinstance(end, fx.EndMemberRun)
    assert isinstance(end.error, RunOverError)
    assert "run 1" in str(end.error)
    bench.clear()
    bench.ack(M01, 1)
    bench.wait(SECOND)
    assert not bench.effects
    assert request not in bench.accepted()


def test_the_certificate_that_a_switch_reads_ends_its_own_run_too() -> None:
    bench = opened_master()
    bench.clear()
    bench.do(ev.CertificateRead(P, RunId(M00, 1), True))
    assert [type(effect) for effect in bench.effects] == [fx.EndMemberRun]


@pytest.mark.parametrize("run", [RunId(M00, 1), RunId(MemberId(M00.broker, "8" * 32), 7)])
def test_certificates_of_earlier_runs_and_disks_end_nothing(run: RunId) -> None:
    bench = Bench(run=2)
    bench.do(ev.CertificateSeen(run))
    assert not bench.all(fx.EndMemberRun)


def test_a_new_server_waits_for_the_lease_of_one_that_was_connected_when_it_was_certified() -> None:
    """A certificate proves that the old server delivers nothing more, unless it is false: so it waits."""
    bench = Serving(M01)
    bench.link(M00)
    certify(bench, M00)
    bench.read_chain(change_server(bench.chain, 1, M01, (M00,)))
    right = bench.part.rights[1]
    assert right.from_us >= bench.now_us + bench.config.serve_lease_us
    certify(bench, M00, run=2)
    assert right.from_us >= bench.now_us + bench.config.serve_lease_us


def test_a_run_ends_when_a_later_run_of_its_disk_registers() -> None:
    bench = Bench(M00, run=3)
    bench.do(ev.DirectoryChanged(GROUPS, ((M00, 3),)))
    assert not bench.all(fx.EndMemberRun)
    bench.do(ev.DirectoryChanged(GROUPS, ((M00, 4),)))
    (end,) = bench.all(fx.EndMemberRun)
    assert "run 4" in end.error.message
