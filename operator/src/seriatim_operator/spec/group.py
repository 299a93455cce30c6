"""BrokerGroup: one group of brokers that hold the same messages, and its desired state."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .base import Model, Resource, Status
from .columns import AGE, Column, condition_columns
from .fields import BrokerGroupName, ClusterName
from .rules import ListKeys

GroupState = Literal["Active", "Cordoned", "Draining"]


class BrokerGroupSpec(Model):
    """The desired state of a broker group."""

    cluster: ClusterName
    """The BrokerCluster that the broker group belongs to."""
    group: BrokerGroupName
    """The broker group's name among the brokers."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Its share of the load, relative to the weights of the other broker groups."""
    state: GroupState = "Active"
    """`Cordoned`: open segments leave the broker group and no new ones come, while another complete broker group can
    take them; its copies stay. `Draining`: in addition, its copies are made on other broker groups, so that it can be
    removed."""


class MemberStatus(Model):
    """One member of the broker group."""

    slot: Annotated[int, Field(ge=0)]
    """Its place in the broker group, from 0."""
    broker: Annotated[str, Field(max_length=300)] = ""
    """The Broker object that has the slot."""
    node: Annotated[str, Field(max_length=253)] = ""
    """The node on which it runs."""
    role: Annotated[str, Field(max_length=32)] = ""
    """Whether it is master of any open segment: `Master` or `Slave`."""
    ready: bool = False
    """Whether its pod is ready."""
    incarnation: Annotated[str, Field(max_length=64)] = ""
    """The identity of its disk."""


class BrokerGroupStatus(Status):
    """The observed state of a broker group."""

    CONDITIONS: ClassVar = ("Ready", "Whole", "Drained")

    members: Annotated[tuple[MemberStatus, ...], Field(max_length=16), ListKeys(("slot",))] = ()
    """Its members, ordered by slot."""
    brokers: Annotated[str, Field(max_length=4096)] = ""
    """The Broker objects of all members, ordered by slot, as one text for `kubectl get`."""
    nodes: Annotated[str, Field(max_length=4096)] = ""
    """The nodes of all members, ordered by slot, as one text for `kubectl get`; `-` if a member has no node."""
    heads: int | None = None
    """How many open segments it has. Left out until the brokers have counted them."""
    segments: int | None = None
    """How many segments it has copies of. Left out until the brokers have counted them."""


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
