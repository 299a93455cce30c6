"""Delivering: batches of the head segment to the active consumer, one read at a time.

Delivered is only what lies below the commit, below a reservation that is durable, and while this member has the right.
"""

from __future__ import annotations

from seriatim_api.ids import make_offset

from .. import right, tables
from ..effects import Batches, Dropped, ReadLog, Skip
from ..log import Batch
from ..outbox import Outbox
from ..partition import Partition
from ..producers import ProducerTable
from . import attempts, cursors
from .head import Consumer, GroupHead, Phase, tell


def pump(outbox: Outbox, partition: Partition, segment_no: int) -> None:
    """There may be more to deliver from a segment."""
    for head in partition.groups.values():
        if head.segment_no == segment_no:
            pump_group(outbox, partition, head)


def pump_all(outbox: Outbox, partition: Partition) -> None:
    """A consumer has room again."""
    for head in list(partition.groups.values()):
        pump_group(outbox, partition, head)


def pump_group(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    """Read the next batches for the active consumer, if it has room and this member has the right."""
    log = partition.logs.get(head.segment_no)
    consumer = head.active
    if head.phase is not Phase.SERVING or log is None or consumer is None or head.reading or head.is_held:
        return
    if head.held_back:
        return
    if head.delivered < log.start and log.readable_below:
        tell_dropped(outbox, partition, head, log.start)
    if head.delivered >= log.readable_below:
        return
    room = outbox.credits.get(consumer.stream, 0)
    if room <= 0:
        return
    if not right.may_deliver(outbox, partition, head.segment_no):
        right.seek(outbox, partition, head.segment_no)
        return
    head.reading = outbox.new_serial()
    outbox.reads[head.reading] = ("group", partition.id, head.segment_no, head.group, head.delivered)
    outbox.emit(
        ReadLog(
            head.reading,
            partition.id,
            head.segment_no,
            head.delivered,
            log.readable_below,
            min(room, outbox.config.deliver_bytes),
        )
    )


def tell_dropped(outbox: Outbox, partition: Partition, head: GroupHead, to_index: int) -> None:
    """Retention dropped what the group has not read: its consumer is told before anything behind it is delivered.

    Rule `dropped-told` (I1, I8). The floor does not move by it, but by what the consumer acknowledges behind it. So if
    this server, or the consumer, dies before the consumer was told, the next one is told again.
    """
    segment = partition.chain.segment(head.segment_no) if partition.chain is not None else None
    assert segment is not None
    assert segment.base is not None, "nothing is dropped behind an unsettled segment"
    assert head.active is not None
    from_offset, position = head.dropped_from, head.dropped_position
    if not from_offset:
        from_offset, position = make_offset(segment.no, head.delivered), segment.base + head.delivered
    tell(outbox, head.active, Dropped(from_offset, segment.no, to_index, segment.base + to_index - position))
    head.delivered = to_index
    if head.given is not None:
        head.given.below = max(head.given.below, to_index)


def on_log_read(
    outbox: Outbox, partition: Partition, serial: int, group: str, batches: tuple[Batch, ...] | None
) -> None:
    """The batches are there; whether they may be delivered is asked again now."""
    head = partition.groups.get(group)
    if head is None or head.reading != serial:
        return
    head.reading = 0
    if not batches:
        outbox.poll(outbox.config.retry_us, "pump", partition.id, head.segment_no)
        return
    log = partition.logs[head.segment_no]
    head.held_back = tuple(batch for batch in batches if batch.header.end_index <= log.readable_below)
    deliver_held_back(outbox, partition, head)


def deliver_held_back(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    """Deliver what was read, below the reservation only, and under the right only."""
    batches = head.held_back
    consumer = head.active
    if not batches or consumer is None or head.phase is not Phase.SERVING or head.is_held:
        return
    end = batches[-1].header.end_index
    if end > head.safe_reserved:
        if end > head.reserved:
            head.reserved = end + outbox.config.reservation_messages
            cursors.sync(outbox, partition, head)
        return
    if not right.may_deliver(outbox, partition, head.segment_no):
        right.seek(outbox, partition, head.segment_no)
        return
    segment = partition.chain.segment(head.segment_no) if partition.chain is not None else None
    assert segment is not None
    before = tables.want_before(outbox, partition, segment.no) if segment.incomplete_table else ProducerTable()
    if before is None:
        outbox.poll(outbox.config.retry_us, "pump", partition.id, head.segment_no)
        return
    head.held_back = ()
    run: list[Batch] = []
    for batch in batches:
        if before.covers(batch.header):
            _deliver_run(outbox, head, consumer, run)
            run = []
            _skip(outbox, head, consumer, batch)
        else:
            attempt = attempts.attempt_of(head, batch.header.end_index)
            if run and attempt != attempts.attempt_of(head, run[-1].header.end_index):
                _deliver_run(outbox, head, consumer, run)
                run = []
            run.append(batch)
    _deliver_run(outbox, head, consumer, run)
    pump_group(outbox, partition, head)


def _skip(outbox: Outbox, head: GroupHead, consumer: Consumer, batch: Batch) -> None:
    """The batch stands earlier in the chain already: say so, that contiguity can be checked."""
    start = max(batch.header.base_index, head.delivered)
    tell(outbox, consumer, Skip(head.segment_no, start, batch.header.end_index))
    head.delivered = batch.header.end_index


def _deliver_run(outbox: Outbox, head: GroupHead, consumer: Consumer, run: list[Batch]) -> None:
    if not run:
        return
    end = run[-1].header.end_index
    attempt = attempts.attempt_of(head, end)
    start = max(head.delivered, run[0].header.base_index)
    batches = Batches(head.segment_no, tuple(run), start, head.repeated_below, attempt, head.server_epoch)
    tell(outbox, consumer, batches)
    assert head.given is not None
    head.delivered = head.given.below = end
    # Of what was skipped the consumer hears nothing to give back: only what is sent takes of its credit.
    outbox.credits[consumer.stream] = outbox.credits.get(consumer.stream, 0) - sum(batch.size_bytes for batch in run)
