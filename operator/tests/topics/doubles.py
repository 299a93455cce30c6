"""Brokers in memory, as the topic side of the operator sees them."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator

from google.protobuf.field_mask_pb2 import FieldMask
from seriatim_api.errors import (
    PreconditionError,
    SeriatimError,
    StaleOperatorError,
    TopicExistsError,
    UnavailableError,
    UnknownGroupError,
    UnknownTopicError,
)
from seriatim_api.v1 import broker_pb2, records_pb2


class MemoryBrokers:
    """Brokers of one cluster that keep topics and groups as real ones do, and report them on a stream."""

    def __init__(self) -> None:
        self.topics: dict[str, broker_pb2.TopicSummary] = {}
        self.groups: dict[tuple[str, str], list[broker_pb2.GroupPartition]] = {}
        self.keys: dict[tuple[str, str, int], list[broker_pb2.GroupKey]] = {}  # parked ones
        self.ignore_configure = False
        self.calls: list[str] = []
        self.refusal: SeriatimError | None = None
        self.are_silent = False
        self.losses: dict[str, str] = {"10.0.0.1:7100": ""}  # what each broker says that the coordinator has lost
        self.newer_epoch = 0
        self.watches = 0  # begun
        self.watchers = 0  # there now
        self.moves: list[bytes] = []  # ids of the rewinds that were carried out
        self.refuse_moves: SeriatimError | None = None
        self.describes = asyncio.Event()  # cleared: who asks for a group waits
        self.describes.set()
        self._ids = itertools.count(1)
        self._watchers: list[asyncio.Queue[broker_pb2.WatchTopicsResponse | None]] = []

    def _called(self, what: str) -> None:
        if self.are_silent:
            raise UnavailableError("no broker answers")
        self.calls.append(what)
        if self.refusal is not None:
            raise self.refusal

    # ---- what the operator calls ----

    async def create_topic(
        self, name: str, partition_count: int, settings: records_pb2.TopicSettings, incarnation: str
    ) -> records_pb2.TopicRecord:
        self._called(f"create {name} {partition_count}")
        known = self.topics.get(name)
        if known is not None:
            if known.topic.incarnation != incarnation:
                raise TopicExistsError(f"there is a topic {name!r} already", topic=name)
            return known.topic
        self.put(name, partition_count, settings, incarnation)
        return self.topics[name].topic

    async def update_topic(self, request: broker_pb2.UpdateTopicRequest) -> records_pb2.TopicRecord:
        self._called(f"update {request.name} {request.partition_count} {' '.join(request.settings_mask)}".strip())
        summary = self._meant(request.name, request.incarnation)
        mask = FieldMask(paths=request.settings_mask)
        mask.MergeMessage(request.settings, summary.topic.settings, replace_repeated_field=True)
        self._grow(summary, request.partition_count)
        self.tell(request.name)
        return summary.topic

    async def delete_topic(self, name: str, incarnation: str) -> None:
        self._called(f"delete {name}")
        self._meant(name, incarnation)
        self.drop(name)

    async def ask_for_losses(self) -> dict[str, str]:
        return {} if self.are_silent else dict(self.losses)

    async def watch_topics(self) -> AsyncIterator[broker_pb2.WatchTopicsResponse]:
        if self.are_silent:
            raise UnavailableError("no broker answers")
        if self.newer_epoch:
            raise StaleOperatorError("a newer operator was here", epoch=1, newest=self.newer_epoch)
        queue: asyncio.Queue[broker_pb2.WatchTopicsResponse | None] = asyncio.Queue()
        self._watchers.append(queue)
        self.watches += 1
        self.watchers += 1
        try:
            yield broker_pb2.WatchTopicsResponse(changed=list(self.topics.values()), is_whole=True)
            while (response := await queue.get()) is not None:
                yield response
        finally:
            self.watchers -= 1
        raise UnavailableError("the broker ended the watch")

    async def create_consumer_group(
        self, topic: str, group: str, at: broker_pb2.GroupTarget, settings: records_pb2.GroupSettings | None = None
    ) -> bool:
        self._called(f"create group {topic} {group} {_target(at)}")
        if topic not in self.topics:
            raise UnknownTopicError(f"there is no topic {topic!r}", topic=topic)
        is_new = (topic, group) not in self.groups
        if is_new:
            row = broker_pb2.GroupPartition(has_cursor=True)
            self.groups[topic, group] = [row]
            row.settings.mode = records_pb2.CONSUMER_MODE_EXCLUSIVE
            _configure(row.settings, settings or records_pb2.GroupSettings())
        return is_new

    async def configure_consumer_group(self, topic: str, group: str, settings: records_pb2.GroupSettings) -> None:
        names = ("mode", "retry") if settings.HasField("retry") else ("mode",)
        self._called(f"configure {topic} {group} {' '.join(name for name in names if getattr(settings, name))}")
        for row in () if self.ignore_configure else self.groups[topic, group]:
            is_consumed = row.active_consumer or row.consumers
            if settings.mode and settings.mode != row.settings.mode and is_consumed:
                raise PreconditionError("a consumer is connected: stop it first")
            _configure(row.settings, settings)

    async def parked_keys(self, topic: str, group: str, partition: int, limit: int) -> list[broker_pb2.GroupKey]:
        self._called(f"parked {topic} {group} {partition}")
        return self.keys.get((topic, group, partition), [])[:limit]

    async def move_consumer_group(self, topic: str, group: str, to: broker_pb2.GroupTarget, request_id: bytes) -> int:
        self._called(f"move group {topic} {group} {_target(to)}")
        if self.refuse_moves is not None:
            raise self.refuse_moves
        if request_id not in self.moves:
            self.moves.append(request_id)
        return len(self.groups[topic, group])

    async def hold_consumer_group(self, topic: str, group: str, *, paused: bool) -> None:
        self._called(f"{'pause' if paused else 'resume'} group {topic} {group}")
        for row in self.groups[topic, group]:
            row.paused = paused

    async def delete_consumer_group(self, topic: str, group: str) -> None:
        self._called(f"delete group {topic} {group}")
        if (topic, group) not in self.groups:
            raise UnknownGroupError(f"no group {group!r}", group=group)
        if any(partition.active_consumer for partition in self.groups[topic, group]):
            raise PreconditionError("a consumer is active")
        del self.groups[topic, group]

    async def describe_consumer_group(self, topic: str, group: str) -> list[broker_pb2.GroupPartition]:
        await self.describes.wait()
        if self.are_silent:
            raise UnavailableError("no broker answers")
        if topic not in self.topics:
            raise UnknownTopicError(f"there is no topic {topic!r}", topic=topic)
        if (topic, group) not in self.groups:
            raise UnknownGroupError(f"no group {group!r}", group=group)
        return self.groups[topic, group]

    # ---- what happens without the operator ----

    def put(
        self, name: str, partitions: int, settings: records_pb2.TopicSettings | None = None, incarnation: str = ""
    ) -> broker_pb2.TopicSummary:
        """Make a topic."""
        record = records_pb2.TopicRecord(
            name=name,
            incarnation=incarnation or f"{next(self._ids):032x}",
            state=records_pb2.TOPIC_STATE_READY,
            settings=settings or default_settings(),
        )
        summary = self.topics[name] = broker_pb2.TopicSummary(topic=record)
        self._grow(summary, partitions)
        self.tell(name)
        return summary

    def drop(self, name: str) -> None:
        """Delete a topic."""
        del self.topics[name]
        self._send(broker_pb2.WatchTopicsResponse(deleted=[name]))

    def switch(self, name: str, partition: int, group: str) -> None:
        """Open the partition's next segment elsewhere."""
        chain = self.topics[name].chains[partition]
        chain.epoch += 1
        chain.segment += 1
        chain.segment_count += 1
        chain.group, chain.master = group, f"{group}-0"
        self.tell(name)

    def tell(self, name: str) -> None:
        """Have the watchers notified of a topic as it is now."""
        self._send(broker_pb2.WatchTopicsResponse(changed=[self.topics[name]]))

    def silence(self, *, are_silent: bool) -> None:
        """End all streams and answer no call, or answer again."""
        self.are_silent = are_silent
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.put_nowait(None)

    def _send(self, response: broker_pb2.WatchTopicsResponse) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(copy.deepcopy(response))

    def _meant(self, name: str, incarnation: str) -> broker_pb2.TopicSummary:
        summary = self.topics.get(name)
        if summary is None:
            raise UnknownTopicError(f"there is no topic {name!r}", topic=name)
        if incarnation not in ("", summary.topic.incarnation):
            raise PreconditionError(f"topic {name!r} was deleted and recreated")
        return summary

    def _grow(self, summary: broker_pb2.TopicSummary, partitions: int) -> None:
        for number in range(len(summary.topic.partition_ids), partitions):
            id_ = next(self._ids)
            summary.topic.partition_ids.append(id_)
            group = f"g{number % 2}"
            summary.chains.append(
                broker_pb2.ChainSummary(
                    partition=number, partition_id=id_, epoch=1, group=group, master=f"{group}-0", segment_count=1
                )
            )


def default_settings() -> records_pb2.TopicSettings:
    """What an object without further words asks for."""
    return records_pb2.TopicSettings(
        flush=True,
        retention_ms=72 * 3_600_000,
        batch_size_bytes_max=1 << 20,
        message_size_bytes_max=1 << 20,
        chain_width=5,
    )


def _target(target: broker_pb2.GroupTarget) -> str:
    if target.HasField("position"):
        return broker_pb2.StartPosition.Name(target.position)
    return f"{target.time_ms}"


def _configure(there: records_pb2.GroupSettings, change: records_pb2.GroupSettings) -> None:
    if change.mode:
        there.mode, there.at_most_once = change.mode, change.at_most_once
    there.spread = change.spread or there.spread
    if change.HasField("retry"):
        there.retry.CopyFrom(change.retry)
    elif there.mode != records_pb2.CONSUMER_MODE_EXCLUSIVE and not there.HasField("retry"):
        there.retry.delays_ms.extend((1_000, 300_000))
    if there.mode == records_pb2.CONSUMER_MODE_EXCLUSIVE:
        there.ClearField("retry")
