"""Crossing: the cursor of a consumer group moves to the next segment, in one transaction at the coordinator.

A consumer group crosses only if it has acknowledged all of a sealed segment, if every eligible member has these
acknowledgements on its disk, and if the server has the serving right.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.ids import make_offset

from ...peers import right
from ...state.consumers import ConsumerGroupPhase, KeyedServed, Seat, Served
from ...state.keyed.handoff import OutgoingHandoff
from ...state.ledger import Ledger
from ...state.partition import Partition
from ...values.effects import EndOfSegment, WriteCursor
from ...values.events import CursorRecord, WriteOutcome
from ...values.kinds import TimerKind
from ...values.positions import Place
from ...values.segment import SegmentState
from . import delivery_attempts
from .consumer_group import forget_if_unused, tell, unanswered
from .gap_reports import tell_dropped_unread, tell_lost


def cross_if_done(served: Served) -> None:
    """Move the cursor to the next segment if all of this one is acknowledged.

    Rule `all-acknowledged` (I8): a consumer group crosses only when it has acknowledged everything. Without it:
      1. The consumer was given all of segment 1, and has acknowledged half of it. The cursor moves to segment 2.
      2. The consumer dies before it has worked on the other half.
      3. The next consumer begins in segment 2, and no consumer ever works on the other half.
    """
    broker, partition, consumer_group = served.broker, served.partition, served.group
    ledger, dispatcher, log = served.ledger, served.dispatcher, served.log
    if not served.is_serving or ledger.replications:
        return
    # `safe_acked` may be above the length, if the consumer group acknowledged messages that suspects lost later.
    # Messages that retention dropped need no acknowledgement.
    if max(ledger.safe_acked, log.start) < log.tail or not log.is_in_sync:
        return
    if consumer_group.writing is not None or consumer_group.cursor_write is not None:
        return
    if served.cursor.at_most_once and dispatcher.held_back:
        return
    if _waits_for_work(served):
        return
    if isinstance(served, KeyedServed) and ledger.dirty:
        return  # what was done with keys is not on all disks
    if dispatcher.active is not None and dispatcher.delivered < log.start:  # retention dropped what was being read
        dispatcher.drop_read()
        tell_dropped_unread(served, dispatcher.active, log.start)
    wait_us = partition.write_wait_us(broker)
    if wait_us:  # the coordinator refuses writes: the consumer group and its consumers stay here, and try again
        served.retry_in(min(wait_us, broker.config.refused_us_max))
    elif not right.has_right(served.broker, served.partition, served.segment):
        return
    elif not partition.revision:
        partition.read_chain(broker)  # a member reported the record, without its revision; then this is tried again
    else:
        move_on(served, ledger, next_no(partition, served.segment.no), chain_revision=partition.revision)


def _waits_for_work(served: Served) -> bool:
    """Whether the active consumer works on messages of a segment whose end retention has dropped.

    Rule `works-on-dropped` (I2): a consumer group crosses a dropped segment only when its active consumer has
    acknowledged what it was sent. Without it:
      1. c1 is active. It was sent 1:0 to 1:4, and works on 1:0. c2 stands by. Retention drops all of segment 1.
      2. The consumer group crosses. c2 hears of it before c1, joins the next server first, and is given 2:0.
      3. The application of c1 is given 1:1: after 2:0, and two consumers work on the partition at the same time.

    A consumer that acknowledges nothing for `dropped_work_us` is not waited for. Else stubs would stay in the chain
    record for as long as its application hangs.
    """
    dispatcher, now_us = served.dispatcher, served.broker.now.mono_us
    if not delivery_attempts.works(served, served.log.tail):
        return False
    safe_acked = served.ledger.safe_acked
    if dispatcher.works_until[0] != safe_acked:
        dispatcher.works_until = (safe_acked, now_us + served.broker.config.dropped_work_us)
    left_us = dispatcher.works_until[1] - now_us
    if left_us > 0:
        served.retry_in(left_us)
    return left_us > 0


def next_no(partition: Partition, no: int) -> int:
    """The number of the segment after that one, without the numbers of folded segments."""
    following = partition.chain.from_no(no + 1) if partition.chain is not None else None
    return following.no if following is not None else no + 1


def jump(seat: Seat, next_no: int) -> None:
    """The cursor segment is lost: notify the consumers of the gap, and cross in a new group epoch.

    Rule `jump-tells-drop` (I1): what the cursor says of dropped messages is reported after the gap. Without it:
      1. k:5 of segment 1 is handed over to segment 2, and retention drops segment 1. All disks of segment 2 are lost.
      2. The consumer group goes back to k:5, which is gone: its cursor is in segment 2, and says that 1:5 was dropped.
      3. The consumer group jumps over segment 2, and no consumer is ever told that k:5 is missing.
    """
    if _must_wait(seat):
        return
    ledger = Ledger(acked=seat.cursor.start_index)
    ledger.take_up_dropped(seat.cursor)
    for consumer in seat.group.consumers:
        tell_lost(seat.broker, consumer, Place(seat.group.segment_no, 0))
    move_on(seat, ledger, next_no, new_epoch=True)


def move_on(seat: Seat, ledger: Ledger, next_no: int, *, new_epoch: bool = False, chain_revision: int = 0) -> None:
    """Cross: write that the cursor is at the beginning of segment `next_no`.

    The ledger says what consumers have not heard of. It is that of the server, or of the disk if nothing is served.

    Rule `crossing-compares-chain` (J3, I11): a server that crosses compares the chain record, which names the server.
    Only a segment that is lost needs no compare, because it has no server any more. Without it:
      1. A serves a key-ordered group in segment 1, at chain epoch 3. Nothing is left to do, and A is cut off.
      2. B takes the right over at chain epoch 9. It does not have the last acknowledgements, and grants k:7 again under
         a token of term 9.
      3. A crosses. It does not know of B, so the tokens of the next server begin at a term below 9.
    """
    if _must_wait(seat):
        return
    seat.group.phase = ConsumerGroupPhase.CROSSING
    seat.group.passes_alone = False
    dropped_from, position = _untold(seat, ledger)
    record = with_term(seat, seat.cursor.moved_to(next_no, new_epoch=new_epoch))
    record = replace(record, dropped_from=dropped_from, dropped_position=position)
    write_cursor(seat, record, seat.group.cursor_revision, chain_revision)


def with_term(seat: Seat, record: CursorRecord) -> CursorRecord:
    """The record with the term base for the segment to which it moves."""
    chain = seat.chain
    left, following = chain.segment(seat.cursor.segment_no), chain.segment(record.segment_no)
    left_epoch = left.server_epoch if left is not None else chain.epoch
    if seat.group.served is not None:
        left_epoch = max(left_epoch, seat.group.served.server_epoch)
    return record.after_term(left_epoch, following.server_epoch if following else 0)


def move_to(served: Served, handing: OutgoingHandoff, record: CursorRecord, chain_revision: int) -> None:
    """Cross with a handoff: write this cursor, under the revision of the chain."""
    dropped_from, position = _untold(served, served.ledger)
    if not dropped_from:
        dropped_from, position = _lost_between(served.partition, served.segment.no, record.segment_no)
    record = replace(record, dropped_from=dropped_from, dropped_position=position)
    handing.sent = _transaction(served, record, served.group.cursor_revision, chain_revision)
    write_move(served, handing.sent)


def write_move(seat: Seat, sent: WriteCursor) -> None:
    """Send the transaction of a handoff, for the first time or once more: rule `unknown-is-repeated`."""
    seat.group.phase = ConsumerGroupPhase.CROSSING
    _write(seat, sent)


def _lost_between(partition: Partition, no: int, to_no: int) -> tuple[int, int]:
    """The first lost segment that a handoff passes, as an offset and its position; else 0, 0.

    Rule `passed-is-noted` (I1, I13): the cursor says so, as if it left that segment. Without it:
      1. The keys are handed over from segment 1 to segment 3, as segment 2 is lost. The consumer is notified, and ends.
      2. No message of segment 3 is acknowledged. But 3:0 is set aside, so the group is not at its beginning any more.
      3. A consumer joins, and is not notified of segment 2.
    """
    for segment in partition.chain.segments if partition.chain is not None else ():
        if no < segment.no < to_no and segment.state is SegmentState.LOST:
            return make_offset(segment.no, 0), segment.base or 0
    return 0, 0


def _untold(seat: Seat, ledger: Ledger) -> tuple[int, int]:
    """The offset and position from which messages were dropped, if no consumer is known to have been notified; else 0,
    0.

    Rule `untold-is-forgotten` (I1, I8): a cursor that passes a stub says what its readers have not heard of. Without
    it:
      1. Retention drops all of segment 1. The consumer group has nothing to acknowledge there, and crosses.
      2. Its consumer was notified of the drop, but dies before it has acknowledged anything.
      3. The next consumer begins in segment 2, and no broker tells it that messages are missing.
    """
    if ledger.dropped_from:
        return ledger.dropped_from, ledger.dropped_position
    segment = seat.partition.chain.segment(seat.group.segment_no) if seat.partition.chain is not None else None
    cursor = seat.group.cursor
    if segment is not None and segment.state is SegmentState.LOST and cursor is not None:
        # Rule `jump-is-noted` (I1): the cursor says what was lost in the segment that it leaves. Without it:
        #   1. Segment 1 is declared lost. No consumer is there, and a broker that is asked moves the cursor on.
        #   2. The server of segment 2 has not heard of the loss. A consumer joins, and acknowledges 2:0.
        #   3. The server hears of the loss. A message is acknowledged, so the loss seems to be an old one.
        return make_offset(segment.no, cursor.start_index), (segment.base or 0) + cursor.start_index
    if segment is None or segment.base is None or segment.state is SegmentState.LOST:
        return 0, 0
    if ledger.safe_acked >= segment.start:
        return 0, 0
    return make_offset(segment.no, ledger.safe_acked), segment.base + ledger.safe_acked


def write_cursor(
    seat: Seat, record: CursorRecord, revision: int, chain_revision: int = 0, *, is_new: bool = False
) -> None:
    """Start one transaction that writes the cursor, if its revision is still `revision`.

    If `chain_revision` is not 0, the transaction also compares the revision of the chain record. `is_new`: the consumer
    group begins.
    """
    _write(seat, _transaction(seat, record, revision, chain_revision, is_new=is_new))


def _transaction(
    seat: Seat, record: CursorRecord, revision: int, chain_revision: int, *, is_new: bool = False
) -> WriteCursor:
    known = seat.group.cursor if revision and not is_new else None
    follows = (known.segment_no, known.group_epoch) if known is not None else None
    return WriteCursor(seat.partition.id, seat.group.name, 0, record, revision, chain_revision, is_new, follows)


def _write(seat: Seat, transaction: WriteCursor) -> None:
    if _must_wait(seat):
        return
    seat.group.cursor_write = replace(transaction, serial=seat.broker.new_serial())
    seat.broker.out.emit(seat.group.cursor_write)


def _must_wait(seat: Seat) -> bool:
    """Whether the coordinator refuses writes. If so, read the cursor again after a time, when it may take them."""
    wait_us = seat.partition.write_wait_us(seat.broker)
    if wait_us:
        seat.group.phase = ConsumerGroupPhase.LOADING
        if seat.group.keyed is None:
            seat.group.served = None
        seat.poll(wait_us, TimerKind.CURSOR)
    return wait_us > 0


def on_written(seat: Seat, outcome: WriteOutcome) -> None:
    """The transaction of a crossing ended: end the segment if it was done, else read the cursor again."""
    consumer_group, handing = seat.group, seat.group.outgoing
    if outcome is WriteOutcome.DONE and consumer_group.phase is ConsumerGroupPhase.CROSSING:
        end_segment(seat)
        return
    consumer_group.phase = ConsumerGroupPhase.LOADING
    if handing is None:
        consumer_group.drop_deliveries()
    else:  # the grants continue if the cursor did not move
        handing.is_unknown = outcome is WriteOutcome.UNKNOWN or (
            handing.is_unknown and outcome is WriteOutcome.REFUSED  # an earlier try may still be carried out
        )
        if not handing.is_unknown:
            handing.sent = None
    consumer_group.reads_chain_first = outcome is WriteOutcome.CONFLICT
    if outcome is WriteOutcome.CONFLICT and handing is not None:
        # Without it, an earlier try is carried out, this member reads the cursor of before, and both servers continue.
        handing.has_conflict = True
        # The transaction compared the chain too. Without a look at it: this member, which was not notified of the last
        # switch, would write the same cursor under the same revision of the chain for ever.
        seat.partition.read_chain(seat.broker)
    if outcome is WriteOutcome.CONFLICT:
        seat.partition.read_chain(seat.broker)  # perhaps it was the chain that had changed; the cursor is read after it
        seat.poll(seat.broker.config.retry_us, TimerKind.CURSOR)
    elif outcome is not WriteOutcome.REFUSED:
        seat.read_cursor()
    elif (
        consumer_group.consumers
        or consumer_group.is_asked
        or consumer_group.is_forwarding
        or unanswered(consumer_group) is not None
    ):
        seat.poll(seat.partition.write_wait_us(seat.broker), TimerKind.CURSOR)
    else:
        forget_if_unused(seat.partition, consumer_group)


def end_segment(seat: Seat) -> None:
    """The cursor has moved: tell the consumers that the segment has ended and which broker serves the next one."""
    partition, consumer_group, handing = seat.partition, seat.group, seat.group.outgoing
    log = partition.logs.get(consumer_group.segment_no)
    sealed_len = log.record.sealed_len if log is not None and log.record.sealed_len is not None else 0
    following_no = next_no(partition, consumer_group.segment_no) if handing is None else handing.handoff.segment_no
    following = partition.chain.segment(following_no) if partition.chain is not None else None
    server = following.server.broker if following is not None else ""
    event = EndOfSegment(consumer_group.segment_no, sealed_len, following_no, server, consumer_group.group_epoch)
    for consumer in consumer_group.consumers:
        tell(seat.broker, consumer, event)
    delivery_attempts.forget(partition, consumer_group.name)
    consumer_group.consumers = []
    consumer_group.dispatcher.end_grant()
    consumer_group.forwards_alone |= consumer_group.is_forwarding  # then the next server is asked to continue
    consumer_group.served = None
    consumer_group.phase = ConsumerGroupPhase.LOADING
    if consumer_group.is_asked or consumer_group.is_forwarding:
        seat.read_cursor()
    forget_if_unused(partition, consumer_group)
