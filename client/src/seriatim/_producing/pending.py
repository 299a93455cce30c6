"""Messages of one partition that are not in a batch yet: columns that grow, and tables that were sent as tables.

A batch is cut off the front in two steps. `peek` builds it, and may raise, because it encodes. `drop` then removes its
messages. Without two steps: 1. A message is removed from its value column. 2. Encoding raises. 3. The message's key
stays in its column, so from then on each value has the key, and the receipt, of another message.

Messages keep the order of their sends. `batching` decides when a batch is cut. Tables that wait together become one
batch, if they fit into one; over a distance the last one is divided, so that the batch is full. Without it:

1. A broker is 25 ms away, and a partition has at most 16 batches on their way. So in 100 ms it sends 16 batches.
2. An application sends tables of 100 rows, and each is a batch.
3. It sends 16,000 rows in a second, whatever disks and networks could do.

*Delays.* A batch has one due time, so only messages with the same delay or due time share a batch. A delayed message is
in no order with the others. So messages join the newest batch of their kind, also if others came after it.

*Deadlines.* All messages of a batch have the deadline of its oldest one. So messages that came far apart never share a
batch: after `JOINED_SHARE` of the delivery timeout, messages get a new part. Without it: 1. No broker answers for two
minutes, and 100 KB of messages wait. 2. A broker answers again, and all of them become one batch. 3. The deadline of
the oldest message comes before the acknowledgement, and a message that was given a second ago is unknown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa

from seriatim._bodies.arrow import HEADER_OVERHEAD_BYTES, Body, encode, encode_record_batch
from seriatim._producing.deliveries import Delivery, DeliverySlice, Sink
from seriatim._values.headers import HeaderList
from seriatim._values.settings import Compression

MESSAGE_OVERHEAD_BYTES: Final = 32
"""Bytes that a message takes in a body besides its key and value: offsets, timestamp, validity, rounded up."""

JOINED_SHARE: Final = 64
"""Messages that came within this fraction of the delivery timeout of each other (1.9 s of 120 s) may share a batch, so
a delivery may settle this much before its deadline."""

JOINED_S_MIN: Final = 0.01


def attached_bytes(headers: HeaderList | None, tag: str | None) -> int:
    """The bytes that headers and a tag take in a body. They were checked before."""
    size = 0 if tag is None else len(tag.encode())
    for name, value in headers or ():
        size += len(name.encode()) + len(value or b"") + HEADER_OVERHEAD_BYTES
    return size


class Messages(NamedTuple):
    """Messages of one call, as columns of the same length. None is a column without values, or a null value."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    timestamps_ms: Sequence[int]
    headers: Sequence[HeaderList | None] | None
    tags: Sequence[str | None] | None

    def at(self, positions: Sequence[int]) -> Messages:
        """The messages at these positions."""
        if len(positions) == len(self.values):
            return self
        values, keys, timestamps_ms, headers, tags = self
        return Messages(
            [values[n] for n in positions],
            None if keys is None else [keys[n] for n in positions],
            [timestamps_ms[n] for n in positions],
            None if headers is None else [headers[n] for n in positions],
            None if tags is None else [tags[n] for n in positions],
        )

    def size_bytes(self) -> int:
        """The bytes that all of them take in bodies."""
        values, keys, _, headers, tags = self
        size = sum(map(len, filter(None, values))) + MESSAGE_OVERHEAD_BYTES * len(values)
        if keys is not None:
            size += sum(len(key) for key in keys if key is not None)
        if headers is not None:
            size += sum(attached_bytes(row, None) for row in headers if row)
        if tags is not None:
            size += sum(attached_bytes(None, tag) for tag in tags if tag)
        return size


class Cut(NamedTuple):
    """A batch to be: its body, and what gets the outcome of its messages, in their order."""

    body: Body
    sinks: list[Sink]
    values: Sequence[bytes | None] | None  # None if they would have to be read from `batch`
    batch: Any  # the table's record batch, if it is one
    payload_bytes: int
    keys: Sequence[bytes | None] | None = None  # of `values`
    due_time_ms: int = 0  # as in the header: a time, or a duration below 0

    def rows(self) -> tuple[Sequence[bytes | None], Sequence[bytes | None] | None]:
        """The values and the keys, for a recorder."""
        if self.values is None:
            return self.batch.column(1).to_pylist(), self.batch.column(0).to_pylist()
        return self.values, self.keys


