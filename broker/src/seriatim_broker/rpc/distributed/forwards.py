"""Carries batches of forwarders to the master of another partition: dead letters, replayed copies and resolutions.

The topic and the chain are read when they are needed, and not watched. The order of the batches of one producer is the
order in which they are given. Nothing is decided here about what is stored: the master's producer table does that.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from seriatim_api.batch import HEADER_SIZE_BYTES, BatchHeader, parse_header
from seriatim_api.errors import (
    DeadlineExceededError,
    NotServingError,
    OverloadedError,
    SeriatimError,
    UnknownTopicError,
)
from seriatim_api.ids import PartitionId
from seriatim_api.status import error_from_proto
from seriatim_api.v1 import dead_letters_pb2, records_pb2

from ...core.values import effects as fx
from ...core.values.events import AckLevel, Append, ForwardsDone, ResolveProducer
from ...runtime.driver.driver import Reply
from ..calls.limits import RETRY_AFTER_MS
from ..calls.outbound import BrokerCalls
from ..calls.services import Services, answered

FORWARD_DEADLINE_S: Final = 10.0
"""A request of a forwarder ends after this long. The forwarder sends it again, unless all of it is stored."""

CALL_DEADLINE_S: Final = 5.0
"""Time for one master's answer."""

COMPLAIN_S: Final = 1.0
"""If a master does not answer, the broker waits this long for the next one."""

PAUSE_S: Final = 0.05
"""Between two tries of one request."""

TOPIC_AGE_S: Final = 2.0
"""How old the known record of a topic may be. After a failure it is read again."""

