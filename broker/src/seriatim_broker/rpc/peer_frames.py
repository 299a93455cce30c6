"""Frames of a link between two brokers: what was queued in one turn of the loop goes out together.

The control stream carries `PeerFrame`s; the replication stream `ReplicateFrame`s, in which the encoded messages come
before the runs of batches. Messages about one partition keep their order: where a message about a partition follows a
run of that partition, a new frame is begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError
from seriatim_api.errors import BadRequestError
from seriatim_api.frames import FrameError, ReplicateRun, read_replicate_frame, write_replicate_frame
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import peer_pb2

from ..core import messages as m
from ..core.log import Batch
from . import codec

FRAME_SIZE_BYTES = 1 << 20
"""A frame is closed when it holds this much; one larger message still travels alone."""

CONTROL_FRAME_SIZE_BYTES = 64 << 10
"""The same for control frames: a heartbeat waits for the one before it to be read, about 10 ms for so much."""

_OVERHEAD_BYTES = 64
"""Counted for a message or a run beside its batches, so that a frame of many small ones is bounded as well."""


def size_of(message: m.Message) -> int:
    """About how many bytes a message takes in a queue and on the wire."""
    size = _OVERHEAD_BYTES
    if isinstance(message, m.Replicate | m.CopyAnswer):
        size += sum(batch.size_bytes for batch in message.batches)
    if isinstance(message, m.FenceAnswer):
        size += sum(batch.size_bytes for batch in message.tail)
    if isinstance(message, m.PrepareRequest | m.StoreTail) and message.tail is not None:
        size += sum(batch.size_bytes for batch in message.tail.batches)
    if isinstance(message, m.FenceAnswer | m.PrepareRequest | m.CopyAnswer | m.TableAnswer) and message.table:
        size += message.table.size_bytes
    if isinstance(message, m.BlockAnswer):
        size += sum(map(len, message.contents))
    return size


def write_control_frames(messages: Sequence[m.Message], forms: int = m.FORMS) -> Iterator[bytes]:
    """The messages, in order, as as few control frames as the limit allows, in the forms that the peer reads."""
    encoded: list[bytes] = []
    size = 0
    for message in messages:
        data = codec.encode(message, forms)
        if encoded and size + len(data) > CONTROL_FRAME_SIZE_BYTES:
            yield peer_pb2.PeerFrame(messages=encoded).SerializeToString()
            encoded, size = [], 0
        encoded.append(data)
        size += len(data)
    if encoded:
        yield peer_pb2.PeerFrame(messages=encoded).SerializeToString()


def read_control_frame(data: bytes) -> list[m.Message]:
    """The messages of a control frame.

    Raises:
        BadRequestError: Not a frame of known messages.
    """
    try:
        frame = peer_pb2.PeerFrame.FromString(data)
    except DecodeError as exc:
        raise BadRequestError("a peer's control frame cannot be read") from exc
    return [codec.decode(message) for message in frame.messages]


def write_data_frames(messages: Sequence[m.Message], forms: int = m.FORMS) -> Iterator[bytes]:
    """The messages as data frames, in the forms that the peer reads; those about one partition keep their order."""
    encoded: list[bytes] = []
    runs: list[tuple[ReplicateRun, list[tuple[bytes, bytes | memoryview]]]] = []
    with_runs: set[PartitionId] = set()
    size = 0
    for message in messages:
        is_run = isinstance(message, m.Replicate)
        added = size_of(message)
        follows_run = not is_run and message.partition in with_runs  # type: ignore[union-attr]
        if (encoded or runs) and (follows_run or size + added > FRAME_SIZE_BYTES):
            yield write_replicate_frame(encoded, runs)
            encoded, runs, with_runs, size = [], [], set(), 0
        if isinstance(message, m.Replicate):
            rows: list[tuple[bytes, bytes | memoryview]] = [(b.header.raw, b.body) for b in message.batches]
            run = ReplicateRun(message.partition, message.segment_no, message.commit, message.attempt, len(rows))
            runs.append((run, rows))
            with_runs.add(message.partition)
        else:
            encoded.append(codec.encode(message, forms))
        size += added
    if encoded or runs:
        yield write_replicate_frame(encoded, runs)


def read_data_frame(data: bytes) -> list[m.Message]:
    """The messages of a data frame, their batches' bodies copied out of it once.

    Raises:
        BadRequestError: Not a frame, or a message of an unknown kind.
    """
    try:
        frame = read_replicate_frame(data)
    except FrameError as exc:
        raise BadRequestError(f"a peer's data frame cannot be read: {exc}") from exc
    messages = [codec.decode(message) for message in frame.messages]
    for run, rows in frame.runs:
        batches = tuple(Batch(header, bytes(body)) for header, body in rows)
        messages.append(m.Replicate(PartitionId(run.partition), run.segment, run.attempt, run.commit, batches))
    return messages
