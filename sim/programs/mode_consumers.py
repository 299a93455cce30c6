"""Consumers of a shared group and of an at-most-once group in the simulation. Some ask for each message."""

from __future__ import annotations

from dataclasses import replace

from seriatim._core import consumer_types as ct
from seriatim._core.keyed_consumer import KeyedPartitionConsumer
from seriatim_api.ids import PartitionId, make_offset
from seriatim_broker.core.values.events import ConsumerDemand, ConsumerJoin, Event
from seriatim_broker.core.values.keyed import ConsumerMode

from ..judge import Judge, messages_of
from ..judge.modes import ONCE, ONCE_EXCLUSIVE, SHARED
from .clients import Clients
from .consumers import SimConsumer
from .keyed_consumers import SimKeyedConsumer

MODES = (SHARED, ONCE, ONCE_EXCLUSIVE)
"""The names of the groups."""

ASK_US = 30_000
"""A consumer that asks for messages asks about so often."""


class SimModeConsumer(SimKeyedConsumer):
    """One consumer of such a group on one partition."""

    def __init__(self, clients: Clients, judge: Judge, partition: PartitionId, group: str, name: str) -> None:
        super().__init__(clients, judge, partition, group, name)
        self.mode = ConsumerMode.SHARED if group == SHARED else ConsumerMode.KEY_ORDERED
        self._asks = clients.schedule.rng.random() < 0.4
        if self._asks:
            self._core = KeyedPartitionConsumer(self._config, on_demand=True)

    def start(self) -> None:
        """Join the group, and begin to ask."""
        super().start()
        if self._asks:
            self._ask()

    def _ask(self) -> None:
        if self.alive:
            rng = self._schedule.rng
            self._step(ct.Demanded(rng.choice((0, 1, 3, 20)), rng.choice((0, 1))))
            self._schedule.after(rng.randint(ASK_US // 4, ASK_US), self._ask)

    def _send(self, stream: int, event: Event) -> None:
        if isinstance(event, ConsumerJoin) and self._asks:
            event = replace(event, on_demand=True)
        super()._send(stream, event)

    def _carry_out(self, effect: ct.Effect) -> None:
        if isinstance(effect, ct.SendDemand):
            demand = ConsumerDemand(effect.stream, effect.subscription, effect.messages, effect.run_max)
            self._send(effect.stream, demand)
        else:
            super()._carry_out(effect)


class SimOnceConsumer(SimConsumer):
    """One consumer of the exclusive at-most-once group on one partition. It acknowledges nothing."""

    _is_once = True

    def _deliver(self, effect: ct.Deliver) -> None:
        for batch in self._batches:
            for place, message in enumerate(messages_of(batch)):
                index = batch.header.base_index + place
                if index < effect.from_index:
                    continue
                flagged = effect.delivery_attempt > 1 or index < effect.maybe_repeated_below
                offset = make_offset(effect.segment, index)
                self._tell(f"is given {message} at {effect.segment}:{index}")
                self._judge.rules.keyed.given(self.name, self.partition, offset, message, flagged=flagged)

    def _carry_out(self, effect: ct.Effect) -> None:
        if not isinstance(effect, ct.Passed):  # the message that was given before may have been lost
            super()._carry_out(effect)

    def _pass(self, segment: int, index: int) -> None:
        """There is nothing to acknowledge."""
