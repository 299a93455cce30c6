"""Balance: which heads should stand elsewhere, as a pure function of what the masters took lately.

Every member of a group writes what its masters take, so a group carries the sum of its heads; within the group, only
the master of a head deals with producers. So heads are spread over groups first, in proportion to their weights, and
then masters over the members of each group. Each step moves one head, from where the load is highest to where it is
lowest, and only if that lowers the higher of the two: the plan never makes the maximum worse, and it ends.

It begins above one limit and goes on to a lower one, so that a cluster that was balanced is not touched for the next
small change. Heads without traffic stay where they are: they cost nothing, and each move is a segment.
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
"""A move must lower the higher of the two loads by so much of the mean: less is noise."""

MOVES_MAX = 100
"""Of one plan: at two a second it is old before they are made, and the next one knows more."""

TARGETS_TRIED = 3
"""For each move the places with the lowest loads are looked at: with unequal weights the lowest may not be the best."""


@dataclass(frozen=True, slots=True)
class Head:
    """A partition's open segment: where it is, and what its master takes, in bytes a second (batches included)."""

    partition: PartitionId
    group: str
    master: str
    load: float


@dataclass(frozen=True, slots=True)
class GroupShare:
    """A whole, active group that has been so for a while: its members' names, and its share of the load."""

    name: str
    brokers: tuple[str, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Move:
    """A planned switch: the head with the partition goes to that group, under that master."""

    head: Head
    to_group: str
    to_master: str


@dataclass(frozen=True, slots=True)
class Limits:
    """When a plan begins, and how far it goes.

    Attributes:
        begin: The highest load may be so much above the mean, as a ratio, before anything is moved.
        end: Then heads are moved until it is no more than so much above it.
        floor: Mean loads below this, in bytes a second, are not worth a move.
    """

    begin: float
    end: float
    floor: float = 0.0

    def __post_init__(self) -> None:
        assert 0 < self.end <= self.begin


def plan(
    heads: Iterable[Head], groups: Iterable[GroupShare], limits: Limits, barred: Collection[PartitionId] = ()
) -> list[Move]:
    """The moves, in the order in which they help most.

    Args:
        heads: With traffic. Those on other groups than the given ones are left alone.
        groups: That may give and take heads.
        limits: When to begin, and how far to go.
        barred: Partitions that were moved not long ago.
    """
    shares = {group.name: group for group in groups}
    standing = {head.partition: head for head in heads if head.group in shares}
    moves: dict[PartitionId, Move] = {}
    _spread_groups(standing, shares, limits, barred, moves)
    for name in sorted(shares):
        _spread_masters(standing, shares[name], limits, barred, moves)
    return list(moves.values())


def after(heads: Iterable[Head], moves: Iterable[Move]) -> list[Head]:
    """Where the heads stand once the moves are made."""
    moved = {move.head.partition: move for move in moves}
    return [
        replace(head, group=moved[head.partition].to_group, master=moved[head.partition].to_master)
        if head.partition in moved
        else head
        for head in heads
    ]


def group_loads(heads: Iterable[Head], shares: Mapping[str, GroupShare]) -> dict[str, float]:
    """What each group carries, divided by its weight."""
    loads = dict.fromkeys(shares, 0.0)
    for head in heads:
        if head.group in loads:
            loads[head.group] += head.load / shares[head.group].weight
    return loads


def master_loads(heads: Iterable[Head], brokers: Sequence[str]) -> dict[str, float]:
    """What each broker takes as a master."""
    loads = dict.fromkeys(brokers, 0.0)
    for head in heads:
        if head.master in loads:
            loads[head.master] += head.load
    return loads


def excess(loads: Mapping[str, float], mean: float) -> float:
    """How much the highest load is above the mean, as a ratio."""
    return max(loads.values()) / mean - 1 if loads and mean > 0 else 0.0


# ---- groups, then the masters of each -------------------------------------------------------------------


def _spread_groups(
    standing: dict[PartitionId, Head],
    shares: Mapping[str, GroupShare],
    limits: Limits,
    barred: Collection[PartitionId],
    moves: dict[PartitionId, Move],
) -> None:
    weights = {name: share.weight for name, share in shares.items()}
    spreading = _Spreading(group_loads(standing.values(), shares), weights)
    if not spreading.is_due(limits, limits.floor):
        return
    at: dict[str, list[Head]] = {name: [] for name in shares}
    for head in standing.values():
        if head.partition not in barred:
            at[head.group].append(head)
    while len(moves) < MOVES_MAX and (found := spreading.best_move(at, limits.end)) is not None:
        head, name = found
        masters = master_loads(standing.values(), shares[name].brokers)
        target = min(masters, key=lambda broker: (masters[broker], broker))
        at[head.group].remove(head)
        moves[head.partition] = Move(head, name, target)
        standing[head.partition] = replace(head, group=name, master=target)


def _spread_masters(
    standing: dict[PartitionId, Head],
    share: GroupShare,
    limits: Limits,
    barred: Collection[PartitionId],
    moves: dict[PartitionId, Move],
) -> None:
    """Heads that are on their way already are not moved a second time."""
    own = [head for head in standing.values() if head.group == share.name]
    spreading = _Spreading(master_loads(own, share.brokers), dict.fromkeys(share.brokers, 1.0))
    if not spreading.is_due(limits, limits.floor / len(share.brokers)):
        return
    at: dict[str, list[Head]] = {broker: [] for broker in share.brokers}
    for head in own:
        if head.master in at and head.partition not in barred and head.partition not in moves:
            at[head.master].append(head)
    while len(moves) < MOVES_MAX and (found := spreading.best_move(at, limits.end)) is not None:
        head, broker = found
        at[head.master].remove(head)
        moves[head.partition] = Move(head, share.name, broker)
        standing[head.partition] = replace(head, master=broker)


class _Spreading:
    """Loads of places (groups, or brokers), each divided by the place's weight, while heads are moved between them."""

    def __init__(self, loads: dict[str, float], weights: Mapping[str, float]) -> None:
        self._loads = loads
        self._weights = weights
        self._mean = sum(loads[name] * weights[name] for name in loads) / sum(weights.values()) if loads else 0.0
        self._stuck: set[str] = set()  # places from which no move helps

    def is_due(self, limits: Limits, floor: float) -> bool:
        """Whether the highest load is so high that something should be moved."""
        return len(self._loads) > 1 and self._mean > floor and excess(self._loads, self._mean) > limits.begin

    def best_move(self, at: Mapping[str, Sequence[Head]], end: float) -> tuple[Head, str] | None:
        """The move that lowers the highest load most, done; None if none does, or all are low enough."""
        while True:
            high = [name for name in self._loads if name not in self._stuck]
            source = max(high, key=lambda name: (self._loads[name], name), default="")
            if not source or self._loads[source] <= self._mean * (1 + end):
                return None
            low = nsmallest(TARGETS_TRIED, self._loads, key=lambda name: (self._loads[name], name))
            options = [
                (max(self._without(head, source), self._with(head, target)), head.partition, head, target)
                for target in low
                if target != source
                for head in at[source]
            ]
            best = min(options, key=lambda option: option[:2], default=None)
            if best is not None and best[0] <= self._loads[source] - GAIN_MIN * self._mean:
                _, _, head, target = best
                self._loads[source], self._loads[target] = self._without(head, source), self._with(head, target)
                return head, target
            self._stuck.add(source)

    def _without(self, head: Head, name: str) -> float:
        return self._loads[name] - head.load / self._weights[name]

    def _with(self, head: Head, name: str) -> float:
        return self._loads[name] + head.load / self._weights[name]
