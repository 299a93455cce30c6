"""The plain values that users get: receipts, messages, and what the cluster says of itself."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from seriatim_api.ids import format_offset

OutcomeName = Literal["ok", "failed", "unknown"]


class AckLevel(enum.IntEnum):
    """When a broker answers a send. The last two carry the promise; the others are faster and may lose."""

    NONE = 1
    MASTER_RECEIVED = 2
    MASTER_FLUSHED = 3
    REPLICATED = 4
    REPLICATED_FLUSHED = 5


class Receipt(NamedTuple):
    """Where a message stands.

    Attributes:
        partition: Number in the topic.
        offset: 63 bits; orders like an integer. Readers find the message at this place if `is_final`. If not, they may
            find it at an earlier one, and then they find nothing at this one: an attempt of the message whose end was
            unknown may stand in a segment that was opened over while all its members were away, and readers get that
            attempt once one of the members is back. Order and the number of deliveries are not touched.
        timestamp_ms: The broker's append time; 0 if the answer was to a repeat.
        is_final: Whether `offset` is known to be the place at which readers find the message. Always False with an ack
            level below `REPLICATED`. Brokers of 0.2.0 and older do not say it; then it is True only for messages that
            were sent once.
    """

    partition: int
    offset: int
    timestamp_ms: int
    is_final: bool = False

    def __str__(self) -> str:
        return f"{self.partition}/{format_offset(self.offset)}"


class Part(NamedTuple):
    """What became of some messages of one `send_many` or `send_table`: consecutive ones of one partition.

    Attributes:
        partition: Number in the topic.
        positions: Their positions in the call, in order.
        outcome: ok, failed or unknown.
        offset: Of the first; the others follow one by one. 0 unless ok.
        timestamp_ms: The broker's append time.
        error: Why, unless ok.
        is_final: Whether `offset` is known to be the place at which readers find the message; see `Receipt`.
    """

    partition: int
    positions: range | tuple[int, ...]
    outcome: OutcomeName
    offset: int
    timestamp_ms: int
    error: Exception | None
    is_final: bool = False


class Message(NamedTuple):
    """A message as a consumer gets it.

    Attributes:
        topic: Its topic.
        partition: Number in the topic.
        offset: Where it stands.
        key: None if it was sent without.
        value: The payload.
        timestamp_ms: Given by the sender, or the time of the send.
        headers: Empty if there are none.
        tag: None if it has none.
        attempt: How often the server has given this message to a consumer of the group, from 1. Another server, and
            this one after a restart, begins at 1 again; what was given before then is flagged by `maybe_repeated`.
        maybe_repeated: Another server may have delivered it before.
        grant: Of the consumer, for `ack`.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    timestamp_ms: int
    headers: Mapping[str, bytes]
    tag: str | None
    attempt: int
    maybe_repeated: bool
    grant: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A place on a broker's disk that does not hold what was written: the read from `index` on failed."""

    broker: str
    partition_id: int
    segment: int
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """What one step of a scrub read, in bytes and segments, and what it found."""

    read_bytes: int
    read_segments: int
    damages: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class QuarantinedMessage:
    """A message that a broker keeps above the length that was decided for its segment.

    It was probably acknowledged, and new consumer groups do not get it. `index` is its place in the segment, which
    ends at `sealed_len` for everybody else. `value` and `key` are as they were sent.
    """

    broker: str
    partition_id: int
    segment: int
    sealed_len: int
    index: int
    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that will not be delivered: declared lost, or dropped by retention.

    Attributes:
        topic: The topic.
        partition: Number in the topic.
        offset: The first that is missing.
        reason: Why, for people.
        end_offset: The first behind the gap.
        messages: At most so many are missing (repeats, which are not delivered anyway, count too); None if it is not
            known.
    """

    topic: str
    partition: int
    offset: int
    reason: str
    end_offset: int = 0
    messages: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    """A place in a partition.

    Attributes:
        topic: Name of the topic.
        incarnation: Of the topic: another one of the same name has other offsets.
        partition: Number in the topic.
        partition_id: Its id in the cluster.
        offset: The place: of the next message at or behind it.
        position: Messages before it since the partition was made.
        bytes_before: Bytes of their batches; None: not known.
        blocked: A segment is not settled yet, and what lies behind it has no place in the order: the end is the
            beginning of that segment, until a member of it is back.
        found: Asked for a time: whether there is a message at or after it. If not, `offset` is the end.
    """

    topic: str
    incarnation: str
    partition: int
    partition_id: int
    offset: int
    position: int
    bytes_before: int | None
    blocked: bool
    found: bool


@dataclass(frozen=True, slots=True)
class RetainedRange:
    """What is kept of a partition: from its first message to its end.

    Attributes:
        topic: Name of the topic.
        partition: Number in the topic.
        offset: Of the first message that is kept, or of the next one if there is none.
        messages: From there to the end; repeats that readers skip count too.
        size_bytes: Of their batches on one disk; None: not known.
        since_ms: When a broker took the first one, in ms since 1970; None: there is none, or it is not known.
    """

    topic: str
    partition: int
    offset: int
    messages: int
    size_bytes: int | None
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class RangePiece:
    """Offsets of [start, end), all in one segment.

    Attributes:
        start: The first offset.
        end: The first one behind.
        rows: Messages, repeats that readers skip included.
        size_bytes: Of their batches; None: no broker that has them answered, and the piece is not cut.
        brokers: Who has them, by name, as the chain record says.
        addresses: Of those brokers.
    """

    start: int
    end: int
    rows: int
    size_bytes: int | None
    brokers: tuple[str, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets of [start, end) whose messages are gone: `lost` with their disks, or `dropped` by retention."""

    topic: str
    partition: int
    start: int
    end: int
    reason: Literal["lost", "dropped"]

    def __str__(self) -> str:
        what = "declared lost" if self.reason == "lost" else "dropped by retention"
        where = f"{format_offset(self.start)} to {format_offset(self.end)}"
        return f"messages {where} of {self.topic}/{self.partition} were {what}"


