"""Notices that a topic has more partitions, was deleted, or was made again, so that its producers and consumers follow.

It asks a broker twice: the first answer comes at once, and proves that a broker is there. The second one comes when one
of these happens, or after half a minute. A broker that cannot wait, because it is stopping, answers at
once; then the next question is asked after 2 s. All that watch the same topic in one client share their questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from seriatim_api.errors import SeriatimError, UnknownTopicError
from seriatim_api.v1 import broker_pb2, common_pb2

from seriatim._runtime.logs import guarded
from seriatim._runtime.watch import Watch
from seriatim._transport.unary import Caller
from seriatim._values.records import Topic
from seriatim._values.topics import is_same, told_topic

_log = guarded()

LOOK_S: Final = 2.0
"""Seconds until the next question, if the broker did not wait. New partitions are in use within seconds, and each
question is a small message."""

LOOK_DEADLINE_S: Final = 2.0
"""Seconds for an answer, beyond the time that the broker may wait."""

SHARED_S: Final = 0.05
"""A producer that is about to refuse something takes an answer that another one asked for at most this long ago."""

WAIT_S: Final = 30.0
"""How long a broker may wait for news of the topic, in seconds. A thousand idle clients ask it 33 times a second. It is
half of what a broker group may take to drain (60 s), because each answer names all brokers: a client that only waits
knows a broker group that was added before the one that it replaces is gone."""

Grown = Callable[[Topic, Sequence[common_pb2.Route]], None]
"""A function that gets a topic with more partitions than before, and the routes of all of them."""


class TopicChanges(Watch):
    """Watches one topic until it is closed.

    Args:
        caller: Asks any broker.
        topic: The topic as it is known now.
        grown: Called when the topic has more partitions.
        failed: Called with an unexpected exception, which ends the watch.
        gone: Called once when the topic was deleted. The argument is True if a new topic has its name.
    """

    def __init__(
        self,
        caller: Caller,
        topic: Topic,
        grown: Grown,
        failed: Callable[[BaseException], Any],
        gone: Callable[[bool], None],
    ) -> None:
        self._caller = caller
        self._topic = topic
        self._grown = grown
        self._gone = gone
        self._is_told = False
        super().__init__(f"growth of {topic.name}", failed)

    @property
    def is_told(self) -> bool:
        """Whether a broker waits for news of the topic.

        Only then a deletion is noticed at once, also if the topic was made again with as many partitions.
        """
        return self._is_told

    async def look(self) -> Topic:
        """Ask for the topic as it is now, and report what has changed. A refusal by what is known asks this first.

        Raises:
            UnknownTopicError: It was deleted.
            SeriatimError: No broker answered, or the coordinator did not.
        """
        request = broker_pb2.GetTopicRequest(topic=self._topic.name)
        answer = await self._caller.topic(request, LOOK_DEADLINE_S, within_s=SHARED_S)
        topic = told_topic(answer)
        if not self._task.done() and self._look_at(topic, answer.routes):
            self.stop()
        return topic

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if await self._ask(wait_s=0.0):
                    return
                self._is_told = True  # a broker that cannot wait says so at once
                while self._is_told:
                    if await self._ask(WAIT_S):
                        return
            except SeriatimError:
                self._is_told = False  # ask again; sends and reads notice by themselves that no broker answers

    async def _ask(self, wait_s: float) -> bool:
        """Ask once. Return whether the watch is over, because the topic is gone.

        Raises:
            SeriatimError: No broker answered.
        """
        request = broker_pb2.GetTopicRequest(
            topic=self._topic.name,
            known_partition_count=self._topic.partition_count,
            known_incarnation=self._topic.incarnation,
            wait_ms=int(wait_s * 1000),
        )
        try:
            # The answer to another watch of this client counts, if it was asked for after this one began. Without
            # that limit: 1. A watch of topic t asks, and t has grown. 2. t is deleted and made again. 3. A watch
            # of the new t is given the answer about the old one, and takes its own topic for one that is gone.
            answer = await self._caller.topic(request, wait_s + LOOK_DEADLINE_S, within_s=LOOK_S / 2)
        except UnknownTopicError:
            self._gone(False)
            return True
        self._is_told = answer.waited
        self._caller.learn(broker.address for broker in answer.brokers)
        return answer.HasField("topic") and self._look_at(told_topic(answer), answer.routes)

    def _look_at(self, topic: Topic, routes: Sequence[common_pb2.Route]) -> bool:
        """Report more partitions, or that a new topic has the name. Return whether the watch is over."""
        known = self._topic.partition_ids
        if not is_same(self._topic, topic):
            self._gone(True)
            return True
        if topic.incarnation != self._topic.incarnation:
            _log.warning("topic %s was lost by the coordinator, and is there again after a rebuild", topic.name)
            self._topic = replace(self._topic, incarnation=topic.incarnation)
        if len(routes) > len(known) and topic.partition_ids[: len(known)] == known:
            self._topic = topic
            self._grown(topic, routes)
        return False
