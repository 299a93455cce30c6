"""Rules of the core about when a broker counts as silent, and what a client hears of a silent master."""

from __future__ import annotations

from typing import Any

from seriatim_broker.core.dispatch import links
from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.switching import routes

from .mutation import Mutation, Patch


def _suspicions_at_once() -> list[Patch]:
    return [(routes, "_is_looked_into", lambda partition, waiter: False)]


def _silent_since_before() -> list[Patch]:
    real = BrokerState.watch_peers

    def watch_peers(self: BrokerState, *of: Any) -> None:
        """The time in which a broker that shared nothing sent few heartbeats counts as its silence."""
        real(self, *of)
        for link in self.links.by_broker.values():
            link.watched_us = 0

    return [(BrokerState, "watch_peers", watch_peers)]


def _sleep_is_silence() -> list[Patch]:
    real = links.beat

    def beat(broker: BrokerState, partitions: Any) -> None:
        """A look that comes late says nothing about this process."""
        if broker.links.beat_due_us < broker.now.mono_us:
            broker.links.beat_due_us = broker.now.mono_us
        real(broker, partitions)

    return [(links, "beat", beat)]


MUTATIONS: dict[str, Mutation] = {
    "suspicion-waits": Mutation(
        "a question about a silent master is answered when the master was heard, or the next segment is open",
        _suspicions_at_once,
        ("ASKED",),
        "frozen-masters",
    ),
    "watched-from-now": Mutation(
        "a broker that is watched from now on counts as silent only from now on",
        _silent_since_before,
        ("CALM",),
        "nothing-fails",
    ),
    "sleep-is-no-silence": Mutation(
        "a process that did not run takes no other broker for silent because of that",
        _sleep_is_silence,
        ("CALM",),
        "frozen-masters",
    ),
}
"""By name."""
