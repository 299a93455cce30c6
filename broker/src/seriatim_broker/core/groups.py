"""Exclusive consumer groups: one consumer of a partition is active, the others stand by.

A group's head is one segment; the server of that segment delivers to the group. Acknowledgements and reservations
("delivered below, perhaps") are control records, durable on every eligible member before they count. When everything
below the sealed length is acknowledged, the group's cursor in the coordinator moves to the next segment, and only
then do the consumers hear of the end of this one.

    LOADING ──cursor read──▶ SERVING ──all acknowledged──▶ CROSSING ──cursor written──▶ (gone: END_OF_SEGMENT)
       └── head elsewhere ──▶ (gone: refused with the address of the server)
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from seriatim_api import errors
from seriatim_api.ids import INDEX_MAX, MemberId, split_offset

from . import right, tables
from .chain import Chain, Segment, SegmentState
from .effects import (
    AckConfirmed,
    Batches,
    ConsumerResolved,
    Deliver,
    DeliveryEvent,
    EndOfSegment,
    Gap,
    GroupDescribed,
    Joined,
    ReadCursor,
    ReadLog,
    Revoked,
    Skip,
    SubscriptionRefused,
    WriteCursor,
)
from .events import ConsumerAck, ConsumerJoin, CursorRecord, StartPosition, WriteOutcome
from .log import Batch, CursorState, PutCursor
from .messages import ChainUpdate, CursorSync, CursorSynced, TakeOver
from .outbox import Outbox
from .producers import covers
from .state import State

if TYPE_CHECKING:
    from .partition import Partition

TOKEN_COUNTER_BITS = 24
"""Tokens are the serving epoch above and a counter below: a new server's tokens void all older ones."""


class Phase(enum.Enum):
    """Where a group's head is on this broker."""

    LOADING = "loading"
    SERVING = "serving"
    CROSSING = "crossing"


class Consumer(State):
    """A subscription of this group."""

    __slots__ = ("name", "stream", "subscription", "was_active")

    def __init__(self, join: ConsumerJoin) -> None:
        self.name = join.consumer
        self.stream = join.stream
        self.subscription = join.subscription
        self.was_active = join.was_active


class Question(State):
    """Somebody who only asks where the group's head is."""

    __slots__ = ("deadline_us", "describe", "failed_epoch", "request")

    def __init__(self, request: int, failed_epoch: int | None, deadline_us: int, describe: bool) -> None:
        self.request = request
        self.failed_epoch = failed_epoch
        self.deadline_us = deadline_us
        self.describe = describe


class Sync(State):
    """A control record on its way to the other eligible members."""

    __slots__ = ("acked", "reserved", "waiting")

    def __init__(self, acked: int, reserved: int, waiting: dict[MemberId, None]) -> None:
        self.acked = acked
        self.reserved = reserved
        self.waiting = waiting  # those that have not confirmed, this member among them


class GroupHead(State):
    """What this broker knows of one group on one partition."""

    __slots__ = (
        "acked",
        "active",
        "attempt",
        "consumers",
        "crossing_serial",
        "cursor_revision",
        "delivered",
        "dirty",
        "eligible",
        "group",
        "group_epoch",
        "held_back",
        "phase",
        "questions",
        "reading",
        "repeated_below",
        "reserved",
        "safe_acked",
        "safe_reserved",
        "seen",
        "segment_no",
        "server_epoch",
        "start",
        "syncs",
        "token",
    )

    def __init__(self, group: str, start: StartPosition) -> None:
        self.group = group
        self.start = start
        self.phase = Phase.LOADING
        self.consumers: list[Consumer] = []
        self.questions: list[Question] = []
        self.active: Consumer | None = None
        self.segment_no = 0
        self.group_epoch = 0
        self.server_epoch = 0
        self.cursor_revision = 0
        self.acked = 0  # acknowledged here
        self.safe_acked = 0  # acknowledged, and durable on every eligible member
        self.reserved = 0
        self.safe_reserved = 0
        self.delivered = 0  # to the active consumer
        self.seen = 0  # to any consumer, by this server
        self.repeated_below = 0  # what another server may have delivered
        self.attempt = 1
        self.token = 0
        self.reading = 0  # serial of the read under way
        self.held_back: tuple[Batch, ...] = ()  # read, and waiting for a reservation
        self.dirty = False
        self.eligible: tuple[MemberId, ...] = ()  # that the newest control record went to
        self.syncs: dict[int, Sync] = {}
        self.crossing_serial = 0


