"""Crossing: the group's cursor moves to the next segment, in one transaction at the coordinator.

Only when all of a sealed segment is acknowledged, durably on every eligible member, by a server that has the right.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.ids import make_offset

from .. import right
from ..chain import SegmentState
from ..effects import EndOfSegment, Gap, WriteCursor
from ..events import CursorRecord, WriteOutcome
from ..outbox import Outbox
from ..partition import Partition
from . import attempts, delivery
from .head import GroupHead, Phase, forget_if_unused, read_cursor, tell


def cross_if_done(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    """Everything is acknowledged: move the cursor to the next segment."""
    log = partition.logs.get(head.segment_no)
    if head.phase is not Phase.SERVING or log is None or not log.is_whole or head.syncs or head.writing is not None:
        return
    assert log.record.sealed_len is not None
    # Above it: what suspects lost had been consumed. What retention dropped has nothing to acknowledge.
    if max(head.safe_acked, log.start) < log.record.sealed_len:
        return
    if head.active is not None and head.delivered < log.start:  # a read was under way when it was dropped
        head.held_back = ()
        head.reading = 0
        delivery.tell_dropped(outbox, partition, head, log.start)
    wait_us = partition.write_wait_us(outbox)
    if wait_us:  # the coordinator refuses: the group stays here, its consumers with it, and looks again
        outbox.poll(min(wait_us, outbox.config.refused_us_max), "pump", partition.id, head.segment_no)
    elif right.may_deliver(outbox, partition, head.segment_no):
        move_on(outbox, partition, head, next_no(partition, head.segment_no))
    else:
        right.seek(outbox, partition, head.segment_no)


def next_no(partition: Partition, no: int) -> int:
    """The number of the segment behind that one; numbers of folded segments are passed over."""
    following = partition.chain.from_no(no + 1) if partition.chain is not None else None
    return following.no if following is not None else no + 1


def jump(outbox: Outbox, partition: Partition, head: GroupHead, next_no: int, reason: str) -> None:
    """The head segment is gone: the consumers are told of the gap, and the group goes on in a new epoch."""
    if _must_wait(outbox, partition, head):
        return
    for consumer in head.consumers:
        tell(outbox, consumer, Gap(head.segment_no, 0, reason))
    move_on(outbox, partition, head, next_no, new_epoch=True)


def move_on(outbox: Outbox, partition: Partition, head: GroupHead, next_no: int, *, new_epoch: bool = False) -> None:
    """Write the cursor."""
    if _must_wait(outbox, partition, head):
        return
    assert head.cursor is not None
    head.phase = Phase.CROSSING
    head.passes_alone = False
    dropped_from, position = _untold(partition, head)
    record = head.cursor.moved_to(next_no, new_epoch=new_epoch)
    record = replace(record, dropped_from=dropped_from, dropped_position=position)
    write_cursor(outbox, partition, head, record, head.cursor_revision)


def _untold(partition: Partition, head: GroupHead) -> tuple[int, int]:
    """From where on retention dropped what no consumer of the group is known to have been told of; 0, 0: nothing.

    Rule `untold-crosses` (I1): the group passes a segment without messages although nobody acknowledged anything in it.
    Its consumers may have been told, and may have died since: the next server tells them (again).
    """
    if head.dropped_from:
        return head.dropped_from, head.dropped_position
    segment = partition.chain.segment(head.segment_no) if partition.chain is not None else None
    if segment is None or segment.base is None or segment.state is SegmentState.LOST:
        return 0, 0
    if head.safe_acked >= segment.start:
        return 0, 0
    return make_offset(segment.no, head.safe_acked), segment.base + head.safe_acked


def write_cursor(
    outbox: Outbox,
    partition: Partition,
    head: GroupHead,
    record: CursorRecord,
    revision: int,
    chain_revision: int = 0,
) -> None:
    """One transaction on the group's cursor."""
    if _must_wait(outbox, partition, head):
        return
    head.crossing_serial = outbox.new_serial()
    outbox.emit(WriteCursor(partition.id, head.group, head.crossing_serial, record, revision, chain_revision))


def _must_wait(outbox: Outbox, partition: Partition, head: GroupHead) -> bool:
    """Whether the coordinator refuses writes; then the cursor is read and looked at again when it may take them."""
    wait_us = partition.write_wait_us(outbox)
    if wait_us:
        head.phase = Phase.LOADING
        outbox.poll(wait_us, "cursor", partition.id, head.group)
    return wait_us > 0


def on_written(outbox: Outbox, partition: Partition, head: GroupHead, outcome: WriteOutcome) -> None:
    """The group stands in the next segment, or somebody else moved it, or nobody knows, or the write was refused."""
    if outcome is WriteOutcome.DONE and head.phase is Phase.CROSSING:
        _end_segment(outbox, partition, head)
        return
    head.phase = Phase.LOADING
    head.drop_deliveries()
    head.reads_chain_first = outcome is WriteOutcome.CONFLICT
    if outcome is not WriteOutcome.REFUSED:
        read_cursor(outbox, partition, head)
    elif head.consumers or head.questions or head.operations:
        outbox.poll(partition.write_wait_us(outbox), "cursor", partition.id, head.group)
    else:
        forget_if_unused(partition, head)


def _end_segment(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    """The cursor has moved, and only now the consumers hear of the end: they go to the next server."""
    log = partition.logs.get(head.segment_no)
    sealed_len = log.record.sealed_len if log is not None and log.record.sealed_len is not None else 0
    following_no = next_no(partition, head.segment_no)
    following = partition.chain.segment(following_no) if partition.chain is not None else None
    server = following.server.broker if following is not None else ""
    event = EndOfSegment(head.segment_no, sealed_len, following_no, server, head.group_epoch)
    for consumer in head.consumers:
        tell(outbox, consumer, event)
    attempts.forget(partition, head.group)
    head.consumers = []
    head.active = None
    head.syncs = {}
    head.phase = Phase.LOADING
    if head.questions or head.operations:
        read_cursor(outbox, partition, head)
    forget_if_unused(partition, head)
