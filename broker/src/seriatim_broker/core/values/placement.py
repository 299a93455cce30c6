"""Where partitions go: rendezvous hashing of (partition, broker group), with weights.

Every broker computes the same order from the same names. A broker group that comes or goes moves as few partitions as
possible. The weights say how much of the load each broker group should get. "Group" means a broker group here.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from seriatim_api.ids import MemberId, PartitionId

CHAIN_WIDTH_DEFAULT = 5
"""How many groups a send chain names: enough for several failovers, few enough for a small record."""


class Intent(enum.Enum):
    """What an administrator or the operator wants of a broker group.

    CORDONED: it has no open segment while another complete group can take it; its data stays. DRAINING: in addition,
    its sealed segments are copied to other groups, so that it can be removed.
    """

    ACTIVE = "active"
    CORDONED = "cordoned"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class BrokerGroupSpec:
    """The intent of a group, and its share of the load in proportion to those of the others."""

    intent: Intent = Intent.ACTIVE
    weight: float = 1.0


DEFAULT_SPEC = BrokerGroupSpec()
"""The spec of a group for which none was set."""


def placeable(groups: Iterable[str], specs: Mapping[str, BrokerGroupSpec]) -> list[str]:
    """The groups for new partitions and open segments: the active ones, or all if none is active. Sorted."""
    names = sorted(groups)
    return [name for name in names if specs.get(name, DEFAULT_SPEC).intent is Intent.ACTIVE] or names


def copies_wanted(sizes: Iterable[int], min_copies: int) -> int:
    """How many copies segments should have: as many as the smallest of the broker groups has members.

    Every other group can then keep that many copies, too. A group that is just being made, with fewer than `min_copies`
    members, does not count.
    """
    return min((size for size in sizes if size >= min_copies), default=min_copies)


def weights_of(specs: Mapping[str, BrokerGroupSpec]) -> dict[str, float]:
    """The weights of all groups that have a spec."""
    return {name: spec.weight for name, spec in specs.items()}


def score(name: str, partition: int, weight: float) -> float:
    """The score of `name` for the partition. The highest one gets it, over many partitions in proportion to weight."""
    assert weight > 0
    digest = hashlib.blake2b(f"{partition}/{name}".encode(), digest_size=8).digest()
    fraction = (int.from_bytes(digest, "big") + 0.5) / 2**64
    return -weight / math.log(fraction)


def order(names: Sequence[str], partition: int, weights: Mapping[str, float] | None = None) -> list[str]:
    """The names, the one with the highest score first."""
    weights = weights or {}
    return sorted(names, key=lambda name: (-score(name, partition, weights.get(name, 1.0)), name))


def send_chain(
    partition: PartitionId,
    groups: Sequence[str],
    *,
    chain_width: int = CHAIN_WIDTH_DEFAULT,
    weights: Mapping[str, float] | None = None,
) -> tuple[str, ...]:
    """The groups of a new partition's send chain, the first one to be used first."""
    assert chain_width >= 1
    return tuple(order(groups, partition, weights)[:chain_width])


def healer(partition: PartitionId, segment_no: int, candidates: Sequence[MemberId]) -> MemberId | None:
    """The candidate that should copy a segment: spread by hash, and the same on every broker."""
    return next(iter(healers(partition, segment_no, candidates, 1)), None)


def healers(partition: PartitionId, segment_no: int, candidates: Sequence[MemberId], count: int) -> list[MemberId]:
    """The candidates that should make `count` copies; fewer if there are not this many candidates."""
    by_name = {str(member): member for member in candidates}
    return [by_name[name] for name in order(list(by_name), partition << 23 | segment_no)[: max(count, 0)]]
