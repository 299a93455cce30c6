"""Serving: the server of the cursor segment begins to serve a consumer group, and stops when another member serves it.

The cursor and the chain record come from the coordinator in either order. If they do not fit together, this broker
reads them again.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api import errors
from seriatim_api.ids import make_offset, split_offset
from seriatim_api.publications import STAGE_TOPIC

from ...peers import right
from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroup, ConsumerGroupPhase
from ...state.keyed import rows as keyed_rows
from ...state.partition import Partition
from ...values.chain import Chain
from ...values.effects import Revoked, SubscriptionRefused
from ...values.events import CursorRead, CursorRecord, CursorWritten, PassConsumerGroup, StartPosition, WriteOutcome
from ...values.keyed import ConsumerMode
from ...values.kinds import TimerKind
from ...values.ledger_rows import has_forwards, write_forwarder
from ...values.log import NO_HAND_OVER, CursorState, HandOverState
from ...values.messages import PassRequest
from ...values.positions import Place, first_kept, position_of
from ...values.segment import Segment, SegmentState
from ...values.states import NOTHING, put
from ...values.tokens import TERM_MAX
from ..cursors import control_records, crossing, delivery_attempts, gap_reports
from ..cursors.consumer_group import consumer_group_of, forget, forget_if_unused, may_be_carried_out, tell
from ..cursors.served import KeyedServed, Seat, Served, keyed_of, served_of, serving_of
from ..keyed import grants, handoff, outcomes, waiting_keys
from . import cursor_notes, operations, progress, questions, subscriptions

# ---- where the cursor is --------------------------------------------------------------------------------


def on_cursor_read(broker: BrokerState, partition: Partition, event: CursorRead) -> None:
    """The coordinator gave the cursor: serve the consumer group here, or tell the consumers which broker serves it."""
    group, record, revision = event.consumer_group, event.record, event.revision
    consumer_group = partition.consumer_groups.get(group)
    if consumer_group is None:
        return
    seat = Seat(broker, partition, consumer_group)
    if event.failed:
        seat.poll(broker.config.retry_us, TimerKind.CURSOR)
        return
    if _came_late(consumer_group, revision, event.known_revision):
        return
    if partition.chain is not None and partition.chain.topic == STAGE_TOPIC:
        _refuse(
            seat,
            errors.BadRequestError("the stage topic has no consumers: its rows are delivered when they are published"),
        )
        return
    if record is None or record.deleted or not record.mode.is_keyed:
        consumer_group.forwards_alone = False
    is_new = record is None or record.deleted
    if is_new:  # an operation makes no consumer group, and an administrator's question does not either
        # This read may have begun before the request came. So the broker that asks looks at the cursors once more, and
        # says that there is no such group only by what it reads itself.
        text = f"group {group} had no position in {partition.name} when this broker looked: ask again"
        error = errors.NotServingError(text, retry_after_ms=50)
        operations.fail(seat, error)
        waiting_keys.fail(seat, error)
    if is_new and not consumer_group.consumers and all(question.describe for question in consumer_group.questions):
        questions.fail(seat, error)
        forget_if_unused(partition, consumer_group)
        return
    if consumer_group.phase is ConsumerGroupPhase.SERVING and record is None:
        # Rule `serves-on` (J3): the coordinator has lost the cursor. This member continues as the server until a
        # rebuild writes it again. Without it:
        #   1. An older copy of the coordinator has no such group. Its server reads that for a question, and writes a
        #      new cursor. It takes the answer for that of the next term, so its tokens are of term 2.
        #   2. The server reads the cursor again, which has term base 0. It grants k:5 under a token of term 1.
        questions.answer(seat)
        return
    if record is None or record.deleted:
        if consumer_group.phase is ConsumerGroupPhase.SERVING:  # deleted elsewhere: it begins in a new group epoch
            consumer_group.look_again()
        if partition.chain is not None and consumer_group.crossing_serial == 0:
            _create_cursor(seat, partition.chain, record, revision)
        elif partition.chain is None:
            seat.poll(broker.config.retry_us, TimerKind.CURSOR)
        return
    if record.external:
        refusal = errors.PreconditionError(
            f"group {group} is an external group: a program reads ranges for it, and reports how far it has read. "
            "Consume under another group name, or delete this group first"
        )
        _refuse(seat, refusal)
        return
    subscriptions.refuse_other_modes(seat, record.mode)
    waiting_keys.refuse_other_modes(seat, record)
    if operations.is_unsettled(seat, record, revision):
        questions.answer(seat)
        return
    if consumer_group.phase is ConsumerGroupPhase.LOADING and consumer_group.crossing_serial:
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
    elif (served := seat.serving()) is not None and not consumer_group.crossing_serial:
        operations.take_up(served, record, revision)
    operations.go_on(seat)
    questions.answer(seat)


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
    return 0 < revision < consumer_group.cursor_revision and known_revision < consumer_group.cursor_revision


def on_cursor_written(broker: BrokerState, partition: Partition, event: CursorWritten) -> None:
    """A transaction on a cursor ended: the one of an administrator's operation, or the one of a crossing."""
    partition.note_write(broker, event.outcome)
    consumer_group = partition.consumer_groups.get(event.consumer_group)
    if consumer_group is None or consumer_group.crossing_serial != event.serial:
        return
    seat = Seat(broker, partition, consumer_group)
    consumer_group.crossing_serial = 0
    if event.outcome is WriteOutcome.DONE:
        consumer_group.cursor_revision = max(consumer_group.cursor_revision, event.revision)
    if consumer_group.writing is not None:
        operations.on_written(seat, event.outcome, event.revision)
    elif (served := seat.serving()) is not None:
        cursor_notes.on_written(served, event.outcome, event.revision)
    else:
        crossing.on_written(seat, event.outcome)


