"""What cannot be sent is refused here, before it is taken and shares a batch with others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final

from seriatim_api.errors import BadRequestError, MessageTooLargeError

from seriatim._batch import Headers
from seriatim._producing.pending import MESSAGE_OVERHEAD_BYTES

_BYTES: Final[set[type]] = {bytes}
_BYTES_OR_NONE: Final[set[type]] = {bytes, type(None)}


def message_size(value: bytes, key: bytes | None, size_bytes_max: int) -> int:
    """What a message takes in a body.

    Raises:
        TypeError: Key or value is not bytes.
        MessageTooLargeError: Together they are over `size_bytes_max`.
    """
    if not isinstance(value, bytes) or not (key is None or isinstance(key, bytes)):
        raise TypeError(f"keys and values are bytes, not {type(key).__name__} and {type(value).__name__}")
    size = len(value) if key is None else len(value) + len(key)
    if size > size_bytes_max:
        raise MessageTooLargeError(
            f"a message of {size} bytes, at most {size_bytes_max}", size_bytes=size, size_bytes_max=size_bytes_max
        )
    return size + MESSAGE_OVERHEAD_BYTES


def message_sizes(values: Sequence[bytes], keys: Sequence[bytes | None] | None, size_bytes_max: int) -> int:
    """What messages, at least one, take in bodies together.

    Raises:
        TypeError: A key or value is not bytes.
        MessageTooLargeError: A message is over `size_bytes_max`.
    """
    if not set(map(type, values)) <= _BYTES or not (keys is None or set(map(type, keys)) <= _BYTES_OR_NONE):
        raise TypeError("keys and values are bytes")
    largest = max(map(len, values))
    if keys is not None:
        largest += max((len(key) for key in keys if key is not None), default=0)
    if largest > size_bytes_max:  # perhaps, if the largest value has not the largest key
        for value, key in zip(values, keys or repeat(None), strict=False):
            message_size(value, key, size_bytes_max)
    return payload_bytes(values, keys)


def payload_bytes(values: Sequence[bytes], keys: Sequence[bytes | None] | None) -> int:
    """What messages take in bodies together."""
    size = sum(map(len, values)) + MESSAGE_OVERHEAD_BYTES * len(values)
    if keys is not None:
        size += sum(len(key) for key in keys if key is not None)
    return size


def row_size(rows: Any, size_bytes_max: int) -> int:
    """What a piece of a table takes in a body.

    Raises:
        MessageTooLargeError: It is one row, over `size_bytes_max`.
    """
    size: int = rows.nbytes + rows.num_rows
    if size > size_bytes_max and rows.num_rows == 1:
        raise MessageTooLargeError(f"a row of {size} bytes, at most {size_bytes_max}")
    return size


def check_lengths(count: int, *columns: Sequence[Any] | None) -> None:
    """Refuse columns that are not as long as that of the values.

    Raises:
        BadRequestError: One is not.
    """
    for column in columns:
        if column is not None and len(column) != count:
            raise BadRequestError(f"{count} values, and a column of {len(column)} beside them")


def check_headers(headers: Headers | None, tag: str | None) -> None:
    """Refuse headers and tags that a body cannot hold.

    Raises:
        TypeError: A header's name or a tag is not a string, or a header's value is not bytes.
    """
    if tag is not None and not isinstance(tag, str):
        raise TypeError("a tag is a string")
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise TypeError("headers are strings, their values bytes")
