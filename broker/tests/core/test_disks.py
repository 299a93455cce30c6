"""A disk that hangs while its process answers heartbeats: the member counts as silent."""

from __future__ import annotations

from seriatim_api.errors import DiskFullError
from seriatim_api.ids import MemberId
from seriatim_broker.core.peers import candidates, disks
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg

from .support import (
    M00,
    M01,
    M10,
    M11,
    M20,
    M21,
    MS,
    Bench,
    P,
    Serving,
    batches_of,
    opened_master,
    opened_slave,
    replicate,
)

HUNG_US = Bench().config.disk_hang_us + 1


def say_stalled(bench: Bench, member: MemberId, stall_us: int = HUNG_US) -> None:
    """The member answers a heartbeat, and says for how long its disk has completed nothing."""
    bench.hear(member, msg.HeartbeatAnswer(bench.now_us, (), stall_us))


def answer_of(bench: Bench, member: MemberId) -> msg.HeartbeatAnswer:
    """What this broker answers to a heartbeat of that member now."""
    bench.clear()
    bench.hear(member, msg.Heartbeat(bench.now_us))
    return bench.sent(msg.HeartbeatAnswer, member)[0]


def notes(bench: Bench) -> list[str]:
    """The names of what was reported to the operator."""
    return [note.name for note in bench.all(fx.Note)]


# ---- what a member says of itself -----------------------------------------------------------------------


def test_an_answer_says_for_how_long_a_write_has_waited() -> None:
    bench = opened_slave()
    assert answer_of(bench, M00).disk_stall_us == 0
    replicate(bench, batches_of(1, [1]))
    bench.now_us += 700 * MS
    assert answer_of(bench, M00).disk_stall_us == 700 * MS
    bench.persist()
    assert answer_of(bench, M00).disk_stall_us == 0


def test_a_disk_that_completes_some_of_the_writes_does_not_hang() -> None:
    bench = opened_slave()
    replicate(bench, batches_of(1, [1]))
    first = bench.token
    bench.now_us += 700 * MS
    replicate(bench, batches_of(1, [1, 1])[1:])
    bench.do(ev.Persisted(first))
    bench.now_us += 100 * MS
    assert answer_of(bench, M00).disk_stall_us == 100 * MS


def test_the_operator_is_told_once_when_the_disk_hangs_and_once_when_it_goes_on() -> None:
    bench = opened_slave()
    replicate(bench, batches_of(1, [1]))
    bench.clear()
    bench.wait(HUNG_US + 500 * MS, (M00,))
    assert notes(bench) == ["disk_hangs"]
    bench.clear()
    bench.persist()
    bench.wait(500 * MS, (M00,))
    assert notes(bench) == ["disk_goes_on"]


def test_a_process_that_slept_says_nothing_of_its_disk() -> None:
    bench = opened_slave()
    replicate(bench, batches_of(1, [1]))
    bench.wait(100 * MS, (M00,))
    bench.clear()
    bench.now_us += 2 * HUNG_US
    bench.do(ev.Tick())
    assert "disk_hangs" not in notes(bench)
    assert answer_of(bench, M00).disk_stall_us == 0


# ---- the open segment -----------------------------------------------------------------------------------


def test_a_master_switches_by_itself_when_the_disk_of_its_slave_hangs() -> None:
    bench = opened_master()
    say_stalled(bench, M01, HUNG_US - 1)
    assert bench.part.switch is None
    say_stalled(bench, M01)
    assert bench.part.switch is not None
    assert bench.part.switch.reason == "disk hangs"
    assert notes(bench) == ["peer_disk_hangs"]


def test_a_slave_switches_when_the_disk_of_its_master_hangs() -> None:
    bench = opened_slave()
    say_stalled(bench, M00)
    assert bench.part.switch is not None


def test_a_group_with_a_hung_disk_is_not_whole_and_is_whole_again_when_it_goes_on() -> None:
    bench = opened_master()
    for member in (M10, M11):
        bench.link(member)
    assert candidates.is_whole(bench.core.state, "g1")
    say_stalled(bench, M11)
    assert not candidates.is_whole(bench.core.state, "g1")
    assert candidates.usable_members(bench.core.state, "g1") == ()
    say_stalled(bench, M11, 0)
    assert candidates.is_whole(bench.core.state, "g1")


def test_a_new_connection_forgets_what_an_older_one_said() -> None:
    bench = opened_master()
    say_stalled(bench, M01)
    bench.link(M01)
    assert not disks.is_hung(bench.core.state, M01)


# ---- serving --------------------------------------------------------------------------------------------


def test_a_hung_eligible_member_is_removed_and_deliveries_go_on() -> None:
    bench = Serving()
    bench.serve()
    bench.ack(1)
    bench.clear()
    bench.wait(100 * MS, (M01,))  # the control record is sent, and M01 does not confirm it
    bench.persist()
    say_stalled(bench, M01)
    bench.wait(1)
    writes = bench.all(fx.WriteChain)
    assert writes
    assert writes[-1].chain.segments[0].eligible == (M00,)
    bench.written()
    assert bench.delivered(fx.AckConfirmed)