TOPICS_KEPT: Final = 1000

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of batches: the offsets of the first ones, which are stored, and why the next one is not."""

    offsets: tuple[int, ...]
    error: SeriatimError | None = None


class Forwards:
    """Appends batches of forwarders to partitions, wherever their masters are."""

    def __init__(self, services: Services, calls: BrokerCalls) -> None:
        self._services = services
        self._calls = calls
        self._topics: dict[str, tuple[records_pb2.TopicRecord, float]] = {}
        self._routes: dict[PartitionId, fx.RouteInfo] = {}
        self._runs = itertools.count(1)

    # ---- for the core ----

    async def forward(self, effect: fx.ForwardBatches) -> ForwardsDone:
        """Dead letters of this broker's core. Raises nothing."""

        def make(partition: PartitionId) -> list[tuple[BatchHeader, bytes]]:
            checksum = self._services.checksum
            return [
                (parse_header(letter.header(partition, effect.producer, checksum)), letter.row.body)
                for letter in effect.letters
            ]

        try:
            stored = await self.append(effect.topic, effect.partition_number, make, FORWARD_DEADLINE_S)
        except SeriatimError as exc:
            stored = Stored((), exc)
        return ForwardsDone(effect.partition, effect.consumer_group, effect.serial, len(stored.offsets), stored.error)

    # ---- to any partition ----

    async def append(
        self,
        topic: str,
        number: int,
        make: Callable[[PartitionId], Sequence[tuple[BatchHeader, bytes]]],
        deadline_s: float,
    ) -> Stored:
        """Append batches to the partition with that number in a topic.

        Args:
            topic: The topic.
            number: The number of the partition.
            make: Makes the batches for a partition id. A topic that was made again has other ids.
            deadline_s: It tries until then.

        Raises:
            UnknownTopicError: There is no such topic, or it has fewer partitions.
        """
        until = time.monotonic() + deadline_s
        stored = Stored((), DeadlineExceededError("the partition did not take the batches in time"))
        is_fresh = False
        while True:
            # Rule `old-topic-refuses-nothing` (J4): only a record of the topic that was read for this call refuses
            # it. Without it:
            #   1. The dead-letter topic is deleted and made again, or gets more partitions.
            #   2. This broker remembers the topic for 2 s, and answers that there is no such partition.
            #   3. The keys of these dead letters wait until the forwarder tries again, up to 5 s later.
            partition = await self._partition(topic, number, is_fresh=is_fresh)
            batches = make(partition)
            left = max(until - time.monotonic(), 0.05)
            try:
                stored = await self._append_once(partition, batches, left)
            except SeriatimError as exc:
                stored = Stored((), exc)
            may_be_old = isinstance(stored.error, UnknownTopicError) and not is_fresh
            is_final = stored.error is None or not (stored.error.retriable or may_be_old)
            if stored.error is None or is_final or time.monotonic() + PAUSE_S >= until:
                return stored
            if stored.offsets:
                return stored  # the forwarder continues with the next one
            is_fresh = True
            self._routes.pop(partition, None)
            await asyncio.sleep(max(PAUSE_S, min(stored.error.retry_after_ms or 0, 500) / 1000))

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

    async def _append_once(
        self, partition: PartitionId, batches: Sequence[tuple[BatchHeader, bytes]], deadline_s: float
    ) -> Stored:
        route = self._routes.get(partition)
        if route is None:
            if len(self._routes) >= TOPICS_KEPT:
                self._routes.clear()
            route = self._routes[partition] = await self._route(partition, None, deadline_s)
        try:
            if route.master == self._services.identity.member.broker:
                return await self.append_here(partition, batches, min(deadline_s, CALL_DEADLINE_S))
            return await self._append_there(route.master, partition, batches, min(deadline_s, CALL_DEADLINE_S))
        except SeriatimError:
            self._routes.pop(partition, None)
            # The master is silent, or is none any more: have brokers look, as producers do.
            self._routes[partition] = await self._route(partition, route.segment_no, min(deadline_s, COMPLAIN_S))
            raise

    async def _route(self, partition: PartitionId, failed_segment: int | None, deadline_s: float) -> fx.RouteInfo:
        until_us = time.monotonic_ns() // 1000 + int(deadline_s * 0.9e6)
        asked = await self._services.ask_core(
            lambda request: ResolveProducer(request, partition, failed_segment, until_us), deadline_s
        )
        answer = answered(asked, fx.Resolved)
        if answer.route is None or not answer.route.master:
            raise NotServingError(f"partition id {partition} has no master at the moment", retry_after_ms=50)
        return answer.route

    async def _append_there(
        self, broker: str, partition: PartitionId, batches: Sequence[tuple[BatchHeader, bytes]], deadline_s: float
    ) -> Stored:
        request = dead_letters_pb2.AppendForwardedRequest(
            partition_id=partition,
            headers=b"".join(header.raw for header, _ in batches),
            bodies=[body for _, body in batches],
        )
        answer: dead_letters_pb2.AppendForwardedResponse = await self._calls.dead_letters(
            broker, "AppendForwarded", request, deadline_s
        )
        error = error_from_proto(answer.error) if answer.HasField("error") else None
        return Stored(tuple(answer.offsets), error)

    # ---- as the master ----

    async def append_here(
        self, partition: PartitionId, batches: Sequence[tuple[BatchHeader, bytes]], deadline_s: float
    ) -> Stored:
        """Append batches to a partition whose open segment this broker masters.

        Rule `forwards-stop` (J4): after a refusal nothing more of the request is appended. Without it:
          1. The dead letters 1 and 2 come in one request. 1 is large, and the partition has no room for it.
          2. The master appends 2, which is small.
          3. 1 comes again. The master finds 2 of the same producer, so it answers that 1 is stored.
        Batches of one producer are one producer run, which ends with a refusal. Others go one after another.

        Raises:
            OverloadedError: The disk is behind with its writes.
            UnreadableBodyError, BatchMismatchError: A body cannot be read.
        """
        services = self._services
        if services.storage.is_saturated or services.is_stopping:
            raise OverloadedError("the disk is behind with its writes", retry_after_ms=RETRY_AFTER_MS)
        for header, body in batches:  # rule `only-readable`, see `streams.append`: none of the request is stored
            services.bodies.check(body, header.message_count, header.flags)
        run = next(self._runs)
        until = time.monotonic() + deadline_s
        is_one_producer = len({header.producer for header, _ in batches}) == 1
        offsets: list[int] = []
        waits: list[asyncio.Future[Reply]] = []
        size = sum(HEADER_SIZE_BYTES + len(body) for _, body in batches)
        services.in_flight_bytes += size
        requests: list[int] = []
        try:
            for at, (header, body) in enumerate(batches):
                wait = asyncio.get_running_loop().create_future()
                size_bytes = HEADER_SIZE_BYTES + len(body)
                request = services.driver.new_request(partial(self._answered, wait, partition, size_bytes))
                requests.append(request)
                waits.append(wait)
                services.driver.feed(
                    Append(
                        request, partition, header, body, run, at == 0 or not is_one_producer,
                        AckLevel.REPLICATED_FLUSHED, is_forward=True,
                    )
                )  # fmt: skip
                if not is_one_producer and (error := await _offset(wait, until, offsets)) is not None:
                    return Stored(tuple(offsets), error)
            for wait in waits if is_one_producer else ():
                if (error := await _offset(wait, until, offsets)) is not None:
                    return Stored(tuple(offsets), error)
            return Stored(tuple(offsets))
        finally:
            services.in_flight_bytes -= size
            for request in requests:
                services.driver.forget_request(request)

    def _answered(self, wait: asyncio.Future[Reply], partition: PartitionId, size_bytes: int, reply: Reply) -> None:
        if isinstance(reply, fx.AppendAccepted):
            self._services.traffic.add(partition, size_bytes)
        if not wait.done():
            wait.set_result(reply)


async def _offset(wait: asyncio.Future[Reply], until: float, offsets: list[int]) -> SeriatimError | None:
    """Wait for the reply to one batch. Adds its offset, or returns why it is not known to be stored."""
    try:
        async with asyncio.timeout(max(until - time.monotonic(), 0.01)):
            reply = await wait
    except TimeoutError:
        return DeadlineExceededError("the members of the segment did not have the batch in time")
    if isinstance(reply, fx.AppendRefused):
        return reply.error
    assert isinstance(reply, fx.AppendAccepted)
    offsets.append(reply.offset)
    return None
