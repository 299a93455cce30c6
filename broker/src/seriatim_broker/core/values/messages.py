"""The messages between brokers, as plain values.

Every message about a partition names the partition and, if it matters, the segment and the switch attempt. The
connection on which a message came says nothing about them. `DATA` messages travel on the replication stream of a link,
in order among themselves. All others travel on its control stream. So a heartbeat or a fence does not wait behind
replicated batches.

A broker says in its hello which *forms* of messages, records and behaviour it reads: `FORMS`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from seriatim_api.batch import BatchHeader
from seriatim_api.ids import MemberId, PartitionId
from seriatim_api.publications import StagedBatch

from .chain import Chain
from .kinds import PrepareRefusal, ReplicateRefusal
from .log import Batch, CursorState, HandOverId, HandOverState, LedgerChange, TailCopy
from .producers import Table
from .segment import PRODUCERS_DEFAULT

FORMS = 1
"""All forms that this version reads, as a sum of powers of two: a constant `FORM_…` for each.

A form is what brokers of the version before do not read. A broker sends or writes it only to those that say that they
read it (`peers.versions`, `runtime.coordinator.forms`). `docs/contributing/formats.md` says how a form is added and
dropped.
"""

FORM_DELAYED = 1
"""The broker knows delayed messages. Code without it refuses fired ones, and gives delayed ones to readers at once."""

FORM_EXCLUSIVE = 2
"""The broker knows exclusive producers. Code without it takes batches of any program under the id of such a producer.
It is not in `FORMS` before this version does all of it.
"""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The sender runs. `sent_us` is the time of its own monotonic clock; the answer repeats it."""

    sent_us: int


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The answer to a heartbeat.

    Attributes:
        sent_us: As in the heartbeat.
        refused: The segments for which this answer does not prolong the serving right, because its sender refuses the
            receiver as their server.
        disk_stall_us: For how long the disk of the answer's sender has completed no write although one waits. See
            `peers.disks`.
        disk_is_full: That disk has reached its reserve.
        data_count: How many `DATA` messages the answer's sender has received on this link. See `peers.lanes`.
    """

    sent_us: int
    refused: tuple[tuple[PartitionId, int], ...]
    disk_stall_us: int = 0
    disk_is_full: bool = False
    data_count: int = 0


@dataclass(frozen=True, slots=True)
class LaneProbe:
    """DATA. It has no content: its arrival proves that the replication stream delivers."""


@dataclass(frozen=True, slots=True)
class FenceRequest:
    """A switcher asks a member to fence a segment that was opened under `switch_attempt`, and to answer what it has."""

    partition: PartitionId
    segment_no: int
    switch_attempt: bytes
    switch: bytes


@dataclass(frozen=True, slots=True)
class FenceAnswer:
    """What a member has of the segment.

    Attributes:
        partition: The partition.
        segment_no: The segment.
        switch: As in the request.
        fenced: The member is fenced; False if it does not know the segment.
        length: Its commit if it is the unbroken master, else its tail; None if it cannot give one, because it is a
            suspect, does not know the segment, or has a table that is too large.
        checksum: The value of the checksum chain at `length`.
        unbroken: The member is the master, in the same member run since it opened the segment.
        commit: The index below which it knows every member to have flushed. If the topic flushes before it commits,
            this is the commit.
        last_append_ms: The append time of the last batch below `length`, or of its last batch if it gives no length.
        table: The producer table as of `length`.
        incomplete_table: The segment was opened with an incomplete table.
        tail: The batches in [commit, length).
        from_disk: The member found the log, or its preparation, on its disk at its start. So the disk may be an older
            copy.
        coordinator_behind: The member knows that the coordinator has lost decisions. So it says nothing about the
            segment, and the switcher may open no segment after it.
        size_bytes: Bytes of all batches below `length`, including dropped ones; None if it gives no length.
        delayed_until_ms: No delayed message below `length` is due later; 0: there is none.
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
    delayed_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class FenceProgress:
    """A member tells a switcher that its answer to the fence has about `size_bytes`, so the answer takes longer.

    The member gives a large answer to one switcher at a time. So the answer may also have to wait for its turn.
    """

    partition: PartitionId
    segment_no: int
    switch: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """A switcher asks a member to write durably everything that it needs to open a segment under this switch attempt.

    `replaces`: switch attempts of the same sender for that segment that can never be chosen; the receiver forgets them.
    `source`: the member from which the receiver can get the idle blocks that the table names.
    `producers_max`: how many producers the table of the segment remembers.
    """

    partition: PartitionId
    segment_no: int
    switch_attempt: bytes
    members: tuple[MemberId, ...]
    flush: bool
    incomplete_table: bool
    table: Table
    tail: TailCopy | None
    replaces: tuple[bytes, ...] = ()
    source: MemberId | None = None
    producers_max: int = PRODUCERS_DEFAULT


