"""Serving: the server of the cursor segment begins to serve a consumer group, and stops when another member serves it.

The cursor and the chain record come from the coordinator in either order. If they do not fit together, this broker
reads them again.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api import errors
from seriatim_api.ids import INDEX_MAX, make_offset
from seriatim_api.publications import STAGE_TOPIC

from ..peers import right
from ..state.broker import BrokerState
from ..state.consumers import GroupHead, GroupPhase
from ..state.partition import Partition
from ..values.chain import Chain
from ..values.effects import Revoked, SubscriptionRefused
from ..values.events import CursorRead, CursorRecord, CursorWritten, PassGroup, StartPosition
from ..values.kinds import TimerKind
from ..values.messages import PassRequest
from ..values.positions import first_kept
from ..values.segment import Segment, SegmentState
from ..values.states import NOTHING, drop, put
from . import crossing, cursors, delivery_attempts, operations, progress, questions, subscribing
from .head import forget_if_unused, head_of, read_cursor, tell

# ---- where the cursor is --------------------------------------------------------------------------------


def on_cursor_read(broker: BrokerState, partition: Partition, event: CursorRead) -> None:
    """The coordinator gave the cursor: serve the consumer group here, or tell the consumers which broker serves it."""
    group, record, revision = event.group, event.record, event.revision
    head = partition.groups.get(group)
    if head is None:
        return
    if event.failed:
        broker.poll(broker.config.retry_us, TimerKind.CURSOR, partition.id, group)
        return
    if _came_late(head, revision, event.known_revision):
        return
    if partition.chain is not None and partition.chain.topic == STAGE_TOPIC:
        _refuse(
            broker,
            partition,
            head,
            errors.BadRequestError("the stage topic has no consumers: its rows are delivered when they are published"),
        )
        return
    is_new = record is None or record.deleted
    if is_new:  # neither a question nor an operation makes a consumer group
        error = errors.UnknownGroupError(f"group {group} has no position in partition {partition.id}")
        operations.fail(broker, head, error)
    if is_new and not head.consumers and all(question.describe for question in head.questions):
        questions.fail(broker, partition, head, error)
        forget_if_unused(partition, head)
        return
    if record is None or record.deleted:
        if partition.chain is not None and head.crossing_serial == 0:
            last_epoch = record.group_epoch if record is not None else 0
            _create_cursor(broker, partition, head, partition.chain, last_epoch + 1, revision)
        elif partition.chain is None:
            broker.poll(broker.config.retry_us, TimerKind.CURSOR, partition.id, group)
        return
    if record.external:
        refusal = errors.PreconditionError(
            f"group {group} is an external group: a program reads ranges for it, and reports how far it has read. "
            "Consume under another group name, or delete this group first"
        )
        _refuse(broker, partition, head, refusal)
        return
    if operations.is_unsettled(broker, partition, head, record, revision):
        questions.answer(broker, partition, head)
        return
    if head.phase is GroupPhase.LOADING and head.crossing_serial:
        # The read has overtaken the answer to a write of this member. After that answer the cursor is read again. If
        # this read counted, the consumer group would begin here twice: its consumer would be given the same messages
        # under two tokens.
        questions.answer(broker, partition, head)
        return
    moved = (head.segment_no, head.group_epoch) != (record.segment_no, record.group_epoch)
    if head.phase is GroupPhase.LOADING or (moved and head.phase is not GroupPhase.CROSSING):
        if head.phase is GroupPhase.SERVING:  # another server has moved the cursor
            head.look_again()
        head.cursor, head.cursor_revision = record, revision
        _place(broker, partition, head, record)
    elif head.phase is GroupPhase.SERVING and not head.crossing_serial:
        operations.take_up(broker, partition, head, record, revision)
    operations.go_on(broker, partition, head)
    questions.answer(broker, partition, head)


def _came_late(head: GroupHead, revision: int, known_revision: int) -> bool:
    """Whether a cursor was read before the newest one that this member knows.

    Rule `newest-cursor` (I11): a cursor that was read earlier and arrives late is ignored. Without it:
      1. This member starts to read the cursor of a paused consumer group, for a question.
      2. A person resumes the consumer group. This member writes that, and tells the consumers.
      3. The answer to the read arrives. This member believes that the consumer group is paused, until a person resumes
         it again. In the same way a rewound consumer group would be served in the group epoch before.

    Rule `late-began-before` (I13): a read is not late if this member knew the newest cursor when the read began. Such a
    read shows that an older copy of the coordinator was restored, which counts from lower revisions on. Without it:
      1. A crossing has no answer, because the coordinator is just replaced by an older copy.
      2. This member reads the cursor, and waits for one that is as new as the one that it knows.
      3. Only this cursor was lost, so no broker notices the restore. The consumers wait for ever.
    """
    return 0 < revision < head.cursor_revision and known_revision < head.cursor_revision


def on_cursor_written(broker: BrokerState, partition: Partition, event: CursorWritten) -> None:
    """A transaction on a cursor ended: the one of a person's operation, or the one of a crossing."""
    partition.note_write(broker, event.outcome)
    head = partition.groups.get(event.group)
    if head is None or head.crossing_serial != event.serial:
        return
    head.crossing_serial = 0
    if head.writing is not None:
        operations.on_written(broker, partition, head, event.outcome, event.revision)
    else:
        crossing.on_written(broker, partition, head, event.outcome)


