"""Crossing: the group's cursor moves to the next segment, in one transaction at the coordinator.

Only when all of a sealed segment is acknowledged, durably on every eligible member, by a server that has the right.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.ids import make_offset

from ..peers import right
from ..state.broker import BrokerState
from ..state.consumers import GroupHead, GroupPhase
from ..state.partition import Partition
from ..values.chain import SegmentState
from ..values.effects import EndOfSegment, Gap, WriteCursor
from ..values.events import CursorRecord, WriteOutcome
from ..values.kinds import TimerKind
from . import delivery, delivery_attempts
from .head import forget_if_unused, read_cursor, tell


def cross_if_done(broker: BrokerState, partition: Partition, head: GroupHead) -> None:
    """Everything is acknowledged: move the cursor to the next segment."""
    log = partition.logs.get(head.segment_no)
    if (
        head.phase is not GroupPhase.SERVING
        or log is None
        or not log.is_whole
        or head.syncs
        or head.writing is not None
    ):
        return
    assert log.record.sealed_len is not None
    # Above it: what suspects lost had been consumed. What retention dropped has nothing to acknowledge.
    if max(head.safe_acked, log.start) < log.record.sealed_len:
        return
    if head.active is not None and head.delivered < log.start:  # a read was under way when it was dropped
        head.held_back = ()
        head.reading = 0
        delivery.tell_dropped(broker, partition, head, log.start)
    wait_us = partition.write_wait_us(broker)
    if wait_us:  # the coordinator refuses: the group stays here, its consumers with it, and looks again
        broker.poll(min(wait_us, broker.config.refused_us_max), TimerKind.PUMP, partition.id, head.segment_no)
    elif right.may_deliver(broker, partition, head.segment_no):
        move_on(broker, partition, head, next_no(partition, head.segment_no))
    else:
        right.seek(broker, partition, head.segment_no)


def next_no(partition: Partition, no: int) -> int:
    """The number of the segment behind that one; numbers of folded segments are passed over."""
    following = partition.chain.from_no(no + 1) if partition.chain is not None else None
    return following.no if following is not None else no + 1


def jump(broker: BrokerState, partition: Partition, head: GroupHead, next_no: int, reason: str) -> None:
    """The head segment is gone: the consumers are told of the gap, and the group goes on in a new epoch."""
    if _must_wait(broker, partition, head):
        return
    for consumer in head.consumers:
        tell(broker, consumer, Gap(head.segment_no, 0, reason))
    move_on(broker, partition, head, next_no, new_epoch=True)


def move_on(
    broker: BrokerState, partition: Partition, head: GroupHead, next_no: int, *, new_epoch: bool = False
) -> None:
    """Write the cursor."""
    if _must_wait(broker, partition, head):
        return
    assert head.cursor is not None
    head.phase = GroupPhase.CROSSING
    head.passes_alone = False
    dropped_from, position = _untold(partition, head)
    record = head.cursor.moved_to(next_no, new_epoch=new_epoch)
    record = replace(record, dropped_from=dropped_from, dropped_position=position)
    write_cursor(broker, partition, head, record, head.cursor_revision)


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
    broker: BrokerState,
    partition: Partition,
    head: GroupHead,
    record: CursorRecord,
    revision: int,
    chain_revision: int = 0,
) -> None:
    """One transaction on the group's cursor."""
    if _must_wait(broker, partition, head):
        return
    head.crossing_serial = broker.new_serial()
    broker.out.emit(WriteCursor(partition.id, head.group, head.crossing_serial, record, revision, chain_revision))


def _must_wait(broker: BrokerState, partition: Partition, head: GroupHead) -> bool:
    """Whether the coordinator refuses writes; then the cursor is read and looked at again when it may take them."""
    wait_us = partition.write_wait_us(broker)
    if wait_us:
        head.phase = GroupPhase.LOADING
        broker.poll(wait_us, TimerKind.CURSOR, partition.id, head.group)
    return wait_us > 0


def on_written(broker: BrokerState, partition: Partition, head: GroupHead, outcome: WriteOutcome) -> None:
    """The group stands in the next segment, or somebody else moved it, or nobody knows, or the write was refused."""
    if outcome is WriteOutcome.DONE and head.phase is GroupPhase.CROSSING:
        _end_segment(broker, partition, head)
        return
    head.phase = GroupPhase.LOADING
    head.drop_deliveries()
    head.reads_chain_first = outcome is WriteOutcome.CONFLICT
    if outcome is not WriteOutcome.REFUSED:
        read_cursor(broker, partition, head)
    elif head.consumers or head.questions or head.operations:
        broker.poll(partition.write_wait_us(broker), TimerKind.CURSOR, partition.id, head.group)
    else:
        forget_if_unused(partition, head)


def _end_segment(broker: BrokerState, partition: Partition, head: GroupHead) -> None:
    """The cursor has moved, and only now the consumers hear of the end: they go to the next server."""
    log = partition.logs.get(head.segment_no)
    sealed_len = log.record.sealed_len if log is not None and log.record.sealed_len is not None else 0
    following_no = next_no(partition, head.segment_no)
    following = partition.chain.segment(following_no) if partition.chain is not None else None
    server = following.server.broker if following is not None else ""
    event = EndOfSegment(head.segment_no, sealed_len, following_no, server, head.group_epoch)
    for consumer in head.consumers:
        tell(broker, consumer, event)
    delivery_attempts.forget(partition, head.group)
    head.consumers = []
    head.active = None
    head.syncs = {}
    head.phase = GroupPhase.LOADING
    if head.questions or head.operations:
        read_cursor(broker, partition, head)
    forget_if_unused(partition, head)
