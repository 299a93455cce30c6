"""Broker: one incarnation of a member: one pod name, one disk. Written by the operator only.

A disk that is lost takes its Broker with it for good; the slot gets another Broker, with another `uid`, that says which
incarnation it replaces. So nothing that was said of the old disk can be taken for the new one.
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
    """Which member it is, and of what disk; nothing of it ever changes."""

    cluster: ClusterName
    """The BrokerCluster that it belongs to."""
    group: BrokerGroupName
    """Its broker group, as the brokers call it."""
    slot: Annotated[int, Field(ge=0, le=15), immutable("a Broker keeps its slot")]
    """Its place in the group."""
    uid: Annotated[
        str,
        Field(min_length=UID_LENGTH, max_length=UID_LENGTH),
        matches(UID_PATTERN, "four small letters or digits"),
        immutable("another disk is another Broker"),
    ]
    """Tells this disk from others that held the slot; part of the names of pod and volume claim."""
    replaces: (
        Annotated[str, Field(max_length=64), immutable("what a disk replaces is decided when it is made")] | None
    ) = None
    """The incarnation whose disk is lost, and whose place this one takes."""


class DiskLost(Model):
    """Why the disk is given up."""

    at: datetime
    """When it was marked; nothing is deleted in the same pass."""
    proof: Annotated[str, Field(max_length=2048)]
    """What proved it."""
    incarnation: Annotated[str, Field(max_length=64)] = ""
    """The identity of the disk that was given up; empty if it never joined."""
    run: int | None = None
    """The newest run of its process, noted with the proof and while its pod was there: the one that is certified."""


class Released(Model):
    """When what belonged to the disk was seen to be gone."""

    at: datetime
    """When."""


class BrokerStatus(Status):
    """What is true of it."""

    CONDITIONS: ClassVar = ("Ready", "Scheduled", "StorageBound", "DiskHealthy")

    phase: BrokerPhase = "Pending"
    """In one word: `DiskLost` and `Released` are final."""
    node: Annotated[str, Field(max_length=253)] = ""
    """The node that it runs on, or ran on last."""
    incarnation: Annotated[str, Field(max_length=64)] = ""
    """The identity that its disk bears."""
    run: int | None = None
    """The newest run of the process that is known."""
    disk: Annotated[str, Field(max_length=512)] = ""
    """Its claim and its volume."""
    disk_lost: DiskLost | None = None
    """Set once, when the disk is given up."""
    released: Released | None = None
    """Set once, when pod and claim are seen to be gone."""


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
            # Not simply one comparison: the length of a text made of a number is not known beforehand, nor its cost.
            "self.metadata.name.startsWith(self.spec.cluster + '-' + self.spec.group + '-') && "
            "self.metadata.name.endsWith('-' + self.spec.uid)",
            "metadata.name is <cluster>-<group>-<slot>-<uid>: leave Broker objects to the operator",
        ),
    )

    spec: BrokerSpec
    status: BrokerStatus = BrokerStatus()
