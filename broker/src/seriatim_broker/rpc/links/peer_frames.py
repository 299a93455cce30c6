"""Frames of a link between two brokers: messages that were queued in one turn of the event loop go out together.

The control lane carries `PeerFrame`s. The replication lane carries `ReplicateFrame`s, in which the encoded messages
come before the runs of batches. Messages about one partition keep their order: if a message about a partition follows a
run of that partition, it begins a new frame.

A message that is too large for one frame (in most cases a producer table) travels in parts, with heartbeats between
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError
from seriatim_api.batch import HEADER_SIZE_BYTES
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import peer_pb2
from seriatim_api.wire.frames import FrameError, ReplicateRun, read_replicate_frame, replicate_frame_pieces

from ...core.values import messages as m
from ...core.values.log import Batch, TailCopy
from ...core.values.producers import Table
from . import codec

FRAME_SIZE_BYTES = 1 << 20
"""A frame is closed when it has this many bytes. One larger message travels alone."""

CONTROL_FRAME_SIZE_BYTES = 64 << 10
"""A control frame is closed when it has this many bytes. A heartbeat waits about 10 ms for a frame of this size."""

PART_SIZE_BYTES: Final = 1 << 20
"""A larger control message travels in parts of this size. A heartbeat waits for one part, some milliseconds."""

PIECE_SIZE_BYTES: Final = 512 << 10
"""Bytes of rows in one piece of a message with many rows: some milliseconds to encode or to decode."""

PARTS_SIZE_BYTES_MAX: Final = 256 << 20
"""Largest message in parts: as many bytes as may wait for a peer. The core keeps its tables smaller
(`table_bytes_max`)."""

_OVERHEAD_BYTES = 64
"""Added for each message or run, so that a frame of many small ones is limited as well."""


def is_data(message: m.Message) -> bool:
    """Whether a message travels on the replication lane: it is of such a kind, and fits into a frame.

    A copy with a large producer table goes on the control lane, in parts. It answers one question, and no other
    message about its partition has to come before it.
    """
    too_large = isinstance(message, m.CopyAnswer) and message.table and message.table.size_bytes > PART_SIZE_BYTES
    return isinstance(message, m.DATA) and not too_large


def size_of(message: m.Message) -> int:
    """About how many bytes a message takes in the queue and on the wire."""
    content_bytes = _CONTENT_BYTES.get(type(message))
    return _OVERHEAD_BYTES if content_bytes is None else _OVERHEAD_BYTES + content_bytes(message)


def _batches_bytes(batches: Sequence[Batch]) -> int:
    return sum(batch.size_bytes for batch in batches)


def _tail_bytes(tail: TailCopy | None) -> int:
    return _batches_bytes(tail.batches) if tail is not None else 0


def _table_bytes(table: Table | None) -> int:
    return table.size_bytes if table is not None else 0


def _rows_bytes(rows: Sequence[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) for name, value in rows)


_CONTENT_BYTES: Final[dict[type, Callable[[Any], int]]] = {
    m.Replicate: lambda message: _batches_bytes(message.batches),
    m.ReplicateStaged: lambda message: HEADER_SIZE_BYTES,
    m.CopyAnswer: lambda message: _batches_bytes(message.batches) + _table_bytes(message.table),
    m.FenceAnswer: lambda message: _batches_bytes(message.tail) + _table_bytes(message.table),
    m.PrepareRequest: lambda message: _tail_bytes(message.tail) + _table_bytes(message.table),
    m.StoreTail: lambda message: _tail_bytes(message.tail),
    m.TableAnswer: lambda message: _table_bytes(message.table),
    m.BlockAnswer: lambda message: sum(map(len, message.contents)),
    m.ReplicateLedger: lambda message: _rows_bytes(message.change.puts),
    m.HandOver: lambda message: _rows_bytes(message.handover.rows),
}
"""Bytes of the kinds of message with content, besides `_OVERHEAD_BYTES`. A table and no chain of conditions, because
each batch is looked up several times on its way."""


def write_control_frames(messages: Sequence[m.Message], part_size_bytes: int = PART_SIZE_BYTES) -> Iterator[bytes]:
    """Write the messages in order, into as few control frames as the limit allows."""
    encoded: list[bytes] = []
    size = 0
    for message in messages:
        pieces = codec.pieces_of(message, PIECE_SIZE_BYTES)
        if pieces:
            if encoded:
                yield peer_pb2.PeerFrame(messages=encoded).SerializeToString()
                encoded, size = [], 0
            for number, piece in enumerate(pieces):
                left = len(pieces) - 1 - number
                yield peer_pb2.PeerFrame(part=piece(), parts_left=left, is_piece=True).SerializeToString()
            continue
        data = codec.encode(message)
        if len(data) > part_size_bytes:
            if encoded:
                yield peer_pb2.PeerFrame(messages=encoded).SerializeToString()
                encoded, size = [], 0
            yield from _write_parts(data, part_size_bytes)
            continue
        if encoded and size + len(data) > CONTROL_FRAME_SIZE_BYTES:
            yield peer_pb2.PeerFrame(messages=encoded).SerializeToString()
            encoded, size = [], 0
        encoded.append(data)
        size += len(data)
    if encoded:
        yield peer_pb2.PeerFrame(messages=encoded).SerializeToString()


def _write_parts(data: bytes, part_size_bytes: int) -> Iterator[bytes]:
    """The frames of one large message."""
    view = memoryview(data)
    count = -(-len(data) // part_size_bytes)
    for number in range(count):
        part = bytes(view[number * part_size_bytes : (number + 1) * part_size_bytes])
        yield peer_pb2.PeerFrame(part=part, parts_left=count - 1 - number).SerializeToString()


class ControlReader:
    """Reads the control frames of one link in their order, and joins the parts of large messages."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._parts_left = 0
        self._parts_read = 0
        self._pieces: codec.Pieces | None = None  # of a message that comes so

    def read(self, data: bytes) -> list[m.Message]:
        """The messages that are complete with this frame.

        Raises:
            BadRequestError: It is no frame of known messages, or not the next part.
        """
        try:
            frame = peer_pb2.PeerFrame.FromString(data)
        except DecodeError as exc:
            raise BadRequestError("a peer's control frame cannot be read") from exc
        messages = [codec.decode(message) for message in frame.messages]
        if frame.part:
            messages += self._take_part(frame.part, frame.parts_left, is_piece=frame.is_piece)
        return messages

    def _take_part(self, part: bytes, parts_left: int, *, is_piece: bool) -> list[m.Message]:
        # Rule `parts-mixed` (I13): only parts of this link, and each the next one. Without it: 1. Two switchers send
        # large preparations to one member. 2. The member joins parts of both. 3. It reads no message, or a table that
        # no member ever had: the switch fails, or repeats are stored again (I9).
        if self._parts_read and (parts_left != self._parts_left - 1 or is_piece != (self._pieces is not None)):
            raise BadRequestError(f"{self._parts_left - 1} parts of a peer's message are to follow, not {parts_left}")
        if (self._parts_read + 1 + parts_left) * PART_SIZE_BYTES > PARTS_SIZE_BYTES_MAX or len(part) > PART_SIZE_BYTES:
            raise BadRequestError(f"a peer's message in parts has at most {PARTS_SIZE_BYTES_MAX} bytes")
        if is_piece:
            self._pieces = self._pieces or codec.Pieces()
            self._pieces.add(part)
        else:
            self._parts.append(part)
        self._parts_left = parts_left
        self._parts_read += 1
        # Rule `part-missing` (I13): the message is complete only with its last part. Without it: 1. All parts but one
        # have arrived. 2. They are decoded as the message. 3. That fails and breaks the link, and each retry breaks it
        # again: the switch never ends.
        if parts_left:
            return []
        whole, pieces = b"".join(self._parts), self._pieces
        self._parts, self._pieces, self._parts_read = [], None, 0
        return [codec.decode(whole) if pieces is None else pieces.message()]


