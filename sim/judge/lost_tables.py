"""Which producer tables a declared loss took, so that a repeat of a batch comes as a new message (`TABLES_LOST`)."""

from __future__ import annotations

from itertools import pairwise

from seriatim_api.ids import PartitionId, make_offset
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.segment import SegmentState

from .excuses import Excuse
from .seen import Seen
from .views import messages_of


def lost_below(seen: Seen, chain: Chain) -> int:
    """The number of the last segment that was declared lost with all tables before it; 0: none was.

    The segment after that one began with an incomplete table, so it had none of them either.
    """
    segments = (*seen.left.get(chain.partition, ()), *chain.segments[:-1])
    ends = [
        later.no
        for before, later in pairwise(segments)
        if later.state is SegmentState.LOST
        and began_incomplete(seen, chain, later.no + 1)
        and (before.state is SegmentState.LOST or _left_early(seen, chain, before.no, later.no))
    ]
    return max(ends, default=0)


def comes_anew(seen: Seen, partition: PartitionId, message: int, offset: int) -> bool:
    """Whether no broker can know that the message at an offset is the repeat of one before all lost tables."""
    end = make_offset(lost_below(seen, seen.history[partition][-1]) + 1, 0)
    is_repeat = offset >= end and any(
        of == partition and make_offset(no, index) < end and message in messages_of(batch)
        for (of, no, index), batch in seen.placed.items()
    )
    if is_repeat:
        seen.excuse(Excuse.TABLES_LOST)
    return is_repeat


def began_incomplete(seen: Seen, chain: Chain, no: int) -> bool:
    """Whether a segment began with an incomplete table; it may have left the record since."""
    history = (*seen.history.get(chain.partition, ()), chain)
    return any(segment.incomplete_table for known in history for segment in known.segments if segment.no == no)


def _left_early(seen: Seen, chain: Chain, no: int, next_no: int) -> bool:
    """Whether a segment had left the record when the segment after the next one was opened."""
    history = (*seen.history.get(chain.partition, ()), chain)
    opened = next(known for known in history if known.open_segment.no > next_no)
    return opened.segment(no) is None
