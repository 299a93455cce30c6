"""Deleted partitions, as ranges of their ids.

Ids are given out in order and never again. So of a million partitions that were made and deleted there are no more
ranges than partitions that lie between them, which still exist. The ranges say of each id in them that its partition
was deleted, as its tombstone did: they are no guess from what is missing. A coordinator that went back in time has
older ranges, in which ids are missing, and never one too many. So no data is deleted because metadata went back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from seriatim_api.ids import PartitionId


@dataclass(frozen=True, slots=True)
class DeletedPartitions:
    """A set of ids; `ranges` are (first, end) in order, and no two of them touch."""

    ranges: tuple[tuple[int, int], ...] = ()

    def __contains__(self, partition: PartitionId) -> bool:
        place = bisect_right(self.ranges, (partition + 1,)) - 1
        return place >= 0 and partition < self.ranges[place][1]

    def with_ids(self, partitions: Iterable[PartitionId]) -> DeletedPartitions:
        """These as well."""
        joined: list[tuple[int, int]] = []
        for first, end in sorted([*self.ranges, *((number, number + 1) for number in partitions)]):
            if joined and first <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((first, end))
        return DeletedPartitions(tuple(joined))


NONE_DELETED = DeletedPartitions()
"""No tombstone was ever removed."""
