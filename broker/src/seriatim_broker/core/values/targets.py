"""Places in a partition that a consumer group may be sent to: which there are, and where the next message lies.

A place is a segment and an index in it. The chain record says where the partition begins and how long sealed segments
are; how far a segment can be read that is not sealed, only its server can say.
"""

from __future__ import annotations

from seriatim_api.errors import OffsetOutOfRangeError
from seriatim_api.ids import INDEX_MAX, SEGMENT_NO_MAX, format_offset, make_offset

from .chain import Chain, Segment, SegmentState
from .positions import Place, first_kept, is_dropped


def named(place: Place) -> str:
    """As people read it: segment:index."""
    return format_offset(make_offset(*place))


def first_place(chain: Chain) -> Place:
    """Where the partition begins."""
    first = first_kept(chain)
    segment = chain.segment(first.segment_no)
    assert segment is not None
    return _forward(chain, segment, first.index)


def place_of(chain: Chain, segment_no: int, index: int, known_len: int) -> Place:
    """The place of the first message at or behind (segment, index).

    Behind the end of a sealed segment, and in one that was declared lost or that was empty and is not kept any more,
    that is the beginning of the next one.

    Args:
        chain: The partition's record.
        segment_no: Number of a segment.
        index: In it.
        known_len: Below which index that segment can be read, if it is the open one.

    Raises:
        OffsetOutOfRangeError: The place lies before the first message that is kept, or beyond the end.
    """
    if not 0 < segment_no <= SEGMENT_NO_MAX or not 0 <= index <= INDEX_MAX:
        raise OffsetOutOfRangeError(f"there is no place {segment_no}:{index} in any partition")
    asked = Place(segment_no, index)
    if is_dropped(chain, asked, first_kept(chain)):
        first = first_place(chain)
        raise OffsetOutOfRangeError(
            f"retention dropped {named(asked)}: the partition begins at {named(first)}", first=named(first)
        )
    segment = chain.from_no(segment_no)
    if segment is None:
        last = chain.open_segment
        raise OffsetOutOfRangeError(
            f"{named(asked)} lies beyond the end: the last segment is {last.no}", last_segment=last.no
        )
    if segment.no != segment_no:  # one that was folded
        index = 0
    length = segment.sealed_len if segment.state is SegmentState.SEALED else known_len
    assert length is not None
    if segment.state is SegmentState.UNSETTLED and index:
        text = f"segment {segment.no} is not settled: how many messages it has is not known yet"
        raise OffsetOutOfRangeError(f"{named(asked)}: {text}", segment=segment.no)
    if segment.state is not SegmentState.LOST and index > length:
        end = Place(segment.no, length)
        what = "the end of the partition is" if segment.no == chain.open_segment.no else "its segment ends at"
        raise OffsetOutOfRangeError(f"{named(asked)} lies beyond the end: {what} {named(end)}", end=named(end))
    return _forward(chain, segment, index)


def _forward(chain: Chain, segment: Segment, index: int) -> Place:
    """From the end of a segment, or from one that is lost, to the beginning of the next one."""
    while segment.state is SegmentState.LOST or (segment.state is SegmentState.SEALED and index == segment.sealed_len):
        following = chain.after(segment.no)
        assert following is not None, "the last segment is open"
        segment, index = following, following.start
    return Place(segment.no, index)
