"""What was reported to a reader as gone: ranges of offsets, so that no offset is reported twice.

The same loss is found in several ways. A segment is declared lost after messages that retention dropped; lists of keys
have messages in it; and the next server reports all that its record notes. So brokers and clients keep what they
reported, and tell the difference.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from .ids import split_offset

TOLD_MAX: Final = 1_000
"""Maximum number of ranges that are kept. Above it, those with the lowest offsets are forgotten. These might be
reported again, but nothing is ever left out."""


class Told(NamedTuple):
    """The offsets [first, end) were reported as gone; they had `messages` messages. 0: it is not known how many."""

    first: int
    end: int
    messages: int = 0


def tell(told: tuple[Told, ...], gap: Told) -> tuple[tuple[Told, ...], list[Told]]:
    """Add a gap to what was reported.

    Args:
        told: What was reported so far, in order; no two ranges touch.
        gap: What is gone. If `messages` is 0, it is not known how many.

    Returns:
        What was reported from now on, and the parts of the gap that are new, in order.
    """
    if gap.end <= gap.first:
        return told, []
    begin = bisect_left(told, gap.first, key=lambda range_: range_.end)
    end = bisect_right(told, gap.end, key=lambda range_: range_.first)
    touched = told[begin:end]
    parts = [part for part in _between(gap, touched) if part.messages or not gap.messages]
    if len(touched) == 1 and touched[0].first <= gap.first and gap.end <= touched[0].end:
        return told, parts
    whole = Told(
        min([gap.first, *(range_.first for range_ in touched)]),
        max([gap.end, *(range_.end for range_ in touched)]),
        sum(range_.messages for range_ in touched) + sum(max(part.messages, 0) for part in parts),
    )
    after = (*told[:begin], whole, *told[end:])[-TOLD_MAX:]
    return after, [part._replace(messages=max(part.messages, 0)) for part in parts]


def told_below(told: tuple[Told, ...], offset: int) -> tuple[Told, ...]:
    """What was reported below an offset: what is from there on is read again, and reported again if it is gone."""
    kept = told[: bisect_left(told, offset, key=lambda range_: range_.first)]
    return tuple(range_ if range_.end <= offset else Told(range_.first, offset) for range_ in kept)


def _between(gap: Told, touched: tuple[Told, ...]) -> Iterator[Told]:
    """The parts of a gap that are in none of these ranges.

    How many messages they have: within a segment, indexes count them. Of a part that goes over the end of a segment
    only the sum is known. A count below 0 says that the sums do not fit together.
    """
    inside = [(max(range_.first, gap.first), min(range_.end, gap.end)) for range_ in touched]
    edges = [gap.first, *(edge for pair in inside for edge in pair), gap.end]
    parts = [part for part in list(pairwise(edges))[::2] if part[0] < part[1]]
    if not gap.messages or parts == [(gap.first, gap.end)]:
        yield from (Told(*part, gap.messages) for part in parts)
        return
    left = gap.messages - sum(_length(*part) or 0 for part in parts)
    for range_, part in zip(touched, inside, strict=True):
        is_whole = part == (range_.first, range_.end)
        left -= range_.messages if is_whole else _length(*part) or 0
    for part in parts:
        length = _length(*part)
        yield Told(*part, min(length, gap.messages) if length else left)


def _length(first: int, end: int) -> int | None:
    """How many messages offsets have, if both are of one segment."""
    return end - first if split_offset(first)[0] == split_offset(end)[0] else None