def on_cursor_timer(broker: BrokerState, partition: Partition, group: str) -> None:
    """Read the cursor again, if this broker still waits for it."""
    consumer_group = partition.consumer_groups.get(group)
    if (
        consumer_group is not None
        and consumer_group.phase is ConsumerGroupPhase.LOADING
        and consumer_group.crossing_serial == 0
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
        _begin_at_oldest(seat, record)  # what was handed over to this segment is lost too
        return
    if segment.state is SegmentState.LOST:
        crossing.jump(seat, crossing.next_no(partition, segment.no))
        return
    if handoff.was_carried_out(consumer_group, record):
        crossing.end_segment(seat)
        return
    if segment.server != broker.member:
        if consumer_group.forwards_alone:
            _forward_elsewhere(seat, segment)
        _refuse_all(seat, segment)
        return
    goes_on = consumer_group.is_forwarding or may_be_carried_out(partition, consumer_group)
    is_wanted = consumer_group.consumers or consumer_group.key_requests or goes_on
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
        _renew_epoch(seat, record)
    elif is_wanted:  # requests about keys only if order is by key
        _begin(seat, segment, record)
    else:
        _pass_alone(seat, chain, segment, record)


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
    place = Place(*split_offset(_before_place(record)))
    moved = _noting_drop(chain, record, place, record.moved_to(chain.segments[0].no))
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
    consumer_group.keyed = None  # that server continues with its dead letters
    consumer_group.passes_alone = False
    if seat.broker.directory.is_replaced(segment.server):
        # no client does, because the broker is there, with another disk
        questions.complain(seat.broker, seat.partition, segment)
    waiting_keys.fail(seat, error)
    questions.answer(seat)
    forget_if_unused(seat.partition, consumer_group)


# ---- this member serves ---------------------------------------------------------------------------------


def _renew_epoch(seat: Seat, record: CursorRecord) -> None:
    """No member is left that knew the acknowledgements: begin at the cursor on this disk, in a new group epoch."""
    known = control_records.known_in_epoch(seat.partition, seat.group.name, record.segment_no, record.group_epoch)
    oldest = known.oldest if known is not None else record.oldest
    start = known.acked if known is not None else record.start_index
    # The lists may be as old as the acknowledgements on this disk. Keys that are set aside early may be newer than the
    # first message that is not acknowledged. Without the comparison: 1. 3:8 is granted. 2. 3:14 is set aside. 3. A
    # blind server begins at 3:14, and 3:8 never comes again.
    if oldest and oldest < make_offset(record.segment_no, start):
        _begin_at_oldest(seat, replace(record, oldest=oldest))
        return
    renewed = crossing.with_term(seat, record.moved_to(record.segment_no, start, new_epoch=True))
    if start > record.start_index:  # a later message was acknowledged, so the consumer was notified
        renewed = replace(renewed, dropped_from=0, dropped_position=0)
    crossing.write_cursor(seat, renewed, seat.group.cursor_revision, seat.partition.revision)


def _begin(seat: Seat, segment: Segment, record: CursorRecord) -> None:
    """Begin to serve the consumer group, at what this disk knows of its acknowledgements."""
    partition, consumer_group = seat.partition, seat.group
    frozen = keyed_of(seat.broker, partition, consumer_group)
    if frozen is not None and handoff.is_still_served(consumer_group, record, segment):
        consumer_group.phase = ConsumerGroupPhase.SERVING
        subscriptions.welcome_new(frozen)
        if may_be_carried_out(partition, consumer_group):
            handoff.hand_off_if_done(frozen)
            return
        frozen.keyed.handoff.outgoing = None
        outcomes.thaw(frozen)
        progress.go_on(frozen)
        return
    if _is_behind_for_good(partition, consumer_group.name, segment.no, record):
        _wait_for_rebuild(seat, record)
        return
    if record.mode.is_keyed and record.term_base + segment.server_epoch > TERM_MAX:
        text = f"group {consumer_group.name} has used up its tokens in {partition.name}"
        _refuse(seat, errors.PreconditionError(f"{text}: consume under another group name"))
        return
    known = control_records.known_in_epoch(partition, consumer_group.name, segment.no, record.group_epoch)
    if known is None and record.handoff != NO_HAND_OVER and _handed_over(seat, record) is None:
        _begin_at_oldest(seat, record)
        return
    has_note = record.dropped_from or (known is not None and known.untold)
    if has_note and not _has_read_chain(seat):
        return
    ledger = consumer_group.ledger
    ledger.begin(known, record)
    if record.mode.is_keyed and ((known is not None and known.untold) or ledger.dropped_from):
        offset = known.untold if known is not None and known.untold else ledger.dropped_from
        consumer_group.server_epoch = segment.server_epoch
        token = grants.newest_token(seat)
        ledger.note_dropped(offset, position_of(seat.chain, offset), token)
    consumer_group.passes_alone = False
    is_behind = segment.no <= record.repeated_to or control_records.was_further(
        partition, consumer_group.name, segment.no, record.group_epoch
    )
    if partition.rights[segment.no].blind or is_behind:
        ledger.distrust(partition.logs[segment.no].tail)
        if record.at_most_once and known is None:
            _skip_what_may_have_been_given(seat, segment.no)
    if record.at_most_once:
        ledger.repeated_below = 0  # what was given is acknowledged, on this disk too
    if segment.no == record.repeated_to + 1:
        ledger.repeated_below = max(ledger.repeated_below, record.repeated_index)  # rule `new-mode-is-flagged`
    if not record.mode.is_keyed:
        delivery_attempts.take_up(partition, consumer_group)
    consumer_group.server_epoch = segment.server_epoch
    consumer_group.phase = ConsumerGroupPhase.SERVING
    consumer_group.drop_deliveries()
    if record.mode.is_keyed:
        _make_dispatcher(seat, record, known)
    served = seat.serving()
    assert served is not None, "the segment is on the disk of its server"
    subscriptions.begin(served)
    _go_on_begun(served)


def _is_behind_for_good(partition: Partition, group: str, no: int, record: CursorRecord) -> bool:
    """Whether this disk proves that the coordinator has lost something of the group that no flag on messages mends."""
    if record.mode.is_keyed:
        return control_records.was_further(partition, group, no, record.group_epoch)
    # Rule `move-stays` (I11): what an administrator did to an exclusive group is not undone either. Without it:
    #   1. An administrator rewinds the consumer group from 4:0 to 2:0, which begins group epoch 2, and is told that it
    #      is done.
    #   2. The coordinator is restored as it was before, and the servers read that the group is in group epoch 1.
    #   3. The group continues as if it had not been moved. The servers write control records of group epoch 1 over
    #      those of group epoch 2, so a rebuild finds nothing of the rewind.
    known = partition.cursors.get(group)
    return known is not None and known.group_epoch > record.group_epoch


def _has_read_chain(seat: Seat) -> bool:
    """Whether a read of the chain that began after this cursor was read has ended. If not, it is begun.

    Rule `note-reads-chain` (I1): if it is noted that messages are gone, the group is served only with a chain record
    that may say why. Without it:
      1. Segment 1 is declared lost. The cursor moves to segment 2, and has a note of that.
      2. The server of segment 2 has not heard of the loss. A consumer joins, is notified of nothing, and acknowledges
         2:0.
      3. That ends the note. The server hears of the loss, and tells it to no consumer.
    """
    revision, left = seat.group.chain_reads
    if revision != seat.group.cursor_revision:
        left = 1 + (seat.partition.read_floor is not None)  # the read that is under way may have begun earlier
        seat.group.chain_reads = (seat.group.cursor_revision, left)
        seat.partition.read_chain(seat.broker)  # and then the cursor
    return not left


def _wait_for_rebuild(seat: Seat, record: CursorRecord) -> None:
    """This disk proves that the cursor is of an older copy of the coordinator: give nothing until an administrator
    mends that.

    The same for an exclusive group in a later group epoch: `_is_behind_for_good`.

    Rule `further-waits` (K2, J1, J3): where order is by key, a consumer group is not served at an older place. Without
    it:
      1. This member serves the consumer group in segment 4. Its control record there has replaced the one of segment 2.
      2. The coordinator is restored as it was when the consumer group was in segment 2.
      3. This member grants all of segment 2 again, also what is confirmed, and under lower tokens. The rows that it
         writes are not kept beside the later control record.
    """
    why = f"group {seat.group.name} was at a later place of {seat.partition.name} than segment {record.segment_no}"
    error = errors.CoordinatorBehindError(
        f"the coordinator has lost decisions: {why}. Nothing is delivered to the group here. Remedy: run seriatim "
        "coordinator rebuild"
    )
    seat.note("cursor_behind", segment=record.segment_no)
    operations.fail(seat, error)
    waiting_keys.fail(seat, error)
    questions.fail(seat, error)
    seat.poll(seat.broker.config.behind_read_us, TimerKind.CURSOR)


def _skip_what_may_have_been_given(seat: Seat, no: int) -> None:
    """No member knows what this at-most-once group was given in the segment: pass over all that it has.

    Rule `at-most-once-doubt` (I9): what may have been given does not come again. Without it:
      1. The consumer group is given 1:0 to 1:9. The disks that know it are lost.
      2. A third member, which has the messages, takes over. It gives 1:0 a second time.
    """
    ledger, tail = seat.group.ledger, seat.partition.logs[no].tail
    if ledger.acknowledge(tail):
        seat.note("at most once in doubt", segment=no, below=tail)


def _make_dispatcher(seat: Seat, record: CursorRecord, known: CursorState | None) -> None:
    """Continue with the keys where the rows on this disk end, or where the server of the segment before handed over.

    Rule `begun-first` (J3): nothing is granted and no carried grant ends before every eligible member knows that this
    server has begun. Without it:
      1. The handoff has a grant of k:5 under token 7. Its deadline passes, and this server grants k:5 under token 8.
      2. This server dies. The next one begins from the same handoff, in which token 7 counts.
      3. The consumer with token 7 acknowledges k:5, while another one works on it under token 8.
    That counts each time that a member begins in this segment, also with the control record on its own disk, because
    another member may lack that. So it happens to a server that waits, too: its only consumer leaves and joins again,
    and the server starts over, with its own record, in which no carried grant is left.
    """
    ledger = seat.group.ledger
    rows = tuple(seat.partition.ledger_rows.get(seat.group.name, {}).items()) if known is not None else ()
    handed_over = _handed_over(seat, record) if known is None else None
    if handed_over is not None:
        rows = handed_over.rows
    keyed = keyed_rows.dispatcher_of(record.segment_no, ledger.acked, rows, from_before=handed_over is not None)
    seat.group.keyed = keyed
    ledger.acked = keyed.window.floor
    keyed.handoff.is_begun = record.handoff == NO_HAND_OVER


def _go_on_begun(served: Served) -> None:
    """Read the keys, some in each step, and then continue. Until then the consumer group is frozen.

    No step reads all of many keys. Without it:
      1. 100,000 keys failed, because a database was away. Their server dies.
      2. The next server reads their records for seconds, and answers no heartbeat.
      3. Others believe that it is dead, and the next one begins with the same.
    """
    if isinstance(served, KeyedServed) and served.keyed.handoff.unread is not None:
        keyed = served.keyed
        if not keyed_rows.read_some(keyed, served.broker.config.keys_at_once, served.broker.now):
            served.go_on_next_step(TimerKind.KEYS)
            return
        served.group.forwards_alone = False  # from now on, `keyed.forwarder.waiting` keeps the consumer group here
        for consumer in served.group.consumers:
            outcomes.claim(served, consumer)
        if keyed.handoff.is_begun:
            outcomes.thaw(served)
    # send what this disk has of the server before to every eligible member
    control_records.replicate(served)
    if served.group.name in served.partition.consumer_groups:
        cursor_notes.look(served.broker, served.partition, served.group.name)
        progress.go_on(served)


def on_keys_due(broker: BrokerState, partition: Partition, group: str) -> None:
    """A delay or a deadline of a key may be over, or keys are not read yet, or a handoff has no answer."""
    served = serving_of(broker, partition, partition.consumer_groups.get(group))
    if not isinstance(served, KeyedServed):
        return
    if served.keyed.handoff.unread is not None:
        _go_on_begun(served)
    else:
        progress.on_keys_due(served)


def _handed_over(seat: Seat, record: CursorRecord) -> HandOverState | None:
    """The handoff that the cursor names, if this disk has it.

    Rule `exactly-the-one-named` (J5): not another one. Without it:
      1. A hands over, and crashes. A2 hands over later, and writes the cursor, which names A2's handoff.
      2. The handoff of A arrives late. The next server begins from it.
      3. What A2 confirmed between the two comes again.
    """
    return control_records.named_handoff(seat.partition, seat.group.name, record)


def _begin_at_oldest(seat: Seat, record: CursorRecord) -> None:
    """No member is left that has what was handed over: begin again at the oldest message of it, in a new group epoch.

    Rule `blind-goes-back` (J1): if the rows of a consumer group are lost, it goes back to the oldest message that was
    set aside. Without it:
      1. k:5 of segment 1 was handed over to the members of segment 2. Both disks are lost.
      2. A third member serves segment 2 from its beginning, or segment 2 is declared lost, and the consumer group
         continues in segment 3. k:5 is never delivered.

    Rule `back-is-flagged` (I9): all that comes again up to the segment that it leaves is flagged. Without it:
      1. k:5 and k:6 of segment 1 are delivered. k:6 is acknowledged, k:5 is handed over to segment 2, which is lost.
      2. The consumer group goes back to k:5. The server of segment 1 knows nothing of the group epoch that has ended,
         and delivers k:6 again without a flag.
    """
    renewed = record.moved_to(record.segment_no, record.start_index, new_epoch=True)
    if record.at_most_once:
        tail = seat.partition.logs[record.segment_no].tail
        renewed = record.moved_to(record.segment_no, max(tail, record.start_index), new_epoch=True)
    elif record.oldest:
        renewed = _back_at(seat.chain, record, Place(*split_offset(_before_place(record))))
        renewed = renewed.repeated_below(record.segment_no + 1, 0)
    renewed = crossing.with_term(seat, renewed)
    crossing.write_cursor(seat, renewed, seat.group.cursor_revision)


def _back_at(chain: Chain, record: CursorRecord, place: Place) -> CursorRecord:
    """The cursor back at a place, or at the first message that retention kept. Then consumers are told what is gone."""
    first = first_kept(chain)
    if place >= first:
        return record.moved_to(*place, new_epoch=True)
    return _noting_drop(chain, record, place, record.moved_to(*first, new_epoch=True))


def _before_place(record: CursorRecord) -> int:
    """The oldest offset that a consumer group may not have finished, if only its cursor is known.

    Keys may be set aside before older messages are done with, as in `_renew_epoch`.
    """
    place = make_offset(record.segment_no, record.start_index)
    return min(record.oldest or place, place)


def _noting_drop(chain: Chain, record: CursorRecord, place: Place, moved: CursorRecord) -> CursorRecord:
    """The cursor that was moved, with the note that messages are gone from a place on."""
    dropped_from = min(make_offset(*place), record.dropped_from or make_offset(*place))
    is_noted = dropped_from == record.dropped_from
    position = record.dropped_position if is_noted else position_of(chain, dropped_from)
    return replace(moved, dropped_from=dropped_from, dropped_position=position)


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
        and not consumer_group.crossing_serial
    ):
        Seat(broker, partition, consumer_group).read_cursor()
    else:
        return
    consumer_group.passes_alone = True
    held = partition.handoffs.get(event.consumer_group)
    if held is not None and held.segment_no == event.segment_no and has_forwards(held.rows):
        consumer_group.forwards_alone = True


