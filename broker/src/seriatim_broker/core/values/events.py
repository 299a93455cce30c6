"""The events that can happen to a broker's core. `BrokerCore.step(event, now)` handles each."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple

from seriatim_api.batch import BatchHeader
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_api.publications import StagedBatches

from .chain import Chain
from .delayed_messages import DelayedEvent
from .delays import DELAYS_DEFAULT, KnownDelayLimits
from .deleted import DeletedPartitions
from .keyed import (
    NOTHING_WANTED,
    RETRY_DEFAULT,
    ConsumerGroupSettings,
    ConsumerMode,
    DeadLetterRow,
    KeyColumn,
    KeyOperation,
    KeyPhase,
    RetryPolicy,
    SeenKey,
    WantedSettings,
)
from .log import NO_HAND_OVER, Batch, HandOverId
from .messages import FORMS, Message
from .owners import OwnerRead
from .placement import CHAIN_WIDTH_DEFAULT, BrokerGroupSpec
from .positions import Place
from .segment import Start
from .writers import WriterRecord


class Moment(NamedTuple):
    """The time of an event: the monotonic clock for durations, the wall clock for append time and for humans."""

    mono_us: int
    wall_ms: int


class WriteOutcome(enum.Enum):
    """How a transaction at the coordinator ended.

    CONFLICT: a comparison failed, and nothing was written. UNKNOWN: no answer came, and the write may still be carried
    out. REFUSED: the coordinator answered that it does not take this write (no space, no right, too large), and will
    refuse the next one too. Such a write may have been kept, because etcd refuses the write that fills its quota, and
    keeps it.
    """

    DONE = "done"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"
    REFUSED = "refused"


class AckLevel(enum.IntEnum):
    """When the reply to a batch leaves. The numbers are those of the wire.

    Only with the last two does the reply promise that every member of the segment has the batch.
    """

    NONE = 1
    MASTER_RECEIVED = 2
    MASTER_FLUSHED = 3
    REPLICATED = 4
    REPLICATED_FLUSHED = 5


class StartPosition(enum.IntEnum):
    """Where a consumer group without a cursor begins. The numbers are those of the wire."""

    EARLIEST = 1
    LATEST = 2


class ConsumerGroupOperation(enum.IntEnum):
    """An operation on a consumer group's cursor. The numbers are those of the wire."""

    REWIND = 1
    SKIP = 2
    PAUSE = 3
    RESUME = 4
    CONFIGURE = 5

    @property
    def moves(self) -> bool:
        """Whether the consumer group continues at another place, in a new group epoch."""
        return self in (ConsumerGroupOperation.REWIND, ConsumerGroupOperation.SKIP)


