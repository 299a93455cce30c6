"""What the core wants done, in the order of the list that `step` returned.

Nothing here waits for a disk: whatever may leave only after a write is held back in the core until `Persisted`.
"""

from __future__ import annotations

from dataclasses import dataclass

from seriatim_api.errors import SeriatimError
from seriatim_api.ids import PartitionId, RunId
from seriatim_api.publications import StagedBatch

from .chain import Chain
from .events import CursorRecord, GroupOperation
from .log import Batch, Write
from .messages import CopyReport, Message
from .positions import Place


@dataclass(frozen=True, slots=True)
class Persist:
    """Write these together; report `Persisted(token)` once they and all before are durable."""

    token: int
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Send to a broker on its current link; dropped if there is none (the link is then opened)."""

    broker: str
    message: Message


@dataclass(frozen=True, slots=True)
class Connect:
    """Keep a link to this broker from now on."""

    broker: str


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The link to this broker is of no more use: it is silent, or its run was dismissed. Break it and connect anew."""

    broker: str
    session: int


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read batches that hold indexes of [from_index, until_index); answered by `LogRead(serial)`."""

    serial: int
    partition: PartitionId
    segment_no: int
    from_index: int
    until_index: int
    max_bytes: int


# ---- the coordinator ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadChain:
    """Read the partition's chain, linearizably; answered by `ChainRead`. `known`: a record was there once."""

    partition: PartitionId
    known: bool = False


@dataclass(frozen=True, slots=True)
class WriteChain:
    """Write the record if its key is still at `revision` (0: does not exist) and the certificate, if named, exists.

    `cursors_revision`: if it is not 0, no cursor of the partition may have been written after it.
    """

    partition: PartitionId
    serial: int
    chain: Chain
    revision: int
    certificate: RunId | None
    cursors_revision: int = 0


@dataclass(frozen=True, slots=True)
class ReadCertificate:
    """Is there a death certificate of this run? Answered by `CertificateRead`."""

    partition: PartitionId
    run: RunId


@dataclass(frozen=True, slots=True)
class ReadCursor:
    """Read a group's cursor; answered by `CursorRead`, with the same `known_revision`: of the newest that is known."""

    partition: PartitionId
    group: str
    known_revision: int = 0


@dataclass(frozen=True, slots=True)
class WriteCursor:
    """Write a group's cursor if its key is still at `revision` (0: does not exist).

    `chain_revision`: and the partition's chain is still at that one; 0: and the partition has a chain.
    """

    partition: PartitionId
    group: str
    serial: int
    record: CursorRecord
    revision: int
    chain_revision: int = 0


# ---- replies to clients ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RouteInfo:
    """Where a partition accepts messages, as far as this broker knows."""

    partition: PartitionId
    epoch: int
    segment_no: int
    master: str
    next_groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AppendAccepted:
    """The batch stands at `offset` (segment and index of its first message) by the promise of its ack level.

    `is_final`: readers find it there, because no earlier attempt of it stands in front. False: not known. Behind
    an unsettled segment it cannot be known: if the batch is in that one too, readers find it there, and skip it here.
    """

    request: int
    offset: int
    append_time_ms: int
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class AppendRefused:
    """The attempt ended otherwise; `error.outcome_known` says whether it is proven not to be stored."""

    request: int
    error: SeriatimError
    route: RouteInfo | None


@dataclass(frozen=True, slots=True)
class Resolved:
    """The answer to `ResolveProducer` or `PlanSwitch` or `CreatePartition`."""

    request: int
    route: RouteInfo | None
    error: SeriatimError | None


@dataclass(frozen=True, slots=True)
class ConsumerResolved:
    """The answer to `ResolveConsumer`."""

    request: int
    partition: PartitionId
    segment_no: int
    server: str
    server_epoch: int
    group_epoch: int
    state: str
    has_cursor: bool
    error: SeriatimError | None


@dataclass(frozen=True, slots=True)
class GroupDescribed:
    """The answer to `DescribeGroup`."""

    request: int
    segment_no: int
    acked: int
    position: int | None
    end_position: int | None
    group_epoch: int
    active: str
    standbys: tuple[str, ...]
    error: SeriatimError | None


@dataclass(frozen=True, slots=True)
class GroupOperated:
    """The answer to `OperateGroup`.

    `record`: the group's cursor since the operation; None with an error. `was_done`: nothing was written now, because
    an earlier request with the same id did it, or because there was nothing to do.
    """

    request: int
    record: CursorRecord | None
    was_done: bool
    error: SeriatimError | None


# ---- deliveries -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """The subscription is active from `index` on, or stands by."""

    active: bool
    segment_no: int
    index: int
    token: int
    group_epoch: int
    server_epoch: int
    paused: bool = False
    begun_by: GroupOperation | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """The group was paused or resumed. What was delivered can still be acknowledged under the same token."""

    paused: bool


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches, from `from_index` (within the first) on."""

    segment_no: int
    batches: tuple[Batch, ...]
    from_index: int
    maybe_repeated_below: int
    attempt: int
    server_epoch: int


@dataclass(frozen=True, slots=True)
class Skip:
    """[from_index, to_index) stands earlier in the order already."""

    segment_no: int
    from_index: int
    to_index: int


@dataclass(frozen=True, slots=True)
class EndOfSegment:
    """All of the segment is acknowledged and the group's cursor stands in the next one."""

    segment_no: int
    sealed_len: int
    next_segment_no: int
    next_server: str
    group_epoch: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A declared gap: what lay here is lost."""

    segment_no: int
    from_index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """Retention dropped what lies between an offset and an index of this segment, `messages` of them."""

    from_offset: int
    segment_no: int
    to_index: int
    messages: int


@dataclass(frozen=True, slots=True)
class SubscriptionRefused:
    """Not here; `server` serves the group's head, if it is known."""

    error: SeriatimError
    segment_no: int
    server: str


