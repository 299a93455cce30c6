"""The plain values with which administration describes the cluster.

To make their classes takes about as long as to load gRPC, so producers and consumers do not load them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from seriatim_api.lag import lag_messages

from seriatim._values.consumer_group_settings import GroupSettings
from seriatim._values.headers import pairs_of
from seriatim._values.records import Topic


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
    other brokers the segment ends at `sealed_len`. Key, value and headers are as in `Message`.
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
    value_is_null: bool = False

    @property
    def header_list(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers in their order, repeated names included. None: the value is null."""
        return pairs_of(self.headers)


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
    example those of parked keys: they are after the place of the group in some cases, and before it in others.

    `error` (with its number in the error catalogue) means that no broker knows the consumer group's place. Then
    `segment`, `acked_index` and `position` are lower bounds, and `end_position` means nothing.

    The server of an older segment may not know how long the open segment is. Then the end and the lag are lower bounds
    (`end_is_at_least`).

    Attributes that the server alone knows, as it sees them at that moment:
        settings: The group's settings; None: the group is `external`, or has settings that only a later version knows.
        oldest_append_ms: The append time of the oldest message that is not acknowledged, in ms since 1970; 0: there is
            none, or it is not known.
        in_flight_messages: Messages that consumers have and have not acknowledged. Here and below: 0 unless the mode is
            key_ordered or shared.
        aside_messages: Messages that were set aside, in the lists of keys that wait.
        parked_keys: Keys that wait for an administrator.
        delayed_keys: Keys that wait for their next attempt.
        forwarding_keys: Keys whose first message is on its way to the dead-letter topic.
        consumers: The consumers that are given messages.
        passed_messages: Messages after the place of the group that were acknowledged one by one, or set aside.

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

    @property
    def lacks_consumer(self) -> bool:
        """Whether messages wait here, the group is not paused, and no consumer of it reads them."""
        is_read = self.external or bool(self.active_consumer) or bool(self.consumers)
        return self.has_cursor and not (self.paused or is_read) and bool(self.lag)


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """What a rewind or a skip would do on one partition, at the time of the plan.

    Attributes:
        group: The consumer group's place now.
        operation: The operation that leads to the target.
        to_offset: The offset of the next message that is delivered after it; None with an error.
        message_count: The number of messages that come again (rewind) or are passed over (skip), at most: copies of
            dead letters that were replayed for another group are counted, and do not come. None: not known,
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
