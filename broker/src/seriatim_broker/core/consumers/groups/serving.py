"""Serving: where the cursor of a consumer group is, and whether this broker serves the consumer group there.

The cursor and the chain record come from the coordinator in either order. If they do not fit together, this broker
reads them again.
"""

from __future__ import annotations

from seriatim_api import errors
from seriatim_api.ids import split_offset
from seriatim_api.publications import STAGE_TOPIC

from ...peers import right
from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroup, ConsumerGroupPhase, Seat
from ...state.partition import Partition
from ...values.chain import Chain
from ...values.effects import SubscriptionRefused
from ...values.events import CursorRead, CursorRecord, CursorWritten, StartPosition, WriteOutcome
from ...values.keyed import ConsumerMode
from ...values.kinds import TimerKind
from ...values.positions import Place, first_kept
from ...values.segment import Segment, SegmentState
from ...values.states import put
from ..cursors import crossing
from ..cursors.consumer_group import forget_if_unused, tell
from ..keyed import handoff, waiting_keys
from . import beginning, cursor_notes, operations, questions, subscriptions, without_consumers


def on_cursor_read(broker: BrokerState, partition: Partition, event: CursorRead) -> None:
    """The coordinator gave the cursor: serve the consumer group here, or tell the consumers which broker serves it."""
    record, revision = event.record, event.revision
    consumer_group = partition.consumer_groups.get(event.consumer_group)
    if consumer_group is None:
        return
    seat = Seat(broker, partition, consumer_group)
    if event.failed:
        seat.poll(broker.config.retry_us, TimerKind.CURSOR)
        return
    if _came_late(consumer_group, revision, event.known_revision):
        return
    if handoff.repeat_move(seat, record):
        return
    if partition.chain is not None and partition.chain.topic == STAGE_TOPIC:
        beginning.refuse(
            seat,
            errors.BadRequestError("the stage topic has no consumers: its rows are delivered when they are published"),
        )
        return
    if record is None or record.deleted or not record.mode.is_keyed:
        consumer_group.forwards_alone = False
    if record is None or record.deleted:
        _on_no_cursor(seat, record, revision)
        return
    if record.external:
        refusal = errors.PreconditionError(
            f"group {event.consumer_group} is an external group: a program reads ranges for it, and reports how far it "
            "has read. Consume under another group name, or delete this group first"
        )
        beginning.refuse(seat, refusal)
        return
    subscriptions.refuse_other_modes(seat, record.mode)
    waiting_keys.refuse_other_modes(seat, record)
    if operations.is_unsettled(seat, record, revision):
        questions.answer(seat)
        return
    if consumer_group.phase is ConsumerGroupPhase.LOADING and consumer_group.cursor_write is not None:
        # This answer came before the answer to a write of this member. After that one the cursor is read again. If this
        # read counted, the consumer group would begin here twice: its consumer would be given the same messages under
        # two tokens.
        questions.answer(seat)
        return
    moved = (consumer_group.segment_no, consumer_group.group_epoch) != (record.segment_no, record.group_epoch)
    if consumer_group.phase is ConsumerGroupPhase.LOADING or (
        moved and consumer_group.phase is not ConsumerGroupPhase.CROSSING
    ):
        if consumer_group.phase is ConsumerGroupPhase.SERVING:  # another server has moved the cursor
            consumer_group.look_again()
        consumer_group.cursor, consumer_group.cursor_revision = record, revision
        _place(seat, record)
    elif (served := consumer_group.serving) is not None and consumer_group.cursor_write is None:
        operations.take_up(served, record, revision)
    operations.go_on(seat)
    questions.answer(seat)


