"""Figures of the consumer groups that this broker serves, for the metrics. Nothing is decided by them."""

from __future__ import annotations

from typing import NamedTuple

from seriatim_api.ids import make_offset
from seriatim_api.lag import lag_messages

from ...state.consumers import ConsumerGroup, ConsumerGroupPhase, KeyedServed
from ...state.partition import Partition


class ConsumerGroupFigures(NamedTuple):
    """How one consumer group is doing on one partition.

    Attributes:
        lag_messages: Messages that are not acknowledged, those of parked keys included. If another broker has the open
            segment, its newest messages are not counted.
        in_flight_messages: Messages that consumers have and have not acknowledged.
        aside_messages: Messages in lists of keys.
        parked_keys: Keys that wait for an administrator.
        delayed_keys: Keys that wait for their next attempt.
        forwarding_keys: Keys whose first message is on its way to the dead-letter topic.
        consumers: Consumers that are connected.
        is_read: Messages wait, and a consumer is active here.
        is_full: The lists of keys are full, so no more messages are read.
        oldest: The offset of the first message that is not acknowledged, in the segment that is served here or an
            earlier one; None: all messages here are acknowledged.
    """

    lag_messages: int = 0
    in_flight_messages: int = 0
    aside_messages: int = 0
    parked_keys: int = 0
    delayed_keys: int = 0
    forwarding_keys: int = 0
    consumers: int = 0
    is_full: bool = False
    oldest: int | None = None
    is_read: bool = False


def figures_of(partition: Partition, consumer_group: ConsumerGroup) -> ConsumerGroupFigures | None:
    """The figures of a consumer group; None if it is not served here."""
    served = consumer_group.served
    if served is None or consumer_group.phase is ConsumerGroupPhase.LOADING:
        return None
    segment, log, floor = served.segment, served.log, served.ledger.acked
    last = served.chain.open_segment
    last_log = partition.logs.get(last.no)
    lag = max(log.readable_below - floor, 0)
    if segment.base is not None and last.base is not None:
        end = last.base + (last_log.commit if last_log is not None else 0)
        lag = max(end - segment.base - floor, lag)
    oldest = make_offset(segment.no, floor) if floor < log.readable_below else None
    if not isinstance(served, KeyedServed):
        dispatcher = consumer_group.dispatcher
        in_flight = dispatcher.delivered - floor if dispatcher.active is not None else 0
        return ConsumerGroupFigures(
            lag, max(in_flight, 0), consumers=len(consumer_group.consumers), oldest=oldest,
            is_read=lag > 0 and dispatcher.active is not None,
        )  # fmt: skip
    keyed = served.keyed
    keys = keyed.counts(floor)
    aside = keyed.lists.oldest
    return ConsumerGroupFigures(
        lag_messages(lag, keys.passed, keys.aside),
        sum(consumer.in_flight for consumer in (*consumer_group.consumers, *keyed.handoff.absent.values())),
        keyed.lists.message_count,
        keys.parked,
        keys.delayed,
        keys.forwarding,
        len(consumer_group.consumers),
        keyed.lists.is_full,
        aside if aside and (oldest is None or aside < oldest) else oldest,
        lag > 0 and bool(consumer_group.consumers),
    )
