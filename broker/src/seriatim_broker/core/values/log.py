"""What a member keeps on its disk, as plain values: batches, segments, preparations, cursors.

The storage adapter writes and recovers exactly these; the core decides what they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from seriatim_api.batch import BatchHeader
from seriatim_api.ids import MemberId, PartitionId

from .chain import AT_ZERO, Chain, Start
from .producers import Rows, Table, Window


class Batch(NamedTuple):
    """A batch with its place: the header says where it stands, the body is opaque."""

    header: BatchHeader
    body: bytes

    @property
    def size_bytes(self) -> int:
        """Bytes on the wire and on disk, without keys and framing."""
        return len(self.header.raw) + len(self.body)


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A member's durable knowledge of a segment it belongs to (or holds a copy of).

    `opened_run` is the run in which this member opened it as master, 0 if never. `fenced` forbids appends for ever.
    `sealed_len` is what the chain was seen to say. `quarantined`: the chain says something else than what is here, see
    `core.dispatch.quarantine`. What lies below `begin` was dropped by retention. `copied_from`: this copy began at that
    start, above 0, so its preparation has the producer table as of the end of the segment.
    """

    no: int
    attempt: bytes
    members: tuple[MemberId, ...]
    flush: bool
    incomplete_table: bool
    opened_run: int = 0
    fenced: bool = False
    sealed_len: int | None = None
    sealed_checksum: int | None = None
    lost: bool = False
    quarantined: bool = False
    begin: Start = AT_ZERO
    copied_from: int = 0


@dataclass(frozen=True, slots=True)
class TailCopy:
    """The uncertain tail of a segment, kept beside the log: batches in [from_index, length)."""

    segment_no: int
    from_index: int
    length: int
    batches: tuple[Batch, ...]


def merge_tails(one: TailCopy, other: TailCopy) -> TailCopy | None:
    """Both tails in one; None if they do not touch.

    They touch as a rule, because every member has flushed what lies below the index at which a tail begins. The disk of
    a member that lost what it had flushed, or an older copy of it, breaks that rule.
    """
    assert one.segment_no == other.segment_no
    first, second = sorted((one, other), key=lambda tail: tail.from_index)
    if second.from_index > first.length:
        return None
    more = tuple(batch for batch in second.batches if batch.header.base_index >= first.length)
    length = max(first.length, second.length)
    return TailCopy(first.segment_no, first.from_index, length, (*first.batches, *more))


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a member wrote for a segment that may be opened under `attempt`.

    `run` is the run of this member that prepared; `voided` forbids it to open as master under this attempt, and deletes
    nothing.
    """

    segment_no: int
    attempt: bytes
    members: tuple[MemberId, ...]
    flush: bool
    incomplete_table: bool
    table: Table
    tail: TailCopy | None
    run: int
    voided: bool = False


@dataclass(frozen=True, slots=True)
class CursorState:
    """A consumer group's place in a segment: all below `acked` is acknowledged, all below `reserved` may have been
    delivered."""

    segment_no: int
    group: str
    group_epoch: int
    acked: int
    reserved: int


# ---- writes, all of one step in one write batch, in this order ------------------------------------------


@dataclass(frozen=True, slots=True)
class PutBatch:
    """A batch, the producer's window after it, and the commit then known.

    `adopts`: the header of a staged batch that was read on this member and has the same body. The storage need not
    write the body again.
    """

    partition: PartitionId
    batch: Batch
    commit: int
    window: Window
    adopts: BatchHeader | None = None


@dataclass(frozen=True, slots=True)
class PutSegment:
    """A segment's durable knowledge, replacing what was there."""

    partition: PartitionId
    segment: LocalSegment


@dataclass(frozen=True, slots=True)
class PutPreparation:
    """A preparation, replacing the one under the same (segment, attempt)."""

    partition: PartitionId
    preparation: Preparation


@dataclass(frozen=True, slots=True)
class PutBlock:
    """An idle block of producers. Written before whatever names it."""

    partition: PartitionId
    block: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class DropBlock:
    """An idle block that nothing names any more."""

    partition: PartitionId
    block: bytes


@dataclass(frozen=True, slots=True)
class DropPreparation:
    """A preparation that the chain did not choose."""

    partition: PartitionId
    segment_no: int
    attempt: bytes


@dataclass(frozen=True, slots=True)
class PutTailCopy:
    """A tail copy that did not come with a preparation, in its place in the row of the segment's tail copies."""

    partition: PartitionId
    tail: TailCopy
    place: int = 0


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut a segment's log to `length`.

    `windows` are those of the producers that had batches above it, None for one whose window goes. None instead of all
    that: the windows of all producers go.
    """

    partition: PartitionId
    segment_no: int
    length: int
    windows: tuple[tuple[bytes, Window | None], ...] | None


@dataclass(frozen=True, slots=True)
class TrimLog:
    """What lies below `below` of a segment's log, the beginning of a batch or the end, may go from the disk.

    A log that ends below begins there, with `size_bytes` before it.
    """

    partition: PartitionId
    segment_no: int
    below: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Batches that are in the log already, contiguous, to be written again at another place of the disk."""

    partition: PartitionId
    segment_no: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class PutCursor:
    """A cursor of a consumer group."""

    partition: PartitionId
    cursor: CursorState


@dataclass(frozen=True, slots=True)
class DropCursor:
    """A cursor of a consumer group that says nothing any more; not an error if it is not there."""

    partition: PartitionId
    segment_no: int
    group: str


@dataclass(frozen=True, slots=True)
class PutChain:
    """The chain record as it was last learned: its head, and of its segments those that `changed` since the last such
    write. Kept so that a coordinator which lost decisions is noticed, and can be rebuilt. `gone`: numbers of segments
    that the record had then, and has no more."""

    partition: PartitionId
    chain: Chain
    changed: tuple[int, ...]
    gone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DropSegment:
    """Everything of a segment."""

    partition: PartitionId
    segment_no: int


@dataclass(frozen=True, slots=True)
class DropPartition:
    """Everything of a partition."""

    partition: PartitionId


Write = (
    PutBatch
    | PutSegment
    | PutPreparation
    | PutBlock
    | DropBlock
    | DropPreparation
    | PutTailCopy
    | Truncate
    | TrimLog
    | Rewrite
    | PutCursor
    | DropCursor
    | PutChain
    | DropSegment
    | DropPartition
)


# ---- what a start finds ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """A segment as found on disk.

    `windows` are the producer windows written with the segment's own batches (the table it was opened with is in its
    preparation). `uncommitted` are the batches in [commit, tail). `last_append_ms` is the last batch's append time.
    `size_bytes`: of all batches below `tail`, of those that were dropped too.
    """

    record: LocalSegment
    tail: int
    tail_checksum: int
    commit: int
    uncommitted: tuple[Batch, ...]
    windows: Rows
    last_append_ms: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """All that a disk holds of a partition."""

    partition: PartitionId
    segments: tuple[RecoveredSegment, ...] = ()
    preparations: tuple[Preparation, ...] = ()
    tail_copies: tuple[TailCopy, ...] = ()
    cursors: tuple[CursorState, ...] = field(default=())
    blocks: tuple[bytes, ...] = ()
    chain: Chain | None = None
