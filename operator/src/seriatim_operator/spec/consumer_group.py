"""ConsumerGroup: the place of a group of consumers in a topic, made before the first of them joins."""

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
    """A rewind, or a skip, of the group on all partitions. It is carried out once."""

    to: Place
    """`Earliest`, `Latest`, or a time like `2026-01-31T08:00:00Z`: the first message that was appended then or later.
    """
    request_id: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Chosen by you. To have it done again, choose another one."""


class RewindStatus(Model):
    """The last rewind that was asked for, and what became of it."""

    request_id: Annotated[str, Field(max_length=64)] = ""
    """Of `spec.rewind`."""
    state: RewindState = "Done"
    """`Done`: the group went there. `Refused`: there is no such place, and the group is where it was."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """On how many partitions, or why not."""


class ConsumerGroupSpec(Model):
    """What is wanted of a consumer group."""

    cluster: ClusterName
    """The BrokerCluster, in the same namespace."""
    topic: Annotated[LegalName, immutable("a group's place is a place in one topic; make another object")]
    """The topic, as the brokers call it."""
    group: Annotated[LegalName, immutable("a group keeps its name; make another object")] | None = None
    """What the brokers call the group, where that is no name for Kubernetes; left out, as the object."""
    start: Annotated[Place, immutable("a group starts once; make another one to start elsewhere")] = "Earliest"
    """Where a group that is new begins: `Earliest`, `Latest`, or a time like `2026-01-31T08:00:00Z`. A time is looked
    up once."""
    paused: bool | None = None
    """Whether the group is given nothing. Left out: as people have it (`seriatim group pause`, `resume`)."""
    rewind: RewindSpec | None = None
    """Have the group begin anew elsewhere. Consumers that run go on from there, and are told."""
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
    paused: bool = False
    """Whether the group is given nothing, on some partition at least."""
    rewind: RewindStatus | None = None
    """The last rewind that was asked for, and what became of it."""


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