def _pass_alone(seat: Seat, chain: Chain, segment: Segment, record: CursorRecord) -> None:
    """The consumer group has no consumer and its segment has no message: cross.

    Otherwise a consumer group that has no consumers any more would keep every later segment in the record.
    """
    broker, partition = seat.broker, seat.partition
    ledger = seat.group.ledger
    if not seat.has_right():
        seat.poll(broker.config.heartbeat_us, TimerKind.CURSOR)
        return
    cursor = partition.cursor_in(segment.no, seat.group.name)
    known = cursor is not None and cursor.group_epoch == record.group_epoch
    ledger.acked = ledger.safe_acked = cursor.acked if cursor is not None and known else record.start_index
    ledger.take_up_dropped(record)
    lost = gap_reports.lost_before(chain, seat.group)
    oldest = chain.segment(lost[0]) if lost else None
    if oldest is not None and oldest.base is not None and not ledger.dropped_from:
        ledger.dropped_from, ledger.dropped_position = make_offset(oldest.no, 0), oldest.base
    listed = _oldest_listed(cursor if known else None, record)
    if listed and ledger.acked < (segment.sealed_len or 0):
        # Keys may be set aside before older messages are done with. Without it: 1. 1:28 is granted. 2. 1:31 is set
        # aside. 3. Retention drops both, and consumers are notified of 1:31 only.
        listed = min(listed, make_offset(segment.no, ledger.acked))
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
    crossing.move_on(seat, following, new_epoch=has_numbers, chain_revision=partition.revision)


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


