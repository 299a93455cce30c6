"""A consumer group is deleted and made again under its name, while producers and the other groups continue.

A broker deletes the consumer group with the production code, when no server knows a consumer of it any more. New
consumers come at once, or later, when the controller may have removed the deleted cursors. For the judge, each consumer
group that had the name has a label of its own (`early`, `early#1`, ...). Each must get every message from the beginning
(I1, I2).
"""

from __future__ import annotations

import asyncio

from seriatim_api.errors import SeriatimError
from seriatim_broker.runtime.controller.consumer_groups import ConsumerGroupCursors

from ..programs.consumers import name_of
from .brokers import Home, RuntimeProcess

STEP_US = 20_000
PAUSES_US = (0, 20_000, 300_000, 1_500_000)
"""Between the deletion and the first new consumer."""


class ConsumerGroupMaker:
    """Deletes groups of a world and makes them again."""

    def __init__(self, cluster: Home) -> None:
        self.is_busy = False
        self._cluster = cluster
        self._schedule = cluster.schedule
        self._setting = cluster.setting
        self._count = 0
        self._label = ""  # of the group that is deleted, or is about to be made
        self._is_deleted = False
        self._asked: tuple[RuntimeProcess, asyncio.Task[None]] | None = None

    def label_of(self, name: str) -> str:
        """The label of the group that has the name now: while it is being deleted the old one, then the next one."""
        labels = (*self._cluster.scene.population.groups, self._label)
        return next((label for label in labels if name_of(label) == name), name)

    def remake(self) -> None:
        """Begin with one of the groups, unless it is being done."""
        scene = self._cluster.scene
        if self.is_busy or not scene.population.groups:
            return
        self.is_busy = True
        self._is_deleted = False
        label = self._label = self._schedule.rng.choice(scene.population.groups)
        scene.population.groups.remove(label)
        for consumer in scene.population.consumers:
            if consumer.group == label and consumer.alive:
                consumer.crash()
        self._schedule.after(self._schedule.rng.randint(0, 100_000), self._step, name_of(label))

    def _step(self, name: str) -> None:
        scene = self._cluster.scene
        if self._is_deleted:
            self._count += 1
            self._label = f"{name}#{self._count}"
            scene.judge.seen.states.add("group made again")
            self._schedule.after(self._schedule.rng.choice(PAUSES_US), self._begin, self._label)
            return
        running = [broker.process for broker in self._cluster.brokers.values() if broker.process is not None]
        able = [process for process in running if process.is_serving and not process.frozen]
        if any(process.watched is not None and process.watched.has_consumers(name) for process in running):
            able = []  # its server would say so, and the deletion is refused
        if able and not self._is_asked():
            process = self._schedule.rng.choice(able)
            process.loop.call_soon(self._ask, process, name)
        self._schedule.after(STEP_US, self._step, name)

    def _is_asked(self) -> bool:
        if self._asked is None:
            return False
        process, task = self._asked
        return process.alive and not task.done()

    def _ask(self, process: RuntimeProcess, name: str) -> None:
        if not self._is_asked():
            self._asked = (process, process.loop.create_task(self._delete(process, name), name="group"))

    async def _delete(self, process: RuntimeProcess, name: str) -> None:
        cursors = ConsumerGroupCursors(
            self._cluster.coordinator.client(process.name), self._cluster.coordinator.keys, name
        )
        try:
            await cursors.read(self._setting.partitions)
            await cursors.delete(process.clock.wall_ms())
        except SeriatimError as exc:
            self._schedule.tell("world", f"group not deleted: {exc!r}")
        else:
            self._is_deleted = True

    def _begin(self, label: str) -> None:
        scene = self._cluster.scene
        self._schedule.tell("world", f"{label} begins")
        scene.population.groups.append(label)
        for _ in range(self._schedule.rng.choice((1, 2))):
            scene.population.add_consumer(label, scene.clients.number())
        self.is_busy = False
