"""Counts messages between two places of a partition, and finds the place some messages further on. Pure.

An offset is a segment and an index in it. To count over several segments, their lengths are needed. Lengths of closed
segments never change, so brokers are asked for them once (`client.plan_range`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from seriatim_api.ids import INDEX_BITS, make_offset, split_offset


class Span(NamedTuple):
    """The kept messages [first, last) of a closed segment."""

    segment: int
    first: int
    last: int


class Lengths:
    """The known lengths of a partition's closed segments.

    Args:
        start: An offset. Lengths are known from its segment on.
        end: An offset. Lengths are known up to its segment; all segments before it are closed.
        spans: The kept messages of these segments, in ascending order. Segments without messages are left out.
    """

    def __init__(self, start: int = 0, end: int = 0, spans: Iterable[Span] = ()) -> None:
        self._from = split_offset(start)[0]
        self._to = split_offset(end)[0]
        self._spans = sorted(span for span in spans if span.segment < self._to)

    def suffice(self, start: int, end: int) -> bool:
        """Whether the known lengths suffice to count the messages of [start, end)."""
        first, last = start >> INDEX_BITS, end >> INDEX_BITS
        return first == last or start >= end or (self._from <= first and last <= self._to)

    def _parts(self, start: int, end: int) -> Iterator[Span]:
        assert self.suffice(start, end), (start, end)
        if start >= end:
            return
        (segment, index), (last, last_index) = split_offset(start), split_offset(end)
        if segment < last:
            for span in self._spans:
                first = max(span.first, index) if span.segment == segment else span.first
                if segment <= span.segment < last and first < span.last:
                    yield Span(span.segment, first, span.last)
            index = 0
        if index < last_index:
            yield Span(last, index, last_index)

    def count(self, start: int, end: int) -> int:
        """Count the messages of [start, end); 0 if `end` is before `start`."""
        if start >> INDEX_BITS == end >> INDEX_BITS:  # the usual case, 10,000 times in a micro-batch
            return max(end - start, 0)
        return sum(part.last - part.first for part in self._parts(start, end))

    def advance(self, start: int, end: int, count: int) -> int:
        """Return the offset `count` messages after `start`, at most `end`."""
        if count <= 0:
            return start
        for part in self._parts(start, end):
            held = part.last - part.first
            if count <= held:
                return make_offset(part.segment, part.first + count)
            count -= held
        return end


UNKNOWN = Lengths()
"""No lengths. Most partitions need none, because start and end are in one segment."""
