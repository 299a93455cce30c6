"""What the commands need of a cluster, in their own words; `_connect` says it with the client's public names.

The commands are tested with a cluster in memory behind these, and for real by the process tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from seriatim.cli._sources import Message

if TYPE_CHECKING:
    from seriatim._settings import Target

OutcomeName = Literal["ok", "failed", "unknown"]
SegmentState = Literal["OPEN", "SEALED", "UNSETTLED", "LOST"]


@dataclass(frozen=True, slots=True)
class SendResult:
    """What became of a message.

    Attributes:
        offset: Where it is stored, as `seriatim_api.ids` packs it; None if it is not, or nobody knows.
        error: For people; empty if there is nothing to say.
    """

    outcome: OutcomeName
    partition: int
    offset: int | None
    error: str = ""


class ProducerPort(Protocol):
    """A producer of one topic."""

    name: str

    def partition_of(self, message: Message) -> int:
        """Where a message without an explicit partition goes; each call is about one message that is then sent."""
        ...

    async def send(
        self, message: Message, partition: int, message_id: str | None, done: Callable[[SendResult], None]
    ) -> None:
        """Hand a message over, in order; returns when there was room for it. `done` is called once, in the loop.

        Args:
            message: Key and value.
            partition: Where to.
            message_id: Travels with it, for histories; None: nothing does.
            done: Told of the outcome.
        """
        ...

    async def flush(self) -> None:
        """Wait until everything has its outcome; the producer's own delivery time-out bounds it."""
        ...


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message as it came.

    Attributes:
        message_id: What `ProducerPort.send` let travel; None if nothing did.
        maybe_repeated: It may have been delivered before, to this consumer or another of the group.
        handle: The port's own, for `ack`.
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
    """What a consumer should know beside the messages.

    Attributes:
        kind: `active` (takes over, or begins), `standby`, `crossed` into a segment, `gap`, `revoked`; what was done to
            the group: `rewind`, `skip`, `pause`, `resume`, or `moved` for another reason.
        end_offset: For a gap the first offset after it.
    """

    kind: Literal["active", "standby", "crossed", "gap", "revoked", "rewind", "skip", "pause", "resume", "moved"]
    partition: int
    offset: int | None = None
    end_offset: int | None = None
    text: str = ""


class ConsumerPort(Protocol):
    """A consumer of one topic, of one group."""

    name: str

    def batches(self) -> AsyncIterator[list[Delivered]]:
        """What comes, in the order of each partition; empty lists where nothing came for a while."""
        ...

    async def ack(self, last: Delivered) -> bool:
        """Acknowledge this message and everything before it in its partition.

        False: the partition was taken over, or begun anew, meanwhile; the message comes again, here or elsewhere.
        """
        ...


At = Literal["earliest", "end"] | datetime
"""A place that can be asked for in each partition."""


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """A place in a partition.

    Attributes:
        offset: The place.
        position: Messages before it since the partition was made.
        blocked: A segment that is not settled is in the way of the end.
        found: Asked for a time: whether there is a message at or after it.
    """

    partition: int
    offset: int
    position: int
    blocked: bool = False
    found: bool = False


@dataclass(frozen=True, slots=True)
class PieceRow:
    """So many messages from one offset to another, in one segment; `size_bytes` is None if it is not known."""

    start: int
    end: int
    rows: int
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RetainedRow:
    """What is kept of a partition.

    Attributes:
        offset: Of the first message that is kept.
        messages: From there to the end.
        size_bytes: Of them on one disk; None: not known.
        since_ms: When the first one was taken; None: there is none, or it is not known.
    """

    partition: int
    offset: int
    messages: int
    size_bytes: int | None
    since_ms: int | None


