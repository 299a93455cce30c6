"""Values on disk: to bytes and back.

Batches and producer windows are written with every append, so they are packed by hand; the rest is protobuf, in which
a newer version may add fields.

    batch   commit (u64, little-endian)   known when the batch was written
            position (u64)                bytes of the segment's log before this batch
            header (192 bytes), body
    window  24 bytes an entry: epoch u32, base sequence u64, messages u32, offset u64
    run     extent u32, position u64      bytes of the segment's log before the run
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import chain
from typing import Final, TypeVar

from google.protobuf.message import DecodeError
from seriatim_api.batch import HEADER_SIZE_BYTES, HeaderError, parse_header
from seriatim_api.errors import CorruptionError
from seriatim_api.ids import MemberId
from seriatim_api.v1 import common_pb2, storage_pb2

from ...core.log import Batch, CursorState, LocalSegment, Preparation, TailCopy
from ...core.producers import KEPT_BATCHES, Entry, Table, Window

_Message = TypeVar("_Message")

_PREFIX: Final = struct.Struct("<QQ")
_BODY_AT: Final = _PREFIX.size + HEADER_SIZE_BYTES
_RUN: Final = struct.Struct("<IQ")
_ENTRY: Final = struct.Struct("<IQIQ")
_WINDOWS: Final = tuple(struct.Struct("<" + "IQIQ" * count) for count in range(KEPT_BATCHES + 1))

WINDOW_BYTES_MAX: Final = KEPT_BATCHES * _ENTRY.size

BATCH_OVERHEAD_BYTES: Final = _BODY_AT
"""What a stored batch takes besides its body, key and framing."""


# ---- batches --------------------------------------------------------------------------------------------


def batch_parts(batch: Batch, commit: int, position: int) -> tuple[bytes, bytes, bytes]:
    """The value of a batch, in pieces: they are joined when it is written, not before."""
    return _PREFIX.pack(commit, position), batch.header.raw, batch.body


def read_batch(value: bytes) -> Batch:
    """The batch in a value; what the header claims is not checked here.

    Raises:
        CorruptionError: Not a batch.
    """
    try:
        header = parse_header(value[_PREFIX.size : _BODY_AT])
    except HeaderError as error:
        raise CorruptionError(f"a batch on disk cannot be read: {error}") from error
    return Batch(header, value[_BODY_AT:])


def read_prefix(value: bytes) -> tuple[int, int]:
    """Commit and position of a batch's value."""
    if len(value) < _BODY_AT:
        raise CorruptionError(f"a batch on disk has {len(value)} bytes, fewer than its header")
    commit, position = _PREFIX.unpack_from(value)
    return commit, position


# ---- runs, windows --------------------------------------------------------------------------------------


def write_run(extent: int, position: int) -> bytes:
    """The value of a run."""
    return _RUN.pack(extent, position)


def read_run(value: bytes) -> tuple[int, int]:
    """Extent and position of a run."""
    try:
        extent, position = _RUN.unpack(value)
    except struct.error as error:
        raise CorruptionError("a run's record cannot be read") from error
    return extent, position


def write_window(window: Window) -> bytes:
    """The value of a producer's window."""
    assert 0 < len(window) <= KEPT_BATCHES, len(window)
    return _WINDOWS[len(window)].pack(*chain.from_iterable(window))


def read_window(value: bytes) -> Window:
    """The window in a value."""
    if not value or len(value) % _ENTRY.size:
        raise CorruptionError(f"a producer's window has {len(value)} bytes")
    return tuple(Entry(*fields) for fields in _ENTRY.iter_unpack(value))


# ---- control records ------------------------------------------------------------------------------------


def write_segment(segment: LocalSegment) -> bytes:
    """The value of a segment's record."""
    return _dump(
        storage_pb2.StoredSegment(
            attempt=segment.attempt,
            members=_write_members(segment.members),
            flush=segment.flush,
            incomplete_table=segment.incomplete_table,
            opened_run=segment.opened_run,
            fenced=segment.fenced,
            sealed_len=segment.sealed_len,
            sealed_checksum=segment.sealed_checksum,
            lost=segment.lost,
        )
    )


