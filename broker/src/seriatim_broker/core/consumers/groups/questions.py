"""Questions: where the cursor of a consumer group is, which broker serves it, how far the consumer group is.

A consumer may complain of a server with its question. The answer then leaves when another broker serves, when the
server was heard, or at the deadline. Meanwhile this broker starts a switch, or asks the other members of the segment to
take the right. If a consumer asks about a consumer group without a cursor, this may write its first cursor. An
administrator's question never does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from seriatim_api import errors
from seriatim_api.ids import MemberId, make_offset, split_offset

from ...peers import right
from ...state.broker import BrokerState
from ...state.consumers import Beginning, ConsumerGroupPhase, Question, Seat
from ...state.partition import Partition
from ...switching import routes
from ...values.effects import ConsumerGroupDescribed, ConsumerResolved
from ...values.events import CursorRecord, DescribeConsumerGroup, ResolveConsumer
from ...values.keyed import KeyCounts
from ...values.kinds import SwitchReason, TimerKind
from ...values.ledger_rows import count_keys, read_list_row
from ...values.messages import ServerHeard
from ...values.positions import end_of_gone
from ...values.segment import Segment, SegmentState
from ..cursors import control_records
from ..cursors.consumer_group import consumer_group_of, forget_if_unused

Answer = ConsumerResolved | ConsumerGroupDescribed

DESCRIPTIONS_MAX = 64
"""Maximum number of descriptions of one consumer group on one partition that are asked for at once."""

QUESTIONS_MAX = 10_000
"""Maximum number of questions that wait for one consumer group on one partition: each consumer that may join has
one."""


def on_resolve(broker: BrokerState, partition: Partition, event: ResolveConsumer) -> None:
    """A consumer asks which broker serves its consumer group, and perhaps complains of a server."""
    begins = Beginning(event.start, event.mode)
    _ask(broker, partition, event.request, event.consumer_group, event.failed_server_epoch, event.deadline_us, begins)


def on_describe(broker: BrokerState, partition: Partition, event: DescribeConsumerGroup) -> None:
    """An administrator asks how far a consumer group is."""
    deadline_us = broker.now.mono_us + broker.config.fence_timeout_us
    _ask(broker, partition, event.request, event.consumer_group, None, deadline_us)


def _ask(
    broker: BrokerState,
    partition: Partition,
    request: int,
    group: str,
    failed_epoch: int | None,
    deadline_us: int,
    begins: Beginning | None = None,
) -> None:
    """Keep a question until it can be answered, and read the chain and the cursor for it.

    Args:
        broker: This broker.
        partition: The partition.
        request: The number of the request to answer.
        group: The consumer group.
        failed_epoch: The server epoch of the server that the consumer complains of; None: no complaint.
        deadline_us: When the answer leaves in any case, by the monotonic clock.
        begins: How the consumer group begins if it is new. None: an administrator asks how far it is.
    """
    describe = begins is None
    question = Question(request, failed_epoch, deadline_us, describe, broker.now.mono_us)
    waiting = partition.consumer_groups[group].questions if group in partition.consumer_groups else []
    if len(waiting) >= QUESTIONS_MAX or (
        describe and sum(question.describe for question in waiting) >= DESCRIPTIONS_MAX
    ):
        text = f"{len(waiting)} questions about group {group} wait already on this partition: ask again a little later"
        error = errors.OverloadedError(text, retry_after_ms=200)
        broker.out.emit(_failed(partition, question, error))
        return
    is_new = group not in partition.consumer_groups
    consumer_group = consumer_group_of(broker, partition, group, begins)
    if not is_new and (consumer_group.phase is not ConsumerGroupPhase.LOADING or partition.chain is not None):
        partition.read_chain(broker)
        Seat(broker, partition, consumer_group).read_cursor()
    consumer_group.questions.append(question)
    broker.wake(deadline_us, TimerKind.QUESTIONS, partition.id)


def on_due(broker: BrokerState, partition: Partition) -> None:
    """The deadline of a question has passed: answer what is due, and read the chain for the others."""
    for consumer_group in list(partition.consumer_groups.values()):
        if consumer_group.questions:
            answer(Seat(broker, partition, consumer_group))
    if any(consumer_group.questions for consumer_group in partition.consumer_groups.values()):
        partition.read_chain(broker)


def answer(seat: Seat, without_cursor: bool = False) -> None:
    """Answer the questions that can be answered now, and set a timer for the others."""
    still: list[Question] = []
    for question in seat.group.questions:
        late = seat.broker.now.mono_us >= question.deadline_us
        found = _answer_to(seat, question, late, without_cursor)
        if found is None:
            still.append(question)
        else:
            seat.broker.out.emit(found)
    seat.group.questions = still
    if still:
        _look_into_complaints(seat)
        seat.broker.poll(seat.broker.config.heartbeat_us, TimerKind.QUESTIONS, seat.partition.id)
    forget_if_unused(seat.partition, seat.group)


def _look_into_complaints(seat: Seat) -> None:
    """Consumers complain of the present server: have it replaced if it is silent, and ask whether it is there.

    Rule `complaint-is-answered` (HEARD): a complaint is answered when the server was heard after the complaint arrived,
    also by another member. Without it:
      1. A join has no answer for 2 s, because the server is slow or far away. The consumer complains of it.
      2. No member finds the server silent, so none replaces it, and none says anything.
      3. The complaint waits until its deadline. If the answer is then late for the consumer, it complains again, for
         ever, of a server that would answer a join.
    Silence for less than `silence_us` proves nothing, so then the complaint waits (`suspicion-waits` for producers).
    """
    broker = seat.broker
    segment = seat.partition.chain.segment(seat.group.segment_no) if seat.partition.chain is not None else None
    if segment is None or all(question.failed_epoch != segment.server_epoch for question in seat.group.questions):
        return
    right.ask_whether_there(broker, segment.server)
    if segment.state is not SegmentState.OPEN:
        right.want_another(broker, seat.partition, segment, tell=True)
    elif segment.server == segment.master and broker.is_linked(segment.master):
        routes.probe_master(broker, seat.partition, segment.no)
    else:
        complain(broker, seat.partition, segment)


def on_server_heard(broker: BrokerState, partition: Partition, sender: MemberId, message: ServerHeard) -> None:
    """Another member has heard the server: complaints that arrived before that are unfounded."""
    heard_us = message.sent_us - message.before_us  # or later, because the message was on its way
    for consumer_group in list(partition.consumer_groups.values()):
        told = [
            question
            for question in consumer_group.questions
            if question.failed_epoch == message.server_epoch and question.asked_us <= heard_us
        ]
        for question in told:
            question.heard = True
        if told:
            answer(Seat(broker, partition, consumer_group))


def fail(seat: Seat, error: errors.SeriatimError) -> None:
    """Answer every question with this error."""
    for question in seat.group.questions:
        seat.broker.out.emit(_failed(seat.partition, question, error))
    seat.group.questions = []


def _failed(partition: Partition, question: Question, error: errors.SeriatimError) -> Answer:
    if question.describe:
        return ConsumerGroupDescribed(question.request, 0, 0, None, None, 0, "", (), error)
    return ConsumerResolved(question.request, partition.id, 0, "", 0, 0, "", False, error)


def _answer_to(seat: Seat, question: Question, late: bool, without_cursor: bool) -> Answer | None:
    chain = seat.partition.chain
    no = chain.open_segment.no if without_cursor and chain is not None else seat.group.segment_no
    segment = chain.segment(no) if chain is not None else None
    if segment is None:
        if not late:
            return None
        error = errors.CoordinatorUnavailableError(
            "the position of the consumer group could not be read in time: ask again"
        )
        return _failed(seat.partition, question, error)
    if question.describe:
        return _description(seat, question, segment)
    complaint_stands = question.failed_epoch is not None and segment.server_epoch <= question.failed_epoch
    heard = complaint_stands and (
        question.heard or right.is_heard_since(seat.broker, segment.server, question.asked_us)
    )
    if ((complaint_stands and not heard) or segment.state is SegmentState.LOST) and not late:
        return None  # the segment is lost, and the cursor is about to move on
    return ConsumerResolved(
        question.request,
        seat.partition.id,
        segment.no,
        segment.server.broker,
        segment.server_epoch,
        seat.group.group_epoch,
        segment.state.value,
        not without_cursor,
        None,
        heard,
    )


def _description(seat: Seat, question: Question, segment: Segment) -> ConsumerGroupDescribed:
    """How far the consumer group is. Only the server knows. In one group epoch no later answer falls back."""
    dispatcher = seat.group.dispatcher
    if segment.server != seat.broker.member:
        error = errors.NotServingError(
            f"segment {segment.no} is served by {segment.server.broker}, not by this broker: ask there"
        )
        return _failed(seat.partition, question, error)  # type: ignore[return-value]
    acked = _confirmed(seat, segment)
    position = segment.base + acked if segment.base is not None and acked is not None else None
    last = seat.chain.open_segment
    log = seat.partition.logs.get(last.no)
    end = last.base + log.commit if log is not None and last.base is not None else None
    active = dispatcher.active.name if dispatcher.active is not None else ""
    standbys = tuple(consumer.name for consumer in seat.group.consumers if consumer is not dispatcher.active)
    consumers: tuple[str, ...] = (active,) if active else ()
    keyed = seat.group.keyed
    if keyed is not None:  # no consumer stands by
        active, consumers, standbys = ", ".join(standbys), standbys, ()
    return ConsumerGroupDescribed(
        question.request,
        segment.no,
        acked or 0,
        position,
        end,
        seat.group.group_epoch,
        active,
        standbys,
        None,
        _oldest(seat, segment, acked),
        consumers,
        keyed.grants.in_flight if keyed is not None else 0,
        _keys(seat, acked or 0),
    )


def _keys(seat: Seat, acked: int) -> KeyCounts | None:
    """The keys that wait. Without consumers the rows on this disk tell: the server would begin with them."""
    cursor, keyed = seat.group.cursor, seat.group.keyed
    if keyed is not None and keyed.handoff.unread is None and seat.group.phase is not ConsumerGroupPhase.LOADING:
        return keyed.counts(acked)
    if cursor is None or not cursor.mode.is_keyed:
        return None
    rows = control_records.rows_at_rest(seat.partition, seat.group.name, cursor)
    if rows is None:
        return None
    gone, _ = _gone_at_rest(seat, cursor, rows)
    return count_keys(rows.items(), acked, gone)


def _gone_at_rest(seat: Seat, cursor: CursorRecord, rows: Mapping[bytes, bytes]) -> tuple[dict[bytes, int], int]:
    """By key, how many messages of its list are dropped or lost; and the oldest message in a list that is not.

    They are no lag: no consumer will be given them. The server passes them when a consumer comes, and reports it. The
    lists are read only if the chain record says that something in them may be gone, because they may be long.
    """
    chain, oldest = seat.partition.chain, _oldest_at_rest(seat, cursor)
    gone: dict[bytes, int] = {}
    if chain is None or not oldest:
        return gone, oldest
    begin = split_offset(oldest)[0]
    is_lost = any(segment.state is SegmentState.LOST and segment.no >= begin for segment in chain.segments)
    if not is_lost and not end_of_gone(chain, oldest)[0]:
        return gone, oldest
    left = 0
    for name, _, offsets in filter(None, (read_list_row(*row) for row in rows.items())):
        at = 0
        while at < len(offsets):
            end, _is_lost = end_of_gone(chain, offsets[at])
            behind = bisect_left(offsets, end, at)
            if end:
                gone[name] = gone.get(name, 0) + behind - at
                at = behind
                continue
            left = min(left or offsets[at], offsets[at])
            at = bisect_left(offsets, make_offset(split_offset(offsets[at])[0] + 1, 0), at)
    return gone, left


def _oldest_at_rest(seat: Seat, cursor: CursorRecord) -> int:
    """The oldest message in a list, as the control record on this disk or the cursor says."""
    known = control_records.known_in_epoch(seat.partition, seat.group.name, cursor.segment_no, cursor.group_epoch)
    return cursor.oldest if known is None else known.oldest


def _oldest(seat: Seat, segment: Segment, acked: int | None) -> int | None:
    """The offset of the oldest message that is not acknowledged, if this member has one or knows of it."""
    cursor, keyed = seat.group.cursor, seat.group.keyed
    log = seat.partition.logs.get(segment.no)
    if cursor is None or acked is None or log is None:
        return None
    if keyed is not None and keyed.handoff.unread is None and seat.group.phase is not ConsumerGroupPhase.LOADING:
        aside = keyed.lists.oldest
    elif rows := control_records.rows_at_rest(seat.partition, seat.group.name, cursor):
        _, aside = _gone_at_rest(seat, cursor, rows)
    else:
        aside = _oldest_at_rest(seat, cursor)
    if aside:
        return aside
    first = max(acked, cursor.start_index, log.start)
    return make_offset(segment.no, first) if first < log.readable_below else None


def _confirmed(seat: Seat, segment: Segment) -> int | None:
    """The index below which all is acknowledged on every eligible member; None while this server does not know it.

    An acknowledgement that only this server has does not count: the next server may not have it, and then the position
    would fall back.
    """
    served = seat.group.served
    if served is None or seat.group.phase is ConsumerGroupPhase.LOADING:
        known = control_records.known_in_epoch(seat.partition, seat.group.name, segment.no, seat.group.group_epoch)
        return known.acked if known is not None else 0
    return served.ledger.safe_acked if served.ledger.safe_acked >= served.ledger.found_acked else None


def complain(broker: BrokerState, partition: Partition, segment: Segment) -> None:
    """A client cannot reach the server of a segment: if it is open, begin a switch, else ask for another server."""
    if segment.state is SegmentState.OPEN:
        routes.complain(broker, partition, segment.no, SwitchReason.CONSUMER_COMPLAINT)
        return
    right.want_another(broker, partition, segment)
