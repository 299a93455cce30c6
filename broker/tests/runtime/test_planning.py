"""The controller's pure half: placement, lost groups, what to heal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.control.controller import (
    MemberView,
    holders,
    lost_broker_groups,
    plan_copies_elsewhere,
    plan_growth,
    plan_heals,
    plan_release,
    switch_away,
    wants_copies,
)
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.events import Heal, Release
from seriatim_broker.core.values.placement import (
    BrokerGroupSpec,
    Intent,
    copies_wanted,
    healers,
    order,
    placeable,
    send_chain,
)
from seriatim_broker.core.values.segment import Segment, SegmentState
from seriatim_broker.runtime.coordinator.keys import CHAINS_PER_PAGE, Keys, partition_of

GROUPS = [f"g{number}" for number in range(8)]
A, B, C, D = (MemberId(name, f"disk-{name}") for name in ("g0-0", "g0-1", "g1-0", "g1-1"))


def test_partitions_spread_evenly_and_by_weight() -> None:
    heads = Counter(send_chain(PartitionId(number), GROUPS)[0] for number in range(8000))
    assert set(heads) == set(GROUPS)
    assert all(850 < count < 1150 for count in heads.values())
    weighted = Counter(order(["a", "b"], number, {"a": 3.0})[0] for number in range(8000))
    assert 5700 < weighted["a"] < 6300


def test_a_group_that_leaves_moves_only_its_own() -> None:
    for number in range(500):
        before = send_chain(PartitionId(number), GROUPS, chain_width=8)
        after = send_chain(PartitionId(number), GROUPS[:-1], chain_width=8)
        assert after == tuple(group for group in before if group != GROUPS[-1])


def test_a_chain_has_at_most_its_width() -> None:
    assert len(send_chain(PartitionId(1), GROUPS)) == 5
    assert len(send_chain(PartitionId(1), ["only"])) == 1


def view(member: MemberId, *, live: bool, certified: bool = False, admitted: bool = True) -> MemberView:
    return MemberView(member, member.broker.split("-")[0], admitted, live, certified)


def test_a_group_is_lost_when_nobody_of_it_runs() -> None:
    assert lost_broker_groups([view(A, live=False), view(B, live=True)]) == frozenset()
    assert lost_broker_groups([view(A, live=False), view(B, live=False), view(C, live=True)]) == {"g0"}
    assert lost_broker_groups([view(A, live=True, certified=True), view(B, live=False)]) == {"g0"}
    assert lost_broker_groups([view(A, live=False, admitted=False)]) == frozenset()


def make_segment(no: int, state: SegmentState, members: tuple[MemberId, ...]) -> Segment:
    return Segment(
        no=no, switch_attempt=bytes(16), broker_group=members[0].broker.split("-")[0], members=members,
        master_run=1, state=state,
        base=0, server=members[0], server_epoch=1, eligible=members, opened_at_ms=0,
        sealed_len=5 if state is SegmentState.SEALED else None,
        sealed_checksum=7 if state is SegmentState.SEALED else None,
        sealed_bytes=90 if state is SegmentState.SEALED else None,
    )  # fmt: skip


E, F = (MemberId(name, f"disk-{name}") for name in ("g2-0", "g2-1"))

CHAIN = Chain(
    PartitionId(7), 3, "t", 0, True, ("g1", "g0"),
    (make_segment(1, SegmentState.SEALED, (A, B)), make_segment(2, SegmentState.OPEN, (C, D))),
)  # fmt: skip


def test_only_open_segments_of_lost_groups_are_left() -> None:
    event = switch_away(CHAIN, {"g1"})
    assert event is not None
    assert (event.partition, event.segment_no) == (7, 2)
    assert switch_away(CHAIN, {"g0"}) is None


def heals(chain: Chain, dead: set[MemberId], live: dict[str, list[MemberId]]) -> list[Heal]:
    return plan_heals(chain, dead, live, live, copies=2, min_copies=2)


def test_a_sealed_segment_with_one_copy_left_is_copied() -> None:
    live = {"g0": [A], "g1": [C, D]}
    (heal,) = heals(CHAIN, {B}, live)
    assert (heal.segment_no, heal.replaces) == (1, B)
    assert heal.member in (C, D)
    fresh = MemberId("g0-1", "new-disk")
    (heal,) = heals(CHAIN, {B}, {"g0": [A, fresh], "g1": [C, D]})
    assert heal.member == fresh  # of its own group, if there is one


def test_nothing_is_healed_without_need_or_without_a_source() -> None:
    live = {"g0": [A], "g1": [C, D]}
    assert heals(CHAIN, set(), live) == []
    assert heals(CHAIN, {A, B}, live) == []
    assert heals(CHAIN, {C}, live) == []  # an open segment is switched, not healed
    lost = replace(CHAIN, segments=(replace(CHAIN.segments[0], state=SegmentState.LOST), CHAIN.segments[1]))
    assert heals(lost, {B}, live) == []


G = MemberId("g0-2", "disk-g0-2")


def test_third_copy_waits_for_a_member_of_the_group() -> None:
    both, others = {"g0": [A, B], "g1": [C, D, E]}, {"g1": [C, D, E]}

    def healed(dead: set[MemberId], live: dict[str, list[MemberId]], expected: list[MemberId]) -> list[Heal]:
        return plan_heals(CHAIN, dead, live, {**others, "g0": expected}, copies=3, min_copies=2)

    assert healed(set(), both, [A, B, G]) == [], "it was away while the segment was open, and comes back"
    assert [heal.member for heal in healed(set(), {**others, "g0": [A, B, G]}, [A, B, G])] == [G]
    (heal,) = healed({G}, both, [A, B])
    assert heal.member in (C, D, E), "it does not come back"
    (heal,) = healed({B}, {**others, "g0": [A]}, [A, G])
    assert (heal.member in (C, D, E), heal.replaces) == (True, B), "one copy is left: it does not wait"
    for away in (E, G):
        back = E if away == G else G
        live = {"g0": [A, B, back], "g1": [C, D]}
        (heal,) = healed(set(), live, [A, B, E, G])
        assert heal.member == back, "of four, the one that is there does not wait for the one that is away"


def test_open_segment_grows_when_a_group_has_all_members() -> None:
    assert plan_growth(CHAIN, {"g0": [A, B], "g1": [C, D]}, 3, set()) is None
    move = plan_growth(CHAIN, {"g0": [A, B, G], "g1": [C, D]}, 3, {D.broker})
    assert move is not None
    assert (move.segment_no, move.master) == (2, C)
    assert plan_growth(CHAIN, {"g0": [A, B, G]}, 3, {A.broker, B.broker}) is None, "two do not hear each other"
    assert plan_growth(CHAIN, {"g0": [A, B, G]}, 2, set()) is None


def test_copies_are_as_many_as_the_smallest_group_has_members() -> None:
    assert copies_wanted([3, 3], 2) == 3
    assert copies_wanted([2, 5], 2) == 2
    assert copies_wanted([1, 3], 2) == 3, "a group that is being made does not count"
    assert copies_wanted([], 2) == 2


def test_pages_of_chains_cover_each_partition_once() -> None:
    keys = Keys("c")
    assert keys.chains_page(PartitionId(0)) == "/seriatim/c/chains/0000000"
    for number in (0, 1, 999, 1000, 123_456, 2**32 - 1):
        first = PartitionId(number // CHAINS_PER_PAGE * CHAINS_PER_PAGE)
        assert keys.chain(PartitionId(number)).startswith(keys.chains_page(first))
        assert partition_of(keys.chain(PartitionId(number))) == number
    assert not keys.chain(PartitionId(1000)).startswith(keys.chains_page(PartitionId(0)))


@pytest.mark.parametrize(
    ("state", "gone", "wanted"),
    [
        (SegmentState.SEALED, set(), False),
        (SegmentState.SEALED, {A}, True),
        (SegmentState.SEALED, {A, B}, False),  # no member is left to copy from
        (SegmentState.OPEN, {A}, True),  # once it is sealed: the healing pass must look again
        (SegmentState.UNSETTLED, {A, B}, True),  # once a member is back
        (SegmentState.LOST, {A, B}, False),
        (SegmentState.OPEN, {C}, False),
    ],
)
def test_who_still_wants_copies_is_looked_at_again(state: SegmentState, gone: set[MemberId], wanted: bool) -> None:
    assert wants_copies(make_segment(1, state, (A, B)), gone, 2) is wanted


# ---- groups that are left -------------------------------------------------------------------------------


def of_group(group: str) -> Callable[[MemberId], bool]:
    return lambda member: member.broker.startswith(group)


def copied(*members: MemberId, eligible: tuple[MemberId, ...], server: MemberId = A) -> Chain:
    """The sealed segment has copies on these as well."""
    segment = replace(CHAIN.segments[0], members=(A, B, *members), eligible=eligible, server=server)
    return replace(CHAIN, segments=(segment, CHAIN.segments[1]))


def test_copies_are_made_on_other_groups_first() -> None:
    live = {"g1": [C, D], "g2": [E, F]}
    steps = plan_copies_elsewhere(CHAIN, of_group("g0"), live, min_copies=2)
    assert len(steps) == len({step.member for step in steps}) == 2
    assert all(step.segment_no == 1 and step.replaces is None for step in steps)
    assert steps == plan_copies_elsewhere(CHAIN, of_group("g0"), live, min_copies=2), "each broker computes the same"
    assert plan_copies_elsewhere(CHAIN, of_group("g1"), live, min_copies=2) == [], "an open segment is switched"
    one = copied(C, eligible=(A, B))
    (step,) = plan_copies_elsewhere(one, of_group("g0"), live, min_copies=2)
    assert step.member in (D, E, F)
    assert plan_copies_elsewhere(copied(C, E, eligible=(A, B)), of_group("g0"), live, min_copies=2) == []
    (step,) = plan_copies_elsewhere(copied(C, E, eligible=(A, B)), of_group("g0"), {"g1": [C, D]}, min_copies=2)
    assert step == Heal(PartitionId(7), 1, D, None), "one of the new copies is not there any more"
    tail = replace(CHAIN, segments=(replace(CHAIN.segments[0], tail_copies=(C, D)), CHAIN.segments[1]))
    steps = plan_copies_elsewhere(tail, of_group("g0"), {"g1": [C, D]}, min_copies=2)
    assert {step.member for step in steps} == {C, D}, "who holds the tail may get the rest"


def test_members_leave_only_when_enough_others_serve_from_whole_copies() -> None:
    everybody = frozenset((A, B, C, D, E, F))

    def release(chain: Chain, there: frozenset[MemberId] = everybody) -> Release | None:
        return plan_release(chain, of_group("g0"), there.__contains__, min_copies=2)

    assert release(copied(C, E, eligible=(A, B))) is None, "listed, and not eligible yet"
    assert release(copied(C, E, eligible=(A, B, C))) is None
    whole = copied(C, E, eligible=(A, B, C, E))
    assert release(whole) == Release(PartitionId(7), (1,), A, (A, B))
    assert release(whole, everybody - {E}) is None
    assert release(whole, everybody - {A}) == Release(PartitionId(7), (1,), C, (A, B)), "the server does not run"
    assert release(replace(whole, segments=whole.segments[1:])) is None


def test_segments_that_are_far_apart_are_left_in_several_steps() -> None:
    """Their pages would not fit into one transaction."""
    segment = copied(C, E, eligible=(A, B, C, E)).segments[0]
    last = CHAIN.segments[1]
    older = tuple(replace(segment, no=no, base=5 * (no - 1)) for no in range(1, 3_000))
    sparse = tuple(
        one if one.no % 100 == 1 else replace(one, members=(C, E), eligible=(C, E), server=C) for one in older
    )
    for segments, count in ((older, 64), (sparse, 3)):
        chain = replace(CHAIN, segments=(*segments, replace(last, no=3_000, base=5 * 2_999)))
        step = plan_release(chain, of_group("g0"), frozenset((A, B, C, D, E, F)).__contains__, min_copies=2)
        assert step is not None
        assert len(step.segment_nos) == count
        assert step.segment_nos[-1] - step.segment_nos[0] <= 256


def test_while_the_server_is_gone_somebody_takes_its_place_for_else_no_copy_becomes_eligible() -> None:
    chain = copied(C, E, eligible=(A, B))

    def by(*there: MemberId) -> MemberId | None:
        step = plan_release(chain, of_group("g0"), there.__contains__, min_copies=2)
        return step.by if step is not None else None

    assert by(B, C, E) == B, "it leaves as well, but no other member is eligible"
    assert by(C, E) == C, "it may once the end of both is certified"
    assert by(D, F) is None, "no member that is there has a copy"


def test_who_holds_a_tail_or_serves_is_a_holder_and_nobody_is_of_a_lost_segment() -> None:
    segment = replace(CHAIN.segments[0], tail_copies=(C,), server=E)
    assert holders(segment) == {A, B, C, E}
    assert holders(replace(segment, state=SegmentState.LOST)) == set()


def test_new_partitions_go_to_active_groups_while_there_is_one() -> None:
    cordoned, draining = BrokerGroupSpec(Intent.CORDONED), BrokerGroupSpec(Intent.DRAINING)
    assert placeable({"b": 1, "a": 2, "c": 3}, {"a": cordoned, "c": BrokerGroupSpec(weight=2.0)}) == ["b", "c"]
    assert placeable(["b", "a"], {"a": cordoned, "b": draining}) == ["a", "b"]


def test_several_copies_go_to_several_members() -> None:
    assert len(set(healers(PartitionId(1), 1, [A, B, C, D], 2))) == 2
    assert healers(PartitionId(1), 1, [A], 2) == [A]
    assert healers(PartitionId(1), 1, [A, B], 0) == healers(PartitionId(1), 1, [A, B], -1) == []
