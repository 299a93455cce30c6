"""The actions that the core asks for, to be carried out in the order of the list that `step` returned.

No effect waits for a disk: the core keeps effects that depend on a write until `Persisted`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from seriatim_api.dead_letters import DeadLetterOrigin
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import PartitionId, RunId
from seriatim_api.publications import StagedBatch

from .chain import Chain
from .delayed_messages import (
    CompleteListed,
    DelayedCancelled,
    DelayedFiltered,
    FindDelayed,
    FireVolleys,
    FiringListed,
    PendingFound,
    ReadDue,
    ReadFired,
    ReadPending,
    ReadVolley,
)
from .events import ConsumerGroupOperation, CursorRecord
from .keyed import ConsumerMode, DeadLetter, KeyCounts, KeyGrant, WaitingKey
from .log import Batch, SafeCursor, Write
from .messages import CopyReport, Message
from .owners import ReadOwner
from .positions import Place


@dataclass(frozen=True, slots=True)
class Persist:
    """Write these together; report `Persisted(token)` when they and all earlier writes are durable."""

    token: int
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Send to a broker on its present link. If there is no link, the message is dropped and a link is opened."""

    broker: str
    message: Message


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a link to this broker, and keep it open from now on."""

    broker: str


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Break the link to this broker, and connect again.

    The other broker is silent, its replication stream has stalled, or its member run was dismissed.
    """

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


@dataclass(frozen=True, slots=True)
class ReadKeys:
    """Read the keys of the batches that hold indexes of [from_index, until_index); answered by `KeysRead(serial)`."""

    serial: int
    partition: PartitionId
    segment_no: int
    from_index: int
    until_index: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Read single messages by their offsets, and make one body of them in this order; `RowsRead(serial)` answers.

    Attributes:
        serial: Comes back in the answer.
        partition: The partition.
        offsets: Of the messages.
        bytes_max: The body has the first ones of them that have this many bytes together, and at least one.
        batches: Those that are not on this disk.
    """

    serial: int
    partition: PartitionId
    offsets: tuple[int, ...]
    bytes_max: int
    batches: tuple[Batch, ...] = ()


@dataclass(frozen=True, slots=True)
class KeepMessage:
    """A consumer failed on a message, which is read again after this long. If it is in memory, it should stay there."""

    partition: PartitionId
    offset: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class ReadDeadLetter:
    """Read one message, and make its copy for the dead-letter topic; `DeadLetterRead(serial)` answers.

    `batches` have the message if it is not on this disk.
    """

    serial: int
    partition: PartitionId
    offset: int
    origin: DeadLetterOrigin
    batches: tuple[Batch, ...] = ()


@dataclass(frozen=True, slots=True)
class ForwardBatches:
    """Have the master of another partition append dead letters, in this order; `ForwardsDone(serial)` answers.

    The other partition is the one with that number in the topic. Each dead letter is a batch of its own.
    """

    serial: int
    partition: PartitionId
    consumer_group: str
    topic: str
    partition_number: int
    producer: bytes
    letters: tuple[DeadLetter, ...]


# ---- the coordinator ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadChain:
    """Read the partition's chain record, linearizably; answered by `ChainRead`.

    `known`: this broker knew a record, another one reported one, or this one is prepared for a segment or keeps a tail
    copy. So if there is no record, the partition may have been deleted.
    """

    partition: PartitionId
    known: bool = False


@dataclass(frozen=True, slots=True)
class WriteChain:
    """Write the chain record in one transaction; answered by `ChainWritten`. The transaction compares:

    that the key is still at `revision` (0: it does not exist); that its record has the chain epoch before that of
    `chain`; that the death certificate exists, if one is named; and that no cursor of the partition was written after
    `cursors_revision`, if it is not 0.
    """

    partition: PartitionId
    serial: int
    chain: Chain
    revision: int
    certificate: RunId | None
    cursors_revision: int = 0


@dataclass(frozen=True, slots=True)
class ReadCertificate:
    """Read whether there is a death certificate of this member run, or of a later one; `CertificateRead` answers."""

    partition: PartitionId
    member_run: RunId


@dataclass(frozen=True, slots=True)
class ReadCursor:
    """Read a consumer group's cursor; answered by `CursorRead`, which repeats the newest `known_revision`."""

    partition: PartitionId
    consumer_group: str
    known_revision: int = 0


