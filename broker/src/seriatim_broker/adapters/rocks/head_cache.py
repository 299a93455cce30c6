"""The newest batches of all partitions, in memory. Readers near the end of a log are served from here.

If there is no room, the oldest batches leave first, over all segments together. A batch leaves only when the engine has
it. So every submitted batch can be read, from here or from the engine, and there is no gap between the two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final

from ...core.values.log import Batch

ENTRY_OVERHEAD_BYTES: Final = 1200
"""What a batch takes besides its bytes: the parsed header and the places in two queues (measured with tracemalloc)."""


class HeadCache:
    """A bounded queue of batches, and for each segment a queue of its own, in which the indexes are contiguous."""

    def __init__(self, size_bytes_max: int) -> None:
        self._size_bytes_max = size_bytes_max
        self.size_bytes = 0
        self._order: deque[tuple[int, tuple[int, int], Batch]] = deque()
        self._segments: dict[tuple[int, int], deque[Batch]] = {}

    def add(self, ticket: int, partition: int, batch: Batch) -> None:
        """Add a batch that was submitted under `ticket`."""
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
        """Remove the oldest batches until the limit is kept, but none that the engine does not have yet."""
        order = self._order
        while self.size_bytes > self._size_bytes_max and order and order[0][0] <= written_ticket:
            _ticket, place, batch = order.popleft()
            kept = self._segments.get(place)
            if kept and kept[0] is batch:  # otherwise it was cut off before, and its bytes are already subtracted
                kept.popleft()
                self.size_bytes -= batch.size_bytes + ENTRY_OVERHEAD_BYTES
                if not kept:
                    del self._segments[place]

    def truncate(self, partition: int, segment: int, length: int) -> int:
        """Remove a segment's batches from index `length` on. Returns their bytes."""
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
        """The first index of the segment that is here; None if no batch of it is."""
        kept = self._segments.get((partition, segment))
        return kept[0].header.base_index if kept else None

    def of_segment(self, partition: int, segment: int) -> list[Batch]:
        """The batches of a segment that are here: its newest ones, up to its end."""
        return list(self._segments.get((partition, segment), ()))

    def read(self, partition: int, segment: int, from_index: int, until_index: int, max_bytes: int) -> list[Batch]:
        """Batches of [from_index, until_index), at least one if there is one, then up to `max_bytes`.

        `from_index` must not be below `first_index`.
        """
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
