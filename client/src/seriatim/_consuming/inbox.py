"""The inbox: batches that came and wait for the application. It unpacks a batch when the application asks for it.

A batch in the inbox came under a grant. When the grant ends, the batch is void, and the inbox drops it: it comes again,
here or elsewhere. The broker gets the credit back when a batch is unpacked or dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import pyarrow as pa
from seriatim_api.batch import HEADER_SIZE_BYTES, BatchHeader
from seriatim_api.errors import PreconditionError, SeriatimError, UnreadableBodyError
from seriatim_api.ids import format_offset, make_offset, split_offset

from seriatim._bodies import arrow
from seriatim._core.consumer import PartitionConsumer
from seriatim._values.headers import NO_HEADERS, headers_of
from seriatim._values.records import Message

T = TypeVar("T")

_NO_MESSAGES: Final[Iterator[Message]] = iter(())

_message_of: Final[Callable[[tuple[Any, ...]], Message]] = partial(tuple.__new__, Message)
"""The same as `Message(*fields)`, in half the time."""


class FetchedTable(NamedTuple):
    """The rows of one batch of a partition.

    Attributes:
        topic: The topic's name.
        partition: The partition's number in the topic.
        offset: The offset of the first row; the others follow one by one.
        table: The columns key, value, timestamp, headers and tag. No value was copied. Values and the values of headers
            may be null.
        attempt: The delivery attempt, as in `Message`.
        maybe_repeated: Whether another server may have delivered any of the rows before.
        grant: The number of the consumer's grant, which `ack` compares.
    """

    topic: str
    partition: int
    offset: int
    table: pa.Table
    attempt: int
    maybe_repeated: bool
    grant: int


class TakesCredit(Protocol):
    """The stream on which a batch came, which gets credit back for it."""

    def give_credit(self, size_bytes: int, /) -> None:
        """Give the broker credit for this many bytes."""


class _Paid:
    """In place of the stream of a batch that was opened before, and for which the broker has its credit."""

    def give_credit(self, size_bytes: int, /) -> None:
        pass


class Receiver(Protocol):
    """One partition, as its batches in the inbox see it: it says whether they may still be given to the application.

    Attributes:
        number: The partition's number in the topic.
        core: Has the present grant, and the time at which it lapses.
        held: Batches that the application does not get while the partition is being yielded.
        taken: The last offset that the application got under the present grant.
    """

    number: int
    core: PartitionConsumer
    held: list[Chunk]
    taken: int | None

    def is_current(self, grant: int) -> bool:
        """Whether messages that came under a grant may still be given to the application."""

    def yield_if_empty(self) -> None:
        """The application has got all that was here."""


class Chunk(NamedTuple):
    """A batch that waits in the inbox: its grant, and the index from which its messages are delivered."""

    subscription: Receiver
    grant: int
    segment: int
    from_index: int
    maybe_repeated_below: int
    delivery_attempt: int
    header: BatchHeader
    body: memoryview
    link: TakesCredit


class Inbox:
    """The batches for one consumer, in the order in which they came.

    Args:
        topic: The topic's name, for the messages.
        record: Called with the messages of each table that the application takes; None: no history is written.
    """

    def __init__(self, topic: str, record: Callable[[Sequence[Message]], None] | None) -> None:
        self._topic = topic
        self._record = record
        self.chunks: deque[Chunk] = deque()
        self._opened: Chunk | None = None
        self._messages = _NO_MESSAGES  # the messages of the opened chunk that the application has not taken
        self._last_table: Receiver | None = None  # the partition of the newest table
        self._fresh_until_s = 0.0  # the grant of that chunk certainly counts until then
        self._arrived = asyncio.Event()
        self._error: SeriatimError | None = None
        self._interruption: SeriatimError | None = None
        self._closed = False

    # ---- from the streams ----------------------------------------------------------------------------

    def put(self, chunks: Iterable[Chunk]) -> None:
        """Add batches that came."""
        self.chunks.extend(chunks)
        self._interruption = None
        self._arrived.set()

    def interrupt(self, error: SeriatimError | None) -> None:
        """Have one call of the application raise an error, if it would wait. The next one waits again."""
        self._interruption = error
        if error is not None:
            self._arrived.set()

    def fail(self, error: SeriatimError) -> None:
        """Have each later call of the application raise an error: order cannot be kept, or a partition not be read."""
        if self._error is None:
            self._error = error
        self._arrived.set()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, and had not failed before."""
        return self._closed and self._error is None

    def close(self) -> None:
        """Close the inbox. Calls that wait raise `PreconditionError`."""
        self._closed = True
        self._arrived.set()

    def hold(self, subscription: Receiver) -> None:
        """Give the application no more of a partition: its batches wait in `subscription.held`."""
        opened, held = self._opened, subscription.held
        if opened is not None and opened.subscription is subscription:
            taken = -1 if subscription.taken is None else split_offset(subscription.taken)[1]
            rest = opened._replace(from_index=max(opened.from_index, taken + 1), link=_Paid())
            if rest.from_index < rest.header.end_index:
                held.append(rest)
            self._opened, self._messages = None, _NO_MESSAGES
        others = [chunk for chunk in self.chunks if chunk.subscription is not subscription]
        if len(others) < len(self.chunks):
            held += [chunk for chunk in self.chunks if chunk.subscription is subscription]
            self.chunks.clear()
            self.chunks.extend(others)

    def let_go(self, subscription: Receiver) -> None:
        """The batches that were held come first. Those of a grant that has ended are dropped, as all others."""
        if subscription.held:
            self.chunks.extendleft(reversed(subscription.held))
            subscription.held.clear()
            self._arrived.set()

    def has(self, subscription: Receiver) -> bool:
        """Whether anything of a partition waits for the application."""
        opened = self._opened
        return (opened is not None and opened.subscription is subscription) or any(
            chunk.subscription is subscription for chunk in self.chunks
        )

    # ---- to the application --------------------------------------------------------------------------

    async def next(self, deadline: float | None) -> Message | None:
        """The next message; None at the deadline.

        Raises:
            SeriatimError: A partition cannot be read any more; the error says why.
            TlsHandshakeError: It would wait, and no broker is reached.
            PreconditionError: The consumer is closed.
        """
        if self._opened is not None:
            self._look_at_grant(self._opened)  # a long pause of the process may have ended the grant
        while True:
            self._check()
            message = self._take()
            if message is not None:
                return message
            self._check()  # `_take` may have met a batch that cannot be read
            if not await self._wait(deadline):
                return None

    async def next_table(self, deadline: float) -> FetchedTable | None:
        """The next batch as a table; None at the deadline. The errors are those of `next`."""
        while True:
            self._check()
            if self._last_table is not None and self._last_table.core.yielding:
                self._last_table.yield_if_empty()
            while self.chunks and self._error is None:
                chunk = self._pop()
                table = self._read(chunk, self._table) if chunk is not None else None
                if table is not None and chunk is not None:
                    self._last_table = chunk.subscription
                    return table
            self._check()
            if not await self._wait(deadline):
                return None

    def take_more(self, messages: list[Message], count_max: int) -> None:
        """Add messages that are here already, until there are `count_max`. It does not wait."""
        while (left := count_max - len(messages)) > 0:
            messages.extend(islice(self._messages, left))
            if self._opened is not None:
                self._opened.subscription.taken = messages[-1].offset
            if len(messages) < count_max:
                message = self._take()  # the first message of the next chunk
                if message is None:
                    return
                messages.append(message)

    def take_open(self) -> Message | None:
        """The next message of the opened chunk, on a fast path without other checks. If it is None, call `next`."""
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
        """The next message that is here and whose grant counts. None if there is none, or a batch cannot be read."""
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
                if subscription.core.yielding:
                    subscription.yield_if_empty()
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
        """Unpack a batch. If that fails, the error stays, and no message after the batch is given out.

        Without it: 1. A batch cannot be unpacked, and it has left the inbox. 2. The application catches the error and
        asks again. 3. It gets the messages after the batch. 4. It acknowledges them, and with them the messages of the
        batch, which it never got.
        """
        try:
            return unpack(chunk)
        except UnreadableBodyError as exc:
            self._fail_at(chunk, exc, exc.message)
        except SeriatimError as exc:
            self.fail(exc)
        except Exception as exc:
            self._fail_at(chunk, exc, f"{type(exc).__name__}: {exc}")
        return None

    def _fail_at(self, chunk: Chunk, cause: Exception, reason: str) -> None:
        place = f"{self._topic}/{chunk.subscription.number} at {format_offset(_first_offset(chunk))}"
        error = UnreadableBodyError(
            f"the batch in {place} cannot be read, so the consumer stops before it, and the group stays there: {reason}"
        )
        error.__cause__ = cause
        self.fail(error)

    def _pop(self) -> Chunk | None:
        """Take the next batch out of the inbox. Returns None if its grant has ended."""
        chunk = self.chunks.popleft()
        chunk.link.give_credit(HEADER_SIZE_BYTES + chunk.header.body_length)
        return chunk if chunk.subscription.is_current(chunk.grant) else None

    async def _wait(self, deadline: float | None) -> bool:
        if self._interruption is not None:
            error, self._interruption = self._interruption, None
            raise error
        self._arrived.clear()
        try:
            async with asyncio.timeout_at(deadline):
                await self._arrived.wait()
        except TimeoutError:
            return False
        return True

    def _check(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)  # or each call would add its frames
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
            chunk.delivery_attempt,
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
        return messages_of(self._topic, number, _first_offset(chunk), rows, chunk.delivery_attempt, split, chunk.grant)


