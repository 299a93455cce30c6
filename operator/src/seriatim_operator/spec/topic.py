"""Topic: a topic of a cluster. The brokers' topic follows the object, not the other way round."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from .base import Model, Resource, Status
from .columns import AGE, Column, condition_columns
from .fields import BROKER_NAME_LENGTH_MAX, ClusterName, DeletionPolicy, LegalName, Quantity
from .rules import ListKeys, Rule, immutable
from .values import DURATION_PATTERN, FOREVER, parse_quantity, parse_retention_ms

PARTITIONS_MAX: Final = 20_000
BYTES_MAX: Final = 1 << 20
"""Of a batch and of a message, in every broker."""

RETENTION_SIZE_MIN: Final = "1Mi"
"""Of a partition: a batch has up to 1 MiB, and the brokers keep at least one."""

CHAINS_SHOWN_MAX: Final = 64
"""Partitions of which the status tells the chain; with more, the command shows them."""

Durability = Literal["Flushed", "Replicated"]
TopicState = Literal["Healthy", "OneCopy", "Unsettled", "Lost", "Unknown"]


RetentionTime = Annotated[
    str,
    Field(max_length=40),
    Rule(
        f"self == '{FOREVER}' || self.matches('{DURATION_PATTERN}')",
        f"write a duration with units d, h, m or s, such as 72h or 7d, or {FOREVER}",
    ),
    Rule(f"self == '{FOREVER}' || self.matches('[1-9]')", "keep messages for at least a second"),
]
"""How long messages stay."""

RetentionSize = Annotated[
    Quantity,
    Rule(
        f"!isQuantity(self) || quantity(self).compareTo(quantity('{RETENTION_SIZE_MIN}')) >= 0",
        f"keep at least {RETENTION_SIZE_MIN} of a partition, or leave it out: no limit",
    ),
]
"""How much of a partition stays."""


class TopicSpec(Model):
    """What is wanted of a topic."""

    RULES: ClassVar = (
        Rule(
            "self.retainUnread || (!has(self.unreadMax) && !has(self.unreadSizeMax))",
            "unreadMax and unreadSizeMax limit what retainUnread keeps: say retainUnread: true, or leave them out",
        ),
        Rule(
            "!has(self.retentionSize) || !has(self.unreadSizeMax) || !isQuantity(self.retentionSize) || "
            "!isQuantity(self.unreadSizeMax) || "
            "quantity(self.unreadSizeMax).compareTo(quantity(self.retentionSize)) >= 0",
            "what is not read stays at least as long as what is read: unreadSizeMax is at least retentionSize",
        ),
    )

    cluster: ClusterName
    """The BrokerCluster, in the same namespace."""
    name: Annotated[LegalName, immutable("a topic keeps its name; make a new one and move its messages")] | None = None
    """What the brokers call it, where that is no name for Kubernetes; left out, as the object."""
    partitions: Annotated[
        int,
        Field(ge=1, le=PARTITIONS_MAX),
        Rule("self >= oldSelf", "partitions can be added, not taken away: keep at least as many as there are"),
    ] = 1
    """Rows of messages, each in one order."""
    durability: Annotated[
        Durability, immutable("what a message that was acknowledged rests on is decided once; make a new topic")
    ] = "Flushed"
    """When a message counts as stored: `Flushed` on every member's disk, or `Replicated` to every member's memory."""
    retention: RetentionTime = "72h"
    """Messages older than this are dropped; `Forever`: they stay, however old they are."""
    retention_size: RetentionSize | None = None
    """The oldest messages of a partition above this size on one disk are dropped; left out: no limit."""
    retain_unread: bool = False
    """Whether messages that a consumer group has not read are kept beyond these two limits."""
    unread_max: RetentionTime | None = None
    """With `retainUnread`: messages older than this are dropped although a group has not read them."""
    unread_size_max: RetentionSize | None = None
    """With `retainUnread`: likewise, the oldest messages of a partition above this size."""
    batch_size_bytes_max: Annotated[int, Field(ge=1024, le=BYTES_MAX)] = BYTES_MAX
    """Largest batch."""
    message_size_bytes_max: Annotated[int, Field(ge=1, le=BYTES_MAX)] = BYTES_MAX
    """Largest message."""
    chain_width: Annotated[int, Field(ge=1, le=16)] = 5
    """How many broker groups a partition's send chain names."""
    deletion_policy: DeletionPolicy = "Retain"
    """What becomes of the topic and its messages when this object is deleted."""

    @property
    def retention_ms(self) -> int:
        """The retention as the brokers say it: 0 keeps for ever."""
        return parse_retention_ms(self.retention)

    @property
    def retention_bytes(self) -> int:
        """The size of a partition as the brokers say it: 0 is no limit."""
        return int(parse_quantity(self.retention_size)) if self.retention_size is not None else 0

    @property
    def unread_ms_max(self) -> int:
        """How old unread messages may become: 0 is no limit."""
        return parse_retention_ms(self.unread_max) if self.unread_max is not None else 0

    @property
    def unread_bytes_max(self) -> int:
        """The size of a partition with unread messages: 0 is no limit."""
        return int(parse_quantity(self.unread_size_max)) if self.unread_size_max is not None else 0


