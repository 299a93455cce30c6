"""The calls to a cluster's brokers about topics and consumer groups, and a function to run several calls at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, Protocol

from seriatim_api.v1 import broker_pb2, records_pb2


class TopicBrokers(Protocol):
    """The client of one cluster's brokers: `cluster.brokers.Brokers`, or a test double."""

    async def create_topic(
        self, name: str, partition_count: int, settings: records_pb2.TopicSettings, incarnation: str
    ) -> records_pb2.TopicRecord:
        """Make a topic. A second call with the same incarnation makes no second topic."""

    async def update_topic(self, request: broker_pb2.UpdateTopicRequest) -> records_pb2.TopicRecord:
        """Add partitions or change settings, as the request says."""

    async def delete_topic(self, name: str, incarnation: str) -> None:
        """Delete the topic of that incarnation with its data."""

    async def ask_for_losses(self) -> dict[str, str]:
        """What each broker says that the coordinator has lost, by the broker's address; an empty text: nothing."""
        ...

    def watch_topics(self) -> AsyncIterator[broker_pb2.WatchTopicsResponse]:
        """Yield all topics, then each change."""

    async def create_consumer_group(
        self, topic: str, group: str, at: broker_pb2.GroupTarget, settings: records_pb2.GroupSettings | None
    ) -> bool:
        """Write a consumer group's cursors before a consumer joins. Returns False if the consumer group was there."""

    async def configure_consumer_group(self, topic: str, group: str, settings: records_pb2.GroupSettings) -> None:
        """Change the settings that are set, on all partitions."""

    async def parked_keys(self, topic: str, group: str, partition: int, limit: int) -> list[broker_pb2.GroupKey]:
        """The first parked keys of a partition."""

    async def move_consumer_group(self, topic: str, group: str, to: broker_pb2.GroupTarget, request_id: bytes) -> int:
        """Rewind or skip a consumer group on all its partitions, once for each id. Returns on how many."""
        ...

    async def hold_consumer_group(self, topic: str, group: str, *, paused: bool) -> None:
        """Pause a consumer group, or resume it."""
        ...

    async def delete_consumer_group(self, topic: str, group: str) -> None:
        """Delete the cursors of a consumer group that has no consumers."""

    async def describe_consumer_group(self, topic: str, group: str) -> list[broker_pb2.GroupPartition]:
        """The consumer group's places, one for each partition."""


async def run_all(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run the calls at once until all are done. Then raise the first error of a call, if there is one."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