def test_a_hung_server_is_taken_over_from_though_it_answers() -> None:
    bench = Serving(M01)
    bench.link(M00)
    say_stalled(bench, M00, 0)
    bench.hear(M10_linked(bench), msg.TakeOver(P, 1, 2))
    assert not bench.all(fx.WriteChain)
    say_stalled(bench, M00)
    bench.hear(M10, msg.TakeOver(P, 1, 2))
    assert bench.all(fx.WriteChain)[-1].chain.segments[0].server == M01


def M10_linked(bench: Bench) -> MemberId:  # noqa: N802 - a member's name
    """A broker that complains."""
    bench.link(M10)
    return M10


def test_a_server_whose_own_disk_hangs_asks_the_others_to_take_over() -> None:
    bench = Serving()
    bench.serve()
    bench.ack(1)
    bench.clear()
    bench.wait(HUNG_US + 300 * MS, (M01,))
    assert bench.sent(msg.TakeOver, M01)


def test_a_member_whose_own_disk_hangs_takes_no_right() -> None:
    bench = Serving(M01)
    bench.link(M00)
    say_stalled(bench, M00)
    bench.core.state.out.write_waits_since_us = bench.now_us - HUNG_US
    bench.hear(M10_linked(bench), msg.TakeOver(P, 1, 2))
    assert not bench.all(fx.WriteChain)


def test_a_hung_member_is_not_listed() -> None:
    bench = Serving(eligible=(M00,))
    bench.begin()
    bench.link(M01)
    say_stalled(bench, M01)
    bench.clear()
    bench.hear(M01, msg.EligibleRequest(P, 1))
    assert not bench.sent(msg.ReplicateCursors, M01)


def test_a_member_that_hangs_while_it_joins_holds_up_no_acknowledgement() -> None:
    bench = Serving(eligible=(M00,))
    bench.serve()
    bench.link(M01)
    bench.hear(M01, msg.EligibleRequest(P, 1))
    bench.ack(1)
    bench.wait(100 * MS, (M01,))
    bench.persist()
    bench.clear()
    say_stalled(bench, M01)
    bench.wait(bench.config.silence_us)
    assert bench.delivered(fx.AckConfirmed)


# ---- full disks -----------------------------------------------------------------------------------------


def say_full(bench: Bench, member: MemberId, is_full: bool = True) -> None:
    """The member answers a heartbeat, and says whether its disk is full."""
    bench.hear(member, msg.HeartbeatAnswer(bench.now_us, (), 0, is_full))


def whole_groups(bench: Bench) -> None:
    """The other groups are linked."""
    for member in (M10, M11, M20, M21):
        bench.link(member)


def test_an_answer_says_whether_the_disk_is_full() -> None:
    bench = opened_slave()
    assert not answer_of(bench, M00).disk_is_full
    bench.do(ev.DiskRoom(True))
    assert answer_of(bench, M00).disk_is_full
    bench.do(ev.DiskRoom(False))
    assert not answer_of(bench, M00).disk_is_full


def test_a_full_slave_moves_the_head_and_nothing_is_refused_meanwhile() -> None:
    bench = opened_master()
    whole_groups(bench)
    say_full(bench, M01)
    assert bench.refusal(0, starts=True) is None
    bench.wait(1)
    assert bench.part.switch is not None
    assert bench.part.switch.is_planned
    assert bench.part.switch.reason == "disk full"
    assert bench.refusal(1) is None


def test_a_full_master_moves_the_head_too() -> None:
    bench = opened_master()
    whole_groups(bench)
    bench.do(ev.DiskRoom(True))
    assert bench.refusal(0, starts=True) is None
    bench.wait(1)
    assert bench.part.switch is not None


def test_a_full_group_is_passed_over() -> None:
    bench = opened_master()
    whole_groups(bench)
    assert bench.part.chain is not None
    assert candidates.open_target(bench.core.state, bench.part.chain) == "g1"
    say_full(bench, M11)
    assert candidates.open_target(bench.core.state, bench.part.chain) == "g2"


def test_appends_are_refused_when_no_group_has_room_and_taken_when_one_has() -> None:
    bench = opened_master()
    whole_groups(bench)
    for member in (M01, M11, M21):
        say_full(bench, member)
    refusal = bench.refusal(0, starts=True)
    assert isinstance(refusal, DiskFullError)
    assert "g0-1" in refusal.message
    bench.wait(1)
    assert bench.part.switch is None
    say_full(bench, M01, is_full=False)
    assert bench.refusal(0, run=2, starts=True) is None


def test_a_move_that_does_not_come_to_an_end_is_not_waited_for_for_ever() -> None:
    bench = opened_master()
    whole_groups(bench)
    say_full(bench, M01)
    assert bench.refusal(0, starts=True) is None
    bench.now_us += bench.config.disk_full_grace_us
    assert isinstance(bench.refusal(1), DiskFullError)
