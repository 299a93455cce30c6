"""Keys of rows in the database. They are big-endian, so that RocksDB sorts by partition, segment and index.

    extent    partition, segment, base index      a batch
    meta      partition, letter, segment, rest    a control record; the letter says which kind
    index     partition, segment, start           a run of a segment's batches
    cursor    partition, segment, name            a consumer group's cursor
              partition, segment, name, 0, rest   a row of its ledger; the rest is the row's name
              partition, segment, name, 1         what the server of the segment before handed over
    delay     partition, segment, d, due, index   a delayed batch, by its due time (`delayed`)
              partition, segment, i, index        the same batch, by its first index
              partition, segment, r, index        a batch that a broker made of delayed ones

Two partition numbers are never used for partitions. The keys of partition 0 in `index` are the records of the extents.
The keys of the highest number in an extent are bodies that are stored apart from their batches.
"""

from __future__ import annotations

import struct
from typing import Final

from seriatim_api.batch import BatchHeader

SEGMENT: Final = b"s"
WINDOW: Final = b"w"
PREPARATION: Final = b"p"
TAIL: Final = b"t"
BLOCK: Final = b"b"
"""An idle block belongs to the partition and to no segment, so its keys have segment 0."""
CHAIN: Final = b"c"
"""The chain record: segment 0 has its head, and each other number has that segment."""

_BATCH = struct.Struct(">IIQ")
_PLACE = struct.Struct(">II")
_META = struct.Struct(">IcI")
_NUMBER = struct.Struct(">I")
_DUE = struct.Struct(">IIcQQ")
_ROW_AT = struct.Struct(">IIcQ")
_BODY = struct.Struct(">IIIQII")
_BODIES: Final = 0xFFFFFFFE  # so that no key is above the last one that is looked at when an extent is emptied

_BY_DUE: Final = b"d"
DELAYED: Final = b"i"
VOLLEY: Final = b"r"
_DUE_BIAS: Final = 1 << 63  # negative numbers sort first

_ROW: Final = b"\0"
_HAND_OVER: Final = b"\1"
_BEHIND: Final = b"\2"

META_PREFIX_BYTES: Final = _META.size
PLACE_PREFIX_BYTES: Final = _PLACE.size


def batch_key(partition: int, segment: int, base_index: int) -> bytes:
    """The key of a batch in an extent, or of a run in `index`."""
    return _BATCH.pack(partition, segment, base_index)


def split_batch_key(key: bytes) -> tuple[int, int, int]:
    """The partition, segment and base index of a key that `batch_key` made."""
    partition, segment, base_index = _BATCH.unpack(key)
    return partition, segment, base_index


def body_key(header: BatchHeader) -> bytes:
    """The key of a staged body that is stored apart. It has the place of the batch, and its checksums.

    It has nothing that the client chooses, such as the chunk. Two batches with different bodies could have the same
    chunk, and the later body would then replace the earlier one. The checksums are needed too: if a batch was cut off,
    another one with another checksum chain can take its place.
    """
    return _BODY.pack(_BODIES, header.partition, header.segment, header.base_index, header.checksum, header.body_crc)


def segment_range(partition: int, segment: int, from_index: int = 0) -> tuple[bytes, bytes]:
    """The range of all batch keys (or runs) of a segment from an index on: its first key, and the first key after
    it."""
    return _BATCH.pack(partition, segment, from_index), _next(_PLACE.pack(partition, segment))


def place_range(partition: int, segment: int) -> tuple[bytes, bytes]:
    """The range of all keys of a segment in `index`, `cursor` or `delay`."""
    prefix = _PLACE.pack(partition, segment)
    return prefix, _next(prefix)


def partition_range(partition: int) -> tuple[bytes, bytes]:
    """The range of all keys of a partition, in any column family."""
    prefix = _NUMBER.pack(partition)
    return prefix, _next(prefix)


def partition_of(key: bytes) -> int:
    """The partition of any key."""
    number: int = _NUMBER.unpack_from(key)[0]
    return number


def meta_key(partition: int, kind: bytes, segment: int, rest: bytes = b"") -> bytes:
    """The key of a control record in `meta`."""
    return _META.pack(partition, kind, segment) + rest


def tail_key(partition: int, segment: int, place: int) -> bytes:
    """The key of a tail copy in `meta`. The key of place 0 has no number."""
    return meta_key(partition, TAIL, segment, _NUMBER.pack(place) if place else b"")


