"""What consumers send on their streams: joins, leaves, acknowledgements, credit and heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...state.broker import BrokerState
from ...state.consumers import Seat
from ...state.dispatcher import Consumer
from ...state.partition import Partition, Partitions
from ...values.effects import Deliver, Pong
from ...values.events import ConsumerCredit, ConsumerGone, ConsumerJoin, ConsumerLeave, ConsumerPing
from ..cursors.consumer_group import consumer_group_with
from . import progress, subscriptions
from .subscriptions import is_served


def on_join(broker: BrokerState, partition: Partition, event: ConsumerJoin) -> None:
    """A consumer subscribes to a partition."""
    broker.streams.heard.setdefault(event.stream, (broker.now.mono_us, 2 * 1000 * broker.config.session_ms_max))
    broker.streams.subscriptions.setdefault(event.stream, {})[event.subscription] = event.partition
    subscriptions.join(broker, partition, event)


def on_leave(broker: BrokerState, partitions: Partitions, event: ConsumerLeave) -> Partition | None:
    """A consumer ends a subscription.

    Returns:
        The partition of the subscription, if this broker knows it.
    """
    subscribed_to = broker.streams.subscriptions.get(event.stream, {}).pop(event.subscription, None)
    partition = partitions.get(subscribed_to) if subscribed_to is not None else None
    if partition is not None:
        subscriptions.leave(partition, event.stream, event.subscription)
    return partition


def subscribed(handle: Callable[[Seat, Consumer, Any], None]) -> Callable[[BrokerState, Partitions, Any], None]:
    """A handler for the consumer of the subscription that the event names. If there is none here, nothing happens.

    It is given the consumer group as it is served here, or else as one whose place is not known.
    """

    def on_event(broker: BrokerState, partitions: Partitions, event: Any) -> None:
        subscribed_to = broker.streams.subscriptions.get(event.stream, {}).get(event.subscription)
        partition = partitions.get(subscribed_to) if subscribed_to is not None else None
        if partition is None:
            return
        for consumer_group in partition.consumer_groups.values():
            for consumer in consumer_group.consumers:
                if (consumer.stream, consumer.subscription) == (event.stream, event.subscription):
                    handle(consumer_group.served or Seat(broker, partition, consumer_group), consumer, event)
                    return

    return on_event


def on_credit(broker: BrokerState, partitions: Partitions, event: ConsumerCredit) -> None:
    """A consumer gives credit for more bytes."""
    streams = broker.streams
    before = streams.credits.get(event.stream, 0)
    streams.credits[event.stream] = before + event.size_bytes
    if before <= 0:
        for partition in dict.fromkeys(streams.subscriptions.get(event.stream, {}).values()):
            known = partitions.get(partition)
            if known is not None:
                progress.pump_all(known)


def on_ping(broker: BrokerState, partitions: Partitions, event: ConsumerPing) -> None:
    """A consumer sent a heartbeat: answer which of its subscriptions this broker may not deliver to at this moment.

    The answer needs no read of the coordinator, because the member with the serving right knows that no other member
    has it.
    """
    session_ms = min(max(event.session_ms, 1), broker.config.session_ms_max)
    broker.streams.heard[event.stream] = (broker.now.mono_us, 2 * 1000 * session_ms)
    unserved = []
    subscriptions = broker.streams.subscriptions.get(event.stream, {})
    for subscription, partition in list(subscriptions.items()):
        known = partitions.get(partition)
        consumer_group = None if known is None else consumer_group_with(known, event.stream, subscription)
        if known is None or consumer_group is None:
            del subscriptions[subscription]  # its segment has ended, or the grant was revoked; the consumer knows
        elif not is_served(Seat(broker, known, consumer_group)):
            unserved.append(subscription)
    broker.out.emit(Deliver(event.stream, 0, Pong(event.number, tuple(unserved))))


def on_gone(broker: BrokerState, partitions: Partitions, event: ConsumerGone) -> list[Partition]:
    """A stream has ended.

    Returns:
        The partitions of its subscriptions, if this broker knows them.
    """
    left: list[Partition] = []
    for partition in dict.fromkeys(broker.streams.subscriptions.pop(event.stream, {}).values()):
        known = partitions.get(partition)
        if known is not None:
            subscriptions.leave(known, event.stream, None)
            left.append(known)
    broker.streams.credits.pop(event.stream, None)
    broker.streams.heard.pop(event.stream, None)
    return left
