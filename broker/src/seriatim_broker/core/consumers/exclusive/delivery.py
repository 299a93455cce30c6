"""Delivery: batches of the cursor segment go to the active consumer, one read at a time.

The server delivers only below the commit, only below a durable reservation, and only while it has the serving right.

Rule `above-commit` (I12): consumers are served only below the commit (`SegmentLog.readable_below`). Without it:
  1. A consumer is given 3:41, which only the master has.
  2. The master dies. A switch seals the shorter log of the slave at 41.
  3. One consumer group has seen a message that no other consumer group ever will.
"""

from __future__ import annotations

from seriatim_api.ids import split_offset

from ...copies import producer_tables
from ...peers import right
from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroup, ConsumerGroupPhase
from ...state.dispatcher import Consumer
from ...state.partition import Partition
from ...values.effects import Batches, ReadLog, Skip
from ...values.events import ConsumerAck
from ...values.kinds import ReadKind, TimerKind
from ...values.log import Batch
from ...values.producers import ProducerTable
from ..cursors import control_records, delivery_attempts, gap_reports
from ..cursors.consumer_group import is_for_others, tell


def pump_consumer_group(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup) -> None:
    """Read the next batches for the active consumer, if it has credit and this member has the serving right."""
    dispatcher = consumer_group.dispatcher
    log = partition.logs.get(consumer_group.segment_no)
    consumer = dispatcher.active
    if (
        consumer_group.phase is not ConsumerGroupPhase.SERVING
        or log is None
        or consumer is None
        or dispatcher.reading
        or dispatcher.yielding is not None
        or consumer_group.is_held
    ):
        return
    if dispatcher.held_back:
        return
    if dispatcher.delivered < log.start and log.readable_below:
        gap_reports.tell_dropped_unread(broker, partition, consumer_group, log.start)
    if dispatcher.delivered >= log.readable_below:
        return
    room = broker.streams.credits.get(consumer.stream, 0)
    if room <= 0:
        return
    if not right.may_deliver(broker, partition, consumer_group.segment_no):
        right.seek(broker, partition, consumer_group.segment_no)
        return
    dispatcher.reading = broker.new_serial()
    broker.reads[dispatcher.reading] = (
        ReadKind.GROUP,
        partition.id,
        consumer_group.segment_no,
        consumer_group.name,
        dispatcher.delivered,
    )
    broker.out.emit(
        ReadLog(
            dispatcher.reading,
            partition.id,
            consumer_group.segment_no,
            dispatcher.delivered,
            log.readable_below,
            min(room, broker.config.deliver_bytes),
        )
    )


def on_log_read(
    broker: BrokerState, partition: Partition, serial: int, group: str, batches: tuple[Batch, ...] | None
) -> None:
    """The batches were read. Check again whether they may be delivered."""
    consumer_group = partition.consumer_groups.get(group)
    if consumer_group is None or consumer_group.dispatcher.reading != serial:
        return
    consumer_group.dispatcher.reading = 0
    if not batches:
        broker.poll(broker.config.retry_us, TimerKind.PUMP, partition.id, consumer_group.segment_no)
        return
    log = partition.logs[consumer_group.segment_no]
    consumer_group.dispatcher.held_back = tuple(
        batch for batch in batches if batch.header.end_index <= log.readable_below
    )
    deliver_held_back(broker, partition, consumer_group)


def deliver_held_back(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup) -> None:
    """Deliver the batches that were read, if they are below the reservation and this member has the serving right.

    Rule `reservations` (I9): a range is reserved durably before it is delivered. Without it:
      1. The server delivers 1:0 to 1:99, and dies. No other member knows that these messages may have been delivered.
      2. The next server delivers them again, without a flag.

    Rule `no-second-look` (SERVER): the server checks its serving right again after the read. Without it:
      1. The server has the right and starts a read, which takes 500 ms.
      2. Meanwhile its heartbeats have no answer. Another member takes the right over, and delivers.
      3. The read ends, and the server delivers the same messages to another consumer.

    Rule `readers-skip` (I9): readers skip a batch that is earlier in the order already. Without it:
      1. a is at 1:0, and behind the unsettled segment 1 it was stored again at 2:0. Consumer c1 gets 1:0 and crosses.
      2. c1 is replaced by c2, which remembers nothing.
      3. c2 is given 2:0 as a first delivery.
    """
    dispatcher, ledger = consumer_group.dispatcher, consumer_group.ledger
    batches = dispatcher.held_back
    consumer = dispatcher.active
    if (
        not batches
        or consumer is None
        or consumer_group.phase is not ConsumerGroupPhase.SERVING
        or consumer_group.is_held
    ):
        return
    end = batches[-1].header.end_index
    if ledger.safe_reserved >= ledger.reserved:
        dispatcher.reservation.is_durable(broker.now.mono_us)
    if end > ledger.safe_reserved:
        if end > ledger.reserved:
            _reserve_from(broker, partition, consumer_group, end)
        dispatcher.reservation.awaited()
        return
    if not right.may_deliver(broker, partition, consumer_group.segment_no):
        right.seek(broker, partition, consumer_group.segment_no)
        return
    segment = partition.chain.segment(consumer_group.segment_no) if partition.chain is not None else None
    assert segment is not None
    before = producer_tables.want_before(broker, partition, segment.no) if segment.incomplete_table else ProducerTable()
    if before is None:
        broker.poll(broker.config.retry_us, TimerKind.PUMP, partition.id, consumer_group.segment_no)
        return
    if not _is_acknowledged_first(broker, partition, consumer_group, end):
        return
    dispatcher.held_back = ()
    run: list[Batch] = []
    for batch in batches:
        if before.covers(batch.header) or is_for_others(batch.header, consumer_group.name):
            _deliver_run(broker, consumer_group, consumer, run)
            run = []
            _skip(broker, consumer_group, consumer, batch)
        else:
            attempt = delivery_attempts.delivery_attempt_of(consumer_group, batch.header.end_index)
            if run and attempt != delivery_attempts.delivery_attempt_of(consumer_group, run[-1].header.end_index):
                _deliver_run(broker, consumer_group, consumer, run)
                run = []
            run.append(batch)
    _deliver_run(broker, consumer_group, consumer, run)
    # A reader for which one reservation is not enough asks for the next one when half of it is left.
    times, half = dispatcher.reservation.times, broker.config.reservation_messages // 2
    if times > 1 and end + times * half > ledger.reserved:
        _reserve_from(broker, partition, consumer_group, end)
    pump_consumer_group(broker, partition, consumer_group)