class ChainStatus(Model):
    """Where the chain of one partition stands."""

    partition: Annotated[int, Field(ge=0)]
    """The partition's number."""
    segment: int
    """The number of its open segment."""
    group: Annotated[str, Field(max_length=200)]
    """The broker group that has it."""
    master: Annotated[str, Field(max_length=220)]
    """The broker that appends."""
    kept_from: Annotated[str, Field(max_length=40)] = ""
    """The offset (segment:index) of the first message that is kept, as of the last change of the status."""
    dropped_messages: int | None = None
    """Messages before it since the partition was made; left out if it is not known."""


class TopicStatus(Status):
    """What is true of a topic. Written when something changes, never to show a number that moves."""

    CONDITIONS: ClassVar = ("Ready", "ChainHealthy")

    topic_name: Annotated[str, Field(max_length=BROKER_NAME_LENGTH_MAX)] = ""
    """What the brokers call it."""
    incarnation: Annotated[str, Field(max_length=64)] = ""
    """The identity of the topic: one that is deleted and made again has another."""
    partitions: int | None = None
    """Partitions that there are; left out while there is no topic."""
    state: TopicState = "Unknown"
    """The worst of its chains, in one word."""
    segments: int | None = None
    """Segments of all its chains."""
    sealed_messages: int | None = None
    """Messages in closed segments, those that retention dropped too, as of the last change of a chain."""
    retention_acts: bool | None = None
    """Whether brokers drop what is beyond the retention. False: a version before retention made the topic, and nothing
    of it is dropped until a field of its retention is changed."""
    groups: Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=1000)] = ()
    """Broker groups that have open segments of it."""
    chains: Annotated[tuple[ChainStatus, ...], Field(max_length=CHAINS_SHOWN_MAX), ListKeys(("partition",))] = ()
    """The chains of its first partitions."""


class Topic(Resource):
    """A topic of a cluster."""

    KIND: ClassVar = "Topic"
    PLURAL: ClassVar = "topics"
    SINGULAR: ClassVar = "topic"
    SHORT_NAME: ClassVar = "stopic"
    COLUMNS: ClassVar = (
        Column("Cluster", ".spec.cluster"),
        Column("Partitions", ".spec.partitions", "integer"),
        *condition_columns(),
        Column("State", ".status.state"),
        Column("Segments", ".status.segments", "integer"),
        Column("Groups", ".status.groups", is_wide=True),
        Column("Sealed messages", ".status.sealedMessages", "integer", is_wide=True),
        Column("Retention", ".spec.retention", is_wide=True),
        Column("Acts", ".status.retentionActs", "boolean", is_wide=True),
        Column("Topic", ".status.topicName", is_wide=True),
        AGE,
    )

    RULES: ClassVar = (
        Rule(
            f"has(self.spec.name) || self.metadata.name.size() <= {BROKER_NAME_LENGTH_MAX}",
            f"metadata.name: brokers take names of at most {BROKER_NAME_LENGTH_MAX} characters; say a shorter one in "
            "spec.name",
        ),
    )

    spec: TopicSpec
    status: TopicStatus = TopicStatus()

    @property
    def topic_name(self) -> str:
        """What the brokers call it."""
        return self.spec.name or self.metadata.name
