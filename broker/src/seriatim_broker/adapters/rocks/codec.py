"""Values on disk, from and to bytes.

Each append writes a batch and a producer window, so their formats are packed by hand. The others are protobuf, to which
a newer version may add fields.

    batch   commit (u64, little-endian)   the commit that the member knew when it wrote the batch
            position (u64)                bytes of the segment's log before this batch
            header (192 bytes), body
            If the highest bit of commit is set, the body is stored apart. Then the value has in place of the body:
            extent (u32), and the key of the body in that extent
    window  as the core packs it (`core.values.producers`)
    run     extent u32, position u64      bytes of the segment's log before the run
            bodies (u32)                  only if bodies are stored apart: their extent
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError
from seriatim_api.batch import HEADER_SIZE_BYTES, BatchHeader, HeaderError, parse_header
from seriatim_api.errors import CorruptionError
from seriatim_api.ids import MemberId, PartitionId
from seriatim_api.v1 import common_pb2, records_pb2, storage_pb2

from ...core.values.chain import Chain
from ...core.values.log import (
    Batch,
    CursorState,
    HandOverId,
    HandOverState,
    LocalSegment,
    Preparation,
    TailCopy,
)
from ...core.values.producers import (
    ENTRY_BYTES,
    KEPT_BATCHES,
    TIME_BYTES,
    IdleBlock,
    Table,
    Window,
    is_window,
    pack_names,
    read_names,
)
from ...core.values.segment import AT_ZERO, Segment, Start
from ...interfaces.segment_records import read_segment as read_segment_record
from ...interfaces.segment_records import write_segment as write_segment_record
from ...interfaces.settings_records import known_settings, settings_to_proto
from .extents import ExtentRun

_Message = TypeVar("_Message")

_PREFIX: Final = struct.Struct("<QQ")
_BODY_AT: Final = _PREFIX.size + HEADER_SIZE_BYTES
_APART: Final = 1 << 63
_EXTENT: Final = struct.Struct("<I")
_RUN: Final = struct.Struct("<IQ")
_RUN_APART: Final = struct.Struct("<IQI")

WINDOW_BYTES_MAX: Final = KEPT_BATCHES * ENTRY_BYTES + TIME_BYTES

BATCH_OVERHEAD_BYTES: Final = _BODY_AT
"""Bytes of a batch's value without the body."""


# ---- batches --------------------------------------------------------------------------------------------


class BodyPlace(NamedTuple):
    """The place of a body that is stored apart from its batch."""

    extent: int
    key: bytes


def batch_parts(batch: Batch, commit: int, position: int, apart: BodyPlace | None = None) -> tuple[bytes, bytes, bytes]:
    """The value of a batch, in pieces. The engine joins them when it writes.

    Args:
        batch: The batch.
        commit: The commit that this member knows.
        position: Bytes of the segment's log before this batch.
        apart: Where the body is stored; None: in this value.
    """
    if apart is None:
        return _PREFIX.pack(commit, position), batch.header.raw, batch.body
    return _PREFIX.pack(commit | _APART, position), batch.header.raw, _EXTENT.pack(apart.extent) + apart.key


def read_header(value: bytes) -> BatchHeader:
    """The header of the batch in a value. This does not verify its checksums.

    Raises:
        CorruptionError: The value is not a batch.
    """
    try:
        return parse_header(value[_PREFIX.size : _BODY_AT])
    except HeaderError as error:
        raise CorruptionError(f"a batch on disk cannot be read: {error}") from error


def read_body(value: bytes) -> bytes | BodyPlace:
    """The body of the batch in a value, or the body's place if it is stored apart.

    Raises:
        CorruptionError: The value does not say where the body is.
    """
    if not _PREFIX.unpack_from(value)[0] & _APART:
        return value[_BODY_AT:]
    rest = value[_BODY_AT:]
    if len(rest) <= _EXTENT.size:
        raise CorruptionError("a batch on disk does not say where its body is")
    return BodyPlace(_EXTENT.unpack_from(rest)[0], rest[_EXTENT.size :])


def read_prefix(value: bytes) -> tuple[int, int]:
    """The commit and the position in a batch's value.

    Raises:
        CorruptionError: The value is shorter than a batch without a body.
    """
    if len(value) < _BODY_AT:
        raise CorruptionError(f"a batch on disk has {len(value)} bytes, fewer than its header")
    commit, position = _PREFIX.unpack_from(value)
    return commit & ~_APART, position


# ---- runs, windows --------------------------------------------------------------------------------------


def write_run(run: ExtentRun) -> bytes:
    """The value of a run."""
    if not run.bodies:
        return _RUN.pack(run.extent, run.position)
    return _RUN_APART.pack(run.extent, run.position, run.bodies)