class RangePort(Protocol):
    """Reading between two offsets, without a consumer group."""

    async def offsets(self, topic: str, at: At, partitions: Sequence[int] | None = None) -> list[OffsetRow]:
        """A place in partitions; None: in all of them."""
        ...

    async def retained(self, topic: str, timeout_s: float | None = None) -> list[RetainedRow]:
        """What is kept, by partition."""
        ...

    async def pieces(self, topic: str, partition: int, start: int, end: int, cut_bytes: int = 0) -> list[PieceRow]:
        """What lies in a range, in its order; pieces of about `cut_bytes`, or of whole segments."""
        ...

    def read(
        self, topic: str, partition: int, start: int, end: int, on_note: Callable[[Note], None]
    ) -> AsyncIterator[list[Delivered]]:
        """The messages of a range, and notes about what of it is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Retention:
    """How long messages of a topic stay: at most so old, at most so many bytes of a partition; 0: no limit.

    Attributes:
        keeps_unread: What a consumer group has not read stays beyond that, up to the two limits below.
        acts: Brokers act on it. Not on a topic of a version before that, until its retention is set anew.
    """

    ms: int = 0
    size_bytes: int = 0
    keeps_unread: bool = False
    unread_ms_max: int = 0
    unread_bytes_max: int = 0
    acts: bool = True


@dataclass(frozen=True, slots=True)
class RetentionChange:
    """What of a topic's retention is to change; None: it stays, or a new topic has the default."""

    retention_ms: int | None = None
    retention_bytes: int | None = None
    retain_unread: bool | None = None
    unread_ms_max: int | None = None
    unread_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic, for people. Sizes in bytes, times in milliseconds; 0: the default."""

    name: str
    state: str
    partitions: int
    flush: bool
    message_size_max: int
    retention: Retention
    chain_width: int
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class SegmentView:
    """What a person wants to know of a segment.

    Attributes:
        members: Brokers, the master first.
        length: Messages; of an OPEN segment as far as anybody counted, None if nobody knows.
        tail_from: From which index on the tail lies on `tail_copies` as well; None: it does not.
        incomplete_table: Opened over an unsettled one, producers not all known.
        start: What lies below this index was dropped by retention.
    """

    no: int
    group: str
    members: tuple[str, ...]
    state: SegmentState
    length: int | None
    server: str
    tail_from: int | None = None
    tail_copies: tuple[str, ...] = ()
    incomplete_table: bool = False
    start: int = 0


@dataclass(frozen=True, slots=True)
class ChainView:
    """A partition's chain.

    Attributes:
        older_segment_count: Segments before the first of `segments`, in pages that were not read.
    """

    topic: str
    partition: int
    epoch: int
    send_chain: tuple[str, ...]
    segments: tuple[SegmentView, ...]
    older_segment_count: int = 0


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A consumer group on one partition.

    Attributes:
        next_offset: The first offset not acknowledged; None if the group has no cursor there.
        lag: Messages behind the end; None if nobody knows.
        next_is_at_least: No broker knows where the group stands: its position is `next_offset` or after it.
        lag_is_at_least: The server does not know the end of the open segment: there may be more.
        problem: Why the server's part is missing; empty if it is not.
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
        from_offset: The first offset not acknowledged.
        to_offset: The next message that is delivered then; None if the group cannot go there.
        messages: How many come again, or are passed over; None: not known.
        epoch: Of the group; the operation is refused if it is another one by then.
        active: The consumer that reads now; empty: none.
        problem: Why the group cannot go there; empty if it can. `problem_number`: of the error; 0 if it can.
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
    """What became of an operation on one partition; `problem`: why it was not done, or is not known to be."""

    partition: int
    was_done: bool
    epoch: int | None
    offset: int | None
    problem: str = ""


class GroupPlan(Protocol):
    """A rewind or skip that was looked into."""

    @property
    def rows(self) -> Sequence[GroupMoveRow]:
        """By partition."""
        ...

    async def carry_out(self, request_id: bytes) -> list[OperatedRow]:
        """Do it, as it was planned."""
        ...


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A broker as the cluster knows it."""

    broker: str
    group: str
    incarnation: str
    run: int
    address: str
    live: bool
    admitted: bool
    disk_state: str = ""


@dataclass(frozen=True, slots=True)
class DamageRow:
    """A place on a disk that does not hold what was written."""

    broker: str
    partition_id: int
    segment: int
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class ScrubStep:
    """What a step of a scrub read and found."""

    read_bytes: int
    read_segments: int
    damages: tuple[DamageRow, ...]


@dataclass(frozen=True, slots=True)
class LoadRow:
    """What a broker takes as a master, now and after the moves."""

    broker: str
    group: str
    heads: int
    bytes_per_s: float
    heads_after: int
    bytes_per_s_after: float


@dataclass(frozen=True, slots=True)
class MoveRow:
    """A head that should stand elsewhere."""

    topic: str
    partition: int
    source: str
    target: str
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class BalanceView:
    """Loads and moves; `reason` says why there are no moves."""

    loads: tuple[LoadRow, ...]
    moves: tuple[MoveRow, ...]
    reason: str


IntentName = Literal["active", "cordoned", "draining"]


