"""Partitions that are added to a topic: a producer or consumer looks now and then, and begins to use them.

The brokers answer such a question from what they read a moment ago, and say nothing more as long as nothing changed.
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
"""Between two looks: new partitions are in use within seconds, at a small message a look."""

LOOK_DEADLINE_S: Final = 2.0

Grown = Callable[[Topic, Sequence[common_pb2.Route]], None]
"""Told of a topic that has more partitions than before, with the routes of all of them."""


class Growth:
    """Looks after one topic until it is closed.

    Args:
        caller: Asks any broker.
        topic: As it was.
        grown: Told when it has more partitions.
        failed: Told of an unexpected exception, which ends the looking.
        gone: Told, once, that the topic was deleted, and whether it was made again; None: looks on.
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
        """Look no more."""
        self._task.cancel()

    async def close(self) -> None:
        """Look no more, and wait until the task has ended."""
        self.stop()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            request = broker_pb2.GetTopicRequest(
                topic=self._topic.name, known_partition_count=self._topic.partition_count
            )
            try:
                answer = await self._caller.routing("GetTopic", request, LOOK_DEADLINE_S)
            except UnknownTopicError:
                if self._gone is None:
                    continue
                self._gone(False)
                return
            except SeriatimError:
                continue  # the next look may find somebody; what is being sent or read finds out by itself
            if len(answer.routes) > self._topic.partition_count:
                self._look_at(topic_of(answer.topic), answer.routes)

    def _look_at(self, topic: Topic, routes: Sequence[common_pb2.Route]) -> None:
        """A topic that was deleted and made anew under its name is another one."""
        known = self._topic.partition_ids
        if topic.incarnation == self._topic.incarnation and topic.partition_ids[: len(known)] == known:
            self._topic = topic
            self._grown(topic, routes)
        elif self._gone is not None:
            self._gone(True)
