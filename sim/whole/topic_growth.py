"""A topic gets one more partition, while producers and consumers of the others continue.

The controller does it with the production code. If it dies in between, the simulation asks its successor again. Of
each consumer group that had a cursor before the partition belonged to the topic, there must be one on the partition
(I1). Its consumers join there sooner or later, and ask to begin at the end. The group must get every message all the
same, from the first one (I13).

If the coordinator is rebuilt before the world sees the new partition, the rebuild may have added it: a disk had its
chain, and no disk had the cursors, because no group had acknowledged anything there. Those groups start over, as the
command `coordinator rebuild` says.
"""

from __future__ import annotations

import asyncio

from seriatim_api.errors import SeriatimError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import records_pb2
from seriatim_broker.interfaces.coordinator import KeyValue
from seriatim_broker.runtime.coordinator.records import cursor_from_value

from ..programs.consumers import name_of
from .brokers import Home, RuntimeProcess
from .remade_topics import TOPIC, TOPIC_DEADLINE_S, TopicMaker

STEP_US = 20_000
JOINS_US = (20_000, 300_000, 1_000_000)
"""Between the growth and the first consumer on the new partition: it has messages by then, or not."""


class TopicGrowth:
    """Lets the topic of a world grow, by one partition at a time."""

    def __init__(self, cluster: Home, topics: TopicMaker) -> None:
        self.is_busy = False
        self._cluster = cluster
        self._schedule = cluster.schedule
        self._setting = cluster.setting
        self._topics = topics
        self._asked: tuple[RuntimeProcess, asyncio.Task[None]] | None = None
        self._rebuilt_at_ms = 0

    def grow(self) -> None:
        """Begin, unless it is being done."""
        if not self.is_busy:
            self.is_busy = True
            self._rebuilt_at_ms = self._last_rebuild_ms()
            self._step(len(self._setting.partitions) + 1)

    def _step(self, wanted: int) -> None:
        record = self._topics.record()
        if record is not None and len(record.partition_ids) >= wanted:
            self.is_busy = False
            self._grown(PartitionId(record.partition_ids[-1]))
            return
        controller = self._cluster.controller()
        if controller is not None and not self._is_asked(controller):
            controller.loop.call_soon(self._ask, controller, wanted)
        self._schedule.after(STEP_US, self._step, wanted)

    def _is_asked(self, controller: RuntimeProcess) -> bool:
        return self._asked is not None and self._asked[0] is controller and not self._asked[1].done()

    def _ask(self, controller: RuntimeProcess, wanted: int) -> None:
        if not self._is_asked(controller):
            self._asked = controller, controller.loop.create_task(self._carry_out(controller, wanted), name="growth")

    async def _carry_out(self, controller: RuntimeProcess, wanted: int) -> None:
        runtime = controller.simulated.runtime
        assert runtime is not None
        try:
            await runtime.controller.topics.update(TOPIC, None, wanted, lambda _: None, TOPIC_DEADLINE_S)
        except SeriatimError as exc:
            self._schedule.tell("world", f"topic not grown: {exc!r}")

    def _grown(self, partition: PartitionId) -> None:
        scene = self._cluster.scene
        before = frozenset(
            group for group in (*scene.population.groups, *scene.population.keyed_groups) if self._was_there(group)
        )
        missing = [group for group in sorted(before) if not self._cursor(partition, group)]
        if self._last_rebuild_ms() != self._rebuilt_at_ms:
            before = before.difference(missing)
        elif missing:
            scene.judge.fail("I1", f"{missing} had a cursor before partition {partition} was added, and has none there")
        scene.population.there_before[partition] = before
        self._schedule.tell("world", f"the topic has partition {partition} now; before it, it had {sorted(before)}")
        scene.judge.seen.states.add("topic grew")
        self._setting.partitions.append(partition)
        scene.population.start_producers(max(1, self._setting.options.batches_per_producer // 2), (partition,))
        for group in scene.population.groups:
            delay_us = self._schedule.rng.choice(JOINS_US)
            self._schedule.after(delay_us, scene.population.add_consumer_of, partition, group, scene.clients.number())
        for group in scene.population.keyed_groups:
            for _ in range(self._setting.options.keyed_consumers):
                delay_us = self._schedule.rng.choice(JOINS_US)
                self._schedule.after(
                    delay_us, scene.population.add_keyed_consumer_of, partition, group, scene.clients.number()
                )
        scene.population.add_range_reader(partition)
        for people in scene.key_people:
            people.begin_on(partition)

    def _was_there(self, group: str) -> bool:
        """Whether the group had a cursor when the new partition began to belong to the topic."""
        coordinator = self._cluster.coordinator
        grown_at = coordinator.store.items[coordinator.keys.topic(TOPIC)].mod_revision
        found = (self._cursor(partition, group) for partition in self._setting.partitions)
        return any(item is not None and item.create_revision < grown_at for item in found)

    def _last_rebuild_ms(self) -> int:
        """When the coordinator was last rebuilt, in milliseconds since 1970 UTC; 0: never."""
        coordinator = self._cluster.coordinator
        item = coordinator.store.items.get(coordinator.keys.cluster_record)
        return records_pb2.ClusterRecord.FromString(item.value).rebuilt_at_ms if item is not None else 0

    def _cursor(self, partition: PartitionId, group: str) -> KeyValue | None:
        """The group's cursor on a partition, if it is not deleted."""
        coordinator = self._cluster.coordinator
        item = coordinator.store.items.get(coordinator.keys.cursor(partition, name_of(group)))
        return item if item is not None and not cursor_from_value(item.value).deleted else None
