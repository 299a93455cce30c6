"""Assignment: which consumer of an exclusive consumer group should read a partition.

Each server decides alone, with `seriatim_api.spreading`, among the consumers that joined here. It counts the consumers
that read all partitions of the topic. Servers that know other consumers for a moment decide otherwise. That costs an
even spread for a moment, and nothing else: on each partition one consumer is active, as its server says.

`reassignment` moves a partition from a consumer that works on it to the one that should read it.
"""

from __future__ import annotations

from seriatim_api.spreading import reader_of

from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroup
from ...state.dispatcher import Consumer
from ...state.partition import Partition
from ...values.effects import YieldAsked
from ...values.events import ConsumerSpreadOver
from ...values.kinds import TimerKind
from ..cursors.consumer_group import tell
from . import delivery


def changed(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup) -> None:
    """Consumers came, went, fell silent or were heard again: look at the spread `spread_calm_us` after the last change.

    A consumer that flaps keeps this from happening, and all go on with what they read.
    """
    if len(consumer_group.consumers) < 2 or not any(consumer.spread_over for consumer in consumer_group.consumers):
        return
    consumer_group.dispatcher.changed_us = broker.now.mono_us
    broker.poll(broker.config.spread_calm_us, TimerKind.SPREAD, partition.id, consumer_group.name)


def first(broker: BrokerState, consumer_group: ConsumerGroup) -> Consumer:
    """The consumer that becomes active if none is: the one of the spread, else the first that is not silent."""
    counted = _counted(broker, consumer_group)
    if counted:
        return _reader(counted)
    heard = (row for row in consumer_group.consumers if not broker.streams.is_silent(row.stream, broker.now.mono_us))
    return next(heard, consumer_group.consumers[0])


def better(broker: BrokerState, consumer_group: ConsumerGroup) -> Consumer | None:
    """The consumer to which the active one should yield; None if there is none.

    A consumer that does not count yields to no other one: it may not know how, or it may read only some partitions.
    """
    active = consumer_group.dispatcher.active
    if active is None or len(consumer_group.consumers) < 2:
        return None
    counted = _counted(broker, consumer_group)
    reader = _reader(counted) if active.name in counted else active
    return reader if reader is not active else None


def _counted(broker: BrokerState, consumer_group: ConsumerGroup) -> dict[str, Consumer]:
    """The consumers over which partitions are spread, by name. Silent ones do not count."""
    if consumer_group.cursor is None or not consumer_group.cursor.is_spread:
        return {}
    now_us = broker.now.mono_us
    # A consumer that has not heard of added partitions yet is not connected to all of them.
    most = max((consumer.spread_over for consumer in consumer_group.consumers), default=0)
    return {
        consumer.name: consumer
        for consumer in consumer_group.consumers
        if 0 < consumer.spread_over == most and not broker.streams.is_silent(consumer.stream, now_us)
    }


def _reader(counted: dict[str, Consumer]) -> Consumer:
    """The consumer of this partition by the spread."""
    one = next(iter(counted.values()))
    return counted[reader_of(one.number % one.spread_over, one.spread_over, sorted(counted))]


def on_spread_over(broker: BrokerState, partition: Partition, event: ConsumerSpreadOver) -> None:
    """A consumer reads more partitions, because the topic has more."""
    for consumer_group in partition.consumer_groups.values():
        for consumer in consumer_group.consumers:
            if (consumer.stream, consumer.subscription) == (event.stream, event.subscription):
                consumer.spread_over = event.partitions if consumer.number < event.partitions else 0
                changed(broker, partition, consumer_group)


def waits_for_return(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup) -> bool:
    """Whether a server that begins, without the consumer that was active, waits for it. Then it sets the time for that.

    Rule `returns-first`: a change of server moves no partition. Without it:
      1. c1 is active, and c2 stands by. The server dies, or the consumer group crosses.
      2. c2 joins the next server 1 ms before c1, and is active there. c1 still works on what it was given.
    """
    if not all(consumer.was_standby for consumer in consumer_group.consumers):
        return False  # one is new, or knows of no other that was active
    consumer_group.dispatcher.returns_until_us = broker.now.mono_us + broker.config.spread_return_us
    broker.poll(broker.config.spread_return_us, TimerKind.SPREAD, partition.id, consumer_group.name)
    return True


def end_attempt(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup) -> None:
    """The active consumer need not yield, or not now: it goes on."""
    dispatcher = consumer_group.dispatcher
    yielding, active = dispatcher.yielding, dispatcher.active
    if yielding is None or active is None:
        return
    dispatcher.yielding = None
    if yielding.number:
        tell(broker, active, YieldAsked(yielding.number, is_over=True))
    delivery.pump_consumer_group(broker, partition, consumer_group)
