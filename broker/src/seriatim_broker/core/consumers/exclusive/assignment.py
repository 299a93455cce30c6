"""Assignment: which consumer of an exclusive consumer group should read a partition.

Each server decides alone, with `seriatim_api.spreading`, among the consumers that joined here. It counts the consumers
that read all partitions of the topic. Servers that know other consumers for a moment decide otherwise. That costs an
even spread for a moment, and nothing else: on each partition one consumer is active, as its server says.

`reassignment` moves a partition from a consumer that works on it to the one that should read it.
"""

from __future__ import annotations

from seriatim_api.spreading import reader_of

from ...state.consumers import Seat, Served
from ...state.dispatcher import Consumer
from ...values.effects import YieldAsked
from ...values.events import ConsumerSpreadOver
from ...values.kinds import TimerKind
from ..cursors.consumer_group import tell
from . import delivery


def changed(seat: Seat) -> None:
    """Consumers came, went, fell silent or were heard again: look at the spread `spread_calm_us` after the last change.

    A consumer that flaps keeps this from happening, and all continue with what they read.
    """
    if len(seat.group.consumers) < 2 or not any(consumer.spread_over for consumer in seat.group.consumers):
        return
    seat.group.dispatcher.changed_us = seat.broker.now.mono_us
    seat.poll(seat.broker.config.spread_calm_us, TimerKind.SPREAD)


def first(served: Served) -> Consumer:
    """The consumer that becomes active if none is: the one of the spread, else the first that is not silent."""
    counted = _counted(served)
    if counted:
        return _reader(counted)
    streams, now_us = served.broker.streams, served.broker.now.mono_us
    heard = (row for row in served.group.consumers if not streams.is_silent(row.stream, now_us))
    return next(heard, served.group.consumers[0])


def better(served: Served) -> Consumer | None:
    """The consumer to which the active one should yield; None if there is none.

    A consumer that does not count yields to no other one: it may not know how, or it may read only some partitions.
    """
    active = served.dispatcher.active
    if active is None or len(served.group.consumers) < 2:
        return None
    counted = _counted(served)
    reader = _reader(counted) if active.name in counted else active
    return reader if reader is not active else None


def _counted(served: Served) -> dict[str, Consumer]:
    """The consumers over which partitions are spread, by name. Silent ones do not count."""
    if not served.cursor.is_spread:
        return {}
    now_us = served.broker.now.mono_us
    # A consumer that has not heard of added partitions yet is not connected to all of them.
    most = max((consumer.spread_over for consumer in served.group.consumers), default=0)
    return {
        consumer.name: consumer
        for consumer in served.group.consumers
        if 0 < consumer.spread_over == most and not served.broker.streams.is_silent(consumer.stream, now_us)
    }


def _reader(counted: dict[str, Consumer]) -> Consumer:
    """The consumer of this partition by the spread."""
    one = next(iter(counted.values()))
    return counted[reader_of(one.number % one.spread_over, one.spread_over, sorted(counted))]


def on_spread_over(seat: Seat, consumer: Consumer, event: ConsumerSpreadOver) -> None:
    """A consumer reads more partitions, because the topic has more."""
    consumer.spread_over = event.partitions if consumer.number < event.partitions else 0
    changed(seat)


def waits_for_return(served: Served) -> bool:
    """Whether a server that begins, without the consumer that was active, waits for it. Then it sets the time for that.

    Rule `returns-first`: a change of server moves no partition. Without it:
      1. c1 is active, and c2 stands by. The server dies, or the consumer group crosses.
      2. c2 joins the next server 1 ms before c1, and is active there. c1 still works on what it was given.
    """
    if not all(consumer.was_standby for consumer in served.group.consumers):
        return False  # one is new, or knows of no other that was active
    served.dispatcher.returns_until_us = served.broker.now.mono_us + served.broker.config.spread_return_us
    served.poll(served.broker.config.spread_return_us, TimerKind.SPREAD)
    return True


def end_attempt(served: Served) -> None:
    """The active consumer need not yield, or not now: it continues."""
    dispatcher = served.dispatcher
    yielding, active = dispatcher.yielding, dispatcher.active
    if yielding is None or active is None:
        return
    dispatcher.yielding = None
    if yielding.number:
        tell(served.broker, active, YieldAsked(yielding.number, is_over=True))
    delivery.pump_consumer_group(served)
