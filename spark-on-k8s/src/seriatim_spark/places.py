"""Counting messages between two places of a partition, and finding the place some messages further on. Pure.

An offset is a segment and an index in it, so counting across segments needs their lengths. Those of closed segments
never change: they are asked for once (`client.plan_range`) and kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from seriatim_api.ids import INDEX_BITS, make_offset, split_offset


class Span(NamedTuple):
    """The messages [first, last) of a closed segment that are kept."""

    segment: int
    first: int
    last: int


class Lengths:
    """What is known of the closed segments of a partition.

    Args:
        start: An offset.
        end: An offset; all segments below its own are closed.
        spans: Of these segments, as far as they have messages, ascending.
    """

    def __init__(self, start: int = 0, end: int = 0, spans: Iterable[Span] = ()) -> None:
        self._from = split_offset(start)[0]
        self._to = split_offset(end)[0]
        self._spans = sorted(span for span in spans if span.segment < self._to)

    def suffice(self, start: int, end: int) -> bool:
        """Whether messages of [start, end) can be counted."""
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
        """Messages of [start, end); 0 if it ends before it begins."""
        if start >> INDEX_BITS == end >> INDEX_BITS:  # nearly always, and asked 10,000 times in a micro-batch
            return max(end - start, 0)
        return sum(part.last - part.first for part in self._parts(start, end))

    def advance(self, start: int, end: int, count: int) -> int:
        """The offset `count` messages behind `start`, at most `end`."""
        if count <= 0:
            return start
        for part in self._parts(start, end):
            held = part.last - part.first
            if count <= held:
                return make_offset(part.segment, part.first + count)
            count -= held
        return end


UNKNOWN = Lengths()
"""Nothing is known: of most partitions nothing needs to be."""