REQUESTS_KEPT = 8
"""The number of operations whose ids a cursor record keeps. If a request is repeated after more operations than that,
it counts as a new one. It is then refused if it names a group epoch that has ended."""


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """The cursor of a consumer group as the coordinator has it.

    Attributes:
        segment_no: The cursor segment.
        group_epoch: The group epoch.
        start_index: The index at which the consumer group began in the segment.
        topic: The name of the topic.
        deleted: The consumer group was deleted. Its acknowledgements are still on disks, under its group epoch, so a
            consumer group of the same name begins in a higher one. A read also gives such a record, with revision 0, if
            there is no record, and records of deleted consumer groups were removed before. Then `group_epoch` is the
            highest group epoch that this consumer group may have had.
        deleted_at_ms: When it was deleted.
        paused: The consumer group gets nothing until it is resumed.
        begun_by: The rewind or skip that began the group epoch; None if nothing of that kind did.
        requests: Ids of the last operations that changed this record, oldest first.
        dropped_from: Retention dropped the messages from this offset up to the cursor, and it is not known whether a
            consumer was notified; 0: there are no such messages.
        dropped_position: The position of that offset; 0: not known, unless that is 1:0.
        external: The consumer group has no consumers and no server. It reads ranges, and reported this place at
            `reported_at_ms`.
        reported_at_ms: When an external group reported last. In broadcast mode: when its consumer was here last, up to
            a day before.
        mode: How its consumers share the messages.
        retry: Not in exclusive mode: what happens to a message on which a consumer fails.
        term_base: Tokens are made of this plus the server epoch, so that those of a key always grow.
        oldest: The oldest offset that the consumer group has set aside; 0: none.
        handoff: What the server of the segment before handed over. After a rebuild it is not known.
        at_most_once: Messages are acknowledged when they are granted, so a failure loses them and nothing comes twice.
        repeated_to: The consumer group went back because its state was lost. In segments up to this one, each message
            may have been delivered before. 0: in none.
        is_spread: In exclusive mode: the partitions of the topic are spread over the consumers.
        repeated_index: The same for messages below this index of the segment after `repeated_to`: they may have been
            delivered before the consumer group got another mode.
    """

    segment_no: int
    group_epoch: int
    start_index: int
    topic: str
    deleted: bool = False
    deleted_at_ms: int = 0
    paused: bool = False
    begun_by: ConsumerGroupOperation | None = None
    requests: tuple[bytes, ...] = ()
    dropped_from: int = 0
    dropped_position: int = 0
    external: bool = False
    reported_at_ms: int = 0
    mode: ConsumerMode = ConsumerMode.EXCLUSIVE
    retry: RetryPolicy = RETRY_DEFAULT
    term_base: int = 0
    oldest: int = 0
    handoff: HandOverId = NO_HAND_OVER
    at_most_once: bool = False
    repeated_to: int = 0
    is_spread: bool = True
    repeated_index: int = 0

    def repeated_below(self, segment_no: int, index: int) -> CursorRecord:
        """This record, if each message below that place may have been delivered before."""
        if (segment_no, index) <= (self.repeated_to + 1, self.repeated_index):
            return self
        return replace(self, repeated_to=segment_no - 1, repeated_index=index)

    @property
    def settings(self) -> ConsumerGroupSettings:
        """How the consumer group is served."""
        return ConsumerGroupSettings(self.mode, self.retry, self.at_most_once, self.is_spread)

    def with_settings(self, settings: ConsumerGroupSettings) -> CursorRecord:
        """This record with these settings. A base of 0 says that no tokens of keys were given."""
        base = max(self.term_base, 1) if self.mode.is_keyed and not settings.mode.is_keyed else self.term_base
        return replace(
            self,
            mode=settings.mode,
            retry=settings.retry,
            at_most_once=settings.at_most_once,
            is_spread=settings.is_spread,
            term_base=base,
        )

    def moved_to(self, segment_no: int, index: int = 0, *, new_epoch: bool = False) -> CursorRecord:
        """This record with another place, in the same group epoch or in the next one."""
        # Rule `pause-stays` (PAUSE): `paused` stays as it is. Without it:
        #   1. An administrator pauses consumer group g, whose cursor is in segment 2.
        #   2. All of segment 2 is acknowledged, so g crosses to segment 3.
        #   3. The server of segment 3 delivers to g.
        moved = replace(self, segment_no=segment_no, start_index=index, handoff=NO_HAND_OVER, oldest=0)
        return moved if not new_epoch else replace(moved, group_epoch=self.group_epoch + 1, begun_by=None)

    def after_term(self, server_epoch: int, next_server_epoch: int) -> CursorRecord:
        """This record with a term base under which each token of the next server is higher than those of the last one.

        Rule `terms-grow` (J3): the server epoch of the next segment may be lower than that of the last one. Without it:
          1. Segment 1 had its server changed at chain epoch 9, after segment 2 was opened at chain epoch 5.
          2. In segment 1, k:7 was granted under a token of term 9. In segment 2 it is granted again, under term 5.
          3. The application stores the highest token of each key, and refuses the second one.
        """
        if not self.mode.is_keyed and not self.term_base:
            return self
        return replace(self, term_base=base_after(self.term_base, server_epoch, next_server_epoch))

    def next_term_base(self, server_epoch: int, next_server_epoch: int = 0) -> int:
        """The term base of a consumer group that is made again under the name of this deleted one.

        Args:
            server_epoch: No server epoch of its segment was higher until the group was deleted.
            next_server_epoch: That of the segment in which the new one begins, or a lower one.

        Rule `begins-above` (J3): tokens of the new consumer group are above all of the deleted one. Without it:
          1. A key-ordered consumer group is in segment 9, with tokens of term 40. It is deleted, and made again.
          2. It begins in segment 1, and gets k:5 under a token of term 3. The application stores the highest token of
             each key, so it refuses all messages of k.
          3. In segment 9 it comes to term 40 again. A handler that was slow since before the deletion acknowledges
             under a token that another handler has now.
        """
        is_told = self.mode.is_keyed or self.term_base
        return base_after(self.term_base, server_epoch, next_server_epoch) if is_told else 0


