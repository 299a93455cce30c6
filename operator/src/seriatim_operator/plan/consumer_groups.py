"""Decides what to do about consumer groups: makes them before consumers join, and deletes them only on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..spec.consumer_group import ConsumerGroup, RewindStatus
from .actions import Action
from .claims import first_claimant, succeeds
from .topics import ConfirmObject, HoldObject, ReleaseObject, Surroundings, TellObject

CONSUMER_GROUP_FINALIZER: Final = "seriatim.dev/consumer-group"
"""A finalizer only for ConsumerGroups with `deletionPolicy: Delete`."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupView:
    """A consumer group as the brokers have it.

    Attributes:
        is_placed: It has cursors.
        is_consumed: A consumer is connected.
        lag: Messages that are not acknowledged; None if no broker could tell.
        partition_count: On how many partitions it has a cursor.
        paused_count: On how many of them it is paused.
    """

    is_placed: bool
    is_consumed: bool = False
    lag: int | None = None
    partition_count: int = 0
    paused_count: int = 0


NO_GROUP: Final = ConsumerGroupView(is_placed=False)
"""The topic exists, but the consumer group has no cursor."""


@dataclass(frozen=True, slots=True)
class CreateConsumerGroup(Action):
    """Write the consumer group's cursors."""

    topic: str
    group: str
    start: str


@dataclass(frozen=True, slots=True)
class HoldConsumerGroup(Action):
    """Pause the consumer group, or resume it."""

    topic: str
    group: str
    paused: bool


@dataclass(frozen=True, slots=True)
class RewindConsumerGroup(Action):
    """Move the consumer group to another place, once for each `name`. No other request has the same `name`."""

    topic: str
    group: str
    to: str
    request_id: str
    name: str


@dataclass(frozen=True, slots=True)
class DeleteConsumerGroup(Action):
    """Delete the consumer group's cursors."""

    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupFinding:
    """What to report about an object's readiness."""

    reason: str
    message: str = ""
    view: ConsumerGroupView | None = None
    keeps_status: bool = False
    rewind: RewindStatus | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupPlan:
    """Steps for one object, in order, and what to report."""

    item: ConsumerGroup
    steps: tuple[Action, ...]
    finding: ConsumerGroupFinding


def plan_consumer_groups(
    claimants: Sequence[ConsumerGroup], view: ConsumerGroupView | None, surroundings: Surroundings, *, holds: bool
) -> list[ConsumerGroupPlan]:
    """What to do for the objects that name one consumer group of one topic.

    Args:
        claimants: The objects, at least one.
        view: What the brokers have; None if there is no such topic.
        surroundings: Whether the brokers can be asked and changed.
        holds: Whether the operator sets a finalizer on objects with `deletionPolicy: Delete`. Without it, the watch
            reports their deletion.
    """
    owner = first_claimant(claimants, lambda item: bool(item.status.group_name))
    assert owner is not None
    plans = [_plan_owner(owner, view, surroundings, holds=holds)]
    for other in claimants:
        if other is owner:
            continue
        if not succeeds(other, owner):
            finding = ConsumerGroupFinding(
                "ResourceConflict", f"managed by {owner.namespace}/{owner.name}; delete one of them"
            )
            plans.append(ConsumerGroupPlan(other, _released(other) if other.metadata.is_deleted else (), finding))
        elif surroundings is Surroundings.HERE:
            plans.append(ConsumerGroupPlan(other, (), ConsumerGroupFinding("Creating")))
        else:
            plans.append(_plan_owner(other, None, surroundings, holds=holds))
    return plans if holds or surroundings is Surroundings.PAUSED else [_let_go(plan) for plan in plans]


def _let_go(plan: ConsumerGroupPlan) -> ConsumerGroupPlan:
    """The plan, with a step that removes the finalizer: the operator sets none in its own namespace."""
    steps = () if plan.item.metadata.is_deleted else _released(plan.item)
    return replace(plan, steps=(*steps, *plan.steps))