def _on_no_cursor(seat: Seat, before: CursorRecord | None, revision: int) -> None:
    """There is no such consumer group: begin it for the consumers that wait, and refuse everything else.

    `before`: what is left of a deleted consumer group of that name.

    Rule `serves-on` (J3): if the coordinator has lost the cursor, this member continues as the server until a rebuild
    writes it again. Without it:
      1. An older copy of the coordinator has no such group. Its server reads that for a question, and writes a new
         cursor. It takes the answer for that of the next term, so its tokens are of term 2.
      2. The server reads the cursor again, which has term base 0. It grants k:5 under a token of term 1.
    """
    partition, consumer_group = seat.partition, seat.group
    # This read may have begun before the request came. So the broker that asks looks at the cursors once more, and says
    # that there is no such group only by what it reads itself.
    text = f"group {consumer_group.name} had no position in {partition.name} when this broker looked: ask again"
    error = errors.NotServingError(text, retry_after_ms=50)
    # an operation makes no consumer group, and an administrator's question does not either
    operations.fail(seat, error)
    waiting_keys.fail(seat, error)
    if not consumer_group.consumers and all(question.describe for question in consumer_group.questions):
        questions.fail(seat, error)
        forget_if_unused(partition, consumer_group)
        return
    if consumer_group.phase is ConsumerGroupPhase.SERVING and before is None:
        questions.answer(seat)
        return
    if consumer_group.phase is ConsumerGroupPhase.SERVING:  # deleted elsewhere: it begins in a new group epoch
        consumer_group.look_again()
    if partition.chain is not None and consumer_group.cursor_write is None:
        _create_cursor(seat, partition.chain, before, revision)
    elif partition.chain is None:
        seat.poll(seat.broker.config.retry_us, TimerKind.CURSOR)


def _came_late(consumer_group: ConsumerGroup, revision: int, known_revision: int) -> bool:
    """Whether the cursor that was read is older than the newest one that this member knows.

    Rule `newest-cursor` (I11): a cursor that was read earlier and arrives late is ignored. Without it:
      1. This member starts to read the cursor of a paused consumer group, for a question.
      2. An administrator resumes the consumer group. This member writes that, and notifies the consumers.
      3. The answer to the read arrives. This member believes that the consumer group is paused, until an administrator
         resumes it again. In the same way a rewound consumer group would be served in the group epoch before.

    Rule `late-began-before` (I13): a read is not late if this member knew the newest cursor when the read began. Such a
    read shows that an older copy of the coordinator was restored, with lower revisions. Without it:
      1. A crossing has no answer, because the coordinator is just replaced by an older copy.
      2. This member reads the cursor, and waits for one that is as new as the one that it knows.
      3. Only this cursor was lost, so no broker notices the restore. The consumers wait for ever.
    """
    return 0 < revision < consumer_group.read_from and known_revision < consumer_group.read_from


def on_cursor_written(broker: BrokerState, partition: Partition, event: CursorWritten) -> None:
    """A transaction on a cursor ended: the one of an administrator's operation, or the one of a crossing."""
    partition.note_write(broker, event.outcome)
    consumer_group = partition.consumer_groups.get(event.consumer_group)
    written = consumer_group.cursor_write if consumer_group is not None else None
    if consumer_group is None or written is None or written.serial != event.serial:
        return
    seat = Seat(broker, partition, consumer_group)
    consumer_group.cursor_write = None
    if event.outcome is WriteOutcome.DONE:
        consumer_group.cursor_revision = max(consumer_group.cursor_revision, event.revision)
    operation = consumer_group.writing
    if operation is not None:
        operations.on_written(seat, operation, written.record, event.outcome, event.revision)
    elif (served := consumer_group.serving) is not None:
        cursor_notes.on_written(served, written.record, event.outcome, event.revision)
    else:
        crossing.on_written(seat, event.outcome)


def on_cursor_timer(broker: BrokerState, partition: Partition, group: str) -> None:
    """Read the cursor again, if this broker still waits for it."""
    consumer_group = partition.consumer_groups.get(group)
    if (
        consumer_group is not None
        and consumer_group.phase is ConsumerGroupPhase.LOADING
        and consumer_group.cursor_write is None
    ):
        Seat(broker, partition, consumer_group).read_cursor()


