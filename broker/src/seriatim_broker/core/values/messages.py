"""What brokers say to each other, as plain values.

Every message names the partition and, where it matters, the segment and the attempt: nothing is inferred from the
connection it came on. `DATA` messages travel on the replication stream of a link, in order among themselves; all others
on its control stream, so that bulk never delays a heartbeat or a fence.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from seriatim_api.batch import BatchHeader
from seriatim_api.ids import MemberId, PartitionId
from seriatim_api.publications import StagedBatch

from .chain import Chain
from .kinds import PrepareRefusal, ReplicateRefusal
from .log import Batch, CursorState, TailCopy
from .producers import Table

FORM_PACKED_TABLES = 1
"""A peer that says so in its hello reads packed producer tables; another one would take them for empty tables."""

FORM_CHAIN_CHANGES = 2
"""A peer that says so in its hello reads `ChainChanges`; another one is sent whole records."""

FORM_IDLE_BLOCKS = 4
"""A peer that says so understands tables that name idle blocks, and the messages about them."""

FORM_PARTS = 8
"""It takes a message that is larger than a frame in parts."""

FORM_FOLDED = 16
"""A broker that says so understands chains from which empty segments were folded; another one would end on them."""

FORM_LANE_PROBES = 32
"""A peer that says so reads `LaneProbe`, and its heartbeat answers say how much arrived on the replication stream."""

FORM_EXPIRED = 64
"""A broker that says so knows that the cursors of deleted consumer groups and the tombstones of deleted partitions are
removed after a while, and reads what stays of them; another one would begin a group in an epoch that was used."""

FORM_FENCE_PROGRESS = 128
"""A peer that says so reads `FenceProgress`."""

FORM_TRIMMED = 256
"""A broker that says so reads a record in which segments begin at a start above 0, and knows that what lies below was
dropped. Another one would copy such a segment from index 0, and never get on."""

FORM_GROUP_OPERATIONS = 512
"""A broker that says so gives a paused consumer group nothing; another one would go on delivering."""

FORM_PUBLICATIONS = 1024
"""A broker that says so carries out publications, and refuses what only a master may append."""

FORM_ADOPTS = 2048
"""A peer that says so reads `ReplicateStaged`."""

FORMS = (
    FORM_PACKED_TABLES
    | FORM_CHAIN_CHANGES
    | FORM_IDLE_BLOCKS
    | FORM_PARTS
    | FORM_FOLDED
    | FORM_LANE_PROBES
    | FORM_EXPIRED
    | FORM_FENCE_PROGRESS
    | FORM_TRIMMED
    | FORM_GROUP_OPERATIONS
    | FORM_PUBLICATIONS
    | FORM_ADOPTS
)
"""What this version reads beyond 0.2.0."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """ "I am here", with the sender's own clock, which the answer repeats."""

    sent_us: int


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The answer to a heartbeat, and the segments for which the answerer no longer answers that server.

    `disk_stall_us`: for how long the answerer's disk has completed nothing although a write waits. A broker of an
    older version does not say it: 0. `disk_is_full`: the reserve of the answerer's disk is reached.
    `data_count`: how many `DATA` messages the answerer has received on this link. See `lanes`.
    """

    sent_us: int
    refused: tuple[tuple[PartitionId, int], ...]
    disk_stall_us: int = 0
    disk_is_full: bool = False
    data_count: int = 0


@dataclass(frozen=True, slots=True)
class LaneProbe:
    """DATA. Says nothing: that it arrives proves that the replication stream carries."""


@dataclass(frozen=True, slots=True)
class FenceRequest:
    """Refuse appends to the segment (opened under `attempt`) for ever, durably, and say what you have."""

    partition: PartitionId
    segment_no: int
    attempt: bytes
    switch: bytes


@dataclass(frozen=True, slots=True)
class FenceAnswer:
    """What a fenced member holds.

    `last_append_ms`: of the last batch below `length`, or of the last one that it has if it gives no length; no later
    message may have an earlier append time. `length` is its commit if it is the unbroken master, else its tail; None if
    it cannot give one (suspect, or the segment is not known to it). `commit` is the least index that it knows every
    member to have flushed; if the topic flushes before it commits, that is the commit. `table` is as of `length`;
    `tail` holds the batches in [commit, length). `from_disk`: a restart found the log, so it may be an older copy;
    older versions do not say it. `coordinator_behind`: the member knows that the coordinator has lost decisions, so it
    says nothing about the segment, and no other one may be opened behind it. `size_bytes`: of all batches below
    `length`, those that retention dropped too; older versions do not say it.
    """

    partition: PartitionId
    segment_no: int
    switch: bytes
    fenced: bool
    length: int | None
    checksum: int
    unbroken: bool
    commit: int
    last_append_ms: int
    table: Table
    incomplete_table: bool
    tail: tuple[Batch, ...]
    from_disk: bool = False
    coordinator_behind: bool = False
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FenceProgress:
    """The segment is fenced, and the answer has about so many bytes: it takes its time, and waits for its turn."""

    partition: PartitionId
    segment_no: int
    switch: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """Write, durably, what a segment opened under this attempt will start from.

    `replaces`: attempts of the same sender for that segment that can never be chosen; the receiver forgets them.
    """

    partition: PartitionId
    segment_no: int
    attempt: bytes
    members: tuple[MemberId, ...]
    flush: bool
    incomplete_table: bool
    table: Table
    tail: TailCopy | None
    replaces: tuple[bytes, ...] = ()
    source: MemberId | None = None


@dataclass(frozen=True, slots=True)
class PrepareAnswer:
    """Whether it is written, and the run of the member that wrote it."""

    partition: PartitionId
    segment_no: int
    attempt: bytes
    run: int
    refusal: PrepareRefusal
    missing_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BlockOffer:
    """The idle blocks that the master's table of the open segment names: get them before a switch needs them."""

    partition: PartitionId
    segment_no: int
    blocks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """DATA. The content of these idle blocks, please."""

    partition: PartitionId
    blocks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BlockAnswer:
    """DATA. The contents of the first of the blocks that were asked for and are here."""

    partition: PartitionId
    contents: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ChainUpdate:
    """A chain record as the coordinator holds (or held) it, with its mod revision (0: not known).

    Older than what the receiver knows: ignored.
    """

    chain: Chain
    revision: int