@dataclass(frozen=True, slots=True)
class PrepareAnswer:
    """Whether the preparation is on the disk, and the member run that wrote it.

    If `missing_bytes` is not 0, the preparation is neither written nor refused yet: the member first gets idle blocks
    of this many bytes.
    """

    partition: PartitionId
    segment_no: int
    switch_attempt: bytes
    member_run: int
    refusal: PrepareRefusal
    missing_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BlockOffer:
    """The master of the open segment names the idle blocks of its table, so that the next members get them early."""

    partition: PartitionId
    segment_no: int
    blocks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """DATA. A request for the content of these idle blocks."""

    partition: PartitionId
    blocks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BlockAnswer:
    """DATA. The contents of those requested blocks that the sender has; empty if it has none of them."""

    partition: PartitionId
    contents: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ChainUpdate:
    """A chain record of the coordinator, perhaps an old one, with its mod revision (0: not known).

    The receiver ignores a record that is older than the one that it knows.
    """

    chain: Chain
    revision: int


@dataclass(frozen=True, slots=True)
class ChainChanges:
    """The newest changes of a long chain record. The receiver ignores them if it knows a newer record.

    Attributes:
        chain: The record with only some of its segments: all that are new or changed since chain epoch `since`, and a
            few more.
        revision: The mod revision of the record; 0: not known.
        since: The chain epoch from which on the changes are complete.
        gone: Numbers of the segments that left the record since then.
        digest: The digest of all segments of the record.
    """

    chain: Chain
    revision: int
    since: int
    gone: tuple[int, ...]
    digest: int


@dataclass(frozen=True, slots=True)
class QuiesceRequest:
    """A planned switch asks the master to hold back new batches until commit = tail."""

    partition: PartitionId
    segment_no: int
    switch: bytes


@dataclass(frozen=True, slots=True)
class QuiesceAnswer:
    """Whether the master reached commit = tail in time. If not, it accepts batches as before."""

    partition: PartitionId
    segment_no: int
    switch: bytes
    quiet: bool


@dataclass(frozen=True, slots=True)
class Replicate:
    """DATA. Batches of an open segment from its master.

    `commit` is the index below which the master knows every member to have flushed. If the topic flushes before it
    commits, that is the commit; otherwise it may be lower. `may_wait`: see `PutBatch`.
    """

    partition: PartitionId
    segment_no: int
    switch_attempt: bytes
    commit: int
    batches: tuple[Batch, ...]
    may_wait: bool = False


@dataclass(frozen=True, slots=True)
class ReplicateStaged:
    """DATA. The next batch of an open segment, from a publication. The follower finds the body on its own disk: it is
    that of the batch at `staged`."""

    partition: PartitionId
    segment_no: int
    switch_attempt: bytes
    commit: int
    header: BatchHeader
    staged: StagedBatch


@dataclass(frozen=True, slots=True)
class ReplicateAck:
    """DATA. A member has the segment below `received` in memory, and below `durable` on its disk."""

    partition: PartitionId
    segment_no: int
    switch_attempt: bytes
    received: int
    durable: int