def read_run(start: int, value: bytes) -> ExtentRun:
    """The run that begins at index `start`.

    Raises:
        CorruptionError: The value is not a run.
    """
    try:
        extent, position, *bodies = (_RUN if len(value) == _RUN.size else _RUN_APART).unpack(value)
    except struct.error as error:
        raise CorruptionError("a run's record cannot be read") from error
    return ExtentRun(start, position, extent, *bodies)


def write_window(window: Window) -> bytes:
    """The value of a producer's window."""
    assert is_window(window), len(window)
    return window


def read_window(value: bytes) -> Window:
    """The window in a value.

    Raises:
        CorruptionError: The value is not a window.
    """
    if not is_window(value):
        raise CorruptionError(f"a producer's window has {len(value)} bytes")
    return value


# ---- control records ------------------------------------------------------------------------------------


def write_segment(segment: LocalSegment) -> bytes:
    """The value of a segment's record."""
    return _dump(
        storage_pb2.StoredSegment(
            attempt=segment.switch_attempt,
            members=_write_members(segment.members),
            flush=segment.flush,
            incomplete_table=segment.incomplete_table,
            opened_run=segment.opened_member_run,
            fenced=segment.fenced,
            sealed_len=segment.sealed_len,
            sealed_checksum=segment.sealed_checksum,
            lost=segment.lost,
            quarantined=segment.quarantined,
            start=segment.begin.first,
            start_checksum=segment.begin.checksum,
            start_bytes=segment.begin.size_bytes,
            copied_from=segment.copied_from,
        )
    )


def read_segment(no: int, value: bytes) -> LocalSegment:
    """The segment in a value.

    Raises:
        CorruptionError: The value cannot be read.
    """
    stored = _load(storage_pb2.StoredSegment, value)
    return LocalSegment(
        no=no,
        switch_attempt=stored.attempt,
        members=_read_members(stored.members),
        flush=stored.flush,
        incomplete_table=stored.incomplete_table,
        opened_member_run=stored.opened_run,
        fenced=stored.fenced,
        sealed_len=stored.sealed_len if stored.HasField("sealed_len") else None,
        sealed_checksum=stored.sealed_checksum if stored.HasField("sealed_checksum") else None,
        lost=stored.lost,
        quarantined=stored.quarantined,
        begin=Start(stored.start, stored.start_checksum, stored.start_bytes) if stored.start else AT_ZERO,
        copied_from=stored.copied_from,
    )


def write_preparation(preparation: Preparation) -> bytes:
    """The value of a preparation, which includes its tail copy."""
    return _dump(
        storage_pb2.StoredPreparation(
            members=_write_members(preparation.members),
            flush=preparation.flush,
            incomplete_table=preparation.incomplete_table,
            packed_table=preparation.table.rows,
            blocks=pack_names(preparation.table.blocks),
            tail=_tail_message(preparation.tail) if preparation.tail is not None else None,
            run=preparation.member_run,
            voided=preparation.voided,
        )
    )


def read_preparation(no: int, attempt: bytes, value: bytes) -> Preparation:
    """The preparation in a value.

    Raises:
        CorruptionError: The value, its producer table or its tail copy cannot be read.
    """
    stored = _load(storage_pb2.StoredPreparation, value)
    try:
        table = Table(stored.packed_table, read_names(stored.blocks))
    except ValueError as error:
        raise CorruptionError(f"a preparation names idle blocks that cannot be read: {error}") from error
    if not table.is_sound:
        raise CorruptionError(f"the producer table of a preparation has {table.size_bytes} bytes")
    return Preparation(
        segment_no=no,
        switch_attempt=attempt,
        members=_read_members(stored.members),
        flush=stored.flush,
        incomplete_table=stored.incomplete_table,
        table=table,
        tail=_tail_of(stored.tail) if stored.HasField("tail") else None,
        member_run=stored.run,
        voided=stored.voided,
    )


def read_block(block: bytes, value: bytes) -> bytes:
    """The content of an idle block.

    Raises:
        CorruptionError: The content does not match the block's id, which is a digest of it.
    """
    if not IdleBlock.is_sound(value) or IdleBlock(value).id != block:
        raise CorruptionError(f"an idle block of {len(value)} bytes does not match its id")
    return value


def write_tail(tail: TailCopy) -> bytes:
    """The value of a tail copy."""
    return _dump(_tail_message(tail))


def read_tail(value: bytes) -> TailCopy:
    """The tail copy in a value."""
    return _tail_of(_load(storage_pb2.StoredTail, value))


def write_cursor(cursor: CursorState) -> bytes:
    """The value of a cursor."""
    stored = storage_pb2.StoredCursor(
        group_epoch=cursor.group_epoch,
        acked=cursor.acked,
        reserved=cursor.reserved,
        server_epoch=cursor.server_epoch,
        oldest=cursor.oldest,
        untold=cursor.untold,
        term_base=cursor.term_base,
        serial=cursor.serial,
        settings=settings_to_proto(cursor.settings),
    )
    return _dump(stored)


