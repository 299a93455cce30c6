"""What can happen to a broker's core. Every event is handled by `BrokerCore.step(event, now)`."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple

from seriatim_api.batch import BatchHeader
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_api.publications import StagedBatches

from .chain import Chain, Start
from .deleted import DeletedPartitions
from .log import Batch
from .messages import FORMS, Message
from .placement import CHAIN_WIDTH_DEFAULT, GroupSpec
from .positions import Place
from .writers import WriterRecord


class Moment(NamedTuple):
    """The time of an event: a monotonic clock for durations, the wall clock for what people read."""

    mono_us: int
    wall_ms: int


class WriteOutcome(enum.Enum):
    """How a transaction at the coordinator ended.

    CONFLICT: what was compared did not hold, nothing was written. UNKNOWN: there was no answer, and the write may still
    come. REFUSED: the coordinator answered that it does not take this write (no space, no right, too large), and will
    refuse the next one too. Like an unknown one it may have been written: etcd refuses the write that fills its quota
    and keeps it.
    """

    DONE = "done"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"
    REFUSED = "refused"


class AckLevel(enum.IntEnum):
    """When the reply to a batch leaves. Numbers as on the wire; only the last two carry the promise."""

    NONE = 1
    MASTER_RECEIVED = 2
    MASTER_FLUSHED = 3
    REPLICATED = 4
    REPLICATED_FLUSHED = 5


class StartPosition(enum.IntEnum):
    """Where a consumer group without a cursor begins. Numbers as on the wire."""

    EARLIEST = 1
    LATEST = 2


class GroupOperation(enum.IntEnum):
    """What a person does to a consumer group's position. Numbers as on the wire."""

    REWIND = 1
    SKIP = 2
    PAUSE = 3
    RESUME = 4

    @property
    def moves(self) -> bool:
        """Whether the group begins anew elsewhere, in a new epoch."""
        return self in (GroupOperation.REWIND, GroupOperation.SKIP)


REQUESTS_KEPT = 8
"""So many operations that were done are remembered in a group's cursor: a request that is repeated later is a new one,
and is refused if it names the group's epoch."""


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """Where a consumer group is, as the coordinator knows it: a segment, and the epoch of the group.

    `deleted`: the group was forgotten. What it acknowledged is still on disks, under its epoch: a group of that name
    that begins anew does so under a higher one. Also given for a group without a record, with revision 0, if records
    of deleted groups were removed: `group_epoch` is the highest that such a group may have had.
    `deleted_at_ms`: when; 0 if a version wrote it that does not say.
    `paused`: the group is given nothing until it is resumed.
    `begun_by`: the rewind or skip that began the epoch; None if something else did.
    `requests`: ids of the last operations that changed this record, oldest first.
    `dropped_from`: retention dropped what lies between this offset and the place of the cursor, and no consumer of the
    group is known to have been told; 0: nothing. `dropped_position`: its position.
    `external`: the group has no consumers and no server; it reads ranges, and reported this place at `reported_at_ms`.
    """

    segment_no: int
    group_epoch: int
    start_index: int
    topic: str
    deleted: bool = False
    deleted_at_ms: int = 0
    paused: bool = False
    begun_by: GroupOperation | None = None
    requests: tuple[bytes, ...] = ()
    dropped_from: int = 0
    dropped_position: int = 0
    external: bool = False
    reported_at_ms: int = 0

    def moved_to(self, segment_no: int, index: int = 0, *, new_epoch: bool = False) -> CursorRecord:
        """This record, with the group in another place: in its epoch, or in the next one."""
        if not new_epoch:
            return replace(self, segment_no=segment_no, start_index=index)
        epoch = self.group_epoch + 1
        return replace(self, segment_no=segment_no, start_index=index, group_epoch=epoch, begun_by=None)


# ---- time, links, disk ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing but time passed."""


@dataclass(frozen=True, slots=True)
class LinkUp:
    """Both streams to a broker stand; `session` is new and larger than any before.

    `forms`: which forms of messages it reads beyond those of 0.2.0, a sum of `messages.FORM_*`.
    """

    broker: str
    member: MemberId
    run: int
    session: int
    forms: int = FORMS


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A stream of the link broke. `refused`: and nobody listens there any more, so the process is probably gone.

    Also reported (with session 0) when an attempt to connect is refused while the link is down.
    """

    broker: str
    session: int
    refused: bool


@dataclass(frozen=True, slots=True)
class Received:
    """A message of a link; of an older session than the current one it is ignored."""

    broker: str
    session: int
    message: Message


@dataclass(frozen=True, slots=True)
class Persisted:
    """All `Persist` effects up to and including this token are durable."""

    token: int


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """Whether the reserve of this broker's disk is reached: looked at again and again, told when it changes."""

    is_full: bool


