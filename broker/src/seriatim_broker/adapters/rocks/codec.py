"""Values on disk, from and to bytes.

Each append writes a batch and a producer window, so their formats are packed by hand. The others are arrays of the
fields of the core's values (`interfaces.forms`).

    batch   commit (u64, little-endian)   the commit that the member knew when it wrote the batch
            position (u64)                bytes of the segment's log before this batch
            header (192 bytes), body
            If the highest bit of commit is set, the body is stored apart. Then the value has in place of the body:
            extent (u32), and the key of the body in that extent
    window  as the core packs it (`core.values.producers`)
    run     extent u32, position u64      bytes of the segment's log before the run
            bodies (u32)                  only if bodies are stored apart: their extent
    delayed by due time: messages u32, bytes u32; by index: due time i64; volley: producer (16 bytes), epoch u32
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple, TypeVar

from seriatim_api.batch import HEADER_SIZE_BYTES, BatchHeader, HeaderError, parse_header
from seriatim_api.errors import CorruptionError
from seriatim_api.ids import PartitionId

from ...core.values.chain import Chain
from ...core.values.delayed import read_origins, write_origins
from ...core.values.log import (
    Batch,
    CursorState,
    DueRow,
    HandOverState,
    LocalSegment,
    Preparation,
    StoredVolley,
    TailCopy,
)
from ...core.values.producers import ENTRY_BYTES, TIME_BYTES, WINDOW_BATCHES, IdleBlock, Window, is_window
from ...core.values.segment import Segment
from ...interfaces import forms
from .extents import ExtentRun

_T = TypeVar("_T")

_PREFIX: Final = struct.Struct("<QQ")
_BODY_AT: Final = _PREFIX.size + HEADER_SIZE_BYTES
_APART: Final = 1 << 63
_EXTENT: Final = struct.Struct("<I")
_RUN: Final = struct.Struct("<IQ")
_RUN_APART: Final = struct.Struct("<IQI")
_SIZES: Final = struct.Struct("<II")
_ORIGIN: Final = struct.Struct("<Q")
_DUE: Final = struct.Struct("<q")
_STORED_VOLLEY: Final = struct.Struct("<16sIB")

WINDOW_BYTES_MAX: Final = WINDOW_BATCHES * ENTRY_BYTES + TIME_BYTES

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


# ---- delayed batches ------------------------------------------------------------------------------------


def write_sizes(row: DueRow) -> bytes:
    """The value of a delayed batch's row by due time."""
    return _SIZES.pack(row.message_count, row.size_bytes) + (_ORIGIN.pack(row.origin) if row.origin else b"")


def read_delayed(due_ms: int, index: int, value: bytes) -> DueRow:
    """The row by due time that has this value.

    Raises:
        CorruptionError: The value cannot be read.
    """
    if len(value) not in (_SIZES.size, _SIZES.size + _ORIGIN.size):
        raise CorruptionError(f"the row of a delayed batch has {len(value)} bytes")
    origin = _ORIGIN.unpack_from(value, _SIZES.size)[0] if len(value) > _SIZES.size else 0
    message_count, size_bytes = _SIZES.unpack_from(value)
    return DueRow(due_ms, index, message_count, size_bytes, origin)


def write_due(due_ms: int) -> bytes:
    """The value of a delayed batch's row by index."""
    return _DUE.pack(due_ms)


def read_due(value: bytes) -> int:
    """The due time in the value of a row by index.

    Raises:
        CorruptionError: The value cannot be read.
    """
    if len(value) != _DUE.size:
        raise CorruptionError(f"the due time of a delayed batch has {len(value)} bytes")
    due_ms: int = _DUE.unpack(value)[0]
    return due_ms


def write_stored_volley(volley: StoredVolley) -> bytes:
    """The value of the row of a volley."""
    kind = volley.is_list | volley.is_moved << 1
    return _STORED_VOLLEY.pack(volley.producer, volley.epoch, kind) + write_origins(volley.origins)


def read_stored_volley(index: int, value: bytes) -> StoredVolley:
    """The volley that begins at an index.

    Raises:
        CorruptionError: The value cannot be read.
    """
    try:
        producer, epoch, kind = _STORED_VOLLEY.unpack_from(value)
        origins = read_origins(value[_STORED_VOLLEY.size :])
    except struct.error as exc:
        raise CorruptionError(f"the row of a volley has {len(value)} bytes") from exc
    return StoredVolley(index, producer, epoch, origins, bool(kind & 1), bool(kind & 2))


