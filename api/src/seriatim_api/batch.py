"""The header of a batch: 192 bytes, little-endian, the same on the wire and on disk.

A batch is sent, stored, replicated, recognised as a repeat and delivered as a whole. After it was sent, it is never cut
again. The producer fills in its part (producer, sequence, count, the body's length and CRC-32C). The master of the
segment adds the place (segment, base index), the append time, `spared` and the checksum chain. The body is opaque here.

    bytes   field
    0       magic "SQ"
    2       version (1)
    3       reserved
    4       flags (u32), see FLAG_*
    8       partition (u32)
    12      segment (u32)
    16      base_index (u64)       first index of the batch in its segment
    24      message_count (u32)    messages in the batch
    28      producer_epoch (u32)
    32      producer (16 bytes)
    48      base_sequence (u64)    sequence of the first message
    56      first_timestamp_ms (i64)
    64      last_timestamp_ms (i64)
    72      append_time_ms (i64)
    80      due_time_ms (i64)      with FLAG_DELAYED or FLAG_FIRED; 0: none. A client may send a duration: `-delay_ms`
    88      source_sequence (u64)  order as declared by the source; valid with FLAG_SOURCE_SEQUENCE
    96      trace_id (16 bytes)    W3C trace context
    112     span_id (8 bytes)
    120     stage (16 bytes)       the staged chunk that this batch belongs to or publishes
    136     body_length (u32)
    140     body_crc (u32)         CRC-32C of the body
    144     key_hash (u64)         of the single key of the batch; valid with FLAG_SINGLE_KEY
    152     for_group (u64)        hash of the only consumer group that it is for; 0: all (`dead_letters`)
    160     origin_offset (u64)    of a copy that a broker made: the offset of what it copied
    168     origin_partition (u32) and its partition
    172     spared (u16)           written by the master: see `BatchHeader.spared`
    174     reserved (2 bytes, zero)
    176     given_up (u64)         with FLAG_RELEASED: the first source number that was given up before it; 0: none
    184     previous_checksum (u32) the chain's value before this batch
    188     checksum (u32)          CRC-32C(previous_checksum as seed, bytes 0..184)

Nothing in this module does I/O. The checksum function is an argument.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

Checksum = Callable[[int, bytes], int]
"""`checksum(seed, data) -> u32`, CRC-32C in production."""

MAGIC: Final = b"SQ"
VERSION: Final = 1

DELIVERY_TIMEOUT_MS_MAX: Final = 600_000
"""The longest time for which a client tries to deliver a batch. Brokers remember each producer for at least as long."""

FLAG_LZ4: Final = 1 << 0
FLAG_ZSTD: Final = 1 << 1
FLAG_KEYED: Final = 1 << 2
FLAG_SINGLE_KEY: Final = 1 << 3
FLAG_DELAYED: Final = 1 << 4
FLAG_SOURCE_SEQUENCE: Final = 1 << 5
FLAG_STAGED: Final = 1 << 6
FLAG_PUBLISH: Final = 1 << 7
FLAG_TRACED: Final = 1 << 8
FLAG_FIRED: Final = 1 << 9
FLAG_HELD: Final = 1 << 10
FLAG_RELEASED: Final = 1 << 11
FLAG_LATE: Final = 1 << 12
FLAG_CONTROL: Final = 1 << 13
FLAGS_KNOWN: Final = (1 << 10) - 1 | FLAG_CONTROL
"""A header with another flag is refused wherever it is read: its batch would count as an ordinary one."""

FLAG_NAMES: Final = {
    FLAG_DELAYED: "DELAYED",
    FLAG_SOURCE_SEQUENCE: "SOURCE_SEQUENCE",
    FLAG_FIRED: "FIRED",
    FLAG_HELD: "HELD",
    FLAG_RELEASED: "RELEASED",
    FLAG_LATE: "LATE",
    FLAG_CONTROL: "CONTROL",
}
FLAGS_UNSERVED: Final = FLAG_SOURCE_SEQUENCE | FLAG_FIRED | FLAG_CONTROL
"""A master refuses a client's batch with one of these: brokers do not do what it says, or only they may say it."""

