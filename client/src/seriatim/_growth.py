"""Notices partitions that are added to a topic, so that a producer or consumer begins to use them.

It asks a broker every 2 s. The broker answers from memory, and the answer is small while nothing has changed. All that
watch the same topic in one client share their questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from seriatim_api.errors import SeriatimError, UnknownTopicError
from seriatim_api.v1 import broker_pb2, common_pb2

from seriatim._admin import topic_of
from seriatim._records import Topic
from seriatim._transport.unary import Caller

LOOK_S: Final = 2.0
"""Seconds between two questions. New partitions are in use within seconds, and each question is a small message."""

LOOK_DEADLINE_S: Final = 2.0

Grown = Callable[[Topic, Sequence[common_pb2.Route]], None]
"""A function that gets a topic with more partitions than before, and the routes of all of them."""


class Growth:
    """Watches one topic until it is closed.

    Args:
        caller: Asks any broker.
        topic: The topic as it is known now.
        grown: Called when the topic has more partitions.
        failed: Called with an unexpected exception, which ends the watch.
        gone: Called once when the topic was deleted. The argument is True if a new topic has its name. If `gone` is
            None, the watch goes on.
    """

    def __init__(
        self,
        caller: Caller,
        topic: Topic,
        grown: Grown,
        failed: Callable[[BaseException], Any],
        gone: Callable[[bool], None] | None = None,
    ) -> None:
        self._caller = caller
        self._topic = topic
        self._grown = grown
        self._failed = failed
        self._gone = gone
        self._task = asyncio.create_task(self._run(), name=f"growth of {topic.name}")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def stop(self) -> None:
        """End the watch."""
        self._task.cancel()

    async def close(self) -> None:
        """End the watch, and wait until its task has ended."""
        self.stop()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            request = broker_pb2.GetTopicRequest(
                topic=self._topic.name, known_partition_count=self._topic.partition_count
            )
            try:
                # The answer to another watch of this client counts, if it was asked for after this one began. Without
                # that limit: 1. A watch of topic t asks, and t has grown. 2. t is deleted and made again. 3. A watch
                # of the new t is given the answer about the old one, and takes its own topic for one that is gone.
                answer = await self._caller.topic(request, LOOK_DEADLINE_S, within_s=LOOK_S / 2)
            except UnknownTopicError:
                if self._gone is None:
                    continue
                self._gone(False)
                return
            except SeriatimError:
                continue  # ask again after LOOK_S; sends and reads notice by themselves that no broker answers
            if len(answer.routes) > self._topic.partition_count:
                self._look_at(topic_of(answer.topic), answer.routes)

    def _look_at(self, topic: Topic, routes: Sequence[common_pb2.Route]) -> None:
        """Report more partitions, or (if the incarnation differs) that a new topic has the name."""
        known = self._topic.partition_ids
        if topic.incarnation == self._topic.incarnation and topic.partition_ids[: len(known)] == known:
            self._topic = topic
            self._grown(topic, routes)
        elif self._gone is not None:
            self._gone(True)
