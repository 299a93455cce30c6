"""Balance: which open segments should move, as a pure function of the traffic that the masters measured.

Every member of a broker group writes what its masters take, so the load of a broker group is the sum of its open
segments. Within a broker group only the master of a segment deals with producers. So open segments are spread over
broker groups first, in proportion to their weights, and then masters over the members of each broker group. Each step
moves one open segment from the highest load to a low one, and only if that lowers the higher of the two loads. So the
plan never makes the maximum worse, and it ends.

A plan begins above one limit and continues down to a lower one. So a small change does not disturb a cluster that was
just balanced. Open segments without traffic stay: they cost nothing, and each move makes a segment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

from seriatim_api.ids import PartitionId

BATCH_COST_BYTES = 64 * 1024
"""What a batch costs besides its bytes. A stream hop carries 1.7 GB/s in frames of 256 KiB and 14,700 frames/s of
1 KiB: about 70 microseconds a frame and 0.3 nanoseconds a byte, that is 200 KB; frames under load hold several."""

GAIN_MIN = 0.01
"""A move must lower the higher of the two loads by at least this part of the mean load, because less is noise."""

MOVES_MAX = 100
"""At most this many moves in one plan. At two a second they take 50 s, and by then the next plan knows more."""

TARGETS_TRIED = 3
"""For each move this many places with the lowest loads are tried: with unequal weights the lowest may not be the
best."""


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A partition's open segment, with what its master takes, in bytes a second (and a cost for each batch)."""

    partition: PartitionId
    broker_group: str
    master: str
    load: float


