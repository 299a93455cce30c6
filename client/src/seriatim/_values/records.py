"""The plain values that producers and consumers give their users: receipts, messages, and what happens to them.

Each program that sends or consumes loads them. What only administration describes is in `_admin.descriptions`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from seriatim_api.delay_limits import DELAY_MAX_MS_DEFAULT, DELAYED_PENDING_MAX_DEFAULT
from seriatim_api.ids import format_offset

from seriatim._values.arguments import takes_options
from seriatim._values.headers import pairs_of

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
            `REPLICATED`.
        due_ms: When a delayed message is due, in ms since 1970, by the broker's clock. Until then readers pass it, and
            later they find a copy of it at another offset. `offset` is where it was stored first: its *origin*, which
            cancels it. 0: the message is not delayed, or was due when it was stored. None: the broker answered a
            repeat of a delayed message, so this is not known.
    """

    partition: int
    offset: int
    timestamp_ms: int
    is_final: bool = False
    due_ms: int | None = 0

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
        due_ms: When the messages are due; see `Receipt`. 0 unless `ok`.
    """

    partition: int
    positions: range | tuple[int, ...]
    outcome: OutcomeName
    offset: int
    timestamp_ms: int
    error: Exception | None
    is_final: bool = False
    due_ms: int | None = 0


class Message(NamedTuple):
    """A message as a consumer gets it.

    Attributes:
        topic: The topic's name.
        partition: The partition's number in the topic.
        offset: The message's offset in the partition, in 63 bits: the segment's number and the index in it. Offsets
            order like the log. `place` shows it to humans.
        key: The key; None if it was sent without one.
        value: The payload; `b""` if it is null.
        timestamp_ms: The time that the sender gave, or the time of the send, in ms since 1970.
        headers: Names and values; empty if there are none. A repeated name has its last value, and a null value is
            `b""`. `header_list` has all of them.
        tag: The tag; None if it has none.
        attempt: The delivery attempt: how often this server has given the message to a consumer of the consumer group,
            from 1. A new server, or this one after a restart, begins at 1 again. `maybe_repeated` then flags the
            messages that were given before.
        maybe_repeated: A consumer may have had it before: another server may have delivered it, or it was delivered
            before the group got another mode, or, in modes key_ordered and shared, a consumer had it and ended without
            a word.
        grant: The number of the consumer's grant, which `ack` compares.
        value_is_null: Whether it was sent without a value, such as a message that deletes its key.
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
    value_is_null: bool = False

    @property
    def header_list(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers in the order in which they were sent, repeated names included. None: the value is null."""
        return pairs_of(self.headers)

    @property
    def place(self) -> str:
        """The partition and the offset for humans, as `partition/segment:index`. Receipts print it, too.

        Commands take and print the part after the slash.
        """
        return f"{self.partition}/{format_offset(self.offset)}"


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that will not be delivered, because an administrator declared them lost or retention dropped them.

    Attributes:
        topic: The topic's name.
        partition: The partition's number in the topic.
        offset: The offset of the first missing message.
        reason: Why they are missing, as human-readable text.
        end_offset: The first offset after the gap.
        messages: Upper bound of the number of messages that are missing; None: not known. Repeats count too, although
            readers would skip them.
    """

    topic: str
    partition: int
    offset: int
    reason: str
    end_offset: int = 0
    messages: int | None = None


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
        attributes: Texts by name, for tools of users: an owner, a ticket, the address of a schema. Brokers store them
            and read none. At most 64, and at most 4 KiB together (names and values in UTF-8). A name has letters,
            digits, `.`, `_`, `-` and `/`, begins with a letter, a digit or `_`, and has at most 249 characters. Names
            that begin with `seriatim.` are taken. A value is any text.
        delay_max_ms: The longest delay of a message, in ms, at most 366 days. 0: the topic takes no delayed messages.
        delayed_pending_max: How many delayed messages of a partition may wait for their time, at least 1.
        exclusive_only: Whether brokers refuse messages of ordinary producers. No topic can have it yet, because brokers
            do not announce exclusive producers.

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
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)
    delay_max_ms: int = DELAY_MAX_MS_DEFAULT
    delayed_pending_max: int = DELAYED_PENDING_MAX_DEFAULT
    exclusive_only: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic.

    `state` is CREATING, READY or DELETING; `partition_ids` are the ids in the cluster, by number. `cluster_id` is empty
    if the broker did not say of which cluster it is.
    """

    name: str
    incarnation: str
    state: str
    partition_ids: tuple[int, ...]
    settings: TopicSettings
    created_at_ms: int
    cluster_id: str = field(default="", compare=False)

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        return len(self.partition_ids)


@dataclass(frozen=True, slots=True)
class GroupChange:
    """The consumer group was moved, paused or resumed on a partition that this consumer reads.

    Attributes:
        topic: The topic's name.
        partition: The partition's number in the topic.
        what: `rewind` or `skip`: the next message is the one at `offset`. `pause`: nothing is delivered until `resume`.
            `moved`: the consumer group starts over at `offset` for another reason. Either a segment was lost or
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
