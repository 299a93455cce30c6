"""Handoff: the state of a consumer group's keys moves to the server of the next segment, before its cursor does.

    read to the end, no key ready ──▶ frozen ──all is durable──▶ sent to the next server ──kept by all there──▶ cursor
                                         └──── the cursor did not move ◀── conflict ────────────────────────────┘

While it is frozen, nothing is granted, and what consumers send waits. The next server, and each member that may become
it, keeps the newest handoff. The cursor names one, and the next server begins from exactly that one. Then consumers
join there with the grants that they have, and repeat the acknowledgements that were not confirmed.

The cursor moves only when every eligible and joining member of the next segment has
the handoff on its disk. Without it:
  1. k:5 has failed in segment 1. The cursor moves to segment 2, and its server alone has the handoff.
  2. That server dies. The next one knows nothing of k:5: the consumer group begins again at k:5, in a new group epoch,
     and gets all messages since then again.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.ids import MemberId

from ...peers import right, updates
from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroup, Handing, KeyedServed, Seat
from ...state.dispatcher import Consumer
from ...state.keyed import room
from ...state.keyed import rows as keyed_rows
from ...state.keyed.handoff import OutgoingHandoff
from ...state.partition import Partition
from ...values.events import CursorRecord
from ...values.kinds import StoredFor, TimerKind
from ...values.log import HandOverId, HandOverState, PutHandOver
from ...values.messages import HandOver, HandOverKept
from ...values.segment import Segment, SegmentState
from ...values.states import put
from ..cursors import control_records, crossing
from ..cursors.consumer_group import keyed_of
from . import outcomes

RESEND_US = 200_000
"""A handoff that was not answered for this long is sent again."""

GIVE_UP_US = 600_000
"""If the next server does not answer for this long, the grants continue here, and the handoff is tried again later."""

ROW_US = 40
"""Both times are longer by this for each row that is handed over. On two processors, sending, writing and reading
20,000 rows took 0.2 s."""

PAUSE_US = 1_000_000
"""Time between two such tries."""


# ---- the server of the segment before -------------------------------------------------------------------


def hand_off_if_done(served: KeyedServed) -> None:
    """If all of the segment is read and no key is ready, hand the state of the keys over, step by step."""
    broker, consumer_group = served.broker, served.group
    keyed, log = served.keyed, served.log
    if (
        not log.is_in_sync
        or not served.is_serving
        or consumer_group.writing is not None
        or (keyed.handoff.frozen is None and consumer_group.cursor_write is not None)  # the next term is being written
        or not keyed.handoff.is_begun
    ):
        return
    now_us = broker.now.mono_us
    if keyed.handoff.frozen is None:
        if keyed.forwarder.waiting and not consumer_group.consumers:
            return  # no consumer waits for the next segment, and its server would not hear of the dead letters
        if now_us < keyed.handoff.rests_until_us:
            served.poll(keyed.handoff.rests_until_us - now_us, TimerKind.KEYS)
            return
        is_busy = keyed.reading or keyed.grants.is_reading or keyed.line.has_ready
        if is_busy or keyed.read_index < log.tail or keyed.grants.count > broker.config.handed_grants_max:
            return
        following = next_segment(served.partition, consumer_group.segment_no)
        if following is None:
            return
        if room.set_some_aside(keyed, broker.config.keys_at_once):
            served.ledger.acknowledge(keyed.window.floor)
            control_records.replicate(served)  # when that is durable, this is called again
            return
        keyed.handoff.frozen = []
        keyed.handoff.rests_until_us = now_us + GIVE_UP_US
    elif now_us >= keyed.handoff.rests_until_us:
        # Without the poll: 1. A key is parked, or dead letters have numbers, and nothing else is left to do. The next
        # segment is empty, so its server takes no handoff. 2. The next segment gets messages. Nothing happens here,
        # so no consumer gets them until one joins or leaves, or a broker ends.
        served.poll(PAUSE_US, TimerKind.KEYS)
        keyed.handoff.rests_until_us = now_us + PAUSE_US
        to = keyed.handoff.outgoing.to if keyed.handoff.outgoing is not None else None
        if to is not None and not broker.is_linked(to):
            served.partition.read_chain(broker)  # rule `hand-over-finds-server`: it cannot say that it was replaced
        keyed.handoff.outgoing = None
        outcomes.thaw(served)
        return
    served.poll(RESEND_US, TimerKind.KEYS)
    if served.ledger.dirty:
        control_records.replicate(served)
    if served.ledger.replications:
        return  # what is acknowledged must be durable first; then this is called again
    if not right.has_right(served.broker, served.partition, served.segment):
        return
    if keyed.handoff.outgoing is None or _is_for_another(served.partition, keyed.handoff.outgoing):
        _make(served)
    elif keyed.handoff.outgoing.is_kept:
        _move(served, keyed.handoff.outgoing)
    else:
        _send(served, keyed.handoff.outgoing)


def on_left(served: KeyedServed, gone: list[Consumer]) -> None:
    """Consumers left while the state is handed over: end their grants here, and hand over again.

    Without it:
      1. c1 works on k:5. The state of the keys is sent to the next server, with that grant.
      2. c1 is killed. Its connection to this server breaks, so other consumers may have k:5 at once.
      3. The cursor moves. The next server knows nothing of the connection, and waits for c1 until the grant ends.

    The same if no consumer is left, and dead letters are on their way: the next server would not hear of them.

    When the transaction that moves the cursor is under way, it is too late: the next server may begin at any moment.
    """
    keyed = served.keyed
    if keyed.handoff.frozen is None or not keyed.handoff.is_begun or keyed.handoff.unread is not None:
        return
    if not served.is_serving:
        return
    forwards_alone = keyed.forwarder.waiting and not served.group.consumers
    if not forwards_alone and not any(grant.consumer in gone for grant in keyed.grants.by_token.values()):
        return
    keyed.handoff.outgoing = None
    keyed.handoff.rests_until_us = served.broker.now.mono_us
    outcomes.thaw(served)
    served.poll(0, TimerKind.KEYS)


def next_segment(partition: Partition, no: int) -> Segment | None:
    """The next segment that may have messages; None if none is known."""
    chain = partition.chain
    segment = chain.from_no(no + 1) if chain is not None else None
    while chain is not None and segment is not None and (segment.state is SegmentState.LOST or segment.sealed_len == 0):
        segment = chain.from_no(segment.no + 1)
    return segment


def _is_for_another(partition: Partition, handing: OutgoingHandoff) -> bool:
    """Whether the next segment is another one now, or has another server."""
    segment = partition.chain.segment(handing.handoff.segment_no) if partition.chain is not None else None
    return segment is None or segment.state is SegmentState.LOST or segment.server != handing.to


def _make(served: KeyedServed) -> None:
    keyed = served.keyed
    following = next_segment(served.partition, served.segment.no)
    if following is None:
        return
    known = served.partition.ledger_rows.get(served.group.name, {})
    rows, oldest = keyed_rows.rows_to_hand_off(keyed, known, served.broker.now)
    state = HandOverState(
        following.no,
        served.group.name,
        served.group.group_epoch,
        HandOverId(served.server_epoch, served.broker.new_serial()),
        tuple(rows),
    )
    keyed.handoff.outgoing = OutgoingHandoff(state, oldest, following.server)
    keyed.handoff.rests_until_us = served.broker.now.mono_us + GIVE_UP_US + ROW_US * len(rows)
    _send(served, keyed.handoff.outgoing)


def _send(served: KeyedServed, handing: OutgoingHandoff) -> None:
    now_us = served.broker.now.mono_us
    if not handing.asked_us or now_us >= handing.asked_us + RESEND_US + ROW_US * len(handing.handoff.rows):
        handing.asked_us = now_us
        served.broker.send(handing.to, HandOver(served.partition.id, handing.handoff))


def _move(served: KeyedServed, handing: OutgoingHandoff) -> None:
    """Write the cursor, under the revision of the chain.

    The transaction compares the chain record, which names the server. Without it:
      1. A hands over. It is deposed and does not know. A2 serves, and confirms the acknowledgement of k:5.
      2. A writes the cursor, which names A's older handoff.
      3. The server of the next segment grants k:5 again.
    """
    partition = served.partition
    segment = served.chain.segment(handing.handoff.segment_no)
    if segment is None or not partition.revision:
        partition.read_chain(served.broker)
        return
    wait_us = partition.write_wait_us(served.broker)
    if wait_us:
        served.retry_in(min(wait_us, served.broker.config.refused_us_max))
        return
    record = served.cursor.moved_to(segment.no).after_term(served.server_epoch, segment.server_epoch)
    record = replace(record, handoff=handing.handoff.id, oldest=handing.oldest)
    crossing.move_to(served, handing, record, partition.revision)


def is_still_served(served: KeyedServed, record: CursorRecord, segment: Segment) -> bool:
    """Whether the cursor did not move, and this member still serves what it froze, in the same server epoch."""
    handing = served.keyed.handoff.outgoing
    return (
        handing is not None
        and (record.segment_no, record.group_epoch) == (served.keyed.segment_no, handing.handoff.group_epoch)
        and segment.server_epoch == served.server_epoch
    )


def repeat_move(seat: Seat, record: CursorRecord | None) -> bool:
    """If the cursor was read, and a transaction of a handoff has no answer: send it again, unless the cursor has moved.

    Returns whether the answer to that transaction is waited for now. See rule `unknown-is-repeated`.
    """
    handing = seat.group.outgoing
    if handing is None or handing.sent is None or seat.group.cursor_write is not None:
        return False
    if record is not None and was_carried_out(seat.group, record):
        handing.sent = None
        return False
    crossing.write_move(seat, handing.sent)
    return True


def was_carried_out(consumer_group: ConsumerGroup, record: CursorRecord) -> bool:
    """Whether the cursor has moved with the handoff of this member, although the transaction had no answer."""
    handing = consumer_group.outgoing
    return handing is not None and (record.segment_no, record.group_epoch, record.handoff) == (
        handing.handoff.segment_no,
        handing.handoff.group_epoch,
        handing.handoff.id,
    )


def on_kept(broker: BrokerState, partition: Partition, sender: MemberId, message: HandOverKept) -> None:
    """A member has the handoff: another member that must keep it, or the server of the next segment for all."""
    segment = partition.chain.segment(message.segment_no) if partition.chain is not None else None
    is_server = segment is not None and segment.server == broker.member
    if segment is not None and is_server and sender not in (*segment.eligible, *right.joining(partition, segment.no)):
        updates.tell_member(broker, partition, sender)  # it was cut off, and does not know that it was removed
    handing = partition.handing.get(message.consumer_group)
    if handing is not None and _names(handing.handoff, message) and sender in handing.waiting:
        del handing.waiting[sender]
        _answer_if_kept(broker, partition, handing)
    served = keyed_of(partition, message.consumer_group)
    handed = served.keyed.handoff.outgoing if served is not None else None
    if served is None or handed is None or not _names(handed.handoff, message) or sender != handed.to:
        return
    handed.is_kept = True
    hand_off_if_done(served)


def _names(handoff: HandOverState, message: HandOverKept) -> bool:
    return (handoff.segment_no, handoff.group_epoch, handoff.id) == (
        message.segment_no,
        message.group_epoch,
        message.id,
    )


# ---- the members of the next segment --------------------------------------------------------------------


def on_handoff(broker: BrokerState, partition: Partition, sender: MemberId, message: HandOver) -> None:
    """Keep a handoff. The server of the segment has the other members keep it too, and then answers.

    Other members answer only the server. Without it (J5):
      1. Member b becomes the server of the next segment, and does not know it yet. The server of the segment before
         knows it, and sends b the handoff.
      2. b keeps it as one of the members that must, and answers that it has it.
      3. The sender takes this for the answer of the server, which speaks for all members, and moves the cursor. b dies.
         The other members have no handoff.
    """
    handoff = message.handover
    no = handoff.segment_no
    segment = partition.chain.segment(no) if partition.chain is not None else None
    if segment is None:
        partition.read_chain(broker)
        return
    is_server = segment.server == broker.member
    if is_server and not (right.confirmed(partition, no) and _has_messages(partition, no)):
        right.seek(broker, partition, no)
        return  # the sender asks again
    if not partition.keep_handoff(handoff):
        return
    known = partition.handing.get(handoff.consumer_group)
    is_known = known is not None and known.handoff.id == handoff.id and known.handoff.segment_no == no
    if not is_known:
        broker.out.write(PutHandOver(partition.id, handoff))
    if not is_server:
        if sender == segment.server:
            broker.out.when_durable_send(sender, _kept(partition, handoff))
        else:
            # Rule `hand-over-finds-server` (I13): one of both does not know the newest record. Without it:
            #   1. Segment 2 is empty. Its server was replaced, and a switch folds it.
            #   2. The server of segment 1 was not notified. It sends the handoff to the replaced one, for ever.
            updates.tell_member(broker, partition, sender)
            partition.read_chain(broker)  # the sender asks again
        return
    members = dict.fromkeys((*segment.eligible, *right.joining(partition, no)))
    if known is not None and is_known:
        waiting, serial = {member: None for member in members if member in known.waiting}, known.serial
    else:
        waiting, serial = members, broker.new_serial()
        broker.out.when_stored(partition.id, StoredFor.HANDOVER, no, serial)
    handing = Handing(handoff, sender, waiting, serial)
    partition.handing = put(partition.handing, handoff.consumer_group, handing)
    for member in waiting:
        if member != broker.member:
            broker.send(member, HandOver(partition.id, handoff))
    if set(waiting).intersection(right.unfit_members(broker, partition, no)):
        right.seek(broker, partition, no)
    _answer_if_kept(broker, partition, handing)


def _has_messages(partition: Partition, no: int) -> bool:
    """Whether the segment has a message that is committed, so it is never folded.

    Rule `not-into-the-empty` (J1): nothing is handed over to a segment without messages. Without it:
      1. Segment 2 is open and empty. The keys of segment 1 are handed over to it, and the cursor moves there.
      2. A switch folds segment 2. Any broker may now write the cursor to segment 3.
      3. What was handed over is gone with segment 2.
    """
    log = partition.logs.get(no)
    return log is not None and log.readable_below > 0


def on_stored(broker: BrokerState, partition: Partition, no: int, serial: int) -> None:
    """A handoff is durable on this disk.

    Rule `own-disk-too` (J5): the write of exactly that handoff is durable, not an earlier one. Without it:
      1. The states of consumer groups g and h are handed over to this server, in two writes. The first one is durable.
      2. The other member has h, and this server answers that all members have it. The cursor of h moves.
      3. This server restarts without the second write. It does not know the keys of h.
    """
    for handing in list(partition.handing.values()):
        if handing.handoff.segment_no == no and handing.serial == serial:
            handing.waiting.pop(broker.member, None)
            _answer_if_kept(broker, partition, handing)


def _answer_if_kept(broker: BrokerState, partition: Partition, handing: Handing) -> None:
    segment = partition.chain.segment(handing.handoff.segment_no) if partition.chain is not None else None
    if segment is None:
        return
    must_keep = {*segment.eligible, *right.joining(partition, segment.no)}
    if not must_keep.intersection(handing.waiting):
        broker.send(handing.sender, _kept(partition, handing.handoff))


def _kept(partition: Partition, handoff: HandOverState) -> HandOverKept:
    return HandOverKept(partition.id, handoff.segment_no, handoff.consumer_group, handoff.group_epoch, handoff.id)


def send_all(broker: BrokerState, partition: Partition, member: MemberId, no: int) -> None:
    """Send a joining member the handoffs of a segment."""
    for handoff in partition.handoffs.values():
        if handoff.segment_no == no:
            broker.send(member, HandOver(partition.id, handoff))
