"""Consumer groups without consumers: they leave segments that have no messages, and their dead letters are sent."""

from __future__ import annotations

from seriatim_api.ids import make_offset

from ...peers import right
from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroupPhase, Seat
from ...state.ledger import Ledger
from ...state.partition import Partition
from ...values.chain import Chain
from ...values.events import CursorRecord, PassConsumerGroup
from ...values.kinds import TimerKind
from ...values.ledger_rows import has_forwards, write_forwarder
from ...values.log import NO_HAND_OVER, CursorState
from ...values.messages import PassRequest
from ...values.positions import position_of
from ...values.segment import Segment, SegmentState
from ..cursors import crossing, gap_reports
from ..cursors.consumer_group import consumer_group_of
from . import questions


def pass_consumer_group(broker: BrokerState, partition: Partition, event: PassConsumerGroup) -> None:
    """The cursor of a consumer group is in a segment without messages: have its server move the consumer group on.

    Rule `anybody-passes` (I3): only its server moves a consumer group past a stub. Without it:
      1. Another broker writes the cursor.
      2. The server has not heard that the messages were dropped, and delivers them to a consumer.
      3. The server of the next segment begins to deliver at the same time.
    """
    segment = partition.chain.segment(event.segment_no) if partition.chain is not None else None
    if segment is None:
        return
    if segment.state is SegmentState.SEALED and segment.server != broker.member:
        if broker.is_linked(segment.server):
            broker.send(segment.server, PassRequest(partition.id, event.segment_no, event.consumer_group))
        else:
            questions.complain(broker, partition, segment)
        return
    consumer_group = partition.consumer_groups.get(event.consumer_group)
    if consumer_group is None:
        consumer_group = consumer_group_of(broker, partition, event.consumer_group)
    elif (
        consumer_group.phase is ConsumerGroupPhase.LOADING
        and not consumer_group.consumers
        and consumer_group.cursor_write is None
    ):
        Seat(broker, partition, consumer_group).read_cursor()
    else:
        return
    consumer_group.passes_alone = True
    held = partition.handoffs.get(event.consumer_group)
    if held is not None and held.segment_no == event.segment_no and has_forwards(held.rows):
        consumer_group.forwards_alone = True


def pass_alone(seat: Seat, chain: Chain, segment: Segment, record: CursorRecord) -> None:
    """The consumer group has no consumer and its segment has no message: cross.

    Otherwise a consumer group that has no consumers any more would keep every later segment in the record.
    """
    broker, partition = seat.broker, seat.partition
    if not right.has_right(seat.broker, seat.partition, seat.segment):
        seat.poll(broker.config.heartbeat_us, TimerKind.CURSOR)
        return
    cursor = partition.cursor_in(segment.no, seat.group.name)
    known = cursor is not None and cursor.group_epoch == record.group_epoch
    acked = cursor.acked if cursor is not None and known else record.start_index
    ledger = Ledger(acked, safe_acked=acked)
    ledger.take_up_dropped(record)
    lost = gap_reports.lost_before(chain, segment.no, acked)
    oldest = chain.segment(lost[0]) if lost else None
    if oldest is not None and oldest.base is not None and not ledger.dropped_from:
        ledger.dropped_from, ledger.dropped_position = make_offset(oldest.no, 0), oldest.base
    listed = _oldest_listed(cursor if known else None, record)
    if listed and acked < (segment.sealed_len or 0):
        # Keys may be set aside before older messages are done with. Without it: 1. 1:28 is granted. 2. 1:31 is set
        # aside. 3. Retention drops both, and consumers are notified of 1:31 only.
        listed = min(listed, make_offset(segment.no, acked))
    if listed and (not ledger.dropped_from or listed < ledger.dropped_from):
        ledger.dropped_from, ledger.dropped_position = listed, position_of(chain, listed)
    if not partition.revision:
        partition.read_chain(broker)  # the cursor is read after it
        seat.poll(broker.config.retry_us, TimerKind.CURSOR)
        return
    # The forwarder's next number is not handed over here, so its numbers start over, in a new group epoch.
    has_numbers = record.handoff != NO_HAND_OVER or write_forwarder(1)[0] in partition.ledger_rows.get(
        seat.group.name, {}
    )
    following = crossing.next_no(partition, segment.no)
    crossing.move_on(seat, ledger, following, new_epoch=has_numbers, chain_revision=partition.revision)


def _oldest_listed(known: CursorState | None, record: CursorRecord) -> int:
    """The oldest offset in the lists of a consumer group whose segment has no message.

    Rule `alone-tells-lists` (J6): what lists had is dropped too, and consumers are notified. Without it:
      1. k:5 of segment 1 is in the list of k, and the consumer group is in segment 2. It has no consumer.
      2. Retention drops both segments. The consumer group moves on to segment 3.
      3. No consumer is ever told that k:5 is missing.
    """
    if known is None:
        return record.oldest
    return min((offset for offset in (known.oldest, known.untold) if offset), default=0)


def take_up_forwards(broker: BrokerState, partition: Partition, chain: Chain, dead: str = "") -> None:
    """Load consumer groups without consumers whose dead letters are on their way, and continue with these.

    Nothing else would do it. Without it:
      1. A consumer fails for the last time on k:5, and all consumers of the consumer group end.
      2. The server dies before the dead letter is stored.
      3. k:5 is in no dead-letter topic until a consumer joins again.

    Args:
        broker: This broker.
        partition: The partition.
        chain: Its record.
        dead: A broker that counts as dead: members that may replace it as the server try that. Empty: none does.
    """
    own = [
        (name, partition.cursors[name].segment_no, rows.items(), (SegmentState.SEALED,))
        for name, rows in partition.ledger_rows.items()
        if name in partition.cursors
    ]
    # Their server may have died before it began with them, and the server before may not have reached it.
    begun = (SegmentState.OPEN, SegmentState.SEALED)
    handed = [(name, held.segment_no, held.rows, begun) for name, held in partition.handoffs.items()]
    for name, no, rows, states in (*own, *handed):
        segment = chain.segment(no)
        if segment is None or segment.state not in states:
            continue
        is_orphan = segment.server.broker == dead and broker.member in segment.eligible
        here = partition.consumer_groups.get(name)
        is_unused = here is None or (here.phase is ConsumerGroupPhase.LOADING and not here.consumers)
        if is_unused and (segment.server == broker.member or is_orphan) and has_forwards(rows):
            consumer_group_of(broker, partition, name).forwards_alone = True


def forward_elsewhere(seat: Seat, segment: Segment) -> None:
    """Another member serves the consumer group, and continues with its dead letters. If it is dead, replace it.

    Rule `letters-go-on` (J4, I13): the server of the segment before informs the next one that it has dead letters to
    send. Without it:
      1. The dead letter of k:5 is on its way. The keys are handed over, and the cursor is being written.
      2. The last consumer ends. The cursor moves.
      3. The next server has the handoff on its disk, and does not load the consumer group: k:5 is in no dead-letter
         topic until a consumer joins.
    """
    is_here = seat.broker.member in segment.eligible and segment.state is SegmentState.SEALED
    if not is_here or seat.broker.is_linked(segment.server):
        seat.group.forwards_alone = False
        seat.broker.send(segment.server, PassRequest(seat.partition.id, segment.no, seat.group.name))
        return
    right.want_another(seat.broker, seat.partition, segment)
    seat.poll(seat.broker.config.silence_us, TimerKind.CURSOR)