# ---- the record changes ---------------------------------------------------------------------------------


def on_learned(broker: BrokerState, partition: Partition, known: Chain | None, chain: Chain) -> None:
    """The chain record changed: stop serving where another member serves now, and continue with everything else."""
    for consumer_group in list(partition.consumer_groups.values()):
        if consumer_group.phase is ConsumerGroupPhase.LOADING:
            if consumer_group.questions and consumer_group.segment_no:
                questions.answer(Seat(broker, partition, consumer_group))
            continue
        segment = chain.segment(consumer_group.segment_no)
        if segment is None or segment.server != broker.member or segment.server_epoch != consumer_group.server_epoch:
            _revoke(Seat(broker, partition, consumer_group), segment)
            continue
        served = served_of(broker, partition, consumer_group)
        if served is None:
            continue
        gap_reports.tell_new_gaps(served, known)
        _expect_only_eligible(served)
        if served.is_serving and set(segment.eligible) - set(served.ledger.eligible):
            control_records.replicate(served)  # a new eligible member must have the newest control record
        if consumer_group.name in partition.consumer_groups:
            progress.retry(broker, partition, consumer_group.segment_no)
    take_up_forwards(broker, partition, chain)


# ---- dead letters of a consumer group without consumers -------------------------------------------------


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


def _forward_elsewhere(seat: Seat, segment: Segment) -> None:
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