def _reserve_from(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup, index: int) -> None:
    """Ask for a reservation of messages from this index on."""
    pace, chain = consumer_group.dispatcher.reservation, partition.chain
    segment = chain.segment(consumer_group.segment_no) if chain is not None else None
    links = [broker.links.by_broker.get(member.broker) for member in segment.eligible] if segment is not None else []
    pace.begin(max((link.round_trip_us for link in links if link is not None), default=0))
    pace.ask(broker.now.mono_us)
    consumer_group.ledger.reserved = index + pace.times * broker.config.reservation_messages
    control_records.replicate(broker, partition, consumer_group)


def _is_acknowledged_first(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup, end: int) -> bool:
    """Whether messages below `end` may be given as far as at-most-once goes. If not, acknowledge them first.

    Rule `acknowledged-first` (I9): in an at-most-once group, a message is given only when every eligible member has its
    acknowledgement on disk. Without it:
      1. The server gives 1:0, and its acknowledgement is on the server's own disk only.
      2. The server dies. The next one has no acknowledgement of 1:0, and gives it a second time.
    """
    ledger = consumer_group.ledger
    if not consumer_group.is_at_most_once or end <= ledger.safe_acked:
        return True
    if ledger.acknowledge(end):
        control_records.replicate(broker, partition, consumer_group)
    return False


def _skip(broker: BrokerState, consumer_group: ConsumerGroup, consumer: Consumer, batch: Batch) -> None:
    """The batch is earlier in the order already, or for another consumer group: tell the consumer of the skip.

    So it can check for holes.
    """
    start = max(batch.header.base_index, consumer_group.dispatcher.delivered)
    tell(broker, consumer, Skip(consumer_group.segment_no, start, batch.header.end_index))
    consumer_group.dispatcher.delivered = batch.header.end_index


def _deliver_run(broker: BrokerState, consumer_group: ConsumerGroup, consumer: Consumer, run: list[Batch]) -> None:
    dispatcher = consumer_group.dispatcher
    if not run:
        return
    end = run[-1].header.end_index
    attempt = delivery_attempts.delivery_attempt_of(consumer_group, end)
    start = max(dispatcher.delivered, run[0].header.base_index)
    batches = Batches(
        consumer_group.segment_no,
        tuple(run),
        start,
        consumer_group.ledger.repeated_below,
        attempt,
        consumer_group.server_epoch,
    )
    tell(broker, consumer, batches)
    dispatcher.pass_to(end)
    delivery_attempts.note_sent(consumer_group, end)
    # Only sent bytes take credit, because the consumer never gives back credit for skipped batches.
    broker.streams.credits[consumer.stream] = broker.streams.credits.get(consumer.stream, 0) - sum(
        batch.size_bytes for batch in run
    )


def on_ack(broker: BrokerState, partition: Partition, event: ConsumerAck) -> None:
    """A consumer acknowledges all messages up to an offset. It counts only with the token of the current grant."""
    for consumer_group in partition.consumer_groups.values():
        for consumer in consumer_group.consumers:
            if (consumer.stream, consumer.subscription) != (event.stream, event.subscription):
                continue
            no, index = split_offset(event.offset)
            current = (
                consumer is consumer_group.dispatcher.active
                and event.token == consumer_group.dispatcher.token
                and no == consumer_group.segment_no
            )
            if (
                not current
                or index >= consumer_group.dispatcher.delivered
                or consumer_group.phase is not ConsumerGroupPhase.SERVING
            ):
                return  # a stale token changes nothing
            if consumer_group.ledger.acknowledge(index + 1):
                control_records.replicate_soon(broker, partition, consumer_group)
            return
