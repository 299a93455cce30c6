"""The ports of the commands: what they need from a cluster. `_connect` implements them with the client's public names.

Tests run the commands with a cluster in memory behind these ports. The process tests run them with a real one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from seriatim.cli._sources import Message

if TYPE_CHECKING:
    from seriatim import Chain
    from seriatim._settings import Target

OutcomeName = Literal["ok", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class SendResult:
    """The outcome of a message.

    Attributes:
        outcome: `ok`, `failed` or `unknown`.
        partition: The partition's number in the topic.
        offset: The message's offset, as in `seriatim_api.ids`; None unless `ok`.
        error: A text for people; empty if `ok`.
    """

    outcome: OutcomeName
    partition: int
    offset: int | None
    error: str = ""


class ProducerPort(Protocol):
    """A producer of one topic."""

    name: str

    def partition_of(self, message: Message) -> int:
        """The partition of a message for which the user named none. Call it once for each message, before its send."""
        ...

    async def send(
        self, message: Message, partition: int, message_id: str | None, done: Callable[[SendResult], None]
    ) -> None:
        """Hand a message over, in order. The call returns when there was room for it.

        Args:
            message: Key and value.
            partition: The partition's number in the topic.
            message_id: An id for histories, which is sent in a header; None: no id.
            done: Called once with the outcome, in the event loop.
        """
        ...

    async def flush(self) -> None:
        """Wait until every message has its outcome, at most for the producer's delivery time-out."""
        ...


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message that was delivered.

    Attributes:
        message_id: The id that `ProducerPort.send` added; None if there is none.
        maybe_repeated: It may have been delivered before, to this consumer or another one of the group.
        attempt: The delivery attempt.
        handle: A value of the port, which `ack` needs.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    timestamp_ms: int
    message_id: str | None = None
    maybe_repeated: bool = False
    attempt: int = 1
    handle: Any = None


@dataclass(frozen=True, slots=True)
class Note:
    """An event of a consumer that is not a message.

    Attributes:
        kind: `active` (it begins, or takes over), `standby`, `crossed` (into a segment), `gap`, `revoked`. Or an
            operation on the group: `rewind`, `skip`, `pause`, `resume`, or `moved` for another reason.
        partition: The partition's number in the topic.
        offset: The offset at which it happens; None if there is none.
        end_offset: For a gap, the first offset behind it.
        text: More, for people; may be empty.
    """

    kind: Literal["active", "standby", "crossed", "gap", "revoked", "rewind", "skip", "pause", "resume", "moved"]
    partition: int
    offset: int | None = None
    end_offset: int | None = None
    text: str = ""


class ConsumerPort(Protocol):
    """A consumer of one topic, in one consumer group."""

    name: str

    def batches(self) -> AsyncIterator[list[Delivered]]:
        """The messages that come, in the order of each partition. An empty list if none came for about a second."""
        ...

    async def ack(self, last: Delivered) -> bool:
        """Acknowledge this message and everything before it in its partition.

        Returns False if another consumer took the partition over, or the group was moved, since the delivery. Then the
        message comes again, here or elsewhere.
        """
        ...


At = Literal["earliest", "end"] | datetime
"""A place that exists in each partition."""


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """A place in a partition.

    Attributes:
        partition: The partition's number in the topic.
        offset: The place.
        position: The number of messages before it since the partition was made.
        blocked: A segment that is not settled is before the true end.
        found: If a time was asked for: whether there is a message at or after it.
    """

    partition: int
    offset: int
    position: int
    blocked: bool = False
    found: bool = False


@dataclass(frozen=True, slots=True)
class PieceRow:
    """The `rows` messages from one offset to another, in one segment. `size_bytes` is None if it is not known."""

    start: int
    end: int
    rows: int
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RetainedRow:
    """The messages of a partition that are kept.

    Attributes:
        partition: The partition's number in the topic.
        offset: The offset of the first message.
        messages: The number of messages from there to the end.
        size_bytes: Their bytes on one disk; None: not known.
        since_ms: The append time of the first message, in ms since 1970; None: there is none, or it is not known.
    """

    partition: int
    offset: int
    messages: int
    size_bytes: int | None
    since_ms: int | None


