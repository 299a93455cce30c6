"""Delivery: batches of the cursor segment go to the active consumer, one read at a time.

The server delivers only below the commit, only below a durable reservation, and only while it has the serving right.

Rule `above-commit` (I12): consumers are served only below the commit (`SegmentLog.readable_below`). Without it:
  1. A consumer is given 3:41, which only the master has.
  2. The master dies. A switch seals the shorter log of the slave at 41.
  3. One consumer group has seen a message that no other consumer group ever will.
"""

from __future__ import annotations

from seriatim_api.dead_letters import group_hash
from seriatim_api.ids import split_offset

from ...copies import producer_tables
from ...peers import right
from ...state.broker import BrokerState
from ...state.consumers import Seat, Served
from ...state.dispatcher import Consumer
from ...state.partition import Partition
from ...values.effects import Batches, ReadLog, Skip
from ...values.events import ConsumerAck
from ...values.kinds import ReadKind
from ...values.log import Batch
from ...values.passing import is_passed_by
from ...values.producers import ProducerTable
from ..cursors import control_records, delivery_attempts, gap_reports
from ..cursors.consumer_group import serving_of, tell


def pump_consumer_group(served: Served) -> None:
    """Read the next batches for the active consumer, if it has credit and this member has the serving right."""
    broker, dispatcher, log = served.broker, served.dispatcher, served.log
    consumer = dispatcher.active
    is_busy = dispatcher.reading or dispatcher.held_back or dispatcher.yielding is not None
    if consumer is None or is_busy or served.group.is_held:
        return
    if dispatcher.delivered < log.start and log.readable_below:
        gap_reports.tell_dropped_unread(served, consumer, log.start)
    if dispatcher.delivered >= log.readable_below:
        return
    room = broker.streams.credits.get(consumer.stream, 0)
    if room <= 0:
        return
    if not right.has_right(served.broker, served.partition, served.segment):
        return
    dispatcher.reading = broker.new_serial()
    broker.reads[dispatcher.reading] = (
        ReadKind.GROUP, served.partition.id, served.segment.no, served.group.name, dispatcher.delivered,
    )  # fmt: skip
    broker.out.emit(
        ReadLog(
            dispatcher.reading,
            served.partition.id,
            served.segment.no,
            dispatcher.delivered,
            log.readable_below,
            min(room, broker.config.deliver_bytes),
        )
    )


def on_log_read(
    broker: BrokerState, partition: Partition, serial: int, group: str, batches: tuple[Batch, ...] | None
) -> None:
    """The batches were read. Check again whether they may be delivered."""
    served = serving_of(partition, group)
    if served is None or served.dispatcher.reading != serial:
        return
    served.dispatcher.reading = 0
    if not batches:
        served.retry_in(broker.config.retry_us)
        return
    below = served.log.readable_below
    served.dispatcher.held_back = tuple(batch for batch in batches if batch.header.end_index <= below)
    deliver_held_back(served)


def deliver_held_back(served: Served) -> None:
    """Deliver the batches that were read, if they are below the reservation and this member has the serving right.

    Rule `reservations` (I9): a range is reserved durably before it is delivered. Without it:
      1. The server delivers 1:0 to 1:99, and dies. No other member knows that these messages may have been delivered.
      2. The next server delivers them again, without a flag.

    Rule `no-second-look` (SERVER): the server checks its serving right again after the read. Without it:
      1. The server has the right and starts a read, which takes 500 ms.
      2. Meanwhile its heartbeats have no answer. Another member takes the right over, and delivers.
      3. The read ends, and the server delivers the same messages to another consumer.

    Rule `readers-skip` (I9): readers skip a batch that is earlier in the order already. Without it:
      1. a is at 1:0, and after the unsettled segment 1 it was stored again at 2:0. Consumer c1 gets 1:0 and crosses.
      2. c1 is replaced by c2, which remembers nothing.
      3. c2 is given 2:0 as a first delivery.
    """
    consumer_group, dispatcher, ledger = served.group, served.dispatcher, served.ledger
    batches, consumer = dispatcher.held_back, dispatcher.active
    if not batches or consumer is None or consumer_group.is_held:
        return
    end = batches[-1].header.end_index
    if ledger.safe_reserved >= ledger.reserved:
        dispatcher.reservation.is_durable(served.broker.now.mono_us)
    if end > ledger.safe_reserved:
        if end > ledger.reserved:
            _reserve_from(served, end)
        dispatcher.reservation.awaited()
        return
    if not right.has_right(served.broker, served.partition, served.segment):
        return
    before: ProducerTable | None = ProducerTable()
    if served.segment.incomplete_table:
        before = producer_tables.want_before(served.broker, served.partition, served.segment.no)
    if before is None:
        served.retry_in(served.broker.config.retry_us)
        return
    if not _is_acknowledged_first(served, end):
        return
    dispatcher.held_back = ()
    for_it = (0, group_hash(consumer_group.name))
    run: list[Batch] = []
    for batch in batches:
        if before.covers(batch.header) or is_passed_by(batch.header, for_it):
            _deliver_run(served, consumer, run)
            run = []
            _skip(served, consumer, batch)
        else:
            attempt = delivery_attempts.delivery_attempt_of(served, batch.header.end_index)
            if run and attempt != delivery_attempts.delivery_attempt_of(served, run[-1].header.end_index):
                _deliver_run(served, consumer, run)
                run = []
            run.append(batch)
    _deliver_run(served, consumer, run)
    # A reader for which one reservation is not enough asks for the next one when half of it is left.
    times, half = dispatcher.reservation.times, served.broker.config.reservation_messages // 2
    if times > 1 and end + times * half > ledger.reserved:
        _reserve_from(served, end)
    pump_consumer_group(served)


