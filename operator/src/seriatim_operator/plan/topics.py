"""What is to be done about topics: a pure function of the objects and of what the brokers have.

The brokers' topic follows the object. What was changed behind the operator is changed back, except what only more loss
could repair: partitions are never taken away, messages never deleted unless the object that says so is itself deleted,
says `deletionPolicy: Delete`, and is the one that owns the topic.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Final, Literal

from ..spec.topic import Topic, TopicSpec
from .actions import Action
from .claims import first_claimant, succeeds

TOPIC_FINALIZER: Final = "seriatim.dev/topic"
"""On a Topic with `deletionPolicy: Delete` only, so that others never hold up the deletion of a namespace.

And never where the operator itself lives: whoever deletes that namespace takes the operator away first."""

_INCARNATIONS: Final = uuid.UUID("6f1d3f0a-8a53-4d6e-9c0b-6f6f3f1f2a10")
"""Where the incarnations that we make are named."""


class Surroundings(Enum):
    """How the cluster of a topic is."""

    HERE = "its brokers answer"
    SILENT = "its brokers do not answer, or have not told all topics yet"
    PAUSED = "nothing is to be touched"
    GONE = "there is no such cluster, or it is being deleted"


# ---- what the brokers have ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic's settings, in the brokers' units."""

    flush: bool
    retention_ms: int
    batch_size_bytes_max: int
    message_size_bytes_max: int
    chain_width: int
    retention_bytes: int = 0
    retain_unread: bool = False
    unread_ms_max: int = 0
    unread_bytes_max: int = 0

    @classmethod
    def of(cls, spec: TopicSpec) -> TopicSettings:
        """What an object asks for."""
        return cls(
            flush=spec.durability == "Flushed",
            retention_ms=spec.retention_ms,
            batch_size_bytes_max=spec.batch_size_bytes_max,
            message_size_bytes_max=spec.message_size_bytes_max,
            chain_width=spec.chain_width,
            retention_bytes=spec.retention_bytes,
            retain_unread=spec.retain_unread,
            unread_ms_max=spec.unread_ms_max,
            unread_bytes_max=spec.unread_bytes_max,
        )


@dataclass(frozen=True, slots=True)
class ChainView:
    """The chain of one partition, in short."""

    partition: int
    epoch: int
    segment: int
    group: str
    master: str
    segment_count: int
    one_copy_count: int = 0
    unsettled_count: int = 0
    lost_count: int = 0
    sealed_messages: int = 0
    first_offset: int = 0
    dropped_messages: int | None = None


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as the brokers have it.

    Attributes:
        phase: As its record says.
        chains: By partition; one that was not told yet is missing.
        retention_acts: Brokers drop what is beyond the retention.
    """

    name: str
    incarnation: str
    phase: Literal["CREATING", "READY", "DELETING"]
    settings: TopicSettings
    partition_count: int
    chains: Mapping[int, ChainView] = field(default_factory=dict)
    retention_acts: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether all its partitions take messages, as far as was told."""
        return self.phase == "READY" and all(number in self.chains for number in range(self.partition_count))


# ---- what is to be done ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateTopic(Action):
    """Make the topic. The same incarnation again makes it once."""

    name: str
    partitions: int
    settings: TopicSettings
    incarnation: str


@dataclass(frozen=True, slots=True)
class UpdateTopic(Action):
    """Add partitions (0: as many as there are), or change the settings that are named."""

    name: str
    incarnation: str
    partitions: int
    settings: TopicSettings
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteTopic(Action):
    """Delete the topic with its messages."""

    name: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class HoldObject(Action):
    """Put the finalizer on the object: what it owns is deleted before it goes."""


@dataclass(frozen=True, slots=True)
class ConfirmObject(Action):
    """Ask the API whether the object is still there: nothing is made for one whose end was told already."""


@dataclass(frozen=True, slots=True)
class ReleaseObject(Action):
    """Take the finalizer off, or forget the object if it is gone: nothing is left to do for it."""


@dataclass(frozen=True, slots=True)
class TellObject(Action):
    """An Event on the object."""

    reason: str
    note: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """What is to be reported of an object's readiness.

    Attributes:
        reason: A word of the closed list.
        message: For people, with the remedy.
        view: The topic, if the object has it.
        is_passing: A step that is under way: reported only if it takes long.
        keeps_status: Nothing new is known; what was reported of the topic stays.
    """

    reason: str
    message: str = ""
    view: TopicView | None = None
    is_passing: bool = False
    keeps_status: bool = False


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """Steps for one object, in order, and what to report."""

    topic: Topic
    steps: tuple[Action, ...]
    finding: Finding


