"""Consumers come and go: the first of a consumer group is active, and the others stand by in the order of joining."""

from __future__ import annotations

from seriatim_api import errors

from ..peers import right
from ..state.broker import BrokerState
from ..state.consumers import Consumer, GroupHead, GroupPhase
from ..state.partition import Partition
from ..values.chain import Chain
from ..values.effects import Gap, Joined, Revoked
from ..values.events import ConsumerJoin
from ..values.kinds import TimerKind
from ..values.segment import SegmentState
from . import cursors, delivery, delivery_attempts
from .head import forget_if_unused, head_of, read_cursor, tell

LOOKED_BACK_MAX = 100
"""At most so many segments before the first message are checked for gaps that the consumer must be told of."""

TOKEN_COUNTER_BITS = 24
"""A token has the server epoch above and a counter below. So the tokens of a new server void all older ones."""


def join(broker: BrokerState, partition: Partition, event: ConsumerJoin) -> None:
    """A consumer joins: it becomes active if it is the first, else it stands by."""
    head = head_of(broker, partition, event.group, event.start)
    for consumer in head.consumers:
        if consumer.name == event.consumer:  # it came back before this broker noticed the end of its old stream
            tell(broker, consumer, Revoked(errors.NotActiveError("the consumer has joined again on another stream")))
            leave(broker, partition, consumer.stream, consumer.subscription)
            head = head_of(broker, partition, event.group, event.start)
            break
    consumer = Consumer(event)
    is_first = not head.consumers
    head.consumers.append(consumer)
    if head.phase is not GroupPhase.SERVING:
        return
    if is_first:
        # Rule `first-reads` (I2, I9): if a consumer group had no consumers, its server reads the cursor again. Without
        # it: 1. A consumer group has no consumers, and its server waits for a silent member. 2. Meanwhile the consumer
        # group is deleted, and made again by another server. 3. A consumer joins here, and is given messages in the
        # group epoch of the deleted consumer group. 4. The crossing finds another cursor, and all messages are given
        # again without a flag.
        head.look_again()
        read_cursor(broker, partition, head)
        return
    if head.active is None:
        activate(broker, partition, head, consumer)
    else:
        stand_by(broker, head, consumer)
        broker.poll(broker.config.session_poll_us, TimerKind.SESSION, partition.id, head.group)


def head_with(partition: Partition, stream: int, subscription: int) -> GroupHead | None:
    """The consumer group of a subscription; None if the subscription has ended."""
    for head in partition.groups.values():
        for consumer in head.consumers:
            if (consumer.stream, consumer.subscription) == (stream, subscription):
                return head
    return None


def is_served(broker: BrokerState, partition: Partition, head: GroupHead) -> bool:
    """Whether this member may deliver to the consumer group at this moment. Then no other member may."""
    return head.phase is not GroupPhase.LOADING and right.may_deliver(broker, partition, head.segment_no)


def activate(broker: BrokerState, partition: Partition, head: GroupHead, consumer: Consumer) -> None:
    """Give a consumer the exclusive grant, from the first message that is not acknowledged."""
    head.active = consumer
    head.silent_rounds = 0
    if len(head.consumers) > 1:
        broker.poll(broker.config.session_poll_us, TimerKind.SESSION, partition.id, head.group)
    broker.streams.tokens += 1  # `tokens` counts over the member run: no token comes twice in one server epoch
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
    """A new chain record says that segments before the cursor are lost: tell the active consumer of each new gap."""
    if head.active is None:
        return
    told = lost_before(known, head)
    for no in lost_before(partition.chain, head):
        if no not in told:
            tell(broker, head.active, Gap(no, 0, "declared lost"))


def lost_before(chain: Chain | None, head: GroupHead) -> list[int]:
    """The lost segments just before the first message of the consumer group here. This server must tell of these gaps.

    Empty segments between them and this one are passed over. Without that (I1):
      1. The server of an empty segment behind a lost one has read the cursor, but not the record with the loss.
      2. There is nothing to acknowledge in its segment, so the consumer group crosses at once.
      3. The next server finds an empty segment before its own. So no server tells the consumer group of the gap.
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
    """Tell a consumer that it is a standby."""
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
    """A subscription is gone, or all of a stream: if its consumer was active, the next standby becomes active."""
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
