"""Topic: a topic of a cluster. The brokers' topic follows the object, not the other way round."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from .base import Model, Resource, Status
from .columns import AGE, Column, condition_columns
from .fields import BROKER_NAME_LENGTH_MAX, ClusterName, DeletionPolicy, LegalName
from .rules import ListKeys, Rule, immutable
from .values import DURATION_PATTERN, FOREVER, parse_retention_ms

PARTITIONS_MAX: Final = 20_000
BYTES_MAX: Final = 1 << 20
"""Of a batch and of a message, in every broker."""

CHAINS_SHOWN_MAX: Final = 64
"""Partitions of which the status tells the chain; with more, the command shows them."""

Durability = Literal["Flushed", "Replicated"]
TopicState = Literal["Healthy", "OneCopy", "Unsettled", "Lost", "Unknown"]


class TopicSpec(Model):
    """What is wanted of a topic."""

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
    retention: Annotated[
        str,
        Field(max_length=40),
        Rule(
            f"self == '{FOREVER}' || self.matches('{DURATION_PATTERN}')",
            f"write a duration with units d, h, m or s, such as 72h or 7d, or {FOREVER}",
        ),
        Rule(f"self == '{FOREVER}' || self.matches('[1-9]')", "keep messages for at least a second"),
    ] = "72h"
    """How long messages are to be kept, or `Forever`. This version stores it and deletes no message by its age."""
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
    """Messages in closed segments, as of the last change of a chain."""
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