@dataclass(frozen=True, slots=True)
class WriteCursor:
    """Write a consumer group's cursor in one transaction; answered by `CursorWritten`.

    The transaction compares that the cursor's key is still at `revision` (0: it does not exist), and that the chain
    record is still at `chain_revision` (0: only that there is a chain record). `is_new`: the consumer group begins.
    `follows`: the segment and the group epoch of the cursor at `revision`, if this member has read it.
    """

    partition: PartitionId
    consumer_group: str
    serial: int
    record: CursorRecord
    revision: int
    chain_revision: int = 0
    is_new: bool = False
    follows: tuple[int, int] | None = None


# ---- replies to clients ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RouteInfo:
    """Where a partition accepts messages, as far as this broker knows."""

    partition: PartitionId
    epoch: int
    segment_no: int
    master: str
    next_broker_groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AppendAccepted:
    """The batch is stored at `offset` (segment and index of its first message), with the promise of its ack level.

    `is_final`: readers find it there, because no earlier send attempt of it is stored. False: this is not known. The
    master cannot know it after an unsettled segment: if that segment has the batch too, readers get it there, and skip
    it here. `due_time_ms`: when a delayed batch is due; 0: it is an ordinary one; None: it was stored before, and when
    it is due is not known.
    """

    request: int
    offset: int
    append_time_ms: int
    is_final: bool = False
    due_time_ms: int | None = 0


@dataclass(frozen=True, slots=True)
class AppendRefused:
    """The send attempt was refused. `error.outcome_known`: it is certain that nothing of it is or will be stored."""

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
    """The answer to `ResolveConsumer`.

    Attributes:
        confirmed: The complaint was unfounded: the server was heard since the complaint arrived.
    """

    request: int
    partition: PartitionId
    segment_no: int
    server: str
    server_epoch: int
    group_epoch: int
    state: str
    has_cursor: bool
    error: SeriatimError | None
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribed:
    """The answer to `DescribeConsumerGroup`.

    Attributes:
        oldest: The offset of the oldest message that is not acknowledged; None: there is none, or it is not known.
        consumers: The names of the consumers that are given messages.
        in_flight: How many messages are granted and not ended; only if order is by key.
        keys: The keys that wait, as the server sees them now; None: order is not by key, or it does not know them.
    """

    request: int
    segment_no: int
    acked: int
    position: int | None
    end_position: int | None
    group_epoch: int
    active: str
    standbys: tuple[str, ...]
    error: SeriatimError | None
    oldest: int | None = None
    consumers: tuple[str, ...] = ()
    in_flight: int = 0
    keys: KeyCounts | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupOperated:
    """The answer to `OperateConsumerGroup`.

    `record`: the cursor after the operation; None with an error. `was_done`: this request wrote nothing, because an
    earlier one with the same id did it, or because there was nothing to do.
    """

    request: int
    record: CursorRecord | None
    was_done: bool
    error: SeriatimError | None


@dataclass(frozen=True, slots=True)
class KeysListed:
    """The answer to `ListKeys`, by name. All of it is durable on every eligible and joining member.

    `has_more`: more keys follow the last one.
    """

    request: int
    keys: tuple[WaitingKey, ...]
    has_more: bool
    error: SeriatimError | None


@dataclass(frozen=True, slots=True)
class KeysOperated:
    """The answer to `OperateKeys`: for each key, in the order of the request, an error, or whether it was done before.

    All of it is durable on every eligible and joining member. With `error`, it is not known what was done.
    """

    request: int
    results: tuple[SeriatimError | bool, ...]
    error: SeriatimError | None


# ---- deliveries -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """The subscription is active from `index` on, or is a standby."""

    active: bool
    segment_no: int
    index: int
    token: int
    group_epoch: int
    server_epoch: int
    paused: bool = False
    begun_by: ConsumerGroupOperation | None = None
    mode: ConsumerMode = ConsumerMode.EXCLUSIVE
    grant_ms: int = 0
    at_most_once: bool = False