def read_segment(no: int, value: bytes) -> LocalSegment:
    """The segment in a value."""
    stored = _load(storage_pb2.StoredSegment, value)
    return LocalSegment(
        no=no,
        attempt=stored.attempt,
        members=_read_members(stored.members),
        flush=stored.flush,
        incomplete_table=stored.incomplete_table,
        opened_run=stored.opened_run,
        fenced=stored.fenced,
        sealed_len=stored.sealed_len if stored.HasField("sealed_len") else None,
        sealed_checksum=stored.sealed_checksum if stored.HasField("sealed_checksum") else None,
        lost=stored.lost,
    )


def write_preparation(preparation: Preparation) -> bytes:
    """The value of a preparation, its tail copy in it."""
    table = [storage_pb2.StoredWindow(producer=producer, entries=write_window(w)) for producer, w in preparation.table]
    return _dump(
        storage_pb2.StoredPreparation(
            members=_write_members(preparation.members),
            flush=preparation.flush,
            incomplete_table=preparation.incomplete_table,
            table=table,
            tail=_tail_message(preparation.tail) if preparation.tail is not None else None,
            run=preparation.run,
            voided=preparation.voided,
        )
    )


def read_preparation(no: int, attempt: bytes, value: bytes) -> Preparation:
    """The preparation in a value."""
    stored = _load(storage_pb2.StoredPreparation, value)
    table: Table = tuple((window.producer, read_window(window.entries)) for window in stored.table)
    return Preparation(
        segment_no=no,
        attempt=attempt,
        members=_read_members(stored.members),
        flush=stored.flush,
        incomplete_table=stored.incomplete_table,
        table=table,
        tail=_tail_of(stored.tail) if stored.HasField("tail") else None,
        run=stored.run,
        voided=stored.voided,
    )


def write_tail(tail: TailCopy) -> bytes:
    """The value of a tail copy."""
    return _dump(_tail_message(tail))


def read_tail(value: bytes) -> TailCopy:
    """The tail copy in a value."""
    return _tail_of(_load(storage_pb2.StoredTail, value))


def write_cursor(cursor: CursorState) -> bytes:
    """The value of a cursor."""
    return _dump(storage_pb2.StoredCursor(group_epoch=cursor.group_epoch, acked=cursor.acked, reserved=cursor.reserved))


def read_cursor(segment_no: int, group: str, value: bytes) -> CursorState:
    """The cursor in a value."""
    stored = _load(storage_pb2.StoredCursor, value)
    return CursorState(segment_no, group, stored.group_epoch, stored.acked, stored.reserved)


def write_extent(opened_at_ms: int) -> bytes:
    """The value of an extent's record."""
    return _dump(storage_pb2.StoredExtent(opened_at_ms=opened_at_ms))


def read_extent(value: bytes) -> int:
    """When the extent was opened, by the machine's clock, in ms."""
    opened_at_ms: int = _load(storage_pb2.StoredExtent, value).opened_at_ms
    return opened_at_ms


def _tail_message(tail: TailCopy) -> storage_pb2.StoredTail:
    batches = [storage_pb2.StoredBatch(header=batch.header.raw, body=batch.body) for batch in tail.batches]
    return storage_pb2.StoredTail(
        segment=tail.segment_no, from_index=tail.from_index, length=tail.length, batches=batches
    )


def _tail_of(stored: storage_pb2.StoredTail) -> TailCopy:
    try:
        batches = tuple(Batch(parse_header(batch.header), batch.body) for batch in stored.batches)
    except HeaderError as error:
        raise CorruptionError(f"a batch of a tail copy cannot be read: {error}") from error
    return TailCopy(stored.segment, stored.from_index, stored.length, batches)


def _write_members(members: Iterable[MemberId]) -> list[common_pb2.Member]:
    return [common_pb2.Member(broker=member.broker, incarnation=member.incarnation) for member in members]


def _read_members(stored: Iterable[common_pb2.Member]) -> tuple[MemberId, ...]:
    return tuple(MemberId(member.broker, member.incarnation) for member in stored)


def _dump(message: object) -> bytes:
    data: bytes = message.SerializeToString()  # type: ignore[attr-defined] # every generated class has it
    return data


def _load(kind: type[_Message], value: bytes) -> _Message:
    try:
        return kind.FromString(value)  # type: ignore[attr-defined,no-any-return] # every generated class has it
    except DecodeError as error:
        raise CorruptionError(f"a {kind.__name__} on disk cannot be read") from error
