"""ConsumerGroup: the place of a group of consumers in a topic, made before the first of them joins."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .base import Model, Resource, Status
from .columns import AGE, Column, condition_columns
from .fields import BROKER_NAME_LENGTH_MAX, ClusterName, DeletionPolicy, LegalName
from .rules import Rule, immutable

StartPosition = Literal["Earliest", "Latest"]
GroupMode = Literal["Exclusive"]
ConsumerGroupState = Literal["Idle", "Active", "Behind", "Unknown"]


class ConsumerGroupSpec(Model):
    """What is wanted of a consumer group."""

    cluster: ClusterName
    """The BrokerCluster, in the same namespace."""
    topic: Annotated[LegalName, immutable("a group's place is a place in one topic; make another object")]
    """The topic, as the brokers call it."""
    group: Annotated[LegalName, immutable("a group keeps its name; make another object")] | None = None
    """What the brokers call the group, where that is no name for Kubernetes; left out, as the object."""
    start: Annotated[StartPosition, immutable("a group starts once; make another one to start elsewhere")] = "Earliest"
    """Where a group that is new begins."""
    mode: Annotated[GroupMode, immutable("the place of a group is kept in its mode; make another object")] = "Exclusive"
    """`Exclusive`: one consumer at a time has a partition, in its order."""
    deletion_policy: DeletionPolicy = "Retain"
    """What becomes of the group's place when this object is deleted."""


class ConsumerGroupStatus(Status):
    """What is true of a consumer group. The lag is told in steps, so that it is written rarely."""

    CONDITIONS: ClassVar = ("Ready",)

    group_name: Annotated[str, Field(max_length=BROKER_NAME_LENGTH_MAX)] = ""
    """What the brokers call it."""
    state: ConsumerGroupState = "Unknown"
    """`Active`: somebody consumes. `Behind`: and has more than 10,000 messages before it. `Idle`: nobody does."""
    lag_bucket: Annotated[str, Field(max_length=32)] = ""
    """About how many messages are not acknowledged yet."""


class ConsumerGroup(Resource):
    """The place of a group of consumers in a topic."""

    KIND: ClassVar = "ConsumerGroup"
    PLURAL: ClassVar = "consumergroups"
    SINGULAR: ClassVar = "consumergroup"
    SHORT_NAME: ClassVar = "scg"
    COLUMNS: ClassVar = (
        Column("Cluster", ".spec.cluster"),
        Column("Topic", ".spec.topic"),
        *condition_columns(),
        Column("State", ".status.state"),
        Column("Lag", ".status.lagBucket"),
        AGE,
    )

    RULES: ClassVar = (
        Rule(
            f"has(self.spec.group) || self.metadata.name.size() <= {BROKER_NAME_LENGTH_MAX}",
            f"metadata.name: brokers take names of at most {BROKER_NAME_LENGTH_MAX} characters; say a shorter one in "
            "spec.group",
        ),
    )

    spec: ConsumerGroupSpec
    status: ConsumerGroupStatus = ConsumerGroupStatus()

    @property
    def group_name(self) -> str:
        """What the brokers call it."""
        return self.spec.group or self.metadata.name
