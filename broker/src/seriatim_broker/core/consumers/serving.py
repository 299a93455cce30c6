"""Serving: from a group's cursor to deliveries, on the one broker that serves its head segment; and the end of that.

The cursor and the chain record come from the coordinator in either order; whatever does not fit together is read again.
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
from ..values.chain import Chain, Segment, SegmentState
from ..values.effects import Revoked, SubscriptionRefused
from ..values.events import CursorRead, CursorRecord, CursorWritten, PassGroup, StartPosition
from ..values.kinds import TimerKind
from ..values.messages import PassRequest
from ..values.positions import first_kept
from ..values.states import NOTHING, drop, put
from . import crossing, cursors, delivery_attempts, operations, progress, questions, subscribing
from .head import forget_if_unused, head_of, read_cursor, tell

# ---- where the cursor stands ----------------------------------------------------------------------------


def on_cursor_read(broker: BrokerState, partition: Partition, event: CursorRead) -> None:
    """The coordinator knows where the group is."""
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
        _refuse(broker, partition, head, errors.BadRequestError("what is staged for publications has no consumers"))
        return
    is_new = record is None or record.deleted
    if is_new:  # to describe a group, or to operate it, must not make it
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
            f"group {group} has no consumers: a program reads ranges, and reports how far it is. Consume as another "
            "group, or delete this one first"
        )
        _refuse(broker, partition, head, refusal)
        return
    if operations.is_unsettled(broker, partition, head, record, revision):
        questions.answer(broker, partition, head)
        return
    if head.phase is GroupPhase.LOADING and head.crossing_serial:
        # The read overtook the answer of a write of this member, after which the cursor is read again. Without it the
        # group would begin here twice: its consumer would be given the same messages again, under another token.
        questions.answer(broker, partition, head)
        return
    moved = (head.segment_no, head.group_epoch) != (record.segment_no, record.group_epoch)
    if head.phase is GroupPhase.LOADING or (moved and head.phase is not GroupPhase.CROSSING):
        if head.phase is GroupPhase.SERVING:  # another server has moved the group on
            head.look_again()
        head.cursor, head.cursor_revision = record, revision
        _place(broker, partition, head, record)
    elif head.phase is GroupPhase.SERVING and not head.crossing_serial:
        operations.take_up(broker, partition, head, record, revision)
    operations.go_on(broker, partition, head)
    questions.answer(broker, partition, head)


def _came_late(head: GroupHead, revision: int, known_revision: int) -> bool:
    """Whether a cursor was read before the newest one that this member knows.

    Rule `newest-cursor` (I11). Without it: (1) the cursor is read for a question; (2) a person resumes the group, which
    this member writes and tells; (3) the answer of the read comes, and the group is taken for paused, until somebody
    resumes it again. A rewound group would be served in the epoch before, for a moment.

    Rule `late-began-before` (I13): a read that began with that one known is not late. It shows that an older copy of
    the coordinator was restored, which counts on from lower revisions. Without it: (1) the group's crossing has no
    answer, because the older copy is put in place; (2) this member reads the cursor, and waits for one as new as the
    one that it knows; (3) only this cursor was lost, so no broker notices, and its consumers wait for ever.
    """
    return 0 < revision < head.cursor_revision and known_revision < head.cursor_revision


def on_cursor_written(broker: BrokerState, partition: Partition, event: CursorWritten) -> None:
    """A transaction on a cursor ended: of a person's operation, or of a group that moves on."""
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
    """Look again."""
    head = partition.groups.get(group)
    if head is not None and head.phase is GroupPhase.LOADING and head.crossing_serial == 0:
        read_cursor(broker, partition, head)


def _create_cursor(
    broker: BrokerState, partition: Partition, head: GroupHead, chain: Chain, epoch: int, revision: int
) -> None:
    """A group that was never here begins at the first message that is kept, or at the end of the open segment."""
    if head.reads_chain_first:
        # Rule `conflict-reads-chain`: the cursor of a new group compares the chain's revision as well. Without it: (1)
        # the chain has changed, or an older copy of the coordinator has no such record; (2) the cursor is read, is not
        # there, and is written under the same revision again, some hundred times a second.
        head.reads_chain_first = False
        partition.read_chain(broker)  # and then the cursor
        return
    # Not at the first segment of the record: another group may keep segments there of which all was dropped, and the
    # new one is told of nothing that went before it came.
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
    # Rule `begins-in-the-record` (I8): the segment may have left the record since it was read here.
    begun = CursorRecord(segment.no, epoch, index, chain.topic)
    crossing.write_cursor(broker, partition, head, begun, revision, partition.revision)


def _place(broker: BrokerState, partition: Partition, head: GroupHead, record: CursorRecord) -> None:
    """Serve the group from here if its head segment is this member's to serve."""
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
    """The head segment was empty and is not kept any more: the group begins at the next one, in the same epoch.

    Rule `leaves-folded` (I13): no member serves that number any more. Any broker may write the cursor, because there
    was nothing to deliver or to acknowledge in the segment.
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
        questions.complain(broker, partition, segment)  # nobody else would: the slot answers, with another disk
    questions.answer(broker, partition, head)
    forget_if_unused(partition, head)


# ---- here -----------------------------------------------------------------------------------------------


def _renew_epoch(broker: BrokerState, partition: Partition, head: GroupHead, record: CursorRecord) -> None:
    """Nobody who knew the group's acknowledgements is left: it goes on from this own cursor, in a new epoch."""
    known = cursors.known_in_epoch(partition, head.group, record.segment_no, record.group_epoch)
    start = known.acked if known is not None else record.start_index
    renewed = record.moved_to(record.segment_no, start, new_epoch=True)
    if start > record.start_index:  # what lies below was acknowledged, so its consumer was told
        renewed = replace(renewed, dropped_from=0, dropped_position=0)
    crossing.write_cursor(broker, partition, head, renewed, head.cursor_revision)