def _expect_only_eligible(served: Served) -> None:
    """Control records wait no longer for members that are neither eligible nor joining."""
    segment = served.segment
    for serial in list(served.ledger.replications):
        replication = served.ledger.replications.get(serial)
        if replication is None:
            continue
        joining = served.partition.rights[segment.no].joining if segment.no in served.partition.rights else ()
        for member in list(replication.waiting):
            if member != served.broker.member and member not in segment.eligible and member not in joining:
                del replication.waiting[member]
        progress.finish_replication(served, serial)


def _revoke(seat: Seat, segment: Segment | None) -> None:
    """Stop serving in this server epoch. If this member is still the server, it finds the place of the cursor again."""
    consumer_group = seat.group
    mine = segment is not None and segment.server == seat.broker.member
    if not mine:
        error = errors.NotServingError(f"another broker serves segment {consumer_group.segment_no} now")
        for consumer in consumer_group.consumers:
            tell(seat.broker, consumer, Revoked(error))
        consumer_group.consumers = []
        delivery_attempts.forget(seat.partition, consumer_group.name)
    if consumer_group.phase is ConsumerGroupPhase.CROSSING:
        consumer_group.crossing_serial = 0
    consumer_group.look_again()
    if consumer_group.consumers or consumer_group.is_asked or (mine and consumer_group.is_forwarding):
        seat.read_cursor()
    else:
        forget(seat.partition, consumer_group)


