"""Says when a consumer is served nothing though messages wait, what it waits for, and when that is over.

If TLS is the cause that no broker answers, the calls that wait for messages raise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from seriatim_api.errors import SeriatimError
from seriatim_api.lag import lag_messages
from seriatim_api.v1 import broker_pb2

from seriatim._consuming.subscription import Subscribed
from seriatim._core.unserved import ServiceWatch, Unserved, Waiting
from seriatim._runtime.logs import guarded
from seriatim._runtime.watch import Watch
from seriatim._transport.unary import Caller

LOOK_S: Final = 5.0
"""Seconds between two looks at all partitions of a consumer."""

LOOKED_AT_ONCE: Final = 1000
"""Partitions that are looked at before the event loop does something else."""

LINES_MAX: Final = 3
"""The most partitions that are named after one look. The others are counted."""

QUESTION_DEADLINE_S: Final = 5.0

_log = guarded()


class UnservedWatch(Watch):
    """Looks at the partitions of one consumer, until it is closed. One timer does, however many they are.

    Args:
        caller: Asks any broker.
        topic: The topic's name.
        group: The consumer group's name, as brokers know it.
        subscriptions: The partitions by number. There may be more of them later.
        interrupt: Called at each look: with the error that calls which wait for messages raise, or with None.
        failed: Called with an unexpected exception, which ends the watch.
    """

    def __init__(
        self,
        caller: Caller,
        topic: str,
        group: str,
        subscriptions: Mapping[int, Subscribed],
        interrupt: Callable[[SeriatimError | None], None],
        failed: Callable[[BaseException], Any],
    ) -> None:
        self._caller = caller
        self._topic = topic
        self._group = group
        self._subscriptions = subscriptions
        self._interrupt = interrupt
        self._watch = ServiceWatch()
        super().__init__(f"unserved partitions of {topic}", failed)

    @property
    def unserved(self) -> tuple[int, ...]:
        """The partitions that are served nothing, though messages wait there."""
        return self._watch.unserved

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look(time.monotonic)

    async def look(self, clock: Callable[[], float]) -> None:
        """Look once, ask about the partitions that wait for long, and say what was found."""
        self._interrupt(self._caller.tls_error())
        asked = self._watch.look(clock(), await self._waiting())
        self._tell_over(self._watch.take_over())
        if asked:
            lags = await self._lags(asked)
            self._tell(self._watch.answered(clock(), asked, lags))
            self._tell_over(self._watch.take_over())

    async def _waiting(self) -> list[Waiting]:
        found = []
        for place, (number, subscription) in enumerate(list(self._subscriptions.items()), 1):
            mark = subscription.waits_since
            if mark is not None:
                found.append(Waiting(number, mark, subscription.is_joined))
            if place % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return found

    async def _lags(self, numbers: Sequence[int]) -> dict[int, int | None]:
        """How many messages wait for this group there, without those that consumers have or that wait for a key."""
        request = broker_pb2.DescribeGroupRequest(topic=self._topic, group=self._group, partitions=numbers)
        try:
            answer = await self._caller.admin("DescribeGroup", request, QUESTION_DEADLINE_S)
        except SeriatimError:
            return {}
        return {
            row.partition: _deliverable(row, is_joined=self._subscriptions[row.partition].is_joined)
            for row in answer.partitions
        }

    def _tell(self, found: Sequence[Unserved]) -> None:
        for one in found[:LINES_MAX]:
            count = "an unknown number of messages waits" if one.lag is None else f"{one.lag:,} messages wait"
            _log.warning(
                "group %s was served nothing of %s/%d for %.0f s, and %s there: this consumer waits for %s",
                self._group, self._topic, one.number, one.for_s, count, self._subscriptions[one.number].waits_for,
            )  # fmt: skip
        if len(found) > LINES_MAX:
            _log.warning(
                "group %s was served nothing of %d more partitions of %s, for up to %.0f s",
                self._group, len(found) - LINES_MAX, self._topic, found[LINES_MAX].for_s,
            )  # fmt: skip

    def _tell_over(self, found: Sequence[Unserved]) -> None:
        for one in found[:LINES_MAX]:
            _log.warning(
                "group %s has no unserved messages of %s/%d any more, after %.0f s",
                self._group, self._topic, one.number, one.for_s,
            )  # fmt: skip
        if len(found) > LINES_MAX:
            _log.warning(
                "group %s has none of %d more partitions of %s either",
                self._group, len(found) - LINES_MAX, self._topic,
            )  # fmt: skip


def _deliverable(row: broker_pb2.GroupPartition, *, is_joined: bool) -> int | None:
    if row.HasField("error") or not row.has_cursor:
        return None  # a consumer group gets its cursor when the first consumer joins
    if is_joined and row.in_flight_messages:
        return 0  # order is by key, and the others may wait for the key of one that a consumer has
    return lag_messages(row.end_position - row.position, row.passed_messages, 0)
