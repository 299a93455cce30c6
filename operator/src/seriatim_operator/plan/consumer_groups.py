"""Decides what to do about consumer groups: makes them before consumers join, and deletes them only on request.

Settings that differ from the object are changed at once, except what brokers do only without consumers (the mode) or
what would drop messages of parked keys. The report then says what it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ..spec.consumer_group import PARKED_SHOWN_MAX, ConsumerGroup, RewindStatus
from .actions import Action
from .claims import first_claimant, succeeds
from .consumer_group_settings import ConsumerGroupSettings, differences, wanted_settings
from .dead_letters import NO_TOPICS, TopicsAround, plan_dead_letters
from .topics import ConfirmLoss, ConfirmObject, CreateTopic, HoldObject, ReleaseObject, Surroundings, TellObject

CONSUMER_GROUP_FINALIZER: Final = "seriatim.dev/consumer-group"
"""A finalizer only for ConsumerGroups with `deletionPolicy: Delete`."""

PARKED_TOLD_MAX: Final = 4
"""Partitions with newly parked keys that get an Event each in one pass. One more Event counts the others."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupView:
    """A consumer group as the brokers have it.

    Attributes:
        is_placed: It has cursors.
        is_consumed: A consumer is connected.
        lag: Messages that are not acknowledged; None if no broker could tell.
        partition_count: On how many partitions it has a cursor.
        paused_count: On how many of them it is paused.
        settings: The settings that partitions have, each once; empty: these brokers do not report any.
        consumer_count: How many consumers are connected.
        oldest_s: The age of the oldest message that is not acknowledged, in seconds; None: there is none, or no broker
            could tell.
        parked: How many keys are parked, by partition. Partitions without parked keys are left out.
        untold: Partitions of which no broker reported anything.
        delayed_keys: Keys that wait for their next attempt.
        is_forwarding_late: Messages have been on their way to the dead-letter topic for longer than a look.
    """

    is_placed: bool
    is_consumed: bool = False
    lag: int | None = None
    partition_count: int = 0
    paused_count: int = 0
    settings: tuple[ConsumerGroupSettings, ...] = ()
    consumer_count: int = 0
    oldest_s: float | None = None
    parked: Mapping[int, int] = field(default_factory=dict)
    untold: frozenset[int] = frozenset()
    delayed_keys: int = 0
    is_forwarding_late: bool = False


NO_GROUP: Final = ConsumerGroupView(is_placed=False)
"""The topic exists, but the consumer group has no cursor."""


@dataclass(frozen=True, slots=True)
class CreateConsumerGroup(Action):
    """Write the consumer group's cursors."""

    topic: str
    group: str
    start: str
    settings: ConsumerGroupSettings


@dataclass(frozen=True, slots=True)
class ConfigureConsumerGroup(Action):
    """Give the consumer group the settings in the named fields of the spec."""

    topic: str
    group: str
    settings: ConsumerGroupSettings
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TellKeyParked(Action):
    """Post an Event about the first parked key of a partition. It has the key's error, which the brokers are asked."""

    topic: str
    group: str
    partition: int
    count: int


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
    claimants: Sequence[ConsumerGroup],
    view: ConsumerGroupView | None,
    surroundings: Surroundings,
    *,
    holds: bool,
    around: TopicsAround = NO_TOPICS,
) -> list[ConsumerGroupPlan]:
    """What to do for the objects that name one consumer group of one topic.

    Args:
        claimants: The objects, at least one.
        view: What the brokers have; None if there is no such topic.
        surroundings: Whether the brokers can be asked and changed.
        holds: Whether the operator sets a finalizer on objects with `deletionPolicy: Delete`. Without it, the watch
            reports their deletion.
        around: The topics of the cluster, among them one for dead letters.
    """
    owner = first_claimant(claimants, lambda item: bool(item.status.group_name))
    assert owner is not None
    plans = [_plan_owner(owner, view, surroundings, around, holds=holds)]
    for other in claimants:
        if other is owner:
            continue
        if not succeeds(other, owner):
            finding = ConsumerGroupFinding(
                "ResourceConflict", f"managed by {owner.namespace}/{owner.name}; delete one of them: the other keeps it"
            )
            plans.append(ConsumerGroupPlan(other, _released(other) if other.metadata.is_deleted else (), finding))
        elif surroundings is Surroundings.HERE:
            plans.append(ConsumerGroupPlan(other, (), ConsumerGroupFinding("Creating")))
        else:
            plans.append(_plan_owner(other, None, surroundings, around, holds=holds))
    return plans if holds or surroundings is Surroundings.PAUSED else [_let_go(plan) for plan in plans]


def _let_go(plan: ConsumerGroupPlan) -> ConsumerGroupPlan:
    """The plan, with a step that removes the finalizer: the operator sets none in its own namespace."""
    steps = () if plan.item.metadata.is_deleted else _released(plan.item)
    return replace(plan, steps=(*steps, *plan.steps))


