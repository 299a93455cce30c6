"""Broker: one incarnation of a member, with one pod name and one disk. Only the operator writes it.

If the disk is lost, its Broker is lost too, for good. The slot gets another Broker with another `uid`, which names the
incarnation that it replaces. So no statement about the old disk can be applied to the new one by mistake.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from .base import Model, Resource, Status
from .columns import AGE, Column, condition_columns
from .fields import BrokerGroupName, ClusterName
from .rules import Rule, immutable, matches

UID_LENGTH: Final = 4
UID_PATTERN: Final = "^[a-z0-9]{4}$"

BrokerPhase = Literal["Pending", "Running", "Stopped", "DiskLost", "Released"]


class BrokerSpec(Model):
    """Which member it is and which disk it has. No field of it ever changes."""

    cluster: ClusterName
    """The BrokerCluster that it belongs to."""
    group: BrokerGroupName
    """The name of its broker group among the brokers."""
    slot: Annotated[int, Field(ge=0, le=15), immutable("a Broker keeps its slot")]
    """Its place in the broker group, from 0."""
    uid: Annotated[
        str,
        Field(min_length=UID_LENGTH, max_length=UID_LENGTH),
        matches(UID_PATTERN, "four small letters or digits"),
        immutable("another disk is another Broker"),
    ]
    """Distinguishes this disk from other disks that had the slot. It is part of the names of the pod and the volume
    claim."""
    replaces: Annotated[str, Field(max_length=64), immutable("it is decided when the Broker is made")] | None = None
    """The incarnation whose disk is lost and whose slot this Broker takes."""


class DiskLost(Model):
    """Why the operator gives up the disk."""

    at: datetime
    """When the operator marked the disk as lost. It deletes nothing in the same pass."""
    proof: Annotated[str, Field(max_length=2048)]
    """What proved that the disk is lost."""
    incarnation: Annotated[str, Field(max_length=64)] = ""
    """The identity of the lost disk. Empty if the disk never joined."""
    run: int | None = None
    """The newest member run on the disk, noted with the proof and while the pod was there. The death certificate names
    this member run."""


class Released(Model):
    """When the operator saw that the pod and the claim of the lost disk are gone."""

    at: datetime
    """When the operator saw it."""


class Served(Model):
    """With what the broker served last."""

    template: Annotated[str, Field(max_length=64)]
    """The hash of its pod's template."""
    image: Annotated[str, Field(max_length=512)]
    """The image of its pod."""


class BrokerStatus(Status):
    """The observed state of one incarnation."""

    CONDITIONS: ClassVar = ("Ready", "Scheduled", "StorageBound", "DiskHealthy")

    phase: BrokerPhase = "Pending"
    """The state in one word. `DiskLost` is followed only by `Released`, and `Released` is final."""
    node: Annotated[str, Field(max_length=253)] = ""
    """The node on which it runs, or ran last."""
    node_uid: Annotated[str, Field(max_length=64)] = ""
    """The UID of the Node object on which it served last. A node that was made again has another one."""
    incarnation: Annotated[str, Field(max_length=64)] = ""
    """The identity that is on its disk."""
    run: int | None = None
    """The newest member run that the operator knows."""
    disk: Annotated[str, Field(max_length=512)] = ""
    """The names of its claim and its volume."""
    served: Served | None = None
    """With what it served last. If the wanted template does not work, a missing pod is made with this image."""
    disk_lost: DiskLost | None = None
    """Set once, when the operator marks the disk as lost."""
    released: Released | None = None
    """Set once, when the pod and the claim of a lost disk are gone."""


class Broker(Resource):
    """One incarnation of a member."""

    KIND: ClassVar = "Broker"
    PLURAL: ClassVar = "brokers"
    SINGULAR: ClassVar = "broker"
    SHORT_NAME: ClassVar = "sbroker"
    COLUMNS: ClassVar = (
        Column("Cluster", ".spec.cluster", is_wide=True),
        Column("Group", ".spec.group"),
        Column("Slot", ".spec.slot", "integer"),
        Column("Phase", ".status.phase"),
        Column("Node", ".status.node"),
        *condition_columns(),
        Column("Incarnation", ".status.incarnation", is_wide=True),
        Column("Run", ".status.run", "integer", is_wide=True),
        AGE,
    )

    RULES: ClassVar = (
        Rule(
            # Not one comparison with the whole name: the API server cannot know how long a number is as text. So it
            # could not estimate what the rule costs, and would refuse it.
            "self.metadata.name.startsWith(self.spec.cluster + '-' + self.spec.group + '-') && "
            "self.metadata.name.endsWith('-' + self.spec.uid)",
            "metadata.name is <cluster>-<group>-<slot>-<uid>: leave Broker objects to the operator",
        ),
    )

    spec: BrokerSpec
    status: BrokerStatus = BrokerStatus()