def read_cursor(segment_no: int, group: str, value: bytes) -> CursorState:
    """The cursor in a value.

    Raises:
        CorruptionError: The value cannot be read, or does not say how the consumer group is served.
    """
    stored = _load(storage_pb2.StoredCursor, value)
    if not stored.HasField("settings"):
        raise CorruptionError(f"the control record of consumer group {group} does not say how the group is served")
    try:
        settings = known_settings(stored.settings)
    except ValueError as error:
        raise CorruptionError(
            f"the settings of consumer group {group} were written by a newer version, or are damaged: {error}"
        ) from error
    return CursorState(
        segment_no, group, stored.group_epoch, stored.acked, stored.reserved, stored.server_epoch, stored.oldest,
        stored.untold, settings=settings, term_base=stored.term_base, serial=stored.serial,
    )  # fmt: skip


def write_handover(handover: HandOverState) -> bytes:
    """The value of what the server of the segment before handed over."""
    return _dump(
        storage_pb2.StoredHandOver(
            group_epoch=handover.group_epoch,
            handover_epoch=handover.id.server_epoch,
            handover_no=handover.id.no,
            names=[name for name, _ in handover.rows],
            values=[value for _, value in handover.rows],
        )
    )


def read_handover(segment_no: int, group: str, value: bytes) -> HandOverState:
    """The hand-over in a value.

    Raises:
        CorruptionError: The value cannot be read.
    """
    stored = _load(storage_pb2.StoredHandOver, value)
    if len(stored.names) != len(stored.values):
        raise CorruptionError("a hand-over has as many values as names of rows")
    rows = tuple(zip(stored.names, stored.values, strict=True))
    id_ = HandOverId(stored.handover_epoch, stored.handover_no)
    return HandOverState(segment_no, group, stored.group_epoch, id_, rows)


def write_bare_chain(chain: Chain) -> bytes:
    """The value of a chain's head: the chain record without its segments."""
    record = records_pb2.ChainRecord(
        partition_id=chain.partition,
        epoch=chain.epoch,
        topic=chain.topic,
        partition=chain.number,
        flush=chain.flush,
        chain_width=chain.width,
        send_chain=chain.send_chain,
    )
    return _dump(
        storage_pb2.StoredChain(head=record, first_segment=chain.segments[0].no, open_segment=chain.open_segment.no)
    )


def write_chain_segment(segment: Segment) -> bytes:
    """The value of a segment of a chain."""
    record = records_pb2.SegmentRecord()
    write_segment_record(record, segment)
    return _dump(record)


def read_chain(value: bytes, segments: dict[int, bytes]) -> Chain:
    """The chain that a head and the values of its segments make.

    Args:
        value: The head.
        segments: Values by segment number. It may have segments that are not part of the chain any more.

    Raises:
        CorruptionError: A segment is missing, or a value cannot be read.
    """
    stored = _load(storage_pb2.StoredChain, value)
    found: list[Segment] = []
    no = stored.open_segment
    while no >= stored.first_segment:
        if no not in segments:
            raise CorruptionError(f"the chain of partition id {stored.head.partition_id} lacks a segment")
        found.append(read_segment_record(_load(records_pb2.SegmentRecord, segments[no])))
        no = found[-1].previous_no
    record = stored.head
    return Chain(
        partition=PartitionId(record.partition_id),
        epoch=record.epoch,
        topic=record.topic,
        number=record.partition,
        flush=record.flush,
        send_chain=tuple(record.send_chain),
        segments=tuple(reversed(found)),
        width=record.chain_width,
    )


def write_extent(opened_at_ms: int) -> bytes:
    """The value of an extent's record."""
    return _dump(storage_pb2.StoredExtent(opened_at_ms=opened_at_ms))


def read_extent(value: bytes) -> int:
    """When the extent was opened, in milliseconds since 1970 UTC by the machine's clock."""
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
    return _shared(tuple(MemberId(member.broker, member.incarnation) for member in stored))


@lru_cache(4096)
def _shared(members: tuple[MemberId, ...]) -> tuple[MemberId, ...]:
    """One shared object for all equal tuples, because thousands of segments name the same few members."""
    return members


def _dump(message: object) -> bytes:
    data: bytes = message.SerializeToString()  # type: ignore[attr-defined] # every generated class has it
    return data


def _load(kind: type[_Message], value: bytes) -> _Message:
    try:
        return kind.FromString(value)  # type: ignore[attr-defined,no-any-return] # every generated class has it
    except DecodeError as error:
        raise CorruptionError(f"a {kind.__name__} on disk cannot be read") from error