@dataclass(slots=True, eq=False)
class _Columns:
    """Messages that were sent singly or in lists."""

    begun_at: float
    due_time_ms: int = 0
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] | None = None
    timestamps: list[int] = field(default_factory=list)
    headers: list[HeaderList | None] | None = None
    tags: list[str | None] | None = None
    sinks: deque[Sink] = field(default_factory=deque)
    payload_bytes: int = 0

    def peek(self, size_bytes_max: int, compression: Compression | None) -> Cut:
        """Build a batch of the messages at the front. It changes nothing."""
        if self.payload_bytes <= size_bytes_max:
            return self._whole(compression)
        count, payload_bytes = self._fitting(size_bytes_max)
        values = self.values[:count]
        keys = None if self.keys is None else self.keys[:count]
        body = encode(
            values,
            keys,
            self.timestamps[:count],
            None if self.headers is None else self.headers[:count],
            None if self.tags is None else self.tags[:count],
            compression,
        )
        return Cut(body, self._front_sinks(count), values, None, payload_bytes, keys, self.due_time_ms)

    def _whole(self, compression: Compression | None) -> Cut:
        """A batch of all messages, whose lists are not copied."""
        body = encode(self.values, self.keys, self.timestamps, self.headers, self.tags, compression)
        return Cut(body, list(self.sinks), self.values, None, self.payload_bytes, self.keys, self.due_time_ms)

    def drop(self, cut: Cut) -> None:
        """Remove the messages of the batch that `peek` built. Others are left."""
        count = cut.body.message_count
        for column in (self.values, self.keys, self.timestamps, self.headers, self.tags):
            if column is not None:
                del column[:count]
        for _ in cut.sinks[1:]:
            self.sinks.popleft()
        last, taken = self.sinks[0], cut.sinks[-1]
        if isinstance(last, DeliverySlice) and isinstance(taken, DeliverySlice) and len(taken) < len(last):
            self.sinks[0] = last.rest(len(taken))
        else:
            self.sinks.popleft()
        self.payload_bytes -= cut.payload_bytes

    def _fitting(self, size_bytes_max: int) -> tuple[int, int]:
        """How many messages fit, at least one, and their bytes."""
        keys, headers, tags = self.keys, self.headers, self.tags
        total = 0
        for count, value in enumerate(self.values):
            key = keys[count] if keys is not None else None
            size = len(value or b"") + MESSAGE_OVERHEAD_BYTES + len(key or b"")
            if headers is not None or tags is not None:
                size += attached_bytes(headers[count] if headers else None, tags[count] if tags else None)
            if total + size > size_bytes_max and count:
                return count, total
            total += size
        return len(self.values), total

    def _front_sinks(self, count: int) -> list[Sink]:
        front: list[Sink] = []
        left = count
        for sink in self.sinks:
            if isinstance(sink, Delivery):
                front.append(sink)
                left -= 1
            else:
                front.append(sink if len(sink) <= left else sink.first(left))
                left -= len(sink)
            if left <= 0:
                break
        return front

    @property
    def message_count(self) -> int:
        return len(self.values)

    def all_sinks(self) -> list[Sink]:
        return list(self.sinks)


class _Table(NamedTuple):
    """A record batch that becomes one batch, perhaps together with those after it."""

    begun_at: float
    batch: Any
    sink: DeliverySlice
    keyed: bool
    payload_bytes: int

    @property
    def message_count(self) -> int:
        return len(self.sink)

    def first(self, size_bytes_max: int) -> _Table | None:
        """About as many of its first rows as fit; None if there are none."""
        count = self.message_count * size_bytes_max // self.payload_bytes
        if count <= 0:
            return None
        piece = self.batch.slice(0, count)
        size_bytes = piece.nbytes + count
        if size_bytes > size_bytes_max:
            return None
        return self._replace(batch=piece, sink=self.sink.first(count), payload_bytes=size_bytes)

    def rest(self, count: int, size_bytes: int) -> _Table:
        """It without its first rows, which take this many bytes."""
        rest, sink = self.batch.slice(count), self.sink.rest(count)
        return self._replace(batch=rest, sink=sink, payload_bytes=self.payload_bytes - size_bytes)

    def all_sinks(self) -> list[Sink]:
        return [self.sink]


class _Encoded(NamedTuple):
    """An encoded body that becomes one batch."""

    begun_at: float
    body: Body
    sink: DeliverySlice
    payload_bytes: int

    @property
    def message_count(self) -> int:
        return len(self.sink)

    def all_sinks(self) -> list[Sink]:
        return [self.sink]