def _begin(broker: BrokerState, partition: Partition, head: GroupHead, segment: Segment, record: CursorRecord) -> None:
    """Deliver from what is known here of the group's acknowledgements."""
    known = cursors.known_in_epoch(partition, head.group, segment.no, record.group_epoch)
    if known is not None:
        head.acked, head.reserved = known.acked, known.reserved
    else:
        head.acked = head.reserved = record.start_index
    # Common is what every eligible member has confirmed to this server; at first that is the coordinator's cursor.
    # What only the disk of this member is known to have does not count (I9): (1) the server before wrote a reservation,
    # which reached this member and not a third one, and died; (2) this member takes it for common, delivers without a
    # flag, and dies before its own control record gets through; (3) the third one delivers the same without a flag.
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
    # make common what a predecessor acknowledged and reserved last
    cursors.sync(broker, partition, head)
    crossing.cross_if_done(broker, partition, head)


def _take_up_dropped(head: GroupHead, record: CursorRecord) -> None:
    """What no consumer is known to have been told: whoever acknowledged something behind it was."""
    is_open = bool(record.dropped_from) and head.acked <= record.start_index
    head.dropped_from, head.dropped_position = (record.dropped_from, record.dropped_position) if is_open else (0, 0)


def pass_group(broker: BrokerState, partition: Partition, event: PassGroup) -> None:
    """Retention found a group in a segment without messages: its server moves the group on, with or without consumers.

    Rule `server-passes` (I3): only the server. Without it (1) another broker writes the cursor; (2) the server has not
    heard that the messages were dropped, and delivers them to a consumer; (3) the next server delivers at once as well.
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
    """The group has no consumer, and its segment no message: it crosses.

    Without it a group that has no consumers any more would keep every later segment in the record.
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
    """The record changed: the right may be gone, the segment sealed, a silent member no longer eligible."""
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
            cursors.sync(broker, partition, head)  # a new one must have the newest record
        if head.group in partition.groups:
            progress.retry(broker, partition, head.segment_no)


def _expect_only_eligible(broker: BrokerState, partition: Partition, head: GroupHead, segment: Segment) -> None:
    """Control records do not wait for members that are no longer eligible."""
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
    """Serve no more; under a seal by somebody else the same member may go on at once, under a new epoch."""
    mine = segment is not None and segment.server == broker.member
    if not mine:
        error = errors.NotServingError(f"segment {head.segment_no} is served elsewhere now")
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
    """A read ended: what waited for it goes on."""
    for head in list(partition.groups.values()):
        if head.phase is GroupPhase.SERVING:
            progress.retry(broker, partition, head.segment_no)
        if failed or head.crossing_serial or head.group not in partition.groups:
            continue
        if head.operations or head.phase is GroupPhase.LOADING:
            read_cursor(broker, partition, head)


def on_writes_taken(broker: BrokerState, partition: Partition) -> None:
    """Groups that could not cross, or be placed, try again."""
    for head in list(partition.groups.values()):
        if head.phase is GroupPhase.SERVING:
            progress.retry(broker, partition, head.segment_no)
        elif head.phase is GroupPhase.LOADING and head.crossing_serial == 0:
            read_cursor(broker, partition, head)


def on_caught_up(broker: BrokerState, partition: Partition) -> None:
    """The coordinator has what it had lost: find the place of each group anew.

    Rule `place-found-anew` (I13): a cursor that was read from the older copy names a segment that the group has left
    since. Without it:
      1. The older copy puts the group into segment 2, which this member serves.
      2. Its consumers have had all of that segment: they drop what comes, and acknowledge nothing.
      3. The rebuild writes that the group is in segment 8, and this member goes on in segment 2 for ever.
    So the place is found anew after a rebuild as well, whether or not this member has noticed a loss.
    """
    for head in list(partition.groups.values()):
        head.cursor_revision = 0  # they may have begun anew
        if head.phase is not GroupPhase.LOADING:
            segment = partition.chain.segment(head.segment_no) if partition.chain is not None else None
            _revoke(broker, partition, head, segment)


def _refuse(broker: BrokerState, partition: Partition, head: GroupHead, refusal: errors.SeriatimError) -> None:
    """There is no such group here, and will be none."""
    for consumer in head.consumers:
        tell(broker, consumer, SubscriptionRefused(refusal, 0, ""))
    head.consumers = []
    operations.fail(broker, head, refusal)
    questions.fail(broker, partition, head, refusal)
    forget_if_unused(partition, head)


def on_no_partition(broker: BrokerState, partition: Partition) -> None:
    """The partition does not exist (any more)."""
    error = errors.UnknownTopicError(f"there is no partition {partition.id}")
    for head in list(partition.groups.values()):
        for consumer in head.consumers:
            tell(broker, consumer, SubscriptionRefused(error, 0, ""))
        questions.fail(broker, partition, head, error)
        operations.fail(broker, head, error)
    partition.groups = partition.given = NOTHING
