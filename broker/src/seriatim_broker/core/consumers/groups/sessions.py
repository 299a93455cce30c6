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
from ...state.consumers import KeyedServed, Seat
from ...state.dispatcher import Consumer
from ...state.partition import Partition
from ...values.effects import Revoked
from ...values.kinds import TimerKind
from ..cursors.consumer_group import serving_of, tell
from ..exclusive import assignment
from . import subscriptions

ROUNDS: Final = 2
"""How many checks in a row must find the consumer silent. A broker that was frozen must first read the
heartbeats that came meanwhile."""


def on_due(broker: BrokerState, partition: Partition, group: str) -> None:
    """Check whether a consumer that is given messages is silent, as long as there is another one."""
    served = serving_of(partition, group)
    if served is None or len(served.group.consumers) < 2:
        return
    active, consumers = served.dispatcher.active, list(served.group.consumers)
    checked = consumers if isinstance(served, KeyedServed) else [active] if active else []
    if not checked:
        return
    served.poll(broker.config.session_poll_us, TimerKind.SESSION)
    silent = {one for one in consumers if broker.streams.is_silent(one.stream, broker.now.mono_us)}
    if len(silent) != served.dispatcher.silent_count:
        served.dispatcher.silent_count = len(silent)
        assignment.changed(served)
    is_any_heard = len(silent) < len(consumers)
    for consumer in checked:
        if consumer not in silent or not is_any_heard:
            consumer.silent_rounds = 0
            continue
        consumer.silent_rounds += 1
        if consumer.silent_rounds >= ROUNDS:
            _give_way(served, consumer)


def _give_way(seat: Seat, silent: Consumer) -> None:
    seat.note("silent consumer", consumer=silent.name)
    tell(
        seat.broker,
        silent,
        Revoked(
            errors.NotServingError(
                f"{silent.name} sent no heartbeat for twice its session, so other consumers of the group continue"
            )
        ),
    )
    subscriptions.leave(seat.partition, silent.stream, silent.subscription)
