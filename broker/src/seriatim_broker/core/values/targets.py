"""The places in a partition to which a consumer group may be moved.

A place is a segment and an index in it. The chain record says where the partition begins, and how long sealed segments
are. Only the server of a segment that is not sealed can say how far it can be read.
"""

from __future__ import annotations

from seriatim_api.errors import OffsetOutOfRangeError
from seriatim_api.ids import INDEX_MAX, SEGMENT_NO_MAX, format_offset, make_offset

from .chain import Chain
from .positions import Place, first_kept, is_dropped
from .segment import Segment, SegmentState


def named(place: Place) -> str:
    """The place as users read it: `segment:index`."""
    return format_offset(make_offset(*place))


def first_place(chain: Chain) -> Place:
    """The place of the first message that the partition keeps, or of the next one that it will get."""
    first = first_kept(chain)
    segment = chain.segment(first.segment_no)
    assert segment is not None
    return _forward(chain, segment, first.index)


def place_of(chain: Chain, segment_no: int, index: int, known_len: int) -> Place:
    """The place of the first message at or after (segment, index).

    At the end of a sealed segment, in a LOST one, and in a folded one, that is the beginning of the next segment.

    Args:
        chain: The partition's record.
        segment_no: The number of a segment.
        index: An index in it.
        known_len: If that segment is the open one: the index below which it can be read.

    Raises:
        OffsetOutOfRangeError: The place is before the first message that is kept, beyond the end, or in a segment that
            is not settled.
    """
    if not 0 < segment_no <= SEGMENT_NO_MAX or not 0 <= index <= INDEX_MAX:
        raise OffsetOutOfRangeError(f"no partition can have a place {segment_no}:{index}")
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
            f"{named(asked)} is beyond the end: the last segment is {last.no}", last_segment=last.no
        )
    if segment.no != segment_no:  # the segment was folded
        index = 0
    length = segment.sealed_len if segment.state is SegmentState.SEALED else known_len
    assert length is not None
    if segment.state is SegmentState.UNSETTLED and index:
        text = f"segment {segment.no} is not settled, so it is not known yet how many messages it has"
        raise OffsetOutOfRangeError(f"{named(asked)}: {text}", segment=segment.no)
    if segment.state is not SegmentState.LOST and index > length:
        end = Place(segment.no, length)
        what = "the end of the partition is" if segment.no == chain.open_segment.no else "its segment ends at"
        raise OffsetOutOfRangeError(f"{named(asked)} is beyond the end: {what} {named(end)}", end=named(end))
    return _forward(chain, segment, index)


def _forward(chain: Chain, segment: Segment, index: int) -> Place:
    """The place, or the beginning of the next segment if it is the end of a sealed segment or in a LOST one."""
    while segment.state is SegmentState.LOST or (segment.state is SegmentState.SEALED and index == segment.sealed_len):
        following = chain.after(segment.no)
        assert following is not None, "the last segment is open"
        segment, index = following, following.start
    return Place(segment.no, index)
