"""Consumers come and go: the first of a consumer group is active, and the others stand by in the order of joining."""

from __future__ import annotations

from collections.abc import Sequence

from seriatim_api import errors

from ...peers import right
from ...state.broker import BrokerState
from ...state.consumers import Beginning, ConsumerGroupPhase, KeyedServed, Seat, Served
from ...state.dispatcher import Consumer
from ...state.partition import Partition
from ...values.effects import Revoked, SubscriptionRefused
from ...values.events import ConsumerJoin
from ...values.keyed import ConsumerMode
from ...values.kinds import TimerKind
from ...values.positions import Place, end_of_drops
from ..cursors import control_records
from ..cursors.consumer_group import consumer_group_of, forget_if_unused, tell
from ..cursors.gap_reports import lost_since, tell_lost, tell_noted_drop
from ..exclusive import activation, assignment
from ..keyed import grants, handoff, outcomes

CONSUMERS_MAX = 10_000
"""Maximum number of consumers that are in one consumer group on one partition: each step of the group looks at all of
them."""


def join(broker: BrokerState, partition: Partition, event: ConsumerJoin) -> None:
    """A consumer joins: it becomes active if it is the first, else it stands by."""
    begins = Beginning(event.start, event.mode)
    consumer_group = consumer_group_of(broker, partition, event.consumer_group, begins)
    for consumer in consumer_group.consumers:
        if consumer.name == event.consumer:  # it came back before this broker noticed the end of its old stream
            tell(broker, consumer, Revoked(errors.NotActiveError("the consumer has joined again on another stream")))
            leave(partition, consumer.stream, consumer.subscription)
            consumer_group = consumer_group_of(broker, partition, event.consumer_group, begins)
            break
    consumer = Consumer(event)
    if len(consumer_group.consumers) >= CONSUMERS_MAX:
        text = f"group {event.consumer_group} has {CONSUMERS_MAX} consumers on this partition: no more can join"
        tell(broker, consumer, SubscriptionRefused(errors.OverloadedError(text, retry_after_ms=1_000), 0, ""))
        return
    is_first = not consumer_group.consumers
    consumer_group.consumers.append(consumer)
    served = consumer_group.serving
    if served is None:
        return
    if is_first:
        # Rule `first-reads` (I2, I9): if a consumer group had no consumers, its server reads the cursor again. Without
        # it:
        #   1. A consumer group has no consumers, and its server waits for a silent member.
        #   2. Meanwhile the consumer group is deleted, and made again by another server.
        #   3. A consumer joins here, and is given messages in the group epoch of the deleted consumer group.
        #   4. The crossing finds another cursor, and all messages are given again without a flag.
        control_records.write_if_dirty(served)
        consumer_group.look_again()
        served.read_cursor()
        return
    refuse_other_modes(served, served.cursor.mode)
    if consumer not in consumer_group.consumers:
        return
    if isinstance(served, KeyedServed):
        _welcome(served, consumer)
        grants.go_on(served)
        return
    is_awaited = consumer.was_active or broker.now.mono_us >= served.dispatcher.returns_until_us
    if served.dispatcher.active is None and is_awaited:
        activation.activate(served, consumer)
    else:
        activation.stand_by(served, consumer)
        served.poll(broker.config.session_poll_us, TimerKind.SESSION)
    assignment.changed(served)


def is_served(seat: Seat) -> bool:
    """Whether this member may deliver to the consumer group at this moment. Then no other member may."""
    return seat.group.phase is not ConsumerGroupPhase.LOADING and right.has_right(
        seat.broker, seat.partition, seat.segment, seeks=False
    )


def refuse_other_modes(seat: Seat, mode: ConsumerMode) -> None:
    """Refuse consumers that ask for another mode than the one in which the consumer group was made."""
    for consumer in [consumer for consumer in seat.group.consumers if consumer.mode is not mode]:
        error = errors.UnsupportedModeError(
            f"group {seat.group.name} is {mode.name.lower()}, and the consumer asks for "
            f"{consumer.mode.name.lower()}: ask for the group's mode, or use another group"
        )
        tell(seat.broker, consumer, SubscriptionRefused(error, 0, ""))
        seat.group.consumers.remove(consumer)