def on_cursor_timer(broker: BrokerState, partition: Partition, group: str) -> None:
    """Read the cursor again, if this broker still waits for it."""
    head = partition.groups.get(group)
    if head is not None and head.phase is GroupPhase.LOADING and head.crossing_serial == 0:
        read_cursor(broker, partition, head)


def _create_cursor(
    broker: BrokerState, partition: Partition, head: GroupHead, chain: Chain, epoch: int, revision: int
) -> None:
    """Begin a new consumer group at the first message that retention has left, or at the end of the open segment."""
    if head.reads_chain_first:
        # Rule `conflict-reads-chain`: after a conflict the chain is read before the cursor, because the first
        # cursor compares the revision of the chain too. Without it: 1. The chain has changed, or an older copy of the
        # coordinator has no such record. 2. This member reads the cursor, finds none, and writes it under the same
        # revision again, some hundred times a second.
        head.reads_chain_first = False
        partition.read_chain(broker)  # and then the cursor
        return
    # Not at the first segment of the record: that may be a stub that another consumer group keeps there. A new consumer
    # group is not told of messages that were dropped before it began.
    no, index = first_kept(chain)
    segment = chain.segment(no)
    assert segment is not None
    if head.start is StartPosition.LATEST:
        segment = chain.open_segment
        log = partition.logs.get(segment.no)
        if log is None or not log.active:
            questions.answer(broker, partition, head, without_cursor=True)
            _refuse_all(broker, partition, head, segment)  # only a member of the open segment knows its end
            return
        index = log.commit
    # Rule `begins-in-the-record` (I8): the write compares the chain revision. Without it: 1. The segment leaves the
    # record after it was read here. 2. The new cursor names a segment that does not exist.
    begun = CursorRecord(segment.no, epoch, index, chain.topic)
    crossing.write_cursor(broker, partition, head, begun, revision, partition.revision)


def _place(broker: BrokerState, partition: Partition, head: GroupHead, record: CursorRecord) -> None:
    """Serve the consumer group if this member is the server of its cursor segment, else tell which member is."""
    chain = partition.chain
    segment = chain.segment(record.segment_no) if chain is not None else None
    head.segment_no = record.segment_no
    head.group_epoch = record.group_epoch
    if chain is None or (segment is None and record.segment_no > chain.open_segment.no):
        partition.read_chain(broker)  # the cursor is newer than the chain known here
        broker.poll(broker.config.retry_us, TimerKind.CURSOR, partition.id, head.group)
        return
    if chain.is_folded(record.segment_no):
        _pass_over_folded(broker, partition, head, chain, record)
        return
    if segment is None:
        crossing.jump(broker, partition, head, chain.segments[0].no, "dropped by retention")
        return
    if segment.state is SegmentState.LOST:
        crossing.jump(broker, partition, head, crossing.next_no(partition, segment.no), "declared lost")
        return
    if segment.server != broker.member:
        _refuse_all(broker, partition, head, segment)
        return
    if not head.consumers and not (head.passes_alone and segment.is_stub):
        head.passes_alone = False
        forget_if_unused(partition, head)
        return
    if not right.confirmed(partition, segment.no):
        right.seek(broker, partition, segment.no)
        wait_us = max(broker.config.heartbeat_us, partition.write_wait_us(broker))
        broker.poll(wait_us, TimerKind.CURSOR, partition.id, head.group)
        return
    held = partition.rights[segment.no]
    if held.blind and head.group not in held.renewed:
        held.renewed = put(held.renewed, head.group, record.group_epoch + 1)
    if held.blind and record.group_epoch < held.renewed[head.group]:
        _renew_epoch(broker, partition, head, record)
    elif head.consumers:
        _begin(broker, partition, head, segment, record)
    else:
        _pass_alone(broker, partition, head, chain, segment, record)


