"""Keys: big-endian, so that RocksDB's order is ours: partition, then segment, then index.

Four kinds of column family use them. In an extent a key is (partition, segment, base index). In `meta` a letter after
the partition tells the records apart and the segment follows. In `index` the key names where a run of a segment's
batches begins, in `cursor` the segment and the consumer group. Partition 0 is no partition: its keys in `index` are
the records of the extents. The partition above all others is none either: its keys in an extent are bodies that stand
apart from their batches.
"""

from __future__ import annotations

import struct
from typing import Final

from seriatim_api.batch import BatchHeader

INDEX_END: Final = (1 << 64) - 1
"""Above every index of a segment."""

SEGMENT: Final = b"s"
WINDOW: Final = b"w"
PREPARATION: Final = b"p"
TAIL: Final = b"t"
BLOCK: Final = b"b"
"""Of the partition, not of a segment: its keys have segment 0."""
CHAIN: Final = b"c"
"""The chain record: under segment 0 its head, under each segment's number that segment."""

_BATCH = struct.Struct(">IIQ")
_PLACE = struct.Struct(">II")
_META = struct.Struct(">IcI")
_NUMBER = struct.Struct(">I")
_BODY = struct.Struct(">IIIQII")
_BODIES: Final = 0xFFFFFFFE  # so that no key is above the last one that is looked at when an extent is emptied

META_HEAD_BYTES: Final = _META.size
PLACE_HEAD_BYTES: Final = _PLACE.size


def batch_key(partition: int, segment: int, base_index: int) -> bytes:
    """A batch in an extent, or the beginning of a run in `index`."""
    return _BATCH.pack(partition, segment, base_index)


def split_batch_key(key: bytes) -> tuple[int, int, int]:
    """Partition, segment and base index."""
    partition, segment, base_index = _BATCH.unpack(key)
    return partition, segment, base_index


def body_key(header: BatchHeader) -> bytes:
    """The body of a staged batch, where it stands apart: named by the place of its batch, and by its checksums.

    What a client chooses, such as the chunk, could be the same of two batches with other bodies, and the later one
    would take the place of the earlier. A batch that was cut off leaves its place to another one, whose chain differs.
    """
    return _BODY.pack(_BODIES, header.partition, header.segment, header.base_index, header.checksum, header.body_crc)


def segment_range(partition: int, segment: int, from_index: int = 0) -> tuple[bytes, bytes]:
    """All batch keys (or runs) of a segment from an index on: the first, and the first after them."""
    return _BATCH.pack(partition, segment, from_index), _next(_PLACE.pack(partition, segment))


def place_range(partition: int, segment: int) -> tuple[bytes, bytes]:
    """All keys of `index` or `cursor` of a segment."""
    head = _PLACE.pack(partition, segment)
    return head, _next(head)


def partition_range(partition: int) -> tuple[bytes, bytes]:
    """All keys of a partition, in any column family."""
    head = _NUMBER.pack(partition)
    return head, _next(head)


def partition_of(key: bytes) -> int:
    """The partition of any key."""
    number: int = _NUMBER.unpack_from(key)[0]
    return number


def meta_key(partition: int, kind: bytes, segment: int, rest: bytes = b"") -> bytes:
    """A record of a segment in `meta`."""
    return _META.pack(partition, kind, segment) + rest


def tail_key(partition: int, segment: int, place: int) -> bytes:
    """A tail copy of a segment in `meta`; the first place of the row has the key that the only one had once."""
    return meta_key(partition, TAIL, segment, _NUMBER.pack(place) if place else b"")


def split_meta_key(key: bytes) -> tuple[int, bytes, int, bytes]:
    """Partition, kind, segment and what comes after."""
    partition, kind, segment = _META.unpack_from(key)
    return partition, kind, segment, key[META_HEAD_BYTES:]


def meta_range(partition: int, kind: bytes, segment: int) -> tuple[bytes, bytes]:
    """All records of one kind of a segment in `meta`."""
    head = _META.pack(partition, kind, segment)
    return head, _next(head)


def cursor_key(partition: int, segment: int, group: str) -> bytes:
    """A consumer group's cursor in a segment."""
    return _PLACE.pack(partition, segment) + group.encode()


def split_cursor_key(key: bytes) -> tuple[int, int, str]:
    """Partition, segment and consumer group."""
    partition, segment = _PLACE.unpack_from(key)
    return partition, segment, key[PLACE_HEAD_BYTES:].decode()


def extent_key(extent: int) -> bytes:
    """The record of an extent in `index`."""
    return _PLACE.pack(0, extent)


def split_extent_key(key: bytes) -> int:
    """The number of an extent."""
    extent: int = _PLACE.unpack(key)[1]
    return extent


def _next(head: bytes) -> bytes:
    """The least key above all that begin with `head`."""
    grown = int.from_bytes(head, "big") + 1
    return grown.to_bytes(len(head) + 1, "big")[1:] if grown < 1 << (8 * len(head)) else b"\xff" * (len(head) + 24)
