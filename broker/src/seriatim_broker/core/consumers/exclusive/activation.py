"""Activation: one consumer has the exclusive grant, and the others stand by."""

from __future__ import annotations

from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroup
from ...state.dispatcher import Consumer
from ...state.partition import Partition
from ...values.effects import Joined
from ...values.kinds import TimerKind
from ...values.positions import Place
from ..cursors import delivery_attempts, gap_reports
from ..cursors.consumer_group import tell
from . import delivery

TOKEN_COUNTER_BITS = 24
"""The low bits of a token are a counter, and the bits above are the server epoch. So a new server repeats no token."""


def activate(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup, consumer: Consumer) -> None:
    """Give a consumer the exclusive grant, from the first message that is not acknowledged."""
    dispatcher = consumer_group.dispatcher
    if len(consumer_group.consumers) > 1:
        broker.poll(broker.config.session_poll_us, TimerKind.SESSION, partition.id, consumer_group.name)
    broker.streams.activations += 1  # over the member run, so no token comes twice in one server epoch
    token = consumer_group.server_epoch << TOKEN_COUNTER_BITS | broker.streams.activations % (1 << TOKEN_COUNTER_BITS)
    dispatcher.grant(consumer, token, consumer_group.ledger.acked)
    delivery_attempts.begin_grant(consumer_group)
    tell(broker, consumer, _joined(consumer_group, active=True))
    consumer.told = ()
    for place in gap_reports.lost_since(partition.chain, consumer_group):
        gap_reports.tell_lost(broker, consumer, place)
    place = Place(consumer_group.segment_no, dispatcher.delivered)
    gap_reports.tell_noted_drop(broker, partition, consumer_group, consumer, place)
    delivery.pump_consumer_group(broker, partition, consumer_group)


def stand_by(broker: BrokerState, consumer_group: ConsumerGroup, consumer: Consumer) -> None:
    """Tell a consumer that it is a standby."""
    tell(broker, consumer, _joined(consumer_group, active=False))


def _joined(consumer_group: ConsumerGroup, active: bool) -> Joined:
    token = consumer_group.dispatcher.token if active else 0
    assert consumer_group.cursor is not None
    return Joined(
        active,
        consumer_group.segment_no,
        consumer_group.ledger.acked,
        token,
        consumer_group.group_epoch,
        consumer_group.server_epoch,
        consumer_group.cursor.paused,
        consumer_group.cursor.begun_by,
        consumer_group.cursor.mode,
        at_most_once=consumer_group.cursor.at_most_once,
    )
