"""Questions: where the cursor of a consumer group is, which broker serves it, how far the consumer group is.

A consumer may complain of a server with its question. The answer then leaves when another broker serves, or at the
deadline. Meanwhile this broker starts a switch, or asks the other eligible members to take the right. A question never
makes a consumer group.
"""

from __future__ import annotations

from seriatim_api import errors

from ..peers import right
from ..state.broker import BrokerState
from ..state.consumers import GroupHead, GroupPhase, Question
from ..state.partition import Partition
from ..switching import routes
from ..values.effects import ConsumerResolved, GroupDescribed
from ..values.events import DescribeGroup, ResolveConsumer, StartPosition
from ..values.kinds import SwitchReason, TimerKind
from ..values.segment import Segment, SegmentState
from . import cursors
from .head import forget_if_unused, head_of, read_cursor

Answer = ConsumerResolved | GroupDescribed


def on_resolve(broker: BrokerState, partition: Partition, event: ResolveConsumer) -> None:
    """A consumer asks which broker serves its consumer group, and perhaps complains of a server."""
    _ask(
        broker, partition, event.request, event.group, event.failed_server_epoch, event.start, event.deadline_us
    )  # fmt: skip


def on_describe(broker: BrokerState, partition: Partition, event: DescribeGroup) -> None:
    """A person asks how far a consumer group is."""
    deadline_us = broker.now.mono_us + broker.config.fence_timeout_us
    _ask(
        broker, partition, event.request, event.group, None, StartPosition.EARLIEST, deadline_us, describe=True
    )  # fmt: skip


def _ask(
    broker: BrokerState,
    partition: Partition,
    request: int,
    group: str,
    failed_epoch: int | None,
    start: StartPosition,
    deadline_us: int,
    describe: bool = False,
) -> None:
    """Keep a question until it can be answered, and read the chain and the cursor for it.

    Args:
        broker: This broker.
        partition: The partition.
        request: The number of the request to answer.
        group: The consumer group.
        failed_epoch: The server epoch of the server that the consumer complains of; None: no complaint.
        start: Where the consumer group begins if it is new and a consumer comes.
        deadline_us: When the answer leaves in any case, by the monotonic clock.
        describe: Whether a person asks how far the consumer group is.
    """
    head = partition.groups.get(group)
    if head is None:
        head = head_of(broker, partition, group, start)
    elif head.phase is not GroupPhase.LOADING or partition.chain is not None:
        partition.read_chain(broker)
        read_cursor(broker, partition, head)
    head.questions.append(Question(request, failed_epoch, deadline_us, describe))
    broker.wake(deadline_us, TimerKind.QUESTIONS, partition.id)


def on_due(broker: BrokerState, partition: Partition) -> None:
    """The deadline of a question has passed: answer what is due, and read the chain for the others."""
    for head in list(partition.groups.values()):
        if head.questions:
            answer(broker, partition, head)
    if any(head.questions for head in partition.groups.values()):
        partition.read_chain(broker)


def answer(broker: BrokerState, partition: Partition, head: GroupHead, without_cursor: bool = False) -> None:
    """Answer the questions that can be answered now, and set a timer for the others."""
    still: list[Question] = []
    for question in head.questions:
        late = broker.now.mono_us >= question.deadline_us
        found = _answer_to(broker, partition, head, question, late, without_cursor)
        if found is None:
            segment = partition.chain.segment(head.segment_no) if partition.chain is not None else None
            if segment is not None and question.failed_epoch == segment.server_epoch:
                complain(broker, partition, segment)
            still.append(question)
        else:
            broker.out.emit(found)
    head.questions = still
    if still:
        broker.poll(broker.config.heartbeat_us, TimerKind.QUESTIONS, partition.id)
    forget_if_unused(partition, head)


def fail(broker: BrokerState, partition: Partition, head: GroupHead, error: errors.SeriatimError) -> None:
    """Answer every question with this error."""
    for question in head.questions:
        broker.out.emit(_failed(partition, question, error))
    head.questions = []


def _failed(partition: Partition, question: Question, error: errors.SeriatimError) -> Answer:
    if question.describe:
        return GroupDescribed(question.request, 0, 0, None, None, 0, "", (), error)
    return ConsumerResolved(question.request, partition.id, 0, "", 0, 0, "", False, error)


def _answer_to(
    broker: BrokerState, partition: Partition, head: GroupHead, question: Question, late: bool, without_cursor: bool
) -> Answer | None:
    chain = partition.chain
    no = chain.open_segment.no if without_cursor and chain is not None else head.segment_no
    segment = chain.segment(no) if chain is not None else None
    if segment is None:
        if not late:
            return None
        error = errors.CoordinatorUnavailableError(
            "the position of the consumer group could not be read in time: ask again"
        )
        return _failed(partition, question, error)
    if question.describe:
        return _description(broker, partition, head, question, segment)
    complaint_stands = question.failed_epoch is not None and segment.server_epoch <= question.failed_epoch
    if (complaint_stands or segment.state is SegmentState.LOST) and not late:
        return None  # the segment is lost, and the cursor is about to move on
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


def _description(
    broker: BrokerState, partition: Partition, head: GroupHead, question: Question, segment: Segment
) -> GroupDescribed:
    """How far the consumer group is. Only the server knows, and no later answer takes back what it says."""
    assert partition.chain is not None
    if segment.server != broker.member:
        error = errors.NotServingError(
            f"segment {segment.no} is served by {segment.server.broker}, not by this broker: ask there"
        )
        return _failed(partition, question, error)  # type: ignore[return-value]
    acked = _confirmed(partition, head, segment)
    position = segment.base + acked if segment.base is not None and acked is not None else None
    last = partition.chain.open_segment
    log = partition.logs.get(last.no)
    end = last.base + log.commit if log is not None and last.base is not None else None
    active = head.active.name if head.active is not None else ""
    standbys = tuple(consumer.name for consumer in head.consumers if consumer is not head.active)
    return GroupDescribed(
        question.request, segment.no, acked or 0, position, end, head.group_epoch, active, standbys, None
    )


def _confirmed(partition: Partition, head: GroupHead, segment: Segment) -> int | None:
    """The index below which all is acknowledged on every eligible member; None while this server does not know it.

    An acknowledgement that only this server has does not count: the next server may not have it, and then the position
    would fall back.
    """
    if head.phase is GroupPhase.LOADING:
        known = cursors.known_in_epoch(partition, head.group, segment.no, head.group_epoch)
        return known.acked if known is not None else 0
    return head.safe_acked if head.safe_acked >= head.found_acked else None


def complain(broker: BrokerState, partition: Partition, segment: Segment) -> None:
    """A client cannot reach the server of a segment: probe the master if it is open, else ask for another server."""
    if segment.state is SegmentState.OPEN:
        routes.complain(broker, partition, segment.no, SwitchReason.CONSUMER_COMPLAINT)
        return
    right.want_another(broker, partition, segment)