def _tell(outbox: Outbox, consumer: Consumer, event: DeliveryEvent) -> None:
    outbox.emit(Deliver(consumer.stream, consumer.subscription, event))


# ---- joining and leaving --------------------------------------------------------------------------------


def join(outbox: Outbox, partition: Partition, event: ConsumerJoin) -> None:
    """A consumer asks for the partition."""
    head = _head(outbox, partition, event.group, event.start)
    for consumer in head.consumers:
        if consumer.name == event.consumer:  # it came back before its old stream was seen to be gone
            _tell(outbox, consumer, Revoked(errors.NotActiveError("the consumer joined again on another stream")))
            leave(outbox, partition, consumer.stream, consumer.subscription)
            head = _head(outbox, partition, event.group, event.start)
            break
    head.consumers.append(Consumer(event))
    if head.phase is Phase.SERVING:
        _admit(outbox, partition, head, head.consumers[-1])


def _head(outbox: Outbox, partition: Partition, group: str, start: StartPosition) -> GroupHead:
    head = partition.groups.get(group)
    if head is None:
        head = partition.groups[group] = GroupHead(group, start)
        partition.read_chain(outbox)
        outbox.emit(ReadCursor(partition.id, group))
    return head


def _admit(outbox: Outbox, partition: Partition, head: GroupHead, consumer: Consumer) -> None:
    if head.active is None:
        _activate(outbox, partition, head, consumer)
    else:
        _tell(outbox, consumer, _joined(head, active=False))


def _activate(outbox: Outbox, partition: Partition, head: GroupHead, consumer: Consumer) -> None:
    """Give the exclusive grant: from the first message that is not acknowledged."""
    head.active = consumer
    outbox.tokens += 1  # of this run: a token is never given twice under one serving epoch
    head.token = head.server_epoch << TOKEN_COUNTER_BITS | outbox.tokens % (1 << TOKEN_COUNTER_BITS)
    head.delivered = head.acked
    head.held_back = ()
    head.reading = 0
    if head.seen > head.acked:
        head.attempt += 1
    _tell(outbox, consumer, _joined(head, active=True))
    pump_group(outbox, partition, head)


def _joined(head: GroupHead, active: bool) -> Joined:
    token = head.token if active else 0
    return Joined(active, head.segment_no, head.acked, token, head.group_epoch, head.server_epoch)


def leave(outbox: Outbox, partition: Partition, stream: int, subscription: int | None) -> None:
    """A subscription, or all of a stream, is gone: the next one in line takes over."""
    for head in list(partition.groups.values()):
        gone = [
            consumer
            for consumer in head.consumers
            if consumer.stream == stream and subscription in (None, consumer.subscription)
        ]
        if not gone:
            continue
        head.consumers = [consumer for consumer in head.consumers if consumer not in gone]
        if head.active in gone:
            if head.dirty and head.phase is Phase.SERVING:
                _sync(outbox, partition, head)
            head.active = None
            if head.consumers and head.phase is Phase.SERVING:
                _activate(outbox, partition, head, head.consumers[0])
        _forget_if_unused(partition, head)


def _forget_if_unused(partition: Partition, head: GroupHead) -> None:
    if not head.consumers and not head.questions and not head.syncs and head.phase is not Phase.CROSSING:
        partition.groups.pop(head.group, None)


# ---- where the head is ----------------------------------------------------------------------------------


def resolve(
    outbox: Outbox,
    partition: Partition,
    request: int,
    group: str,
    failed_epoch: int | None,
    start: StartPosition,
    deadline_us: int,
    describe: bool = False,
) -> None:
    """Say who serves the group's head; with a complaint, once that is somebody else, or at the deadline."""
    head = partition.groups.get(group)
    if head is None:
        head = _head(outbox, partition, group, start)
    elif head.phase is not Phase.LOADING or partition.chain is not None:
        partition.read_chain(outbox)
        outbox.emit(ReadCursor(partition.id, group))
    head.questions.append(Question(request, failed_epoch, deadline_us, describe))
    outbox.wake(deadline_us, "questions", partition.id)


