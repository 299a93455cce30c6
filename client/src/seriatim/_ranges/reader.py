"""Reads the messages between two offsets of a partition, from any member that has them.

The reader asks a broker, which sends the messages that it has, and names the brokers that have the rest. If a broker is
gone or silent, or sends messages that do not follow, the reader asks another one, from exactly the same place.
`_core.ranges` keeps this place. So the application gets no message twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Final, NamedTuple, Self

import google_crc32c
import pyarrow as pa
from seriatim_api.batch import BatchHeader
from seriatim_api.errors import (
    CoordinatorBehindError,
    MessagesGoneError,
    NotServingError,
    OffsetOutOfRangeError,
    PreconditionError,
    RequestError,
    SeriatimError,
    UnavailableError,
    UnknownTopicError,
)
from seriatim_api.ids import format_offset, make_offset
from seriatim_api.status import error_from_proto
from seriatim_api.v1 import broker_pb2, ranges_pb2

from seriatim._bodies import arrow
from seriatim._consuming.inbox import messages_of
from seriatim._core.ranges import Loss, RangeCursor
from seriatim._ranges.records import LostRange
from seriatim._runtime.closing import Closing
from seriatim._runtime.logs import guarded
from seriatim._transport.channels import Channels
from seriatim._transport.ranges import RangeCall
from seriatim._transport.unary import Caller
from seriatim._values.arguments import call_back
from seriatim._values.records import Message
from seriatim._values.settings import Credit

ROUTE_DEADLINE_S: Final = 1.0
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 0.5

_log = guarded()


class RangeTable(NamedTuple):
    """Rows of one batch of a partition, with consecutive offsets.

    Attributes:
        topic: The topic's name.
        partition: The partition's number in the topic.
        offset: The offset of the first row; the others follow one by one.
        table: The columns key, value, timestamp, headers and tag. No value was copied.
        append_time_ms: The batch's append time, in ms since 1970.
        producer: The id of the producer that sent the rows, 16 bytes.
        producer_epoch: Its producer epoch.
        sequence: The sequence of the first row; the others follow one by one.
    """

    topic: str
    partition: int
    offset: int
    table: pa.Table
    append_time_ms: int
    producer: bytes
    producer_epoch: int
    sequence: int


class _Rows(NamedTuple):
    """Messages of one batch, and the offset of the first one."""

    offset: int
    batch: pa.RecordBatch
    append_time_ms: int
    producer: bytes
    producer_epoch: int
    sequence: int


class RangeReader(Closing):
    """The messages of [start, end) of a partition, in their order, each once. Get one from `Client.read_range`.

    Iterate over it for messages, or over `tables()` for Arrow tables; not over both at once. It belongs to no consumer
    group and moves no cursor. The reader continues at `offset`, and has given out all messages below. You may stop in
    the
    middle: after `close` the brokers keep nothing of the reader.

    Attributes:
        topic: The topic's name.
        incarnation: The incarnation of the topic that is read.
        partition: The partition's number in the topic.
        start: The first offset of the range.
        end: The first offset after the range.
        skipped: The number of messages that the reader has skipped so far, because they repeat earlier ones.

    Raises:
        MessagesGoneError: Messages were declared lost or dropped by retention, and there is no `on_loss`.
        UnavailableError: No member that has the next messages answered for `read_timeout_s`.
        UnknownTopicError: The topic was deleted.
        PreconditionError: The topic was deleted and another one has its name, or the reader is closed.
        OrderViolationError: The members that answer send only messages that do not follow.

    Each later call raises the same error. If a call is cancelled, the next one continues where the reader is.
    """

    def __init__(
        self,
        topic: str,
        incarnation: str,
        partition: int,
        partition_id: int,
        start: int,
        end: int,
        *,
        epoch: int,
        raw: bool,
        credit: Credit,
        read_timeout_s: float,
        on_loss: Callable[[LostRange], None] | None,
        channels: Channels,
        caller: Caller,
        client_name: str,
    ) -> None:
        self.topic = topic
        self.incarnation = incarnation
        self.partition = partition
        self.start = start
        self.end = end
        self.skipped = 0
        self._partition_id = partition_id
        self._cluster_id = ""  # not known yet
        self._epoch = epoch  # of a chain record in which the range is
        self._raw = raw
        self._credit = credit
        self._read_timeout_s = read_timeout_s
        self._on_loss = on_loss
        self._channels = channels
        self._caller = caller
        self._client_name = client_name
        self._cursor = RangeCursor(partition_id, start, end, google_crc32c.extend)
        self._given = start
        self._rows: AsyncIterator[_Rows] | None = None
        self._messages: list[Message] = []  # the messages left of the opened batch, the next one last
        self._hints: list[str] = []  # addresses of brokers that should have the next messages
        self._asked: list[str] = []  # those of them that were asked since the last progress
        self._error: SeriatimError | None = None
        self._closed = False
        self.on_closed: Callable[[], None] = lambda: None

    @property
    def offset(self) -> int:
        """The offset at which the reader continues. It has given out all messages below."""
        return self._messages[-1].offset if self._messages else self._given

    # ---- life ----

    async def close(self) -> None:
        """End the reader. Later calls raise `PreconditionError`. A second call does nothing."""
        if not self._closed:
            self.on_closed()
        self._given, self._messages = self.offset, []
        self._closed = True
        rows, self._rows = self._rows, None
        if rows is not None:
            await rows.aclose()  # type: ignore[attr-defined]  # it is a generator

    # ---- to the application ----

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if not self._messages and not await self._open_batch():
            raise StopAsyncIteration
        return self._messages.pop()

    async def fetch(self) -> list[Message]:
        """The messages of the next batch. An empty list: the range is read to its end. The errors are in the class."""
        if not self._messages and not await self._open_batch():
            return []
        messages, self._messages = self._messages[::-1], []
        return messages

    async def _open_batch(self) -> bool:
        rows = await self._next_rows()
        if rows is None:
            return False
        self._messages = list(messages_of(self.topic, self.partition, rows.offset, rows.batch))[::-1]
        return True

    async def tables(self) -> AsyncIterator[RangeTable]:
        """The rows of each batch as an Arrow table. The errors are in the class."""
        while (table := await self.fetch_table()) is not None:
            yield table

    async def fetch_table(self) -> RangeTable | None:
        """The rows of the next batch. None: the range is read to its end. The errors are in the class."""
        rows = await self._next_rows()
        if rows is None:
            return None
        table = pa.Table.from_batches([rows.batch])
        return RangeTable(
            self.topic, self.partition, rows.offset, table, rows.append_time_ms, rows.producer, rows.producer_epoch,
            rows.sequence,
        )  # fmt: skip

    async def _next_rows(self) -> _Rows | None:
        self._channels.home.check()
        if self._closed:
            raise PreconditionError("the reader of the range is closed")
        if self._error is not None:
            raise self._error
        # A cancelled call has ended the generator. The next call makes a new one, which continues at the cursor.
        while self._rows is not None or not self._cursor.is_done:
            self._rows = self._rows or self._read()
            try:
                rows = await anext(self._rows, None)
            except SeriatimError as exc:
                self._error = exc  # a later call raises it again, and does not pass over the messages
                raise
            if rows is not None:
                self._given = rows.offset + rows.batch.num_rows
                return rows
            self._rows = None
        self._given = self.end
        return None

    # ---- from the brokers ----

    async def _read(self) -> AsyncIterator[_Rows]:
        """All rows of the range, from one broker after another."""
        loop = asyncio.get_running_loop()
        failed_at, pause_s = loop.time(), PAUSE_S
        while not self._cursor.is_done:
            begun_at = self._cursor.offset
            error: SeriatimError | None = None
            try:
                async with aclosing(self._read_from(await self._next_address())) as found:  # type: ignore[type-var]
                    async for rows in found:
                        yield rows
                        failed_at = loop.time()
            except MessagesGoneError:
                raise
            except OffsetOutOfRangeError as exc:
                if "segment" in exc.details:
                    raise
                error = exc  # the end existed when the reader began, but this broker does not know it yet
            except CoordinatorBehindError as exc:
                error = exc  # an administrator may be rebuilding the coordinator
            except RequestError as exc:
                if isinstance(exc, UnknownTopicError):
                    await self._check_topic()
                raise
            except SeriatimError as exc:
                error = exc
            if self._cursor.offset != begun_at:
                failed_at, pause_s, self._asked = loop.time(), PAUSE_S, []
            elif error is not None or not self._hints:
                if loop.time() - failed_at > self._read_timeout_s:
                    raise self._stuck(error)
                _log.debug("a range read continues at another broker: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _stuck(self, error: SeriatimError | None) -> SeriatimError:
        where = f"{self.topic}/{self.partition} at {format_offset(self._cursor.offset)}"
        if error is not None and not isinstance(error, (UnavailableError, NotServingError)):
            return error
        return UnavailableError(
            f"{where} could not be read for {self._read_timeout_s:g} s: "
            + (error.message if error is not None else "no broker has it")
        )

    async def _next_address(self) -> str:
        """The next broker to ask: one that should have the next messages, and was not asked since the last progress."""
        for address in self._hints:
            if address not in self._asked:
                self._asked.append(address)
                return address
        self._asked = []
        answer = await self._check_topic()
        self._caller.learn(broker.address for broker in answer.brokers)
        route = answer.routes[self.partition]
        self._hints = [route.master_address, *route.next_addresses]
        self._hints += [broker.address for broker in answer.brokers if broker.address not in self._hints]
        self._asked.append(self._hints[0])
        return self._hints[0]

    async def _check_topic(self) -> broker_pb2.GetTopicResponse:
        """Ask for the topic, and check that it is still the one that is read.

        Raises:
            UnknownTopicError: The topic was deleted.
            PreconditionError: The topic was deleted, and another one has its name.
        """
        request = broker_pb2.GetTopicRequest(topic=self.topic)
        answer: broker_pb2.GetTopicResponse = await self._caller.routing("GetTopic", request, ROUTE_DEADLINE_S)
        if not self._is_same(answer):
            raise PreconditionError(
                f"topic {self.topic!r} was deleted and made again while it was read: the messages that were left to "
                "read are gone",
                topic=self.topic,
                incarnation=answer.topic.incarnation,
            )
        return answer

    def _is_same(self, answer: broker_pb2.GetTopicResponse) -> bool:
        """Whether it is the topic that is read, perhaps after a rebuild of the coordinator (`rebuilt-is-the-same`)."""
        if answer.topic.incarnation == self.incarnation:
            self._cluster_id = answer.cluster_id
            return True
        has_partition = answer.topic.partition_ids[self.partition : self.partition + 1] == [self._partition_id]
        return has_partition and bool(self._cluster_id) and answer.cluster_id == self._cluster_id

    async def _read_from(self, address: str) -> AsyncIterator[_Rows]:
        """The rows that one broker has, if they follow those that were read.

        Raises:
            SeriatimError: The broker refused, failed, or sent rows that do not follow.
        """
        request = ranges_pb2.OpenRange(
            client=self._client_name,
            partition_id=self._partition_id,
            from_offset=self._cursor.offset,
            to_offset=self.end,
            credit_bytes=self._credit.least_bytes,
            raw=self._raw,
            epoch=self._epoch,
        )
        async with RangeCall(self._channels, address, request, self._credit) as call:
            async for event, batches in call.events():
                match event.WhichOneof("event"):
                    case "batches":
                        for header, body in batches:
                            if (rows := self._take(header, body)) is not None:
                                yield rows
                    case "end":
                        self._end(address, event.end)
                        return
                    case _:
                        self._pass_over(event)
        if not self._cursor.is_done:
            raise UnavailableError(f"{address} ended the stream without saying where the range continues")

    def _end(self, address: str, end: ranges_pb2.RangeEnd) -> None:
        """A broker has sent all that it has. The brokers that it names have the rest, or those not asked yet."""
        others = [other for other in end.addresses if other != address]
        if others and not end.HasField("error"):
            self._asked = []
        self._hints = others or self._hints
        if end.HasField("error"):
            raise error_from_proto(end.error)
        if end.is_complete and not self._cursor.is_done:
            where = format_offset(self._cursor.offset)
            raise UnavailableError(f"{address} says that the range is complete, but it sent nothing from {where} on")

    def _take(self, header: BatchHeader, body: memoryview) -> _Rows | None:
        batch = arrow.decode(body, header.message_count, header.body_crc)
        first, last = self._cursor.take(header)
        offset = make_offset(header.segment, header.base_index + first)
        if first or last < header.message_count:
            batch = batch.slice(first, max(last - first, 0))
        if not batch.num_rows:
            return None
        sequence = header.base_sequence + first
        return _Rows(offset, batch, header.append_time_ms, header.producer, header.producer_epoch, sequence)

    def _pass_over(self, event: ranges_pb2.RangeEvent) -> None:
        cursor = self._cursor
        match event.WhichOneof("event"):
            case "skip":
                skip = event.skip
                self.skipped += cursor.skip(skip.segment, skip.from_index, skip.to_index, skip.checksum)
            case "segment_end":
                end = event.segment_end
                cursor.end_segment(end.segment, end.sealed_len, end.sealed_checksum)
            case "gap":
                self._lose(cursor.lose(event.gap.segment, event.gap.from_index))
            case "dropped":
                dropped = event.dropped
                self._lose(cursor.drop(dropped.from_offset, dropped.to_offset, dropped.checksum))
            case _:
                raise UnavailableError("a broker of a newer version sent an event that this client does not know")

    def _lose(self, loss: Loss) -> None:
        reason = "lost" if loss.declared else "dropped"
        gone = LostRange(self.topic, self.partition, loss.start, loss.end, reason)  # type: ignore[arg-type]
        if self._on_loss is None:
            raise MessagesGoneError(
                f"{gone}; to read on after them, give the reader an on_loss, or begin at "
                f"{format_offset(self._cursor.offset)}",
                start=loss.start,
                end=loss.end,
            )
        call_back("on_loss", self._on_loss, gone)