def _plan_owner(
    item: ConsumerGroup,
    view: ConsumerGroupView | None,
    surroundings: Surroundings,
    around: TopicsAround,
    *,
    holds: bool,
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
    letters = plan_dead_letters(item.dead_letter_topic, topic, around)
    had_letters = bool(item.dead_letter_topic) and item.status.dead_letter_topic == item.dead_letter_topic
    if had_letters and any(isinstance(step, CreateTopic) for step in letters.steps):
        letters = replace(letters, steps=(ConfirmLoss(), *letters.steps))
    waits = ConsumerGroupFinding(letters.reason, letters.message, view) if letters.reason else None
    if view.is_placed:
        told, configured = _parked_events(item, view), _configure(item, view)
        if waits is None and not letters.steps:
            steps, waits = configured.steps, configured.waits
        else:
            steps = letters.steps  # the policy names this topic: it comes first
        finding = waits or ConsumerGroupFinding("Configuring" if steps else "Placed", view=view)
        return ConsumerGroupPlan(item, (*held, *told, *steps, *_operations(item, view)), finding)
    if waits is not None:
        return ConsumerGroupPlan(item, held, waits)
    made = CreateConsumerGroup(topic, group, item.spec.start, wanted_settings(item))
    if item.status.group_name:
        held = (*held, ConfirmLoss())  # as for a topic that is missing (`lost-is-not-deleted`)
    if deletes and not holds:
        held = (*held, ConfirmObject())
    return ConsumerGroupPlan(item, (*held, *letters.steps, made, _tell(item)), ConsumerGroupFinding("Creating"))


# ---- settings -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Configured:
    """Steps that change settings, and why some cannot be changed yet."""

    steps: tuple[Action, ...] = ()
    waits: ConsumerGroupFinding | None = None


def _configure(item: ConsumerGroup, view: ConsumerGroupView) -> _Configured:
    """Change the settings that differ. Another mode waits until there are no consumers and no messages set aside."""
    wanted, topic, group = wanted_settings(item), item.spec.topic, item.group_name
    if not view.settings:
        return _Configured()  # no partition has a cursor
    changed = differences(wanted, view.settings)
    waits: ConsumerGroupFinding | None = None
    if "mode" in changed and view.is_consumed:
        text = f"the mode is changed to {wanted.mode} when no consumer is connected: stop the consumers of {group}"
        waits = ConsumerGroupFinding("ConsumersConnected", text, view)
    elif "mode" in changed and view.parked:
        text = (
            f"another mode would drop the messages of parked keys: release or skip them (`seriatim group parked "
            f"{topic} {group}` lists them), and the mode is changed to {wanted.mode}"
        )
        waits = ConsumerGroupFinding("MessagesAside", text, view)
    if waits is not None:
        is_keyed = all(one.is_keyed for one in view.settings)
        takes_retry = is_keyed and not any(one.at_most_once for one in view.settings)
        now = [name for name, counts in (("retry", takes_retry), ("spread", not is_keyed)) if counts]
        changed = tuple(name for name in changed if name in now)
    if not changed:
        return _Configured((), waits)
    step = ConfigureConsumerGroup(topic, group, wanted, changed)
    return _Configured((step, _tell_configured(item, changed)), waits)


def _tell_configured(item: ConsumerGroup, changed: tuple[str, ...]) -> TellObject:
    what = ", ".join(changed)
    ready = item.status.condition("Ready")
    was_placed = ready is not None and ready.reason == "Placed"
    if was_placed and item.status.observed_generation == item.metadata.generation:
        return TellObject("DriftReverted", f"changed by others, and changed back: {what}", is_warning=True)
    return TellObject("GroupConfigured", f"changed: {what}")


# ---- parked keys ----------------------------------------------------------------------------------------


def parked_partitions(item: ConsumerGroup, view: ConsumerGroupView) -> tuple[int, ...]:
    """Partitions with parked keys, at most 64. One of which no broker reported anything counts as before."""
    unknown = (number for number in item.status.parked_partitions if number in view.untold)
    return tuple(sorted({*view.parked, *unknown}))[:PARKED_SHOWN_MAX]


def _parked_events(item: ConsumerGroup, view: ConsumerGroupView) -> tuple[Action, ...]:
    """Events when the first key of a partition is parked, and when none is parked any more."""
    before, now = item.status.parked_partitions, parked_partitions(item, view)
    topic, group = item.spec.topic, item.group_name
    new = [number for number in now if number not in before and len(before) < PARKED_SHOWN_MAX]
    steps: list[Action] = [
        TellKeyParked(topic, group, number, view.parked.get(number, 1)) for number in new[:PARKED_TOLD_MAX]
    ]
    if len(new) > PARKED_TOLD_MAX:
        note = f"keys are parked on {len(new) - PARKED_TOLD_MAX} more partitions: seriatim group parked {topic} {group}"
        steps.append(TellObject("KeyParked", note, is_warning=True))
    if before and not now:
        steps.append(TellObject("KeysReleased", "no key is parked any more"))
    return tuple(steps)


# ---- operations -----------------------------------------------------------------------------------------


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