def on_cursor_read(
    outbox: Outbox, partition: Partition, group: str, record: CursorRecord | None, revision: int, failed: bool
) -> None:
    """The coordinator knows where the group is."""
    head = partition.groups.get(group)
    if head is None:
        return
    if failed:
        outbox.poll(outbox.config.retry_us, "cursor", partition.id, group)
        return
    if record is None and not head.consumers and all(question.describe for question in head.questions):
        _answer_without_cursor(outbox, partition, head)
        return
    if record is None:
        if partition.chain is not None and head.crossing_serial == 0:
            _create_cursor(outbox, partition, head)
        elif partition.chain is None:
            outbox.poll(outbox.config.retry_us, "cursor", partition.id, group)
        return
    moved = (head.segment_no, head.group_epoch) != (record.segment_no, record.group_epoch)
    if head.phase is Phase.LOADING or (moved and head.phase is not Phase.CROSSING):
        head.cursor_revision = revision
        _place_head(outbox, partition, head, record)
    _answer_questions(outbox, partition, head)


def _answer_without_cursor(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    """To describe a group must not make it."""
    error = errors.UnknownGroupError(f"group {head.group} has no position in partition {partition.id}")
    for question in head.questions:
        outbox.emit(GroupDescribed(question.request, 0, 0, None, None, 0, "", (), error))
    head.questions = []
    _forget_if_unused(partition, head)


def _create_cursor(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    """A group that was never here begins at the first segment, or at the end of the open one."""
    assert partition.chain is not None
    segment = partition.chain.segments[0]
    index = 0
    if head.start is StartPosition.LATEST:
        segment = partition.chain.open_segment
        log = partition.logs.get(segment.no)
        if log is None or not log.active:
            _answer_questions(outbox, partition, head, without_cursor=True)
            _refuse_all(outbox, partition, head, segment)  # only a member of the open segment knows its end
            return
        index = log.commit
    head.crossing_serial = outbox.new_serial()
    record = CursorRecord(segment.no, 1, index, partition.chain.topic)
    outbox.emit(WriteCursor(partition.id, head.group, head.crossing_serial, record, 0))


def _place_head(outbox: Outbox, partition: Partition, head: GroupHead, record: CursorRecord) -> None:
    """Serve the group from here if its head segment is this member's to serve."""
    chain = partition.chain
    segment = chain.segment(record.segment_no) if chain is not None else None
    head.segment_no = record.segment_no
    head.group_epoch = record.group_epoch
    if chain is None or (segment is None and record.segment_no > chain.open_segment.no):
        partition.read_chain(outbox)  # the cursor is newer than the chain known here
        outbox.poll(outbox.config.retry_us, "cursor", partition.id, head.group)
        return
    if segment is None:
        _move_on(outbox, partition, head, chain.segments[0].no, "dropped by retention", bump=True)
        return
    if segment.state is SegmentState.LOST:
        _move_on(outbox, partition, head, segment.no + 1, "declared lost", bump=True)
        return
    if segment.server != outbox.member:
        _refuse_all(outbox, partition, head, segment)
        return
    if not head.consumers:
        return
    if not right.confirmed(partition, segment.no):
        right.seek(outbox, partition, segment.no)
        outbox.poll(outbox.config.heartbeat_us, "cursor", partition.id, head.group)
        return
    held = partition.rights[segment.no]
    if held.blind and record.group_epoch < held.renewed.setdefault(head.group, record.group_epoch + 1):
        _renew_epoch(outbox, partition, head, record)
        return
    _begin_serving(outbox, partition, head, segment, record)


def _renew_epoch(outbox: Outbox, partition: Partition, head: GroupHead, record: CursorRecord) -> None:
    """Nobody who knew the group's acknowledgements is left: it goes on from this own cursor, in a new epoch."""
    cursor = partition.cursors.get((record.segment_no, head.group))
    known = cursor is not None and cursor.group_epoch == record.group_epoch
    start = cursor.acked if cursor is not None and known else record.start_index
    renewed = CursorRecord(record.segment_no, record.group_epoch + 1, start, record.topic)
    head.crossing_serial = outbox.new_serial()
    outbox.emit(WriteCursor(partition.id, head.group, head.crossing_serial, renewed, head.cursor_revision))


def _begin_serving(
    outbox: Outbox, partition: Partition, head: GroupHead, segment: Segment, record: CursorRecord
) -> None:
    cursor = partition.cursors.get((segment.no, head.group))
    if cursor is not None and cursor.group_epoch == record.group_epoch:
        head.acked, head.reserved = cursor.acked, cursor.reserved
    else:
        head.acked = head.reserved = record.start_index
    head.safe_acked = head.acked
    head.safe_reserved = head.reserved
    head.repeated_below = head.reserved if cursor is not None else 0
    if partition.rights[segment.no].blind:
        head.repeated_below = INDEX_MAX
        head.reserved = max(head.reserved, partition.logs[segment.no].tail)
    head.seen = head.acked
    head.attempt = 1
    head.syncs = {}
    head.held_back = ()
    head.reading = 0
    head.server_epoch = segment.server_epoch
    head.phase = Phase.SERVING
    head.active = None
    first = next((consumer for consumer in head.consumers if consumer.was_active), head.consumers[0])
    _activate(outbox, partition, head, first)
    for consumer in head.consumers:
        if consumer is not first:
            _tell(outbox, consumer, _joined(head, active=False))
    # what a predecessor acknowledged last may be on this disk alone: make it common before it counts
    _sync(outbox, partition, head)
    _cross_if_done(outbox, partition, head)


def _refuse_all(outbox: Outbox, partition: Partition, head: GroupHead, segment: Segment) -> None:
    error = errors.GroupHeadElsewhereError(
        f"segment {segment.no} is served by {segment.server.broker}", segment=segment.no
    )
    for consumer in head.consumers:
        _tell(outbox, consumer, SubscriptionRefused(error, segment.no, segment.server.broker))
    head.consumers = []
    head.active = None
    if right.is_replaced(outbox, segment.server):
        _complain(outbox, partition, segment)  # nobody else would: the slot answers, with another disk
    _answer_questions(outbox, partition, head)
    _forget_if_unused(partition, head)


def _answer_questions(outbox: Outbox, partition: Partition, head: GroupHead, without_cursor: bool = False) -> None:
    still: list[Question] = []
    for question in head.questions:
        late = outbox.now.mono_us >= question.deadline_us
        answer = _answer_to(partition, head, question, late, without_cursor)
        if answer is None:
            segment = partition.chain.segment(head.segment_no) if partition.chain is not None else None
            if segment is not None and question.failed_epoch == segment.server_epoch:
                _complain(outbox, partition, segment)
            still.append(question)
        else:
            outbox.emit(answer)
    head.questions = still
    if still:
        outbox.poll(outbox.config.heartbeat_us, "questions", partition.id)
    _forget_if_unused(partition, head)


def _answer_to(
    partition: Partition, head: GroupHead, question: Question, late: bool, without_cursor: bool
) -> ConsumerResolved | GroupDescribed | None:
    chain = partition.chain
    no = chain.open_segment.no if without_cursor and chain is not None else head.segment_no
    segment = chain.segment(no) if chain is not None else None
    if segment is None or chain is None:
        if not late:
            return None
        error = errors.CoordinatorUnavailableError("the group's position could not be read in time")
        if question.describe:
            return GroupDescribed(question.request, 0, 0, None, None, 0, "", (), error)
        return ConsumerResolved(question.request, partition.id, 0, "", 0, 0, "", False, error)
    if question.describe:
        return _description(partition, head, question.request, segment)
    complaint_stands = (
        question.failed_epoch is not None
        and segment.server_epoch <= question.failed_epoch
        and segment.state is not SegmentState.LOST
    )
    if complaint_stands and not late:
        return None
    return ConsumerResolved(
        question.request,
        partition.id,
        segment.no,
        segment.server.broker,
        segment.server_epoch,
        head.group_epoch,
        segment.state.value,
        not without_cursor,
        None,
    )


def _description(partition: Partition, head: GroupHead, request: int, segment: Segment) -> GroupDescribed:
    assert partition.chain is not None
    cursor = partition.cursors.get((segment.no, head.group))
    acked = head.acked if head.phase is Phase.SERVING else (cursor.acked if cursor is not None else 0)
    position = segment.base + acked if segment.base is not None else None
    last = partition.chain.open_segment
    log = partition.logs.get(last.no)
    end = last.base + log.commit if log is not None and last.base is not None else None
    active = head.active.name if head.active is not None else ""
    standbys = tuple(consumer.name for consumer in head.consumers if consumer is not head.active)
    return GroupDescribed(request, segment.no, acked, position, end, head.group_epoch, active, standbys, None)


def _complain(outbox: Outbox, partition: Partition, segment: Segment) -> None:
    """A client cannot reach the server: the open segment's is its master's affair, others may be taken over."""
    if segment.state is SegmentState.OPEN:
        partition.begin_switch(outbox, "consumer's complaint", segment.no)
        return
    right.take_over(outbox, partition, segment.no, segment.server_epoch)
    for member in (*segment.eligible, *segment.members):
        if member not in (outbox.member, segment.server):
            outbox.send(member, TakeOver(partition.id, segment.no, segment.server_epoch))


def on_questions_due(outbox: Outbox, partition: Partition) -> None:
    """Somebody's deadline passed."""
    for head in list(partition.groups.values()):
        if head.questions:
            _answer_questions(outbox, partition, head)
    if any(head.questions for head in partition.groups.values()):
        partition.read_chain(outbox)


# ---- delivering -----------------------------------------------------------------------------------------


def pump(outbox: Outbox, partition: Partition, segment_no: int) -> None:
    """There may be more to deliver from a segment."""
    for head in partition.groups.values():
        if head.segment_no == segment_no:
            pump_group(outbox, partition, head)


def pump_group(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    """Read the next batches for the active consumer, if it has room and this member has the right."""
    log = partition.logs.get(head.segment_no)
    consumer = head.active
    if head.phase is not Phase.SERVING or log is None or consumer is None or head.reading:
        return
    if head.held_back or head.delivered >= log.readable_below:
        return
    room = outbox.credits.get(consumer.stream, 0)
    if room <= 0:
        return
    if not right.may_deliver(outbox, partition, head.segment_no):
        right.seek(outbox, partition, head.segment_no)
        return
    head.reading = outbox.new_serial()
    outbox.reads[head.reading] = ("group", partition.id, head.segment_no, head.group, head.delivered)
    outbox.emit(
        ReadLog(
            head.reading,
            partition.id,
            head.segment_no,
            head.delivered,
            log.readable_below,
            min(room, outbox.config.deliver_bytes),
        )
    )


def on_log_read(
    outbox: Outbox, partition: Partition, serial: int, group: str, batches: tuple[Batch, ...] | None
) -> None:
    """The batches are there; whether they may be delivered is asked again now."""
    head = partition.groups.get(group)
    if head is None or head.reading != serial:
        return
    head.reading = 0
    if not batches:
        outbox.poll(outbox.config.retry_us, "pump", partition.id, head.segment_no)
        return
    log = partition.logs[head.segment_no]
    head.held_back = tuple(batch for batch in batches if batch.header.end_index <= log.readable_below)
    _deliver_held_back(outbox, partition, head)


def _deliver_held_back(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    """Deliver what was read, below the reservation only, and under the right only."""
    batches = head.held_back
    consumer = head.active
    if not batches or consumer is None or head.phase is not Phase.SERVING:
        return
    end = batches[-1].header.end_index
    if end > head.safe_reserved:
        if end > head.reserved:
            head.reserved = end + outbox.config.reservation_messages
            _sync(outbox, partition, head)
        return
    if not right.may_deliver(outbox, partition, head.segment_no):
        right.seek(outbox, partition, head.segment_no)
        return
    segment = partition.chain.segment(head.segment_no) if partition.chain is not None else None
    assert segment is not None
    before = tables.want_before(outbox, partition, segment.no) if segment.incomplete_table else ()
    if before is None:
        outbox.poll(outbox.config.retry_us, "pump", partition.id, head.segment_no)
        return
    head.held_back = ()
    run: list[Batch] = []
    for batch in batches:
        if covers(before, batch.header):
            _deliver_run(outbox, head, consumer, run)
            run = []
            _tell(
                outbox, consumer, Skip(segment.no, max(batch.header.base_index, head.delivered), batch.header.end_index)
            )
            head.delivered = batch.header.end_index
        else:
            if run and (run[-1].header.end_index <= head.seen) != (batch.header.end_index <= head.seen):
                _deliver_run(outbox, head, consumer, run)
                run = []
            run.append(batch)
    _deliver_run(outbox, head, consumer, run)
    head.seen = max(head.seen, head.delivered)
    outbox.credits[consumer.stream] = outbox.credits.get(consumer.stream, 0) - sum(b.size_bytes for b in batches)
    pump_group(outbox, partition, head)


def _deliver_run(outbox: Outbox, head: GroupHead, consumer: Consumer, run: list[Batch]) -> None:
    if not run:
        return
    end = run[-1].header.end_index
    attempt = head.attempt if end <= head.seen else 1
    _tell(
        outbox,
        consumer,
        Batches(
            head.segment_no, tuple(run), max(head.delivered, run[0].header.base_index), head.repeated_below, attempt,
            head.server_epoch,
        ),
    )  # fmt: skip
    head.delivered = end


def retry(outbox: Outbox, partition: Partition, segment_no: int) -> None:
    """Time, a certificate or a record changed: what was held back may go now."""
    for head in list(partition.groups.values()):
        if head.segment_no == segment_no and head.phase is Phase.SERVING:
            _chase_syncs(outbox, partition, head)
            _deliver_held_back(outbox, partition, head)
            pump_group(outbox, partition, head)
            _cross_if_done(outbox, partition, head)


def _chase_syncs(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    """A control record waits for a member that is silent: it must not stay eligible."""
    if not head.syncs:
        return
    silent = right.silent_members(outbox, partition, head.segment_no, outbox.config.silence_us)
    if any(member in sync.waiting for sync in head.syncs.values() for member in silent):
        right.seek(outbox, partition, head.segment_no)
    outbox.poll(outbox.config.heartbeat_us, "pump", partition.id, head.segment_no)


# ---- acknowledging --------------------------------------------------------------------------------------


def on_ack(outbox: Outbox, partition: Partition, event: ConsumerAck) -> None:
    """All up to an offset is done, if the token is the current grant's."""
    for head in partition.groups.values():
        for consumer in head.consumers:
            if (consumer.stream, consumer.subscription) != (event.stream, event.subscription):
                continue
            no, index = split_offset(event.offset)
            current = consumer is head.active and event.token == head.token and no == head.segment_no
            if not current or index >= head.delivered or head.phase is not Phase.SERVING:
                return  # a stale token changes nothing
            if index + 1 > head.acked:
                head.acked = index + 1
                _ack_soon(outbox, partition, head)
            return


def _ack_soon(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    """Make the acknowledgement durable: with others that come within a moment, at the end of a segment at once."""
    if _is_end(partition, head, head.acked):
        _sync(outbox, partition, head)
    elif not head.dirty:
        head.dirty = True
        outbox.wake(outbox.now.mono_us + outbox.config.ack_sync_us, "sync", partition.id, head.group)


def _is_end(partition: Partition, head: GroupHead, index: int) -> bool:
    log = partition.logs.get(head.segment_no)
    return log is not None and log.record.sealed_len is not None and index == log.record.sealed_len


def on_sync_due(outbox: Outbox, partition: Partition, group: str) -> None:
    """The moment is over."""
    head = partition.groups.get(group)
    if head is not None and head.dirty and head.phase is Phase.SERVING:
        _sync(outbox, partition, head)


def _sync(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    """Write the control record here and on every other eligible (or joining) member."""
    head.dirty = False
    no = head.segment_no
    segment = partition.chain.segment(no) if partition.chain is not None else None
    assert segment is not None
    cursor = CursorState(no, head.group, head.group_epoch, head.acked, head.reserved)
    partition.cursors[no, head.group] = cursor
    outbox.write(PutCursor(partition.id, cursor))
    serial = outbox.new_serial()
    outbox.when_stored(partition.id, "cursor", no, serial)
    joining = partition.rights[no].joining if no in partition.rights else {}
    for member in joining:
        joining[member] = serial
    others = [member for member in dict.fromkeys((*segment.eligible, *joining)) if member != outbox.member]
    head.syncs[serial] = Sync(head.acked, head.reserved, dict.fromkeys((outbox.member, *others)))
    head.eligible = segment.eligible
    message = CursorSync(partition.id, no, segment.server_epoch, serial, (cursor,))
    for member in others:
        outbox.send(member, message)
    outbox.poll(outbox.config.silence_us, "pump", partition.id, no)


def on_cursor_sync(outbox: Outbox, partition: Partition, sender: MemberId, message: CursorSync) -> None:
    """The server's control records: keep them, unless a newer server is known."""
    segment = partition.chain.segment(message.segment_no) if partition.chain is not None else None
    if segment is not None and partition.chain is not None and message.server_epoch < segment.server_epoch:
        outbox.send(sender, ChainUpdate(partition.chain, partition.revision))  # it serves no more
        return
    for cursor in message.cursors:
        merged = _merge_cursors(partition.cursors.get((cursor.segment_no, cursor.group)), cursor)
        partition.cursors[cursor.segment_no, cursor.group] = merged
        outbox.write(PutCursor(partition.id, merged))
    answer = CursorSynced(partition.id, message.segment_no, message.server_epoch, message.serial)
    outbox.when_durable_send(sender, answer)


def _merge_cursors(known: CursorState | None, new: CursorState) -> CursorState:
    """Within an epoch of the group a cursor only moves forward, whatever the order of arrival."""
    if known is None or known.group_epoch < new.group_epoch:
        return new
    if known.group_epoch > new.group_epoch:
        return known
    acked, reserved = max(known.acked, new.acked), max(known.reserved, new.reserved)
    return CursorState(new.segment_no, new.group, new.group_epoch, acked, reserved)


def on_link_up(outbox: Outbox, partition: Partition, member: MemberId) -> None:
    """What a member may have missed is sent again: the newest control record says it all."""
    for head in list(partition.groups.values()):
        if head.phase is Phase.SERVING and any(member in sync.waiting for sync in head.syncs.values()):
            _sync(outbox, partition, head)


def on_synced(
    outbox: Outbox, partition: Partition, member: MemberId, no: int, server_epoch: int | None, serial: int
) -> None:
    """One more member has a control record; it says all that the older ones of the same group said."""
    for head in list(partition.groups.values()):
        if serial not in head.syncs or head.segment_no != no or server_epoch not in (None, head.server_epoch):
            continue
        for known in [known for known in head.syncs if known <= serial]:
            sync = head.syncs[known]
            sync.waiting.pop(member, None)
            _finish_sync(outbox, partition, head, known)


def expect_no_more(outbox: Outbox, partition: Partition, no: int, member: MemberId) -> None:
    """A member that was about to be eligible is gone: no control record waits for it any more."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    for head in list(partition.groups.values()):
        if head.segment_no != no or (segment is not None and member in segment.eligible):
            continue
        for serial in list(head.syncs):
            if serial in head.syncs:
                head.syncs[serial].waiting.pop(member, None)
                _finish_sync(outbox, partition, head, serial)


def _finish_sync(outbox: Outbox, partition: Partition, head: GroupHead, serial: int) -> None:
    sync = head.syncs[serial]
    if sync.waiting:
        return
    del head.syncs[serial]
    head.safe_reserved = max(head.safe_reserved, sync.reserved)
    if sync.acked > head.safe_acked:
        head.safe_acked = sync.acked
        if head.active is not None:
            _tell(outbox, head.active, AckConfirmed(head.segment_no, head.safe_acked))
    _deliver_held_back(outbox, partition, head)
    pump_group(outbox, partition, head)
    _cross_if_done(outbox, partition, head)
    _forget_if_unused(partition, head)


# ---- crossing -------------------------------------------------------------------------------------------


def _cross_if_done(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    """Everything is acknowledged: move the cursor to the next segment."""
    log = partition.logs.get(head.segment_no)
    if head.phase is not Phase.SERVING or log is None or not log.is_whole or head.syncs:
        return
    if head.safe_acked == log.record.sealed_len and right.may_deliver(outbox, partition, head.segment_no):
        _move_on(outbox, partition, head, head.segment_no + 1, "", bump=False)
    elif head.safe_acked == log.record.sealed_len:
        right.seek(outbox, partition, head.segment_no)


def _move_on(outbox: Outbox, partition: Partition, head: GroupHead, next_no: int, gap: str, bump: bool) -> None:
    chain = partition.chain
    assert chain is not None
    head.phase = Phase.CROSSING
    head.crossing_serial = outbox.new_serial()
    if gap:
        for consumer in head.consumers:
            _tell(outbox, consumer, Gap(head.segment_no, 0, gap))
    record = CursorRecord(next_no, head.group_epoch + (1 if bump else 0), 0, chain.topic)
    outbox.emit(WriteCursor(partition.id, head.group, head.crossing_serial, record, head.cursor_revision))


def on_cursor_written(
    outbox: Outbox, partition: Partition, group: str, serial: int, outcome: WriteOutcome, revision: int
) -> None:
    """The group stands in the next segment, or somebody else moved it, or nobody knows."""
    head = partition.groups.get(group)
    if head is None or head.crossing_serial != serial:
        return
    head.crossing_serial = 0
    if outcome is WriteOutcome.DONE and head.phase is Phase.CROSSING:
        _end_segment(outbox, partition, head)
        return
    head.phase = Phase.LOADING
    head.active = None
    head.syncs = {}
    head.held_back = ()
    head.reading = 0
    outbox.emit(ReadCursor(partition.id, group))


def _end_segment(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    log = partition.logs.get(head.segment_no)
    sealed_len = log.record.sealed_len if log is not None and log.record.sealed_len is not None else 0
    following = partition.chain.segment(head.segment_no + 1) if partition.chain is not None else None
    server = following.server.broker if following is not None else ""
    event = EndOfSegment(head.segment_no, sealed_len, head.segment_no + 1, server, head.group_epoch)
    for consumer in head.consumers:
        _tell(outbox, consumer, event)
    head.consumers = []
    head.active = None
    head.syncs = {}
    head.phase = Phase.LOADING
    if head.questions:
        outbox.emit(ReadCursor(partition.id, head.group))
    _forget_if_unused(partition, head)


# ---- what else changes ----------------------------------------------------------------------------------


def on_learned(outbox: Outbox, partition: Partition, chain: Chain) -> None:
    """The record changed: the right may be gone, the segment sealed, a silent member no longer eligible."""
    for head in list(partition.groups.values()):
        if head.phase is Phase.LOADING:
            if head.questions and head.segment_no:
                _answer_questions(outbox, partition, head)
            continue
        segment = chain.segment(head.segment_no)
        if segment is None or segment.server != outbox.member or segment.server_epoch != head.server_epoch:
            _revoke(outbox, partition, head, segment)
            continue
        for serial in list(head.syncs):
            sync = head.syncs.get(serial)
            if sync is None:
                continue
            joining = partition.rights[segment.no].joining if segment.no in partition.rights else {}
            for member in list(sync.waiting):
                if member != outbox.member and member not in segment.eligible and member not in joining:
                    del sync.waiting[member]
            _finish_sync(outbox, partition, head, serial)
        if head.phase is Phase.SERVING and set(segment.eligible) - set(head.eligible):
            _sync(outbox, partition, head)  # a new one must have the newest record
        if head.group in partition.groups:
            retry(outbox, partition, head.segment_no)


def _revoke(outbox: Outbox, partition: Partition, head: GroupHead, segment: Segment | None) -> None:
    """Serve no more; under a seal by somebody else the same member may go on at once, under a new epoch."""
    mine = segment is not None and segment.server == outbox.member
    if not mine:
        error = errors.NotServingError(f"segment {head.segment_no} is served elsewhere now")
        for consumer in head.consumers:
            _tell(outbox, consumer, Revoked(error))
        head.consumers = []
    for consumer in head.consumers:
        consumer.was_active = consumer is head.active
    head.active = None
    head.syncs = {}
    head.held_back = ()
    head.reading = 0
    if head.phase is Phase.CROSSING:
        head.crossing_serial = 0
    head.phase = Phase.LOADING
    if head.consumers or head.questions:
        outbox.emit(ReadCursor(partition.id, head.group))
    else:
        partition.groups.pop(head.group, None)


def on_chain_read(outbox: Outbox, partition: Partition, failed: bool) -> None:
    """A read ended: what waited for it goes on."""
    for head in list(partition.groups.values()):
        if head.phase is Phase.SERVING:
            retry(outbox, partition, head.segment_no)
        elif not failed and head.phase is Phase.LOADING and head.crossing_serial == 0:
            outbox.emit(ReadCursor(partition.id, head.group))


def on_cursor_timer(outbox: Outbox, partition: Partition, group: str) -> None:
    """Look again."""
    head = partition.groups.get(group)
    if head is not None and head.phase is Phase.LOADING and head.crossing_serial == 0:
        outbox.emit(ReadCursor(partition.id, group))


def on_no_partition(outbox: Outbox, partition: Partition) -> None:
    """The partition does not exist (any more)."""
    error = errors.UnknownTopicError(f"there is no partition {partition.id}")
    for head in list(partition.groups.values()):
        for consumer in head.consumers:
            _tell(outbox, consumer, SubscriptionRefused(error, 0, ""))
        for question in head.questions:
            if question.describe:
                outbox.emit(GroupDescribed(question.request, 0, 0, None, None, 0, "", (), error))
            else:
                outbox.emit(ConsumerResolved(question.request, partition.id, 0, "", 0, 0, "", False, error))
    partition.groups.clear()
