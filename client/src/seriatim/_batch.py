"""Bodies of batches: an Arrow IPC record batch without its schema message, and back.

Columns: key and value (binary), timestamp (int64, ms), headers (map of utf8 to binary), tag (utf8). What a body holds
is decided here and nowhere else; the broker reads its row count and moves bytes. Headers of batches are
`seriatim_api.batch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import google_crc32c
import pyarrow as pa
from seriatim_api.batch import FLAG_KEYED, FLAG_LZ4, FLAG_ZSTD
from seriatim_api.errors import BadRequestError, BatchMismatchError, ChecksumMismatchError

Compression = Literal["lz4", "zstd"]
Headers = Mapping[str, bytes]

HEADERS_TYPE: Final = pa.map_(pa.utf8(), pa.binary())
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.int64()),
        ("headers", HEADERS_TYPE),
        ("tag", pa.utf8()),
    ]
)
"""Of every body. A column that nobody filled holds nulls."""

_FLAGS: Final = {None: 0, "lz4": FLAG_LZ4, "zstd": FLAG_ZSTD}
_OPTIONS: Final = {
    None: pa.ipc.IpcWriteOptions(),
    "lz4": pa.ipc.IpcWriteOptions(compression="lz4"),
    "zstd": pa.ipc.IpcWriteOptions(compression="zstd"),
}
_NULLS_KEPT: Final = 64


class Body(NamedTuple):
    """An encoded body, and what the header of its batch says of it."""

    data: bytes
    crc: int
    message_count: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    flags: int


@lru_cache(maxsize=_NULLS_KEPT)
def _nulls(count: int, column: int) -> Any:
    return pa.nulls(count, SCHEMA.field(column).type)


def encode(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None,
    timestamps_ms: Sequence[int],
    headers: Sequence[Headers | None] | None = None,
    tags: Sequence[str | None] | None = None,
    compression: Compression | None = None,
) -> Body:
    """Messages given as columns; None is a column without values.

    Raises:
        TypeError: A value or key is not bytes, or a header's name or a tag is not a string.
    """
    count = len(values)
    try:
        batch = pa.RecordBatch.from_arrays(
            [
                _nulls(count, 0) if keys is None else pa.array(keys, pa.binary()),
                pa.array(values, pa.binary()),
                pa.array(timestamps_ms, pa.int64()),
                _nulls(count, 3) if headers is None else _header_column(headers),
                _nulls(count, 4) if tags is None else pa.array(tags, pa.utf8()),
            ],
            schema=SCHEMA,
        )
    except (pa.ArrowException, ValueError) as exc:
        raise TypeError(f"keys and values are bytes, tags are strings: {exc}") from exc
    return encode_record_batch(batch, timestamps_ms[0], timestamps_ms[-1], keys is not None, compression)


def _header_column(headers: Sequence[Headers | None]) -> Any:
    return pa.array([None if row is None else list(row.items()) for row in headers], HEADERS_TYPE)


def encode_record_batch(
    batch: Any, first_timestamp_ms: int, last_timestamp_ms: int, keyed: bool, compression: Compression | None = None
) -> Body:
    """A record batch of `SCHEMA`, written as it lies in memory."""
    assert batch.num_rows > 0
    data = batch.serialize() if compression is None else _compressed(batch, compression)
    body = data.to_pybytes()
    flags = _FLAGS[compression] | (FLAG_KEYED if keyed else 0)
    return Body(body, google_crc32c.value(body), batch.num_rows, first_timestamp_ms, last_timestamp_ms, flags)


def _compressed(batch: Any, compression: Compression) -> Any:
    """The one message of a stream that is not its schema: `serialize` takes no compression."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=_OPTIONS[compression]) as writer:
        writer.write_batch(batch)
    source = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(source)
    return pa.ipc.read_message(source).serialize()


def decode(data: bytes | memoryview, message_count: int, crc: int) -> Any:
    """The record batch of a body, whose columns are views of `data` (unless it is compressed).

    Raises:
        ChecksumMismatchError: The body is not the one that was sent.
        BatchMismatchError: It does not hold `message_count` messages.
        BadRequestError: It is no record batch of `SCHEMA`.
    """
    body = bytes(data)
    if google_crc32c.value(body) != crc:
        raise ChecksumMismatchError("the body of a batch is not the one that its checksum was made from")
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA)
    except (pa.ArrowException, OSError) as exc:
        raise BadRequestError(f"the body of a batch cannot be read: {exc}") from exc
    if batch.num_rows != message_count:
        raise BatchMismatchError(f"a batch of {message_count} messages holds {batch.num_rows}")
    return batch


def conform(table: Any, now_ms: int) -> Any:
    """A table with the columns of `SCHEMA`; those that it lacks are filled, the timestamp with `now_ms`.

    Columns that have the right type are not copied; strings are taken for their UTF-8 bytes.

    Raises:
        TypeError: No column `value`, a column that is none of the five, or one that cannot have its type.
    """
    unknown = [name for name in table.column_names if SCHEMA.get_field_index(name) < 0]
    if unknown or "value" not in table.column_names:
        raise TypeError(f"a table of messages has the columns {SCHEMA.names}, of which value must be there: {unknown}")
    columns = []
    for field in SCHEMA:
        if field.name not in table.column_names:
            missing = pa.repeat(pa.scalar(now_ms, pa.int64()), table.num_rows) if field.name == "timestamp" else None
            columns.append(pa.nulls(table.num_rows, field.type) if missing is None else missing)
            continue
        column = table.column(field.name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as exc:
            raise TypeError(f"column {field.name} cannot be {field.type}: {exc}") from exc
    if columns[2].null_count:
        columns[2] = columns[2].fill_null(now_ms)
    return pa.table(columns, schema=SCHEMA)