def write_data_frames(messages: Sequence[m.Message]) -> Iterator[bytes]:
    """Write messages into data frames. Those about one partition keep their order."""
    return map(b"".join, data_frame_pieces(messages))


def data_frame_pieces(messages: Sequence[m.Message]) -> Iterator[list[bytes | memoryview]]:
    """The same frames, each in pieces."""
    encoded: list[bytes] = []
    runs: list[tuple[ReplicateRun, list[tuple[bytes, bytes | memoryview]]]] = []
    with_runs: set[PartitionId] = set()
    size = 0
    for message in messages:
        is_run = isinstance(message, m.Replicate)
        added = size_of(message)
        has_place = not is_run and not isinstance(message, m.LaneProbe)
        follows_run = has_place and message.partition in with_runs  # type: ignore[union-attr]
        if (encoded or runs) and (follows_run or size + added > FRAME_SIZE_BYTES):
            yield replicate_frame_pieces(encoded, runs)
            encoded, runs, with_runs, size = [], [], set(), 0
        if isinstance(message, m.Replicate):
            rows: list[tuple[bytes, bytes | memoryview]] = [(b.header.raw, b.body) for b in message.batches]
            run = ReplicateRun(
                message.partition, message.segment_no, message.commit, message.switch_attempt, len(rows),
                message.may_wait,
            )  # fmt: skip
            runs.append((run, rows))
            with_runs.add(message.partition)
        else:
            encoded.append(codec.encode(message))
        size += added
    if encoded or runs:
        yield replicate_frame_pieces(encoded, runs)


def read_data_frame(data: bytes | memoryview) -> list[m.Message]:
    """The messages of a data frame. The bodies of their batches are copied out of it, once.

    Raises:
        BadRequestError: It is no frame, or has a message of an unknown kind.
    """
    try:
        frame = read_replicate_frame(data)
    except FrameError as exc:
        raise BadRequestError(f"a peer's data frame cannot be read: {exc}") from exc
    messages = [codec.decode(message) for message in frame.messages]
    for run, rows in frame.runs:
        batches = tuple(Batch(header, bytes(body)) for header, body in rows)
        messages.append(
            m.Replicate(PartitionId(run.partition), run.segment, run.attempt, run.commit, batches, run.may_wait)
        )
    return messages
