"""Encodes a batch of one message without Arrow, into the same bytes as Arrow.

Most programs send one message at a time, and for one message Arrow's way through arrays, a record batch and a writer
takes most of the time of a send. The bytes of two such bodies differ in few places: the value, the key, the timestamp,
their lengths, and where each buffer begins. So Arrow encodes one message of each form (with a key, without), and a
template notes these places in it. The form of the bytes is Arrow's: the message with its metadata (a flatbuffer), then
the buffers, each padded to 8 bytes (https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-
communication-ipc).

A template is used only if it gives Arrow's own bytes for some other messages. If a later version of Arrow has another
form, all bodies are encoded by Arrow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
from seriatim_api.bodies import SCHEMA

Encode = Callable[[bytes, "bytes | None", int], bytes]
"""Encodes a message from its value, its key and its timestamp in ms."""

ALIGNMENT: Final = 8

KEY_BYTES: Final = 2
VALUE_BYTES: Final = 5
TIMESTAMPS: Final = 7
"""The numbers of these buffers in a body. Lengths are in the buffer before that of keys, and of values."""

_LENGTHS: Final = struct.Struct("<ii")
_INT64: Final = struct.Struct("<q")

_SAMPLE: Final = (bytes(100_003), bytes(30_011))
"""The value and the key of the message that Arrow encodes for a template. No other length in it is the same."""

_CHECKED: Final[tuple[tuple[bytes, bytes, int], ...]] = (
    (b"", b"", 0),
    (b"value", b"k", -1),
    (bytes(range(256)) * 5, b"a key of 24 bytes, it is", 1_700_000_000_123),
)


class Template:
    """The body of a batch of one message, with places to fill.

    Args:
        is_keyed: Whether the message has a key.
        encode: Arrow's way.

    Raises:
        ValueError: Arrow's bytes do not have the form that this class knows.
    """

    __slots__ = ("_after", "_before", "_length_at", "_lengths", "_meta", "_pairs", "_pairs_at")

    def __init__(self, encode: Encode, *, is_keyed: bool) -> None:
        value, key = _SAMPLE
        sample = encode(value, key if is_keyed else None, 0)
        meta_end = 8 + _LENGTHS.unpack_from(sample)[1]
        meta, body = sample[:meta_end], sample[meta_end:]
        self._lengths = _buffer_lengths(sample)
        begins = _begins(self._lengths)
        self._pairs = struct.Struct(f"<{2 * len(self._lengths)}q")
        self._pairs_at = _only(meta, self._pairs.pack(*_in_pairs(begins, self._lengths)))
        pairs_end = self._pairs_at + self._pairs.size
        self._meta = meta[: self._pairs_at] + bytes(self._pairs.size) + meta[pairs_end:]
        self._length_at = _only(self._meta, _INT64.pack(len(body)))
        self._before = body[: begins[(KEY_BYTES if is_keyed else VALUE_BYTES) - 1]]
        self._after = body[begins[TIMESTAMPS + 1] :]

    def fill(self, value: bytes, key: bytes | None, timestamp_ms: int) -> bytes:
        """The whole body of a batch with this message."""
        key_length, value_length = 0 if key is None else len(key), len(value)
        lengths = self._lengths.copy()
        lengths[KEY_BYTES], lengths[VALUE_BYTES] = key_length, value_length
        begins = _begins(lengths)
        meta = bytearray(self._meta)
        self._pairs.pack_into(meta, self._pairs_at, *_in_pairs(begins, lengths))
        _INT64.pack_into(meta, self._length_at, begins[-1])
        parts: list[bytes | bytearray] = [meta, self._before]
        if key is not None:
            parts += (_LENGTHS.pack(0, key_length), key, bytes(-key_length % ALIGNMENT))
        parts += (
            _LENGTHS.pack(0, value_length), value, bytes(-value_length % ALIGNMENT),
            _INT64.pack(timestamp_ms), self._after,
        )  # fmt: skip
        return b"".join(parts)


def template(encode: Encode, *, is_keyed: bool) -> Template | None:
    """Make a template, and compare what it gives with Arrow's bytes. None: they differ, so it cannot be used."""
    try:
        made = Template(encode, is_keyed=is_keyed)
    except ValueError:
        return None
    for value, key, timestamp_ms in _CHECKED:
        keyed = key if is_keyed else None
        if made.fill(value, keyed, timestamp_ms) != encode(value, keyed, timestamp_ms):
            return None
    return made


def _begins(lengths: Sequence[int]) -> list[int]:
    """Where each buffer begins, and where the last one ends."""
    return list(accumulate((length + -length % ALIGNMENT for length in lengths), initial=0))


def _in_pairs(begins: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """Begin and length of each buffer in turn, as the metadata has them."""
    flat = [0] * (2 * len(lengths))
    flat[::2], flat[1::2] = begins[:-1], lengths
    return flat


def _buffer_lengths(sample: bytes) -> list[int]:
    """The length of each buffer of an encoded body, in Arrow's order; 0: the body has no such buffer."""
    batch: Any = pa.ipc.read_record_batch(pa.py_buffer(sample), SCHEMA)
    return [0 if buffer is None else buffer.size for column in batch.columns for buffer in column.buffers()]


def _only(data: bytes, part: bytes) -> int:
    """The only place of `part` in `data`.

    Raises:
        ValueError: It is not there, or there are several.
    """
    if data.count(part) != 1:
        raise ValueError("the form of Arrow's metadata is not known")
    return data.index(part)