def _pass_over_folded(
    broker: BrokerState, partition: Partition, head: GroupHead, chain: Chain, record: CursorRecord
) -> None:
    """The cursor segment was empty, and is folded: write the cursor to the next segment, in the same group epoch.

    Rule `stays-in-folded` (I13): a consumer group whose cursor is in a folded segment continues. Any broker may write
    the cursor, because the segment had nothing to deliver or to acknowledge. Without it:
      1. The cursor is in segment 2, which has no message. A switch folds segment 2.
      2. No member serves segment 2 any more, so the consumer group waits for ever.
    """
    following = chain.from_no(record.segment_no)
    assert following is not None
    crossing.write_cursor(broker, partition, head, record.moved_to(following.no), head.cursor_revision)


def _refuse_all(broker: BrokerState, partition: Partition, head: GroupHead, segment: Segment) -> None:
    error = errors.GroupHeadElsewhereError(
        f"segment {segment.no} is served by {segment.server.broker}", segment=segment.no
    )
    for consumer in head.consumers:
        tell(broker, consumer, SubscriptionRefused(error, segment.no, segment.server.broker))
    head.consumers = []
    head.active = None
    head.passes_alone = False
    if broker.directory.is_replaced(segment.server):
        questions.complain(broker, partition, segment)  # no client does: the broker answers, with another disk
    questions.answer(broker, partition, head)
    forget_if_unused(partition, head)


# ---- this member serves ---------------------------------------------------------------------------------


def _renew_epoch(broker: BrokerState, partition: Partition, head: GroupHead, record: CursorRecord) -> None:
    """No member is left that knew the acknowledgements: begin at the cursor on this disk, in a new group epoch."""
    known = cursors.known_in_epoch(partition, head.group, record.segment_no, record.group_epoch)
    start = known.acked if known is not None else record.start_index
    renewed = record.moved_to(record.segment_no, start, new_epoch=True)
    if start > record.start_index:  # a later message was acknowledged, so the consumer was told
        renewed = replace(renewed, dropped_from=0, dropped_position=0)
    crossing.write_cursor(broker, partition, head, renewed, head.cursor_revision)


def _begin(broker: BrokerState, partition: Partition, head: GroupHead, segment: Segment, record: CursorRecord) -> None:
    """Begin to serve the consumer group, at what this disk knows of its acknowledgements."""
    known = cursors.known_in_epoch(partition, head.group, segment.no, record.group_epoch)
    if known is not None:
        head.acked, head.reserved = known.acked, known.reserved
    else:
        head.acked = head.reserved = record.start_index
    # Rule `reserved-by-one` (I9): a reservation counts only when every eligible member has confirmed it to this server.
    # At first only the coordinator's cursor counts. Without it: 1. The server before wrote a reservation. It reached
    # this member but not a third one. The server died. 2. This member counts the reservation, delivers below it without
    # a flag, and dies before its own control record reaches the third one. 3. The third one delivers the same messages
    # without a flag.
    head.safe_acked = head.safe_reserved = record.start_index
    head.found_acked = head.acked
    _take_up_dropped(head, record)
    head.passes_alone = False
    head.repeated_below = head.reserved if known is not None else 0
    if partition.rights[segment.no].blind or cursors.was_further(partition, head.group, segment.no, record.group_epoch):
        head.repeated_below = INDEX_MAX
        head.reserved = max(head.reserved, partition.logs[segment.no].tail)
    delivery_attempts.take_up(partition, head)
    head.server_epoch = segment.server_epoch
    head.phase = GroupPhase.SERVING
    head.drop_deliveries()
    first = next((consumer for consumer in head.consumers if consumer.was_active), head.consumers[0])
    subscribing.activate(broker, partition, head, first)
    for consumer in head.consumers:
        if consumer is not first:
            subscribing.stand_by(broker, head, consumer)
    # send what this disk has of the server before to every eligible member
    cursors.sync(broker, partition, head)
    crossing.cross_if_done(broker, partition, head)


