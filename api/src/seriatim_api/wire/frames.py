"""Writes and reads the frames of the hot path without protobuf's own code.

`AppendFrame`, `ReplicateFrame` and `Delivery` carry many batches: first small columns, and as the last field the
bodies, one after another. The bytes are valid protobuf for the messages of the same name, and a contract test checks
that. The advantage over protobuf's own code: bodies are copied once when a frame is written, and become views without a
copy when it is read.

A reader accepts only frames in the form of the writer here: fields in ascending order, each at most once, except
repeated ones. Anything else is a `FrameError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from seriatim_api.batch import HEADER_SIZE_BYTES, BatchHeader, HeaderError, parse_header

_LENGTH_DELIMITED: Final = 2
_ENTRY: Final = struct.Struct("<IBBHQ")
ENTRY_SIZE_BYTES: Final = _ENTRY.size
_RUN: Final = struct.Struct("<IIQ16sII")
RUN_SIZE_BYTES: Final = _RUN.size
assert ENTRY_SIZE_BYTES == 16
assert RUN_SIZE_BYTES == 40


class FrameError(ValueError):
    """The bytes are not a frame of the expected kind."""


class AppendEntry(NamedTuple):
    """The fields that a producer sends with a batch besides its header. `run` is the producer run."""

    run: int
    ack_level: int
    starts_run: bool
    route_epoch: int


class ReplicateRun(NamedTuple):
    """Batches of one partition that follow each other in a replicate frame, and the commit that the frame carries.

    `attempt` is the id of the switch attempt that opened the segment. `may_wait`: whether the member may flush the
    batches later, because no program waits for its disk.
    """

    partition: int
    segment: int
    commit: int
    attempt: bytes
    batch_count: int
    may_wait: bool = False


def write_varint(value: int) -> bytes:
    """A protobuf varint."""
    assert value >= 0
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_field(number: int, parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """A length-delimited field made of `parts`, as pieces that the caller joins. Empty if the parts are."""
    size = sum(map(len, parts))
    if size == 0:
        return []
    return [write_varint(number << 3 | _LENGTH_DELIMITED) + write_varint(size), *parts]


def read_fields(frame: bytes | memoryview) -> Iterable[tuple[int, memoryview]]:
    """The length-delimited fields of a frame, in order, as views.

    Raises:
        FrameError: The frame is cut short, has a field of another wire type, or has fields out of order.
    """
    view = memoryview(frame)
    at = 0
    end = len(frame)
    previous = 0
    while at < end:
        tag, at = _read_varint(frame, at, end)
        if tag & 7 != _LENGTH_DELIMITED or tag >> 3 < max(previous, 1):
            raise FrameError("fields of a frame are length-delimited and in ascending order")
        previous = tag >> 3
        size, at = _read_varint(frame, at, end)
        if size > end - at:
            raise FrameError("the frame is cut short")
        yield previous, view[at : at + size]
        at += size


def _read_varint(frame: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= end or shift > 63:
            raise FrameError("the frame has a broken varint")
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def read_batches(headers: memoryview, bodies: memoryview) -> list[tuple[BatchHeader, memoryview]]:
    """Pair headers with their bodies.

    Raises:
        FrameError: The lengths do not match, or the bytes of a header are not a header.
    """
    if len(headers) % HEADER_SIZE_BYTES:
        raise FrameError("the headers of the frame are cut short")
    batches: list[tuple[BatchHeader, memoryview]] = []
    at = 0
    for start in range(0, len(headers), HEADER_SIZE_BYTES):
        try:
            header = parse_header(bytes(headers[start : start + HEADER_SIZE_BYTES]))
        except HeaderError as exc:
            raise FrameError(str(exc)) from exc
        end = at + header.body_length
        if end > len(bodies):
            raise FrameError("the bodies of the frame are shorter than its headers say")
        batches.append((header, bodies[at:end]))
        at = end
    if at != len(bodies):
        raise FrameError("the bodies of the frame are longer than its headers say")
    return batches


# ---- append -------------------------------------------------------------------------------------------


def write_append_frame(batches: Sequence[tuple[AppendEntry, bytes, bytes | memoryview]]) -> bytes:
    """Write an `AppendFrame` of (entry, header, body) rows."""
    return b"".join(append_frame_pieces(batches))


def append_frame_pieces(batches: Sequence[tuple[AppendEntry, bytes, bytes | memoryview]]) -> list[bytes | memoryview]:
    """An `AppendFrame` in pieces: their concatenation is what `write_append_frame` writes."""
    entries = [_ENTRY.pack(e.run, e.ack_level, e.starts_run, 0, e.route_epoch) for e, _, _ in batches]
    pieces = write_field(2, [b"".join(entries)])
    pieces += write_field(3, [header for _, header, _ in batches])
    pieces += write_field(15, [body for _, _, body in batches])
    return pieces


class AppendFrame(NamedTuple):
    """A parsed frame: the serialized hello (empty except in a stream's first frame) and the rows."""

    hello: bytes
    batches: list[tuple[AppendEntry, BatchHeader, memoryview]]


def read_append_frame(frame: bytes | memoryview) -> AppendFrame:
    """Read an `AppendFrame`.

    Raises:
        FrameError: The bytes are not a frame, or its columns disagree.
    """
    fields = dict(read_fields(frame))
    if not fields.keys() <= {1, 2, 3, 15}:
        raise FrameError(f"an append frame has no fields {sorted(fields.keys() - {1, 2, 3, 15})}")
    empty = memoryview(b"")
    entries = fields.get(2, empty)
    batches = read_batches(fields.get(3, empty), fields.get(15, empty))
    if len(entries) != len(batches) * ENTRY_SIZE_BYTES:
        raise FrameError("an append frame has one entry for each header")
    rows = [
        (AppendEntry(run, level, bool(starts), epoch), header, body)
        for (run, level, starts, _, epoch), (header, body) in zip(
            _ENTRY.iter_unpack(entries) if batches else (), batches, strict=True
        )
    ]
    return AppendFrame(bytes(fields.get(1, empty)), rows)


# ---- replicate ----------------------------------------------------------------------------------------


def replicate_frame_pieces(
    messages: Sequence[bytes],
    runs: Sequence[tuple[ReplicateRun, Sequence[tuple[bytes, bytes | memoryview]]]],
) -> list[bytes | memoryview]:
    """A `ReplicateFrame` of encoded messages, and of runs with their (header, body) rows, in pieces to be joined."""
    pieces: list[bytes | memoryview] = []
    for message in messages:
        pieces += write_field(2, [message])
    packed = [_RUN.pack(r.partition, r.segment, r.commit, r.attempt, r.batch_count, r.may_wait) for r, _ in runs]
    pieces += write_field(3, [b"".join(packed)])
    pieces += write_field(4, [header for _, rows in runs for header, _ in rows])
    pieces += write_field(15, [body for _, rows in runs for _, body in rows])
    return pieces


class ReplicateFrame(NamedTuple):
    """A parsed frame: the serialized hello, the encoded messages, and the runs with their batches."""

    hello: bytes
    messages: list[bytes]
    runs: list[tuple[ReplicateRun, list[tuple[BatchHeader, memoryview]]]]


def read_replicate_frame(frame: bytes | memoryview) -> ReplicateFrame:
    """Read a `ReplicateFrame`.

    Raises:
        FrameError: The bytes are not a frame, or its columns disagree.
    """
    messages: list[bytes] = []
    fields: dict[int, memoryview] = {}
    for number, value in read_fields(frame):
        if number == 2:
            messages.append(bytes(value))
        else:
            fields[number] = value
    if not fields.keys() <= {1, 3, 4, 15}:
        raise FrameError(f"a replicate frame has no fields {sorted(fields.keys() - {1, 3, 4, 15})}")
    empty = memoryview(b"")
    packed = fields.get(3, empty)
    if len(packed) % RUN_SIZE_BYTES:
        raise FrameError("the runs of the frame are cut short")
    batches = read_batches(fields.get(4, empty), fields.get(15, empty))
    runs: list[tuple[ReplicateRun, list[tuple[BatchHeader, memoryview]]]] = []
    at = 0
    for partition, segment, commit, attempt, count, flags in _RUN.iter_unpack(packed) if len(packed) else ():
        run = ReplicateRun(partition, segment, commit, attempt, count, bool(flags & 1))
        runs.append((run, batches[at : at + count]))
        at += count
    if at != len(batches):
        raise FrameError("the runs of a frame account for all its batches")
    return ReplicateFrame(bytes(fields.get(1, empty)), messages, runs)


# ---- delivery -----------------------------------------------------------------------------------------


def write_delivery_frame(events: Sequence[bytes], batches: Sequence[tuple[bytes, bytes | memoryview]]) -> bytes:
    """Write a `Delivery` of encoded `DeliveryEvent`s, and of the (header, body) rows of their batches."""
    return b"".join(delivery_frame_pieces(events, batches))


def delivery_frame_pieces(
    events: Sequence[bytes], batches: Sequence[tuple[bytes, bytes | memoryview]]
) -> list[bytes | memoryview]:
    """A `Delivery` in pieces: their concatenation is what `write_delivery_frame` writes."""
    pieces: list[bytes | memoryview] = []
    for event in events:
        pieces += write_field(1, [event])
    pieces += write_field(14, [header for header, _ in batches])
    pieces += write_field(15, [body for _, body in batches])
    return pieces


class DeliveryFrame(NamedTuple):
    """A parsed frame: the encoded events and the batches."""

    events: list[bytes]
    batches: list[tuple[BatchHeader, memoryview]]


def read_delivery_frame(frame: bytes | memoryview) -> DeliveryFrame:
    """Read a `Delivery`.

    Raises:
        FrameError: The bytes are not a frame, or its columns disagree.
    """
    events: list[bytes] = []
    fields: dict[int, memoryview] = {}
    for number, value in read_fields(frame):
        if number == 1:
            events.append(bytes(value))
        else:
            fields[number] = value
    if not fields.keys() <= {14, 15}:
        raise FrameError(f"a delivery has no fields {sorted(fields.keys() - {14, 15})}")
    empty = memoryview(b"")
    return DeliveryFrame(events, read_batches(fields.get(14, empty), fields.get(15, empty)))