class Pending:
    """The messages of one partition that wait for a batch, in their order.

    Args:
        timeout_s: The delivery timeout, in seconds.
        linger_s: How long a batch may wait for more messages, in seconds.
        joins_tables: Whether tables may leave in one batch. Not if they are staged: a manifest names each as a batch.
            Without it: 1. Two tables wait for the first connection, and leave in one batch. 2. The manifest names each
            by its place and its number of rows. 3. The publication is decided. No master finds these batches, and all
            of these rows are lost.
    """

    __slots__ = ("_joined_s", "_joins_tables", "_open", "_parts", "_timeout_s", "payload_bytes")

    def __init__(self, timeout_s: float, linger_s: float, *, joins_tables: bool = True) -> None:
        self._parts: deque[_Columns | _Table | _Encoded] = deque()
        self._open: dict[
            int, _Columns
        ] = {}  # the parts that grow, by due time; of ordinary messages only the last part
        self._timeout_s = timeout_s
        self._joined_s = max(timeout_s / JOINED_SHARE, linger_s, JOINED_S_MIN)
        self._joins_tables = joins_tables
        self.payload_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def begun_at(self) -> float:
        """When the first messages of the front part came, in seconds of the monotonic clock."""
        return self._parts[0].begun_at

    @property
    def deadline_at(self) -> float:
        """When the front part is overdue, in seconds of the monotonic clock."""
        return self._parts[0].begun_at + self._timeout_s

    @property
    def front_bytes(self) -> int:
        """The bytes that the next batch could have."""
        return self._parts[0].payload_bytes

    @property
    def front_is_whole(self) -> bool:
        """Whether the next batch cannot grow any more, because it is a table, or a table is behind it."""
        front = self._parts[0]
        return not isinstance(front, _Columns) or self._open.get(front.due_time_ms) is not front

    def _columns(self, due_time_ms: int) -> _Columns:
        now = time.monotonic()
        columns = self._open.get(due_time_ms)
        if columns is None or now - columns.begun_at >= self._joined_s:
            columns = self._open[due_time_ms] = _Columns(now, due_time_ms)
            self._parts.append(columns)
        return columns

    def _pop(self) -> _Columns | _Table | _Encoded:
        part = self._parts.popleft()
        if isinstance(part, _Columns) and self._open.get(part.due_time_ms) is part:
            del self._open[part.due_time_ms]
        return part

    def add_one(
        self,
        value: bytes | None,
        key: bytes | None,
        timestamp_ms: int,
        headers: HeaderList | None,
        tag: str | None,
        sink: Delivery,
        size_bytes: int,
        due_time_ms: int = 0,
    ) -> None:
        """Add one message at the end."""
        columns = self._columns(due_time_ms)
        if key is not None or columns.keys is not None:
            columns.keys = _append(columns.keys, len(columns.values), key)
        if headers is not None or columns.headers is not None:
            columns.headers = _append(columns.headers, len(columns.values), headers)
        if tag is not None or columns.tags is not None:
            columns.tags = _append(columns.tags, len(columns.values), tag)
        columns.values.append(value)
        columns.timestamps.append(timestamp_ms)
        columns.sinks.append(sink)
        columns.payload_bytes += size_bytes
        self.payload_bytes += size_bytes

    def add_many(self, messages: Messages, sink: DeliverySlice, size_bytes: int, due_time_ms: int = 0) -> None:
        """Add messages of one call at the end."""
        columns = self._columns(due_time_ms)
        before, count = len(columns.values), len(messages.values)
        assert len(sink) == count
        columns.values.extend(messages.values)
        columns.timestamps.extend(messages.timestamps_ms)
        columns.keys = _extend(columns.keys, before, messages.keys, count)
        columns.headers = _extend(columns.headers, before, messages.headers, count)
        columns.tags = _extend(columns.tags, before, messages.tags, count)
        columns.sinks.append(sink)
        columns.payload_bytes += size_bytes
        self.payload_bytes += size_bytes

    def add_record_batch(self, batch: Any, sink: DeliverySlice, keyed: bool, size_bytes: int) -> None:
        """Add a record batch of `SCHEMA`, which fits into one batch, at the end."""
        self._open.pop(0, None)
        self._parts.append(_Table(time.monotonic(), batch, sink, keyed, size_bytes))
        self.payload_bytes += size_bytes

    def add_body(self, body: Body, sink: DeliverySlice) -> None:
        """Add an encoded body at the end."""
        self._open.pop(0, None)
        self._parts.append(_Encoded(time.monotonic(), body, sink, len(body.data)))
        self.payload_bytes += len(body.data)

    def peek(self, size_bytes_max: int, compression: Compression | None, *, fills: bool = False) -> Cut:
        """Build the next batch. It changes nothing, so if it raises, all messages are still here.

        Args:
            size_bytes_max: Payload of a full batch.
            compression: The compression of the body.
            fills: Whether a table is divided so that the batch is full. It costs a copy of the rows.
        """
        part = self._parts[0]
        if isinstance(part, _Encoded):
            return Cut(part.body, part.all_sinks(), None, None, part.payload_bytes)
        if isinstance(part, _Table):
            parts = self._joined(part, size_bytes_max, fills=fills) if self._joins_tables else [part]
            return _cut_tables(parts, compression)
        return part.peek(size_bytes_max, compression)

    def _joined(self, first: _Table, size_bytes_max: int, *, fills: bool) -> list[_Table]:
        """The tables at the front that fit into one batch together: at least the first one."""
        found, left = [first], size_bytes_max - first.payload_bytes
        for part in islice(self._parts, 1, None):
            if (
                not isinstance(part, _Table)
                or part.keyed is not first.keyed
                or part.begun_at - first.begun_at >= self._joined_s
            ):
                break
            if part.payload_bytes > left:
                begin = part.first(left) if fills else None
                if begin is not None:
                    found.append(begin)
                break
            left -= part.payload_bytes
            found.append(part)
        return found

    def drop(self, cut: Cut) -> None:
        """Remove the messages of the batch that `peek` built."""
        part = self._parts[0]
        if isinstance(part, _Columns) and cut.body.message_count < len(part.values):
            part.drop(cut)
        else:
            self._drop_whole(cut)
        self.payload_bytes -= cut.payload_bytes

    def _drop_whole(self, cut: Cut) -> None:
        """Remove the parts that the batch has. Of the last one, a table, rows may be left."""
        part, left, size_bytes = self._pop(), cut.body.message_count, cut.payload_bytes
        while part.message_count < left:
            left -= part.message_count
            size_bytes -= part.payload_bytes
            part = self._pop()
        if isinstance(part, _Table) and left < part.message_count:
            self._parts.appendleft(part.rest(left, size_bytes))

    def front_sinks(self) -> list[Sink]:
        """What gets the outcome of the messages of the front part, in their order."""
        return self._parts[0].all_sinks()

    def drop_front(self) -> None:
        """Remove the front part, whose messages are settled."""
        self.payload_bytes -= self._pop().payload_bytes

    @property
    def front_count(self) -> int:
        """The number of messages of the front part."""
        return self._parts[0].message_count

    @property
    def message_count(self) -> int:
        """The number of messages that wait here."""
        return sum(part.message_count for part in self._parts)

    def all_sinks(self) -> list[Sink]:
        """What gets the outcome of the messages that wait here, in their order."""
        return [sink for part in self._parts for sink in part.all_sinks()]

    def clear(self) -> None:
        """Remove all messages."""
        self._parts.clear()
        self._open.clear()
        self.payload_bytes = 0