def _create_cursor(seat: Seat, chain: Chain, before: CursorRecord | None, revision: int) -> None:
    """Begin a new consumer group at the first message that retention has left, or at the end of the open segment.

    `before`: what is left of a deleted consumer group of that name.
    """
    if seat.group.reads_chain_first:
        # Rule `conflict-reads-chain`: after a conflict the chain is read before the cursor, because the transaction
        # that writes the first cursor compares the revision of the chain too. Without it:
        #   1. The chain has changed, or an older copy of the coordinator has no such record.
        #   2. This member reads the cursor, finds none, and writes it under the same revision of the chain again, some
        #      hundred times a second.
        seat.group.reads_chain_first = False
        seat.partition.read_chain(seat.broker)  # and then the cursor
        return
    # Not at the first segment of the record: that may be a stub that another consumer group keeps there. A new consumer
    # group is not notified of messages that were dropped before it began.
    no, index = first_kept(chain)
    segment = chain.segment(no)
    assert segment is not None
    assert seat.group.begins is not None, "a consumer has joined or asked"
    start, mode = seat.group.begins
    if start is StartPosition.LATEST:
        segment = chain.open_segment
        log = seat.partition.logs.get(segment.no)
        if log is None or not log.active:
            questions.answer(seat, without_cursor=True)
            _refuse_all(seat, segment)  # only a member of the open segment knows its end
            return
        index = log.commit
    # Rule `begins-in-the-record` (I8): the write compares the chain revision. Without it:
    #   1. The segment leaves the record after it was read here.
    #   2. The new cursor names a segment that does not exist.
    epoch = before.group_epoch + 1 if before is not None else 1
    term_base = 0
    if before is not None:
        term_base = before.next_term_base(chain.last_server_epoch(before.segment_no), segment.server_epoch)
    begun = CursorRecord(
        segment.no, epoch, index, chain.topic, mode=mode, retry=seat.broker.config.retry, term_base=term_base
    )
    if mode is ConsumerMode.BROADCAST:
        begun = cursor_notes.kept(seat.broker, begun)
    crossing.write_cursor(seat, begun, revision, seat.partition.revision, is_new=True)


def _place(seat: Seat, record: CursorRecord) -> None:
    """Serve the consumer group if this member is the server of its cursor segment, else show which member is."""
    broker, partition, consumer_group = seat.broker, seat.partition, seat.group
    chain = partition.chain
    segment = chain.segment(record.segment_no) if chain is not None else None
    consumer_group.segment_no = record.segment_no
    consumer_group.group_epoch = record.group_epoch
    if chain is None or (segment is None and record.segment_no > chain.open_segment.no):
        partition.read_chain(broker)  # the cursor is newer than the chain known here
        seat.poll(broker.config.retry_us, TimerKind.CURSOR)
        return
    if chain.is_folded(record.segment_no):
        _pass_over_folded(seat, chain, record)
        return
    if segment is None:
        _pass_over_missing(seat, chain, record)
        return
    if segment.state is SegmentState.LOST and record.oldest and not record.at_most_once:
        beginning.begin_at_oldest(seat, record)  # what was handed over to this segment is lost too
        return
    if segment.state is SegmentState.LOST:
        crossing.jump(seat, crossing.next_no(partition, segment.no))
        return
    if handoff.was_carried_out(consumer_group, record):
        crossing.end_segment(seat)
        return
    if segment.server != broker.member:
        if consumer_group.forwards_alone:
            without_consumers.forward_elsewhere(seat, segment)
        _refuse_all(seat, segment)
        return
    is_wanted = consumer_group.consumers or consumer_group.key_requests or consumer_group.is_forwarding
    if not is_wanted and not (consumer_group.passes_alone and segment.is_stub):
        consumer_group.passes_alone = False
        forget_if_unused(partition, consumer_group)
        return
    if not right.confirmed(partition, segment.no):
        right.seek(broker, partition, segment.no)
        wait_us = max(broker.config.heartbeat_us, partition.write_wait_us(broker))
        seat.poll(wait_us, TimerKind.CURSOR)
        return
    held = partition.rights[segment.no]
    if held.blind and consumer_group.name not in held.renewed:
        held.renewed = put(held.renewed, consumer_group.name, record.group_epoch + 1)
    if held.blind and record.group_epoch < held.renewed[consumer_group.name]:
        beginning.renew_epoch(seat, record)
    elif is_wanted:  # requests about keys only if order is by key
        beginning.begin(seat, segment, record)
    else:
        without_consumers.pass_alone(seat, chain, segment, record)