def on_chain_read(broker: BrokerState, partition: Partition, failed: bool) -> None:
    """A read of the chain ended: continue with each consumer group that waited for it."""
    for consumer_group in list(partition.consumer_groups.values()):
        revision, left = consumer_group.chain_reads
        if left and not failed:
            consumer_group.chain_reads = (revision, left - 1)
            if left > 1:
                partition.read_chain(broker)
        if consumer_group.phase is ConsumerGroupPhase.SERVING:
            progress.retry(broker, partition, consumer_group.segment_no)
        if failed or consumer_group.crossing_serial or consumer_group.name not in partition.consumer_groups:
            continue
        if consumer_group.operations or consumer_group.phase is ConsumerGroupPhase.LOADING:
            Seat(broker, partition, consumer_group).read_cursor()


def on_writes_taken(broker: BrokerState, partition: Partition) -> None:
    """The coordinator takes writes again: try again to cross, or to place consumer groups."""
    for consumer_group in list(partition.consumer_groups.values()):
        if consumer_group.phase is ConsumerGroupPhase.SERVING:
            progress.retry(broker, partition, consumer_group.segment_no)
        elif consumer_group.phase is ConsumerGroupPhase.LOADING and consumer_group.crossing_serial == 0:
            Seat(broker, partition, consumer_group).read_cursor()


