"""Topic: a topic of a cluster. The operator makes the brokers' topic as the object says, never the reverse."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field
from seriatim_api.attributes import (
    ATTRIBUTE_NAME_LENGTH_MAX,
    ATTRIBUTE_NAME_PATTERN,
    ATTRIBUTE_NAMES_TAKEN,
    ATTRIBUTES_BYTES_MAX,
    ATTRIBUTES_MAX,
)
from seriatim_api.delay_limits import DELAYED_PENDING_MAX_DEFAULT

from .base import Model, Resource, Status
from .columns import AGE, Column, condition_columns
from .fields import BROKER_NAME_LENGTH_MAX, ClusterName, DeletionPolicy, LegalName, Quantity
from .rules import ListKeys, Rule, immutable
from .values import DURATION_PATTERN, FOREVER, parse_duration_s, parse_quantity, parse_retention_ms

PARTITIONS_MAX: Final = 20_000
BYTES_MAX: Final = 1 << 20
"""The largest batch and the largest message that any broker takes: 1 MiB."""

RETENTION_SIZE_MIN: Final = "1Mi"
"""The smallest size of a partition that can be set: a batch has up to 1 MiB, and brokers keep at least one batch."""

CHAINS_SHOWN_MAX: Final = 64
"""Partitions whose chains the status shows. For the others use `seriatim chain`."""

SOURCES_SHOWN_MAX: Final = 16
"""Consumer groups whose dead letters a topic takes, as far as the status names them."""

Durability = Literal["Flushed", "Replicated"]
TopicState = Literal["Healthy", "CopyAway", "CatchingUp", "OneCopy", "Unreachable", "Unsettled", "Lost", "Unknown"]


RetentionTime = Annotated[
    str,
    Field(max_length=40),
    Rule(
        f"self == '{FOREVER}' || self.matches('{DURATION_PATTERN}')",
        f"write a duration with units d, h, m or s, such as 72h or 7d, or {FOREVER}",
    ),
    Rule(f"self == '{FOREVER}' || self.matches('[1-9]')", "keep messages for at least 1s"),
]
"""How long brokers keep messages."""

DelayTime = Annotated[
    str,
    Field(max_length=40),
    Rule(f"self.matches('{DURATION_PATTERN}')", "write a duration with units d, h, m or s, such as 12h or 40d"),
]
"""How long messages may be delayed."""

RetentionSize = Annotated[
    Quantity,
    Rule(
        f"!isQuantity(self) || quantity(self).compareTo(quantity('{RETENTION_SIZE_MIN}')) >= 0",
        f"keep at least {RETENTION_SIZE_MIN} of a partition, or leave the field out for no limit",
    ),
]
"""How much of a partition brokers keep."""

Attributes = Annotated[
    dict[str, Annotated[str, Field(max_length=ATTRIBUTES_BYTES_MAX)]],
    Field(max_length=ATTRIBUTES_MAX),
    Rule(
        f"self.all(name, name.size() <= {ATTRIBUTE_NAME_LENGTH_MAX} && name.matches('^{ATTRIBUTE_NAME_PATTERN}$'))",
        "the name of an attribute has letters, digits, dots, _, - and /, begins with a letter, a digit or _, and has "
        f"at most {ATTRIBUTE_NAME_LENGTH_MAX} characters",
    ),
    Rule(
        f"self.all(name, !name.startsWith('{ATTRIBUTE_NAMES_TAKEN}'))",
        f"names that begin with {ATTRIBUTE_NAMES_TAKEN} are taken",
    ),
    Rule(
        f"self.map(name, bytes(name).size() + bytes(self[name]).size()).sum() <= {ATTRIBUTES_BYTES_MAX}",
        f"names and values have at most {ATTRIBUTES_BYTES_MAX} bytes together: shorten some",
    ),
]
"""Texts by name, for tools of users."""


class TopicSpec(Model):
    """The desired state of a topic."""

    RULES: ClassVar = (
        Rule(
            "self.retainUnread || (!has(self.unreadMax) && !has(self.unreadSizeMax))",
            "unreadMax and unreadSizeMax limit what retainUnread keeps: write retainUnread: true, or leave them out",
        ),
        Rule(
            "!has(self.retentionSize) || !has(self.unreadSizeMax) || !isQuantity(self.retentionSize) || "
            "!isQuantity(self.unreadSizeMax) || "
            "quantity(self.unreadSizeMax).compareTo(quantity(self.retentionSize)) >= 0",
            "brokers keep unread messages at least as long as read ones: unreadSizeMax is at least retentionSize",
        ),
        Rule(
            "self.messageSizeBytesMax <= self.batchSizeBytesMax",
            "a message goes into a batch: lower messageSizeBytesMax, or raise batchSizeBytesMax",
        ),
    )

    cluster: ClusterName
    """The BrokerCluster, in the same namespace."""
    name: Annotated[LegalName, immutable("a topic keeps its name; make a new one and move its messages")] | None = None
    """The topic's name among the brokers. Use this field if the name is not valid for a Kubernetes object. Without it,
    the topic has the object's name."""
    partitions: Annotated[
        int,
        Field(ge=1, le=PARTITIONS_MAX),
        Rule("self >= oldSelf", "partitions can be added but not removed: keep at least as many as there are"),
    ] = 1
    """How many partitions the topic has. Each partition keeps its messages in one order."""
    durability: Annotated[
        Durability, immutable("the durability is decided when the topic is made; make a new topic")
    ] = "Flushed"
    """When a message counts as stored: `Flushed` to the disk of every member of the broker group, or `Replicated` to
    the memory of every member, for producers that ask for `ack_level` `REPLICATED`."""
    retention: RetentionTime = "72h"
    """Brokers drop messages that are older than this. `Forever`: they drop no message because of its age."""
    retention_size: RetentionSize | None = None
    """If a partition has more than this on one disk, brokers drop its oldest messages. Without it there is no limit."""
    retain_unread: bool = False
    """Whether brokers keep messages beyond these two limits until every consumer group has read them."""
    unread_max: RetentionTime | None = None
    """With `retainUnread`: brokers drop messages that are older than this, although a consumer group has not read
    them."""
    unread_size_max: RetentionSize | None = None
    """With `retainUnread`: if a partition has more than this on one disk, brokers drop its oldest messages, although a
    consumer group has not read them."""
    batch_size_bytes_max: Annotated[int, Field(ge=1024, le=BYTES_MAX)] = BYTES_MAX
    """The largest batch that brokers take, in bytes."""
    message_size_bytes_max: Annotated[int, Field(ge=1, le=BYTES_MAX)] = BYTES_MAX
    """The largest message that brokers take, in bytes."""
    chain_width: Annotated[int, Field(ge=1, le=16)] = 5
    """How many broker groups a partition's send chain names."""
    attributes: Attributes | None = None
    """Texts by name for your tools, such as an owner or a ticket. Brokers store them and read none. If the field is
    there, the topic has exactly these attributes; `{}` removes all. Without it, the operator leaves the attributes of
    the topic as they are."""
    delay_max: DelayTime = "40d"
    """The longest delay of a message, at most 366d. `0s`: the topic takes no delayed messages."""
    delayed_pending_max: Annotated[int, Field(ge=1)] = DELAYED_PENDING_MAX_DEFAULT
    """How many delayed messages of a partition may wait for their time."""
    exclusive_only: bool = False
    """Whether brokers refuse messages of ordinary producers. Brokers refuse the setting before they announce exclusive
    producers."""
    deletion_policy: DeletionPolicy = "Retain"
    """What happens to the topic when this object is deleted: `Retain` keeps the topic and its messages, `Delete`
    deletes them."""

    @property
    def retention_ms(self) -> int:
        """The retention in the brokers' unit, milliseconds; 0 means for ever."""
        return parse_retention_ms(self.retention)

    @property
    def retention_bytes(self) -> int:
        """The size limit of a partition in bytes; 0 means no limit."""
        return int(parse_quantity(self.retention_size)) if self.retention_size is not None else 0

    @property
    def unread_ms_max(self) -> int:
        """The age limit of unread messages in milliseconds; 0 means no limit."""
        return parse_retention_ms(self.unread_max) if self.unread_max is not None else 0

    @property
    def unread_bytes_max(self) -> int:
        """The size limit of a partition with unread messages, in bytes; 0 means no limit."""
        return int(parse_quantity(self.unread_size_max)) if self.unread_size_max is not None else 0

    @property
    def delay_max_ms(self) -> int:
        """The longest delay in milliseconds; 0 means no delayed messages."""
        return parse_duration_s(self.delay_max) * 1000