def base_after(term_base: int, server_epoch: int, next_server_epoch: int) -> int:
    """The term base under which the next term is one more than the last one. It is 0 only if no tokens were given.

    Rule `terms-grow-by-one` (J3): the base becomes lower if the server epoch becomes higher. Without it:
      1. A consumer group is rewound or made again. Each time, its base grows by a chain epoch.
      2. The chain epoch grows too. So the term grows with the square of the time, and no number has room for it.
    """
    return max(term_base + server_epoch + 1 - next_server_epoch, 1)


# ---- time, links, disk ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: timers may be due."""


@dataclass(frozen=True, slots=True)
class LinkUp:
    """Both streams to a broker are open. `session` is larger than that of each earlier link of this broker.

    `forms`: the forms that the other broker reads, as in `messages.FORMS`.
    """

    broker: str
    member: MemberId
    member_run: int
    session: int
    forms: int = FORMS


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A stream of the link broke. `refused`: no process listens there any more, so it has probably ended.

    Also reported, with session 0, if a connection is refused while the link is down.
    """

    broker: str
    session: int
    refused: bool


@dataclass(frozen=True, slots=True)
class Received:
    """A message came on a link. The core ignores it if its session is not the link's present one."""

    broker: str
    session: int
    message: Message


@dataclass(frozen=True, slots=True)
class Persisted:
    """All `Persist` effects up to and including this token are durable."""

    token: int


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """This broker's disk has reached its reserve, or has room again. Reported when this changes."""

    is_full: bool


@dataclass(frozen=True, slots=True)
class LogRead:
    """The answer to `ReadLog`; `batches` is empty if the disk has none of them, None if the read failed."""

    serial: int
    batches: tuple[Batch, ...] | None
    is_damaged: bool = False  # a checksum did not match


@dataclass(frozen=True, slots=True)
class KeysRead:
    """The answer to `ReadKeys`; `columns` is empty if the disk has none of the batches, None if the read failed."""

    serial: int
    columns: tuple[KeyColumn, ...] | None
    is_damaged: bool = False  # a checksum did not match


@dataclass(frozen=True, slots=True)
class RowsRead:
    """The answer to `ReadRows`: a body with the first of these messages, in that order.

    Attributes:
        serial: That of the read.
        body: The messages; None if the read failed.
        is_damaged: It failed because of damage.
        unreadable: Offsets of messages whose bodies no reader can take apart, although the disk has what was sent.
        count: How many messages the body has; None: all.
    """

    serial: int
    body: bytes | None
    is_damaged: bool = False
    unreadable: tuple[int, ...] = ()
    count: int | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterRead:
    """The answer to `ReadDeadLetter`; `row` is None if the read failed."""

    serial: int
    row: DeadLetterRow | None
    is_damaged: bool = False


@dataclass(frozen=True, slots=True)
class ForwardsDone:
    """The answer to `ForwardBatches`: the first `stored_count` batches are stored, as safely as acknowledged messages.

    `error`: why the next one is not known to be stored; None if there is none.
    """

    partition: PartitionId
    consumer_group: str
    serial: int
    stored_count: int
    error: SeriatimError | None


# ---- the coordinator ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainRead:
    """The answer to `ReadChain`: linearizable, with the key's mod revision. `chain` is None if there is no record.

    `failed`: the coordinator did not answer. `deleted`: there is no record because the partition was deleted. This is
    found out only if `ReadChain.known` was set.
    """

    partition: PartitionId
    chain: Chain | None
    revision: int
    failed: bool = False
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class ChainWritten:
    """The answer to `WriteChain`; if DONE, `revision` is the new mod revision of the key."""

    partition: PartitionId
    serial: int
    outcome: WriteOutcome
    revision: int


@dataclass(frozen=True, slots=True)
class CertificateRead:
    """The answer to `ReadCertificate`. `exists` None: the coordinator did not answer."""

    partition: PartitionId
    member_run: RunId
    exists: bool | None


