"""Sessions: an active consumer that sends no heartbeats gives way to a standby.

If a heartbeat is unanswered for the consumer's session time, the consumer drops what comes on its grant
(docs/adr/0028). The server waits twice that time, from the last heartbeat that it received. By then a consumer that was
frozen or cut off gives nothing of the old grant to its application any more, so another consumer may be given the same
messages. A silent consumer stays active if there is no standby, or if all standbys are silent too.
"""

from __future__ import annotations

from typing import Final

from seriatim_api import errors

from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroup, ConsumerGroupPhase
from ...state.dispatcher import Consumer
from ...state.partition import Partition
from ...values.effects import Revoked
from ...values.kinds import TimerKind
from ..cursors.consumer_group import tell
from ..exclusive import assignment
from . import subscriptions

ROUNDS: Final = 2
"""So many checks in a row must find the consumer silent. A broker that was frozen must first read the
heartbeats that came meanwhile."""


def on_due(broker: BrokerState, partition: Partition, group: str) -> None:
    """Check whether a consumer that is given messages is silent, as long as there is another one."""
    consumer_group = partition.consumer_groups.get(group)
    if (
        consumer_group is None
        or consumer_group.phase is not ConsumerGroupPhase.SERVING
        or len(consumer_group.consumers) < 2
    ):
        return
    active = consumer_group.dispatcher.active
    checked = list(consumer_group.consumers) if consumer_group.keyed is not None else [active] if active else []
    if not checked:
        return
    broker.poll(broker.config.session_poll_us, TimerKind.SESSION, partition.id, group)
    silent = {
        consumer
        for consumer in consumer_group.consumers
        if broker.streams.is_silent(consumer.stream, broker.now.mono_us)
    }
    if len(silent) != consumer_group.dispatcher.silent_count:
        consumer_group.dispatcher.silent_count = len(silent)
        assignment.changed(broker, partition, consumer_group)
    is_any_heard = len(silent) < len(consumer_group.consumers)
    for consumer in checked:
        if consumer not in silent or not is_any_heard:
            consumer.silent_rounds = 0
            continue
        consumer.silent_rounds += 1
        if consumer.silent_rounds >= ROUNDS:
            _give_way(broker, partition, consumer_group, consumer)


def _give_way(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup, silent: Consumer) -> None:
    broker.out.note("silent consumer", partition.id, group=consumer_group.name, consumer=silent.name)
    tell(
        broker,
        silent,
        Revoked(
            errors.NotServingError(
                f"{silent.name} sent no heartbeat for twice its session, so other consumers of the group go on"
            )
        ),
    )
    subscriptions.leave(broker, partition, silent.stream, silent.subscription)