def plan_topics(
    desired: Iterable[Topic], observed: Mapping[str, TopicView], surroundings: Surroundings, *, holds: bool
) -> list[TopicPlan]:
    """What is to be done for each object of one cluster, in the order of the objects' ages.

    Args:
        desired: Objects of one cluster; at least all that claim the same topics. One that is gone already, and whose
            last words are to be followed, is among them as one that is being deleted and held.
        observed: The brokers' topics by name; complete, unless `surroundings` says otherwise.
        surroundings: How the cluster is.
        holds: Whether a finalizer is put on objects with `deletionPolicy: Delete`; else the watch tells their end.
    """
    claims: dict[str, list[Topic]] = defaultdict(list)
    for topic in desired:
        claims[topic.topic_name].append(topic)
    plans = [
        plan
        for name, claimants in claims.items()
        for plan in _plan_name(claimants, observed.get(name), surroundings, holds=holds)
    ]
    return plans if holds or surroundings is Surroundings.PAUSED else [_let_go(plan) for plan in plans]


def _plan_name(
    claimants: Sequence[Topic], view: TopicView | None, surroundings: Surroundings, *, holds: bool
) -> list[TopicPlan]:
    owner = first_claimant(claimants, lambda topic: view is not None and owns(topic, view))
    assert owner is not None
    plans = [_plan_owner(owner, view, surroundings, holds=holds)]
    for other in claimants:
        if other is owner:
            continue
        if not succeeds(other, owner):
            plans.append(_plan_loser(other, owner, surroundings))
        elif surroundings is Surroundings.HERE:
            text = "the topic of the object that had this one's name is being deleted"
            plans.append(TopicPlan(other, (), Finding("Creating", text, is_passing=True)))
        else:
            plans.append(_plan_owner(other, None, surroundings, holds=holds))
    return plans


def _plan_loser(topic: Topic, owner: Topic, surroundings: Surroundings) -> TopicPlan:
    finding = Finding("ResourceConflict", f"managed by {owner.namespace}/{owner.name}; delete one of the two objects")
    if surroundings is Surroundings.PAUSED:
        return TopicPlan(topic, (), finding)
    if topic.metadata.is_deleted:
        note = f"topic {topic.topic_name} stays: {owner.namespace}/{owner.name} has it"
        return TopicPlan(topic, _released(topic, TellObject("TopicKept", note)), finding)
    known = topic.status.condition("Ready")
    is_news = known is None or known.reason != finding.reason
    tell = (TellObject(finding.reason, finding.message, is_warning=True),) if is_news else ()
    return TopicPlan(topic, tell, finding)


def _plan_owner(topic: Topic, view: TopicView | None, surroundings: Surroundings, *, holds: bool) -> TopicPlan:
    """The one place that branches; what is done in each case stands in a function of its own."""
    if surroundings is Surroundings.GONE:
        missing = Finding("ClusterNotFound", f"there is no BrokerCluster {topic.spec.cluster} in {topic.namespace}")
        return TopicPlan(topic, _released(topic) if topic.metadata.is_deleted else (), missing)
    if surroundings is Surroundings.PAUSED:
        paused = Finding("Paused", f"BrokerCluster {topic.spec.cluster} is paused", keeps_status=True)
        return TopicPlan(topic, (), paused)
    if topic.metadata.is_deleted and not _deletes(topic):
        return TopicPlan(topic, _released(topic), Finding("Deleting", is_passing=True))
    if surroundings is Surroundings.SILENT:
        silent = Finding("BrokersSilent", f"no broker of {topic.spec.cluster} answers", keeps_status=True)
        return TopicPlan(topic, (), silent)
    if topic.metadata.is_deleted:
        return _plan_deletion(topic, view)
    renamed = topic.status.topic_name not in ("", topic.topic_name)
    if renamed:
        text = f"the object stands for topic {topic.status.topic_name}, and a topic keeps its name: make another object"
        return TopicPlan(topic, (), Finding("RenameRefused", text))
    if view is None:
        return _plan_creation(topic, holds=holds)
    return _plan_existing(topic, view, holds=holds)


# ---- cases ----------------------------------------------------------------------------------------------


def _plan_creation(topic: Topic, *, holds: bool) -> TopicPlan:
    made = CreateTopic(topic.topic_name, topic.spec.partitions, TopicSettings.of(topic.spec), incarnation_of(topic))
    if topic.status.incarnation:
        note = f"topic {topic.topic_name} was deleted behind the operator: it is made again, without its messages"
        tell = TellObject("TopicRecreated", note, is_warning=True)
    else:
        tell = TellObject("TopicCreated", f"topic {topic.topic_name} with {topic.spec.partitions} partitions")
    held = _held(topic, holds=holds)
    if topic.spec.deletion_policy == "Delete" and not holds:
        held = (*held, ConfirmObject())
    return TopicPlan(topic, (*held, made, tell), Finding("Creating", is_passing=True))