def _take_up_dropped(head: GroupHead, record: CursorRecord) -> None:
    """Take up what the cursor record says was dropped, unless a consumer has acknowledged a later message since.

    Rule `untold-not-taken-up` (I1, I13): a new server tells consumers what the cursor says was dropped. Without it:
      1. Retention drops all of segment 1. The consumer group crosses, and its cursor says what was dropped.
      2. The server of segment 2 delivers the first message there without telling the consumer of the drop.
      3. The consumer finds a hole of which it was not told. It treats that as a violation of the order, and stops.
    """
    is_open = bool(record.dropped_from) and head.acked <= record.start_index
    head.dropped_from, head.dropped_position = (record.dropped_from, record.dropped_position) if is_open else (0, 0)


def pass_group(broker: BrokerState, partition: Partition, event: PassGroup) -> None:
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
            broker.send(segment.server, PassRequest(partition.id, event.segment_no, event.group))
        else:
            questions.complain(broker, partition, segment)
        return
    head = partition.groups.get(event.group)
    if head is None:
        head = head_of(broker, partition, event.group, StartPosition.EARLIEST)
        head.passes_alone = True
    elif head.phase is GroupPhase.LOADING and not head.consumers and not head.crossing_serial:
        head.passes_alone = True
        read_cursor(broker, partition, head)


def _pass_alone(
    broker: BrokerState, partition: Partition, head: GroupHead, chain: Chain, segment: Segment, record: CursorRecord
) -> None:
    """The consumer group has no consumer and its segment has no message: cross.

    Otherwise a consumer group that has no consumers any more would keep every later segment in the record.
    """
    if not right.may_deliver(broker, partition, segment.no):
        right.seek(broker, partition, segment.no)
        broker.poll(broker.config.heartbeat_us, TimerKind.CURSOR, partition.id, head.group)
        return
    cursor = partition.cursor_in(segment.no, head.group)
    known = cursor is not None and cursor.group_epoch == record.group_epoch
    head.acked = head.safe_acked = cursor.acked if cursor is not None and known else record.start_index
    _take_up_dropped(head, record)
    lost = subscribing.lost_before(chain, head)
    oldest = chain.segment(lost[0]) if lost else None
    if oldest is not None and oldest.base is not None and not head.dropped_from:
        head.dropped_from, head.dropped_position = make_offset(oldest.no, 0), oldest.base
    crossing.move_on(broker, partition, head, crossing.next_no(partition, segment.no))


# ---- the record changes ---------------------------------------------------------------------------------


def on_learned(broker: BrokerState, partition: Partition, known: Chain | None, chain: Chain) -> None:
    """The chain record changed: stop what is served elsewhere now, and continue with everything else."""
    for head in list(partition.groups.values()):
        if head.phase is GroupPhase.LOADING:
            if head.questions and head.segment_no:
                questions.answer(broker, partition, head)
            continue
        segment = chain.segment(head.segment_no)
        if segment is None or segment.server != broker.member or segment.server_epoch != head.server_epoch:
            _revoke(broker, partition, head, segment)
            continue
        subscribing.tell_new_gaps(broker, partition, head, known)
        _expect_only_eligible(broker, partition, head, segment)
        if head.phase is GroupPhase.SERVING and set(segment.eligible) - set(head.eligible):
            cursors.sync(broker, partition, head)  # a new eligible member must have the newest control record
        if head.group in partition.groups:
            progress.retry(broker, partition, head.segment_no)


