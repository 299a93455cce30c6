"""A topic is deleted and made again under its name, while producers and consumers of the old one continue.

The controller does it with the production code. If it dies in between, the simulation asks its successor again, as an
administrator would. The partitions of the new topic have other numbers, so each message belongs to one of the two
topics. Producers and consumers look the topic up by its name from time to time, as the client does. When the topic is
gone they end, and the application makes others for the new topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from seriatim_api.errors import SeriatimError
from seriatim_api.ids import PartitionId, TopicIncarnation
from seriatim_api.v1 import records_pb2

from .brokers import Home, RuntimeProcess

TOPIC = "topic"
TOPIC_DEADLINE_S = 5.0
STEP_US = 20_000
FORGOTTEN_US = 3_000_000
"""This long after all is healed and drained, nothing of a deleted topic is left."""


class TopicMaker:
    """Deletes the topic of a world and makes it again."""

    def __init__(self, cluster: Home) -> None:
        self.is_busy = False
        self.count = 0
        self._cluster = cluster
        self._schedule = cluster.schedule
        self._setting = cluster.setting
        self._asked: tuple[RuntimeProcess, asyncio.Task[None]] | None = None

    @property
    def wanted(self) -> TopicIncarnation:
        """The incarnation that there should be."""
        return TopicIncarnation(f"{self.count:032x}")

    def remake(self) -> None:
        """Begin, unless it is being done."""
        if self.is_busy:
            return
        self.is_busy = True
        self.count += 1
        self._step()

    def record(self) -> records_pb2.TopicRecord | None:
        """The topic record in the coordinator."""
        coordinator = self._cluster.coordinator
        item = coordinator.store.items.get(coordinator.keys.topic(TOPIC))
        return records_pb2.TopicRecord.FromString(item.value) if item is not None else None

    def is_gone(self, partition: PartitionId) -> bool:
        """Whether the topic to which a partition belonged is not there any more."""
        record = self.record()
        if record is None or record.state == records_pb2.TOPIC_STATE_DELETING:
            return True
        return partition not in record.partition_ids and record.state == records_pb2.TOPIC_STATE_READY

    def _step(self) -> None:
        scene = self._cluster.scene
        record = self.record()
        if record and record.incarnation == self.wanted and record.state == records_pb2.TOPIC_STATE_READY:
            self.is_busy = False
            self._schedule.tell("world", f"topic made again: {list(record.partition_ids)}")
            scene.judge.seen.states.add("topic made again")
            self._cluster.topic_made([PartitionId(partition) for partition in record.partition_ids])
            return
        controller = self._cluster.controller()
        if controller is not None and not self._is_asked(controller):
            controller.loop.call_soon(self._ask, controller)
        self._schedule.after(STEP_US, self._step)

    def _is_asked(self, controller: RuntimeProcess) -> bool:
        return self._asked is not None and self._asked[0] is controller and not self._asked[1].done()

    def _ask(self, controller: RuntimeProcess) -> None:
        if not self._is_asked(controller):
            self._asked = (
                controller,
                controller.loop.create_task(self._carry_out(controller, self.wanted), name="topic"),
            )

    async def _carry_out(self, controller: RuntimeProcess, wanted: TopicIncarnation) -> None:
        runtime = controller.simulated.runtime
        assert runtime is not None
        topics, options = runtime.controller.topics, self._setting.options
        settings = records_pb2.TopicSettings(flush=options.flush, chain_width=options.group_count)
        try:
            record = self.record()
            if record is not None and record.incarnation != wanted:
                await topics.delete(TOPIC, incarnation=record.incarnation)
            if wanted == self.wanted:
                await topics.create(TOPIC, options.partition_count, settings, TOPIC_DEADLINE_S, wanted)
        except SeriatimError as exc:
            self._schedule.tell("world", f"topic not made again: {exc!r}")

    # ---- what clients ask ---------------------------------------------------------------------------

    def look(self, partition: PartitionId, gone: Callable[[], None]) -> None:
        """Ask any broker for the topic by its name; `gone` is called if it is not the one with this partition."""
        scene = self._cluster.scene
        name = self._schedule.rng.choice(sorted(self._cluster.brokers))
        self._schedule.after(scene.cluster.network.latency_us(), self._answer, name, partition, gone)

    def _answer(self, name: str, partition: PartitionId, gone: Callable[[], None]) -> None:
        scene = self._cluster.scene
        process = self._cluster.brokers[name].process
        is_away = process is None or not process.is_serving or process.frozen or scene.clients.cut.get(name)
        if is_away or self._cluster.coordinator.is_down or self._cluster.coordinator.isolated.get(name):
            return
        if self.is_gone(partition):
            self._schedule.after(scene.cluster.network.latency_us(), gone)

    # ---- the end ------------------------------------------------------------------------------------

    def check(self) -> None:
        """GONE: nothing waits for a deleted topic, and no broker has a message of it in a log.

        Not judged: a broker that has dropped a partition may be asked to prepare a segment of it, and keeps that until
        it reads the coordinator.
        """
        scene, judge = self._cluster.scene, self._cluster.scene.judge
        for broker in self._cluster.brokers.values():
            images = broker.disk.durable.partitions
            for partition in sorted(judge.seen.gone & images.keys()):
                if any(segment.tail for segment in images[partition].segments.values()):
                    judge.fail("GONE", f"{broker.name} keeps messages of {partition}, whose topic was deleted")
            if broker.process is not None and broker.process.watched is not None:
                broker.process.watched.check_answered(judge.seen.gone)
        for follower in scene.population.consumers:
            if follower.alive and follower.partition in judge.seen.gone:
                judge.fail("GONE", f"{follower.name} follows partition {follower.partition}, whose topic was deleted")
        judge.final_of_gone()