class ChainStatus(Model):
    """The chain of one partition, in short."""

    partition: Annotated[int, Field(ge=0)]
    """The partition's number."""
    segment: int
    """The number of its open segment."""
    group: Annotated[str, Field(max_length=200)]
    """The broker group that has the open segment."""
    master: Annotated[str, Field(max_length=220)]
    """The broker that is master of the open segment."""
    kept_from: Annotated[str, Field(max_length=40)] = ""
    """The offset (segment:index) of the first message that brokers keep, as of the last change of the status."""
    dropped_messages: int | None = None
    """Messages that the partition had before `keptFrom`. Left out if the number is not known."""


class TopicStatus(Status):
    """The observed state of a topic. The operator does not write it for a number alone that moves with the traffic."""

    CONDITIONS: ClassVar = ("Ready", "ChainHealthy")

    topic_name: Annotated[str, Field(max_length=BROKER_NAME_LENGTH_MAX)] = ""
    """The topic's name among the brokers."""
    incarnation: Annotated[str, Field(max_length=64)] = ""
    """The identity of the topic. A topic that is deleted and made again has another one."""
    partitions: int | None = None
    """How many partitions the topic has. Left out while there is no topic."""
    state: TopicState = "Unknown"
    """The worst of its chains, in one word."""
    segments: int | None = None
    """How many segments all its chains have."""
    sealed_messages: int | None = None
    """Messages in sealed segments, dropped ones included, as of the last change of a chain."""
    dead_letters_of: (
        Annotated[
            tuple[Annotated[str, Field(max_length=2 * BROKER_NAME_LENGTH_MAX + 1)], ...],
            Field(max_length=SOURCES_SHOWN_MAX),
        ]
        | None
    ) = None
    """The consumer groups whose ConsumerGroup objects send dead letters here, as `<topic>/<group>`, at most 16. Left
    out if there are none."""
    groups: Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=1000)] = ()
    """Broker groups that have open segments of the topic."""
    chains: Annotated[tuple[ChainStatus, ...], Field(max_length=CHAINS_SHOWN_MAX), ListKeys(("partition",))] = ()
    """The chains of its first partitions, at most 64."""


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
        Column("Dead letters of", ".status.deadLettersOf", is_wide=True),
        Column("Topic", ".status.topicName", is_wide=True),
        AGE,
    )

    RULES: ClassVar = (
        Rule(
            f"has(self.spec.name) || self.metadata.name.size() <= {BROKER_NAME_LENGTH_MAX}",
            f"metadata.name: brokers take names of at most {BROKER_NAME_LENGTH_MAX} characters; write a "
            "shorter one into spec.name",
        ),
    )

    spec: TopicSpec
    status: TopicStatus = TopicStatus()

    @property
    def topic_name(self) -> str:
        """The topic's name among the brokers."""
        return self.spec.name or self.metadata.name