@dataclass(frozen=True, slots=True)
class RangePlan:
    """What lies in a range of a partition: pieces in their order, and what is gone between them."""

    topic: str
    incarnation: str
    partition: int
    start: int
    end: int
    pieces: tuple[RangePiece, ...]
    losses: tuple[LostRange, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition begins (`active`) or ceases to be delivered to this consumer, from `offset` on."""

    topic: str
    partition: int
    active: bool
    offset: int


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of a topic.

    Retention drops the oldest messages of a partition. A message is kept at least as long as the settings say; brokers
    look once a minute, and may drop it some minutes later. Consumers whose group has not read a dropped message are
    told (`Gap`).

    Attributes:
        flush: Whether an acknowledgement waits for the flush to disk on every member.
        message_size_bytes_max: Largest message, in bytes; 0: the cluster's default.
        batch_size_bytes_max: Largest batch, in bytes; 0: the cluster's default.
        retention_ms: Messages older than so many ms are dropped; 0: they stay, however old they are. At least 1,000.
            None when a topic is made: three days, or no limit if `retention_bytes` is given. A topic that was read from
            the cluster always has a number.
        chain_width: How many broker groups a partition's send chain names; 0: the cluster's default.
        retention_bytes: The oldest messages of a partition above so many bytes (on one disk) are dropped; 0: no limit.
            At least 1 MiB (1,048,576).
        retain_unread: Messages that a consumer group of the topic has not read are kept beyond the two limits above,
            up to the two limits below.
        unread_ms_max: With `retain_unread`: messages older than so many ms are dropped although a group has not read
            them; 0: no limit. Not below `retention_ms`.
        unread_bytes_max: With `retain_unread`: likewise, the oldest messages of a partition above so many bytes; 0: no
            limit. Not below `retention_bytes`.
        retention_acts: Read only. False: a version before retention made the topic. It only stored `retention_ms`, and
            nothing of the topic is dropped until a retention setting is changed.
    """

    flush: bool = True
    message_size_bytes_max: int = 0
    batch_size_bytes_max: int = 0
    retention_ms: int | None = None
    chain_width: int = 0
    retention_bytes: int = 0
    retain_unread: bool = False
    unread_ms_max: int = 0
    unread_bytes_max: int = 0
    retention_acts: bool = True


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic."""

    name: str
    incarnation: str
    state: str
    partition_ids: tuple[int, ...]
    settings: TopicSettings
    created_at_ms: int

    @property
    def partition_count(self) -> int:
        """How many partitions it has."""
        return len(self.partition_ids)


@dataclass(frozen=True, slots=True)
class Segment:
    """One tenure of a broker group in a partition's chain. Members are brokers' names, the master first.

    What lies below the index `start` was dropped by retention.
    """

    no: int
    group: str
    members: tuple[str, ...]
    state: Literal["OPEN", "SEALED", "UNSETTLED", "LOST"]
    base: int | None
    sealed_len: int | None
    sealed_checksum: int | None
    tail_from: int | None
    tail_copies: tuple[str, ...]
    incomplete_table: bool
    server: str
    server_epoch: int
    eligible: tuple[str, ...]
    opened_at_ms: int
    sealed_at_ms: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Chain:
    """A partition's chain record. Segments are the newest ones, oldest first; `page_count` pages hold older ones."""

    topic: str
    partition: int
    partition_id: int
    epoch: int
    send_chain: tuple[str, ...]
    segments: tuple[Segment, ...]
    flush: bool
    page_count: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with its chains, by partition number."""

    topic: Topic
    chains: tuple[Chain, ...]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """Where a consumer group stands on a partition. `lag` is in messages, None if it is not known.

    With an `error` (and its number, see the error catalogue) nobody could say where the group stands: `segment`,
    `acked_index` and `position` are then the least that they can be, and `end_position` says nothing.

    Whoever serves an older segment may not know how long the open one is: the end and the lag are then the least that
    they can be (`end_is_at_least`).

    An `external` group has no consumers and no server: it reads ranges, and reported its position at `reported_at_ms`.
    """

    partition: int
    partition_id: int
    has_cursor: bool
    segment: int
    acked_index: int
    position: int
    end_position: int
    server_broker: str
    active_consumer: str
    standby_consumers: tuple[str, ...]
    group_epoch: int
    error: str | None
    end_is_at_least: bool = False
    error_number: int | None = None
    paused: bool = False
    begun_by: Literal["rewind", "skip"] | None = None
    external: bool = False
    reported_at_ms: int = 0

    @property
    def lag(self) -> int | None:
        """Messages committed and not acknowledged."""
        return None if self.error is not None else max(0, self.end_position - self.position)


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """What a rewind or a skip does on one partition, as of when it was planned.

    Attributes:
        group: Where the group stands.
        operation: What it takes to get to the target.
        to_offset: The next message that is delivered then; None with an error.
        message_count: How many messages come again (rewind) or are passed over (skip); None: not known, because a
            segment before is not settled.
        error: Why the group cannot go there; None if it can.
    """

    group: GroupPartition
    operation: Literal["rewind", "skip"] | None
    to_offset: int | None
    message_count: int | None
    error: str | None
    error_number: int | None = None


@dataclass(frozen=True, slots=True)
class MovePlan:
    """A rewind or a skip of a consumer group that was looked into and not carried out: see `Admin.move_group`."""

    topic: str
    group: str
    moves: tuple[PlannedMove, ...]


@dataclass(frozen=True, slots=True)
class OperatedPartition:
    """What became of an operation on one partition of a group.

    Attributes:
        partition: Number in the topic.
        was_done: An earlier request with the same id had done it, or there was nothing to do.
        group_epoch: Of the group from now on; None with an error.
        offset: Where the group began in that epoch; None with an error.
        error: Why it was not done, or (`outcome_known` of its class is false) that it may have been done.
    """

    partition: int
    was_done: bool
    group_epoch: int | None
    offset: int | None
    error: str | None
    error_number: int | None = None


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A person moved, paused or resumed the consumer group on a partition that this consumer reads.

    Attributes:
        topic: Its name.
        partition: Number in the topic.
        what: `rewind` or `skip`: the next message is the one at `offset`. `pause`: nothing is delivered until `resume`.
            `moved`: the group begins anew at `offset` for another reason, because a segment was lost or dropped, or no
            broker was left that knew what was acknowledged.
        group_epoch: From now on. What was delivered in an earlier epoch can no longer be acknowledged.
        offset: Of the next message.
    """

    topic: str
    partition: int
    what: Literal["rewind", "skip", "pause", "resume", "moved"]
    group_epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group on a topic."""

    topic: str
    group: str
    partitions: tuple[GroupPartition, ...]


@dataclass(frozen=True, slots=True)
class Broker:
    """A member of a broker group, as registered. `live` is a hint.

    `disk_state`: "full" (its reserve is reached: it takes no new messages), "hangs" (it completes no write), or empty;
    as the broker that was asked knows it.
    """

    name: str
    incarnation: str
    group: str
    slot: int
    run: int
    address: str
    admitted: bool
    live: bool
    peer_addresses: Mapping[str, str] = field(default_factory=dict)
    disk_state: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster, as the broker that was asked knows it."""

    name: str
    id: str
    controller: str
    brokers: tuple[Broker, ...]


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """What a broker takes as a master: heads with traffic, and bytes a second (a batch counts as 64 KiB)."""

    broker: str
    group: str
    heads: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class HeadMove:
    """A head that should stand elsewhere; brokers' names are masters."""

    topic: str
    partition: int
    partition_id: int
    from_group: str
    from_broker: str
    to_group: str
    to_broker: str
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Balance:
    """The loads of brokers now and after the moves; `reason` says why there are none."""

    before: tuple[BrokerLoad, ...]
    after: tuple[BrokerLoad, ...]
    moves: tuple[HeadMove, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class WriterDescription:
    """A writer of a topic, and its last publication.

    Attributes:
        epoch: Of who opened it last; 0: nobody did.
        owner: Who published last, as they call themselves.
        state: NEW (nothing was published), DECIDED (it is being stored), DONE.
        sequence: Of the last publication; None while NEW. What follows is of it.
        rows: In all partitions.
        lost_rows: Of those, not stored, because the disks on which they were staged were declared lost.
        decided_at_ms: When it was decided.
        done_at_ms: When all its rows were committed; 0: they are not.
        ephemeral: It is forgotten a day after.
    """

    topic: str
    writer: str
    epoch: int
    owner: str
    state: str
    sequence: int | None
    rows: int
    lost_rows: int
    decided_at_ms: int
    done_at_ms: int
    ephemeral: bool


@dataclass(frozen=True, slots=True)
class Route:
    """Where a partition accepts messages."""

    partition_id: int
    epoch: int
    segment: int
    master_broker: str
    master_address: str
    next_addresses: tuple[str, ...]
