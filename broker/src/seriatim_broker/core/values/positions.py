"""Places in a partition, found by append time, by index, and by bytes.

Append time does not fall along a chain (`SegmentLog.append`). So the first message at or after a time is found in two
steps: the chain record says which segment can have it, and a binary search over the batch headers of that segment finds
it (`Storage.find`). Neither the chain nor the log has an index of times.

There is one exception. If a clock was far ahead, the next master sets append time back (`append_time_ahead_ms_max`).
Then there may be several places at which append time passes the wanted time, and the answer is one of them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

from seriatim_api.ids import make_offset, split_offset

from .chain import Chain
from .segment import Segment, SegmentState


class Measure(enum.Enum):
    """The value by which a batch is found. Each of them grows along a segment, or stays equal."""

    INDEX = "index"
    """The index of its last message."""
    TIME = "time"
    """Its append time, in ms."""
    BYTES = "bytes"
    """The bytes of the segment's log before it."""


class Place(NamedTuple):
    """A place in a partition. Places are ordered by segment, then by index."""

    segment_no: int
    index: int  # type: ignore[assignment]  # it hides `tuple.index`, which no code calls on a place


class BatchPlace(NamedTuple):
    """Where a batch is: the indexes [index, end_index), and the `bytes_before` it in the log of its segment.

    `size_bytes` is its own size there. `previous_checksum` is the value of the segment's checksum chain before the
    batch.
    """

    index: int  # type: ignore[assignment]  # as of `Place`
    end_index: int
    bytes_before: int
    size_bytes: int
    append_time_ms: int
    previous_checksum: int

    def reaches(self, measure: Measure, value: int) -> bool:
        """Whether the batch, and so every batch after it, is at or above that value."""
        if measure is Measure.INDEX:
            return self.end_index > value
        return (self.append_time_ms if measure is Measure.TIME else self.bytes_before) >= value


def first_kept(chain: Chain, no: int = 0) -> Place:
    """The start of the first segment, from that number on, that is LOST, is open, or has messages."""
    kept = (segment for segment in chain.segments if segment.no >= no and not segment.is_stub)
    segment = next(kept, chain.open_segment)
    return Place(segment.no, segment.start)


def end_of_drops(chain: Chain, no: int = 0) -> Place:
    """The place up to which messages are gone: the start of the first segment, from that number on, that is open or has
    messages.

    Segments before it may be LOST. Retention drops messages after these too.
    """
    gone = SegmentState.LOST
    kept = (s for s in chain.segments if s.no >= no and not s.is_stub and s.state is not gone)
    segment = next(kept, chain.open_segment)
    return Place(segment.no, segment.start)


def position_of(chain: Chain, offset: int) -> int:
    """The position of an offset that retention dropped; 0 if its segment has left the record: not known."""
    no, index = split_offset(offset)
    segment = chain.segment(no)
    return segment.base + index if segment is not None and segment.base is not None else 0


def end_of_gone(chain: Chain | None, offset: int) -> tuple[int, bool]:
    """Up to which offset all messages of a segment are gone from there on, and whether they were declared lost.

    0: the message is not gone.
    """
    no, index = split_offset(offset)
    segment = chain.segment(no) if chain is not None else None
    is_lost = segment is not None and segment.state is SegmentState.LOST
    if segment is None or is_lost:
        return make_offset(no + 1, 0), is_lost
    return make_offset(no, segment.start) if index < segment.start else 0, False


def is_dropped(chain: Chain, place: Place, first: Place) -> bool:
    """Whether there were messages in [place, first), which retention dropped. `first` is `first_kept`."""
    if place >= first:
        return False
    kept, segment = chain.segment(first.segment_no), chain.from_no(place.segment_no)
    assert kept is not None
    assert segment is not None
    position = (segment.base or 0) + (place.index if segment.no == place.segment_no else 0)
    if segment.no != place.segment_no and place.segment_no <= segment.previous_no:
        position = 0  # the segment left the record, so the number of messages before it is not known any more
    return position < (kept.base or 0) + first.index


def kept_bytes(chain: Chain, end: Place, end_bytes: int) -> int | None:
    """Bytes of the batches from the first kept message to an end; None if the size of a segment is not known.

    Args:
        chain: The chain record.
        end: Where to stop counting.
        end_bytes: Bytes of all batches below `end` in its segment, including dropped ones.
    """
    total = 0
    for segment in chain.segments:
        if segment.no == end.segment_no:
            return total + max(end_bytes - segment.begin.size_bytes, 0)
        if segment.is_stub or segment.state is SegmentState.LOST:
            continue
        if segment.sealed_bytes is None:
            return None
        total += max(segment.sealed_bytes - segment.begin.size_bytes, 0)
    return None


def bytes_before(chain: Chain, no: int) -> int | None:
    """Bytes of all batches in the segments before that one, including dropped ones; None if that is not known."""
    if chain.segments[0].previous_no:
        return None  # segments have left the record, and with them their sizes
    total = 0
    for segment in chain.segments[: chain.parts.place(no)]:
        size_bytes = 0 if segment.sealed_len == 0 else segment.sealed_bytes
        if size_bytes is None:
            return None
        total += size_bytes
    return total


def segments_for_time(chain: Chain, time_ms: int) -> Iterator[Segment]:
    """The segments that may have the first message at or after a time, in the order in which to search them.

    The first message that is found is the answer. Segments without messages are left out. The list ends before an
    UNSETTLED segment, because its messages are not known yet. If no message is found, there is none.

    It looks at all segments, which takes about 1 ms with 10,000.
    """
    segments = chain.segments
    # `append_floor_ms` is the newest append time before a segment: the answer is in the last one with a lower floor.
    place = next((place for place, segment in enumerate(segments) if segment.append_floor_ms >= time_ms), len(segments))
    place = max(place - 1, 0)
    # The messages of an unsettled segment are not known when the next one is opened, so floors after it may be too
    # low. A segment with a complete producer table was opened when all before it were settled, so its floor is right.
    while place and segments[place].incomplete_table:
        place -= 1
    for segment in segments[place:]:
        if segment.state is SegmentState.UNSETTLED:
            return
        if segment.state is not SegmentState.LOST and not segment.is_stub:
            yield segment