@dataclass(frozen=True, slots=True)
class BrokerGroupShare:
    """A complete, active broker group that is steady: the names of its members, and its share of the load."""

    name: str
    brokers: tuple[str, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Move:
    """A planned switch: the open segment goes to that broker group, under that master."""

    open_segment: OpenSegment
    to_broker_group: str
    to_master: str


@dataclass(frozen=True, slots=True)
class Limits:
    """When a plan begins, and how far it goes.

    Attributes:
        begin: A plan begins if the highest load is more than this above the mean, as a ratio.
        end: It moves open segments until the highest load is at most this above the mean, as a ratio.
        floor: If the mean load is below this, in bytes a second, nothing is moved.
    """

    begin: float
    end: float
    floor: float = 0.0

    def __post_init__(self) -> None:
        assert 0 < self.end <= self.begin


def plan(
    open_segments: Iterable[OpenSegment],
    groups: Iterable[BrokerGroupShare],
    limits: Limits,
    barred: Collection[PartitionId] = (),
) -> list[Move]:
    """The moves, the most useful ones first.

    Args:
        open_segments: The open segments with traffic. Those on other broker groups than the given ones stay.
        groups: The broker groups that may give and take open segments.
        limits: When to begin, and when to end.
        barred: Partitions that were moved recently. They stay.
    """
    shares = {group.name: group for group in groups}
    standing = {
        open_segment.partition: open_segment for open_segment in open_segments if open_segment.broker_group in shares
    }
    moves: dict[PartitionId, Move] = {}
    _spread_broker_groups(standing, shares, limits, barred, moves)
    for name in sorted(shares):
        _spread_masters(standing, shares[name], limits, barred, moves)
    return list(moves.values())


def after(open_segments: Iterable[OpenSegment], moves: Iterable[Move]) -> list[OpenSegment]:
    """The open segments as they are once the moves are made."""
    moved = {move.open_segment.partition: move for move in moves}
    return [
        replace(
            open_segment,
            broker_group=moved[open_segment.partition].to_broker_group,
            master=moved[open_segment.partition].to_master,
        )
        if open_segment.partition in moved
        else open_segment
        for open_segment in open_segments
    ]


def broker_group_loads(
    open_segments: Iterable[OpenSegment], shares: Mapping[str, BrokerGroupShare]
) -> dict[str, float]:
    """The load of each broker group, divided by its weight."""
    loads = dict.fromkeys(shares, 0.0)
    for open_segment in open_segments:
        if open_segment.broker_group in loads:
            loads[open_segment.broker_group] += open_segment.load / shares[open_segment.broker_group].weight
    return loads


def master_loads(open_segments: Iterable[OpenSegment], brokers: Sequence[str]) -> dict[str, float]:
    """The load of each broker as a master."""
    loads = dict.fromkeys(brokers, 0.0)
    for open_segment in open_segments:
        if open_segment.master in loads:
            loads[open_segment.master] += open_segment.load
    return loads


def excess(loads: Mapping[str, float], mean: float) -> float:
    """How far the highest load is above the mean, as a ratio."""
    return max(loads.values()) / mean - 1 if loads and mean > 0 else 0.0


# ---- groups, then the masters of each -------------------------------------------------------------------


def _spread_broker_groups(
    standing: dict[PartitionId, OpenSegment],
    shares: Mapping[str, BrokerGroupShare],
    limits: Limits,
    barred: Collection[PartitionId],
    moves: dict[PartitionId, Move],
) -> None:
    weights = {name: share.weight for name, share in shares.items()}
    spreading = _Spreading(broker_group_loads(standing.values(), shares), weights)
    if not spreading.is_due(limits, limits.floor):
        return
    at: dict[str, list[OpenSegment]] = {name: [] for name in shares}
    for open_segment in standing.values():
        if open_segment.partition not in barred:
            at[open_segment.broker_group].append(open_segment)
    while len(moves) < MOVES_MAX and (found := spreading.best_move(at, limits.end)) is not None:
        open_segment, name = found
        masters = master_loads(standing.values(), shares[name].brokers)
        target = min(masters, key=lambda broker: (masters[broker], broker))
        at[open_segment.broker_group].remove(open_segment)
        moves[open_segment.partition] = Move(open_segment, name, target)
        standing[open_segment.partition] = replace(open_segment, broker_group=name, master=target)


def _spread_masters(
    standing: dict[PartitionId, OpenSegment],
    share: BrokerGroupShare,
    limits: Limits,
    barred: Collection[PartitionId],
    moves: dict[PartitionId, Move],
) -> None:
    """Plan moves between the masters of one broker group. Open segments that already have a move get no second one."""
    own = [open_segment for open_segment in standing.values() if open_segment.broker_group == share.name]
    spreading = _Spreading(master_loads(own, share.brokers), dict.fromkeys(share.brokers, 1.0))
    if not spreading.is_due(limits, limits.floor / len(share.brokers)):
        return
    at: dict[str, list[OpenSegment]] = {broker: [] for broker in share.brokers}
    for open_segment in own:
        if open_segment.master in at and open_segment.partition not in barred and open_segment.partition not in moves:
            at[open_segment.master].append(open_segment)
    while len(moves) < MOVES_MAX and (found := spreading.best_move(at, limits.end)) is not None:
        open_segment, broker = found
        at[open_segment.master].remove(open_segment)
        moves[open_segment.partition] = Move(open_segment, share.name, broker)
        standing[open_segment.partition] = replace(open_segment, master=broker)


class _Spreading:
    """The loads of places (broker groups, or brokers) while moves are planned, each divided by its place's weight."""

    def __init__(self, loads: dict[str, float], weights: Mapping[str, float]) -> None:
        self._loads = loads
        self._weights = weights
        self._mean = sum(loads[name] * weights[name] for name in loads) / sum(weights.values()) if loads else 0.0
        self._stuck: set[str] = set()  # places for which no move lowers the load

    def is_due(self, limits: Limits, floor: float) -> bool:
        """Whether the highest load is high enough to begin."""
        return len(self._loads) > 1 and self._mean > floor and excess(self._loads, self._mean) > limits.begin

    def best_move(self, at: Mapping[str, Sequence[OpenSegment]], end: float) -> tuple[OpenSegment, str] | None:
        """Find the move that lowers the highest load most, and count it as made; None if no move helps or is needed."""
        while True:
            high = [name for name in self._loads if name not in self._stuck]
            source = max(high, key=lambda name: (self._loads[name], name), default="")
            if not source or self._loads[source] <= self._mean * (1 + end):
                return None
            low = nsmallest(TARGETS_TRIED, self._loads, key=lambda name: (self._loads[name], name))
            options = [
                (
                    max(self._without(open_segment, source), self._with(open_segment, target)),
                    open_segment.partition,
                    open_segment,
                    target,
                )
                for target in low
                if target != source
                for open_segment in at[source]
            ]
            best = min(options, key=lambda option: option[:2], default=None)
            if best is not None and best[0] <= self._loads[source] - GAIN_MIN * self._mean:
                _, _, open_segment, target = best
                self._loads[source], self._loads[target] = (
                    self._without(open_segment, source),
                    self._with(open_segment, target),
                )
                return open_segment, target
            self._stuck.add(source)

    def _without(self, open_segment: OpenSegment, name: str) -> float:
        return self._loads[name] - open_segment.load / self._weights[name]

    def _with(self, open_segment: OpenSegment, name: str) -> float:
        return self._loads[name] + open_segment.load / self._weights[name]
