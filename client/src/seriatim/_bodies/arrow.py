"""Writes and reads bodies of batches: an Arrow IPC record batch without its schema message.

`seriatim_api.bodies` says which columns it has, and `seriatim_api.batch` what is in the header of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

import google_crc32c
import numpy as np
import pyarrow as pa
from seriatim_api.batch import FLAG_KEYED, FLAG_LZ4, FLAG_ZSTD
from seriatim_api.bodies import HEADERS_TYPE, SCHEMA, read_body
from seriatim_api.errors import (
    ChecksumMismatchError,
    IllegalMessageError,
)

from seriatim._bodies.templates import Template, template
from seriatim._values.headers import HeaderList
from seriatim._values.settings import Compression

_TYPES: Final = {field.name: field.type for field in SCHEMA}

_FLAGS: Final = {None: 0, "lz4": FLAG_LZ4, "zstd": FLAG_ZSTD}
_OPTIONS: Final = {
    None: pa.ipc.IpcWriteOptions(),
    "lz4": pa.ipc.IpcWriteOptions(compression="lz4"),
    "zstd": pa.ipc.IpcWriteOptions(compression="zstd"),
}
_NULLS_KEPT: Final = 64

HEADER_OVERHEAD_BYTES: Final = 16
"""Bytes that a header takes in a body besides its name and value: their offsets, rounded up."""


class Body(NamedTuple):
    """An encoded body, and the fields about it in the header of its batch."""

    data: bytes
    crc: int
    message_count: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    flags: int


@lru_cache(maxsize=_NULLS_KEPT)
def _nulls(count: int, column: int) -> Any:
    kind = SCHEMA.field(column).type
    if kind != HEADERS_TYPE:
        return pa.nulls(count, kind)
    # `pa.nulls` makes offsets for `count` names and values of headers, although there are none. Arrow writes all of
    # them with each slice: half a mebibyte with each batch of a table of 64,000 rows. So we make the array ourselves.
    none = pa.nulls(0, pa.struct([kind.key_field, kind.item_field]))
    validity, begins = pa.py_buffer(bytes(-(-count // 8))), pa.py_buffer(bytes(4 * (count + 1)))
    return pa.Array.from_buffers(kind, count, [validity, begins], count, children=[none])


def encode(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps_ms: Sequence[int],
    headers: Sequence[HeaderList | None] | None = None,
    tags: Sequence[str | None] | None = None,
    compression: Compression | None = None,
) -> Body:
    """Encode messages that are given as columns. None is a column without values. Types were checked before."""
    if len(values) == 1 and headers is None and tags is None and compression is None:
        value, key = values[0], None if keys is None else keys[0]
        form = _form(keys is not None) if (keys is None) == (key is None) else None
        if value is not None and form is not None:
            body = form.fill(value, key, timestamps_ms[0])
            flags = 0 if keys is None else FLAG_KEYED
            return Body(body, google_crc32c.value(body), 1, timestamps_ms[0], timestamps_ms[0], flags)
    batch = record_batch(values, keys, timestamps_ms, headers, tags)
    return encode_record_batch(batch, timestamps_ms[0], timestamps_ms[-1], keys is not None, compression)


@lru_cache(maxsize=2)
def _form(is_keyed: bool) -> Template | None:
    def encode_one(value: bytes, key: bytes | None, timestamp_ms: int) -> bytes:
        batch = record_batch([value], None if key is None else [key], [timestamp_ms])
        return encode_record_batch(batch, timestamp_ms, timestamp_ms, key is not None).data

    return template(encode_one, is_keyed=is_keyed)


def record_batch(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps_ms: Sequence[int],
    headers: Sequence[HeaderList | None] | None = None,
    tags: Sequence[str | None] | None = None,
) -> Any:
    """A record batch of `SCHEMA` from messages that are given as columns. None is a column without values."""
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            _nulls(count, 0) if keys is None else _binary(keys, pa.binary()),
            _binary(values, pa.binary()),
            _integers(np.fromiter(timestamps_ms, np.int64, count), pa.int64()),
            _nulls(count, 3) if headers is None else _maps(headers),
            _nulls(count, 4) if tags is None else _binary([_utf8(tag) for tag in tags], pa.utf8()),
        ],
        schema=SCHEMA,
    )


# We make arrays from buffers and not with `pa.array`. `pa.array` checks whether it was given a pandas object, and
# imports pandas for this check in the middle of the first send.


def _integers(items: Any, kind: Any) -> Any:
    return pa.Array.from_buffers(kind, len(items), [None, pa.py_buffer(items)])


def row_numbers(positions: Sequence[int]) -> Any:
    """An Arrow array of row numbers, for `Table.take`."""
    return _integers(np.asarray(positions, np.int64), pa.int64())


def _binary(items: Sequence[bytes | None], kind: Any) -> Any:
    count = len(items)
    validity = None
    try:
        data = b"".join(cast("Sequence[bytes]", items))
    except TypeError:  # some are None; to look for them first would take as long as all else
        present = np.fromiter((item is not None for item in items), np.bool_, count)
        validity = pa.py_buffer(np.packbits(present, bitorder="little"))
        items = [item or b"" for item in items]
        data = b"".join(cast("Sequence[bytes]", items))
    offsets = np.zeros(count + 1, np.int32)
    np.fromiter(map(len, cast("Sequence[bytes]", items)), np.int32, count).cumsum(out=offsets[1:])
    return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def _maps(rows: Sequence[HeaderList | None]) -> Any:
    """The column of headers. A message without headers has an empty map here."""
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(np.fromiter((len(row or ()) for row in rows), np.int32, len(rows)), out=offsets[1:])
    names = [name.encode() for row in rows for name, _ in row or ()]
    values = [value for row in rows for _, value in row or ()]
    return pa.MapArray.from_arrays(
        _integers(offsets, pa.int32()), _binary(names, pa.utf8()), _binary(values, pa.binary())
    )


def _utf8(tag: str | None) -> bytes | None:
    return None if tag is None else tag.encode()


def encode_record_batch(
    batch: Any, first_timestamp_ms: int, last_timestamp_ms: int, keyed: bool, compression: Compression | None = None
) -> Body:
    """Encode a record batch of `SCHEMA`, in the form that it has in memory."""
    assert batch.num_rows > 0
    data = batch.serialize() if compression is None else _compressed(batch, compression)
    body = data.to_pybytes()
    flags = _FLAGS[compression] | (FLAG_KEYED if keyed else 0)
    return Body(body, google_crc32c.value(body), batch.num_rows, first_timestamp_ms, last_timestamp_ms, flags)


def _compressed(batch: Any, compression: Compression) -> Any:
    """Compress a record batch: write an IPC stream, and take its message after the schema. `serialize` cannot do it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=_OPTIONS[compression]) as writer:
        writer.write_batch(batch)
    source = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(source)
    return pa.ipc.read_message(source).serialize()


