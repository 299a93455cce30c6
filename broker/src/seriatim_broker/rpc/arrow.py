"""The number of rows of an Arrow record batch, read from its metadata alone.

A body is an encapsulated IPC message: a continuation marker, the length of the metadata, and a flatbuffer `Message`
whose header is a `RecordBatch`. The broker needs only the row count, and pyarrow would cost 27 MB of memory for it.
"""

from __future__ import annotations

import struct
from typing import Final

_PREFIX: Final = struct.Struct("<Ii")  # continuation marker, metadata length
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")
_CONTINUATION: Final = 0xFFFFFFFF
_RECORD_BATCH: Final = 3  # of the union MessageHeader in Arrow's Message.fbs
_SLOT_HEADER_TYPE, _SLOT_HEADER = 1, 2  # of Message
_SLOT_LENGTH: Final = 0  # of RecordBatch


def row_count(body: bytes) -> int | None:
    """The rows of the record batch in `body`; None if `body` is no record batch."""
    try:
        marker, size = _PREFIX.unpack_from(body, 0)
        if marker != _CONTINUATION or size <= 0 or _PREFIX.size + size > len(body):
            return None
        message = _PREFIX.size + _U32.unpack_from(body, _PREFIX.size)[0]
        kind = _field(body, message, _SLOT_HEADER_TYPE)
        header = _field(body, message, _SLOT_HEADER)
        if kind is None or body[kind] != _RECORD_BATCH or header is None:
            return None
        length = _field(body, header + _U32.unpack_from(body, header)[0], _SLOT_LENGTH)
        return 0 if length is None else int(_I64.unpack_from(body, length)[0])
    except (struct.error, IndexError):
        return None


def _field(body: bytes, table: int, slot: int) -> int | None:
    """The index of a table's field in `body`; None if the field has its default."""
    vtable = table - int(_I32.unpack_from(body, table)[0])
    if vtable < 0:
        return None
    at = 4 + 2 * slot
    if at >= _U16.unpack_from(body, vtable)[0]:
        return None
    offset = int(_U16.unpack_from(body, vtable + at)[0])
    return table + offset if offset else None
