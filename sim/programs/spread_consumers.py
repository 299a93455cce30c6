"""Consumers over which partitions are spread: more of them come, and one of each group comes and goes all the time."""

from __future__ import annotations

from seriatim_api.ids import PartitionId

from ..basics.setting import Setting
from ..judge import Judge
from ..judge.modes import ONCE_EXCLUSIVE
from .clients import Clients
from .consumers import SimConsumer
from .mode_consumers import MODES, SimOnceConsumer
from .population import Population

STAYS_US = (20_000, 400_000)
"""How long a consumer stays that comes and goes, and how long it is away: sometimes long enough to get a partition."""


class SpreadConsumers:
    """The consumers that are added to the early group and to the exclusive at-most-once group."""

    def __init__(self, setting: Setting, clients: Clients, judge: Judge, population: Population) -> None:
        self._setting = setting
        self._schedule = setting.schedule
        self._clients = clients
        self._judge = judge
        self._population = population

    def start(self) -> None:
        """More consumers come, one after another."""
        rng, count = self._schedule.rng, self._setting.options.spread_consumers
        for number in range(count):
            for group in self._groups():
                for partition in self._setting.partitions:
                    delay_us = rng.randint(0, 600_000)
                    self._schedule.after(delay_us, self._stay, group, partition, f"{group}.more{number}")
        if count:
            for group in self._groups():
                for partition in self._setting.partitions:
                    self._schedule.after(rng.randint(0, 300_000), self._come, group, partition, 0)

    def _groups(self) -> list[str]:
        return ["early", *([ONCE_EXCLUSIVE] if self._setting.options.mode_consumers else [])]

    def _stay(self, group: str, partition: PartitionId, name: str) -> None:
        self._add(group, partition, name)

    def _add(self, group: str, partition: PartitionId, name: str) -> SimConsumer | None:
        if group not in (*self._population.groups, *MODES):
            return None  # it was deleted
        kind = SimOnceConsumer if group == ONCE_EXCLUSIVE else SimConsumer
        consumer = kind(self._clients, self._judge, partition, group, name)
        self._population.add(consumer)
        return consumer

    def _come(self, group: str, partition: PartitionId, times: int) -> None:
        """It comes under the same name each time, stays for a moment, and leaves or ends."""
        rng = self._schedule.rng
        consumer = self._add(group, partition, f"{group}.flaps")
        if consumer is None or self._schedule.now_us > self._setting.options.fault_span_us * 2:
            return
        end = consumer.leave if rng.random() < 0.7 else consumer.crash
        stays_us = rng.randint(*STAYS_US)
        self._schedule.after(stays_us, end)
        away_us = rng.randint(*STAYS_US)
        self._schedule.after(stays_us + 60_000 + away_us, self._come, group, partition, times + 1)
