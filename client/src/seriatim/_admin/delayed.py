"""Delayed messages that wait: list them, and count them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final

from seriatim_api.errors import BadRequestError, NotServingError, PartitionOutOfRangeError
from seriatim_api.ids import partition_name
from seriatim_api.v1 import broker_pb2, delayed_pb2

from seriatim._admin.group_operations import DEADLINE_S, GroupOperations
from seriatim._values.arguments import NUMBER_MAX, check_callback, check_whole
from seriatim._values.delayed import DelayedMessages, DelayedStats

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS_PER_PAGE: Final = 1_000
ROWS_PER_COUNT: Final = 10_000


class DelayedAdmin(GroupOperations):
    """The part of `Admin` for delayed messages."""

    async def delayed(
        self,
        topic: str,
        partition: int | None = None,
        until: datetime | None = None,
        *,
        on_unserved: Callable[[int, tuple[int, ...]], None] | None = None,
    ) -> AsyncIterator[DelayedMessages]:
        """The messages of a topic that are delayed, by partition, due time and offset.

        Messages that are sent, cancelled or become due meanwhile may be reported or not.

        Args:
            topic: The topic's name.
            partition: A number in the topic; None: all partitions.
            until: Only messages that are due then, or before. It has a time zone. None: all.
            on_unserved: Called with the number of a partition, and with segments of it that no broker serves now: what
                is delayed in them is not reported, and will be sent when they are served again. If None, an error says
                it, after everything else of the partition.

        Raises:
            UnknownTopicError: The cluster has no such topic.
            PartitionOutOfRangeError: The topic has fewer partitions.
            BadRequestError: The time has no zone, or is before 1970.
            NotServingError: No broker serves a segment now, and there is no `on_unserved`.
            UnavailableError: No broker answered in time.
        """
        check_callback("on_unserved", on_unserved)
        until_ms = 0 if until is None else _ms_of(until)
        for number in await self._delayed_partitions(topic, partition):
            unserved: set[int] = set()
            async for page in self._delayed_pages(topic, number, until_ms, ROWS_PER_PAGE):
                unserved.update(page.unserved)
                for row in page.rows:
                    yield DelayedMessages(
                        number, row.origin or row.offset, row.due_ms, row.message_count, row.size_bytes
                    )
            if unserved and on_unserved is not None:
                on_unserved(number, tuple(sorted(unserved)))
            elif unserved:
                listed = ", ".join(map(str, sorted(unserved)))
                raise NotServingError(
                    f"no broker serves segment {listed} of {partition_name(topic, number)} now: what is delayed there "
                    "is not listed"
                )

    async def delayed_stats(self, topic: str) -> list[DelayedStats]:
        """How much is delayed in each partition of a topic. All that waits is read, and not only a counter.

        Args:
            topic: The topic's name.

        Raises:
            UnknownTopicError: The cluster has no such topic.
            UnavailableError: No broker answered in time.
        """
        return [await self._stats_of(topic, number) for number in await self._delayed_partitions(topic, None)]

    async def _stats_of(self, topic: str, partition: int) -> DelayedStats:
        message_count = size_bytes = cancelled_count = 0
        oldest_due_ms: int | None = None
        unserved: set[int] = set()
        async for page in self._delayed_pages(topic, partition, 0, ROWS_PER_COUNT):
            if page.rows and oldest_due_ms is None:
                oldest_due_ms = page.rows[0].due_ms
            message_count += sum(row.message_count for row in page.rows)
            size_bytes += sum(row.size_bytes for row in page.rows)
            cancelled_count += page.cancelled_count
            unserved.update(page.unserved)
        return DelayedStats(
            partition, message_count, size_bytes, oldest_due_ms, cancelled_count, tuple(sorted(unserved))
        )

    async def _delayed_partitions(self, topic: str, partition: int | None) -> Sequence[int]:
        """The numbers of the partitions that are asked for."""
        if partition is not None:
            check_whole("partition", partition, 0, NUMBER_MAX)
        answer = await self._caller.routing("GetTopic", broker_pb2.GetTopicRequest(topic=topic), DEADLINE_S)
        count = len(answer.topic.partition_ids)
        if partition is not None and partition >= count:
            raise PartitionOutOfRangeError(f"{topic} has partitions 0 to {count - 1}, not {partition}")
        return range(count) if partition is None else (partition,)

    async def _delayed_pages(
        self, topic: str, partition: int, until_ms: int, limit: int
    ) -> AsyncIterator[delayed_pb2.ListDelayedResponse]:
        request = delayed_pb2.ListDelayedRequest(topic=topic, partition=partition, until_ms=until_ms, limit=limit)
        while True:
            page: delayed_pb2.ListDelayedResponse
            page = await self._caller.delayed("ListDelayed", request, DEADLINE_S)
            yield page
            if not page.HasField("next"):
                return
            request.after.CopyFrom(page.next)


def _ms_of(time: datetime) -> int:
    """Milliseconds since 1970.

    Raises:
        BadRequestError: The time has no zone, or is before 1970.
    """
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise BadRequestError(f"until is a datetime with a time zone, not {time!r}: give it one with .astimezone()")
    time_ms = int(time.timestamp() * 1000)
    if time_ms <= 0:
        raise BadRequestError(f"{time.isoformat()} is not after 1970: no message is due then")
    return time_ms
