"""Deleted partitions, as ranges of their ids.

Ids are given out in order, and no id is used twice. So the ranges of a million deleted partitions are few: at most one
more than the partitions that still exist. Each id in a range is one whose partition was deleted, as its tombstone said;
no range is a guess. A coordinator that went back in time has older ranges: ids may be missing in them, but none is too
many. So no broker deletes data because the coordinator went back.
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
        """The set with these ids added."""
        # Rule `expires-without-range` (I13): the id of a removed tombstone goes in here. Without it:
        #   1. A topic is deleted while one broker is down. Its tombstones are removed after `deleted_kept_s`.
        #   2. The broker starts, and finds neither a chain record nor a tombstone of a partition on its disk.
        #   3. To the broker this is a coordinator that lost decisions. It waits for an administrator, and keeps the
        #      data.
        joined: list[tuple[int, int]] = []
        for first, end in sorted([*self.ranges, *((number, number + 1) for number in partitions)]):
            if joined and first <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((first, end))
        return DeletedPartitions(tuple(joined))


NONE_DELETED = DeletedPartitions()
"""The empty set: no tombstone was ever removed."""
