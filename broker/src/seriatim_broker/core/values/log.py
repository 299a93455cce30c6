"""The values that a member keeps on its disk: batches, segments, preparations, cursors.

The storage adapter writes and recovers exactly these values, and the core decides what they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from seriatim_api.batch import FLAG_CONTROL, FLAG_DELAYED, FLAG_FIRED, HEADER_SIZE_BYTES, BatchHeader
from seriatim_api.delayed import FIRE_MARK
from seriatim_api.ids import INDEX_MAX, MemberId, PartitionId, make_offset

from .chain import Chain
from .delayed import Fired, Span, read_origins
from .keyed import ConsumerGroupSettings
from .producers import Changes, Rows, Table
from .segment import AT_ZERO, PRODUCERS_DEFAULT, Start


class Batch(NamedTuple):
    """A stored batch: the header has its place, the body is opaque."""

    header: BatchHeader
    body: bytes

    @property
    def size_bytes(self) -> int:
        """Bytes on the wire and on disk, without keys and framing."""
        return len(self.header.raw) + len(self.body)

    def __str__(self) -> str:
        header = self.header
        count = f"{header.message_count} message{'s' * (header.message_count != 1)}"
        return f"{count} of producer {header.producer.hex()[:8]} from sequence {header.base_sequence} on"


class DueRow(NamedTuple):
    """A stored batch that is not due yet, or was not when it was stored: its due time and first index, its messages,
    its bytes with the header, and the offset where its first message was stored first, if it was moved.
    """

    due_ms: int
    index: int  # type: ignore[assignment]  # it hides `tuple.index`, which no code calls on a row
    message_count: int
    size_bytes: int
    origin: int = 0

    @classmethod
    def of(cls, header: BatchHeader) -> DueRow | None:
        """The row of a batch; None if it is not delayed."""
        if header.flags & (FLAG_DELAYED | FLAG_FIRED) != FLAG_DELAYED:
            return None
        size_bytes = HEADER_SIZE_BYTES + header.body_length
        return cls(header.due_time_ms, header.base_index, header.message_count, size_bytes, header.origin[1])


class StoredVolley(NamedTuple):
    """A stored batch that a broker made of delayed messages, fired or moved, or a fence before such batches.

    Attributes:
        index: Its first index.
        producer: Its producer (`seriatim_api.delayed`).
        epoch: Its producer epoch.
        origins: The offsets where its messages were stored first. Empty: it is a fence.
        is_list: It has no messages. The origins are those of the next volley of the producer, in place of its own.
        is_moved: Its messages are still delayed.
    """

    index: int  # type: ignore[assignment]  # as of `DueRow`
    producer: bytes
    epoch: int
    origins: tuple[Span, ...]
    is_list: bool = False
    is_moved: bool = False

    @classmethod
    def of(cls, batch: Batch) -> StoredVolley | None:
        """The volley that this batch is; None if it is another batch."""
        header = batch.header
        if header.flags & FLAG_CONTROL and header.producer.endswith(FIRE_MARK):
            origins = read_origins(batch.body)
            return cls(header.base_index, header.producer, header.producer_epoch, origins, bool(header.base_sequence))
        is_moved = DueRow.of(header) is not None and any(header.origin)
        if not header.flags & FLAG_FIRED and not is_moved:
            return None
        origins = (Span(header.origin[1], header.message_count),)
        return cls(header.base_index, header.producer, header.producer_epoch, origins, is_moved=is_moved)


class FiredIn(NamedTuple):
    """What volleys of one producer say.

    Attributes:
        fired: The messages that are in them.
        last_epoch: The highest producer epoch of another server; 0: there is none.
        is_fenced: The fence of the server that reads is in the log, so nothing more comes below it.
    """

    fired: tuple[Fired, ...]
    last_epoch: int
    is_fenced: bool


def fired_in(segments: Iterable[tuple[int, Iterable[StoredVolley]]], segment_no: int, epoch: int) -> FiredIn:
    """What was fired or moved of a segment, as readers have it.

    Args:
        segments: Segments with the volleys of its producer, in the order of the log.
        segment_no: The segment.
        epoch: The producer epoch of the server that reads. It has stored a fence, and no volley.

    Rule `skipped-is-not-fired` (D1): what readers skip does not count. Without it:
      1. B has stored its fence in segment 2, which is opened over. A's volley with d comes late, and the master of
         segment 3 takes it, because it does not know of the fence.
      2. Segment 2 is settled. Readers skip the volley, because its producer epoch is over.
      3. B finds d in segment 3, and passes it. No reader ever has it.
    """
    found: list[Fired] = []
    fenced_below = last_epoch = 0
    is_fenced = False
    listed: StoredVolley | None = None
    for no, volleys in segments:
        highest = fenced_below
        for volley in volleys:
            if volley.epoch < fenced_below:
                continue
            highest = max(highest, volley.epoch)
            if volley.origins or volley.epoch != epoch:
                last_epoch = max(last_epoch, volley.epoch)
            else:
                is_fenced = True
            if volley.is_list:
                listed = volley
                continue
            is_listed = listed is not None and listed.epoch == volley.epoch
            below = volley.index if no == segment_no else INDEX_MAX
            origins = listed.origins if listed is not None and is_listed else volley.origins
            found += (Fired(span, below, volley.is_moved) for span in origins)
            listed = None
        fenced_below = highest
    return FiredIn(tuple(found), last_epoch, is_fenced)


def moved_to(segments: Iterable[tuple[int, Iterable[StoredVolley]]], origin: int) -> int:
    """The offset where a delayed message was moved to last; 0: it was not moved, or its place is gone.

    Args:
        segments: Segments with the volleys of all producers, in the order of the log.
        origin: The offset where it was stored first.

    Rule `last-place-answers` (D3): the last place counts, whichever segment moved the message there. Without it:
      1. d was moved from segment 1 to segment 2, and from there to segment 3. Retention has dropped segment 1.
      2. A cancellation names its origin, and is sent to the place in segment 2. Its server answers: too late.
      3. d is due in a month.
    """
    place = 0
    for no, volleys in segments:
        for volley in volleys:
            for span in volley.origins if volley.is_moved else ():
                if origin in span.indexes:
                    place = make_offset(no, volley.index + origin - span.first)
    return place


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """What a member durably knows of a segment of which it is a member or has a copy.

    Attributes:
        no: The segment's number.
        switch_attempt: The switch attempt that opened it.
        members: Its members.
        flush: Whether the topic flushes before it commits.
        incomplete_table: Whether it was opened with an incomplete table.
        opened_member_run: The member run in which this member opened it as master; 0 if it never did.
        fenced: It takes no batch any more, for ever.
        sealed_len: Its length, if this member has read it in a chain record.
        sealed_checksum: The value of the checksum chain at that length.
        lost: It was declared lost.
        quarantined: The chain record contradicts this log; see `core.dispatch.quarantine`.
        begin: Retention dropped all messages below.
        copied_from: If not 0: this copy began at that start, so its preparation has the producer table as of the end of
            the segment.
        producers_max: As in the chain record.
    """

    no: int
    switch_attempt: bytes
    members: tuple[MemberId, ...]
    flush: bool
    incomplete_table: bool
    opened_member_run: int = 0
    fenced: bool = False
    sealed_len: int | None = None
    sealed_checksum: int | None = None
    lost: bool = False
    quarantined: bool = False
    begin: Start = AT_ZERO
    copied_from: int = 0
    producers_max: int = PRODUCERS_DEFAULT


@dataclass(frozen=True, slots=True)
class TailCopy:
    """The uncertain tail of a segment, kept beside the log: batches in [from_index, length)."""

    segment_no: int
    from_index: int
    length: int
    batches: tuple[Batch, ...]


def merge_tails(one: TailCopy, other: TailCopy) -> TailCopy | None:
    """Both tails joined; None if they do not touch.

    As a rule they touch, because every member has flushed all below the index at which a tail begins. A disk that lost
    flushed messages, or an older copy of a disk, is the exception.
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
    """What a member wrote for a segment that may be opened under `switch_attempt`.

    `member_run` is the one that prepared it. `voided` forbids that the member opens the segment as master under this
    switch attempt; nothing is deleted by it.
    """

    segment_no: int
    switch_attempt: bytes
    members: tuple[MemberId, ...]
    flush: bool
    incomplete_table: bool
    table: Table
    tail: TailCopy | None
    member_run: int
    voided: bool = False
    producers_max: int = PRODUCERS_DEFAULT