@dataclass(frozen=True, slots=True)
class Revoked:
    """The subscription ended: this broker serves the segment no more."""

    error: SeriatimError


@dataclass(frozen=True, slots=True)
class AckConfirmed:
    """All below `index` is acknowledged, durably on every eligible copy."""

    segment_no: int
    index: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a heartbeat of the stream; `unserved` are subscriptions for which nothing may be delivered now."""

    number: int
    unserved: tuple[int, ...]


DeliveryEvent = (
    Joined
    | Batches
    | Skip
    | EndOfSegment
    | Gap
    | Dropped
    | SubscriptionRefused
    | Revoked
    | AckConfirmed
    | Pong
    | Paused
)


@dataclass(frozen=True, slots=True)
class LogsListed:
    """Logs on this disk: partition, segment, and below which index they can be read."""

    request: int
    logs: tuple[tuple[PartitionId, int, int], ...]


@dataclass(frozen=True, slots=True)
class Led:
    """A partition whose open segment this member is the master of.

    `flushed`: every member has flushed what lies below. `size_bytes`: of all batches of the open segment. `acked`: of
    each group how far its consumers have acknowledged, as this disk knows: its epoch, a segment, an index.
    """

    partition: PartitionId
    chain: Chain
    flushed: int
    size_bytes: int
    acked: tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class LedListed:
    """The answer to `ListLed`, ascending."""

    request: int
    led: tuple[Led, ...]


@dataclass(frozen=True, slots=True)
class CursorsListed:
    """Consumer groups of which this disk has acknowledgements: partition and group, in their order."""

    request: int
    groups: tuple[tuple[PartitionId, str], ...]


@dataclass(frozen=True, slots=True)
class CopiesTold:
    """The answer to `AskCopies`."""

    request: int
    reports: tuple[CopyReport, ...]


# ---- range reads ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RangeBatches:
    """Batches that follow one another."""

    segment_no: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class RangeSkip:
    """[from_index, to_index) stands earlier in the order already; `checksum` is the chain's value behind it."""

    segment_no: int
    from_index: int
    to_index: int
    checksum: int


@dataclass(frozen=True, slots=True)
class RangeSegmentEnd:
    """The segment is read to its end: what the record says of it."""

    segment_no: int
    sealed_len: int
    sealed_checksum: int


@dataclass(frozen=True, slots=True)
class RangeGap:
    """What lay in the segment from that index on is lost for good."""

    segment_no: int
    from_index: int
    reason: str


@dataclass(frozen=True, slots=True)
class RangeDropped:
    """Retention has dropped what lay between; `checksum` is the value of the checksum chain before `until`."""

    start: Place
    until: Place
    checksum: int = 0


RangeEvent = RangeBatches | RangeSkip | RangeSegmentEnd | RangeGap | RangeDropped


@dataclass(frozen=True, slots=True)
class RangeRead:
    """The answer to `ReadRange`: what was found, in its order, and where to go on.

    `is_done`: the range is read to its end. `brokers`: what comes next is not here but there.
    """

    request: int
    events: tuple[RangeEvent, ...]
    place: Place
    is_done: bool
    brokers: tuple[str, ...]
    error: SeriatimError | None


@dataclass(frozen=True, slots=True)
class PartitionSurveyed:
    """The answer to `SurveyPartition`.

    `readable_below`: of the segment asked for, what may be read here; None: it is not whole here. `is_master`: this
    member appends to that segment, so it knows its commit.
    """

    request: int
    chain: Chain | None
    readable_below: int | None
    is_master: bool
    error: SeriatimError | None


@dataclass(frozen=True, slots=True)
class Deliver:
    """An event for one subscription of a consumer's stream, in order."""

    stream: int
    subscription: int
    event: DeliveryEvent


@dataclass(frozen=True, slots=True)
class EndRun:
    """This run must end now, without a hand-over: it is certified to be over, or its slot has another disk.

    The only effect of its step; no later step has any.
    """

    error: SeriatimError


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth a log line and perhaps a metric: a closed set of names, with fields."""

    name: str
    partition: PartitionId
    fields: tuple[tuple[str, object], ...]


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """The answer to `CarryOut`: the offset of the first row, where it is known, and how many rows there are.

    `lost_rows`: of those, not stored, because their staged batches were declared lost; as far as this master saw it.
    """

    request: int
    first_offset: int | None
    rows: int
    lost_rows: int
    error: SeriatimError | None


@dataclass(frozen=True, slots=True)
class FetchStaged:
    """Get a staged batch from this disk or another member's; answered by `StagedFetched`.

    `only_here`: at once, and from this disk only.
    """

    serial: int
    partition: PartitionId
    staged: StagedBatch
    only_here: bool = False


@dataclass(frozen=True, slots=True)
class ReadWriter:
    """Read a writer's record; answered by `WriterRead`."""

    serial: int
    partition: PartitionId
    incarnation: str
    writer: str


Effect = (
    Persist
    | Send
    | Connect
    | Disconnect
    | ReadLog
    | ReadChain
    | WriteChain
    | ReadCertificate
    | ReadCursor
    | WriteCursor
    | AppendAccepted
    | AppendRefused
    | Resolved
    | ConsumerResolved
    | GroupDescribed
    | GroupOperated
    | LogsListed
    | LedListed
    | CursorsListed
    | CopiesTold
    | RangeRead
    | PartitionSurveyed
    | CarriedOut
    | FetchStaged
    | ReadWriter
    | Deliver
    | EndRun
    | Note
)