def begin(served: Served) -> None:
    """This member has begun to serve: tell each consumer whether messages are given to it."""
    if isinstance(served, KeyedServed):
        for consumer in served.group.consumers:
            _welcome(served, consumer)
        return
    first = next((consumer for consumer in served.group.consumers if consumer.was_active), None)
    if first is None and not assignment.waits_for_return(served):
        first = assignment.first(served)
    if first is not None:
        activation.activate(served, first)
    for consumer in served.group.consumers:
        if consumer is not first:
            activation.stand_by(served, consumer)
    assignment.changed(served)


def welcome_new(served: KeyedServed) -> None:
    """The keys of a group continue where they were: notify those that have joined since that they have.

    Rule `joined-is-told` (I13): messages are granted only to a consumer that knows it has joined. Without it:
      1. A hands over, and writes the cursor. c2 joins. The transaction finds that the chain has changed.
      2. A continues, and grants k:5 to c2. c2 drops the grant, because it was not told that it has joined.
      3. k:5 waits until c2 gives up and joins again.
    """
    for consumer in served.group.consumers:
        if not consumer.grant_ms:
            _welcome(served, consumer)


def _welcome(served: KeyedServed, consumer: Consumer) -> None:
    """A consumer joins others to which messages are granted key by key.

    Rule `comer-is-told` (I1): each consumer that comes is notified of the losses and drops that are noted. Without it:
      1. The messages of parked keys are dropped or lost while the consumer group has no consumers.
      2. A consumer comes, acknowledges later messages, and no broker tells it what is missing.

    Rule `place-is-no-drop` (I1): the chain record alone says how far messages are dropped, and not the cursor's place.
    Without it:
      1. 1:14 and 1:44 are parked. Retention drops the messages below 1:43. The disks note the drop from 1:14 on.
      2. An older copy of the coordinator is restored. The cursor that is rebuilt has the place 1:112.
      3. The next server tells a consumer that all from 1:14 to 1:112 is gone. 1:44 is there.

    Rule `loss-hides-no-drop` (I1, I13): a drop after a lost segment is reported too. Without it:
      1. Segment 1 is declared lost, and retention drops all of segment 2. The consumer group has no consumers.
      2. Its cursor is moved to segment 3, and says that messages are gone from 1:0 on.
      3. A consumer joins. The record still begins with segment 1, so only the loss of that segment is reported.
    """
    outcomes.join(served, consumer)
    for place in lost_since(served.chain, served):
        tell_lost(served.broker, consumer, place)
    end = end_of_drops(served.chain)
    if end.segment_no >= served.segment.no:  # what is dropped above the floor is reported next
        end = Place(served.segment.no, min(served.log.start, served.ledger.acked))
    tell_noted_drop(served, consumer, end)
    if len(served.group.consumers) > 1:
        served.poll(served.broker.config.session_poll_us, TimerKind.SESSION)


def leave(partition: Partition, stream: int, subscription: int | None) -> None:
    """A subscription is gone. If its consumer was active, the next standby becomes active.

    If `subscription` is None, all subscriptions of the stream are gone.
    """
    for consumer_group in list(partition.consumer_groups.values()):
        gone = [
            consumer
            for consumer in consumer_group.consumers
            if consumer.stream == stream and subscription in (None, consumer.subscription)
        ]
        if not gone:
            continue
        consumer_group.consumers = [consumer for consumer in consumer_group.consumers if consumer not in gone]
        served = consumer_group.served
        if isinstance(served, KeyedServed):
            outcomes.leave(served, gone)
            handoff.on_left(served, gone)
        elif served is not None:
            _leave_exclusive(served, gone)
        if not isinstance(served, KeyedServed) and any(consumer.was_active for consumer in gone):
            for consumer in consumer_group.consumers:
                consumer.was_standby = False  # no consumer waits for it
        forget_if_unused(partition, consumer_group)


def _leave_exclusive(served: Served, gone: Sequence[Consumer]) -> None:
    dispatcher, consumers = served.dispatcher, served.group.consumers
    if dispatcher.active in gone:
        control_records.write_if_dirty(served)
        dispatcher.end_grant()
        if consumers and served.is_serving:
            activation.activate(served, assignment.first(served))
    if dispatcher.yielding is not None and dispatcher.yielding.to in gone and consumers:
        assignment.end_attempt(served)
    if consumers and served.is_serving:
        assignment.changed(served)