def _reserve_from(served: Served, index: int) -> None:
    """Ask for a reservation of messages from this index on."""
    pace = served.dispatcher.reservation
    links = [served.broker.links.by_broker.get(member.broker) for member in served.segment.eligible]
    pace.begin(max((link.round_trip_us for link in links if link is not None), default=0))
    pace.ask(served.broker.now.mono_us)
    # Never less than before (rule `reservations`, I9). Without it:
    #   1. All below 30,100 is reserved on both members: 30,000 at once. At 15,200 the server asks for 10,000 at once.
    #   2. The new control record says 25,200 instead. The server delivers up to 30,100, as reserved before, and dies.
    #   3. The next server knows only 25,200, and delivers the messages above it again without a flag.
    end = index + pace.times * served.broker.config.reservation_messages
    served.ledger.reserved = max(served.ledger.reserved, end)
    control_records.replicate(served)


def _is_acknowledged_first(served: Served, end: int) -> bool:
    """Whether messages below `end` may be given as far as at-most-once goes. If not, acknowledge them first.

    Rule `acknowledged-first` (I9): in an at-most-once group, a message is given only when every eligible member has its
    acknowledgement on disk. Without it:
      1. The server gives 1:0, and its acknowledgement is on the server's own disk only.
      2. The server dies. The next one has no acknowledgement of 1:0, and gives it a second time.
    """
    ledger = served.ledger
    if not served.cursor.at_most_once or end <= ledger.safe_acked:
        return True
    if ledger.acknowledge(end):
        control_records.replicate(served)
    return False


def _skip(served: Served, consumer: Consumer, batch: Batch) -> None:
    """The batch is earlier in the order already, not due yet, or for another consumer group.

    The consumer is notified of the skip, so that it can check for holes.
    """
    start = max(batch.header.base_index, served.dispatcher.delivered)
    tell(served.broker, consumer, Skip(served.segment.no, start, batch.header.end_index))
    served.dispatcher.delivered = batch.header.end_index


def _deliver_run(served: Served, consumer: Consumer, run: list[Batch]) -> None:
    consumer_group, dispatcher = served.group, served.dispatcher
    if not run:
        return
    end = run[-1].header.end_index
    attempt = delivery_attempts.delivery_attempt_of(served, end)
    start = max(dispatcher.delivered, run[0].header.base_index)
    batches = Batches(
        consumer_group.segment_no,
        tuple(run),
        start,
        served.ledger.repeated_below,
        attempt,
        served.server_epoch,
    )
    tell(served.broker, consumer, batches)
    dispatcher.pass_to(end)
    dispatcher.given.sent_below = end
    # Only sent bytes take credit, because the consumer never gives back credit for skipped batches.
    served.broker.streams.credits[consumer.stream] = served.broker.streams.credits.get(consumer.stream, 0) - sum(
        batch.size_bytes for batch in run
    )


def on_ack(seat: Seat, consumer: Consumer, event: ConsumerAck) -> None:
    """A consumer acknowledges all messages up to an offset. It counts only with the token of the current grant."""
    served, dispatcher = seat.group.serving, seat.group.dispatcher
    no, index = split_offset(event.offset)
    current = consumer is dispatcher.active and event.token == dispatcher.token and no == seat.group.segment_no
    if not current or served is None or index >= dispatcher.delivered:
        return  # a stale token changes nothing
    if served.ledger.acknowledge(index + 1):
        control_records.replicate_soon(served)