@dataclass(frozen=True, slots=True)
class CursorState:
    """A consumer group's control record in a segment.

    All below `acked` is acknowledged. All below `reserved` may have been delivered; nothing above it was. It is the
    head of the consumer group's ledger. Modes other than exclusive have rows beside it (`ledger_rows`).

    Attributes:
        segment_no: The segment.
        consumer_group: The name of the consumer group.
        group_epoch: The group epoch.
        acked: An index.
        reserved: An index.
        server_epoch: The server epoch of the server that wrote it.
        oldest: The oldest offset that the consumer group set aside, of this segment or an earlier one; 0: none.
        untold: Messages from this offset on were dropped by retention, or declared lost, and perhaps no consumer that
            runs was notified; 0: none.
        settings: How the consumer group was served. A server reads them in the coordinator's record. Here they are for
            a coordinator that lost that record (`control.rebuild`).
        term_base: As in the coordinator's record.
        serial: Which record of that server it is; a later one has a higher number.
    """

    segment_no: int
    consumer_group: str
    group_epoch: int
    acked: int
    reserved: int
    server_epoch: int = 0
    oldest: int = 0
    untold: int = 0
    settings: ConsumerGroupSettings = field(kw_only=True)
    term_base: int = 0
    serial: int = 0


@dataclass(frozen=True, slots=True)
class LedgerChange:
    """What changes in the rows of a ledger: rows to write, by name, and names of rows to delete.

    `is_full`: `puts` are all rows, and replace what was there.
    """

    puts: tuple[tuple[bytes, bytes], ...] = ()
    deletes: tuple[bytes, ...] = ()
    is_full: bool = False