@dataclass(frozen=True, slots=True)
class ChainChanges:
    """What changed in a long chain record. Older than what the receiver knows: ignored.

    `chain` is the record with some of its segments only: all that are new or changed since the record of epoch `since`,
    and a few more. `gone` are the numbers of those that left it since. `digest` is that of all its segments.
    """

    chain: Chain
    revision: int
    since: int
    gone: tuple[int, ...]
    digest: int


@dataclass(frozen=True, slots=True)
class QuiesceRequest:
    """A planned switch asks the master to queue new batches until commit = tail."""

    partition: PartitionId
    segment_no: int
    switch: bytes


@dataclass(frozen=True, slots=True)
class QuiesceAnswer:
    """Whether commit = tail was reached in time; if not, the master accepts as before."""

    partition: PartitionId
    segment_no: int
    switch: bytes
    quiet: bool


@dataclass(frozen=True, slots=True)
class Replicate:
    """DATA. Batches of an open segment from its master, and how far every member had flushed then.

    Where the topic flushes before it commits, `commit` is the commit. Where it does not, it may be lower.
    """

    partition: PartitionId
    segment_no: int
    attempt: bytes
    commit: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class ReplicateStaged:
    """DATA. The next batch of an open segment, of a publication: its body is the one that is staged there, which the
    follower finds on its own disk."""

    partition: PartitionId
    segment_no: int
    attempt: bytes
    commit: int
    header: BatchHeader
    staged: StagedBatch


@dataclass(frozen=True, slots=True)
class ReplicateAck:
    """DATA. Up to where a member has the segment in memory and on disk."""

    partition: PartitionId
    segment_no: int
    attempt: bytes
    received: int
    durable: int


@dataclass(frozen=True, slots=True)
class ReplicateRefused:
    """DATA. The member takes nothing more for this segment and attempt: fenced, sealed, or not opened here."""

    partition: PartitionId
    segment_no: int
    attempt: bytes
    reason: ReplicateRefusal


@dataclass(frozen=True, slots=True)
class ResumeReplica:
    """DATA. First message of a master about a segment on a new connection: where are you?"""

    partition: PartitionId
    segment_no: int
    attempt: bytes


@dataclass(frozen=True, slots=True)
class ReplicaTail:
    """DATA. The answer to `ResumeReplica`."""

    partition: PartitionId
    segment_no: int
    attempt: bytes
    tail: int
    checksum: int
    durable: int


@dataclass(frozen=True, slots=True)
class KeepProducer:
    """A master to its followers: a writer has something decided, so it counts as a producer that sent at that time."""

    partition: PartitionId
    segment_no: int
    attempt: bytes
    producer: bytes
    append_time_ms: int


@dataclass(frozen=True, slots=True)
class PassRequest:
    """You serve this segment, in which there is no message any more, and the group stands there: move it on."""

    partition: PartitionId
    segment_no: int
    group: str


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """DATA. Batches of a sealed segment, please, from this index on; and the table it was opened with, if wanted.

    `want_end_table`: the table as of the end in its place. The copy begins behind what retention dropped, so it cannot
    make that table from the batches.
    """

    partition: PartitionId
    segment_no: int
    from_index: int
    max_bytes: int
    want_table: bool
    want_end_table: bool = False