@dataclass(frozen=True, slots=True)
class LogRead:
    """The answer to `ReadLog`; `batches` is empty if there is nothing (any more), None if the read failed."""

    serial: int
    batches: tuple[Batch, ...] | None
    is_damaged: bool = False  # what was read is not what was written


# ---- the coordinator ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainRead:
    """The answer to `ReadChain`: linearizable, with the key's mod revision. chain None: no such partition.

    `failed`: the coordinator did not answer. `deleted`: there is no record because the partition was deleted; only
    looked for where a record was known.
    """

    partition: PartitionId
    chain: Chain | None
    revision: int
    failed: bool = False
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class ChainWritten:
    """The answer to `WriteChain`; `revision` is the key's new one if DONE."""

    partition: PartitionId
    serial: int
    outcome: WriteOutcome
    revision: int


@dataclass(frozen=True, slots=True)
class CertificateRead:
    """The answer to `ReadCertificate`. `exists` None: the coordinator did not answer."""

    partition: PartitionId
    run: RunId
    exists: bool | None


@dataclass(frozen=True, slots=True)
class CertificateSeen:
    """A death certificate appeared (a hint from a watch; transactions compare it themselves)."""

    run: RunId


@dataclass(frozen=True, slots=True)
class CursorRead:
    """The answer to `ReadCursor`; `record` None: no cursor. `failed`: the coordinator did not answer.

    `known_revision`: of the newest cursor that was known here when the read began.
    """

    partition: PartitionId
    group: str
    record: CursorRecord | None
    revision: int
    failed: bool = False
    known_revision: int = 0


@dataclass(frozen=True, slots=True)
class CursorWritten:
    """The answer to `WriteCursor`."""

    partition: PartitionId
    group: str
    serial: int
    outcome: WriteOutcome
    revision: int


@dataclass(frozen=True, slots=True)
class WritesRefused:
    """The coordinator refuses all writes from now on (`refused`), or takes writes again."""

    refused: bool


@dataclass(frozen=True, slots=True)
class CompareChains:
    """The coordinator was away, or its revision fell: whether it still has what this broker knows must be looked at."""


@dataclass(frozen=True, slots=True)
class CoordinatorRebuilt:
    """The coordinator was rebuilt since this broker looked last: revisions, and the places of groups, begin anew."""


@dataclass(frozen=True, slots=True)
class OwnRecordSeen:
    """What is wrong with this broker's member record at the coordinator; empty if it is as this broker wrote it."""

    problem: str


@dataclass(frozen=True, slots=True)
class DirectoryChanged:
    """The admitted members of each group, by slot; the runs that members last registered; what is wanted of groups.

    `runs` names every registered disk, admitted or not, one for each broker name. `forms`: what all of them read beyond
    0.2.0, a sum of `messages.FORM_*`; 0 if one of them does not say.
    """

    groups: tuple[tuple[str, tuple[MemberId, ...]], ...]
    runs: tuple[tuple[MemberId, int], ...] = ()
    specs: tuple[tuple[str, GroupSpec], ...] = ()
    forms: int = 0


# ---- clients --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Append:
    """A batch from a producer. The frame layer has checked lengths, limits and the body's CRC.

    `request` names the reply. `refuse`: the broker has no room for it; the core answers with that error, and refuses
    the rest of the run with it.
    """

    request: int
    partition: PartitionId
    header: BatchHeader
    body: bytes
    run: int
    starts_run: bool
    level: int
    refuse: SeriatimError | None = None


@dataclass(frozen=True, slots=True)
class ResolveProducer:
    """Where to append? With `failed_segment`, a complaint: answered when the chain is past it, or at the deadline.

    One that does not count yet is answered at once, with the same master (`routes.complain`).
    With `silent_segment`, a suspicion: answered at once, and its master is probed.
    """

    request: int
    partition: PartitionId
    failed_segment: int | None
    deadline_us: int
    silent_segment: int | None = None


@dataclass(frozen=True, slots=True)
class ResolveConsumer:
    """Who serves the group's head? With `failed_server_epoch`, a complaint about that server."""

    request: int
    partition: PartitionId
    group: str
    failed_server_epoch: int | None
    start: StartPosition
    deadline_us: int


