"""Listing: what is still delayed in the segments that this broker serves.

The rows on the disk say what was delayed when it was stored. The server of the segment says what is left of it.
"""

from __future__ import annotations

from seriatim_api import errors

from ..state.broker import BrokerState
from ..state.delayed import ALL, Firing, just_before
from ..state.partition import Partition
from ..state.segment_log import SegmentLog
from ..values.delayed_messages import (
    CompleteListed,
    DelayedFiltered,
    DelayedPending,
    FilterDelayed,
    FiringListed,
    ListComplete,
    ListFiring,
)
from ..values.log import DueRow
from . import ledger, serving


def list_firing(broker: BrokerState, partition: Partition, event: ListFiring) -> None:
    """Which of the segments with delayed messages are served here, and from where on rows of theirs may be left."""
    chain = partition.chain
    served: list[tuple[int, tuple[int, int]]] = []
    unserved: list[int] = []
    cancelled_count = 0
    for no in event.segments:
        segment, log = chain.segment(no) if chain is not None else None, partition.logs.get(no)
        if segment is not None and ledger.is_done(partition, no):
            # Not from the server: it would begin with the segment, write that it is done, and forget it, each time.
            cancelled_count += ledger.cancelled_count(partition, no)
        elif segment is None or not serving.is_server(broker, segment):
            unserved.append(no)
            if segment is not None and segment.server != broker.member:
                serving.ask_for_server(broker, partition, segment)
        elif log is not None and log.has_delayed:
            firing = serving.take_up(broker, partition, no)
            if firing is None:
                unserved.append(no)
                continue
            begin = first_left(firing, log)
            if begin < ALL:
                served.append((no, begin))
            cancelled_count += sum(bits.bit_count() for bits in firing.cancelled.blocks.values())
    if chain is None:
        partition.read_chain(broker)
    broker.out.emit(FiringListed(event.request, tuple(served), tuple(unserved), cancelled_count))


def first_left(firing: Firing, log: SegmentLog) -> tuple[int, int]:
    """A due time and an index: all rows up to there are passed, or in volleys. `ALL`: nothing is left."""
    fresh = log.delayed.fresh if log.delayed is not None else None
    known = min((*firing.ahead.rows[:1], *(fresh or ())), default=None)
    return firing.ahead.upto if known is None else min(firing.ahead.upto, just_before(known))


def complete_below(partition: Partition, no: int) -> int | None:
    """The index below which a segment is committed, if this member has all of that; None if it may not have it."""
    log = partition.logs.get(no)
    if log is None or partition.chain is None or not partition.chain.settled_before(no) or log.record.quarantined:
        return None
    return log.readable_below if log.is_in_sync or (log.active and log.unbroken) else None


def list_complete(broker: BrokerState, partition: Partition, event: ListComplete) -> None:
    """Of which of the segments this member has everything that is committed."""
    found = ((no, complete_below(partition, no)) for no in event.segments)
    lengths = tuple((no, length) for no, length in found if length is not None)
    broker.out.emit(CompleteListed(event.request, lengths))


def filter_delayed(broker: BrokerState, partition: Partition, event: FilterDelayed) -> None:
    """What is left of rows: not fired, not cancelled, and in no volley."""
    firing = serving.take_up(broker, partition, event.segment_no)
    if firing is None:
        error = errors.NotServingError(
            f"segment {event.segment_no} is not served here", retry_after_ms=serving.RETRY_AFTER_MS
        )
        broker.out.emit(DelayedFiltered(event.request, (), error))
        return
    readable = partition.logs[event.segment_no].readable_below
    left = [_left(firing, row) for row in event.rows if row.index < readable]
    broker.out.emit(DelayedFiltered(event.request, tuple(row for row in left if row is not None), None))


def on_pending(_broker: BrokerState, partition: Partition, event: DelayedPending) -> None:
    """This is how much waits in the partition: the limits of the topic are held against it."""
    log = partition.logs.get(event.segment_no)
    if log is not None and log.delayed is not None:
        log.delayed.pending = event.amount


def _left(firing: Firing, row: DueRow) -> DueRow | None:
    left = firing.left_of(row)
    if not left:
        return None
    first, message_count = left[0].first, sum(span.message_count for span in left)
    origin = row.origin + first - row.index if row.origin else 0
    return row._replace(index=first, message_count=message_count, origin=origin)