class RangePort(Protocol):
    """Reads between two offsets, without a consumer group."""

    async def offsets(self, topic: str, at: At, partitions: Sequence[int] | None = None) -> list[OffsetRow]:
        """A place in these partitions; None: in all partitions."""
        ...

    async def retained(self, topic: str, timeout_s: float | None = None) -> list[RetainedRow]:
        """The messages that are kept, by partition."""
        ...

    async def pieces(self, topic: str, partition: int, start: int, end: int, cut_bytes: int = 0) -> list[PieceRow]:
        """The pieces of a range, in its order. Each has about `cut_bytes`; 0: it is a whole segment."""
        ...

    def read(
        self, topic: str, partition: int, start: int, end: int, on_note: Callable[[Note], None]
    ) -> AsyncIterator[list[Delivered]]:
        """The messages of a range. `on_note` gets a note about each part that is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Retention:
    """How long messages of a topic are kept; 0: no limit.

    Attributes:
        ms: The greatest age of messages, in ms.
        size_bytes: The greatest size of a partition on one disk, in bytes.
        keeps_unread: Whether messages that a consumer group has not read are kept beyond these two limits.
        unread_ms_max: The greatest age of such messages, in ms.
        unread_bytes_max: The greatest size of a partition with such messages, in bytes.
        acts: Whether brokers act on it. False for a topic that a version before retention made, until its retention is
            set anew.
    """

    ms: int = 0
    size_bytes: int = 0
    keeps_unread: bool = False
    unread_ms_max: int = 0
    unread_bytes_max: int = 0
    acts: bool = True


@dataclass(frozen=True, slots=True)
class RetentionChange:
    """A change of a topic's retention. None: no change; a new topic has the default."""

    retention_ms: int | None = None
    retention_bytes: int | None = None
    retain_unread: bool | None = None
    unread_ms_max: int | None = None
    unread_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic, for people. Sizes are in bytes, times in milliseconds; 0: the default."""

    name: str
    state: str
    partitions: int
    flush: bool
    message_size_max: int
    retention: Retention
    chain_width: int
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A consumer group on one partition.

    Attributes:
        partition: The partition's number in the topic.
        next_offset: The first offset that is not acknowledged; None if the group has no cursor there.
        lag: How many messages the group is behind the end; None: not known.
        server: The name of the broker that serves the group.
        active: The name of the active consumer; empty: none.
        standbys: The names of the standbys.
        problem: Why no broker could tell the place; empty if one could.
        lag_is_at_least: The server does not know the end of the open segment, so the lag may be higher.
        next_is_at_least: No broker knows the group's place: it is at `next_offset` or behind it.
        paused: Whether the group is paused.
    """

    partition: int
    next_offset: int | None
    lag: int | None
    server: str
    active: str
    standbys: tuple[str, ...]
    problem: str = ""
    lag_is_at_least: bool = False
    next_is_at_least: bool = False
    paused: bool = False


HoldName = Literal["pause", "resume"]
MoveName = Literal["rewind", "skip"]


@dataclass(frozen=True, slots=True)
class GroupMoveRow:
    """What a rewind or a skip would do on one partition.

    Attributes:
        partition: The partition's number in the topic.
        from_offset: The first offset that is not acknowledged.
        to_offset: The offset of the next message after the operation; None if the group cannot go there.
        messages: How many messages come again, or are skipped; None: not known.
        epoch: The group epoch. If it is another one when the operation comes, the broker refuses it.
        active: The name of the active consumer; empty: none.
        problem: Why the group cannot go there; empty if it can.
        problem_number: The number of that error; 0 if the group can go there.
    """

    partition: int
    from_offset: int | None
    to_offset: int | None
    messages: int | None
    epoch: int
    active: str
    problem: str = ""
    problem_number: int = 0


@dataclass(frozen=True, slots=True)
class OperatedRow:
    """The result of an operation on one partition. `problem`: why it was not done, or why that is not known."""

    partition: int
    was_done: bool
    epoch: int | None
    offset: int | None
    problem: str = ""


class GroupPlan(Protocol):
    """A rewind or a skip that is planned and not carried out."""

    @property
    def rows(self) -> Sequence[GroupMoveRow]:
        """What it would do, by partition."""
        ...

    async def carry_out(self, request_id: bytes) -> list[OperatedRow]:
        """Carry it out as planned."""
        ...


class AdminPort(Protocol):
    """The administration of topics, chains, consumer groups, writers, broker groups and members."""

    async def create_topic(
        self, name: str, partitions: int, *, flush: bool, message_size_max: int | None, chain_width: int | None,
        retention: RetentionChange,
    ) -> TopicView:  # fmt: skip
        """Create a topic. It can be used when the call returns."""
        ...

    async def alter_topic(
        self, name: str, partitions: int | None, *, message_size_max: int | None, chain_width: int | None,
        retention: RetentionChange,
    ) -> TopicView:  # fmt: skip
        """Add partitions or change settings. None: no change."""
        ...

    async def list_topics(self) -> list[TopicView]:
        """All topics, sorted by name."""
        ...

    async def describe_topic(self, name: str) -> tuple[TopicView, list[Chain]]:
        """A topic and the chains of its partitions."""
        ...

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its messages."""
        ...

    async def list_groups(self, topic: str) -> list[str]:
        """The names of the consumer groups of a topic."""
        ...

    async def describe_group(self, topic: str, group: str) -> list[GroupRow]:
        """The place of a consumer group in each partition."""
        ...

    async def plan_move(
        self, topic: str, group: str, to: Target, partitions: Sequence[int], operation: MoveName
    ) -> GroupPlan:
        """Plan the move of a consumer group. No partitions: all."""
        ...

    async def hold_group(
        self, topic: str, group: str, operation: HoldName, partitions: Sequence[int]
    ) -> list[OperatedRow]:
        """Pause or resume a consumer group. No partitions: all."""
        ...

    async def create_group(self, topic: str, group: str, start: Target, partitions: Sequence[int]) -> bool:
        """Make the cursors of a consumer group. Returns whether one was new. No partitions: all."""
        ...

    async def delete_group(self, topic: str, group: str) -> None:
        """Delete the cursors of a consumer group."""
        ...