class HandOverId(NamedTuple):
    """The name of a handoff: the server epoch of the server that made it, and a number of that server.

    A later one is higher. (0, 0) is none, and (0, 1) one that no disk has.
    """

    server_epoch: int
    no: int


NO_HAND_OVER: Final = HandOverId(0, 0)

UNKNOWN_HAND_OVER: Final = HandOverId(0, 1)
"""A rebuilt cursor names it: it is not known which handoff the lost one named. Server epochs begin at 1."""


class SafeCursor(NamedTuple):
    """What of a consumer group is durable on every eligible member, as its server knows.

    Attributes:
        group_epoch: The group epoch,
        segment_no: and the segment in which it counts.
        acked: All below this index is acknowledged,
        oldest: or set aside in a list. This is the oldest offset in lists; 0: there is none.
    """

    group_epoch: int
    segment_no: int
    acked: int
    oldest: int


@dataclass(frozen=True, slots=True)
class HandOverState:
    """The state of a consumer group's keys, as the server of the segment before handed it over.

    Attributes:
        segment_no: The segment in which the consumer group continues.
        consumer_group: The name of the consumer group.
        group_epoch: The group epoch.
        id: Which handoff it is.
        rows: Rows of the ledger and of grants; `ledger_rows` has their form.
    """

    segment_no: int
    consumer_group: str
    group_epoch: int
    id: HandOverId
    rows: tuple[tuple[bytes, bytes], ...]


# ---- writes, all of one step in one write batch, in this order ------------------------------------------


@dataclass(frozen=True, slots=True)
class PutBatch:
    """A batch, and the index below which every member was known to have flushed.

    `windows`: what changed in the producer table since the write before, because batches were committed. So with each
    batch, the windows on the disk are those of all batches below `commit`, at least.

    `adopts`: the header of a staged batch on this disk that has the same body, so the storage need not write the body
    again.

    `may_wait`: the storage may flush it some milliseconds later, because no producer waits for a disk: the topic does
    not flush, and the ack level asks for memory only.
    """

    partition: PartitionId
    batch: Batch
    commit: int
    windows: Changes
    adopts: BatchHeader | None = None
    may_wait: bool = False


@dataclass(frozen=True, slots=True)
class PutSegment:
    """The durable record of a segment, in place of the one before."""

    partition: PartitionId
    segment: LocalSegment


@dataclass(frozen=True, slots=True)
class PutPreparation:
    """A preparation, in place of the one under the same (segment, switch attempt)."""

    partition: PartitionId
    preparation: Preparation


@dataclass(frozen=True, slots=True)
class PutBlock:
    """An idle block of producers. It is written before any table that names it."""

    partition: PartitionId
    block: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class DropBlock:
    """Delete an idle block that nothing names any more."""

    partition: PartitionId
    block: bytes


@dataclass(frozen=True, slots=True)
class DropPreparation:
    """Delete a preparation that the chain record did not choose."""

    partition: PartitionId
    segment_no: int
    switch_attempt: bytes