@dataclass(frozen=True, slots=True)
class ReplicateRefused:
    """DATA. The member takes no batch of this segment and switch attempt, for the named reason."""

    partition: PartitionId
    segment_no: int
    switch_attempt: bytes
    reason: ReplicateRefusal


@dataclass(frozen=True, slots=True)
class TailRequest:
    """DATA. The first message of a master about a segment on a new connection: it asks for the follower's tail."""

    partition: PartitionId
    segment_no: int
    switch_attempt: bytes


@dataclass(frozen=True, slots=True)
class TailAnswer:
    """DATA. The answer to `TailRequest`."""

    partition: PartitionId
    segment_no: int
    switch_attempt: bytes
    tail: int
    checksum: int
    durable: int


@dataclass(frozen=True, slots=True)
class PassRequest:
    """A request to the server of a stub: move the consumer group, whose cursor is in the stub, to a later segment."""

    partition: PartitionId
    segment_no: int
    consumer_group: str


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """DATA. A request for batches of a sealed segment from this index on, and for the table with which it was opened.

    `want_end_table`: the table as of the end of the segment instead. A copy that begins after dropped messages cannot
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
    """DATA. The batches, without a hole from `from_index` on. If the sender lacks them: none, `available` is False.

    An answer with a large producer table travels on the control stream instead (`rpc.links.peer_frames.is_data`).
    """

    partition: PartitionId
    segment_no: int
    from_index: int
    available: bool
    batches: tuple[Batch, ...]
    table: Table | None
    is_end_table: bool = False


@dataclass(frozen=True, slots=True)
class StoreTail:
    """The member that settles a segment asks another member to keep a copy of the uncertain tail, on a second disk."""

    partition: PartitionId
    settle: bytes
    tail: TailCopy


@dataclass(frozen=True, slots=True)
class TailStored:
    """The copy of the uncertain tail is durable."""

    partition: PartitionId
    segment_no: int
    settle: bytes


@dataclass(frozen=True, slots=True)
class SuspectTail:
    """A member of an UNSETTLED segment reports to another one that it is fenced, and where its log ends.

    `compares`: the topic flushes before it commits, and the member knew that all below `commit` was committed. If it is
    False, the member is a suspect.
    """

    partition: PartitionId
    segment_no: int
    length: int
    compares: bool = False
    commit: int = 0


@dataclass(frozen=True, slots=True)
class TableRequest:
    """A request for the producer table as of the end of a settled segment, merged with the tables before it."""

    partition: PartitionId
    segment_no: int


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """The table; None if the sender does not have it."""

    partition: PartitionId
    segment_no: int
    table: Table | None


@dataclass(frozen=True, slots=True)
class ReplicateCursors:
    """Control records, from the server of a segment to a member that is eligible or is about to become so."""

    partition: PartitionId
    segment_no: int
    server_epoch: int
    serial: int
    cursors: tuple[CursorState, ...]


@dataclass(frozen=True, slots=True)
class CursorsReplicated:
    """The control records up to `serial` are durable."""

    partition: PartitionId
    segment_no: int
    server_epoch: int
    serial: int


@dataclass(frozen=True, slots=True)
class ReplicateLedger:
    """A control record and a change of its rows, from the server to a member that is eligible or is about to become so.

    The change follows the one with the serial `previous`, if it is not full. `CursorsReplicated` answers, or
    `LedgerWanted` if the receiver lacks the one before.
    """

    partition: PartitionId
    segment_no: int
    server_epoch: int
    serial: int
    previous: int
    cursor: CursorState
    change: LedgerChange


@dataclass(frozen=True, slots=True)
class LedgerWanted:
    """A member lacks changes of a consumer group's ledger, and asks the server for all of it."""

    partition: PartitionId
    segment_no: int
    server_epoch: int
    consumer_group: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """The server of the segment before hands the state of a consumer group's keys over.

    It sends this to the server of the segment, which sends it to the other members that must keep it.
    """

    partition: PartitionId
    handover: HandOverState