def split_meta_key(key: bytes) -> tuple[int, bytes, int, bytes]:
    """The partition, letter, segment and rest of a key in `meta`."""
    partition, kind, segment = _META.unpack_from(key)
    return partition, kind, segment, key[META_PREFIX_BYTES:]


def meta_range(partition: int, kind: bytes, segment: int) -> tuple[bytes, bytes]:
    """The range of all keys of one kind and segment in `meta`."""
    prefix = _META.pack(partition, kind, segment)
    return prefix, _next(prefix)


def cursor_key(partition: int, segment: int, group: str) -> bytes:
    """The key of a consumer group's cursor in a segment."""
    return _PLACE.pack(partition, segment) + group.encode()


def split_cursor_key(key: bytes) -> tuple[int, int, str]:
    """The partition, segment and consumer group of a key that `cursor_key` made."""
    partition, segment = _PLACE.unpack_from(key)
    return partition, segment, key[PLACE_PREFIX_BYTES:].decode()


def ledger_key(partition: int, segment: int, group: str, name: bytes) -> bytes:
    """The key of a row of a consumer group's ledger. Names of consumer groups have no zero byte."""
    return cursor_key(partition, segment, group) + _ROW + name


def ledger_range(partition: int, segment: int, group: str) -> tuple[bytes, bytes]:
    """The range of all rows of a consumer group's ledger, and of what was handed over to it."""
    key = cursor_key(partition, segment, group)
    return key + _ROW, key + _BEHIND


def handoff_key(partition: int, segment: int, group: str) -> bytes:
    """The key of what was handed over."""
    return cursor_key(partition, segment, group) + _HAND_OVER


def split_ledger_key(key: bytes) -> tuple[int, str, bytes | None] | None:
    """The segment, consumer group and row's name of a key in `cursor`; the name is None for what was handed over.

    None: it is the key of a cursor.
    """
    at = next((at for at in range(PLACE_PREFIX_BYTES, len(key)) if key[at] < 2), None)
    if at is None:
        return None
    segment: int = _PLACE.unpack_from(key)[1]
    name = key[at + 1 :] if key[at : at + 1] == _ROW else None
    return segment, key[PLACE_PREFIX_BYTES:at].decode(), name


def due_key(partition: int, segment: int, due_ms: int, index: int) -> bytes:
    """The key of a delayed batch by its due time."""
    return _DUE.pack(partition, segment, _BY_DUE, due_ms + _DUE_BIAS, index)


def split_due_key(key: bytes) -> tuple[int, int]:
    """The due time and the first index in a key that `due_key` made."""
    _partition, _segment, _by, due, index = _DUE.unpack(key)
    return due - _DUE_BIAS, index


def is_due_key(key: bytes, partition: int, segment: int) -> bool:
    """Whether `due_key` made this key of `delay` for a log."""
    return key.startswith(_PLACE.pack(partition, segment) + _BY_DUE)


def row_key(kind: bytes, partition: int, segment: int, index: int) -> bytes:
    """The key in `delay` of a batch by its first index."""
    return _ROW_AT.pack(partition, segment, kind, index)


def row_range(kind: bytes, partition: int, segment: int, from_index: int = 0) -> tuple[bytes, bytes]:
    """The range of the keys that `row_key` makes, from an index on."""
    return row_key(kind, partition, segment, from_index), _next(_PLACE.pack(partition, segment) + kind)


def index_of_row(key: bytes) -> int:
    """The index in a key that `row_key` made."""
    index: int = _ROW_AT.unpack(key)[3]
    return index


def place_of(key: bytes) -> tuple[int, int]:
    """The partition and segment of a key in `index`, `cursor` or `delay`."""
    partition, segment = _PLACE.unpack_from(key)
    return partition, segment


def extent_key(extent: int) -> bytes:
    """The key of an extent's record in `index`."""
    return _PLACE.pack(0, extent)


def split_extent_key(key: bytes) -> int:
    """The number of the extent to which a record's key belongs."""
    extent: int = _PLACE.unpack(key)[1]
    return extent


def _next(prefix: bytes) -> bytes:
    """The least key above all keys that begin with `prefix`."""
    grown = int.from_bytes(prefix, "big") + 1
    return (
        grown.to_bytes(len(prefix) + 1, "big")[1:] if grown < 1 << (8 * len(prefix)) else b"\xff" * (len(prefix) + 24)
    )
