"""Where a topic ended when a command began, and whether a consumer group has read up to there.

An idle stream is no proof of the end: a group that crosses empty segments, or waits for another server, is idle as
well. So the brokers are asked. The open segment's number at the beginning comes from the chain record. The end inside
that segment comes from the first answer of a server that knows it. Both are fixed from then on, so that a topic that
grows all the time has an end too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from seriatim_api.ids import make_offset, split_offset

from seriatim.cli._ports import GroupRow


class TopicEnd:
    """The end of each partition at the beginning, and how far a group is from it.

    Args:
        open_segments: By partition: the number of the segment that was open at the beginning.
    """

    def __init__(self, open_segments: Mapping[int, int]) -> None:
        self._open_segments = dict(open_segments)
        self._ends: dict[int, int] = {}
        self._reached: set[int] = set()
        self._next: dict[int, int] = {}
        self.is_drained = False

    @property
    def behind(self) -> tuple[int, ...]:
        """The partitions whose end the group has not been seen to reach."""
        return tuple(partition for partition in self._open_segments if partition not in self._reached)

    @property
    def progress(self) -> tuple[int, ...]:
        """How far the group was seen to be, as offsets: it changes when the group moves."""
        return tuple(self._next.values())

    def see(self, rows: Iterable[GroupRow]) -> None:
        """Take in an answer of the brokers: where the group stands. Rows with a problem say nothing."""
        lags: list[int | None] = []
        for row in rows:
            exact = row.lag if not row.lag_is_at_least and not row.problem else None
            lags.append(exact)
            if row.problem or row.next_offset is None or row.partition not in self._open_segments:
                continue
            self._next[row.partition] = row.next_offset
            segment, index = split_offset(row.next_offset)
            if segment == self._open_segments[row.partition] and exact is not None:
                self._ends.setdefault(row.partition, make_offset(segment, index + exact))
            end = self._ends.get(row.partition, make_offset(self._open_segments[row.partition] + 1, 0))
            if row.next_offset >= end:
                self._reached.add(row.partition)
        self.is_drained = bool(lags) and not any(lag is None or lag for lag in lags)