# ---- control records ------------------------------------------------------------------------------------


class Extent(NamedTuple):
    """An extent in use; its number is in the key."""

    opened_at_ms: int


class BareChain(NamedTuple):
    """A chain record without its segments, which have keys of their own."""

    partition: PartitionId
    epoch: int
    topic: str
    number: int
    flush: bool
    send_chain: tuple[str, ...]
    width: int
    oldest_segment_no: int
    open_segment_no: int


KINDS: Final = (LocalSegment, Preparation, TailCopy, CursorState, HandOverState, BareChain, Segment, Extent)
"""What `write` writes."""

write: Final = forms.encode
"""The value of a control record."""


def read_segment(no: int, value: bytes) -> LocalSegment:
    """The segment in a value.

    Raises:
        CorruptionError: The value cannot be read.
    """
    return _read(LocalSegment, value, no=no)


def read_preparation(no: int, attempt: bytes, value: bytes) -> Preparation:
    """The preparation in a value.

    Raises:
        CorruptionError: The value, its producer table or its tail copy cannot be read.
    """
    return _read(Preparation, value, segment_no=no, switch_attempt=attempt)


def read_block(block: bytes, value: bytes) -> bytes:
    """The content of an idle block.

    Raises:
        CorruptionError: The content does not match the block's id, which is a digest of it.
    """
    if not IdleBlock.is_sound(value) or IdleBlock(value).id != block:
        raise CorruptionError(f"an idle block of {len(value)} bytes does not match its id")
    return value


def read_tail(value: bytes) -> TailCopy:
    """The tail copy in a value.

    Raises:
        CorruptionError: The value cannot be read.
    """
    return _read(TailCopy, value)


def read_cursor(segment_no: int, group: str, value: bytes) -> CursorState:
    """The cursor in a value.

    Raises:
        CorruptionError: The value cannot be read, or does not say how the consumer group is served.
    """
    return _read(CursorState, value, segment_no=segment_no, consumer_group=group)


def read_handoff(segment_no: int, group: str, value: bytes) -> HandOverState:
    """The handoff in a value.

    Raises:
        CorruptionError: The value cannot be read.
    """
    return _read(HandOverState, value, segment_no=segment_no, consumer_group=group)


def write_bare_chain(chain: Chain) -> bytes:
    """The value of a chain's head: the chain record without its segments."""
    return write(
        BareChain(
            chain.partition, chain.epoch, chain.topic, chain.number, chain.flush, chain.send_chain, chain.width,
            chain.segments[0].no, chain.open_segment.no,
        )
    )  # fmt: skip


def read_chain(value: bytes, segments: dict[int, bytes]) -> Chain:
    """The chain that a head and the values of its segments make.

    Args:
        value: The head.
        segments: Values by segment number. It may have segments that are not part of the chain any more.

    Raises:
        CorruptionError: A segment is missing, or a value cannot be read.
    """
    bare = _read(BareChain, value)
    found: list[Segment] = []
    no = bare.open_segment_no
    while no >= bare.oldest_segment_no or not found:
        if no not in segments:
            raise CorruptionError(f"the chain of partition id {bare.partition} lacks a segment")
        found.append(_read(Segment, segments[no], no=no))
        no = found[-1].previous_no
    return Chain(
        bare.partition, bare.epoch, bare.topic, bare.number, bare.flush, bare.send_chain, tuple(reversed(found)),
        bare.width,
    )  # fmt: skip


def read_extent(value: bytes) -> int:
    """When the extent was opened, in milliseconds since 1970 UTC by the machine's clock.

    Raises:
        CorruptionError: The value cannot be read.
    """
    return _read(Extent, value).opened_at_ms


def _read(kind: type[_T], value: bytes, **of_key: Any) -> _T:
    """The value of that kind whose key says the same of it."""
    try:
        found = forms.decode(kind, value)
    except forms.FormError as error:
        raise CorruptionError(f"a {kind.__name__} on disk cannot be read: {error}") from error
    for name, expected in of_key.items():
        if getattr(found, name) != expected:
            raise CorruptionError(f"a {kind.__name__} on disk is of another {name} than its key")
    return found