def _plan_existing(topic: Topic, view: TopicView, *, holds: bool) -> TopicPlan:
    held = _held(topic, holds=holds)
    if view.phase == "DELETING":
        return TopicPlan(topic, held, Finding("Creating", "one of that name is being deleted", is_passing=True))
    refusal = _refusal(topic, view)
    if refusal is not None:
        mine = view if owns(topic, view) else None
        return TopicPlan(topic, (), Finding(refusal.reason, refusal.message, mine))
    update = _update(topic, view)
    if update is not None:
        steps = (*held, update, _tell_update(topic, update))
        return TopicPlan(topic, steps, Finding("Updating", view=view, is_passing=True))
    if not view.is_whole:
        return TopicPlan(topic, held, Finding("Creating", view=view, is_passing=True))
    # Told only now: the report that comes with it makes the topic the object's, so that it is told once.
    return TopicPlan(topic, (*held, *_adoption(topic, view)), Finding("Accepting", view=view))


def _plan_deletion(topic: Topic, view: TopicView | None) -> TopicPlan:
    deleting = Finding("Deleting", view=view, is_passing=True)
    if view is None:
        return TopicPlan(topic, _released(topic), deleting)
    if not owns(topic, view):
        note = f"topic {topic.topic_name} stays: it is not the one that this object made or took over"
        return TopicPlan(topic, _released(topic, TellObject("TopicKept", note, is_warning=True)), deleting)
    if view.phase == "DELETING":
        return TopicPlan(topic, (), deleting)
    tell = TellObject("TopicDeleted", f"topic {topic.topic_name} with its messages, by deletionPolicy Delete")
    return TopicPlan(topic, (DeleteTopic(view.name, view.incarnation), tell), deleting)


def _refusal(topic: Topic, view: TopicView) -> Finding | None:
    """What no step can repair."""
    wanted = TopicSettings.of(topic.spec)
    if view.settings.flush != wanted.flush:
        has = "Flushed" if view.settings.flush else "Replicated"
        return Finding("OtherDurability", f"the topic is {has}, and stays so: say durability: {has} in a new object")
    if view.partition_count > topic.spec.partitions:
        count = view.partition_count
        text = f"the topic has {count} partitions, and none can be taken away: say partitions: {count}"
        return Finding("MorePartitions", text)
    return None


def _adoption(topic: Topic, view: TopicView) -> tuple[Action, ...]:
    if owns(topic, view):
        return ()
    if topic.status.incarnation:
        note = f"topic {view.name} was deleted and made anew behind the operator; it is taken over as it is now"
        return (TellObject("TopicReplaced", note, is_warning=True),)
    return (TellObject("TopicAdopted", f"topic {view.name} was there before this object, which has it from now on"),)


def _update(topic: Topic, view: TopicView) -> UpdateTopic | None:
    wanted = TopicSettings.of(topic.spec)
    grown = topic.spec.partitions if topic.spec.partitions > view.partition_count else 0
    if wanted == view.settings and not grown:
        return None
    names = (field.name for field in fields(TopicSettings))
    changed = tuple(name for name in names if getattr(wanted, name) != getattr(view.settings, name))
    return UpdateTopic(view.name, view.incarnation, grown, wanted, changed)


def _tell_update(topic: Topic, update: UpdateTopic) -> TellObject:
    what = ", ".join([*(["partitions"] if update.partitions else []), *update.changed])
    if topic.status.observed_generation == topic.metadata.generation:
        return TellObject("DriftReverted", f"changed behind the operator, and changed back: {what}", is_warning=True)
    return TellObject("TopicUpdated", f"changed: {what}")


# ---- who owns what --------------------------------------------------------------------------------------


def incarnation_of(topic: Topic) -> str:
    """The identity of the topic that this object makes next: the same until that one is reported.

    So a creation whose answer got lost, or whose operator died, is repeated and makes one topic; and a topic that is
    made again is never taken for the one before.
    """
    return uuid.uuid5(_INCARNATIONS, f"{topic.uid}/{topic.status.incarnation}").hex


def owns(topic: Topic, view: TopicView) -> bool:
    """Whether the topic is the one that the object took over or made."""
    return view.incarnation == topic.status.incarnation or view.incarnation == incarnation_of(topic)


def _deletes(topic: Topic) -> bool:
    """Whether the topic goes with the object. Without the finalizer it does not wait, or its end is yet to be told."""
    return topic.spec.deletion_policy == "Delete" and TOPIC_FINALIZER in topic.metadata.finalizers


def _held(topic: Topic, *, holds: bool) -> tuple[Action, ...]:
    """The finalizer as the policy wants it, where it is put on at all."""
    is_held = TOPIC_FINALIZER in topic.metadata.finalizers
    if not holds:
        return ()
    if topic.spec.deletion_policy == "Delete":
        return () if is_held else (HoldObject(),)
    return (ReleaseObject(),) if is_held else ()


def _let_go(plan: TopicPlan) -> TopicPlan:
    """Nothing is held where the operator itself lives, whatever else is to be said of the object."""
    metadata = plan.topic.metadata
    is_held = TOPIC_FINALIZER in metadata.finalizers and not metadata.is_deleted
    return replace(plan, steps=(ReleaseObject(), *plan.steps)) if is_held else plan


def _released(topic: Topic, *before: Action) -> tuple[Action, ...]:
    """Let the object go, if we hold it."""
    return (*before, ReleaseObject()) if TOPIC_FINALIZER in topic.metadata.finalizers else ()