def _pass_over_folded(seat: Seat, chain: Chain, record: CursorRecord) -> None:
    """The cursor segment was empty, and is folded: write the cursor to the next segment, in the same group epoch.

    Rule `stays-in-folded` (I13): a consumer group whose cursor is in a folded segment continues. Any broker may write
    the cursor, because the segment had nothing to deliver or to acknowledge. Without it:
      1. The cursor is in segment 2, which has no message. A switch folds segment 2.
      2. No member serves segment 2 any more, so the consumer group waits for ever.
    """
    following = chain.from_no(record.segment_no)
    assert following is not None
    # The server epoch of the folded segment is not known any more. No token was given in it, and those that were given
    # before are of a term below its one.
    moved = record.moved_to(following.no).after_term(chain.epoch, following.server_epoch)
    crossing.write_cursor(seat, moved, seat.group.cursor_revision)


def _pass_over_missing(seat: Seat, chain: Chain, record: CursorRecord) -> None:
    """The cursor segment has left the record: write the cursor to the first segment, in the same group epoch.

    A segment stays in the record while a cursor is in it. So the cursor is of an older copy of the coordinator.

    Rule `missing-keeps-epoch` (K4, I9): what disks know of this group epoch still counts. Without it:
      1. A consumer group is in segment 3, and has been given 3:5. The coordinator is restored as it was when the cursor
         was in segment 1, which has left the record.
      2. The cursor moves to segment 2 in group epoch 2. The control record of segment 3 is of group epoch 1.
      3. The server of segment 3 does not see that the group was there. It gives 3:5 again, without a flag.

    Rule `missing-is-noted` (I1): the cursor says that messages are gone from where it was. Without it:
      1. A consumer group has read half of segment 1, and its consumers end. Retention drops segments 1 to 3. The cursor
         moves on to segment 4, and says so. The segments leave the record.
      2. The coordinator is restored as it was when the cursor was in segment 1. No disk has a control record of the
         group in segment 4, so the rebuild writes the chain only.
      3. The cursor moves to segment 4. A consumer comes, and is never notified of the other half of segment 1.
    """
    place = Place(*split_offset(beginning.before_place(record)))
    moved = beginning.noting_drop(chain, record, place, record.moved_to(chain.segments[0].no))
    moved = crossing.with_term(seat, moved)
    crossing.write_cursor(seat, moved, seat.group.cursor_revision)


def _refuse_all(seat: Seat, segment: Segment) -> None:
    consumer_group = seat.group
    error = errors.GroupHeadElsewhereError(
        f"segment {segment.no} is served by {segment.server.broker}", segment=segment.no
    )
    for consumer in consumer_group.consumers:
        tell(seat.broker, consumer, SubscriptionRefused(error, segment.no, segment.server.broker))
    consumer_group.consumers = []
    consumer_group.dispatcher.end_grant()
    consumer_group.served = None  # that server continues with its dead letters
    consumer_group.passes_alone = False
    if seat.broker.directory.is_replaced(segment.server):
        # no client does, because the broker is there, with another disk
        questions.complain(seat.broker, seat.partition, segment)
    waiting_keys.fail(seat, error)
    questions.answer(seat)
    forget_if_unused(seat.partition, consumer_group)
