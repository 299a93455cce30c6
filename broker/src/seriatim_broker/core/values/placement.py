"""Where partitions go: rendezvous hashing of (partition, group), weighted.

Every broker computes the same order from the same names, a group that comes or goes moves only what it must, and the
weights say how much of the load a group should get.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from seriatim_api.ids import MemberId, PartitionId

CHAIN_WIDTH_DEFAULT = 5
"""Groups that a send chain names: enough to fail over several times, few enough for a small record."""


class Intent(enum.Enum):
    """What is wanted of a broker group.

    CORDONED: no head stands on it while another whole group will do; its data stays. DRAINING: and its sealed segments
    are copied to other groups, so that it can be removed.
    """

    ACTIVE = "active"
    CORDONED = "cordoned"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """The intent for a group, and its share of the load in proportion to the others'."""

    intent: Intent = Intent.ACTIVE
    weight: float = 1.0


DEFAULT_SPEC = GroupSpec()
"""Of a group that nobody said anything about."""


def placeable(groups: Iterable[str], specs: Mapping[str, GroupSpec]) -> list[str]:
    """The groups that new partitions and heads go to: the active ones, or all if there is none. Sorted."""
    names = sorted(groups)
    return [name for name in names if specs.get(name, DEFAULT_SPEC).intent is Intent.ACTIVE] or names


def weights_of(specs: Mapping[str, GroupSpec]) -> dict[str, float]:
    """The weights that are not the default."""
    return {name: spec.weight for name, spec in specs.items()}


def score(name: str, partition: int, weight: float) -> float:
    """How much `name` wants the partition; the highest gets it, and over many partitions in proportion to weight."""
    assert weight > 0
    digest = hashlib.blake2b(f"{partition}/{name}".encode(), digest_size=8).digest()
    fraction = (int.from_bytes(digest, "big") + 0.5) / 2**64
    return -weight / math.log(fraction)


def order(names: Sequence[str], partition: int, weights: Mapping[str, float] | None = None) -> list[str]:
    """The names, the one that wants the partition most first."""
    weights = weights or {}
    return sorted(names, key=lambda name: (-score(name, partition, weights.get(name, 1.0)), name))


def send_chain(
    partition: PartitionId,
    groups: Sequence[str],
    *,
    chain_width: int = CHAIN_WIDTH_DEFAULT,
    weights: Mapping[str, float] | None = None,
) -> tuple[str, ...]:
    """The groups of a new partition's send chain, head first."""
    assert chain_width >= 1
    return tuple(order(groups, partition, weights)[:chain_width])


def healer(partition: PartitionId, segment_no: int, candidates: Sequence[MemberId]) -> MemberId | None:
    """Which of the candidates should copy a segment: spread by hash, the same whoever computes it."""
    return next(iter(healers(partition, segment_no, candidates, 1)), None)


def healers(partition: PartitionId, segment_no: int, candidates: Sequence[MemberId], count: int) -> list[MemberId]:
    """The same for several copies; fewer if there are not so many candidates."""
    by_name = {str(member): member for member in candidates}
    return [by_name[name] for name in order(list(by_name), partition << 23 | segment_no)[: max(count, 0)]]