@dataclass(frozen=True, slots=True)
class YieldAsked:
    """The active consumer is asked to yield the partition to another one; or that attempt is over, and it continues."""

    number: int
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Granted:
    """Grants for one subscription, with one body that has their messages, grant after grant.

    They are columns, because a frame has up to a thousand grants, most of one message.

    Attributes:
        tokens: The token of each grant. They follow one by one.
        counts: How many messages each grant has.
        attempts: The attempt of the first message of each grant.
        maybe_repeated: Whether another server may have delivered each grant before.
        offsets: Of all messages.
        body: The messages.
        server_epoch: The server epoch.
    """

    tokens: range
    counts: Sequence[int]
    attempts: Sequence[int]
    maybe_repeated: Sequence[bool]
    offsets: tuple[int, ...]
    body: bytes
    server_epoch: int

    @property
    def repeated_count(self) -> int:
        """How many grants are not the first attempt, or may have been delivered by another server before."""
        if True in self.maybe_repeated:
            return sum(map(lambda attempt, is_repeated: attempt > 1 or is_repeated, self.attempts, self.maybe_repeated))
        return len(self.attempts) - self.attempts.count(1)

    @property
    def runs(self) -> tuple[KeyGrant, ...]:
        """The grants, one by one."""
        offsets = iter(self.offsets)
        return tuple(
            KeyGrant(token, attempt, repeated, tuple(islice(offsets, count)))
            for token, count, attempt, repeated in zip(
                self.tokens, self.counts, self.attempts, self.maybe_repeated, strict=True
            )
        )


@dataclass(frozen=True, slots=True)
class AcksConfirmed:
    """All requests of the subscription with acknowledgements up to `number` are durable on every eligible member."""

    number: int


@dataclass(frozen=True, slots=True)
class TokensVoid:
    """These tokens do not count: the grants have ended, or were never those of this subscription."""

    tokens: tuple[int, ...]
    error: SeriatimError


@dataclass(frozen=True, slots=True)
class Paused:
    """The consumer group was paused or resumed. Delivered messages can still be acknowledged under the same token."""

    paused: bool


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches. The messages of the first batch below `from_index` were delivered before."""

    segment_no: int
    batches: tuple[Batch, ...]
    from_index: int
    maybe_repeated_below: int
    delivery_attempt: int
    server_epoch: int


@dataclass(frozen=True, slots=True)
class Skip:
    """[from_index, to_index) is not delivered, because the same messages come earlier in the order."""

    segment_no: int
    from_index: int
    to_index: int


@dataclass(frozen=True, slots=True)
class EndOfSegment:
    """All of the segment is acknowledged, and the consumer group's cursor is in the next one."""

    segment_no: int
    sealed_len: int
    next_segment_no: int
    next_server: str
    group_epoch: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A declared gap: the messages of the segment from `from_index` up to `to_index` are lost; 0: up to its end."""

    segment_no: int
    from_index: int
    reason: str
    to_index: int = 0


@dataclass(frozen=True, slots=True)
class Dropped:
    """Retention dropped the messages from an offset up to an index of this segment: `messages` (0: not known)."""

    from_offset: int
    segment_no: int
    to_index: int
    messages: int


@dataclass(frozen=True, slots=True)
class SubscriptionRefused:
    """This broker does not serve the consumer group; `server` serves its cursor segment, if that is known."""

    error: SeriatimError
    segment_no: int
    server: str


@dataclass(frozen=True, slots=True)
class Revoked:
    """The subscription ended, because this broker does not serve the segment any more."""

    error: SeriatimError


@dataclass(frozen=True, slots=True)
class AckConfirmed:
    """All below `index` is acknowledged, durably on every eligible member."""

    segment_no: int
    index: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a heartbeat of the stream; `unserved` names the subscriptions that may get nothing now."""

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
    | Granted
    | AcksConfirmed
    | TokensVoid
    | YieldAsked
)


@dataclass(frozen=True, slots=True)
class LogsListed:
    """The answer to `ListLogs`: partition, segment, and the index below which the log can be read."""

    request: int
    logs: tuple[tuple[PartitionId, int, int], ...]