@dataclass(frozen=True, slots=True)
class CopyAnswer:
    """DATA. The batches, contiguous from `from_index`; empty with `available` false if this member has them not."""

    partition: PartitionId
    segment_no: int
    from_index: int
    available: bool
    batches: tuple[Batch, ...]
    table: Table | None
    is_end_table: bool = False


@dataclass(frozen=True, slots=True)
class StoreTail:
    """Keep a copy of an uncertain tail: a settler wants it on a second disk."""

    partition: PartitionId
    settle: bytes
    tail: TailCopy


@dataclass(frozen=True, slots=True)
class TailStored:
    """The copy is durable."""

    partition: PartitionId
    segment_no: int
    settle: bytes


@dataclass(frozen=True, slots=True)
class SuspectTail:
    """From one member of an UNSETTLED segment to another: it is fenced, and its log ends here.

    `compares`: the topic flushes before it commits, and the member knew `commit` to be committed. Without it the member
    is a suspect, as always in older versions.
    """

    partition: PartitionId
    segment_no: int
    length: int
    compares: bool = False
    commit: int = 0


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The producer table as of the end of a settled segment, merged with all before it."""

    partition: PartitionId
    segment_no: int


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """The table, or None if this member cannot tell."""

    partition: PartitionId
    segment_no: int
    table: Table | None


@dataclass(frozen=True, slots=True)
class CursorSync:
    """Control records from the server of a segment to another eligible (or soon to be eligible) member."""

    partition: PartitionId
    segment_no: int
    server_epoch: int
    serial: int
    cursors: tuple[CursorState, ...]


@dataclass(frozen=True, slots=True)
class CursorSynced:
    """The control records up to `serial` are durable."""

    partition: PartitionId
    segment_no: int
    server_epoch: int
    serial: int


@dataclass(frozen=True, slots=True)
class EligibleRequest:
    """To the server: this member holds the whole sealed segment and wants to be listed."""

    partition: PartitionId
    segment_no: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """To an eligible member: the server is said to be silent; look, and take the right if so."""

    partition: PartitionId
    segment_no: int
    server_epoch: int


@dataclass(frozen=True, slots=True)
class HealRequest:
    """The controller asks a member to become a whole copy of a sealed segment, in place of a dead one."""

    partition: PartitionId
    segment_no: int
    replaces: MemberId | None


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """The controller asks the master of an open segment to move the head to another group."""

    partition: PartitionId
    segment_no: int


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """The controller asks the server of sealed segments to have members leave their records that are being drained."""

    partition: PartitionId
    segment_nos: tuple[int, ...]
    leaving: tuple[MemberId, ...]


@dataclass(frozen=True, slots=True)
class CopiesQuestion:
    """What do you hold of these segments, and what would become of the open ones if `without` were stopped?"""

    serial: int
    without: MemberId
    segments: tuple[tuple[PartitionId, int], ...]


class Standing(enum.IntEnum):
    """What a member says of its copy of a segment. Numbers as on the wire.

    IN_STEP and the two after it: the segment is open, this is its master in the run that opened it, and every other
    member has (not has) all up to the commit, and there is (is not) another group that the head could go to.
    """

    UNKNOWN = 0
    WHOLE = 1
    PARTIAL = 2
    IN_STEP = 3
    OUT_OF_STEP = 4
    NOWHERE_TO_GO = 5


@dataclass(frozen=True, slots=True)
class CopyReport:
    """A member's word on one segment: up to where it has it, and the epoch of the chain that it knows."""

    standing: Standing
    index: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CopiesAnswer:
    """One report for each segment of the question, in its order."""

    serial: int
    reports: tuple[CopyReport, ...]


Message = (
    Heartbeat
    | HeartbeatAnswer
    | LaneProbe
    | FenceRequest
    | FenceAnswer
    | FenceProgress
    | PrepareRequest
    | PrepareAnswer
    | BlockOffer
    | BlockRequest
    | BlockAnswer
    | ChainUpdate
    | ChainChanges
    | QuiesceRequest
    | QuiesceAnswer
    | Replicate
    | ReplicateStaged
    | ReplicateAck
    | ReplicateRefused
    | ResumeReplica
    | ReplicaTail
    | CopyRequest
    | CopyAnswer
    | StoreTail
    | TailStored
    | SuspectTail
    | TableRequest
    | TableAnswer
    | CursorSync
    | CursorSynced
    | EligibleRequest
    | TakeOver
    | HealRequest
    | MoveRequest
    | ReleaseRequest
    | CopiesQuestion
    | CopiesAnswer
    | PassRequest
    | KeepProducer
)

DATA = (
    Replicate,
    ReplicateStaged,
    ReplicateAck,
    ReplicateRefused,
    ResumeReplica,
    ReplicaTail,
    CopyRequest,
    CopyAnswer,
    BlockRequest,
    BlockAnswer,
    LaneProbe,
)
"""The kinds that travel on the replication stream."""
