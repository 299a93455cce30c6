"""Reassignment: an active consumer hands its partition over to the one that should read it (`assignment`).

The server takes no partition from a consumer that works on it. It asks the active consumer to yield:

    ask ──▶ nothing more is read ──▶ YieldAsked ──▶ Yielded(offset) ──▶ all before it is acknowledged ──▶ the other one
     │                                                                                                    is active
     └── `spread_yield_us` is over, or the other consumer is gone ──▶ YieldAsked(is_over): the active one continues

All of it is in the memory of this server. If the consumer group crosses or is rewound, or if another member takes the
right, it is forgotten. Then the consumer that was active is active again, as it says itself when it joins.
"""

from __future__ import annotations

from seriatim_api.ids import split_offset

from ...state.broker import BrokerState
from ...state.consumers import KeyedServed, Seat, Served
from ...state.dispatcher import Consumer, Yielding
from ...state.ledger import Ledger
from ...state.partition import Partition
from ...values.effects import YieldAsked
from ...values.events import ConsumerYielded
from ...values.kinds import TimerKind
from ..cursors.consumer_group import serving_of, tell
from . import activation, assignment


def on_due(broker: BrokerState, partition: Partition, group: str) -> None:
    """A time is over: after the last change, of a wait for the consumer that was active, or of an attempt to yield."""
    served = serving_of(partition, group)
    if served is not None and not isinstance(served, KeyedServed):
        look(served)


def look(served: Served) -> None:
    """Time has passed: see whether another consumer should read the partition."""
    dispatcher, now_us = served.dispatcher, served.broker.now.mono_us
    if dispatcher.active is None:
        if now_us < dispatcher.returns_until_us:
            # An earlier look, of a change before this wait began, may have kept `waits_for_return` from setting this
            # time. Without it, the standbys would wait until another consumer comes or goes.
            _look_at(served, dispatcher.returns_until_us)
        elif served.group.consumers:
            activation.activate(served, assignment.first(served))
            assignment.changed(served)
        return
    to = assignment.better(served)
    yielding = dispatcher.yielding
    if yielding is not None and (to is not yielding.to or now_us >= yielding.until_us):
        if now_us >= yielding.until_us:
            _try_later(served, dispatcher.active)
        assignment.end_attempt(served)
    if dispatcher.yielding is not None:
        _look_at(served, dispatcher.yielding.until_us)
        return
    if to is None:
        return
    begin_us = max(dispatcher.changed_us + served.broker.config.spread_calm_us, dispatcher.yield_again_us)
    if now_us < begin_us:
        _look_at(served, begin_us)
        return
    dispatcher.yielding = Yielding(to, now_us + served.broker.config.spread_yield_us)
    _look_at(served, dispatcher.yielding.until_us)
    go_on(served)


def _look_at(served: Served, at_us: int) -> None:
    served.poll(at_us - served.broker.now.mono_us, TimerKind.SPREAD)


def _try_later(served: Served, active: Consumer) -> None:
    """The attempt has taken too long. The next one is later, each time after twice as long."""
    dispatcher, config = served.dispatcher, served.broker.config
    wait_us = min(config.spread_retry_us << min(dispatcher.yields_failed, 16), config.spread_retry_us_max)
    dispatcher.yields_failed += 1
    dispatcher.yield_again_us = served.broker.now.mono_us + wait_us
    served.note("not yielded", consumer=active.name, retry_s=wait_us // 1_000_000)


def go_on(served: Served) -> None:
    """Continue with the attempt to yield that is under way: ask when nothing is read any more, and end it when it is
    done.

    Rule `yields-when-done` (I2, I9): another consumer is active only when all that the application of the active one
    was given is acknowledged, on every eligible member. Without it:
      1. c1 was given 1:0 to 1:9. It is asked to yield, and works on 1:4.
      2. c2 is active, and is given 1:4 too: twice, and two consumers work on the partition at the same time.

    Rule `held-back-first` (I1): what was read before is delivered before the question. Without it:
      1. The group is at most once. 1:0 to 1:9 are read for c1, and acknowledged because they are about to be given.
      2. c1 yields before that is durable. c2 is active, and begins at 1:10: 1:0 to 1:9 are given to no consumer.
    """
    dispatcher, ledger = served.dispatcher, served.ledger
    yielding, active = dispatcher.yielding, dispatcher.active
    if yielding is None or active is None:
        return
    if not yielding.number:
        if not dispatcher.reading and not dispatcher.held_back:
            yielding.number = served.broker.new_serial()
            tell(served.broker, active, YieldAsked(yielding.number))
        return
    if yielding.below is None or not _is_done(ledger, yielding.below):
        return
    to = yielding.to
    served.note("yielded", consumer=active.name, to=to.name)
    dispatcher.take_back(yielding.below)
    dispatcher.end_grant()
    activation.stand_by(served, active)
    activation.activate(served, to)


def _is_done(ledger: Ledger, below: int) -> bool:
    return min(ledger.acked, ledger.safe_acked) >= below


def on_yielded(seat: Seat, consumer: Consumer, event: ConsumerYielded) -> None:
    """The active consumer says from which index on it gives its application nothing.

    Rule `only-the-asked` (I9): only the answer to the last question counts. Without it:
      1. c1 is asked. Its answer, 1:5, takes longer than `spread_yield_us`. The server tells c1 to continue.
      2. The application of c1 is given 1:5. c1 is asked once more. Its first answer arrives, and 1:4 is acknowledged.
      3. c2 is given 1:5 as a first delivery.
    """
    served = seat.group.serving
    if served is None or isinstance(served, KeyedServed):
        return
    dispatcher = served.dispatcher
    yielding = dispatcher.yielding
    no, index = split_offset(event.offset)
    if (
        yielding is None
        or consumer is not dispatcher.active
        or event.token != dispatcher.token
        or not _is_answer(yielding, event)
        or no != served.segment.no
    ):
        return
    # In an at-most-once group all that was delivered is acknowledged. So the consumer answers when its application has
    # all of it, and names the end. In other groups the answer may be below what is acknowledged: consumers acknowledge
    # what they pass over (repeats, and what retention dropped), and the last message of the application may be before.
    lowest = dispatcher.delivered if served.cursor.at_most_once else 0
    if lowest <= index <= dispatcher.delivered:
        yielding.below = max(index, served.ledger.acked)
        go_on(served)


def _is_answer(yielding: Yielding, event: ConsumerYielded) -> bool:
    return yielding.number == event.number > 0
