"""Sessions: an active consumer that sends no heartbeats gives way to a standby.

A consumer drops what comes on its grant once a heartbeat has been unanswered for its session time (docs/adr/0028). The
server waits twice that time, from the last heartbeat that it heard: then the consumer, frozen or cut off, gives nothing
of the old grant to its application any more, and another one may be given the same. Consumers that send no heartbeats,
of version 0.2 and older, keep their place until their stream ends. Without a standby nobody is waited for.
"""

from __future__ import annotations

from typing import Final

from seriatim_api import errors

from ..effects import Revoked
from ..outbox import Outbox
from ..partition import Partition
from . import subscribing
from .head import GroupHead, Phase, tell

ROUNDS: Final = 2
"""So many looks in a row must find the consumer silent: a broker that was frozen has heartbeats to read first."""


def on_due(outbox: Outbox, partition: Partition, group: str) -> None:
    """Look whether the active consumer is silent, as long as somebody stands by."""
    head = partition.groups.get(group)
    if head is None or head.phase is not Phase.SERVING or head.active is None or len(head.consumers) < 2:
        return
    outbox.poll(outbox.config.session_poll_us, "session", partition.id, group)
    others = [consumer for consumer in head.consumers if consumer is not head.active]
    if not outbox.is_consumer_silent(head.active.stream) or all(
        outbox.is_consumer_silent(consumer.stream) for consumer in others
    ):
        head.silent_rounds = 0
        return
    head.silent_rounds += 1
    if head.silent_rounds >= ROUNDS:
        _give_way(outbox, partition, head)


def _give_way(outbox: Outbox, partition: Partition, head: GroupHead) -> None:
    silent = head.active
    assert silent is not None
    outbox.note("silent consumer", partition.id, group=head.group, consumer=silent.name)
    tell(outbox, silent, Revoked(errors.NotServingError(f"{silent.name} sent no heartbeat, and another one reads")))
    subscribing.leave(outbox, partition, silent.stream, silent.subscription)