@dataclass(frozen=True, slots=True)
class CreatePartition:
    """The controller makes a partition: prepare the first group that answers, then write the chain."""

    request: int
    partition: PartitionId
    topic: str
    number: int
    flush: bool
    send_chain: tuple[str, ...]
    width: int = CHAIN_WIDTH_DEFAULT


@dataclass(frozen=True, slots=True)
class DropPartitionData:
    """The partition was deleted (the coordinator has its tombstone): forget it."""

    partition: PartitionId


@dataclass(frozen=True, slots=True)
class DropDeleted:
    """These partitions were deleted, as the coordinator's ranges say: forget those that are here."""

    deleted: DeletedPartitions


@dataclass(frozen=True, slots=True)
class PlanSwitch:
    """Move the open segment, everyone alive: to the next whole group, or to the one that is named.

    `target_master`: which member of the target is to be the master; empty: whose turn it is. With the own group as
    target this changes the master only.
    """

    request: int
    partition: PartitionId
    target_group: str = ""
    target_master: str = ""


@dataclass(frozen=True, slots=True)
class ListLogs:
    """Which logs are here? The first `limit` behind a place, by partition and segment."""

    request: int
    after_partition: PartitionId
    after_segment: int
    limit: int


@dataclass(frozen=True, slots=True)
class ListCursors:
    """Which consumer groups this disk has acknowledgements of, in an epoch up to `epoch_max`; `CursorsListed` answers.

    Begins above (partition, group), and names at most `limit`.
    """

    request: int
    after: tuple[int, str]
    epoch_max: int
    limit: int


@dataclass(frozen=True, slots=True)
class ForgetGroup:
    """The coordinator has no cursor of this consumer group, and one that is made begins above `epoch_max`."""

    partition: PartitionId
    group: str
    epoch_max: int


@dataclass(frozen=True, slots=True)
class ListLed:
    """Of which partitions is this member the master? Above `after`, at most `limit`; `LedListed` answers."""

    request: int
    after: PartitionId
    limit: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Retention decided what may go, from the chain record of that epoch; see `core.control.retention`.

    `cursors_revision`: the coordinator's, as of which the group's cursors were looked at.
    """

    partition: PartitionId
    epoch: int
    no: int
    start: Start | None
    first_kept: int
    cursors_revision: int


@dataclass(frozen=True, slots=True)
class PassGroup:
    """This group stands in a segment that retention emptied, or that is lost: its server is to move it on."""

    partition: PartitionId
    segment_no: int
    group: str


@dataclass(frozen=True, slots=True)
class FoundDamage:
    """A log could not be read: what is on the disk is not what was written."""

    partition: PartitionId
    segment_no: int


@dataclass(frozen=True, slots=True)
class DeclareGap:
    """A person says that all disks of a segment are lost for good: groups are to go on behind it."""

    request: int
    partition: PartitionId
    segment_no: int


@dataclass(frozen=True, slots=True)
class SwitchAwayFrom:
    """The controller found a group without any live member: open over the partition if its segment is there."""

    partition: PartitionId
    segment_no: int


@dataclass(frozen=True, slots=True)
class Heal:
    """The controller decided that this member (or another, by message) should copy a segment that has one copy left."""

    partition: PartitionId
    segment_no: int
    member: MemberId
    replaces: MemberId | None


@dataclass(frozen=True, slots=True)
class MoveHead:
    """The controller decided that the head of a partition should leave its group; its master switches, as planned."""

    partition: PartitionId
    segment_no: int
    master: MemberId


@dataclass(frozen=True, slots=True)
class Release:
    """The controller decided that members should leave the records of sealed segments; `by`, their server, does it."""

    partition: PartitionId
    segment_nos: tuple[int, ...]
    by: MemberId
    leaving: tuple[MemberId, ...]


@dataclass(frozen=True, slots=True)
class AskCopies:
    """What does a member hold of these segments? Answered by `CopiesTold`, or never: whoever asks has a deadline."""

    request: int
    member: MemberId
    without: MemberId
    segments: tuple[tuple[PartitionId, int], ...]


# ---- consumers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConsumerJoin:
    """A consumer of an exclusive group asks for a partition. (stream, subscription) names it from now on."""

    stream: int
    subscription: int
    partition: PartitionId
    group: str
    consumer: str
    start: StartPosition
    was_active: bool


@dataclass(frozen=True, slots=True)
class ConsumerLeave:
    """It lets go of the partition."""

    stream: int
    subscription: int


@dataclass(frozen=True, slots=True)
class ConsumerAck:
    """All up to and including `offset` is done, under the grant's token."""

    stream: int
    subscription: int
    token: int
    offset: int