def decode(data: bytes | memoryview, message_count: int, crc: int) -> Any:
    """Decode a body into a record batch. Its columns are views of `data`, unless the body is compressed.

    Raises:
        ChecksumMismatchError: The body does not match its checksum, so it is not the one that was sent.
        BatchMismatchError: The body does not have `message_count` messages.
        UnreadableBodyError: The body is not a complete record batch of `SCHEMA`, or it unpacks to too much.
    """
    body = bytes(data)
    if google_crc32c.value(body) != crc:
        raise ChecksumMismatchError("the body of a batch does not match its checksum: its bytes have changed")
    return read_body(body, message_count)


def conform(table: Any, now_ms: int) -> Any:
    """Make a table with the columns of `SCHEMA`. Missing columns are filled: the timestamp with `now_ms`, others null.

    Columns of the right type are not copied. Strings become their UTF-8 bytes. Arrow timestamps become milliseconds
    since 1970, rounded down. Headers may also be lists of structs with two fields, a name and a value.

    Raises:
        IllegalMessageError: There is no column `value`, or a column that is not one of the five, or a column that
            cannot be converted, or the name of a header that is null.
    """
    if not table.schema.equals(SCHEMA) or table.column(2).null_count:
        return _completed(table, now_ms)
    return table


def _completed(table: Any, now_ms: int) -> Any:
    names = table.column_names
    given = {name: number for number, name in enumerate(names)}
    unknown = [name for name in names if name not in _TYPES]
    if unknown or "value" not in given:
        raise IllegalMessageError(
            f"a table of messages has the columns {SCHEMA.names}, of which value must be there; unknown: {unknown}"
        )
    if len(given) < len(names):
        raise IllegalMessageError(f"a table of messages has each column once, not {names}")
    columns = []
    for number, (name, kind) in enumerate(_TYPES.items()):
        if name in given:
            columns.append(_typed(table.column(given[name]), name, kind))
        elif name == "timestamp":
            columns.append(pa.repeat(pa.scalar(now_ms, kind), table.num_rows))
        else:
            columns.append(_nulls(table.num_rows, number))
    if columns[2].null_count:
        columns[2] = columns[2].fill_null(now_ms)
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _typed(column: Any, name: str, kind: Any) -> Any:
    if column.type == kind:
        return column
    try:
        if name == "timestamp" and pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)  # its unit may not be milliseconds
        if name == "headers" and _are_lists_of_pairs(column.type):
            return pa.chunked_array([_map_of_lists(chunk) for chunk in column.chunks], kind)
        return column.cast(kind)
    except pa.ArrowException as exc:
        raise IllegalMessageError(f"column {name} cannot be {kind}: {exc}") from exc


