"""Reading the messages between two offsets of a partition, from whichever member has them.

The reader asks a broker, which gives what it has and says who has the rest. If a broker is gone, silent, or gives what
does not follow, another one is asked from exactly there (`_core.ranges` holds where that is). Nothing is given twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Final, NamedTuple, Self

import google_crc32c
import pyarrow as pa
from seriatim_api.batch import BatchHeader
from seriatim_api.errors import (
    MessagesGoneError,
    NotServingError,
    OffsetOutOfRangeError,
    PreconditionError,
    RequestError,
    SeriatimError,
    UnavailableError,
    UnknownTopicError,
    UnsupportedVersionError,
)
from seriatim_api.ids import format_offset, make_offset
from seriatim_api.status import error_from_proto
from seriatim_api.v1 import broker_pb2, ranges_pb2

from seriatim import _batch
from seriatim._consuming.inbox import messages_of
from seriatim._core.ranges import Loss, RangeCursor
from seriatim._records import LostRange, Message
from seriatim._transport.channels import Channels
from seriatim._transport.ranges import RangeCall
from seriatim._transport.unary import Caller

ROUTE_DEADLINE_S: Final = 1.0
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 0.5

_log = logging.getLogger("seriatim")


class RangeTable(NamedTuple):
    """Rows of one partition that stand one after another.

    Attributes:
        topic: Their topic.
        partition: Number in the topic.
        offset: Of the first row; the others follow one by one.
        table: Columns key, value, timestamp, headers, tag; no value was copied.
        append_time_ms: When the broker took the batch that they came in.
        producer: Id of the producer that sent them, 16 bytes.
        producer_epoch: Of that producer.
        sequence: The number that the producer gave to the first row; the others follow one by one.
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
    """Messages of one batch, and the offset of the first."""

    offset: int
    batch: pa.RecordBatch
    append_time_ms: int
    producer: bytes
    producer_epoch: int
    sequence: int


