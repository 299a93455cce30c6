"""Consumers of a group come and go: the first is active, the others stand by in the order in which they came."""

from __future__ import annotations

from seriatim_api import errors

from ..chain import Chain, SegmentState
from ..effects import Gap, Joined, Revoked
from ..events import ConsumerJoin
from ..outbox import Outbox
from ..partition import Partition
from . import cursors, delivery
from .head import Consumer, GroupHead, Phase, forget_if_unused, head_of, tell

TOKEN_COUNTER_BITS = 24
"""Tokens are the serving epoch above and a counter below: a new server's tokens void all older ones."""


def join(outbox: Outbox, partition: Partition, event: ConsumerJoin) -> None:
    """A consumer asks for the partition."""
    head = head_of(outbox, partition, event.group, event.start)
    for consumer in head.consumers:
        if consumer.name == event.consumer:  # it came back before its old stream was seen to be gone
            tell(outbox, consumer, Revoked(errors.NotActiveError("the consumer joined again on another stream")))
            leave(outbox, partition, consumer.stream, consumer.subscription)
            head = head_of(outbox, partition, event.group, event.start)
            break
    consumer = Consumer(event)
    head.consumers.append(consumer)
    if head.phase is not Phase.SERVING:
        return
    if head.active is None:
        activate(outbox, partition, head, consumer)
    else:
        stand_by(outbox, head, consumer)


def activate(outbox: Outbox, partition: Partition, head: GroupHead, consumer: Consumer) -> None:
    """Give the exclusive grant: from the first message that is not acknowledged."""
    head.active = consumer
    outbox.tokens += 1  # of this run: a token is never given twice under one serving epoch
    head.token = head.server_epoch << TOKEN_COUNTER_BITS | outbox.tokens % (1 << TOKEN_COUNTER_BITS)
    head.delivered = head.acked
    head.held_back = ()
    head.reading = 0
    if head.seen > head.acked:
        head.attempt += 1
    tell(outbox, consumer, _joined(head, active=True))
    for no in _lost_before(partition.chain, head):
        tell(outbox, consumer, Gap(no, 0, "declared lost"))
    delivery.pump_group(outbox, partition, head)


def tell_new_gaps(outbox: Outbox, partition: Partition, head: GroupHead, known: Chain | None) -> None:
    """The cursor was read before the record that says which segments it has passed over."""
    if head.active is None:
        return
    told = _lost_before(known, head)
    for no in _lost_before(partition.chain, head):
        if no not in told:
            tell(outbox, head.active, Gap(no, 0, "declared lost"))


def _lost_before(chain: Chain | None, head: GroupHead) -> list[int]:
    """Lost segments just before the group's first message here: who served them is not there to say so."""
    lost: list[int] = []
    if chain is None or head.acked:
        return lost
    no = head.segment_no - 1
    while (segment := chain.segment(no)) is not None and segment.state is SegmentState.LOST:
        lost.append(no)
        no -= 1
    return lost[::-1]


def stand_by(outbox: Outbox, head: GroupHead, consumer: Consumer) -> None:
    """Another one is active."""
    tell(outbox, consumer, _joined(head, active=False))


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
                cursors.sync(outbox, partition, head)
            head.active = None
            if head.consumers and head.phase is Phase.SERVING:
                activate(outbox, partition, head, head.consumers[0])
        forget_if_unused(partition, head)
