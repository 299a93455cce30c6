"""Sessions: an active consumer that sends no heartbeats gives way to a standby.

If a heartbeat is unanswered for the consumer's session time, the consumer drops what comes on its grant
(docs/adr/0028). The server waits twice that time, from the last heartbeat that it received. By then a consumer that was
frozen or cut off gives nothing of the old grant to its application any more, so another consumer may be given the same
messages. Consumers of version 0.2 and older send no heartbeats. They stay active until their stream ends. If there is
no standby, a silent consumer stays active.
"""

from __future__ import annotations

from typing import Final

from seriatim_api import errors

from ..state.broker import BrokerState
from ..state.consumers import GroupHead, GroupPhase
from ..state.partition import Partition
from ..values.effects import Revoked
from ..values.kinds import TimerKind
from . import subscribing
from .head import tell

ROUNDS: Final = 2
"""So many checks in a row must find the consumer silent, because a broker that was frozen first has to read heartbeats
that came meanwhile."""


def on_due(broker: BrokerState, partition: Partition, group: str) -> None:
    """Check whether the active consumer is silent, as long as a standby is there."""
    head = partition.groups.get(group)
    if head is None or head.phase is not GroupPhase.SERVING or head.active is None or len(head.consumers) < 2:
        return
    broker.poll(broker.config.session_poll_us, TimerKind.SESSION, partition.id, group)
    others = [consumer for consumer in head.consumers if consumer is not head.active]
    if not broker.streams.is_silent(head.active.stream, broker.now.mono_us) or all(
        broker.streams.is_silent(consumer.stream, broker.now.mono_us) for consumer in others
    ):
        head.silent_rounds = 0
        return
    head.silent_rounds += 1
    if head.silent_rounds >= ROUNDS:
        _give_way(broker, partition, head)


def _give_way(broker: BrokerState, partition: Partition, head: GroupHead) -> None:
    silent = head.active
    assert silent is not None
    broker.out.note("silent consumer", partition.id, group=head.group, consumer=silent.name)
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
