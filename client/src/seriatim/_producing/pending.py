"""Messages of one partition that are not in a batch yet: columns that grow, and tables that came as such.

Cutting takes from the front; messages keep the order of their sends. Nothing is decided here about when to cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from seriatim._batch import Body, Headers, encode, encode_record_batch
from seriatim._producing.deliveries import Delivery, DeliverySlice, SliceOfBatch
from seriatim._settings import Compression

MESSAGE_OVERHEAD_BYTES: Final = 32
"""What a message costs in a body beside its key and value: offsets, timestamp, validity, rounded up."""

Sink = Delivery | DeliverySlice


class Messages(NamedTuple):
    """Messages of one call, given as columns of one length; None is a column without values."""

    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None
    timestamps_ms: Sequence[int]
    headers: Sequence[Headers | None] | None
    tags: Sequence[str | None] | None

    def at(self, positions: Sequence[int]) -> Messages:
        """Some of them."""
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


class Cut(NamedTuple):
    """A batch to be: its body, and whose messages it holds."""

    body: Body
    slices: list[SliceOfBatch]
    values: Sequence[bytes] | None  # for a recorder; None if they would have to be read from a table
    batch: Any  # the table's record batch, if it is one
    payload_bytes: int


class _Columns:
    """Messages given singly or in lists."""

    __slots__ = ("begun_at", "headers", "keys", "payload_bytes", "slices", "tags", "timestamps", "values")

    def __init__(self, begun_at: float) -> None:
        self.begun_at = begun_at
        self.values: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.timestamps: list[int] = []
        self.headers: list[Headers | None] | None = None
        self.tags: list[str | None] | None = None
        self.slices: deque[tuple[Sink, int, int]] = deque()  # sink, start in it, count
        self.payload_bytes = 0

    def cut(self, size_bytes_max: int, compression: Compression | None) -> Cut:
        count = len(self.values)
        payload_bytes = self.payload_bytes
        if payload_bytes > size_bytes_max:
            count, payload_bytes = self._fitting(size_bytes_max)
        values = _take(self.values, count)
        body = encode(
            values,
            None if self.keys is None else _take(self.keys, count),
            _take(self.timestamps, count),
            None if self.headers is None else _take(self.headers, count),
            None if self.tags is None else _take(self.tags, count),
            compression,
        )
        self.payload_bytes -= payload_bytes
        return Cut(body, self._take_slices(count), values, None, payload_bytes)

    def _fitting(self, size_bytes_max: int) -> tuple[int, int]:
        """How many messages fit, at least one, and their size."""
        keys = self.keys
        total = 0
        for count, value in enumerate(self.values):
            key = keys[count] if keys is not None else None
            size = len(value) + MESSAGE_OVERHEAD_BYTES + (len(key) if key is not None else 0)
            if total + size > size_bytes_max and count:
                return count, total
            total += size
        return len(self.values), total

    def _take_slices(self, count: int) -> list[SliceOfBatch]:
        taken: list[SliceOfBatch] = []
        at = 0
        while at < count:
            sink, start, length = self.slices.popleft()
            here = min(length, count - at)
            taken.append(SliceOfBatch(sink, start, at, here))
            if here < length:
                self.slices.appendleft((sink, start + here, length - here))
            at += here
        return taken


def _take(column: list[Any], count: int) -> list[Any]:
    if count == len(column):
        taken = column[:]
        column.clear()
        return taken
    taken = column[:count]
    del column[:count]
    return taken


class _Table(NamedTuple):
    """A record batch that is to be one batch."""

    begun_at: float
    batch: Any
    sink: DeliverySlice
    start: int
    keyed: bool
    payload_bytes: int


class Pending:
    """The queue of one partition."""

    __slots__ = ("_parts", "payload_bytes")

    def __init__(self) -> None:
        self._parts: deque[_Columns | _Table] = deque()
        self.payload_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def begun_at(self) -> float:
        """When the oldest message came (or, after a cut, one that came with it)."""
        return self._parts[0].begun_at

    @property
    def front_bytes(self) -> int:
        """What the next cut could hold."""
        return self._parts[0].payload_bytes

    @property
    def front_is_whole(self) -> bool:
        """Whether the next cut can grow no more: it is a table, or a table stands behind it."""
        return len(self._parts) > 1 or isinstance(self._parts[0], _Table)

    def _columns(self, now: float) -> _Columns:
        if self._parts and isinstance(self._parts[-1], _Columns):
            return self._parts[-1]
        columns = _Columns(now)
        self._parts.append(columns)
        return columns

    def add_one(
        self,
        value: bytes,
        key: bytes | None,
        timestamp_ms: int,
        headers: Headers | None,
        tag: str | None,
        sink: Delivery,
        size_bytes: int,
        now: float,
    ) -> None:
        """Append one message."""
        columns = self._columns(now)
        before = len(columns.values)
        columns.values.append(value)
        columns.timestamps.append(timestamp_ms)
        columns.keys = _append(columns.keys, before, key)
        columns.headers = _append(columns.headers, before, headers)
        columns.tags = _append(columns.tags, before, tag)
        columns.slices.append((sink, 0, 1))
        columns.payload_bytes += size_bytes
        self.payload_bytes += size_bytes

    def add_many(self, messages: Messages, sink: DeliverySlice, size_bytes: int, now: float) -> None:
        """Append messages of one call."""
        columns = self._columns(now)
        before, count = len(columns.values), len(messages.values)
        columns.values.extend(messages.values)
        columns.timestamps.extend(messages.timestamps_ms)
        columns.keys = _extend(columns.keys, before, messages.keys, count)
        columns.headers = _extend(columns.headers, before, messages.headers, count)
        columns.tags = _extend(columns.tags, before, messages.tags, count)
        columns.slices.append((sink, 0, count))
        columns.payload_bytes += size_bytes
        self.payload_bytes += size_bytes

    def add_record_batch(self, batch: Any, sink: DeliverySlice, start: int, keyed: bool, now: float) -> None:
        """Append a record batch of `SCHEMA` that fits in one batch."""
        size_bytes = batch.nbytes + batch.num_rows
        self._parts.append(_Table(now, batch, sink, start, keyed, size_bytes))
        self.payload_bytes += size_bytes

    def cut(self, size_bytes_max: int, compression: Compression | None) -> Cut:
        """Take the next batch off the front."""
        part = self._parts[0]
        if isinstance(part, _Table):
            cut = _cut_table(part, compression)
            self._parts.popleft()
        else:
            cut = part.cut(size_bytes_max, compression)
            if not part.values:
                self._parts.popleft()
        self.payload_bytes -= cut.payload_bytes
        return cut


def _cut_table(part: _Table, compression: Compression | None) -> Cut:
    timestamps = part.batch.column(2)
    count = part.batch.num_rows
    first, last = timestamps[0].as_py(), timestamps[count - 1].as_py()
    body = encode_record_batch(part.batch, first, last, part.keyed, compression)
    return Cut(body, [SliceOfBatch(part.sink, part.start, 0, count)], None, part.batch, part.payload_bytes)


def _append(column: list[Any] | None, before: int, item: Any) -> list[Any] | None:
    """A column begins when somebody has something for it."""
    if column is None:
        if item is None:
            return None
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


def split_rows(batch: Any, size_bytes_max: int) -> list[Any]:
    """Slices of a record batch, none larger than `size_bytes_max` unless it is one row; no value is copied."""
    rows = batch.num_rows
    if batch.nbytes + rows <= size_bytes_max:
        return [batch] if rows else []
    if rows <= 1:
        return [batch]
    parts = min(rows, -(-(batch.nbytes + rows) // size_bytes_max))
    bounds = list(accumulate([rows // parts + (n < rows % parts) for n in range(parts)], initial=0))
    slices = [batch.slice(begin, end - begin) for begin, end in pairwise(bounds)]
    return [piece for part in slices for piece in split_rows(part, size_bytes_max)]