@dataclass(frozen=True, slots=True)
class QuarantinedRow:
    """A message that a broker keeps above the length that was decided for its segment."""

    partition_id: int
    segment: int
    index: int
    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class BrokerGroupRow:
    """A broker group; None: not counted. `live`: how many of its brokers run. `waits_for`: what holds a drain up.

    `disk_states`: what is wrong with the disks of its brokers, by broker.
    `unlinked`: pairs of its brokers that are live and have no link, for people.
    """

    name: str
    intent: IntentName
    weight: float
    brokers: tuple[str, ...]
    live: int
    heads: int | None
    segments: int | None
    waits_for: str = ""
    disk_states: Mapping[str, str] = field(default_factory=dict)
    unlinked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RestartView:
    """Whether a broker may be stopped, and why not."""

    broker: str
    is_safe: bool
    verdict: str
    reason: str
    segments_checked: int


@dataclass(frozen=True, slots=True)
class WriterRow:
    """A writer of a topic, and its last publication; `sequence` is None if it has none."""

    topic: str
    writer: str
    state: str
    sequence: int | None
    rows: int
    lost_rows: int
    epoch: int
    owner: str
    decided_at_ms: int
    done_at_ms: int


class AdminPort(Protocol):
    """Topics, chains, groups, members."""

    async def create_topic(
        self, name: str, partitions: int, *, flush: bool, message_size_max: int | None, chain_width: int | None,
        retention: RetentionChange,
    ) -> TopicView:  # fmt: skip
        """Make a topic, ready to use when this returns."""
        ...

    async def alter_topic(
        self, name: str, partitions: int | None, *, message_size_max: int | None, chain_width: int | None,
        retention: RetentionChange,
    ) -> TopicView:  # fmt: skip
        """Add partitions or change settings; what is None stays as it is."""
        ...

    async def list_topics(self) -> list[TopicView]:
        """All topics, by name."""
        ...

    async def describe_topic(self, name: str) -> tuple[TopicView, list[ChainView]]:
        """One topic and its chains, by partition."""
        ...

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its messages."""
        ...

    async def chain(self, topic: str, partition: int) -> ChainView:
        """One partition's chain."""
        ...

    def watch_chain(self, topic: str, partition: int) -> AsyncIterator[ChainView]:
        """The chain now, and again each time it changes."""
        ...

    async def list_groups(self, topic: str) -> list[str]:
        """Names of the consumer groups of a topic."""
        ...

    async def describe_group(self, topic: str, group: str) -> list[GroupRow]:
        """Where a group stands, by partition."""
        ...

    async def plan_move(
        self, topic: str, group: str, to: Target, partitions: Sequence[int], operation: MoveName
    ) -> GroupPlan:
        """What it takes to move a group; of no partitions: of all."""
        ...

    async def hold_group(
        self, topic: str, group: str, operation: HoldName, partitions: Sequence[int]
    ) -> list[OperatedRow]:
        """Pause or resume a group; of no partitions: of all."""
        ...

    async def create_group(self, topic: str, group: str, start: Target, partitions: Sequence[int]) -> bool:
        """Let a group begin before anybody joins; whether it was new somewhere."""
        ...

    async def delete_group(self, topic: str, group: str) -> None:
        """Forget where a group is."""
        ...

    async def list_writers(self, topic: str) -> list[WriterRow]:
        """The writers of a topic, or of all if none is named."""
        ...

    async def describe_writer(self, topic: str, writer: str) -> WriterRow:
        """What a writer has published."""
        ...

    async def delete_writer(self, topic: str, writer: str) -> None:
        """Forget a writer."""
        ...

    async def balance(self, *, run: bool) -> BalanceView:
        """Which heads should stand elsewhere; with `run` that is begun."""
        ...

    async def members(self) -> list[MemberRow]:
        """All brokers."""
        ...

    async def declare_dead(self, broker: str, run: int, issuer: str, incarnation: str, evidence: str) -> None:
        """Certify that a run of a broker has ended."""
        ...

    async def broker_groups(self, *, with_counts: bool) -> list[BrokerGroupRow]:
        """All broker groups."""
        ...

    async def set_broker_group(self, name: str, intent: IntentName, weight: float | None) -> BrokerGroupRow:
        """Say what is wanted of a broker group."""
        ...

    async def remove_broker_group(self, name: str) -> None:
        """Forget a broker group."""
        ...

    async def remove_member(self, broker: str) -> None:
        """Forget a broker."""
        ...

    async def check_restart(self, broker: str) -> RestartView:
        """Whether a broker may be stopped."""
        ...

    def scrub(self, broker: str) -> AsyncIterator[ScrubStep]:
        """Have a broker read its disk, part by part."""
        ...

    def read_quarantined(self, broker: str) -> AsyncIterator[QuarantinedRow]:
        """What a broker keeps above the lengths that the cluster decided."""
        ...

    async def declare_gap(self, topic: str, partition: int, segment: int, issuer: str) -> None:
        """Give up a segment whose disks are all lost."""
        ...