def _expect_only_eligible(broker: BrokerState, partition: Partition, head: GroupHead, segment: Segment) -> None:
    """Let control records wait no longer for members that are not eligible any more."""
    for serial in list(head.syncs):
        sync = head.syncs.get(serial)
        if sync is None:
            continue
        joining = partition.rights[segment.no].joining if segment.no in partition.rights else ()
        for member in list(sync.waiting):
            if member != broker.member and member not in segment.eligible and member not in joining:
                del sync.waiting[member]
        progress.finish_sync(broker, partition, head, serial)


def _revoke(broker: BrokerState, partition: Partition, head: GroupHead, segment: Segment | None) -> None:
    """Stop serving in this server epoch. If this member is still the server, it finds the place of the cursor anew."""
    mine = segment is not None and segment.server == broker.member
    if not mine:
        error = errors.NotServingError(f"another broker serves segment {head.segment_no} now")
        for consumer in head.consumers:
            tell(broker, consumer, Revoked(error))
        head.consumers = []
        delivery_attempts.forget(partition, head.group)
    if head.phase is GroupPhase.CROSSING:
        head.crossing_serial = 0
    head.look_again()
    if head.consumers or head.questions or head.operations:
        read_cursor(broker, partition, head)
    else:
        partition.groups = drop(partition.groups, head.group)


def on_chain_read(broker: BrokerState, partition: Partition, failed: bool) -> None:
    """A read of the chain ended: continue with each consumer group that waited for it."""
    for head in list(partition.groups.values()):
        if head.phase is GroupPhase.SERVING:
            progress.retry(broker, partition, head.segment_no)
        if failed or head.crossing_serial or head.group not in partition.groups:
            continue
        if head.operations or head.phase is GroupPhase.LOADING:
            read_cursor(broker, partition, head)


def on_writes_taken(broker: BrokerState, partition: Partition) -> None:
    """The coordinator takes writes again: try again to cross, or to place consumer groups."""
    for head in list(partition.groups.values()):
        if head.phase is GroupPhase.SERVING:
            progress.retry(broker, partition, head.segment_no)
        elif head.phase is GroupPhase.LOADING and head.crossing_serial == 0:
            read_cursor(broker, partition, head)


def on_caught_up(broker: BrokerState, partition: Partition) -> None:
    """The coordinator has its lost decisions again: find the place of each consumer group anew.

    Rule `place-found-anew` (I13): a cursor from the older copy may name a segment that the consumer group has left.
    Without it:
      1. In the older copy the cursor is in segment 2. This member serves segment 2.
      2. The consumers have had all of segment 2: they drop what comes, and acknowledge nothing.
      3. The rebuild writes that the cursor is in segment 8. This member serves segment 2 for ever.
    So this happens after each rebuild, also if this member has not noticed a loss.
    """
    for head in list(partition.groups.values()):
        head.cursor_revision = 0  # the revisions may count from a lower one on
        if head.phase is not GroupPhase.LOADING:
            segment = partition.chain.segment(head.segment_no) if partition.chain is not None else None
            _revoke(broker, partition, head, segment)


def _refuse(broker: BrokerState, partition: Partition, head: GroupHead, refusal: errors.SeriatimError) -> None:
    """Refuse everything that waits for a consumer group that cannot be served."""
    for consumer in head.consumers:
        tell(broker, consumer, SubscriptionRefused(refusal, 0, ""))
    head.consumers = []
    operations.fail(broker, head, refusal)
    questions.fail(broker, partition, head, refusal)
    forget_if_unused(partition, head)


def on_no_partition(broker: BrokerState, partition: Partition) -> None:
    """The partition does not exist, or no longer: refuse everything that waits for its consumer groups."""
    error = errors.UnknownTopicError(f"there is no partition {partition.id}")
    for head in list(partition.groups.values()):
        for consumer in head.consumers:
            tell(broker, consumer, SubscriptionRefused(error, 0, ""))
        questions.fail(broker, partition, head, error)
        operations.fail(broker, head, error)
    partition.groups = partition.given = NOTHING
