"""The plain values that users get: receipts, messages, and descriptions of the cluster."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from seriatim_api.ids import format_offset
from seriatim_api.lag import lag_messages

from seriatim._arguments import takes_options
from seriatim._consumer_group_settings import GroupSettings

OutcomeName = Literal["ok", "failed", "unknown"]


class AckLevel(enum.IntEnum):
    """When a broker answers a send. Only the last two carry the promise. The others are faster, and may lose messages.

    NONE: at once. MASTER_RECEIVED: the master has the batch in memory. MASTER_FLUSHED: the master has flushed it.
    REPLICATED: it is committed, so every member has it (flushed, unless the topic has `flush` off).
    REPLICATED_FLUSHED: every member has flushed it. This is the default, also on a topic that has `flush` off.
    """

    NONE = 1
    MASTER_RECEIVED = 2
    MASTER_FLUSHED = 3
    REPLICATED = 4
    REPLICATED_FLUSHED = 5


class Receipt(NamedTuple):
    """Where a message is stored.

    Attributes:
        partition: The partition's number in the topic.
        offset: The message's offset: 63 bits, ordered like an integer. If `is_final`, readers find the message at this
            offset. If not, they may find it at an earlier one, and nothing at this one. That happens in one case: an
            earlier send attempt got no answer, and all members of its segment were away when the next segment was
            opened. When one of the members is back, readers get that send attempt. Order and the number of deliveries
            stay the same.
        timestamp_ms: The broker's append time, in ms since 1970; 0 if the broker answered a repeat.
        is_final: Whether it is certain that readers find the message at `offset`. Always False with an ack level below
            `REPLICATED`. Brokers of 0.2.0 and older do not say it; then it is True only for messages that were sent
            once.
    """

    partition: int
    offset: int
    timestamp_ms: int
    is_final: bool = False

    def __str__(self) -> str:
        return f"{self.partition}/{format_offset(self.offset)}"


class Part(NamedTuple):
    """The outcome of some messages of one `send_many` or `send_table`: consecutive messages of one partition.

    Attributes:
        partition: The partition's number in the topic.
        positions: The messages' positions in the call, in order.
        outcome: `ok`, `failed` or `unknown`.
        offset: The offset of the first message; the others follow one by one. 0 unless `ok`.
        timestamp_ms: The broker's append time, in ms since 1970; 0 unless `ok`.
        error: Why the messages are not stored, or may not be; None if `ok`.
        is_final: Whether it is certain that readers find the messages at `offset`; see `Receipt`.
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
        topic: The topic's name.
        partition: The partition's number in the topic.
        offset: The message's offset in the partition, in 63 bits: the segment's number and the index in it. Offsets
            order like the log. `place` shows it to people.
        key: The key; None if it was sent without one.
        value: The payload.
        timestamp_ms: The time that the sender gave, or the time of the send, in ms since 1970.
        headers: Names and values; empty if there are none.
        tag: The tag; None if it has none.
        attempt: The delivery attempt: how often this server has given the message to a consumer of the consumer group,
            from 1. A new server, or this one after a restart, begins at 1 again. `maybe_repeated` then flags the
            messages that were given before.
        maybe_repeated: A consumer may have had it before: another server may have delivered it, or, in modes
            key_ordered and shared, a consumer had it and ended without a word.
        grant: The number of the consumer's grant, which `ack` compares.
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

    @property
    def place(self) -> str:
        """The partition and the offset for people, as `partition/segment:index`. Receipts print it, too.

        Commands take and print the part behind the slash.
        """
        return f"{self.partition}/{format_offset(self.offset)}"


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage on a broker's disk: a read of the segment from `index` on failed, because stored bytes have changed."""

    broker: str
    partition_id: int
    segment: int
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """One step of a scrub: how many bytes and segments the broker read, and the damages that it found."""

    read_bytes: int
    read_segments: int
    damages: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class QuarantinedMessage:
    """A message that a broker keeps in a quarantined segment, above the length that the chain decided.

    It was probably acknowledged, and new consumer groups do not get it. `index` is its index in the segment. For all
    other brokers the segment ends at `sealed_len`. `value` and `key` are as they were sent.
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
    """Messages that will not be delivered, because a person declared them lost or retention dropped them.

    Attributes:
        topic: The topic's name.
        partition: The partition's number in the topic.
        offset: The offset of the first missing message.
        reason: Why they are missing, as a text for people.
        end_offset: The first offset behind the gap.
        messages: At most so many messages are missing; None: not known. Repeats count too, although readers would skip
            them.
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
        topic: The topic's name.
        incarnation: The topic's incarnation. A later topic of the same name has another one, and other offsets.
        partition: The partition's number in the topic.
        partition_id: The partition's id in the cluster.
        offset: The offset of the place: of the next message at or behind it.
        position: The number of messages before the place since the partition was made.
        bytes_before: The bytes of their batches; None: not known.
        blocked: A segment is UNSETTLED, so the messages behind it have no place in the order yet. The end is then the
            beginning of that segment, until one of its members is back.
        found: If a time was asked for: whether there is a message at or after it. If not, `offset` is the end.
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
    """The messages of a partition that are kept: from the first one to the partition's end.

    Attributes:
        topic: The topic's name.
        partition: The partition's number in the topic.
        offset: The offset of the first message that is kept. If there is none, the offset of the next message.
        messages: The number of messages from there to the end. Repeats that readers skip count too.
        size_bytes: The bytes of their batches on one disk; None: not known.
        since_ms: The append time of the first message, in ms since 1970; None: there is no message, or it is not known.
    """

    topic: str
    partition: int
    offset: int
    messages: int
    size_bytes: int | None
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class RangePiece:
    """A part of a range that can be read separately: [start, end), all in one segment.

    Attributes:
        start: The first offset.
        end: The first offset behind the piece.
        rows: The number of messages. Repeats that readers skip count too.
        size_bytes: The bytes of their batches. None: no broker that has them answered, so the piece is not cut.
        brokers: The names of the brokers that have the messages, as the chain record says.
        addresses: The addresses of those brokers.
    """

    start: int
    end: int
    rows: int
    size_bytes: int | None
    brokers: tuple[str, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LostRange:
    """The offsets [start, end), whose messages are gone: `lost` with their disks, or `dropped` by retention."""

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
    """A range of a partition, divided: the pieces in their order, and the losses between them."""

    topic: str
    incarnation: str
    partition: int
    start: int
    end: int
    pieces: tuple[RangePiece, ...]
    losses: tuple[LostRange, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The brokers begin (`active`) or cease to deliver a partition to this consumer, at `offset`."""

    topic: str
    partition: int
    active: bool
    offset: int


@takes_options("a topic")
@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of a topic.

    Retention drops the oldest messages of a partition. Brokers keep a message at least as long as the settings say.
    They look once a minute, and may drop it some minutes later. If a consumer group has not read a dropped message, its
    consumers get a `Gap`.

    Attributes:
        flush: Whether commit waits until every member has flushed the messages to its disk.
        message_size_bytes_max: The largest message, in bytes; 0: the cluster's default.
        batch_size_bytes_max: The largest batch, in bytes; 0: the cluster's default.
        retention_ms: Brokers drop messages older than this, in ms, at least 1,000. 0: no limit. None when a topic is
            made: three days, or no limit if `retention_bytes` is given. A topic that was read from the cluster always
            has a number.
        chain_width: How many broker groups a partition's send chain names; 0: the cluster's default.
        retention_bytes: Brokers drop the oldest messages of a partition if it is larger than this on one disk, in
            bytes, at least 1 MiB (1,048,576). 0: no limit.
        retain_unread: Messages that a consumer group of the topic has not read are kept beyond the two limits above,
            up to the two limits below.
        unread_ms_max: With `retain_unread`: brokers drop messages older than this, in ms, although a consumer group has
            not read them. 0: no limit. Not below `retention_ms`.
        unread_bytes_max: With `retain_unread`: brokers drop the oldest messages of a partition above this size, in
            bytes, although a consumer group has not read them. 0: no limit. Not below `retention_bytes`.
        retention_acts: Read only. False: a version before retention made the topic. That version only stored
            `retention_ms`, and brokers drop nothing of the topic until a retention setting is changed.

    Raises:
        BadRequestError: There is no setting of that name. Values are checked when a topic is made or changed.
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
    """A topic. `state` is CREATING, READY or DELETING; `partition_ids` are the ids in the cluster, by number."""

    name: str
    incarnation: str
    state: str
    partition_ids: tuple[int, ...]
    settings: TopicSettings
    created_at_ms: int

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        return len(self.partition_ids)


@dataclass(frozen=True, slots=True)
class Segment:
    """One tenure of a broker group in a partition's chain. Members are brokers' names, the master first.

    Retention has dropped the messages below the index `start`.
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
    """A partition's chain record. `segments` has the newest ones, oldest first; `page_count` pages have the rest."""

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
    """A topic with the chains of its partitions, by partition number."""

    topic: Topic
    chains: tuple[Chain, ...]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """The place of a consumer group in a partition. `lag` is in messages; None: not known.

    The lag is the number of messages that are committed and not acknowledged. Messages that were set aside count, for
    example those of parked keys: they are behind the place of the group in some cases, and before it in others.

    `error` (with its number in the error catalogue) means that no broker could tell the consumer group's place. Then
    `segment`, `acked_index` and `position` are lower bounds, and `end_position` means nothing.

    The server of an older segment may not know how long the open segment is. Then the end and the lag are lower bounds
    (`end_is_at_least`).

    Attributes that the server alone knows, as it sees them at that moment:
        settings: The group's settings; None: the group is `external`, or a broker of another version did not tell them.
        oldest_append_ms: The append time of the oldest message that is not acknowledged, in ms since 1970; 0: there is
            none, or it is not known.
        in_flight_messages: Messages that consumers have and have not acknowledged. Here and below: 0 unless the mode is
            key_ordered or shared.
        aside_messages: Messages that were set aside, in the lists of keys that wait.
        parked_keys: Keys that wait for a person.
        delayed_keys: Keys that wait for their next attempt.
        forwarding_keys: Keys whose first message is on its way to the dead-letter topic.
        consumers: The consumers that are given messages.
        passed_messages: Messages behind the place of the group that were acknowledged one by one, or set aside.

    An `external` group has no consumers and no server. Its program reads ranges, and reported this place at
    `reported_at_ms` (ms since 1970).
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
    settings: GroupSettings | None = None
    oldest_append_ms: int = 0
    in_flight_messages: int = 0
    aside_messages: int = 0
    parked_keys: int = 0
    delayed_keys: int = 0
    forwarding_keys: int = 0
    consumers: tuple[str, ...] = ()
    passed_messages: int = 0

    @property
    def lag(self) -> int | None:
        """The number of messages that are committed and not acknowledged, with those set aside; None: not known."""
        if self.error is not None:
            return None
        return lag_messages(self.end_position - self.position, self.passed_messages, self.aside_messages)


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """What a rewind or a skip would do on one partition, at the time of the plan.

    Attributes:
        group: The consumer group's place now.
        operation: The operation that leads to the target.
        to_offset: The offset of the next message that is delivered after it; None with an error.
        message_count: The number of messages that come again (rewind) or are passed over (skip). None: not known,
            because an earlier segment is not settled.
        error: Why the consumer group cannot go there; None if it can.
        error_number: The error's number in the error catalogue; None if there is no error.
    """

    group: GroupPartition
    operation: Literal["rewind", "skip"] | None
    to_offset: int | None
    message_count: int | None
    error: str | None
    error_number: int | None = None


@dataclass(frozen=True, slots=True)
class MovePlan:
    """A rewind or a skip of a consumer group that is planned and not carried out. Give it to `Admin.move_group`."""

    topic: str
    group: str
    moves: tuple[PlannedMove, ...]


@dataclass(frozen=True, slots=True)
class OperatedPartition:
    """The result of an operation on one partition of a consumer group.

    Attributes:
        partition: The partition's number in the topic.
        was_done: An earlier request with the same id had done it, or there was nothing to do.
        group_epoch: The group epoch from now on; None with an error.
        offset: The offset at which the consumer group began in that group epoch; None with an error.
        error: Why it was not done. If `outcome_known` of the error's class is false, it may have been done.
        error_number: The error's number in the error catalogue; None if there is no error.
    """

    partition: int
    was_done: bool
    group_epoch: int | None
    offset: int | None
    error: str | None
    error_number: int | None = None


@dataclass(frozen=True, slots=True)
class GroupChange:
    """The consumer group was moved, paused or resumed on a partition that this consumer reads.

    Attributes:
        topic: The topic's name.
        partition: The partition's number in the topic.
        what: `rewind` or `skip`: the next message is the one at `offset`. `pause`: nothing is delivered until `resume`.
            `moved`: the consumer group begins anew at `offset` for another reason. Either a segment was lost or
            dropped, or no broker was left that knew the acknowledgements.
        group_epoch: The group epoch from now on. Messages that were delivered in an earlier one can no longer be
            acknowledged.
        offset: The offset of the next message.
    """

    topic: str
    partition: int
    what: Literal["rewind", "skip", "pause", "resume", "moved"]
    group_epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """The places of a consumer group in the partitions of a topic."""

    topic: str
    group: str
    partitions: tuple[GroupPartition, ...]

    @property
    def settings(self) -> GroupSettings | None:
        """The settings on the first partition with a cursor; None: there is none, or they are not known."""
        return next((row.settings for row in self.partitions if row.has_cursor), None)


@dataclass(frozen=True, slots=True)
class Broker:
    """A member of a broker group, as it has registered. `live` is a hint, never a proof.

    `run` is its member run. `disk_state` is what the broker that answered knows: "full" (the disk has reached its
    reserve, so the broker takes no new messages), "hangs" (the disk completes no write), or empty. `external_address`
    is the `host:port` of clients outside the brokers' network; empty if the broker has none.
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
    external_address: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster, as the broker that answered knows it."""

    name: str
    id: str
    controller: str
    brokers: tuple[Broker, ...]


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The load of a broker as a master: its open segments with traffic, and bytes per second.

    Each batch counts as 64 KiB more than its bytes. The field `heads` is the number of open segments.
    """

    broker: str
    group: str
    heads: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class HeadMove:
    """An open segment that should move to another master. `from_broker` and `to_broker` are masters."""

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
    """The loads of the brokers now and after the moves. If there are no moves, `reason` says why."""

    before: tuple[BrokerLoad, ...]
    after: tuple[BrokerLoad, ...]
    moves: tuple[HeadMove, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class WriterDescription:
    """A writer of a topic, and its last publication.

    Attributes:
        topic: The topic's name.
        writer: The writer's name.
        epoch: The epoch that the last `open` gave; 0: the writer was never opened.
        owner: The owner that the last publication named.
        state: NEW: nothing was published. DECIDED: brokers are storing the publication. DONE: it is stored.
        sequence: The sequence of the last publication; None while NEW. The fields below are about this publication.
        rows: The number of its rows in all partitions.
        lost_rows: How many of them are not stored, because the disks on which they were staged were declared lost.
        decided_at_ms: When it was decided, in ms since 1970.
        done_at_ms: When all its rows were committed, in ms since 1970; 0: they are not.
        ephemeral: The cluster forgets the writer a day after the publication is done.
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
    """Where a partition accepts messages: its open segment and the master of it, as of chain epoch `epoch`."""

    partition_id: int
    epoch: int
    segment: int
    master_broker: str
    master_address: str
    next_addresses: tuple[str, ...]
