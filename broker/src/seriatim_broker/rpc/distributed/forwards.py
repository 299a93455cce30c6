"""Carries dead letters, replayed copies and resolutions to the partition with a number in a topic, and delayed messages
to the open segment of their partition.

The topic is read when it is needed, and not watched. `master_appends` finds the master.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from seriatim_api.batch import FLAG_DELAYED, FLAG_FIRED, parse_header
from seriatim_api.errors import SeriatimError, UnknownTopicError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import records_pb2

from ...core.values import effects as fx
from ...core.values.delayed_messages import FireVolleys, VolleysStored
from ...core.values.events import ForwardsDone
from ..calls.services import Services
from .master_appends import Batches, MasterAppends, Stored

FORWARD_DEADLINE_S: Final = 10.0
"""A request of a forwarder ends after this long. The forwarder sends it again, unless all of it is stored."""

FIRE_DEADLINE_S: Final = 2.0
"""A request with delayed messages ends after this long. They are sent again, unless all of it is stored."""

TOPIC_AGE_S: Final = 2.0
"""How old the known record of a topic may be. After a failure it is read again."""

TOPICS_KEPT: Final = 1000


class Forwards:
    """Appends to partitions of topics. `masters` appends to partitions that are known."""

    def __init__(self, services: Services, masters: MasterAppends) -> None:
        self._services = services
        self.masters = masters
        self._topics: dict[str, tuple[records_pb2.TopicRecord, float]] = {}

    async def forward(self, effect: fx.ForwardBatches) -> ForwardsDone:
        """Dead letters of this broker's core. Raises nothing."""

        def make(partition: PartitionId) -> Batches:
            checksum = self._services.checksum
            return [
                (parse_header(letter.header(partition, effect.producer, checksum)), letter.row.body)
                for letter in effect.letters
            ]

        stored = await self.append(effect.topic, effect.partition_number, make, FORWARD_DEADLINE_S)
        return ForwardsDone(effect.partition, effect.consumer_group, effect.serial, len(stored.offsets), stored.error)

    async def fire(self, effect: FireVolleys) -> VolleysStored:
        """Delayed messages of this broker's core that are due. Raises nothing."""
        batches = [(parse_header(header), body) for header, body in effect.batches]

        async def find(_is_fresh: bool) -> tuple[PartitionId, Batches]:
            return effect.partition, batches

        stored = await self._append(find, FIRE_DEADLINE_S)
        now_ms = time.time() * 1000
        for header, _ in batches[: len(stored.offsets)]:
            if header.flags & FLAG_FIRED:
                late_s = max(now_ms - header.due_time_ms, 0) / 1000
                self._services.counters.delayed_late_s.observe(late_s, header.message_count)
            elif header.flags & FLAG_DELAYED:
                self._services.counters.delayed_moved += header.message_count
        return VolleysStored(effect.partition, effect.segment_no, effect.serial, len(stored.offsets), stored.error)

    async def append(
        self, topic: str, number: int, make: Callable[[PartitionId], Batches], deadline_s: float
    ) -> Stored:
        """Append batches to the partition with that number in a topic. Raises nothing.

        Args:
            topic: The topic.
            number: The number of the partition.
            make: Makes the batches for a partition id. A topic that was made again has other ids.
            deadline_s: It tries until then.
        """

        async def find(is_fresh: bool) -> tuple[PartitionId, Batches]:
            # Rule `old-topic-refuses-nothing` (J4): only a record of the topic that was read for this call refuses
            # it. Without it:
            #   1. The dead-letter topic is deleted and made again, or gets more partitions.
            #   2. This broker remembers the topic for 2 s, and answers that there is no such partition.
            #   3. The keys of these dead letters wait until the forwarder tries again, up to 5 s later.
            partition = await self._partition(topic, number, is_fresh=is_fresh)
            return partition, make(partition)

        return await self._append(find, deadline_s)

    async def _append(
        self, find: Callable[[bool], Awaitable[tuple[PartitionId, Batches]]], deadline_s: float
    ) -> Stored:
        try:
            return await self.masters.append(find, deadline_s)
        except SeriatimError as exc:
            return Stored((), exc)

    async def _partition(self, topic: str, number: int, *, is_fresh: bool) -> PartitionId:
        known = self._topics.get(topic)
        is_missing = known is None or number >= len(known[0].partition_ids)
        if known is None or is_fresh or is_missing or time.monotonic() - known[1] > TOPIC_AGE_S:
            if len(self._topics) >= TOPICS_KEPT:
                self._topics.clear()
            self._topics.pop(topic, None)
            known = self._topics[topic] = await self._services.topic(topic), time.monotonic()
        ids = known[0].partition_ids
        if number >= len(ids):
            raise UnknownTopicError(
                f"topic {topic!r} has {len(ids)} partitions, and none with the number {number}: give it as many as the "
                "topic of the consumer group has",
                topic=topic,
            )
        return PartitionId(ids[number])
