"""The metadata of a body: does it describe a record batch of our columns, and how many bytes does it unpack to?

A body is an encapsulated Arrow IPC message: a continuation marker, the length of the metadata, the metadata (a
flatbuffer `Message`), and the buffers. The sender wrote all of that, so it may say anything. `read_layout` refuses
every message that is not laid out as ours are, before Arrow sees it and before anything is unpacked. It does not look
into the buffers: `bodies.read_body` does both.

In Arrow's order the columns have 8 nodes (length, number of nulls) and 20 buffers (begin, length):

    key        validity, ends, bytes
    value      validity, ends, bytes
    timestamp  validity, numbers
    headers    validity, ends       and, for all pairs of all messages:
      pair     validity
      name     validity, ends, bytes
      content  validity, ends, bytes
    tag        validity, ends, bytes

This module is pure, and needs no Arrow.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from .batch import FLAG_LZ4, FLAG_ZSTD
from .errors import BatchMismatchError, UnreadableBodyError

UNPACKED_SIZE_BYTES_MAX: Final = 4 << 20
"""A compressed body unpacks to at most this many bytes: four times the largest batch. Clients limit a batch before they
compress it, so only a body that was made to harm has more."""

METADATA_SIZE_BYTES_MAX: Final = 4096
"""Largest metadata of a body. Ours has less than 700 bytes."""

_PREFIX: Final = struct.Struct("<Ii")  # continuation marker, length of the metadata
_CONTINUATION: Final = 0xFFFFFFFF
_U16: Final = struct.Struct("<H")
_I16: Final = struct.Struct("<h")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")
_NODES: Final = struct.Struct("<I16q")  # the number of nodes, then length and number of nulls of each
_BUFFERS: Final = struct.Struct("<I40q")  # the number of buffers, then begin and length of each
_NODE_COUNT: Final = 8
_BUFFER_COUNT: Final = 20
_ALIGNMENT: Final = 8

# Of Arrow's Schema.fbs and Message.fbs.
_VERSION_5: Final = 4
_RECORD_BATCH: Final = 3
_CODECS: Final = {0: FLAG_LZ4, 1: FLAG_ZSTD}
_NOT_COMPRESSED: Final = -1
"""A buffer of a compressed body begins with the length that it unpacks to. This one says that it is stored as it is."""


class Layout(NamedTuple):
    """What the metadata of a body says.

    Attributes:
        compression: `FLAG_LZ4`, `FLAG_ZSTD`, or 0.
        unpacked_bytes: The bytes of all buffers when they are unpacked.
    """

    compression: int
    unpacked_bytes: int


def read_layout(body: bytes, message_count: int) -> Layout:
    """Read the metadata of a body, and check all that it says.

    Raises:
        BatchMismatchError: It says another number of messages.
        UnreadableBodyError: It is not the metadata of a record batch with our columns, or it says that the body unpacks
            to more than `UNPACKED_SIZE_BYTES_MAX`.
    """
    try:
        return _read(body, message_count)
    except (struct.error, IndexError) as exc:
        raise UnreadableBodyError("the body of a batch is no Arrow message with metadata that can be read") from exc


def _read(body: bytes, message_count: int) -> Layout:
    marker, size = _PREFIX.unpack_from(body)
    if marker != _CONTINUATION or not 0 < size <= METADATA_SIZE_BYTES_MAX:
        raise UnreadableBodyError("the body of a batch is no Arrow message, or its metadata is too long")
    begin = _PREFIX.size + size
    data = body[_PREFIX.size : begin]
    length = len(body) - begin
    version, kind, header, stated, custom = _fields(data, _U32.unpack_from(data)[0], 5)
    if not (version and kind and header) or _I16.unpack_from(data, version)[0] != _VERSION_5:
        raise UnreadableBodyError("the body of a batch is not an Arrow message of version 5")
    if data[kind] != _RECORD_BATCH:
        raise UnreadableBodyError(f"the body of a batch is an Arrow message of kind {data[kind]}, and no record batch")
    if custom:
        raise UnreadableBodyError("the record batch has metadata of its own, which bodies do not have")
    if (_I64.unpack_from(data, stated)[0] if stated else 0) != length:
        raise UnreadableBodyError("the record batch is longer or shorter than its metadata says")
    rows, nodes, buffers, compression, variadic = _fields(data, header + _U32.unpack_from(data, header)[0], 5)
    if variadic and _U32.unpack_from(data, variadic + _U32.unpack_from(data, variadic)[0])[0]:
        raise UnreadableBodyError("the record batch has a column of views, which bodies do not have")
    if not (nodes and buffers):
        raise UnreadableBodyError("the record batch has no columns")
    row_count = _I64.unpack_from(data, rows)[0] if rows else 0
    if row_count != message_count:
        raise BatchMismatchError(f"the header of a batch says {message_count} messages, and its body has {row_count}")
    _check_nodes(data, nodes + _U32.unpack_from(data, nodes)[0], row_count)
    places = _read_buffers(data, buffers + _U32.unpack_from(data, buffers)[0], length)
    if not compression:
        return Layout(0, length)
    codec, method = _fields(data, compression + _U32.unpack_from(data, compression)[0], 2)
    flag = _CODECS.get(data[codec] if codec else 0)
    if flag is None or (method and data[method]):
        raise UnreadableBodyError("the record batch is compressed in a way that bodies are not")
    return Layout(flag, _unpacked_bytes(body, begin, places))


def _fields(data: bytes, table: int, count: int) -> list[int]:
    """The places of the first fields of a table in `data`. 0: the field has its default."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 0:
        raise UnreadableBodyError("the metadata of the record batch cannot be read")
    known = min(count, _U16.unpack_from(data, vtable)[0] // 2 - 2)
    found = [table + at if at else 0 for at in struct.unpack_from(f"<{max(known, 0)}H", data, vtable + 4)]
    return found + [0] * (count - len(found))


def _check_nodes(data: bytes, at: int, row_count: int) -> None:
    """Check the lengths and the numbers of nulls of all columns. Values and the values of headers may be null."""
    if _U32.unpack_from(data, at)[0] != _NODE_COUNT:
        raise UnreadableBodyError(f"the record batch has {_U32.unpack_from(data, at)[0]} columns and not {_NODE_COUNT}")
    (
        _, keys, null_keys, values, null_values, times, null_times, headers, null_headers,
        pairs, null_pairs, names, null_names, contents, null_contents, tags, null_tags,
    ) = _NODES.unpack_from(data, at)  # fmt: skip
    if not (keys == values == times == headers == tags == row_count):
        raise UnreadableBodyError("the columns of the record batch differ in length")
    if not (0 <= pairs == names == contents):
        raise UnreadableBodyError("the columns of headers differ in length")
    if null_times or null_pairs or null_names:
        raise UnreadableBodyError("a time, or the name of a header is null")
    if not (
        0 <= null_keys <= row_count
        and 0 <= null_values <= row_count
        and 0 <= null_headers <= row_count
        and 0 <= null_tags <= row_count
        and 0 <= null_contents <= pairs
    ):
        raise UnreadableBodyError("a column has more nulls than rows")


def _read_buffers(data: bytes, at: int, length: int) -> list[tuple[int, int]]:
    """Begin and length of each buffer. They follow one another, and all are in the body."""
    if _U32.unpack_from(data, at)[0] != _BUFFER_COUNT:
        raise UnreadableBodyError(
            f"the record batch has {_U32.unpack_from(data, at)[0]} buffers and not {_BUFFER_COUNT}"
        )
    numbers = _BUFFERS.unpack_from(data, at)
    places = list(zip(numbers[1::2], numbers[2::2], strict=True))
    end = 0
    for begin, size in places:
        if begin < end or size < 0 or begin % _ALIGNMENT:
            raise UnreadableBodyError("the buffers of the record batch overlap, or do not follow one another")
        end = begin + size
    if end > length:
        raise UnreadableBodyError("a buffer of the record batch ends after the body")
    return places


def _unpacked_bytes(body: bytes, begin: int, places: list[tuple[int, int]]) -> int:
    """What the buffers say that they unpack to, together."""
    total = 0
    for at, size in places:
        if not size:
            continue
        if size < _I64.size:
            raise UnreadableBodyError("a compressed buffer of the record batch is too short")
        stated = _I64.unpack_from(body, begin + at)[0]
        if stated < _NOT_COMPRESSED:
            raise UnreadableBodyError("a compressed buffer of the record batch says a length below 0")
        total += size - _I64.size if stated == _NOT_COMPRESSED else stated
    if total > UNPACKED_SIZE_BYTES_MAX:
        raise UnreadableBodyError(
            f"the body of a batch says that it unpacks to {total} bytes, and at most {UNPACKED_SIZE_BYTES_MAX} are "
            "allowed: send fewer messages in a batch",
            size_bytes=total,
            size_bytes_max=UNPACKED_SIZE_BYTES_MAX,
        )
    return total
