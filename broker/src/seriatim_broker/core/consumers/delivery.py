"""Delivering: batches of the cursor segment go to the active consumer, one read at a time.

The server delivers only below the commit, only below a durable reservation, and only while it has the serving right.

Rule `above-commit` (I12): consumers are served only below the commit (`SegmentLog.readable_below`). Without it:
  1. A consumer is given 3:41, which only the master has.
  2. The master dies. A switch seals the shorter log of the slave at 41.
  3. One consumer group has seen a message that no other consumer group ever will.
"""

from __future__ import annotations

from seriatim_api.ids import make_offset

from ..copies import producer_tables
from ..peers import right
from ..state.broker import BrokerState
from ..state.consumers import Consumer, GroupHead, GroupPhase
from ..state.partition import Partition
from ..values.effects import Batches, Dropped, ReadLog, Skip
from ..values.kinds import ReadKind, TimerKind
from ..values.log import Batch
from ..values.producers import ProducerTable
from . import cursors, delivery_attempts
from .head import tell


def pump(broker: BrokerState, partition: Partition, segment_no: int) -> None:
    """The commit, the right or something else changed in a segment: deliver more of it if possible."""
    for head in partition.groups.values():
        if head.segment_no == segment_no:
            pump_group(broker, partition, head)


def pump_all(broker: BrokerState, partition: Partition) -> None:
    """A consumer gave credit: deliver more to each consumer group of the partition if possible."""
    for head in list(partition.groups.values()):
        pump_group(broker, partition, head)


def pump_group(broker: BrokerState, partition: Partition, head: GroupHead) -> None:
    """Read the next batches for the active consumer, if it has credit and this member has the serving right."""
    log = partition.logs.get(head.segment_no)
    consumer = head.active
    if head.phase is not GroupPhase.SERVING or log is None or consumer is None or head.reading or head.is_held:
        return
    if head.held_back:
        return
    if head.delivered < log.start and log.readable_below:
        tell_dropped(broker, partition, head, log.start)
    if head.delivered >= log.readable_below:
        return
    room = broker.streams.credits.get(consumer.stream, 0)
    if room <= 0:
        return
    if not right.may_deliver(broker, partition, head.segment_no):
        right.seek(broker, partition, head.segment_no)
        return
    head.reading = broker.new_serial()
    broker.reads[head.reading] = (ReadKind.GROUP, partition.id, head.segment_no, head.group, head.delivered)
    broker.out.emit(
        ReadLog(
            head.reading,
            partition.id,
            head.segment_no,
            head.delivered,
            log.readable_below,
            min(room, broker.config.deliver_bytes),
        )
    )


def tell_dropped(broker: BrokerState, partition: Partition, head: GroupHead, to_index: int) -> None:
    """Tell the active consumer that retention dropped messages that it has not read, before it gets later ones.

    Rule `drops-in-silence` (I1, I2): readers are told what was dropped. The floor of the consumer group does not move
    by that, but by acknowledgements of later messages. So if this server or the consumer dies, the next one is told
    again. Without it:
      1. A consumer group has read up to 1:10. Retention drops the messages up to 1:100.
      2. Its consumer is given 1:100 next. It treats the hole as a violation of the order, and stops.
    """
    segment = partition.chain.segment(head.segment_no) if partition.chain is not None else None
    assert segment is not None
    assert segment.base is not None, "retention drops nothing behind an UNSETTLED segment"
    assert head.active is not None
    from_offset, position = head.dropped_from, head.dropped_position
    if not from_offset:
        from_offset, position = make_offset(segment.no, head.delivered), segment.base + head.delivered
    tell(broker, head.active, Dropped(from_offset, segment.no, to_index, segment.base + to_index - position))
    head.delivered = to_index
    if head.given is not None:
        head.given.below = max(head.given.below, to_index)