def on_caught_up(broker: BrokerState, partition: Partition) -> None:
    """The coordinator has its lost decisions again: find the place of each consumer group again.

    Rule `place-found-anew` (I13): a cursor from the older copy may name a segment that the consumer group has left.
    Without it:
      1. In the older copy the cursor is in segment 2. This member serves segment 2.
      2. The consumers have had all of segment 2: they drop what comes, and acknowledge nothing.
      3. The rebuild writes that the cursor is in segment 8. This member serves segment 2 for ever.
    This happens after each rebuild, also if this member has not noticed a loss.
    """
    partition.left_revision = 0  # the revisions may count from a lower one on
    for consumer_group in list(partition.consumer_groups.values()):
        if _is_under_way(consumer_group):
            continue  # its place is found when the outcome is known
        consumer_group.cursor_revision = 0
        if consumer_group.phase is not ConsumerGroupPhase.LOADING:
            segment = partition.chain.segment(consumer_group.segment_no) if partition.chain is not None else None
            _revoke(Seat(broker, partition, consumer_group), segment)


def _is_under_way(consumer_group: ConsumerGroup) -> bool:
    """Whether a write of the cursor by this member may still be carried out.

    Rule `under-way-stays` (K2, I11): such a write is not forgotten. Without it:
      1. The cursor is in segment 1. This member starts to write that it moves to segment 2.
      2. The coordinator is rebuilt. This member reads the cursor, before its write is carried out: segment 1.
      3. It begins in segment 1 again. It grants k:5 there, and confirms the acknowledgement. The cursor moves.
      4. The server of segment 2 has k:5 in the list that was handed over, and grants it again.
    """
    handing = consumer_group.keyed.handoff.outgoing if consumer_group.keyed is not None else None
    return consumer_group.crossing_serial > 0 or (handing is not None and handing.is_unknown)


def _refuse(seat: Seat, refusal: errors.SeriatimError) -> None:
    """Refuse everything that waits for a consumer group that cannot be served."""
    for consumer in seat.group.consumers:
        tell(seat.broker, consumer, SubscriptionRefused(refusal, 0, ""))
    seat.group.consumers = []
    operations.fail(seat, refusal)
    waiting_keys.fail(seat, refusal)
    questions.fail(seat, refusal)
    forget_if_unused(seat.partition, seat.group)


def on_no_partition(broker: BrokerState, partition: Partition) -> None:
    """The partition does not exist, or no longer: refuse everything that waits for its consumer groups."""
    error = errors.UnknownTopicError(f"there is no {partition.name}")
    for consumer_group in list(partition.consumer_groups.values()):
        for consumer in consumer_group.consumers:
            tell(broker, consumer, SubscriptionRefused(error, 0, ""))
        questions.fail(Seat(broker, partition, consumer_group), error)
        operations.fail(Seat(broker, partition, consumer_group), error)
        waiting_keys.fail(Seat(broker, partition, consumer_group), error)
    partition.consumer_groups = partition.given = NOTHING
