"""Sessions: an active consumer that sends no heartbeats gives way to a standby.

If a heartbeat is unanswered for the consumer's session time, the consumer drops what comes on its grant
(docs/adr/0028). The server waits twice that time, from the last heartbeat that it received. By then a consumer that was
frozen or cut off gives nothing of the old grant to its application any more, so another consumer may be given the same
messages. Consumers of version 0.2 and older send no heartbeats. They stay active until their stream ends. A silent
consumer also stays active if there is no standby, or if all standbys are silent too.
"""

from __future__ import annotations

from typing import Final

from seriatim_api import errors

from ..state.broker import BrokerState
from ..state.consumers import ConsumerGroup, ConsumerGroupPhase
from ..state.partition import Partition
from ..values.effects import Revoked
from ..values.kinds import TimerKind
from . import subscribing
from .consumer_group import tell

ROUNDS: Final = 2
"""So many checks in a row must find the consumer silent. A broker that was frozen must first read the
heartbeats that came meanwhile."""


def on_due(broker: BrokerState, partition: Partition, group: str) -> None:
    """Check whether the active consumer is silent, as long as a standby is there."""
    consumer_group = partition.consumer_groups.get(group)
    if (
        consumer_group is None
        or consumer_group.phase is not ConsumerGroupPhase.SERVING
        or consumer_group.dispatcher.active is None
        or len(consumer_group.consumers) < 2
    ):
        return
    broker.poll(broker.config.session_poll_us, TimerKind.SESSION, partition.id, group)
    others = [consumer for consumer in consumer_group.consumers if consumer is not consumer_group.dispatcher.active]
    if not broker.streams.is_silent(consumer_group.dispatcher.active.stream, broker.now.mono_us) or all(
        broker.streams.is_silent(consumer.stream, broker.now.mono_us) for consumer in others
    ):
        consumer_group.dispatcher.silent_rounds = 0
        return
    consumer_group.dispatcher.silent_rounds += 1
    if consumer_group.dispatcher.silent_rounds >= ROUNDS:
        _give_way(broker, partition, consumer_group)


def _give_way(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup) -> None:
    silent = consumer_group.dispatcher.active
    assert silent is not None
    broker.out.note("silent consumer", partition.id, group=consumer_group.name, consumer=silent.name)
    tell(
        broker,
        silent,
        Revoked(
            errors.NotServingError(
                f"{silent.name} sent no heartbeat for twice its session, so another consumer of the group is active now"
            )
        ),
    )
    subscribing.leave(broker, partition, silent.stream, silent.subscription)
