"""Where to append and where to consume. Any broker answers, from the coordinator and from its core."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from seriatim_api.errors import UnknownTopicError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc, common_pb2, records_pb2

from ...core.values.effects import ConsumerResolved, Resolved
from ...core.values.events import ResolveConsumer, ResolveProducer
from ...core.values.keyed import ConsumerMode
from ...interfaces.same_names import fill
from ...runtime.coordinator.topic_changes import Known, TopicChanges
from ..calls.addresses import Addresses
from ..calls.services import Services, answered, check_group, deadline_us, ends_s, remaining_s, typed_errors, way_s
from ..streams.consume import consumer_mode, start_position

_STATES = {
    "open": records_pb2.SEGMENT_STATE_OPEN,
    "sealed": records_pb2.SEGMENT_STATE_SEALED,
    "unsettled": records_pb2.SEGMENT_STATE_UNSETTLED,
    "lost": records_pb2.SEGMENT_STATE_LOST,
}

COUNT_AGE_S = 1.0
"""How old the partition count of a topic may be if a client only asks whether the topic has grown."""

COUNTS_KEPT = 10_000

ANSWER_S = 0.5
"""Seconds before its deadline at which a call that waits is answered, if the caller did not say how long the answer is
on its way."""


class RoutingServicer(broker_pb2_grpc.RoutingServicer):
    """Serves `seriatim.v1.Routing`.

    Args:
        services: The broker.
        addresses: What clients of this port learn about where brokers are.
        news: Shows that a topic has changed.
        stream_port: Where these clients reach this broker's port for streams over TCP; 0: it has none for them.
    """

    def __init__(self, services: Services, addresses: Addresses, news: TopicChanges, stream_port: int = 0) -> None:
        self._stream_port = stream_port
        self._services = services
        self._addresses = addresses
        self._news = news
        self._counts: dict[str, tuple[int, float]] = {}  # partitions of topics, and when that was read
        self._shared: dict[Hashable, asyncio.Task[Any]] = {}  # what is read in the next turn of the loop

    @typed_errors
    async def GetTopic(  # noqa: N802 - the contract's name
        self, request: broker_pb2.GetTopicRequest, context: Any
    ) -> broker_pb2.GetTopicResponse:
        """A topic with the routes of all its partitions, by number. With `wait_ms`, it waits until there is news."""
        services = self._services
        if request.wait_ms and request.known_incarnation:
            known = Known(request.known_incarnation, request.known_partition_count)
            wait_s = min(request.wait_ms / 1000, remaining_s(context) - (0.0 if way_s(context) else ANSWER_S))
            if wait_s > 0 and await self._news.unchanged(request.topic, known, wait_s):
                # A client that only waits learns here of brokers that were added, before those that it knows are gone.
                return broker_pb2.GetTopicResponse(waited=True, brokers=self._addresses.all())
            if services.is_stopping:
                # A stop wakes thousands of calls. Each would read the coordinator, in the time that the stop leaves.
                return broker_pb2.GetTopicResponse()
        elif request.known_partition_count and await self._has_not_grown(request):
            return broker_pb2.GetTopicResponse()
        topic: records_pb2.TopicRecord = await self._share(request.topic, lambda: services.topic(request.topic))
        found = Known(topic.incarnation, len(topic.partition_ids))
        if request.wait_ms and found == Known(request.known_incarnation, request.known_partition_count):
            return broker_pb2.GetTopicResponse()  # this broker could not wait, for example because it has just begun
        answer: broker_pb2.GetTopicResponse = await self._share((request.topic, found), lambda: self._whole(topic))
        return answer

    async def GetStreamPort(  # noqa: N802 - the contract's name
        self, request: broker_pb2.GetStreamPortRequest, context: Any
    ) -> broker_pb2.GetStreamPortResponse:
        """Where this broker takes streams over TCP."""
        identity = self._services.identity
        return broker_pb2.GetStreamPortResponse(
            port=self._stream_port, broker=identity.member.broker, cluster_id=identity.cluster_id
        )

    async def _share(self, key: Hashable, read: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Read, together with all calls that want the same in this turn of the loop. A later call reads again.

        Without it: 1. 1,000 clients wait for news of a topic with 64 partitions. 2. The topic grows, and wakes them. 3.
        This broker makes the same answer 1,000 times, and for seconds it does nothing else: it seems to be dead.

        If a call is cancelled, the read continues for the others.
        """
        task = self._shared.get(key)
        if task is None or task.done():

            async def begin() -> Any:
                del self._shared[key]
                return await read()

            task = self._shared[key] = asyncio.create_task(begin(), name=f"read {key}")
        return await asyncio.shield(task)

    async def _whole(self, topic: records_pb2.TopicRecord) -> broker_pb2.GetTopicResponse:
        """A topic with all its routes.

        Raises:
            UnknownTopicError: It is being deleted.
        """
        chains = await self._services.chains(topic.partition_ids)
        if len(chains) != len(topic.partition_ids):
            raise UnknownTopicError(f"topic {topic.name!r} is being deleted", topic=topic.name)
        return broker_pb2.GetTopicResponse(
            topic=topic,
            routes=[self._addresses.route_of(chain) for chain in chains],
            brokers=self._addresses.all(),
            cluster_id=self._services.identity.cluster_id,
        )

    async def _has_not_grown(self, request: broker_pb2.GetTopicRequest) -> bool:
        """Whether the topic has not grown. Every client asks every 2 s: one read a second for each topic is enough."""
        now_s = time.monotonic()
        count, read_s = self._counts.get(request.topic, (0, 0.0))
        if now_s - read_s > COUNT_AGE_S:
            count, read_s = len((await self._services.topic(request.topic)).partition_ids), now_s
            if len(self._counts) >= COUNTS_KEPT:
                self._counts.clear()
            self._counts[request.topic] = count, read_s
        return count <= request.known_partition_count

    @typed_errors
    async def ResolveProducer(  # noqa: N802
        self, request: broker_pb2.ResolveProducerRequest, context: Any
    ) -> common_pb2.Route:
        """Where to append. After a complaint the answer waits until the chain has moved on, or until the deadline."""
        failed = request.failed_segment if request.HasField("failed_segment") else None
        silent = request.silent_segment if request.HasField("silent_segment") else None
        until_us = deadline_us(context)
        asked = await self._services.ask_core(
            lambda number: ResolveProducer(number, PartitionId(request.partition_id), failed, until_us, silent),
            ends_s(context),
        )
        reply = answered(asked, Resolved)
        assert reply.route is not None
        return self._addresses.route(reply.route)

    @typed_errors
    async def ResolveConsumer(  # noqa: N802
        self, request: broker_pb2.ResolveConsumerRequest, context: Any
    ) -> broker_pb2.ResolveConsumerResponse:
        """The server of the consumer group's cursor segment."""
        failed = request.failed_server_epoch if request.HasField("failed_server_epoch") else None
        until_us = deadline_us(context)
        mode = consumer_mode(request.mode)
        check_group(request.group, is_broadcast=mode is ConsumerMode.BROADCAST)
        start = start_position(request.start, mode)
        asked = await self._services.ask_core(
            lambda number: ResolveConsumer(
                number, PartitionId(request.partition_id), request.group, failed, start, until_us, mode
            ),
            ends_s(context),
        )
        reply = answered(asked, ConsumerResolved)
        return fill(
            broker_pb2.ResolveConsumerResponse(),
            reply,
            partition_id=reply.partition,
            segment=reply.segment_no,
            server_broker=reply.server,
            server_address=self._addresses.of(reply.server),
            state=_STATES.get(reply.state, records_pb2.SEGMENT_STATE_UNSPECIFIED),
        )
