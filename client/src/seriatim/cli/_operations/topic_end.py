"""The end that a topic had when a command began, and whether a consumer group has read up to it.

An idle stream does not prove that the consumer group is at the end: it is idle too while it crosses empty segments or
waits for another server. So the command asks the brokers. The number of the open segment at the beginning comes from
the chain record. The end in that segment comes from the first answer of a server that knows it. Both stay fixed from
then on, so the command also ends on a topic that grows all the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from seriatim_api.ids import make_offset

from seriatim.cli._options.places import next_offset

if TYPE_CHECKING:
    from seriatim import GroupPartition


class TopicEnd:
    """The end that each partition had at the beginning, and whether a consumer group has reached it.

    Args:
        open_segments: For each partition number, the number of its open segment at the beginning.
    """

    def __init__(self, open_segments: Mapping[int, int]) -> None:
        self._open_segments = dict(open_segments)
        self._ends: dict[int, int] = {}
        self._reached: set[int] = set()
        self._next: dict[int, int] = {}
        self.is_drained = False

    @property
    def behind(self) -> tuple[int, ...]:
        """The partitions whose end the consumer group has not reached, as far as the answers say."""
        return tuple(partition for partition in self._open_segments if partition not in self._reached)

    @property
    def progress(self) -> tuple[int, ...]:
        """The offsets that the consumer group had in the last answers. They change when it moves."""
        return tuple(self._next.values())

    def see(self, rows: Iterable[GroupPartition]) -> None:
        """Note an answer of the brokers: the places of the consumer group. A row with an error says nothing."""
        lags: list[int | None] = []
        for row in rows:
            is_known = row.error is None and not row.end_is_at_least
            exact = max(row.end_position - row.position, 0) if is_known else None  # parked keys do not count here
            lags.append(exact)
            offset = next_offset(row)
            if row.error is not None or offset is None or row.partition not in self._open_segments:
                continue
            self._next[row.partition] = offset
            if row.segment == self._open_segments[row.partition] and exact is not None:
                self._ends.setdefault(row.partition, make_offset(row.segment, row.acked_index + exact))
            end = self._ends.get(row.partition, make_offset(self._open_segments[row.partition] + 1, 0))
            if offset >= end:
                self._reached.add(row.partition)
        self.is_drained = bool(lags) and not any(lag is None or lag for lag in lags)
