"""Routes: asks brokers where a producer's partitions accept messages.

A partition's core decides when to ask and what. A silent link is another reason to ask, and so is a producer that sends
nothing while no broker waits for news of its topic: nothing would tell it that the topic was deleted. This module gives
each question its task, its deadline and its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from seriatim_api.errors import SeriatimError, UnknownTopicError
from seriatim_api.ids import partition_name
from seriatim_api.v1 import broker_pb2, common_pb2

from seriatim._core.producer import Resolve, Route
from seriatim._runtime.logs import guarded
from seriatim._transport.append import AppendLink, AppendLinks
from seriatim._transport.unary import Caller
from seriatim._values.records import Topic
from seriatim._values.topics import is_same, told_topic

COMPLAINT_DEADLINE_S: Final = 2.0
"""Seconds for a complaint. A broker answers it when the chain has moved, or when this time is over."""

QUESTION_DEADLINE_S: Final = 1.0

EXISTS_S: Final = 0.8
"""Seconds between two questions of a producer that sends nothing, if its broker cannot wait for news, for example
because it is stopping. So it hears within a second that its topic is gone. The master answers from memory, but a
thousand idle producers take a processor of it."""

_log = guarded()


class Routed(Protocol):
    """A partition, as `Routes` sees it."""

    number: int
    partition_id: int

    @property
    def route(self) -> Route | None:
        """The route to its master; None: not known."""

    def resolved(self, route: Route | None) -> None:
        """The core's question was answered; None: no broker answered."""

    def route_known(self, route: Route) -> None:
        """A question about a silent link was answered."""

    def has_left(self, before: Route | None) -> bool:
        """Whether the partition is no longer at the master that the route names."""


class Routes:
    """Asks for the partitions of one producer, until `close` is called.

    Args:
        topic: The producer's topic.
        caller: Asks any broker.
        links: Keeps streams warm.
        gone: Called if the topic was deleted, or if a broker speaks another protocol.
        failed: Called with an unexpected exception of a question.
    """

    def __init__(
        self,
        topic: Topic,
        caller: Caller,
        links: AppendLinks,
        gone: Callable[[SeriatimError], None],
        failed: Callable[[BaseException], Any],
    ) -> None:
        self._of = topic
        self._topic = topic.name
        self._gone = gone
        self._failed = failed
        self._is_looking = False
        self._is_gone = False
        self._caller = caller
        self._links = links
        self._questions: set[asyncio.Task[None]] = set()
        self._suspected: set[Routed] = set()

    def resolve(self, partition: Routed, effect: Resolve) -> None:
        """Ask a core's question in the background. The partition gets the answer by `resolved`."""

        async def ask() -> None:
            partition.resolved(await self._ask(partition, effect))

        self._start(ask(), f"resolve {self._topic}/{partition.number}")

    def suspect(self, partition: Routed, link: AppendLink) -> None:
        """Ask about a partition of a silent link, one question at a time.

        If this partition has moved to another master, the link's other partitions ask too.
        """
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
            if route is None:
                return
            before = partition.route
            partition.route_known(route)
            if partition.has_left(before):
                for user in list(link.users):
                    user.link_is_silent(link)

        self._start(ask(), f"ask {self._topic}/{partition.number}")

    def watch(self, partition: Routed, is_untold: Callable[[], bool]) -> None:
        """Ask for a partition every `EXISTS_S` as long as nothing else would tell the producer that its topic is gone.

        Args:
            partition: One partition of the topic. All of them are deleted together.
            is_untold: Whether no broker waits for news of the topic, and nothing is under way that a master answers.
        """

        async def look() -> None:
            while not self._is_gone:
                await asyncio.sleep(EXISTS_S)
                if is_untold():
                    route = partition.route
                    question = Resolve(None, 0 if route is None else route.epoch, None)
                    await self._ask(partition, question, first=None if route is None else route.master_address)

        self._start(look(), f"whether {self._topic} exists")

    def refused(self, error: SeriatimError) -> None:
        """A broker speaks another protocol. No question helps."""
        self._is_gone = True
        self._gone(error)

    def learned(self, route: Route) -> None:
        """Keep a stream warm to the broker group that would be next. It only saves time later."""
        if route.next_addresses:
            self._caller.learn(route.next_addresses)
            try:
                self._links.warm(route.next_addresses[0])
            except Exception:
                _log.warning(
                    "the client could not keep a stream to %s warm; a failover to it may take longer",
                    route.next_addresses[0],
                    exc_info=True,
                )

    def stop(self) -> None:
        """Cancel all questions. No partition gets an answer any more."""
        for task in self._questions:
            task.cancel()

    async def close(self) -> None:
        """Cancel all questions, and wait until they have ended."""
        self.stop()
        await asyncio.gather(*self._questions, return_exceptions=True)

    def _start(self, question: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(question, name=name)
        self._questions.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._questions.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def _ask(
        self, partition: Routed, effect: Resolve, silent_segment: int | None = None, first: str | None = None
    ) -> Route | None:
        request = broker_pb2.ResolveProducerRequest(
            partition_id=partition.partition_id,
            known_epoch=effect.known_epoch,
            failed_segment=effect.failed_segment,
            silent_segment=silent_segment,
        )
        known = partition.route
        if first is None and known is not None and known.next_addresses:
            first = known.next_addresses[0]
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
        except UnknownTopicError:
            await self._look_whether_gone()
            return None
        except SeriatimError:
            return None  # the core asks again, after longer and longer pauses, until the delivery timeout
        except Exception:
            # A question changes nothing, so it can be asked again, whatever failed.
            _log.warning(
                "the client could not ask for the master of %s; it asks again",
                partition_name(self._topic, partition.number),
                exc_info=True,
            )
            return None
        return route_of(answer)

    async def _look_whether_gone(self) -> None:
        """A broker says that there is no such partition: ask for the topic by its name, one question at a time.

        Only its answer ends the producer, because one broker may not know of a new partition yet.
        """
        if self._is_looking:
            return
        self._is_looking = True
        try:
            request = broker_pb2.GetTopicRequest(topic=self._topic)
            answer = await self._caller.routing("GetTopic", request, QUESTION_DEADLINE_S)
        except UnknownTopicError:
            self._is_gone = True
            self._gone(deleted(self._topic))
        except SeriatimError:
            pass  # the core asks again
        else:
            if not is_same(self._of, told_topic(answer)):
                self._is_gone = True
                self._gone(deleted(self._topic, made_again=True))
        finally:
            self._is_looking = False


def deleted(topic: str, *, made_again: bool = False) -> UnknownTopicError:
    """The error with which the producer of a deleted topic ends. It does not continue in a new topic of the same name.

    Its messages were taken for the deleted topic, with that topic's partitions and order. The client can no longer
    learn the outcome of those that were sent. Only the application can say whether they belong into the new topic.
    """
    again = " and made again; this producer belongs to the deleted one" if made_again else ""
    remedy = "make a new producer" if made_again else "create the topic, and make a new producer, to send to it"
    return UnknownTopicError(
        f"topic {topic!r} was deleted{again}: messages that were not settled are failed, or unknown if they may have "
        f"been stored; {remedy}",
        topic=topic,
    )


def route_of(route: common_pb2.Route) -> Route:
    """The route as the core knows it, from the one that brokers send."""
    return Route(route.epoch, route.segment, route.master_broker, route.master_address, tuple(route.next_addresses))
