"""Consumers over which partitions are spread: more of them come, and one of each group comes and goes all the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seriatim_api.ids import PartitionId

from . import mode_consumers
from .consumers import SimConsumer
from .judge.modes import ONCE_EXCLUSIVE
from .mode_consumers import SimOnceConsumer

if TYPE_CHECKING:
    from .world import World

STAYS_US = (20_000, 400_000)
"""How long a consumer stays that comes and goes, and how long it is away: sometimes long enough to get a partition."""


def start(world: World) -> None:
    """More consumers come, one after another."""
    rng = world.schedule.rng
    for number in range(world.options.spread_consumers):
        for group in _groups(world):
            for partition in world.partitions:
                world.schedule.after(rng.randint(0, 600_000), _stay, world, group, partition, f"{group}.more{number}")
    if world.options.spread_consumers:
        for group in _groups(world):
            for partition in world.partitions:
                world.schedule.after(rng.randint(0, 300_000), _come, world, group, partition, 0)


def _groups(world: World) -> list[str]:
    return ["early", *([ONCE_EXCLUSIVE] if world.options.mode_consumers else [])]


def _stay(world: World, group: str, partition: PartitionId, name: str) -> None:
    _add(world, group, partition, name)


def _add(world: World, group: str, partition: PartitionId, name: str) -> SimConsumer | None:
    if group not in (*world.groups, *mode_consumers.MODES):
        return None  # it was deleted
    kind = SimOnceConsumer if group == ONCE_EXCLUSIVE else SimConsumer
    consumer = kind(world.clients, world.judge, partition, group, name)
    world.consumers.append(consumer)
    consumer.start()
    return consumer


def _come(world: World, group: str, partition: PartitionId, times: int) -> None:
    """It comes under the same name each time, stays for a moment, and leaves or ends."""
    consumer = _add(world, group, partition, f"{group}.flaps")
    if consumer is None or world.schedule.now_us > world.options.fault_span_us * 2:
        return
    end = consumer.leave if world.schedule.rng.random() < 0.7 else consumer.crash
    stays_us = world.schedule.rng.randint(*STAYS_US)
    world.schedule.after(stays_us, end)
    away_us = world.schedule.rng.randint(*STAYS_US)
    world.schedule.after(stays_us + 60_000 + away_us, _come, world, group, partition, times + 1)