_STRUCT: Final = struct.Struct("<2sBBIIIQII16sQqqqqQ16s8s16sIIQ32sII")
HEADER_SIZE_BYTES: Final = _STRUCT.size
assert HEADER_SIZE_BYTES == 192

_PLACE: Final = struct.Struct("<IQ")  # segment, base_index at 12
_PLACE_AT: Final = 12
_APPEND_TIME: Final = struct.Struct("<q")
_APPEND_TIME_AT: Final = 72
_FLAGS: Final = struct.Struct("<I")
_FLAGS_AT: Final = 4
_DUE_TIME: Final = struct.Struct("<q")
_DUE_TIME_AT: Final = 80
_CHAIN: Final = struct.Struct("<II")
_CHAIN_AT: Final = 184

_NO_BYTES_8 = bytes(8)
_NO_BYTES_16 = bytes(16)
_FOR_GROUP: Final = struct.Struct("<Q")
_FOR_GROUP_AT: Final = 152
_OF_BROKERS: Final = struct.Struct("<QQI12x")  # for_group, offset and partition of the origin; the rest is set later
_ORIGIN: Final = struct.Struct("<QI")
_ORIGIN_AT: Final = 160
_SPARED: Final = struct.Struct("<H")
_SPARED_AT: Final = 172
_OF_BROKERS_ONLY: Final = slice(_FOR_GROUP_AT, _CHAIN_AT)
_NO_BYTES_OF_BROKERS: Final = bytes(_CHAIN_AT - _FOR_GROUP_AT)

SPARED_ALL: Final = 0xFFFF
"""`spared` of a batch that pushes out no producer at all."""


class HeaderError(ValueError):
    """The bytes are not a batch header of a version that this build reads."""


class BatchHeader(NamedTuple):
    """A parsed header. `raw` has the header's bytes, from which the other fields were read."""

    raw: bytes
    flags: int
    partition: int
    segment: int
    base_index: int
    message_count: int
    producer: bytes
    producer_epoch: int
    base_sequence: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    append_time_ms: int
    due_time_ms: int
    source_sequence: int
    trace_id: bytes
    span_id: bytes
    stage: bytes
    body_length: int
    body_crc: int
    key_hash: int
    previous_checksum: int
    checksum: int

    @property
    def end_index(self) -> int:
        """The index after the last message of the batch."""
        return self.base_index + self.message_count

    @property
    def last_sequence(self) -> int:
        """The sequence of the last message of the batch."""
        return self.base_sequence + self.message_count - 1

    @property
    def for_group(self) -> int:
        """The hash of the only consumer group that the batch is for; 0: it is for all."""
        found: int = _FOR_GROUP.unpack_from(self.raw, _FOR_GROUP_AT)[0]
        return found

    @property
    def origin(self) -> tuple[int, int]:
        """Of a copy that a broker made: the partition and the offset of what it copied, of a replayed message those of
        its dead letter, of a fired or moved one those where it was stored first. (0, 0) if it is no copy.
        """
        offset, partition = _ORIGIN.unpack_from(self.raw, _ORIGIN_AT)
        return partition, offset

    @property
    def has_fields_of_brokers(self) -> bool:
        """Whether a field is set that only a broker fills in, or a byte that no field uses."""
        return self.raw[3] != 0 or self.raw[_OF_BROKERS_ONLY] != _NO_BYTES_OF_BROKERS

    @property
    def spared(self) -> int:
        """Of the first batch of a producer that the partition does not know: how many of those that it would push out
        first stay; `SPARED_ALL`: it pushes out none.
        """
        found: int = _SPARED.unpack_from(self.raw, _SPARED_AT)[0]
        return found


