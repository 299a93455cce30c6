"""What is asked of a cluster's brokers about topics and consumer groups, and how several calls run side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, Protocol

from seriatim_api.v1 import broker_pb2, records_pb2


class TopicBrokers(Protocol):
    """The brokers of one cluster: `cluster.brokers.Brokers`, or a test double."""

    async def create_topic(
        self, name: str, partition_count: int, settings: records_pb2.TopicSettings, incarnation: str
    ) -> records_pb2.TopicRecord:
        """Make a topic; the same incarnation again makes it once."""

    async def update_topic(self, request: broker_pb2.UpdateTopicRequest) -> records_pb2.TopicRecord:
        """Add partitions, or change settings."""

    async def delete_topic(self, name: str, incarnation: str) -> None:
        """Delete that topic with its data."""

    def watch_topics(self) -> AsyncIterator[broker_pb2.WatchTopicsResponse]:
        """All topics, then each change."""

    async def create_consumer_group(self, topic: str, group: str, at: broker_pb2.GroupTarget) -> bool:
        """Write a group's cursors before anybody joins; False if it was there."""

    async def move_consumer_group(self, topic: str, group: str, to: broker_pb2.GroupTarget, request_id: bytes) -> int:
        """Rewind or skip a group on all its partitions, once for each id; returns how many these are."""
        ...

    async def hold_consumer_group(self, topic: str, group: str, *, paused: bool) -> None:
        """Pause a group, or resume it."""
        ...

    async def delete_consumer_group(self, topic: str, group: str) -> None:
        """Forget a group that nobody is in."""

    async def describe_consumer_group(self, topic: str, group: str) -> list[broker_pb2.GroupPartition]:
        """Where a consumer group is, by partition."""


async def run_all(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run them side by side until all are done; then raise the first failure, if there is one."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
