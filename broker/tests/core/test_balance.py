"""The plan of balance: it lowers the maximum, ends, and leaves alone what is even enough."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seriatim_api.ids import PartitionId
from seriatim_broker.core.control.balance import (
    GAIN_MIN,
    MOVES_MAX,
    BrokerGroupShare,
    Limits,
    OpenSegment,
    after,
    broker_group_loads,
    excess,
    master_loads,
    plan,
)

LIMITS = Limits(begin=0.2, end=0.1)


def share(number: int, weight: float = 1.0, members: int = 2) -> BrokerGroupShare:
    return BrokerGroupShare(f"g{number}", tuple(f"g{number}-{slot}" for slot in range(members)), weight)


def open_segment(partition: int, group: int, load: float, slot: int = 0) -> OpenSegment:
    return OpenSegment(PartitionId(partition), f"g{group}", f"g{group}-{slot}", load)


def group_excess(open_segments: Sequence[OpenSegment], groups: Sequence[BrokerGroupShare]) -> float:
    shares = {group.name: group for group in groups}
    loads = broker_group_loads(open_segments, shares)
    weights = sum(group.weight for group in groups)
    return excess(loads, sum(loads[name] * shares[name].weight for name in loads) / weights)


def highest(open_segments: Sequence[OpenSegment], groups: Sequence[BrokerGroupShare]) -> float:
    return max(broker_group_loads(open_segments, {group.name: group for group in groups}).values())


def test_heads_that_a_failover_left_on_one_group_are_spread() -> None:
    groups = [share(0), share(1)]
    open_segments = [open_segment(number, 1, 1000, number % 2) for number in range(16)]
    moves = plan(open_segments, groups, LIMITS)
    assert len(moves) == 8
    spread = after(open_segments, moves)
    assert group_excess(spread, groups) <= LIMITS.end + 0.03
    for group in groups:
        loads = sorted(master_loads(spread, group.brokers).values())
        assert loads[1] - loads[0] <= 1000


def test_what_is_within_the_limit_is_left_alone_and_what_is_above_goes_below_the_lower_one() -> None:
    groups = [share(0), share(1)]
    even = [*(open_segment(number, 0, 100, number % 2) for number in range(12)),
            *(open_segment(number, 1, 100, number % 2) for number in range(12, 20))]  # fmt: skip
    assert group_excess(even, groups) == pytest.approx(0.2)
    assert plan(even, groups, LIMITS) == []
    above = [*even, open_segment(99, 0, 40, 0)]
    moved = plan(above, groups, LIMITS)
    assert group_excess(after(above, moved), groups) <= LIMITS.end


def test_one_head_alone_is_moved_nowhere() -> None:
    assert plan([open_segment(1, 0, 1e9)], [share(0), share(1), share(2)], LIMITS) == []


def test_a_head_that_is_too_large_to_move_does_not_keep_others_from_moving() -> None:
    open_segments = [open_segment(1, 0, 1000), *(open_segment(number, 1, 50, number % 2) for number in range(2, 14))]
    groups = [share(0), share(1), share(2)]
    moves = plan(open_segments, groups, LIMITS)
    assert {move.to_broker_group for move in moves} == {"g2"}
    assert {move.open_segment.broker_group for move in moves} == {"g1"}


def test_masters_of_one_group_are_spread_over_its_members() -> None:
    open_segments = [open_segment(number, 0, 100, 0) for number in range(8)]
    moves = plan(open_segments, [share(0)], LIMITS)
    assert [(move.to_broker_group, move.to_master) for move in moves] == [("g0", "g0-1")] * 4


def test_weights_are_kept() -> None:
    groups = [share(0, 3.0), share(1, 1.0)]
    open_segments = [open_segment(number, 1, 10, number % 2) for number in range(40)]
    spread = after(open_segments, plan(open_segments, groups, LIMITS))
    loads = broker_group_loads(spread, {group.name: group for group in groups})
    assert loads["g0"] * 3 == pytest.approx(300, rel=0.1)


def test_what_stands_elsewhere_or_was_just_moved_stays() -> None:
    open_segments = [open_segment(number, 0, 100) for number in range(4)] + [open_segment(9, 7, 5000)]
    moves = plan(open_segments, [share(0), share(1)], LIMITS, barred={PartitionId(0), PartitionId(1)})
    assert {move.open_segment.partition for move in moves} <= {2, 3}


def test_a_quiet_cluster_is_left_alone() -> None:
    open_segments = [open_segment(number, 0, 100) for number in range(4)]
    assert plan(open_segments, [share(0), share(1)], Limits(0.2, 0.1, floor=1000)) == []
    assert plan(open_segments, [share(0), share(1)], Limits(0.2, 0.1, floor=100)) != []


def test_a_plan_has_a_limit_and_a_large_one_is_quick() -> None:
    groups = [share(number) for number in range(200)]
    open_segments = [open_segment(number, number % 20, 100 + number % 7, number % 2) for number in range(10_000)]
    assert len(plan(open_segments, groups, LIMITS)) == MOVES_MAX


loads = st.one_of(st.integers(1, 100), st.integers(1, 1_000_000))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[OpenSegment], list[BrokerGroupShare]]:
    """Up to six groups with members and weights, and heads anywhere on them."""
    groups = [
        share(number, draw(st.sampled_from([0.5, 1.0, 1.0, 2.0])), draw(st.integers(2, 3)))
        for number in range(draw(st.integers(1, 6)))
    ]
    open_segments = []
    for number in range(draw(st.integers(0, 40))):
        group = draw(st.sampled_from(groups))
        open_segments.append(
            OpenSegment(PartitionId(number), group.name, draw(st.sampled_from(group.brokers)), float(draw(loads)))
        )
    return open_segments, groups


@settings(deadline=None)
@given(worlds())
def test_no_plan_makes_the_maximum_worse(world: tuple[list[OpenSegment], list[BrokerGroupShare]]) -> None:
    open_segments, groups = world
    so_far: list = []
    before = highest(open_segments, groups)
    for move in plan(open_segments, groups, LIMITS):
        so_far.append(move)
        now = highest(after(open_segments, so_far), groups)
        assert now <= before * (1 + 1e-9)
        before = now
    for group in groups:
        own = [entry for entry in open_segments if entry.broker_group == group.name]
        inner = [move for move in so_far if move.open_segment.broker_group == group.name == move.to_broker_group]
        loads_before = master_loads(own, group.brokers)
        moved_away = {move.open_segment.partition for move in so_far} - {move.open_segment.partition for move in inner}
        if not any(move.to_broker_group == group.name for move in so_far if move not in inner) and not moved_away:
            assert max(master_loads(after(own, inner), group.brokers).values()) <= max(loads_before.values())


@settings(deadline=None)
@given(worlds())
def test_each_head_moves_once_to_another_place_and_names_a_member(
    world: tuple[list[OpenSegment], list[BrokerGroupShare]],
) -> None:
    open_segments, groups = world
    members = {group.name: group.brokers for group in groups}
    moves = plan(open_segments, groups, LIMITS)
    assert len({move.open_segment.partition for move in moves}) == len(moves)
    for move in moves:
        assert move.open_segment in open_segments
        assert move.to_master in members[move.to_broker_group]
        assert move.to_master != move.open_segment.master


@settings(deadline=None)
@given(worlds())
def test_it_converges(world: tuple[list[OpenSegment], list[BrokerGroupShare]]) -> None:
    open_segments, groups = world
    count = 0
    for _ in range(10):
        moves = plan(open_segments, groups, LIMITS)
        if not moves:
            break
        count += len(moves)
        open_segments = after(open_segments, moves)
    assert plan(open_segments, groups, LIMITS) == []
    assert count <= 4 * len(open_segments)


@settings(deadline=None)
@given(worlds())
def test_below_the_limit_nothing_moves_between_groups(world: tuple[list[OpenSegment], list[BrokerGroupShare]]) -> None:
    open_segments, groups = world
    crossing = [
        move for move in plan(open_segments, groups, LIMITS) if move.to_broker_group != move.open_segment.broker_group
    ]
    assert not crossing or group_excess(open_segments, groups) > LIMITS.begin


@settings(deadline=None)
@given(worlds())
def test_what_is_left_above_the_limit_no_single_move_would_lower(
    world: tuple[list[OpenSegment], list[BrokerGroupShare]],
) -> None:
    open_segments, groups = world
    for _ in range(10):
        open_segments = after(open_segments, plan(open_segments, groups, LIMITS))
    shares = {group.name: group for group in groups}
    if len(groups) < 2 or group_excess(open_segments, groups) <= LIMITS.begin:
        return
    by_group = broker_group_loads(open_segments, shares)
    mean = sum(by_group[name] * shares[name].weight for name in by_group) / sum(g.weight for g in groups)
    top = max(by_group, key=lambda name: (by_group[name], name))
    low = min(by_group, key=lambda name: (by_group[name], name))
    for entry in open_segments:
        if entry.broker_group == top:
            there = by_group[low] + entry.load / shares[low].weight
            here = by_group[top] - entry.load / shares[top].weight
            assert max(there, here) > by_group[top] - 2 * GAIN_MIN * mean