@dataclass(frozen=True, slots=True)
class PutTailCopy:
    """A tail copy that did not come with a preparation; `place` numbers the tail copies of a segment."""

    partition: PartitionId
    tail: TailCopy
    place: int = 0


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate a segment's log to `length`.

    `windows` are new windows of producers; None for a producer that was forgotten. If `windows` itself is None, the
    windows of all producers are deleted.
    """

    partition: PartitionId
    segment_no: int
    length: int
    windows: Changes | None


@dataclass(frozen=True, slots=True)
class TrimLog:
    """Retention: delete all messages below the index `below`, which is the first one of a batch, or the log's end.

    A log that ends below that index begins there from now on, with `size_bytes` before it.
    """

    partition: PartitionId
    segment_no: int
    below: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Contiguous batches of the log, to be written again at another place of the disk."""

    partition: PartitionId
    segment_no: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class PutCursor:
    """A control record of a consumer group, in place of the one before in the same segment."""

    partition: PartitionId
    cursor: CursorState


@dataclass(frozen=True, slots=True)
class PutLedger:
    """A control record with a change of its rows, in place of the record before in the same segment."""

    partition: PartitionId
    cursor: CursorState
    change: LedgerChange


@dataclass(frozen=True, slots=True)
class PutHandOver:
    """What the server of the segment before handed over of a consumer group, in place of an earlier handoff.

    The next `PutLedger` with a full change, or `DropCursor`, of the same segment and consumer group deletes it.
    """

    partition: PartitionId
    handoff: HandOverState


@dataclass(frozen=True, slots=True)
class DropCursor:
    """Delete a control record that is not needed any more, with its rows; not an error if there is none."""

    partition: PartitionId
    segment_no: int
    consumer_group: str


@dataclass(frozen=True, slots=True)
class PutChain:
    """The newest chain record that this member knows, with the segments that `changed` since the last such write.

    It is kept so that brokers notice a coordinator that lost decisions, and can rebuild it. `gone`: numbers of segments
    that left the record since that write.
    """

    partition: PartitionId
    chain: Chain
    changed: tuple[int, ...]
    gone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DropSegment:
    """Delete everything of a segment."""

    partition: PartitionId
    segment_no: int


@dataclass(frozen=True, slots=True)
class DropPartition:
    """Delete everything of a partition."""

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
    | PutLedger
    | PutHandOver
    | DropCursor
    | PutChain
    | DropSegment
    | DropPartition
)


def all_may_wait(writes: Iterable[Write]) -> bool:
    """Whether the storage may flush all of these later: see `PutBatch`."""
    return all(isinstance(write, PutBatch) and write.may_wait for write in writes)


# ---- what a start finds ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """A segment as a start finds it on the disk.

    Attributes:
        record: Its durable record.
        tail: Its tail.
        tail_checksum: The value of the checksum chain there.
        commit: The index below which every member was known to have flushed, as the last batch says.
        uncommitted: The batches in [commit, tail).
        windows: The producer windows that were written with the segment's own batches, and how far each room has
            forgotten. The table with which it was opened is in its preparation.
        last_append_ms: The append time of the last batch.
        size_bytes: Bytes of all batches below `tail`, including dropped ones.
        delayed_until_ms: No delayed batch of it is due later; 0: it has none.
    """

    record: LocalSegment
    tail: int
    tail_checksum: int
    commit: int
    uncommitted: tuple[Batch, ...]
    windows: Rows
    last_append_ms: int = 0
    size_bytes: int = 0
    delayed_until_ms: int = 0


class LedgerVersion(NamedTuple):
    """Which rows of a consumer group this member has, as their server counts its changes.

    Attributes:
        server_epoch: Of the server that sent them.
        version: The number of its newest change that is here.
        wanted_in: The session of the link in which this member asked for all rows, because some are missing; 0: it did
            not.
    """

    server_epoch: int
    version: int
    wanted_in: int = 0


class LedgerRow(NamedTuple):
    """A row of a consumer group's ledger."""

    segment_no: int
    consumer_group: str
    name: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """Everything that a disk has of a partition."""

    partition: PartitionId
    segments: tuple[RecoveredSegment, ...] = ()
    preparations: tuple[Preparation, ...] = ()
    tail_copies: tuple[TailCopy, ...] = ()
    cursors: tuple[CursorState, ...] = field(default=())
    blocks: tuple[bytes, ...] = ()
    chain: Chain | None = None
    ledger_rows: tuple[LedgerRow, ...] = ()
    handoffs: tuple[HandOverState, ...] = ()