@dataclass(frozen=True, slots=True)
class CertificateSeen:
    """A watch reported a death certificate. It is a hint: transactions compare the certificate themselves."""

    member_run: RunId


@dataclass(frozen=True, slots=True)
class CursorRead:
    """The answer to `ReadCursor`. `record` is None if there is no cursor. `failed`: the coordinator did not answer.

    `known_revision`: the revision of the newest cursor that this broker knew when the read began.
    """

    partition: PartitionId
    consumer_group: str
    record: CursorRecord | None
    revision: int
    failed: bool = False
    known_revision: int = 0


@dataclass(frozen=True, slots=True)
class CursorWritten:
    """The answer to `WriteCursor`."""

    partition: PartitionId
    consumer_group: str
    serial: int
    outcome: WriteOutcome
    revision: int


@dataclass(frozen=True, slots=True)
class WritesRefused:
    """The coordinator refuses all writes from now on (`refused`), or takes writes again."""

    refused: bool


@dataclass(frozen=True, slots=True)
class CompareChains:
    """The coordinator was away, or its revision fell: compare all chains with what this broker knows."""


@dataclass(frozen=True, slots=True)
class CoordinatorRebuilt:
    """The coordinator was rebuilt since this broker looked last.

    Revisions may be lower than before, and cursors may be in other places.
    """


@dataclass(frozen=True, slots=True)
class OwnRecordSeen:
    """This broker's member record was read.

    `problem`: what is wrong with the record; empty if it is as this broker wrote it.
    """

    problem: str


@dataclass(frozen=True, slots=True)
class DirectoryChanged:
    """The directory of brokers and broker groups was read or has changed.

    Attributes:
        broker_groups: The admitted members of each broker group, by slot.
        member_runs: The member runs that were registered last: one disk for each broker name, admitted or not.
        specs: Intent and weight of broker groups.
        forms: The forms that all registered brokers read, as in `messages.FORMS`.
    """

    broker_groups: tuple[tuple[str, tuple[MemberId, ...]], ...]
    member_runs: tuple[tuple[MemberId, int], ...] = ()
    specs: tuple[tuple[str, BrokerGroupSpec], ...] = ()
    forms: int = 0


# ---- clients --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Append:
    """A batch from a producer. The frame layer has checked lengths, the broker's limits and the body's CRC.

    The reply has the same number `request`. `refuse`: the broker has no room for the batch. So the core answers with
    that error, and refuses the rest of the producer run with the same error. `is_forward`: a broker sends it, as a
    forwarder (`consumers.keyed.dead_letters`). `refuse_new`: the batch is over a limit of its topic (`values.sizes`).
    The core answers with that error too, unless the batch was stored before. `delays`: the limits of its topic, if it
    is marked as delayed.
    """

    request: int
    partition: PartitionId
    header: BatchHeader
    body: bytes
    producer_run: int
    starts_run: bool
    level: int
    refuse: SeriatimError | None = None
    is_forward: bool = False
    refuse_new: SeriatimError | None = None
    delays: KnownDelayLimits = DELAYS_DEFAULT


@dataclass(frozen=True, slots=True)
class ResolveProducer:
    """A client asks where to append; `Resolved` answers.

    With `failed_segment` it is a complaint. The answer leaves when a later segment is open, or at the deadline. If the
    complaint does not count yet, the answer leaves at once, with the same master (`routes.complain`). With
    `silent_segment` it is a suspicion: the broker probes the master, and answers when the master was heard, or when a
    later segment is open, or at the deadline.
    """

    request: int
    partition: PartitionId
    failed_segment: int | None
    deadline_us: int
    silent_segment: int | None = None


@dataclass(frozen=True, slots=True)
class ResolveConsumer:
    """A consumer asks which member serves the cursor segment of its consumer group; `ConsumerResolved` answers.

    With `failed_server_epoch` it is a complaint about the server of that server epoch.
    """

    request: int
    partition: PartitionId
    consumer_group: str
    failed_server_epoch: int | None
    start: StartPosition
    deadline_us: int
    mode: ConsumerMode = ConsumerMode.EXCLUSIVE