def messages_of(
    topic: str, partition: int, offset: int, rows: Any, attempt: int = 1, repeated_count: int = 0, grant: int = 0
) -> Iterator[Message]:
    """The messages in a record batch. The first `repeated_count` of them are flagged `maybe_repeated`.

    The columns are unpacked at once, so a batch that cannot be read raises here and not later.
    """
    count = rows.num_rows
    repeated = chain(repeat(True, repeated_count), repeat(False, count - repeated_count))
    offsets = range(offset, offset + count)
    return granted_messages(topic, partition, offsets, rows, repeat(attempt), repeated, repeat(grant))


def granted_messages(
    topic: str,
    partition: int,
    offsets: Iterable[int],
    rows: Any,
    attempts: Iterable[int],
    repeated: Iterable[bool],
    grants: Iterable[int],
) -> Iterator[Message]:
    """The messages in a record batch that were granted key by key, each with its own offset and grant."""
    keys, value_column, timestamps, headers, tags = rows.columns
    count = rows.num_rows
    values = value_column.to_pylist()
    are_null: Iterable[bool] = repeat(False)
    if value_column.null_count:
        are_null = [value is None for value in values]
        values = [value or b"" for value in values]
    return map(
        _message_of,
        zip(
            repeat(topic),
            repeat(partition),
            offsets,
            _column(keys, count),
            values,
            timestamps.to_pylist(),
            _header_column(headers, count),
            _column(tags, count),
            attempts,
            repeated,
            grants,
            are_null,
            strict=False,  # `repeat` has no end
        ),
    )


def _first_offset(chunk: Chunk) -> int:
    return make_offset(chunk.segment, chunk.from_index)


def _decode(chunk: Chunk) -> Any:
    return arrow.decode(chunk.body, chunk.header.message_count, chunk.header.body_crc)


def _column(column: Any, count: int) -> Any:
    return repeat(None, count) if column.null_count == count else column.to_pylist()


def _header_column(column: Any, count: int) -> Any:
    if column.null_count == count:
        return repeat(NO_HEADERS, count)
    rows = column.to_pylist()
    found = [dict(row) if row else NO_HEADERS for row in rows]
    if column.items.null_count or sum(map(len, found)) < sum(map(len, filter(None, rows))):  # nulls, repeated names
        return [headers_of(row) for row in rows]
    return found