def _are_lists_of_pairs(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_struct(kind.value_type) and kind.value_type.num_fields == 2)


def _map_of_lists(lists: Any) -> Any:
    """Headers as a map, from lists of structs with a name and a value. Arrow itself has no such cast.

    Raises:
        IllegalMessageError: A header or its name is null.
    """
    pairs = lists.values
    names, values = (pairs.field(at).cast(kind) for at, kind in enumerate((pa.utf8(), pa.binary())))
    if pairs.null_count or names.null_count:  # Arrow ends the process if the name of a pair in a map is null
        raise IllegalMessageError("column headers has a header with null as its name: give each header a name")
    pair = pa.struct([HEADERS_TYPE.key_field, HEADERS_TYPE.item_field])
    children = [pa.Array.from_buffers(pair, len(pairs), [None], children=[names, values])]
    return pa.Array.from_buffers(HEADERS_TYPE, len(lists), lists.buffers()[:2], offset=lists.offset, children=children)


def row_sizes(rows: Any) -> tuple[Any, Any]:
    """Bytes of each row of a record batch of `SCHEMA`: of key and value only, and with headers and tag."""
    key, value, _, headers, tag = rows.columns
    payload = _lengths(key) + _lengths(value)
    whole = payload + _lengths(tag)
    if headers.null_count < len(headers):
        begins = _offsets(headers)
        inner = _totals(headers.keys) + _totals(headers.items)
        whole = whole + inner[begins[1:]] - inner[begins[:-1]] + HEADER_OVERHEAD_BYTES * np.diff(begins)
    return payload, whole


def value_bytes(rows: Any) -> int:
    """The total bytes of the values of a record batch of `SCHEMA`."""
    return int(_lengths(rows.column(1)).sum())


def content_crc(rows: Any) -> int:
    """The CRC-32C of all that a record batch of `SCHEMA` says, but for the times of its rows."""
    return int(google_crc32c.value(rows.select(["key", "value", "headers", "tag"]).serialize().to_pybytes()))


def _lengths(column: Any) -> Any:
    if column.null_count == len(column):
        return np.zeros(len(column), np.int64)
    return np.diff(_offsets(column))


def _totals(column: Any) -> Any:
    """For each item of the whole child array, the bytes before it. The parent's offsets are indexes into the result."""
    return _offsets(column) if len(column) else np.zeros(1, np.int64)


def _offsets(column: Any) -> Any:
    """The offset at which each row of a binary, text or map column begins, and the end of the last one."""
    buffer = column.buffers()[1]
    if buffer is None:  # an array without rows has no offsets
        return np.zeros(len(column) + 1, np.int64)
    found = np.frombuffer(buffer, np.int32)
    return found[column.offset : column.offset + len(column) + 1].astype(np.int64)