@dataclass(frozen=True, slots=True)
class CreatePartition:
    """The controller makes a partition. `Resolved` answers.

    The first broker group of the send chain that can prepare gets the first segment. Then the chain record is written.
    """

    request: int
    partition: PartitionId
    topic: str
    number: int
    flush: bool
    send_chain: tuple[str, ...]
    width: int = CHAIN_WIDTH_DEFAULT


@dataclass(frozen=True, slots=True)
class DropPartitionData:
    """The partition was deleted, as its tombstone says: drop its data and forget it."""

    partition: PartitionId


@dataclass(frozen=True, slots=True)
class DropDeleted:
    """These partitions were deleted, as the coordinator's ranges say: drop what this disk has of them."""

    deleted: DeletedPartitions


@dataclass(frozen=True, slots=True)
class PlanSwitch:
    """Move the open segment while all members are alive: to the next complete broker group, or to the named one.

    `target_master`: the next master; empty: the member whose turn it is. If the target is the segment's own broker
    group, only the master changes.
    """

    request: int
    partition: PartitionId
    target_broker_group: str = ""
    target_master: str = ""


@dataclass(frozen=True, slots=True)
class ListLogs:
    """List at most `limit` logs on this disk, in the order of partition and segment; `LogsListed` answers.

    The list begins after `after_segment` of `after_partition`.
    """

    request: int
    after_partition: PartitionId
    after_segment: int
    limit: int


@dataclass(frozen=True, slots=True)
class ListCursors:
    """List consumer groups with acknowledgements on this disk, in group epochs up to `epoch_max`.

    The list begins after `after` (partition, consumer group) and has at most `limit` entries. `CursorsListed` answers.
    """

    request: int
    after: tuple[int, str]
    epoch_max: int
    limit: int


@dataclass(frozen=True, slots=True)
class ForgetConsumerGroup:
    """The coordinator has no cursor of this consumer group: forget its acknowledgements up to group epoch `epoch_max`.

    If the consumer group is made again, it begins in a higher group epoch.
    """

    partition: PartitionId
    consumer_group: str
    epoch_max: int


@dataclass(frozen=True, slots=True)
class ListLed:
    """List at most `limit` partitions above `after` whose open segment this member leads; `LedListed` answers."""

    request: int
    after: PartitionId
    limit: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Retention decided which messages may be dropped; see `core.control.retention`.

    `epoch`: the chain epoch of the record from which it decided.

    `cursors_revision`: the coordinator's revision at which the cursors of the partition were read.
    """

    partition: PartitionId
    epoch: int
    no: int
    start: Start | None
    first_kept: int
    cursors_revision: int


@dataclass(frozen=True, slots=True)
class PassConsumerGroup:
    """The consumer group's cursor is in a stub or a LOST segment: the server of the segment must move it on."""

    partition: PartitionId
    segment_no: int
    consumer_group: str


@dataclass(frozen=True, slots=True)
class FoundDamage:
    """A log could not be read, because a checksum on the disk does not match."""

    partition: PartitionId
    segment_no: int


@dataclass(frozen=True, slots=True)
class DeclareGap:
    """An administrator says that all disks of a segment are lost for good. Consumer groups continue in the next."""

    request: int
    partition: PartitionId
    segment_no: int


@dataclass(frozen=True, slots=True)
class SwitchAwayFrom:
    """The controller found that no member of the broker group of this segment is alive.

    Begin a failover, if the segment is still the open one.
    """

    partition: PartitionId
    segment_no: int


@dataclass(frozen=True, slots=True)
class Heal:
    """The controller decided that `member`, this one or another, should copy a sealed segment.

    The segment has too few copies, or will have too few when a broker leaves. `replaces`: the dead member whose place
    in the record the new copy takes; None: no member is replaced.
    """

    partition: PartitionId
    segment_no: int
    member: MemberId
    replaces: MemberId | None


@dataclass(frozen=True, slots=True)
class MoveOpenSegment:
    """The controller decided that the open segment should leave its group, or lacks members; its master moves it."""

    partition: PartitionId
    segment_no: int
    master: MemberId


@dataclass(frozen=True, slots=True)
class Release:
    """The controller decided that members should leave the records of sealed segments; their server `by` does it."""

    partition: PartitionId
    segment_nos: tuple[int, ...]
    by: MemberId
    leaving: tuple[MemberId, ...]


