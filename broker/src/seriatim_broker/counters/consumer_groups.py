"""Counts of what consumer groups do: plain integers, to which the code that handles messages adds.

`metrics.consumer_groups` makes series of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from seriatim_api.ids import PartitionId


@dataclass(slots=True, eq=False)
class ConsumerGroupCounts:
    """Counts of one consumer group on one partition. Each attribute has the name of its metric."""

    acked_messages: int = 0
    dead_letters: int = 0
    delivered_messages: int = 0
    expired_grants: int = 0
    failed_attempts: int = 0
    grants: int = 0
    keys_parked: int = 0
    repeated_grants: int = 0
    joined: int = 0  # subscriptions that add to it

    def take(self) -> tuple[int, ...]:
        """All counts since the last call."""
        taken = tuple(getattr(self, name) for name in COUNT_NAMES)
        for name in COUNT_NAMES:
            setattr(self, name, 0)
        return taken


COUNT_NAMES: Final = tuple(name for name in ConsumerGroupCounts.__slots__ if name != "joined")


class ConsumerGroupTally:
    """The counts of all consumer groups that consumers joined here."""

    def __init__(self) -> None:
        self._counts: dict[tuple[PartitionId, str], ConsumerGroupCounts] = {}

    def of(self, partition: PartitionId, group: str) -> ConsumerGroupCounts:
        """The counts of a consumer group on a partition."""
        known = self._counts.get((partition, group))
        if known is None:
            known = self._counts[partition, group] = ConsumerGroupCounts()
        return known

    def join(self, partition: PartitionId, group: str) -> ConsumerGroupCounts:
        """The same, for a subscription that adds to it until `ConsumerGroupCounts.joined` is lowered again."""
        counts = self.of(partition, group)
        counts.joined += 1
        return counts

    def take(self) -> Iterator[tuple[PartitionId, str, tuple[int, ...]]]:
        """All counts since the last call. Those to which no subscription adds any more are forgotten."""
        for (partition, group), counts in list(self._counts.items()):
            if not counts.joined:
                del self._counts[partition, group]
            taken = counts.take()
            if any(taken):
                yield partition, group, taken