def make_header(
    *,
    partition: int,
    message_count: int,
    producer: bytes,
    producer_epoch: int,
    base_sequence: int,
    first_timestamp_ms: int,
    last_timestamp_ms: int,
    body_length: int,
    body_crc: int,
    flags: int = 0,
    due_time_ms: int = 0,
    source_sequence: int = 0,
    trace_id: bytes = _NO_BYTES_16,
    span_id: bytes = _NO_BYTES_8,
    stage: bytes = _NO_BYTES_16,
    key_hash: int = 0,
    for_group: int = 0,
    origin: tuple[int, int] = (0, 0),
) -> bytes:
    """The header that a producer sends: without place, append time and checksum chain.

    `origin` is the partition and the offset of what the batch is a copy of. `due_time_ms` below 0 is a duration: the
    master makes a time of it (`place`).
    """
    assert message_count > 0
    assert len(producer) == 16
    return _STRUCT.pack(
        MAGIC, VERSION, 0, flags, partition, 0, 0, message_count, producer_epoch, producer, base_sequence,
        first_timestamp_ms, last_timestamp_ms, 0, due_time_ms, source_sequence, trace_id, span_id, stage,
        body_length, body_crc, key_hash,
        _OF_BROKERS.pack(for_group, origin[1], origin[0]) if for_group or any(origin) else _NO_BYTES_OF_BROKERS, 0, 0,
    )  # fmt: skip


def parse_header(raw: bytes) -> BatchHeader:
    """Read a header.

    Raises:
        HeaderError: The length, the magic or the version is wrong, a flag is unknown, or the count is 0. The fields
            about the body are not checked here.
    """
    if len(raw) != HEADER_SIZE_BYTES:
        raise HeaderError(f"a batch header has {HEADER_SIZE_BYTES} bytes, not {len(raw)}")
    (
        magic, version, _reserved, flags, partition, segment, base_index, message_count, producer_epoch, producer,
        base_sequence, first_timestamp_ms, last_timestamp_ms, append_time_ms, due_time_ms, source_sequence,
        trace_id, span_id, stage, body_length, body_crc, key_hash, _room, previous_checksum, checksum,
    ) = _STRUCT.unpack(raw)  # fmt: skip
    if magic != MAGIC:
        raise HeaderError(f"not a batch header: it begins with {magic!r}")
    if version != VERSION:
        raise HeaderError(f"batch header version {version} is not known here (known: {VERSION})")
    if unknown := flags & ~FLAGS_KNOWN:
        names = [name for flag, name in FLAG_NAMES.items() if unknown & flag]
        if nameless := unknown & ~sum(FLAG_NAMES):
            names.append(f"{nameless:#x}")
        raise HeaderError(f"batch header has flags that this version does not know: {', '.join(names)}")
    if message_count == 0:
        raise HeaderError("a batch holds at least one message")
    return BatchHeader(
        raw, flags, partition, segment, base_index, message_count, producer, producer_epoch, base_sequence,
        first_timestamp_ms, last_timestamp_ms, append_time_ms, due_time_ms, source_sequence, trace_id, span_id,
        stage, body_length, body_crc, key_hash, previous_checksum, checksum,
    )  # fmt: skip


def place(
    header: BatchHeader,
    *,
    segment: int,
    base_index: int,
    append_time_ms: int,
    previous_checksum: int,
    checksum: Checksum,
    spared: int = 0,
    due_time_ms: int | None = None,
) -> BatchHeader:
    """The header with its place in the log, and the checksum chain continued over it.

    `due_time_ms`, if given, replaces that of the header. With 0 the batch is not delayed any more.
    """
    raw = bytearray(header.raw)
    if due_time_ms is not None:
        header = header._replace(
            flags=header.flags if due_time_ms else header.flags & ~FLAG_DELAYED, due_time_ms=due_time_ms
        )
        _FLAGS.pack_into(raw, _FLAGS_AT, header.flags)
        _DUE_TIME.pack_into(raw, _DUE_TIME_AT, due_time_ms)
    _PLACE.pack_into(raw, _PLACE_AT, segment, base_index)
    _APPEND_TIME.pack_into(raw, _APPEND_TIME_AT, append_time_ms)
    _SPARED.pack_into(raw, _SPARED_AT, spared)
    value = checksum(previous_checksum, bytes(raw[:_CHAIN_AT]))
    _CHAIN.pack_into(raw, _CHAIN_AT, previous_checksum, value)
    return header._replace(
        raw=bytes(raw),
        segment=segment,
        base_index=base_index,
        append_time_ms=append_time_ms,
        previous_checksum=previous_checksum,
        checksum=value,
    )


def chain_is_intact(header: BatchHeader, checksum: Checksum) -> bool:
    """Whether the header's checksum fits its own bytes and its previous checksum."""
    return checksum(header.previous_checksum, header.raw[:_CHAIN_AT]) == header.checksum
