"""BrokerGroup: one group of brokers that hold the same messages, and what is wanted of it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .base import Model, Resource, Status
from .columns import AGE, Column, condition_columns
from .fields import BrokerGroupName, ClusterName
from .rules import ListKeys

GroupState = Literal["Active", "Cordoned", "Draining"]


class BrokerGroupSpec(Model):
    """What is wanted of a group."""

    cluster: ClusterName
    """The BrokerCluster that the group belongs to."""
    group: BrokerGroupName
    """The group's name among the brokers."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Its share of the load, against the other groups."""
    state: GroupState = "Active"
    """`Cordoned`: it takes no new segments. `Draining`: what it holds is copied elsewhere, before it is removed."""


class MemberStatus(Model):
    """One member of the group."""

    slot: Annotated[int, Field(ge=0)]
    """Its place in the group."""
    broker: Annotated[str, Field(max_length=300)] = ""
    """The Broker object that holds the place."""
    node: Annotated[str, Field(max_length=253)] = ""
    """The node that it runs on."""
    role: Annotated[str, Field(max_length=32)] = ""
    """Whether it is master of any open segment: `Master` or `Slave`."""
    ready: bool = False
    """Whether it serves."""
    incarnation: Annotated[str, Field(max_length=64)] = ""
    """The identity of its disk."""


class BrokerGroupStatus(Status):
    """What is true of a group."""

    CONDITIONS: ClassVar = ("Ready", "Whole", "Drained")

    members: Annotated[tuple[MemberStatus, ...], Field(max_length=16), ListKeys(("slot",))] = ()
    """Its members, by slot."""
    brokers: Annotated[str, Field(max_length=4096)] = ""
    """The Broker objects of all members, by slot, in one text for lists."""
    nodes: Annotated[str, Field(max_length=4096)] = ""
    """The nodes of all members, by slot, in one text for lists; `-` for one that has none."""
    heads: int | None = None
    """Open segments on it; left out while nobody has counted."""
    segments: int | None = None
    """Segments of which it holds a copy; left out while nobody has counted."""


class BrokerGroup(Resource):
    """One group of brokers that hold the same messages."""

    KIND: ClassVar = "BrokerGroup"
    PLURAL: ClassVar = "brokergroups"
    SINGULAR: ClassVar = "brokergroup"
    SHORT_NAME: ClassVar = "sgroup"
    COLUMNS: ClassVar = (
        Column("Cluster", ".spec.cluster"),
        Column("Group", ".spec.group"),
        Column("State", ".spec.state"),
        *condition_columns(),
        Column("Whole", '.status.conditions[?(@.type=="Whole")].status'),
        Column("Heads", ".status.heads", "integer"),
        Column("Segments", ".status.segments", "integer"),
        Column("Brokers", ".status.brokers", is_wide=True),
        Column("Nodes", ".status.nodes", is_wide=True),
        AGE,
    )

    spec: BrokerGroupSpec
    status: BrokerGroupStatus = BrokerGroupStatus()