@dataclass(frozen=True, slots=True)
class AskCopies:
    """Ask a member what it has of these segments. `CopiesTold` answers, or nothing does: the caller has a deadline."""

    request: int
    member: MemberId
    without: MemberId
    segments: tuple[tuple[PartitionId, int], ...]


# ---- consumers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConsumerJoin:
    """A consumer asks for a partition. (stream, subscription) names it from now on.

    `in_flight_max`: not in exclusive mode, maximum number of messages that are granted to it and not ended. `run_max`:
    maximum number of messages of a key that are in one grant; 0: no limit of its own. `on_demand`: nothing is granted
    to it before the first `ConsumerDemand`. `spread_over`: it reads all partitions of the topic, of which it knows this
    many; 0: it does not, or does not know of spreading. `number`: the partition's number in the topic, if `spread_over`
    is not 0. `was_standby`: when it left the server before, another consumer was active.
    """

    stream: int
    subscription: int
    partition: PartitionId
    consumer_group: str
    consumer: str
    start: StartPosition
    was_active: bool
    mode: ConsumerMode = ConsumerMode.EXCLUSIVE
    in_flight_max: int = 1_000
    run_max: int = 0
    on_demand: bool = False
    spread_over: int = 0
    number: int = 0
    was_standby: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerLeave:
    """The consumer leaves the partition."""

    stream: int
    subscription: int


@dataclass(frozen=True, slots=True)
class ConsumerAck:
    """The consumer acknowledges all up to and including `offset`, under the token of its grant."""

    stream: int
    subscription: int
    token: int
    offset: int


@dataclass(frozen=True, slots=True)
class ConsumerSpreadOver:
    """The topic has more partitions, and the consumer reads all of them: as `ConsumerJoin.spread_over`."""

    stream: int
    subscription: int
    partitions: int


@dataclass(frozen=True, slots=True)
class ConsumerYielded:
    """The consumer answers a `YieldAsked`: under this grant its application gets nothing from `offset` on."""

    stream: int
    subscription: int
    token: int
    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class ConsumerAcks:
    """The consumer acknowledges single messages, each by the token of its grant and its offset.

    `number` names this request in `AcksConfirmed`. `started`: tokens of grants. In each of them the application has
    begun to work on the message that is next when `tokens` and `offsets` are acknowledged.
    """

    stream: int
    subscription: int
    number: int
    tokens: tuple[int, ...]
    offsets: tuple[int, ...]
    started: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerNack:
    """The consumer failed on a message: its grant ends, and the message comes again before later ones of its key.

    `delay_ms` None: as the policy says. `is_last`: do with it what the policy says of exhausted messages.
    """

    stream: int
    subscription: int
    token: int
    offset: int
    delay_ms: int | None = None
    reason: str = ""
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerDemand:
    """A consumer that joined `on_demand` asks for this many messages, in place of what is left of earlier demands.

    `run_max`: as in `ConsumerJoin`, from now on; 0: as it was.
    """

    stream: int
    subscription: int
    messages: int
    run_max: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerExtend:
    """The consumer moves the deadlines of grants to `grant_ms` from now. 0: it gives them back.

    `is_unseen`: the application got none of the messages that it gives back.
    """

    stream: int
    subscription: int
    tokens: tuple[int, ...]
    grant_ms: int
    is_unseen: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerCredit:
    """The consumer has room for this many more bytes of bodies on the stream."""

    stream: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ConsumerPing:
    """A heartbeat of the consumer on a stream; `Pong` answers.

    `session_ms`: how long the consumer keeps a grant without an answered heartbeat.
    """

    stream: int
    number: int
    session_ms: int


@dataclass(frozen=True, slots=True)
class ConsumerGone:
    """The stream ended, and with it all its subscriptions."""

    stream: int


@dataclass(frozen=True, slots=True)
class DescribeConsumerGroup:
    """Ask this broker, as the server of the cursor segment, what it knows of the consumer group."""

    request: int
    partition: PartitionId
    consumer_group: str


