"""Consumers of a group come and go: the first is active, the others stand by in the order in which they came."""

from __future__ import annotations

from seriatim_api import errors

from ..peers import right
from ..state.broker import BrokerState
from ..state.consumers import Consumer, GroupHead, GroupPhase
from ..state.partition import Partition
from ..values.chain import Chain, SegmentState
from ..values.effects import Gap, Joined, Revoked
from ..values.events import ConsumerJoin
from ..values.kinds import TimerKind
from . import cursors, delivery, delivery_attempts
from .head import forget_if_unused, head_of, read_cursor, tell

LOOKED_BACK_MAX = 100
"""Lost or empty segments before a group's first message that are looked at, to tell the group what was lost."""

TOKEN_COUNTER_BITS = 24
"""Tokens are the serving epoch above and a counter below: a new server's tokens void all older ones."""


def join(broker: BrokerState, partition: Partition, event: ConsumerJoin) -> None:
    """A consumer asks for the partition."""
    head = head_of(broker, partition, event.group, event.start)
    for consumer in head.consumers:
        if consumer.name == event.consumer:  # it came back before its old stream was seen to be gone
            tell(broker, consumer, Revoked(errors.NotActiveError("the consumer joined again on another stream")))
            leave(broker, partition, consumer.stream, consumer.subscription)
            head = head_of(broker, partition, event.group, event.start)
            break
    consumer = Consumer(event)
    is_first = not head.consumers
    head.consumers.append(consumer)
    if head.phase is not GroupPhase.SERVING:
        return
    if is_first:
        # Rule `first-reads`: a head without consumers waits for a member that is silent, and knows nothing of the
        # coordinator. Without it (I9): (1) the group is deleted meanwhile, and made again by another server; (2) this
        # consumer is given messages in the epoch of the deleted group; (3) when the group would cross, the cursor is
        # another one, and all is given again, not flagged.
        head.look_again()
        read_cursor(broker, partition, head)
        return
    if head.active is None:
        activate(broker, partition, head, consumer)
    else:
        stand_by(broker, head, consumer)
        broker.poll(broker.config.session_poll_us, TimerKind.SESSION, partition.id, head.group)


def head_with(partition: Partition, stream: int, subscription: int) -> GroupHead | None:
    """The head of the group that a subscription belongs to; None if it has ended."""
    for head in partition.groups.values():
        for consumer in head.consumers:
            if (consumer.stream, consumer.subscription) == (stream, subscription):
                return head
    return None


def is_served(broker: BrokerState, partition: Partition, head: GroupHead) -> bool:
    """Whether this member may deliver to the group at this moment: then no other member may."""
    return head.phase is not GroupPhase.LOADING and right.may_deliver(broker, partition, head.segment_no)


def activate(broker: BrokerState, partition: Partition, head: GroupHead, consumer: Consumer) -> None:
    """Give the exclusive grant: from the first message that is not acknowledged."""
    head.active = consumer
    head.silent_rounds = 0
    if len(head.consumers) > 1:
        broker.poll(broker.config.session_poll_us, TimerKind.SESSION, partition.id, head.group)
    broker.streams.tokens += 1  # of this run: a token is never given twice under one serving epoch
    head.token = head.server_epoch << TOKEN_COUNTER_BITS | broker.streams.tokens % (1 << TOKEN_COUNTER_BITS)
    head.delivered = head.acked
    head.held_back = ()
    head.reading = 0
    delivery_attempts.begin_grant(head)
    tell(broker, consumer, _joined(head, active=True))
    for no in lost_before(partition.chain, head):
        tell(broker, consumer, Gap(no, 0, "declared lost"))
    if head.dropped_from and partition.logs[head.segment_no].start <= head.delivered:
        delivery.tell_dropped(broker, partition, head, head.delivered)
    delivery.pump_group(broker, partition, head)


def tell_new_gaps(broker: BrokerState, partition: Partition, head: GroupHead, known: Chain | None) -> None:
    """The cursor was read before the record that says which segments it has passed over."""
    if head.active is None:
        return
    told = lost_before(known, head)
    for no in lost_before(partition.chain, head):
        if no not in told:
            tell(broker, head.active, Gap(no, 0, "declared lost"))


def lost_before(chain: Chain | None, head: GroupHead) -> list[int]:
    """Lost segments just before the group's first message here: who served them is not there to say so.

    Empty segments between do not count. Without it (I1): (1) the server of an empty segment behind a lost one has read
    the group's cursor, and not yet the record that says what is lost; (2) there is nothing to acknowledge, so the group
    crosses at once; (3) the next server sees the empty segment before its own, and nobody tells the group of the gap.
    """
    lost: list[int] = []
    if chain is None or head.acked:
        return lost
    no = head.segment_no
    for _ in range(LOOKED_BACK_MAX):
        segment = chain.before(no)
        if segment is None or not segment.is_settled or (segment.state is not SegmentState.LOST and segment.sealed_len):
            break
        no = segment.no
        if segment.state is SegmentState.LOST:
            lost.append(no)
    return lost[::-1]


def stand_by(broker: BrokerState, head: GroupHead, consumer: Consumer) -> None:
    """Another one is active."""
    tell(broker, consumer, _joined(head, active=False))


def _joined(head: GroupHead, active: bool) -> Joined:
    token = head.token if active else 0
    assert head.cursor is not None
    return Joined(
        active,
        head.segment_no,
        head.acked,
        token,
        head.group_epoch,
        head.server_epoch,
        head.cursor.paused,
        head.cursor.begun_by,
    )


def leave(broker: BrokerState, partition: Partition, stream: int, subscription: int | None) -> None:
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
            if head.dirty and head.phase is GroupPhase.SERVING:
                cursors.sync(broker, partition, head)
            head.active = None
            if head.consumers and head.phase is GroupPhase.SERVING:
                heard = (row for row in head.consumers if not broker.streams.is_silent(row.stream, broker.now.mono_us))
                activate(broker, partition, head, next(heard, head.consumers[0]))
        forget_if_unused(partition, head)
