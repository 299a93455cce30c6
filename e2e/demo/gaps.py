"""Measures for how long a partition accepted nothing. This module is pure.

A *silence* of a partition is a time in which messages wait for their
acknowledgement and none comes. It begins at the last acknowledgement, or when the first message began to wait. So a
producer that has sent all, or that pauses, makes no silence. `Waits` finds silences where messages are
sent. `Silences` collects them where the faults are known. For a producer that always sends, the time between two
acknowledgements serves as a silence too. It includes the few milliseconds between two sends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from math import inf
from typing import Final

UNDER_WAY_S: Final = 2.0
"""Messages are under way on a partition if it acknowledged one at most this many seconds ago."""


class Waits:
    """The messages of each partition that wait for their acknowledgement, as their producer sees them.

    Attributes:
        longest_s: The longest silence so far that an acknowledgement ended, in seconds.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.since: dict[int, float] = {}  # by partition: when its present silence began
        self.longest_s = 0.0

    def send(self, partition: int, at: float, count: int) -> None:
        """Note that this many messages begin to wait."""
        if not self._counts.get(partition):
            self.since[partition] = at
        self._counts[partition] = self._counts.get(partition, 0) + count

    def acknowledge(self, partition: int, at: float) -> float:
        """Note an acknowledgement. Return when the silence began that it ends."""
        begun = self.since[partition]
        self.longest_s = max(self.longest_s, at - begun)
        self.since[partition] = at
        return begun

    def settle(self, partition: int, count: int) -> None:
        """Note that `count` messages wait no longer, whatever their outcome is."""
        assert 0 < count <= self._counts.get(partition, 0), "an outcome for what was not sent"
        self._counts[partition] -= count
        if not self._counts[partition]:
            del self.since[partition]


class Silences:
    """The silences of each partition, in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._begins: dict[int, list[float]] = {}
        self._ends: dict[int, list[float]] = {}
        self._open: Mapping[int, float] = {}
        self._open_at = -inf

    def add(self, partition: int, begin: float, end: float) -> None:
        """Add a silence that ended. No end of a partition is below the one before it."""
        ends = self._ends.setdefault(partition, [])
        assert begin <= end, "a silence ends after its begin"
        assert not ends or end >= ends[-1], "silences are noted as they end"
        self._begins.setdefault(partition, []).append(begin)
        ends.append(end)

    def lasting(self, since: Mapping[int, float], at: float) -> None:
        """Note the silences that lasted at that time: by partition, when they began.

        What happened after that time is not known yet. So a silence counts up to it only. Otherwise the age of the
        report, up to 0.1 s, would count as silence.
        """
        self._open, self._open_at = since, at

    def last(self, partition: int) -> float:
        """Return when the newest silence of a partition ended; minus infinity before the first."""
        ends = self._ends.get(partition)
        return ends[-1] if ends else -inf

    def of(self, partition: int) -> list[tuple[float, float]]:
        """All silences of a partition that ended, oldest first."""
        return list(zip(self._begins.get(partition, ()), self._ends.get(partition, ()), strict=True))

    def gap_s(self, partition: int, begin: float, end: float) -> float:
        """Return the longest silence that overlaps [begin, end], in seconds, from its true begin to its true end.

        A silence that still lasts counts up to `end`, but not beyond what is known.
        """
        assert begin <= end
        begins, ends = self._begins.get(partition, []), self._ends.get(partition, [])
        longest = max(0.0, min(end, self._open_at) - self._open.get(partition, inf))
        for at in range(bisect_left(ends, begin), len(ends)):
            if begins[at] > end:
                break
            longest = max(longest, ends[at] - begins[at])
        return longest

    def worst_gap_s(self, partitions: Iterable[int], begin: float, end: float) -> float | None:
        """Return the longest silence of any of these partitions; None if there are no partitions."""
        return max((self.gap_s(partition, begin, end) for partition in partitions), default=None)

    def is_under_way(self, partition: int, at: float) -> bool:
        """Whether messages were under way at that time: one was acknowledged just before, or one waited."""
        begins, ends = self._begins.get(partition, []), self._ends.get(partition, [])
        number = bisect_right(ends, at)
        if number and at - ends[number - 1] <= UNDER_WAY_S:
            return True
        if number < len(ends):
            return begins[number] <= at
        return self._open.get(partition, inf) <= at

    def was_struck(self, partition: int, at: float) -> bool:
        """Whether messages were under way on the partition at that time, and it acknowledged one after it."""
        ends = self._ends.get(partition, [])
        return self.is_under_way(partition, at) and bool(ends) and ends[-1] > at
