"""Appends batches of brokers' own producers to partitions, wherever their masters are.

A master is looked up when it is needed, and not watched. The order of the batches of one producer is the order in which
they are given. Nothing is decided here about what is stored: the master's producer table does that.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from seriatim_api import errors
from seriatim_api.batch import FLAG_CONTROL, HEADER_SIZE_BYTES, BatchHeader
from seriatim_api.ids import PartitionId
from seriatim_api.status import error_from_proto
from seriatim_api.v1 import dead_letters_pb2

from ...core.values import effects as fx
from ...core.values.events import AckLevel, Append, ResolveProducer
from ...runtime.driver.driver import Reply
from ..calls.limits import RETRY_AFTER_MS
from ..calls.outbound import BrokerCalls
from ..calls.services import Services, answered

CALL_DEADLINE_S: Final = 5.0
"""Time for one master's answer."""

COMPLAIN_S: Final = 1.0
"""If a master does not answer, the broker waits this long for the next one."""

PAUSE_S: Final = 0.05
"""Between two tries of one request, if the master does not say when to send it again."""

PAUSE_S_MIN: Final = 0.01
PAUSE_S_MAX: Final = 0.5
"""Limits for what masters say."""

ROUTES_KEPT: Final = 1000

Batches: TypeAlias = Sequence[tuple[BatchHeader, bytes]]


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of batches: the offsets of the first ones, which are stored, and why the next one is not."""

    offsets: tuple[int, ...]
    error: errors.SeriatimError | None = None


class MasterAppends:
    """Appends to the open segments of partitions."""

    def __init__(self, services: Services, calls: BrokerCalls) -> None:
        self._services = services
        self._calls = calls
        self._routes: dict[PartitionId, fx.RouteInfo] = {}
        self._runs = itertools.count(1)

    async def append(self, find: Callable[[bool], Awaitable[tuple[PartitionId, Batches]]], deadline_s: float) -> Stored:
        """Append batches of one partition.

        Args:
            find: Finds the partition, and makes the batches for it. It is called before each try. True: nothing that it
                remembers counts, because it may be old.
            deadline_s: It tries until then, or until some are stored. The caller continues with the next one.

        Raises:
            SeriatimError: `find` raised it.
        """
        until = time.monotonic() + deadline_s
        is_fresh = False
        while True:
            partition, batches = await find(is_fresh)
            try:
                stored = await self._append_once(partition, batches, max(until - time.monotonic(), 0.05))
            except errors.SeriatimError as exc:
                stored = Stored((), exc)
            error = stored.error
            if error is None or stored.offsets or time.monotonic() + PAUSE_S >= until:
                return stored
            if not (error.retriable or (isinstance(error, errors.UnknownTopicError) and not is_fresh)):
                return stored
            is_fresh = True
            self._routes.pop(partition, None)
            pause_s = PAUSE_S if error.retry_after_ms is None else min(error.retry_after_ms / 1000, PAUSE_S_MAX)
            await asyncio.sleep(max(pause_s, PAUSE_S_MIN))

    async def _append_once(self, partition: PartitionId, batches: Batches, deadline_s: float) -> Stored:
        route = self._routes.get(partition)
        if route is None:
            if len(self._routes) >= ROUTES_KEPT:
                self._routes.clear()
            route = self._routes[partition] = await self._route(partition, None, deadline_s)
        try:
            if route.master == self._services.identity.member.broker:
                return await self.append_here(partition, batches, min(deadline_s, CALL_DEADLINE_S))
            return await self._append_there(route.master, partition, batches, min(deadline_s, CALL_DEADLINE_S))
        except errors.SeriatimError:
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
            raise errors.NotServingError(f"partition id {partition} has no master at the moment", retry_after_ms=50)
        return answer.route

    async def _append_there(self, broker: str, partition: PartitionId, batches: Batches, deadline_s: float) -> Stored:
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

    async def append_here(self, partition: PartitionId, batches: Batches, deadline_s: float) -> Stored:
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
            raise errors.OverloadedError("the disk is behind with its writes", retry_after_ms=RETRY_AFTER_MS)
        for header, body in batches:  # rule `only-readable`, see `streams.append`: none of the request is stored
            if header.flags & FLAG_CONTROL:
                continue
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


async def _offset(wait: asyncio.Future[Reply], until: float, offsets: list[int]) -> errors.SeriatimError | None:
    """Wait for the reply to one batch. Adds its offset, or returns why it is not known to be stored."""
    try:
        async with asyncio.timeout(max(until - time.monotonic(), 0.01)):
            reply = await wait
    except TimeoutError:
        return errors.DeadlineExceededError("the members of the segment did not have the batch in time")
    if isinstance(reply, fx.AppendRefused):
        return reply.error
    assert isinstance(reply, fx.AppendAccepted)
    offsets.append(reply.offset)
    return None