@dataclass(frozen=True, slots=True)
class ConsumerCredit:
    """The consumer has room for this many more bytes of bodies on the stream."""

    stream: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ConsumerPing:
    """A heartbeat of the consumer: is its stream alive, and are its subscriptions served here?

    `session_ms`: how long the consumer holds on to a grant without an answer; 0: it does not say.
    """

    stream: int
    number: int
    session_ms: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerGone:
    """The stream ended: all its subscriptions with it."""

    stream: int


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    """What this broker, as the server of the group's head, knows of the group."""

    request: int
    partition: PartitionId
    group: str


@dataclass(frozen=True, slots=True)
class OperateGroup:
    """A person rewinds, skips, pauses or resumes a group, whose head this broker serves; `GroupOperated` answers.

    Attributes:
        request: Names the answer.
        operation_id: Of the caller, the same if the request is repeated: it is carried out once.
        group_epoch: The epoch in which the caller knows the group; 0: any.
        segment_no, index: Where a rewind or skip goes to.
        known_len: Below which index that segment can be read, if it is the open one, as its master said. It never
            shrinks: what is committed is sealed in.
        deadline_us: When the caller is told that the outcome is not known.
    """

    request: int
    partition: PartitionId
    group: str
    operation: GroupOperation
    operation_id: bytes
    group_epoch: int
    segment_no: int
    index: int
    known_len: int
    deadline_us: int


# ---- range reads ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SurveyPartition:
    """What is known here of a partition's chain, of this epoch or a later one, and of one segment of it?

    Answered by `PartitionSurveyed`. `segment_no` 0: the open segment.
    """

    request: int
    partition: PartitionId
    epoch: int
    segment_no: int
    deadline_us: int


@dataclass(frozen=True, slots=True)
class ReadRange:
    """One step of reading [start, until): at most `max_bytes`, or one batch. Answered by `RangeRead`.

    `raw`: repeats behind unsettled segments are not skipped. `staged`: nor does it matter whether a segment before is
    settled, because what is staged is found by its place and has no order.
    """

    request: int
    partition: PartitionId
    start: Place
    until: Place
    max_bytes: int
    raw: bool
    deadline_us: int
    staged: bool = False


# ---- publications ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CarryOut:
    """Append the rows of a publication that was read as DECIDED; answered by `CarriedOut` once they are committed.

    `manifest`: its id. `batches`: what it says of this partition, in order.
    """

    request: int
    partition: PartitionId
    incarnation: str
    writer: str
    producer: bytes
    sequence: int
    manifest: bytes
    batches: StagedBatches
    deadline_us: int


@dataclass(frozen=True, slots=True)
class StagedFetched:
    """The answer to `FetchStaged`. Without a batch: no member that has it answered. `is_gone`: none ever will.
    `is_here`: it is on this member's disk."""

    serial: int
    partition: PartitionId
    batch: Batch | None
    is_gone: bool = False
    is_here: bool = False


@dataclass(frozen=True, slots=True)
class WriterRead:
    """The answer to `ReadWriter`. `failed`: the coordinator did not answer."""

    serial: int
    partition: PartitionId
    record: WriterRecord | None
    failed: bool = False


Event = (
    Tick
    | LinkUp
    | LinkDown
    | Received
    | Persisted
    | DiskRoom
    | LogRead
    | ChainRead
    | ChainWritten
    | CertificateRead
    | CertificateSeen
    | CursorRead
    | CursorWritten
    | DirectoryChanged
    | WritesRefused
    | CompareChains
    | CoordinatorRebuilt
    | OwnRecordSeen
    | Append
    | ResolveProducer
    | ResolveConsumer
    | CreatePartition
    | DropPartitionData
    | DropDeleted
    | PlanSwitch
    | DeclareGap
    | ListLed
    | Trim
    | PassGroup
    | ListLogs
    | ListCursors
    | ForgetGroup
    | FoundDamage
    | SwitchAwayFrom
    | Heal
    | MoveHead
    | Release
    | AskCopies
    | ConsumerJoin
    | ConsumerLeave
    | ConsumerAck
    | ConsumerCredit
    | ConsumerPing
    | ConsumerGone
    | DescribeGroup
    | SurveyPartition
    | ReadRange
    | OperateGroup
    | CarryOut
    | StagedFetched
    | WriterRead
)