def _plan_owner(
    item: ConsumerGroup, view: ConsumerGroupView | None, surroundings: Surroundings, *, holds: bool
) -> ConsumerGroupPlan:
    is_deleted, is_held = item.metadata.is_deleted, CONSUMER_GROUP_FINALIZER in item.metadata.finalizers
    deletes = item.spec.deletion_policy == "Delete"
    cluster, topic, group = item.spec.cluster, item.spec.topic, item.group_name
    if surroundings is Surroundings.GONE:
        missing = ConsumerGroupFinding("ClusterNotFound", f"there is no BrokerCluster {cluster} in {item.namespace}")
        return ConsumerGroupPlan(item, _released(item) if is_deleted else (), missing)
    if surroundings is Surroundings.PAUSED:
        return ConsumerGroupPlan(
            item, (), ConsumerGroupFinding("Paused", f"BrokerCluster {cluster} is paused", keeps_status=True)
        )
    if is_deleted and not (deletes and is_held):
        return ConsumerGroupPlan(item, _released(item), ConsumerGroupFinding("Deleting"))
    if surroundings is Surroundings.SILENT:
        silent = ConsumerGroupFinding("BrokersSilent", f"no broker of {cluster} answers", keeps_status=True)
        return ConsumerGroupPlan(item, (), silent)
    if is_deleted:
        there = view is not None and view.is_placed
        steps = (DeleteConsumerGroup(topic, group), *_released(item)) if there else _released(item)
        return ConsumerGroupPlan(item, steps, ConsumerGroupFinding("Deleting"))
    if view is None:
        return ConsumerGroupPlan(
            item, (), ConsumerGroupFinding("TopicNotFound", f"there is no topic {topic}; make it first")
        )
    held: tuple[Action, ...] = ()
    if holds and deletes != is_held:
        held = (HoldObject(),) if deletes else (ReleaseObject(),)
    if view.is_placed:
        return ConsumerGroupPlan(item, (*held, *_operations(item, view)), ConsumerGroupFinding("Placed", view=view))
    made = CreateConsumerGroup(topic, group, item.spec.start)
    if deletes and not holds:
        held = (*held, ConfirmObject())
    return ConsumerGroupPlan(item, (*held, made, _tell(item)), ConsumerGroupFinding("Creating"))


def _operations(item: ConsumerGroup, view: ConsumerGroupView) -> tuple[Action, ...]:
    """The steps to pause, rewind or resume, in this order. A rewind that the status reports is not done again."""
    spec, done = item.spec, item.status.rewind
    steps: list[Action] = []
    if spec.paused and view.paused_count < view.partition_count:
        steps.append(HoldConsumerGroup(spec.topic, item.group_name, paused=True))
        steps.append(TellObject("GroupPaused", f"brokers give consumer group {item.group_name} nothing more"))
    if spec.rewind is not None and (done is None or done.request_id != spec.rewind.request_id):
        asked = spec.rewind
        name = f"{item.uid}/{asked.request_id}"
        steps.append(RewindConsumerGroup(spec.topic, item.group_name, asked.to, asked.request_id, name))
    if spec.paused is False and view.paused_count:
        steps.append(HoldConsumerGroup(spec.topic, item.group_name, paused=False))
        steps.append(TellObject("GroupResumed", f"brokers give consumer group {item.group_name} messages again"))
    return tuple(steps)


def _tell(item: ConsumerGroup) -> TellObject:
    name = f"consumer group {item.group_name} of topic {item.spec.topic}"
    if item.status.group_name:
        note = f"{name} was deleted by others: it is made again, and begins at {item.spec.start}"
        return TellObject("GroupRecreated", note, is_warning=True)
    return TellObject("GroupCreated", f"{name}, from {item.spec.start}")


def _released(item: ConsumerGroup) -> tuple[Action, ...]:
    return (ReleaseObject(),) if CONSUMER_GROUP_FINALIZER in item.metadata.finalizers else ()
