"""The newest batches of all partitions, in memory: what readers at the head are served from.

Oldest out first, over all segments together, and never one that the engine does not have yet: so whatever was
submitted can be read, from here or from the engine, without a gap between the two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final

from ...core.values.log import Batch

ENTRY_OVERHEAD_BYTES: Final = 1200
"""A parsed header, its numbers, and the places in two queues (measured with tracemalloc)."""


class HeadCache:
    """A bounded queue of batches with a view for each segment, in which indexes are contiguous."""

    def __init__(self, size_bytes_max: int) -> None:
        self._size_bytes_max = size_bytes_max
        self.size_bytes = 0
        self._order: deque[tuple[int, tuple[int, int], Batch]] = deque()
        self._segments: dict[tuple[int, int], deque[Batch]] = {}

    def add(self, ticket: int, partition: int, batch: Batch) -> None:
        """Take up a batch that was submitted under `ticket`."""
        place = (partition, batch.header.segment)
        kept = self._segments.get(place)
        if kept is None:
            kept = self._segments[place] = deque()
        elif kept[-1].header.end_index != batch.header.base_index:
            self._drop(kept)
        kept.append(batch)
        self._order.append((ticket, place, batch))
        self.size_bytes += batch.size_bytes + ENTRY_OVERHEAD_BYTES

    def evict(self, written_ticket: int) -> None:
        """Let go of the oldest beyond the limit, as far as the engine has them."""
        order = self._order
        while self.size_bytes > self._size_bytes_max and order and order[0][0] <= written_ticket:
            _ticket, place, batch = order.popleft()
            kept = self._segments.get(place)
            if kept and kept[0] is batch:  # else it was cut off and is accounted for
                kept.popleft()
                self.size_bytes -= batch.size_bytes + ENTRY_OVERHEAD_BYTES
                if not kept:
                    del self._segments[place]

    def truncate(self, partition: int, segment: int, length: int) -> int:
        """Cut a segment; returns the bytes of the batches that went."""
        kept = self._segments.get((partition, segment))
        gone = 0
        while kept and kept[-1].header.base_index >= length:
            batch = kept.pop()
            gone += batch.size_bytes
            self.size_bytes -= batch.size_bytes + ENTRY_OVERHEAD_BYTES
        if kept is not None and not kept:
            del self._segments[(partition, segment)]
        return gone

    def first_index(self, partition: int, segment: int) -> int | None:
        """The index from which on the segment's batches are here, or None if none is."""
        kept = self._segments.get((partition, segment))
        return kept[0].header.base_index if kept else None

    def of_segment(self, partition: int, segment: int) -> list[Batch]:
        """The newest batches of a segment, up to its end."""
        return list(self._segments.get((partition, segment), ()))

    def read(self, partition: int, segment: int, from_index: int, until_index: int, max_bytes: int) -> list[Batch]:
        """Batches of [from_index, until_index), at least one if there is any; `from_index` must not lie before."""
        kept = self._segments.get((partition, segment))
        found: list[Batch] = []
        if not kept:
            return found
        assert kept[0].header.base_index <= from_index, (kept[0].header.base_index, from_index)
        at = bisect_right(kept, from_index, key=lambda batch: batch.header.base_index) - 1
        size = 0
        while at < len(kept):
            batch = kept[at]
            size += batch.size_bytes
            if batch.header.base_index >= until_index or (found and size > max_bytes):
                break
            if batch.header.end_index > from_index:
                found.append(batch)
            at += 1
        return found

    def _drop(self, kept: deque[Batch]) -> None:
        for batch in kept:
            self.size_bytes -= batch.size_bytes + ENTRY_OVERHEAD_BYTES
        kept.clear()