@dataclass(frozen=True, slots=True)
class Led:
    """A partition whose open segment this member leads as master.

    Attributes:
        partition: The partition.
        chain: Its chain record.
        flushed: Every member has flushed all messages of the open segment below this index.
        size_bytes: Bytes of all batches of the open segment.
        acked: How far each consumer group has acknowledged, as this disk knows: name, group epoch, segment, index.
        oldest: The oldest message that is set aside, of each such consumer group: name, group epoch, segment of the
            cursor, offset.
        safe: What of it is durable on every eligible member, of the consumer groups that this member serves or has
            served.
        has_delayed: Whether the open segment has delayed messages, perhaps all of them fired.
    """

    partition: PartitionId
    chain: Chain
    flushed: int
    size_bytes: int
    acked: tuple[tuple[str, int, int, int], ...]
    oldest: tuple[tuple[str, int, int, int], ...] = ()
    safe: tuple[tuple[str, SafeCursor], ...] = ()
    has_delayed: bool = False


@dataclass(frozen=True, slots=True)
class LedListed:
    """The answer to `ListLed`, in ascending order of partitions."""

    request: int
    led: tuple[Led, ...]


@dataclass(frozen=True, slots=True)
class CursorsListed:
    """The answer to `ListCursors`: partition and consumer group, in ascending order."""

    request: int
    consumer_groups: tuple[tuple[PartitionId, str], ...]


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
    """[from_index, to_index) is skipped, because the same messages come earlier in the order.

    `checksum` is the value of the checksum chain at `to_index`.
    """

    segment_no: int
    from_index: int
    to_index: int
    checksum: int


@dataclass(frozen=True, slots=True)
class RangeSegmentEnd:
    """The segment is read to its end, with the length and checksum of the chain record."""

    segment_no: int
    sealed_len: int
    sealed_checksum: int


@dataclass(frozen=True, slots=True)
class RangeGap:
    """The messages of the segment from that index on are lost for good."""

    segment_no: int
    from_index: int
    reason: str


@dataclass(frozen=True, slots=True)
class RangeDropped:
    """Retention dropped the messages between the two places; `checksum` is the checksum chain's value at `until`."""

    start: Place
    until: Place
    checksum: int = 0


RangeEvent = RangeBatches | RangeSkip | RangeSegmentEnd | RangeGap | RangeDropped


@dataclass(frozen=True, slots=True)
class RangeRead:
    """The answer to `ReadRange`: the events in their order, and the place at which to continue.

    `is_done`: the range is read to its end. `brokers`: this member lacks the next messages, and these brokers have
    them.
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

    `readable_below`: the index below which this member can read the segment; None if it is not complete here.
    `is_master`: this member is the master of that segment, so it knows the commit.
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
class EndMemberRun:
    """This member run must end now, without a handoff: it is certified dead, or its slot has another disk.

    It is the only effect of its step, and later steps have none.
    """

    error: SeriatimError


@dataclass(frozen=True, slots=True)
class Note:
    """An event for the log, and perhaps for a metric: one of a closed set of names, with fields."""

    name: str
    partition: PartitionId
    fields: tuple[tuple[str, object], ...]


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """The answer to `CarryOut`: the offset of the first row, if it is known, and the number of rows.

    `lost_rows`: how many of the rows are not stored because their staged batches were declared lost, as far as this
    master saw it. `is_crowded`: the partition remembers more writers than it should, so new ones must wait.
    """

    request: int
    first_offset: int | None
    rows: int
    lost_rows: int
    error: SeriatimError | None
    is_crowded: bool = False


@dataclass(frozen=True, slots=True)
class FetchStaged:
    """Get a staged batch from this disk or from another member; answered by `StagedFetched`.

    `only_here`: look on this disk only, and answer at once.
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
    | ReadKeys
    | ReadRows
    | KeepMessage
    | ReadDeadLetter
    | ForwardBatches
    | ReadDue
    | ReadPending
    | ReadVolley
    | FindDelayed
    | FireVolleys
    | DelayedCancelled
    | FiringListed
    | CompleteListed
    | ReadFired
    | DelayedFiltered
    | PendingFound
    | ReadChain
    | WriteChain
    | ReadCertificate
    | ReadCursor
    | WriteCursor
    | AppendAccepted
    | AppendRefused
    | Resolved
    | ConsumerResolved
    | ConsumerGroupDescribed
    | ConsumerGroupOperated
    | KeysListed
    | KeysOperated
    | LogsListed
    | LedListed
    | CursorsListed
    | CopiesTold
    | RangeRead
    | PartitionSurveyed
    | CarriedOut
    | FetchStaged
    | ReadWriter
    | ReadOwner
    | Deliver
    | EndMemberRun
    | Note
)
