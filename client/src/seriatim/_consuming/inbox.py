"""The inbox: batches that came and wait for the application. They are unpacked when they are asked for.

A batch that waits was handed out under a grant. When the grant ends it is void, and passed over: it comes again, here
or elsewhere. Credit goes back to the broker when a batch is unpacked, or passed over.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from seriatim_api.batch import HEADER_SIZE_BYTES, BatchHeader
from seriatim_api.errors import BadRequestError, PreconditionError, SeriatimError
from seriatim_api.ids import format_offset, make_offset

from seriatim import _batch
from seriatim._records import Message
from seriatim._transport.consume import ConsumeLink

if TYPE_CHECKING:
    from seriatim._consuming.subscription import Subscription

T = TypeVar("T")

_NO_HEADERS: Final[dict[str, bytes]] = {}
_NO_MESSAGES: Final[Iterator[Message]] = iter(())

_message_of: Final[Callable[[tuple[Any, ...]], Message]] = partial(tuple.__new__, Message)
"""As `Message(*fields)`, in half the time."""


class FetchedTable(NamedTuple):
    """Rows of one partition, as they came.

    Attributes:
        topic: Their topic.
        partition: Number in the topic.
        offset: Of the first row; the others follow one by one.
        table: Columns key, value, timestamp, headers, tag; no value was copied.
        attempt: As of `Message`.
        maybe_repeated: Whether any row may have been delivered before by another server.
        grant: For `ack`.
    """

    topic: str
    partition: int
    offset: int
    table: pa.Table
    attempt: int
    maybe_repeated: bool
    grant: int


class Chunk(NamedTuple):
    """A batch that waits, as it was delivered: from which of its messages on, and under which grant."""

    subscription: Subscription
    grant: int
    segment: int
    from_index: int
    maybe_repeated_below: int
    attempt: int
    header: BatchHeader
    body: memoryview
    link: ConsumeLink


class Inbox:
    """What came for one consumer, in the order in which it came.

    Args:
        topic: For the messages.
        record: Told of the messages of a table when it is taken; None: nobody wants to know.
    """

    def __init__(self, topic: str, record: Callable[[Sequence[Message]], None] | None) -> None:
        self._topic = topic
        self._record = record
        self.chunks: deque[Chunk] = deque()
        self._opened: Chunk | None = None
        self._messages = _NO_MESSAGES  # of the chunk that was opened, those that were not taken
        self._fresh_until_s = 0.0  # until when the grant of that chunk cannot lapse
        self._arrived = asyncio.Event()
        self._error: SeriatimError | None = None
        self._closed = False

    # ---- from the streams ----------------------------------------------------------------------------

    def put(self, chunks: Iterable[Chunk]) -> None:
        """Batches came."""
        self.chunks.extend(chunks)
        self._arrived.set()

    def fail(self, error: SeriatimError) -> None:
        """Order cannot be kept, or the group cannot be read: each later call of the application raises it."""
        if self._error is None:
            self._error = error
        self._arrived.set()

    def close(self) -> None:
        """The application wants no more; whoever waits is sent away."""
        self._closed = True
        self._arrived.set()

    # ---- to the application --------------------------------------------------------------------------

    async def next(self, deadline: float | None) -> Message | None:
        """The next message; None at the deadline.

        Raises:
            SeriatimError: A partition cannot be read any more (and why).
            PreconditionError: The consumer is closed.
        """
        if self._opened is not None:
            self._look_at_grant(self._opened)  # a long pause may have ended it
        while True:
            self._check()
            message = self._take()
            if message is not None:
                return message
            self._check()  # a batch that cannot be read
            if not await self._wait(deadline):
                return None

    async def next_table(self, deadline: float) -> FetchedTable | None:
        """The next batch as a table; None at the deadline. Raises as `next`."""
        while True:
            self._check()
            while self.chunks and self._error is None:
                chunk = self._pop()
                table = self._read(chunk, self._table) if chunk is not None else None
                if table is not None:
                    return table
            self._check()
            if not await self._wait(deadline):
                return None

    def take_more(self, messages: list[Message], count_max: int) -> None:
        """Add what is here behind the first one, until there are `count_max`. No time passes in here."""
        while (left := count_max - len(messages)) > 0:
            messages.extend(islice(self._messages, left))
            if self._opened is not None:
                self._opened.subscription.taken = messages[-1].offset
            if len(messages) < count_max:
                message = self._take()  # of the next chunk
                if message is None:
                    return
                messages.append(message)

    def take_open(self) -> Message | None:
        """The next message of the chunk that is open, if nothing else has to be looked at; if None, ask `next`."""
        chunk = self._opened
        if chunk is None or self._closed or self._error is not None or time.monotonic() >= self._fresh_until_s:
            return None
        subscription = chunk.subscription
        if chunk.grant != subscription.core.grant:
            return None
        message = next(self._messages, None)
        if message is not None:
            subscription.taken = message.offset
        return message

    def _take(self) -> Message | None:
        """The next message that is here, and still ours to deliver; None also behind a batch that cannot be read."""
        while self._error is None:
            chunk = self._opened
            if chunk is not None:
                subscription = chunk.subscription
                if chunk.grant == subscription.core.grant:
                    message = next(self._messages, None)
                    if message is not None:
                        subscription.taken = message.offset
                        return message
                self._opened, self._messages = None, _NO_MESSAGES
            if not self.chunks:
                return None
            self._opened = chunk = self._pop()
            if chunk is not None:
                self._messages = self._read(chunk, self._messages_of) or _NO_MESSAGES
                self._look_at_grant(chunk)
        return None

    def _look_at_grant(self, chunk: Chunk) -> None:
        subscription = chunk.subscription
        subscription.is_current(chunk.grant)
        self._fresh_until_s = subscription.core.lapses_at_us / 1e6

    def _read(self, chunk: Chunk, unpack: Callable[[Chunk], T]) -> T | None:
        """What is in a batch. If it cannot be read, nothing behind it is given out.

        1. A batch cannot be unpacked, and its place in the queue is gone. 2. The application catches the error and asks
        again. 3. It would get the messages behind the batch, and acknowledge them, and with them those that it never
        saw. So the error stays.
        """
        try:
            return unpack(chunk)
        except SeriatimError as exc:
            self.fail(exc)
        except Exception as exc:
            place = f"{self._topic}/{chunk.subscription.number} at {format_offset(_first_offset(chunk))}"
            error = BadRequestError(
                f"the batch in {place} cannot be read, so the consumer stops before it: {type(exc).__name__}: {exc}"
            )
            error.__cause__ = exc
            self.fail(error)
        return None

    def _pop(self) -> Chunk | None:
        """The next batch, or None if its grant has ended; either way it waits no more."""
        chunk = self.chunks.popleft()
        chunk.link.give_credit(HEADER_SIZE_BYTES + chunk.header.body_length)
        return chunk if chunk.subscription.is_current(chunk.grant) else None

    async def _wait(self, deadline: float | None) -> bool:
        self._arrived.clear()
        try:
            async with asyncio.timeout_at(deadline):
                await self._arrived.wait()
        except TimeoutError:
            return False
        return True

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise PreconditionError("the consumer is closed")

    # ---- unpacking -----------------------------------------------------------------------------------

    def _messages_of(self, chunk: Chunk) -> Iterator[Message]:
        return self._unpack(chunk, _decode(chunk))

    def _table(self, chunk: Chunk) -> FetchedTable:
        batch = _decode(chunk)
        table = FetchedTable(
            self._topic,
            chunk.subscription.number,
            _first_offset(chunk),
            pa.Table.from_batches([batch.slice(chunk.from_index - chunk.header.base_index)]),
            chunk.attempt,
            chunk.from_index < chunk.maybe_repeated_below,
            chunk.grant,
        )
        if self._record is not None:
            self._record(list(self._unpack(chunk, batch)))
        chunk.subscription.taken = make_offset(chunk.segment, chunk.header.end_index - 1)
        return table

    def _unpack(self, chunk: Chunk, batch: Any) -> Iterator[Message]:
        first = chunk.from_index - chunk.header.base_index
        rows = batch.slice(first) if first else batch
        split = min(max(chunk.maybe_repeated_below - chunk.from_index, 0), rows.num_rows)
        number = chunk.subscription.number
        return messages_of(self._topic, number, _first_offset(chunk), rows, chunk.attempt, split, chunk.grant)


def messages_of(
    topic: str, partition: int, offset: int, rows: Any, attempt: int = 1, repeated_count: int = 0, grant: int = 0
) -> Iterator[Message]:
    """The messages in a record batch; the first `repeated_count` of them may have been delivered before.

    Columns are made of the batch at once, so what cannot be read is found now.
    """
    keys, values, timestamps, headers, tags = rows.columns
    count = rows.num_rows
    return map(
        _message_of,
        zip(
            repeat(topic),
            repeat(partition),
            range(offset, offset + count),
            _column(keys, count),
            values.to_pylist(),
            timestamps.to_pylist(),
            _header_column(headers, count),
            _column(tags, count),
            repeat(attempt),
            chain(repeat(True, repeated_count), repeat(False, count - repeated_count)),
            repeat(grant),
            strict=False,  # what repeats has no end
        ),
    )


def _first_offset(chunk: Chunk) -> int:
    return make_offset(chunk.segment, chunk.from_index)


def _decode(chunk: Chunk) -> Any:
    return _batch.decode(chunk.body, chunk.header.message_count, chunk.header.body_crc)


def _column(column: Any, count: int) -> Any:
    return repeat(None, count) if column.null_count == count else column.to_pylist()


def _header_column(column: Any, count: int) -> Any:
    if column.null_count == count:
        return repeat(_NO_HEADERS, count)
    return [dict(row) if row else _NO_HEADERS for row in column.to_pylist()]