def on_log_read(
    broker: BrokerState, partition: Partition, serial: int, group: str, batches: tuple[Batch, ...] | None
) -> None:
    """The batches were read. Check again whether they may be delivered."""
    head = partition.groups.get(group)
    if head is None or head.reading != serial:
        return
    head.reading = 0
    if not batches:
        broker.poll(broker.config.retry_us, TimerKind.PUMP, partition.id, head.segment_no)
        return
    log = partition.logs[head.segment_no]
    head.held_back = tuple(batch for batch in batches if batch.header.end_index <= log.readable_below)
    deliver_held_back(broker, partition, head)


def deliver_held_back(broker: BrokerState, partition: Partition, head: GroupHead) -> None:
    """Deliver the batches that were read, if they are below the reservation and this member has the serving right.

    Rule `reservations` (I9): a range is reserved durably before it is delivered. Without it:
      1. The server delivers 1:0 to 1:99, and dies. No other member knows that these messages may have been delivered.
      2. The next server delivers them again, without a flag.

    Rule `no-second-look` (SERVER): the server checks its right again after the read. Without it:
      1. The server has the right and starts a read, which takes 500 ms.
      2. Meanwhile its heartbeats have no answer. Another member takes the right over, and delivers.
      3. The read ends, and the server delivers the same messages to another consumer.

    Rule `readers-skip` (I9): readers skip a batch that is earlier in the order already. Without it:
      1. a is at 1:0, and behind the unsettled segment 1 it was stored again at 2:0. Consumer c1 gets 1:0 and crosses.
      2. c1 is replaced by c2, which remembers nothing.
      3. c2 is given 2:0 as a first delivery.
    """
    batches = head.held_back
    consumer = head.active
    if not batches or consumer is None or head.phase is not GroupPhase.SERVING or head.is_held:
        return
    end = batches[-1].header.end_index
    if end > head.safe_reserved:
        if end > head.reserved:
            head.reserved = end + broker.config.reservation_messages
            cursors.sync(broker, partition, head)
        return
    if not right.may_deliver(broker, partition, head.segment_no):
        right.seek(broker, partition, head.segment_no)
        return
    segment = partition.chain.segment(head.segment_no) if partition.chain is not None else None
    assert segment is not None
    before = producer_tables.want_before(broker, partition, segment.no) if segment.incomplete_table else ProducerTable()
    if before is None:
        broker.poll(broker.config.retry_us, TimerKind.PUMP, partition.id, head.segment_no)
        return
    head.held_back = ()
    run: list[Batch] = []
    for batch in batches:
        if before.covers(batch.header):
            _deliver_run(broker, head, consumer, run)
            run = []
            _skip(broker, head, consumer, batch)
        else:
            attempt = delivery_attempts.attempt_of(head, batch.header.end_index)
            if run and attempt != delivery_attempts.attempt_of(head, run[-1].header.end_index):
                _deliver_run(broker, head, consumer, run)
                run = []
            run.append(batch)
    _deliver_run(broker, head, consumer, run)
    pump_group(broker, partition, head)


def _skip(broker: BrokerState, head: GroupHead, consumer: Consumer, batch: Batch) -> None:
    """The batch is earlier in the order already: tell the consumer of the skip, so that it can check for holes."""
    start = max(batch.header.base_index, head.delivered)
    tell(broker, consumer, Skip(head.segment_no, start, batch.header.end_index))
    head.delivered = batch.header.end_index


def _deliver_run(broker: BrokerState, head: GroupHead, consumer: Consumer, run: list[Batch]) -> None:
    if not run:
        return
    end = run[-1].header.end_index
    attempt = delivery_attempts.attempt_of(head, end)
    start = max(head.delivered, run[0].header.base_index)
    batches = Batches(head.segment_no, tuple(run), start, head.repeated_below, attempt, head.server_epoch)
    tell(broker, consumer, batches)
    assert head.given is not None
    head.delivered = head.given.below = end
    # Only sent bytes take credit, because the consumer never gives back credit for skipped batches.
    broker.streams.credits[consumer.stream] = broker.streams.credits.get(consumer.stream, 0) - sum(
        batch.size_bytes for batch in run
    )