class RangeReader:
    """The messages of [start, end) of a partition, in their order, each once.

    Iterate it for messages, or `tables()` for Arrow tables; not both at once. It belongs to no group and moves no
    group's position. `offset` is where it goes on: all below was given out. To stop in the middle leaves nothing behind
    at the brokers once it is closed.

    Attributes:
        topic: Name of the topic.
        incarnation: Of the topic that is read.
        partition: Number in the topic.
        start: The first offset.
        end: The first one behind the range.
        skipped: Messages of the range that were passed over so far, because they repeat earlier ones.
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
        raw: bool,
        credit_bytes: int,
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
        self._raw = raw
        self._credit_bytes = credit_bytes
        self._read_timeout_s = read_timeout_s
        self._on_loss = on_loss
        self._channels = channels
        self._caller = caller
        self._client_name = client_name
        self._cursor = RangeCursor(partition_id, start, end, google_crc32c.extend)
        self._given = start
        self._rows: AsyncIterator[_Rows] | None = None
        self._messages: list[Message] = []  # of the batch that was opened, the next one last
        self._hints: list[str] = []  # addresses of those who should have what comes next
        self._asked: list[str] = []  # since something was read
        self._error: SeriatimError | None = None
        self._closed = False
        self.on_closed: Callable[[], None] = lambda: None

    @property
    def offset(self) -> int:
        """Where it goes on: all messages below were given out."""
        return self._messages[-1].offset if self._messages else self._given

    # ---- life ----

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Read no further. Calls that come later raise `PreconditionError`."""
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
        """The messages of the next batch; none: the range is read to its end. Raises as iterating does."""
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
        """The rows of each batch as an Arrow table.

        Raises:
            MessagesGoneError: Messages were declared lost or dropped, and there is no `on_loss`.
            UnavailableError: No member that has the next messages has answered for the read time-out.
            UnknownTopicError, PreconditionError: The topic was deleted; or was, and there is another one.
            OrderViolationError: Every member that answers gives what does not follow.
        """
        while (table := await self.fetch_table()) is not None:
            yield table

    async def fetch_table(self) -> RangeTable | None:
        """The rows of the next batch; None: the range is read to its end. Raises as `tables`."""
        rows = await self._next_rows()
        if rows is None:
            return None
        table = pa.Table.from_batches([rows.batch])
        return RangeTable(
            self.topic, self.partition, rows.offset, table, rows.append_time_ms, rows.producer, rows.producer_epoch,
            rows.sequence,
        )  # fmt: skip

    async def _next_rows(self) -> _Rows | None:
        if self._closed:
            raise PreconditionError("the reader of the range is closed")
        if self._error is not None:
            raise self._error
        # A call that was cancelled has ended the generator: the next one goes on where the cursor is.
        while self._rows is not None or not self._cursor.is_done:
            self._rows = self._rows or self._read()
            try:
                rows = await anext(self._rows, None)
            except SeriatimError as exc:
                self._error = exc  # it is not passed over by asking again
                raise
            if rows is not None:
                self._given = rows.offset + rows.batch.num_rows
                return rows
            self._rows = None
        self._given = self.end
        return None

    # ---- from the brokers ----

    async def _read(self) -> AsyncIterator[_Rows]:
        """All rows of the range, from as many brokers as it takes."""
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
                error = exc  # the end was there when the reader began: this broker has not heard of it
            except UnsupportedVersionError as exc:
                error = exc  # a broker of an older version does not know ranges: another one may
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
                _log.debug("range: %s", error)
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
        """Who is asked next: one who should have what comes, that was not asked yet since something was read."""
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
        """The topic, if it is the one that is read.

        Raises:
            UnknownTopicError: It was deleted. PreconditionError: It was, and another one has its name.
        """
        request = broker_pb2.GetTopicRequest(topic=self.topic)
        answer: broker_pb2.GetTopicResponse = await self._caller.routing("GetTopic", request, ROUTE_DEADLINE_S)
        if answer.topic.incarnation != self.incarnation:
            raise PreconditionError(
                f"topic {self.topic!r} was deleted and made again while it was read: the messages that were left to "
                "read are gone",
                topic=self.topic,
                incarnation=answer.topic.incarnation,
            )
        return answer

    async def _read_from(self, address: str) -> AsyncIterator[_Rows]:
        """What one broker has of the range, as far as it follows what was read."""
        request = ranges_pb2.OpenRange(
            client=self._client_name,
            partition_id=self._partition_id,
            from_offset=self._cursor.offset,
            to_offset=self.end,
            credit_bytes=self._credit_bytes,
            raw=self._raw,
        )
        async with RangeCall(self._channels, address, request) as call:
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
            raise UnavailableError(f"{address} ended the stream without saying where the range goes on")

    def _end(self, address: str, end: ranges_pb2.RangeEnd) -> None:
        """A broker has given all that it has: the rest is where it says, or where nobody was asked yet."""
        others = [other for other in end.addresses if other != address]
        if others and not end.HasField("error"):
            self._asked = []
        self._hints = others or self._hints
        if end.HasField("error"):
            raise error_from_proto(end.error)
        if end.is_complete and not self._cursor.is_done:
            where = format_offset(self._cursor.offset)
            raise UnavailableError(f"{address} says that the range is read, and it gave nothing from {where} on")

    def _take(self, header: BatchHeader, body: memoryview) -> _Rows | None:
        batch = _batch.decode(body, header.message_count, header.body_crc)
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
                raise UnavailableError("a broker of a newer version says something that is not known here")

    def _lose(self, loss: Loss) -> None:
        reason = "lost" if loss.declared else "dropped"
        gone = LostRange(self.topic, self.partition, loss.start, loss.end, reason)  # type: ignore[arg-type]
        if self._on_loss is None:
            raise MessagesGoneError(
                f"{gone}; to read on behind them, give the reader an on_loss, or begin at "
                f"{format_offset(self._cursor.offset)}",
                start=loss.start,
                end=loss.end,
            )
        self._on_loss(gone)
