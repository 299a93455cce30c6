"""ConsumerGroup: a consumer group's place in a topic, which is made before the first consumer joins."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from .base import Model, Resource, Status
from .columns import AGE, Column, condition_columns
from .fields import BROKER_NAME_LENGTH_MAX, ClusterName, DeletionPolicy, LegalName
from .rules import Rule, immutable

PLACE_PATTERN: Final = (
    r"^(Earliest|Latest|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2}))$"
)
Place = Annotated[str, Field(pattern=PLACE_PATTERN, max_length=40)]
RewindState = Literal["Done", "Refused"]
GroupMode = Literal["Exclusive"]
ConsumerGroupState = Literal["Idle", "Active", "Behind", "Unknown"]


class RewindSpec(Model):
    """A rewind or a skip of the consumer group on all partitions. The operator carries it out once."""

    to: Place
    """`Earliest`, `Latest`, or a time like `2026-01-31T08:00:00Z`: the first message that was appended then or later.
    """
    request_id: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """A text that you choose. To have the rewind carried out again, choose another one."""


class RewindStatus(Model):
    """The last rewind that was requested, and its result."""

    request_id: Annotated[str, Field(max_length=64)] = ""
    """The `requestId` of `spec.rewind`."""
    state: RewindState = "Done"
    """`Done`: the consumer group is at the new place. `Refused`: there is no such place, and the consumer group is
    where it was."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """On how many partitions it was done, or why it was refused."""


class ConsumerGroupSpec(Model):
    """The desired state of a consumer group."""

    cluster: ClusterName
    """The BrokerCluster, in the same namespace."""
    topic: Annotated[LegalName, immutable("a consumer group's place is in one topic; make another object")]
    """The topic's name among the brokers."""
    group: Annotated[LegalName, immutable("a consumer group keeps its name; make another object")] | None = None
    """The consumer group's name among the brokers. Use this field if the name is not valid for a Kubernetes object.
    Without it, the consumer group has the object's name."""
    start: Annotated[Place, immutable("a group starts once; make another one to start elsewhere")] = "Earliest"
    """Where a new consumer group begins: `Earliest`, `Latest`, or a time like `2026-01-31T08:00:00Z`. A time is looked
    up once."""
    paused: bool | None = None
    """`true`: brokers give the consumer group no messages. `false`: they do. Without it, the operator leaves the choice
    to `seriatim group pause` and `resume`."""
    rewind: RewindSpec | None = None
    """Moves the consumer group to another place. Consumers that run go on from there and get an event about it."""
    mode: Annotated[GroupMode, immutable("the place of a consumer group belongs to its mode; make another object")] = (
        "Exclusive"
    )
    """`Exclusive`: one consumer at a time gets the messages of a partition, in their order."""
    deletion_policy: DeletionPolicy = "Retain"
    """What happens to the consumer group's place when this object is deleted: `Retain` keeps it, `Delete` deletes
    it."""


class ConsumerGroupStatus(Status):
    """The observed state of a consumer group. The lag is given in wide steps, so that the status is seldom written."""

    CONDITIONS: ClassVar = ("Ready",)

    group_name: Annotated[str, Field(max_length=BROKER_NAME_LENGTH_MAX)] = ""
    """The consumer group's name among the brokers."""
    state: ConsumerGroupState = "Unknown"
    """`Active`: a consumer is connected. `Behind`: a consumer is connected, and more than 10,000 messages are not
    acknowledged. `Idle`: no consumer is connected."""
    lag_bucket: Annotated[str, Field(max_length=32)] = ""
    """Roughly how many messages are not acknowledged yet."""
    paused: bool = False
    """Whether the consumer group is paused on at least one partition."""
    rewind: RewindStatus | None = None
    """The last rewind that was requested, and its result."""


class ConsumerGroup(Resource):
    """A consumer group's place in a topic."""

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
            f"metadata.name: brokers take names of at most {BROKER_NAME_LENGTH_MAX} characters; write a "
            "shorter one into spec.group",
        ),
    )

    spec: ConsumerGroupSpec
    status: ConsumerGroupStatus = ConsumerGroupStatus()

    @property
    def group_name(self) -> str:
        """The consumer group's name among the brokers."""
        return self.spec.group or self.metadata.name