@dataclass(frozen=True, slots=True)
class OperateConsumerGroup:
    """An administrator rewinds, skips, pauses, resumes or configures a consumer group that this broker serves.

    `ConsumerGroupOperated` answers.

    Attributes:
        request: Names the answer.
        operation_id: An id of the caller. A repeated request has the same one, and is carried out once.
        group_epoch: The group epoch that the caller knows; 0: any.
        segment_no, index: The place to which a rewind or skip goes.
        known_len: If that segment is the open one: the index below which it can be read, as its master said. It never
            falls, because a seal keeps all committed messages.
        deadline_us: When the caller is told that the outcome is not known.
        wanted: Of CONFIGURE: the new settings.
        drop_aside: Messages that were set aside, and parked keys, are dropped with the group epoch that ends.
        epoch: The chain epoch of the record that was read for the caller. An older one decides nothing.
    """

    request: int
    partition: PartitionId
    consumer_group: str
    operation: ConsumerGroupOperation
    operation_id: bytes
    group_epoch: int
    segment_no: int
    index: int
    known_len: int
    deadline_us: int
    wanted: WantedSettings = NOTHING_WANTED
    drop_aside: bool = False
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ListKeys:
    """An administrator asks which keys of a consumer group wait; `KeysListed` answers.

    Attributes:
        request: Names the answer.
        phases: Only keys in these states; empty: all.
        after: Only keys whose names follow this one.
        limit: Maximum number of keys.
        name: Only the key of this name; None: all.
        deadline_us: When the caller is told that the broker could not answer.
    """

    request: int
    partition: PartitionId
    consumer_group: str
    phases: tuple[KeyPhase, ...]
    after: bytes
    limit: int
    name: bytes | None
    deadline_us: int


@dataclass(frozen=True, slots=True)
class OperateKeys:
    """An administrator releases keys of a consumer group, or passes over their first messages; `KeysOperated` answers.

    Attributes:
        request: Names the answer.
        keys: The keys as the administrator saw them.
        deadline_us: When the caller is told that the outcome is not known.
    """

    request: int
    partition: PartitionId
    consumer_group: str
    operation: KeyOperation
    keys: tuple[SeenKey, ...]
    deadline_us: int


# ---- range reads ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SurveyPartition:
    """Ask what this broker knows of a partition's chain, at this chain epoch or a later one, and of one segment.

    `PartitionSurveyed` answers. `segment_no` 0 means the open segment.
    """

    request: int
    partition: PartitionId
    epoch: int
    segment_no: int
    deadline_us: int


@dataclass(frozen=True, slots=True)
class ReadRange:
    """One step of reading [start, until): at most `max_bytes`, but at least one batch. `RangeRead` answers.

    `raw`: repeats after unsettled segments, and batches for one consumer group, are not skipped. `staged`: the read is
    also allowed after an unsettled segment, because staged batches are found by their place and have no order.
    `epoch`: the newest chain epoch that the reader has seen, 0 if it names none. The range is in that record.
    """

    request: int
    partition: PartitionId
    start: Place
    until: Place
    max_bytes: int
    raw: bool
    deadline_us: int
    staged: bool = False
    epoch: int = 0


# ---- publications ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CarryOut:
    """Append the rows of a publication that was read as DECIDED. `CarriedOut` answers when they are committed.

    `manifest`: the id of its manifest. `batches`: the staged batches that it names for this partition, in order.
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
    """The answer to `FetchStaged`.

    `batch` is None if no member that has it answered. `is_gone`: no member has the batch any more, for example because
    its segment was declared lost. `is_here`: the batch is on this member's disk.
    """

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
    | KeysRead
    | RowsRead
    | DeadLetterRead
    | ForwardsDone
    | DelayedEvent
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
    | PassConsumerGroup
    | ListLogs
    | ListCursors
    | ForgetConsumerGroup
    | FoundDamage
    | SwitchAwayFrom
    | Heal
    | MoveOpenSegment
    | Release
    | AskCopies
    | ConsumerJoin
    | ConsumerLeave
    | ConsumerAck
    | ConsumerAcks
    | ConsumerNack
    | ConsumerDemand
    | ConsumerExtend
    | ConsumerSpreadOver
    | ConsumerYielded
    | ConsumerCredit
    | ConsumerPing
    | ConsumerGone
    | DescribeConsumerGroup
    | SurveyPartition
    | ReadRange
    | OperateConsumerGroup
    | ListKeys
    | OperateKeys
    | CarryOut
    | StagedFetched
    | WriterRead
    | OwnerRead
)
