"""Groups that are left: where heads go, who leaves a record and when, what becomes of the send chain."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_broker.core.peers import candidates
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import (
    Chain,
    add_copy,
    add_eligible,
    change_server,
    release_copies,
    remove_eligible,
)
from seriatim_broker.core.values.placement import BrokerGroupSpec, Intent

from .support import (
    GROUPS,
    M00,
    M01,
    M10,
    M11,
    M20,
    M21,
    Bench,
    P,
    Serving,
    first_chain,
    opened_master,
    segment_of,
)

M02 = MemberId("g0-2", "2" * 32)
M30, M31 = MemberId("g3-0", "3" * 32), MemberId("g3-1", "4" * 32)
MORE_GROUPS = (*GROUPS, ("g3", (M30, M31)))


def want(bench: Bench, groups: tuple[tuple[str, tuple[MemberId, ...]], ...] = GROUPS, **intents: Intent) -> None:
    """An operator says what it wants of broker groups."""
    specs = tuple((group, BrokerGroupSpec(intent)) for group, intent in sorted(intents.items()))
    bench.do(ev.DirectoryChanged(groups, (), specs))


def order(bench: Bench, chain: Chain | None = None) -> list[str]:
    return candidates.in_order(bench.core.state, chain or first_chain())


def linked(*members: MemberId) -> Bench:
    bench = Bench(M00)
    for member in members:
        bench.link(member)
    return bench


# ---- candidates -----------------------------------------------------------------------------------------


def test_a_cordoned_group_comes_after_every_whole_one_and_before_those_that_are_not() -> None:
    bench = linked(M01, M10, M11, M20, M21)
    assert order(bench) == ["g1", "g2", "g0"]
    want(bench, g1=Intent.CORDONED)
    assert order(bench) == ["g2", "g0", "g1"]
    want(bench, g1=Intent.CORDONED, g2=Intent.DRAINING)
    assert order(bench) == ["g0", "g1", "g2"], "the old segment's own group is complete and not cordoned"
    bench.unlink(M11, refused=True)
    assert order(bench) == ["g0", "g2"]
    bench.unlink(M01, refused=True)
    assert order(bench) == ["g2"]


def test_groups_outside_the_send_chain_come_after_those_in_it() -> None:
    bench = linked(M01, M10, M11, M20, M21, M30, M31)
    want(bench, MORE_GROUPS)
    assert order(bench) == ["g1", "g2", "g3", "g0"]
    want(bench, MORE_GROUPS, g1=Intent.CORDONED, g2=Intent.CORDONED)
    assert order(bench) == ["g3", "g0", "g1", "g2"]
    want(bench, MORE_GROUPS, g3=Intent.CORDONED)
    assert order(bench) == ["g1", "g2", "g0"], "a cordoned broker group that the chain does not name is not needed"


def test_a_head_is_moved_only_where_it_may_stay() -> None:
    bench = linked(M01, M10, M11, M20, M21)
    want(bench, g0=Intent.CORDONED, g1=Intent.CORDONED)
    assert candidates.open_target(bench.core.state, first_chain()) == "g2"
    bench.unlink(M21)
    assert candidates.open_target(bench.core.state, first_chain()) == "", "from one cordoned group to another"


def test_a_group_that_might_take_a_head_is_connected_to() -> None:
    bench = linked(M01)
    want(bench, MORE_GROUPS, g0=Intent.CORDONED)
    bench.clear()
    assert candidates.open_target(bench.core.state, replace(first_chain(), width=1)) == ""
    assert len(set(bench.core.state.links.by_broker) & {"g1-0", "g2-0", "g3-0"}) == 1


# ---- send chains ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "intents", "width", "target", "expected"),
    [
        (GROUPS, {}, 5, "g1", ("g1", "g2", "g0")),
        (MORE_GROUPS, {}, 5, "g1", ("g1", "g2", "g3", "g0")),  # a new group takes a free place
        (MORE_GROUPS, {}, 3, "g1", ("g1", "g2", "g0")),  # no place is free
        (MORE_GROUPS, {}, 3, "g3", ("g3", "g1", "g2")),  # a target from outside: the old head makes room
        (MORE_GROUPS, {}, 1, "g3", ("g3",)),
        (MORE_GROUPS[1:], {}, 3, "g1", ("g1", "g2", "g3")),  # the old head's group is no more
        (GROUPS, {"g2": Intent.DRAINING}, 5, "g1", ("g1", "g0")),
        (GROUPS, {"g0": Intent.DRAINING}, 5, "g1", ("g1", "g2")),
        (GROUPS, {"g2": Intent.CORDONED}, 5, "g1", ("g1", "g2", "g0")),  # it comes back
        (MORE_GROUPS, {"g3": Intent.CORDONED}, 5, "g1", ("g1", "g2", "g0")),
        (GROUPS, {}, 5, "g0", ("g0", "g1", "g2")),
    ],
)
def test_a_send_chain_changes_at_a_switch_and_no_more_than_it_must(
    groups: tuple[tuple[str, tuple[MemberId, ...]], ...],
    intents: dict[str, Intent],
    width: int,
    target: str,
    expected: tuple[str, ...],
) -> None:
    bench = linked()
    want(bench, groups, **intents)
    chain = replace(first_chain(), width=width)
    assert candidates.send_chain(bench.core.state, chain, target) == expected


# ---- heads ----------------------------------------------------------------------------------------------


def test_a_master_that_is_asked_to_move_its_head_switches_as_planned() -> None:
    bench = opened_master()
    for member in (M10, M11, M20):
        bench.link(member)
    want(bench, g0=Intent.CORDONED, g2=Intent.CORDONED)
    bench.hear(M20, msg.MoveRequest(P, 1))
    bench.read_chain(first_chain())
    assert bench.part.switch is not None
    assert bench.part.switch.is_planned
    for member in (M10, M11):
        (prepare,) = bench.sent(msg.PrepareRequest, member)
        bench.hear(member, msg.PrepareAnswer(P, 2, prepare.switch_attempt, 1, ""))
    bench.persist()  # it asked itself to come to rest, and for the fence
    assert bench.part.switch.sealing.answers[M00].unbroken
    assert not bench.sent(msg.FenceRequest, M01)
    assert {effect.broker for effect in bench.all(fx.Send) if isinstance(effect.message, msg.PrepareRequest)} == {
        "g1-0", "g1-1"
    }  # fmt: skip


@pytest.mark.parametrize("why", ["slave", "other segment", "nowhere", "switching"])
def test_a_head_that_cannot_be_moved_stays(why: str) -> None:
    bench = opened_master()
    for member in () if why == "nowhere" else (M10, M11):
        bench.link(member)
    want(bench, g0=Intent.CORDONED)
    if why == "switching":
        bench.do(ev.PlanSwitch(3, P))
    running = bench.part.switch
    if why == "slave":
        bench.part.logs[1].unbroken = False
    bench.hear(M01, msg.MoveRequest(P, 2 if why == "other segment" else 1))
    assert bench.part.switch is running


@pytest.mark.parametrize("why", ["", "away", "failed"])
def test_open_segment_gets_the_member_of_its_group_that_it_lacks(why: str) -> None:
    bench = opened_master()
    if why != "away":
        bench.link(M02)
    if why == "failed":
        candidates.note_failure(bench.core.state, "g0")
    want(bench, (("g0", (M00, M01, M02)), *GROUPS[1:]))
    bench.hear(M01, msg.MoveRequest(P, 1))
    if why:
        assert bench.part.switch is None
        return
    bench.read_chain(first_chain())
    (prepare,) = bench.sent(msg.PrepareRequest, M02)
    assert prepare.members == (M02, M00, M01)


def test_masters_of_growing_segments_take_turns() -> None:
    bench = opened_master()
    bench.link(M02)
    want(bench, (("g0", (M00, M01, M02)), *GROUPS[1:]))
    (left, other), chain = (M00, M01), first_chain()
    masters = Counter[MemberId]()
    for partition in range(60):
        members = (left, other) if partition % 2 else (other, left)
        segment = replace(chain.open_segment, members=members)
        master = candidates.next_master(bench.core.state, PartitionId(partition), segment)
        assert master is not None
        assert master != members[0], "a planned switch goes to another one"
        masters[master] += 1
    assert set(masters.values()) == {20}


# ---- copies ---------------------------------------------------------------------------------------------


def whole_elsewhere(server: MemberId = M00, eligible: tuple[MemberId, ...] = (M00, M01, M20, M21)) -> Serving:
    """A member of segment 1; the third group has copies of it as well, eligible or not."""
    bench = Serving(M00, learn=False)
    chain = bench.chain
    for member in (M20, M21):
        chain = add_copy(chain, 1, member)
    for member in eligible:
        if member not in segment_of(chain, 1).eligible:
            chain = add_eligible(chain, 1, member)
    bench.chain = change_server(chain, 1, server, ()) if server != M00 else chain
    bench.read_chain(bench.chain)
    return bench


def test_a_server_that_leaves_hands_its_right_to_a_member_that_stays() -> None:
    bench = whole_elsewhere()
    for member in (M01, M20, M21):
        bench.link(member)
    bench.hear(M01, msg.ReleaseRequest(P, (1,), (M00, M01)))
    (write,) = bench.all(fx.WriteChain)
    segment = segment_of(write.chain, 1)
    assert segment.server == M20
    assert segment.server_epoch == write.chain.epoch
    assert segment.members == (M00, M01, M20, M21), "it leaves when another member serves"


def test_the_server_has_members_leave_that_are_drained() -> None:
    bench = whole_elsewhere(eligible=(M00, M01, M20, M21))
    for member in (M01, M20, M21):
        bench.link(member)
    bench.do(ev.Release(P, (1,), M00, (M01,)))
    (write,) = bench.all(fx.WriteChain)
    segment = segment_of(write.chain, 1)
    assert (segment.members, segment.eligible, segment.server) == ((M00, M20, M21), (M00, M20, M21), M00)
    bench.do(ev.Release(P, (1,), M00, (M01,)))
    assert len(bench.all(fx.WriteChain)) == 1, "one at a time"


@pytest.mark.parametrize("why", ["one eligible", "one linked", "not sealed"])
def test_nobody_leaves_while_too_few_whole_copies_would_stay(why: str) -> None:
    bench = whole_elsewhere(eligible=(M00, M01, M20) if why == "one eligible" else (M00, M01, M20, M21))
    for member in (M01, M20) if why == "one linked" else (M01, M20, M21):
        bench.link(member)
    bench.do(ev.Release(P, (2 if why == "not sealed" else 1,), M00, (M00, M01)))
    assert not bench.all(fx.WriteChain)


def test_a_member_that_stays_takes_the_right_of_a_server_that_is_gone() -> None:
    bench = whole_elsewhere(server=M20)
    for member in (M01, M21):
        bench.link(member)
    bench.link(M20)
    bench.wait(2 * bench.config.heartbeat_us, (M01, M20, M21))
    bench.do(ev.Release(P, (1,), M00, (M20, M21)))
    assert not bench.all(fx.WriteChain), "it is there"
    bench.unlink(M20, refused=True)
    bench.do(ev.Release(P, (1,), M00, (M20, M21)))
    (write,) = bench.all(fx.WriteChain)
    assert segment_of(write.chain, 1).server == M00
    assert segment_of(write.chain, 1).members == (M00, M01, M20, M21)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_copy_without_control_records_takes_the_right_only_if_nobody_who_has_them_comes_back(
    is_replaced: bool,
) -> None:
    bench = whole_elsewhere(server=M01, eligible=(M00, M01))
    chain = remove_eligible(bench.chain, 1, (M00,))
    bench.read_chain(chain)
    for member in (M01, M20, M21):
        bench.link(member)
    bench.wait(2 * bench.config.heartbeat_us, (M01, M20, M21))
    bench.unlink(M01, refused=True)
    bench.do(ev.CertificateSeen(RunId(M01, 9)))
    other = MemberId(M01.broker, "another disk")
    bench.do(ev.DirectoryChanged((("g0", (M00, other if is_replaced else M01)), *GROUPS[1:]), ((M01, 9),)))
    bench.do(ev.Release(P, (1,), M00, (M00, M01)))
    assert len(bench.all(fx.WriteChain)) == is_replaced


def test_leaving_takes_every_role_but_the_servers() -> None:
    bench = whole_elsewhere()
    chain = release_copies(bench.chain, (M01, M21), {1: None})
    segment = segment_of(chain, 1)
    assert (segment.members, segment.eligible) == ((M00, M20), (M00, M20))
    assert (segment.sealed_len, segment.sealed_checksum) == (bench.length, segment_of(bench.chain, 1).sealed_checksum)
    with pytest.raises(AssertionError, match="hands its right over"):
        release_copies(bench.chain, (M00,), {1: None})


def test_a_release_for_an_unknown_chain_reads_it() -> None:
    bench = Bench(M10)
    bench.link(M00)
    bench.hear(M00, msg.ReleaseRequest(P, (1,), (M00,)))
    assert bench.all(fx.ReadChain)
    assert not bench.all(fx.WriteChain)


def test_several_segments_are_left_in_one_step() -> None:
    chain = whole_elsewhere().chain
    both = replace(
        chain,
        segments=(
            chain.segments[0],
            replace(chain.segments[0], no=2, base=5),
            replace(chain.segments[1], no=3, base=10),
        ),
    )
    successors = release_copies(both, (M00, M01), {1: M20, 2: M21})
    assert successors.epoch == both.epoch + 1
    assert [segment.server for segment in successors.segments[:2]] == [M20, M21]
    assert {segment.server_epoch for segment in successors.segments[:2]} == {successors.epoch}
    left = release_copies(successors, (M00, M01), {1: None, 2: None})
    assert left.epoch == successors.epoch + 1
    assert all(segment.members == (M20, M21) for segment in left.segments[:2])


def test_the_new_server_hears_of_it_also_far_behind_the_head() -> None:
    bench = whole_elsewhere()
    for member in (M01, M20, M21):
        bench.link(member)
    bench.do(ev.Release(P, (1,), M00, (M00, M01)))
    bench.clear()
    write = ev.ChainWritten(P, max(bench.part.writes), ev.WriteOutcome.DONE, 200)
    bench.do(write)
    assert {update.chain.epoch for update in bench.sent(msg.ChainUpdate, M20)} == {bench.chain.epoch + 1}


def with_another(chain: Chain, no: int) -> Chain:
    """The record with one more sealed segment like the first, and nothing between the two."""
    first, last = chain.segments
    another = replace(first, no=no, base=5, folded=no - 2)
    return replace(chain, segments=(first, another, replace(last, no=no + 1, base=10)), epoch=chain.epoch + 1)


@pytest.mark.parametrize(("no", "count"), [(257, 2), (258, 1)])
def test_segments_that_are_far_apart_are_not_left_in_one_step_whatever_the_controller_asks(no: int, count: int) -> None:
    """Their pages may be too large for one transaction."""
    bench = whole_elsewhere()
    for member in (M01, M20, M21):
        bench.link(member)
    bench.read_chain(with_another(bench.chain, no))
    bench.clear()
    bench.do(ev.Release(P, (1, no), M00, (M01,)))
    (write,) = bench.all(fx.WriteChain)
    assert sum(M01 not in segment.members for segment in write.chain.segments[:2]) == count


def test_the_pause_between_changes_of_sealed_segments_does_not_hold_up_a_release() -> None:
    """The controller asks seldom, and copies of other segments may be listed again and again meanwhile."""
    bench = whole_elsewhere()
    for member in (M01, M20, M21):
        bench.link(member)
    bench.do(ev.Release(P, (1,), M00, (M01,)))
    bench.written()
    bench.do(ev.Release(P, (1,), M00, (M21,)))
    write = bench.all(fx.WriteChain)[-1]
    assert segment_of(write.chain, 1).members == (M00, M20)


def test_while_a_switch_runs_nobody_leaves() -> None:
    bench = whole_elsewhere()
    for member in (M01, M20, M21, M10, M11):
        bench.link(member)
    bench.do(ev.SwitchAwayFrom(P, 2))
    bench.read_chain(bench.chain)
    assert bench.part.switch is not None
    bench.do(ev.Release(P, (1,), M00, (M01,)))
    assert not bench.all(fx.WriteChain)
