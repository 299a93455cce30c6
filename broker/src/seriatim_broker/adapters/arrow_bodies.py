"""Bodies of batches, with pyarrow. It is imported before the broker serves: 27 MB of memory, and a tenth of a second of
a processor. It would import numpy if that is installed, which takes three times as long.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from seriatim_api.batch import FLAG_KEYED, FLAG_LZ4, FLAG_ZSTD
from seriatim_api.dead_letters import DeadLetterOrigin, HeaderList, dead_letter_headers
from seriatim_api.errors import BatchMismatchError, UnreadableBodyError
from seriatim_api.imports import left_out

from ..core.values.keyed import DeadLetterRow
from ..core.values.log import Batch
from ..interfaces.bodies import OpenedBody

_COMPRESSED = FLAG_LZ4 | FLAG_ZSTD

_ROW_BYTES = 32
"""About this many bytes of a plain body a message takes beside its key and its value: its time, and its end in each
column."""


class _Strings(NamedTuple):
    """A column of bytes without nulls: the bytes of all rows, where the first row begins, and where each row ends."""

    ends: memoryview
    data: memoryview


class _Plain(NamedTuple):
    """A body of which messages are cut out without Arrow: each has a value and a time, and nothing but a key.

    `times` are bytes: eight for each message.
    """

    keys: _Strings | None
    values: _Strings
    times: memoryview


class _Opened:
    """The rows of a body."""

    __slots__ = ("batch", "is_seen", "plain")

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.plain: _Plain | None = None
        self.is_seen = False  # whether `plain` is known


class ArrowBodies:
    """The bodies that clients send."""

    def prepare(self) -> None:
        """Import pyarrow, with the module that `take` needs."""
        with left_out("numpy"):
            import pyarrow.compute
        from seriatim_api import bodies

        pyarrow.compute.take(
            pyarrow.Table.from_batches([], bodies.SCHEMA), _numbers([])
        )  # loads what Arrow loads at the first call

    def check(self, body: bytes, message_count: int, flags: int) -> None:
        """Check a body that another process sent: readers will be able to read it."""
        from seriatim_api.bodies import read_body

        read_body(body, message_count, flags & _COMPRESSED)

    def largest_message(self, body: bytes, message_count: int) -> int:
        """The bytes of the key and the value of the largest message."""
        import pyarrow.compute as pc
        from seriatim_api.bodies import read_body

        rows = read_body(body, message_count)
        lengths = pc.fill_null(pc.binary_length(rows.column(1)), 0)
        if rows.column(0).null_count < rows.num_rows:
            lengths = pc.add(lengths, pc.fill_null(pc.binary_length(rows.column(0)), 0))
        return int(pc.max(lengths).as_py() or 0)

    def keys(self, batch: Batch) -> tuple[bytes | None, ...] | None:
        """The key of each message. Of a compressed body only the column of keys is decompressed."""
        if not batch.header.flags & FLAG_KEYED:
            return None
        from seriatim_api.bodies import read_keys

        column = _stored(batch, read_keys)
        if column.null_count == len(column):
            return None
        return tuple(column.to_pylist())

    def open(self, batch: Batch) -> OpenedBody:
        """Take a body apart. The rows of a body that is not compressed are views of it."""
        from seriatim_api.bodies import read_body

        rows = _stored(batch, read_body)
        return OpenedBody(_Opened(rows), max(rows.nbytes, batch.size_bytes))

    def open_joined(self, body: bytes) -> OpenedBody:
        """Take a body apart that `join` made."""
        import pyarrow as pa
        from seriatim_api.bodies import SCHEMA

        return OpenedBody(_Opened(pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA)), len(body))

    def size_of(self, body: OpenedBody, rows: range) -> int:
        """About how many bytes these rows take in a body that `join` makes."""
        plain = _plain_of(body.rows)
        if plain is None:
            return int(body.rows.batch.slice(rows.start, len(rows)).nbytes)
        columns = [plain.values] if plain.keys is None else [plain.keys, plain.values]
        ends = sum(column.ends[rows.stop] - column.ends[rows.start] for column in columns)
        return int(ends + len(rows) * _ROW_BYTES)

    def single(self, key: bytes | None, value: bytes, timestamp_ms: int, headers: Sequence[tuple[str, bytes]]) -> bytes:
        """A body with one message."""
        import pyarrow as pa

        columns = [
            pa.nulls(1, pa.binary()) if key is None else _strings([key], pa.binary()),
            _strings([value], pa.binary()),
            pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(timestamp_ms.to_bytes(8, "little", signed=True))]),
            _headers(headers),
            pa.nulls(1, pa.utf8()),
        ]
        return _serialized(columns)

    def dead_letter(self, body: OpenedBody, row: int, origin: DeadLetterOrigin) -> DeadLetterRow:
        """The copy of one message for the dead-letter topic: all that it has, and the headers of `origin`."""
        columns = list(body.rows.batch.slice(row, 1).columns)
        timestamp_ms = columns[2][0].as_py()
        columns[3] = _headers(dead_letter_headers(columns[3][0].as_py() or (), origin))
        is_keyed = columns[0].null_count == 0
        return DeadLetterRow(_serialized(columns), timestamp_ms or origin.time_ms, is_keyed)

    def join(self, parts: Sequence[tuple[OpenedBody, range]]) -> bytes:
        """A body with these rows, in this order."""
        plain = [(columns, rows) for body, rows in parts if (columns := _plain_of(body.rows)) is not None]
        if len(plain) == len(parts) and len({columns.keys is None for columns, _ in plain}) == 1:
            return _join_plain(plain)
        return _join_all(parts)


def _stored(batch: Batch, read: Callable[[bytes, int], Any]) -> Any:
    """Read a body that is in the log already."""
    try:
        return read(batch.body, batch.header.message_count)
    except BatchMismatchError as exc:
        raise UnreadableBodyError(exc.message) from exc


# Arrays are made from buffers. `pa.array` would import pandas.


def _serialized(columns: Sequence[Any]) -> bytes:
    import pyarrow as pa
    from seriatim_api.bodies import SCHEMA

    return bytes(pa.RecordBatch.from_arrays(columns, schema=SCHEMA).serialize().to_pybytes())


def _strings(items: Sequence[bytes | None], kind: Any) -> Any:
    import pyarrow as pa

    count, validity = len(items), None
    if None in items:
        bits = sum(1 << at for at, item in enumerate(items) if item is not None)
        validity = pa.py_buffer(bits.to_bytes(-(-count // 8), "little"))
    parts = [item or b"" for item in items]
    ends = array("i", accumulate(map(len, parts), initial=0))
    return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(parts))])


def _headers(headers: HeaderList) -> Any:
    """The column of headers of one message."""
    import pyarrow as pa
    from seriatim_api.bodies import HEADERS_TYPE

    if not headers:
        return pa.nulls(1, HEADERS_TYPE)
    names = _strings([name.encode() for name, _ in headers], pa.utf8())
    values = _strings([value for _, value in headers], pa.binary())
    pair = pa.struct([HEADERS_TYPE.key_field, HEADERS_TYPE.item_field])
    pairs = pa.Array.from_buffers(pair, len(headers), [None], children=[names, values])
    ends = pa.py_buffer(array("i", (0, len(headers))).tobytes())
    return pa.Array.from_buffers(HEADERS_TYPE, 1, [None, ends], children=[pairs])


def _plain_of(opened: _Opened) -> _Plain | None:
    """The body as plain columns; None if it has headers, tags, null values, or keys of some messages only."""
    if not opened.is_seen:
        opened.is_seen = True
        keys, values, times, headers, tags = opened.batch.columns
        count = opened.batch.num_rows
        is_plain = headers.null_count == tags.null_count == count and not (values.null_count or times.null_count)
        if is_plain and keys.null_count in (0, count):
            _, buffer = times.buffers()
            begin = 8 * times.offset
            opened.plain = _Plain(
                _strings_of(keys) if keys.null_count == 0 else None,
                _strings_of(values),
                memoryview(buffer).cast("B")[begin : begin + 8 * count],
            )
    return opened.plain


def _strings_of(column: Any) -> _Strings:
    _, ends, data = column.buffers()
    at = column.offset
    return _Strings(
        memoryview(ends).cast("i")[at : at + len(column) + 1], memoryview(data if data is not None else b"").cast("B")
    )


def _join_plain(parts: Sequence[tuple[_Plain, range]]) -> bytes:
    """A body with these rows, in this order. Either all of them have keys or none.

    Arrow's `take` costs some microseconds for each column of each body, and copies the values again to put the pieces
    together and in order. Here each piece costs about a microsecond, and values are copied once.
    """
    import pyarrow as pa
    from seriatim_api.bodies import HEADERS_TYPE

    keys = _Joined() if parts[0][0].keys is not None else None
    values, times = _Joined(), array("q")
    for columns, rows in parts:
        values.add(columns.values, rows)
        if keys is not None and columns.keys is not None:
            keys.add(columns.keys, rows)
        times.frombytes(columns.times[8 * rows.start : 8 * rows.stop])
    count = len(times)
    return _serialized(
        [
            keys.column() if keys is not None else pa.nulls(count, pa.binary()),
            values.column(),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(times)]),
            pa.nulls(count, HEADERS_TYPE),
            pa.nulls(count, pa.utf8()),
        ]
    )


def _join_all(parts: Sequence[tuple[OpenedBody, range]]) -> bytes:
    """The same for bodies that are not plain."""
    import pyarrow as pa

    wanted: dict[int, tuple[OpenedBody, list[int]]] = {}
    for body, rows in parts:
        wanted.setdefault(id(body), (body, []))[1].extend(rows)
    pieces = [_take(body.rows.batch, numbers) for body, numbers in wanted.values()]
    if len(pieces) == 1:
        whole = pieces[0]
    else:
        (whole,) = pa.Table.from_batches(pieces).combine_chunks().to_batches()
    if len(parts) > len(pieces):
        whole = whole.take(_numbers(_order(parts)))
    return bytes(whole.serialize().to_pybytes())


class _Joined:
    """A column that is put together."""

    __slots__ = ("_ends", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[memoryview] = []
        self._ends = [0]

    def add(self, column: _Strings, rows: range) -> None:
        """Add rows of a column."""
        ends, data = column
        if len(rows) == 1:
            begin, end = ends[rows.start], ends[rows.stop]
            self._pieces.append(data[begin:end])
            self._ends.append(self._ends[-1] + end - begin)
            return
        begins = ends[rows.start : rows.stop + 1].tolist()
        self._pieces.append(data[begins[0] : begins[-1]])
        shift = self._ends[-1] - begins[0]
        self._ends += [end + shift for end in begins[1:]]

    def column(self) -> Any:
        """The column."""
        import pyarrow as pa

        ends = pa.py_buffer(array("i", self._ends))
        return pa.Array.from_buffers(
            pa.binary(), len(self._ends) - 1, [None, ends, pa.py_buffer(b"".join(self._pieces))]
        )


def _take(rows: Any, wanted: Sequence[int]) -> Any:
    """The wanted rows of a record batch, without a copy if they follow one another."""
    first, count = wanted[0], len(wanted)
    if wanted[-1] - first + 1 == count and list(wanted) == list(range(first, first + count)):
        return rows.slice(first, count)
    return rows.take(_numbers(wanted))


def _numbers(numbers: Sequence[int]) -> Any:
    """An Arrow array of numbers. `pyarrow.array` would import pandas if it is installed, which takes seconds."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(array("q", numbers))])


def _order(parts: Sequence[tuple[OpenedBody, range]]) -> list[int]:
    """The places of the rows, in the order of `parts`, if all rows of each body stand together."""
    begins: dict[int, int] = {}
    counts: dict[int, int] = {}
    for body, rows in parts:
        counts[id(body)] = counts.get(id(body), 0) + len(rows)
    begin = 0
    for which, count in counts.items():
        begins[which], begin = begin, begin + count
    order: list[int] = []
    for body, rows in parts:
        at = begins[id(body)]
        order.extend(range(at, at + len(rows)))
        begins[id(body)] = at + len(rows)
    return order
