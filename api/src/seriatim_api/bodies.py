"""The form of a body: an Arrow IPC record batch without its schema message.

The columns are key and value (binary), timestamp (int64, ms), headers (map of utf8 to binary) and tag (utf8). A column
without values holds nulls. A message may have null as its value. Its headers keep their order, a name may come several
times, and the value of a header may be null. The header of a batch is in `batch`.

`read_body` is the only way to read a body that another process wrote. Arrow trusts what it reads: offsets that point
after the data give the memory of this process, or end it by a signal. So a body is read in three steps. `read_layout`
checks the metadata, and limits what it may unpack to. Arrow reads the record batch. `validate` looks at each offset,
each bit of validity and each text in it.

This module needs pyarrow, which the packages that use it install. No other module of this package imports it.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from .errors import UnreadableBodyError
from .record_batches import read_layout

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
"""The schema of every body."""

_SCHEMA_MESSAGE: Final = SCHEMA.serialize().to_pybytes()
_KEYS_ONLY: Final = pa.ipc.IpcReadOptions(included_fields=[0])


def read_body(body: bytes, message_count: int, compression: int | None = None) -> Any:
    """Read a body into a record batch of `SCHEMA`. Its columns are views of `body`, unless it is compressed.

    Args:
        body: The body.
        message_count: The number of messages that the header says.
        compression: `FLAG_LZ4` or `FLAG_ZSTD` if the header has it, else 0; None: any.

    Raises:
        BatchMismatchError: It does not have `message_count` messages.
        UnreadableBodyError: It is not a complete record batch of `SCHEMA`, it is compressed in another way, or it
            unpacks to too much.
    """
    layout = read_layout(body, message_count)
    if compression is not None and layout.compression != compression:
        raise UnreadableBodyError("the body of a batch is compressed in another way than its header says")
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA)
        rows.validate(full=True)
    except (pa.ArrowException, OSError) as exc:
        raise UnreadableBodyError(f"the body of a batch cannot be read: {exc}") from exc
    return rows


def read_keys(body: bytes, message_count: int) -> Any:
    """The column of keys of a body. Of a compressed one, only this column is unpacked.

    Raises:
        BatchMismatchError: It does not have `message_count` messages.
        UnreadableBodyError: It is not a record batch of `SCHEMA`, its keys cannot be read, or it unpacks to too much.
    """
    if not read_layout(body, message_count).compression:
        return read_body(body, message_count).column(0)
    stream = pa.BufferReader(_SCHEMA_MESSAGE + body)
    try:
        with pa.ipc.open_stream(stream, options=_KEYS_ONLY) as reader:
            column = reader.read_next_batch().column(0)
        column.validate(full=True)
    except (pa.ArrowException, OSError, StopIteration) as exc:
        raise UnreadableBodyError(f"the keys of a batch cannot be read: {exc}") from exc
    return column