def _cut_tables(parts: list[_Table], compression: Compression | None) -> Cut:
    batch = parts[0].batch if len(parts) == 1 else pa.concat_batches([part.batch for part in parts])
    timestamps = batch.column(2)
    count = batch.num_rows
    first, last = timestamps[0].as_py(), timestamps[count - 1].as_py()
    body = encode_record_batch(batch, first, last, parts[0].keyed, compression)
    return Cut(body, [part.sink for part in parts], None, batch, sum(part.payload_bytes for part in parts))


def _append(column: list[Any] | None, before: int, item: Any) -> list[Any]:
    """Add an item to a column. A column is made when the first message has a value for it."""
    if column is None:
        column = [None] * before
    column.append(item)
    return column


def _extend(column: list[Any] | None, before: int, items: Sequence[Any] | None, count: int) -> list[Any] | None:
    if column is None:
        if items is None:
            return None
        column = [None] * before
    column.extend([None] * count if items is None else items)
    return column


def split_rows(batch: Any, size_bytes_max: int) -> list[tuple[Any, int]]:
    """Divide a record batch into slices, each with the bytes that it takes in a body. No value is copied.

    A slice takes at most `size_bytes_max`, unless it is one row.
    """
    rows = batch.num_rows
    size_bytes = batch.nbytes + rows  # Arrow reads all buffers for `nbytes`, which costs as much as writing the body
    if size_bytes <= size_bytes_max:
        return [(batch, size_bytes)] if rows else []
    if rows <= 1:
        return [(batch, size_bytes)]
    parts = min(rows, -(-size_bytes // size_bytes_max))
    bounds = list(accumulate([rows // parts + (n < rows % parts) for n in range(parts)], initial=0))
    slices = [batch.slice(begin, end - begin) for begin, end in pairwise(bounds)]
    return [piece for part in slices for piece in split_rows(part, size_bytes_max)]
