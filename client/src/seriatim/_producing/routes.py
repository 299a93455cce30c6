"""Routes: asking brokers where a producer's partitions accept.

What to ask, and when, is decided by the partitions' cores, or found out from a link that has gone silent; here a
question gets its task, its deadline and its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from seriatim_api.errors import SeriatimError
from seriatim_api.v1 import broker_pb2, common_pb2

from seriatim._core.producer import Resolve, Route
from seriatim._transport.append import AppendLink
from seriatim._transport.channels import Channels
from seriatim._transport.unary import Caller

COMPLAINT_DEADLINE_S: Final = 2.0
"""A broker answers a complaint when the chain has moved, or then."""

QUESTION_DEADLINE_S: Final = 1.0


class Routed(Protocol):
    """A partition, as those see it who look for its master."""

    number: int
    partition_id: int

    @property
    def route(self) -> Route | None:
        """Where it is, as far as is known."""

    def resolved(self, route: Route | None) -> None:
        """The core's question was answered, or not."""

    def route_known(self, route: Route) -> bool:
        """A route that was asked for out of suspicion; whether the partition has left its master."""


class Routes:
    """Asks for the partitions of one producer; see `close`."""

    def __init__(self, topic: str, caller: Caller, channels: Channels) -> None:
        self._topic = topic
        self._caller = caller
        self._channels = channels
        self._questions: set[asyncio.Task[None]] = set()
        self._suspected: set[Routed] = set()

    def resolve(self, partition: Routed, effect: Resolve) -> None:
        """Answer a core's question."""

        async def ask() -> None:
            partition.resolved(await self._ask(partition, effect))

        self._start(ask(), f"resolve {self._topic}/{partition.number}")

    def suspect(self, partition: Routed, link: AppendLink) -> None:
        """A link is silent: ask, once at a time, and if this partition has left, ask for the link's others as well."""
        known = partition.route
        if partition in self._suspected or known is None:
            return
        self._suspected.add(partition)

        async def ask() -> None:
            question = Resolve(None, known.epoch, link.address)
            try:
                route = await self._ask(partition, question, silent_segment=known.segment)
            finally:
                self._suspected.discard(partition)
            if route is not None and partition.route_known(route):
                for user in list(link.users):
                    user.link_is_silent(link)

        self._start(ask(), f"ask {self._topic}/{partition.number}")

    def learned(self, route: Route) -> None:
        """Keep a connection warm to the group that would be next."""
        if route.next_addresses:
            self._caller.learn(route.next_addresses)
            self._channels.warm(route.next_addresses[0])

    async def close(self) -> None:
        """End all questions; none is answered any more."""
        for task in self._questions:
            task.cancel()
        await asyncio.gather(*self._questions, return_exceptions=True)

    def _start(self, question: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(question, name=name)
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def _ask(self, partition: Routed, effect: Resolve, silent_segment: int | None = None) -> Route | None:
        request = broker_pb2.ResolveProducerRequest(
            partition_id=partition.partition_id,
            known_epoch=effect.known_epoch,
            failed_segment=effect.failed_segment,
            silent_segment=silent_segment,
        )
        known = partition.route
        first = known.next_addresses[0] if known is not None and known.next_addresses else None
        is_complaint = effect.failed_segment is not None
        try:
            answer = await self._caller.routing(
                "ResolveProducer",
                request,
                COMPLAINT_DEADLINE_S if is_complaint else QUESTION_DEADLINE_S,
                first=first,
                avoid=effect.avoid_address,
                is_complaint=is_complaint,
            )
        except SeriatimError:
            return None  # the core asks again, less and less often, until the delivery timeout
        return route_of(answer)


def route_of(route: common_pb2.Route) -> Route:
    """A route as the core knows it."""
    return Route(route.epoch, route.segment, route.master_broker, route.master_address, tuple(route.next_addresses))