@dataclass(frozen=True, slots=True)
class HandOverKept:
    """The sender has the handoff on its disk. From the server of the segment: every eligible member has it."""

    partition: PartitionId
    segment_no: int
    consumer_group: str
    group_epoch: int
    id: HandOverId


@dataclass(frozen=True, slots=True)
class EligibleRequest:
    """The sender tells the server that it has the complete sealed segment, and asks to become eligible."""

    partition: PartitionId
    segment_no: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Asks a member that has the segment to check the server, and to take the serving right over if it is silent.

    Attributes:
        sent_us: When it was sent, by the sender's clock, if the sender waits for `ServerHeard`.
    """

    partition: PartitionId
    segment_no: int
    server_epoch: int
    sent_us: int | None = None


@dataclass(frozen=True, slots=True)
class ServerHeard:
    """The server is not silent, so the sender does not take the right over.

    Attributes:
        sent_us: As in the `TakeOver`.
        before_us: The server has answered a heartbeat that left this long before that `TakeOver` arrived.
    """

    partition: PartitionId
    segment_no: int
    server_epoch: int
    sent_us: int
    before_us: int


@dataclass(frozen=True, slots=True)
class HealRequest:
    """The controller asks a member to become an in-sync copy of a sealed segment, in place of a dead member."""

    partition: PartitionId
    segment_no: int
    replaces: MemberId | None


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """The controller asks the master of an open segment to move it to another broker group."""

    partition: PartitionId
    segment_no: int


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """The controller asks the server of sealed segments to remove members that are being drained from their records."""

    partition: PartitionId
    segment_nos: tuple[int, ...]
    leaving: tuple[MemberId, ...]


@dataclass(frozen=True, slots=True)
class CopiesQuestion:
    """A question to a member: what has it of these segments? Can the open ones continue if the member `without`
    ends?"""

    serial: int
    without: MemberId
    segments: tuple[tuple[PartitionId, int], ...]


class Standing(enum.IntEnum):
    """What a member says of its copy of a segment. The numbers are those of the wire.

    UNKNOWN, IN_SYNC and PARTIAL are about any segment. The others come from the master of an open segment, in the
    member run that opened it. IN_STEP: every other member has all below the commit, and the segment could move to
    another broker group. OUT_OF_STEP: a member lacks messages. NOWHERE_TO_GO: no other broker group could take the
    segment. An answer of a newer version that this one does not know proves nothing: it is UNKNOWN.
    """

    UNKNOWN = 0
    IN_SYNC = 1
    PARTIAL = 2
    IN_STEP = 3
    OUT_OF_STEP = 4
    NOWHERE_TO_GO = 5

    @classmethod
    def _missing_(cls, _: object) -> Standing:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What a member says of one segment: its copy, the index up to which it has it, the chain epoch that it knows."""

    standing: Standing
    index: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CopiesAnswer:
    """One report for each segment of the question, in the same order."""

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
    | TailRequest
    | TailAnswer
    | CopyRequest
    | CopyAnswer
    | StoreTail
    | TailStored
    | SuspectTail
    | TableRequest
    | TableAnswer
    | ReplicateCursors
    | CursorsReplicated
    | ReplicateLedger
    | LedgerWanted
    | HandOver
    | HandOverKept
    | EligibleRequest
    | TakeOver
    | ServerHeard
    | HealRequest
    | MoveRequest
    | ReleaseRequest
    | CopiesQuestion
    | CopiesAnswer
    | PassRequest
)

DATA = (
    Replicate,
    ReplicateStaged,
    ReplicateAck,
    ReplicateRefused,
    TailRequest,
    TailAnswer,
    CopyRequest,
    CopyAnswer,
    BlockRequest,
    BlockAnswer,
    LaneProbe,
)
"""The kinds that travel on the replication stream. `CopyAnswer` is the only one with an exception."""
