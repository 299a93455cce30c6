"""Measures for how long a partition accepted nothing: the intervals between its acknowledgements. This module is pure.

A gap goes from the last acknowledgement before a fault to the first one after it. So it includes the time between two
sends of the producer, which is a few milliseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from math import inf


class AckTimes:
    """The times at which each partition acknowledged something, in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._times: dict[int, list[float]] = {}

    def add(self, partition: int, at: float) -> None:
        """Add an acknowledgement. No time of a partition is below the one before it."""
        times = self._times.setdefault(partition, [])
        assert not times or at >= times[-1], "acknowledgements are noted as they come"
        times.append(at)

    def last(self, partition: int) -> float:
        """Return the time of a partition's newest acknowledgement; minus infinity before the first."""
        times = self._times.get(partition)
        return times[-1] if times else -inf

    def gap_s(self, partition: int, begin: float, end: float) -> float:
        """Return the longest time without an acknowledgement that overlaps [begin, end], in seconds.

        A gap that began before `begin` counts from its true begin. If no acknowledgement came between the last one and
        `end`, the gap ends at `end`, although the true gap may be longer.
        """
        assert begin <= end
        times = self._times.get(partition, [])
        at = bisect_right(times, begin)
        last = times[at - 1] if at else begin
        longest = 0.0
        while last < end:
            following = times[at] if at < len(times) else end
            longest = max(longest, following - last)
            last, at = following, at + 1
        return longest

    def worst_gap_s(self, partitions: Iterable[int], begin: float, end: float) -> float | None:
        """Return the longest gap of any of these partitions; None if there are no partitions."""
        return max((self.gap_s(partition, begin, end) for partition in partitions), default=None)
