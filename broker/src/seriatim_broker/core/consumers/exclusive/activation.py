"""Activation: one consumer has the exclusive grant, and the others stand by."""

from __future__ import annotations

from ...state.consumers import Served
from ...state.dispatcher import Consumer
from ...values.effects import Joined
from ...values.kinds import TimerKind
from ...values.positions import Place
from ..cursors import delivery_attempts, gap_reports
from ..cursors.consumer_group import tell
from . import delivery

TOKEN_COUNTER_BITS = 24
"""The low bits of a token are a counter, and the bits above are the server epoch. So a new server repeats no token."""


def activate(served: Served, consumer: Consumer) -> None:
    """Give a consumer the exclusive grant, from the first message that is not acknowledged."""
    broker, consumer_group = served.broker, served.group
    dispatcher = served.dispatcher
    if len(consumer_group.consumers) > 1:
        served.poll(broker.config.session_poll_us, TimerKind.SESSION)
    broker.streams.activations += 1  # over the member run, so no token comes twice in one server epoch
    token = served.server_epoch << TOKEN_COUNTER_BITS | broker.streams.activations % (1 << TOKEN_COUNTER_BITS)
    dispatcher.grant(consumer, token, served.ledger.acked)
    delivery_attempts.begin_grant(served)
    tell(broker, consumer, _joined(served, active=True))
    consumer.reported_gaps = ()
    for place in gap_reports.lost_since(served.chain, served):
        gap_reports.tell_lost(broker, consumer, place)
    place = Place(consumer_group.segment_no, dispatcher.delivered)
    gap_reports.tell_noted_drop(served, consumer, place)
    delivery.pump_consumer_group(served)


def stand_by(served: Served, consumer: Consumer) -> None:
    """Tell a consumer that it is a standby."""
    tell(served.broker, consumer, _joined(served, active=False))


def _joined(served: Served, active: bool) -> Joined:
    group, cursor, token = served.group, served.cursor, served.dispatcher.token if active else 0
    return Joined(
        active, group.segment_no, served.ledger.acked, token, group.group_epoch, served.server_epoch, cursor.paused,
        cursor.begun_by, cursor.mode, at_most_once=cursor.at_most_once,
    )  # fmt: skip
