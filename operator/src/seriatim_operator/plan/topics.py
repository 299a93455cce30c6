"""Decides what to do about topics: a pure function of the objects and of what the brokers have.

The operator makes the brokers' topic as the object says. It undoes changes that others made, unless that needs more
loss: it never removes partitions. It deletes a topic with its messages only if three things are true: the object that
owns the topic is deleted, it says `deletionPolicy: Delete`, and the topic is the one that it made or took over.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Final, Literal, NamedTuple

from seriatim_api.delay_limits import DELAY_MAX_MS_DEFAULT, DELAYED_PENDING_MAX_DEFAULT
from seriatim_api.ids import TopicIncarnation

from ..spec.topic import Topic, TopicSpec
from .actions import Action
from .claims import first_claimant, succeeds

TOPIC_FINALIZER: Final = "seriatim.dev/topic"
"""A finalizer only for Topics with `deletionPolicy: Delete`, so that other Topics never hold up a namespace's deletion.

The operator never sets it in its own namespace: if that namespace is deleted, the operator may be gone before the
object."""

_INCARNATIONS: Final = uuid.UUID("6f1d3f0a-8a53-4d6e-9c0b-6f6f3f1f2a10")
"""The UUID namespace of the incarnations that the operator makes."""


class Surroundings(Enum):
    """Whether the brokers of a topic's cluster can be asked and changed."""

    HERE = "its brokers answer"
    SILENT = "its brokers do not answer, or have not reported all topics yet"
    PAUSED = "the operator must change nothing"
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
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)
    delay_max_ms: int = DELAY_MAX_MS_DEFAULT
    delayed_pending_max: int = DELAYED_PENDING_MAX_DEFAULT
    exclusive_only: bool = False

    @classmethod
    def of(cls, spec: TopicSpec) -> TopicSettings:
        """The settings that an object asks for."""
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
            attributes=spec.attributes or {},
            delay_max_ms=spec.delay_max_ms,
            delayed_pending_max=spec.delayed_pending_max,
            exclusive_only=spec.exclusive_only,
        )


class Holders(NamedTuple):
    """Who has a segment.

    Attributes:
        listed: The names of all brokers that do. One that came back may lack its end, until it has copied it.
        in_sync: The disks whose copies of the segment are surely in sync, as `broker#disk`. A broker may have another
            disk now.
    """

    listed: tuple[str, ...]
    in_sync: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChainView:
    """The chain of one partition, in short: its open segment, and counts of its segments by state."""

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
    copies: Mapping[Holders, int] = field(default_factory=dict)
    """How many kept segments are on which brokers; empty if the brokers do not report."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as the brokers have it.

    Attributes:
        phase: The state in the topic's record.
        chains: The chains by partition. A chain that the brokers have not reported yet is missing.
    """

    name: str
    incarnation: str
    phase: Literal["CREATING", "READY", "DELETING"]
    settings: TopicSettings
    partition_count: int
    chains: Mapping[int, ChainView] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether the topic is READY and the brokers have reported the chains of all its partitions."""
        return self.phase == "READY" and all(number in self.chains for number in range(self.partition_count))


# ---- what is to be done ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateTopic(Action):
    """Make the topic. The same step with the same incarnation again makes no second topic."""

    name: str
    partitions: int
    settings: TopicSettings
    incarnation: str


@dataclass(frozen=True, slots=True)
class UpdateTopic(Action):
    """Add partitions up to `partitions` (0: add none), and change the settings named in `changed`."""

    name: str
    incarnation: str
    partitions: int
    settings: TopicSettings
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteTopic(Action):
    """Delete the topic of that incarnation with its messages."""

    name: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class HoldObject(Action):
    """Set the finalizer on the object, so that what the object owns is deleted before the object is gone."""


@dataclass(frozen=True, slots=True)
class ConfirmLoss(Action):
    """Ask all brokers whether the coordinator has lost what is missing, so that nothing is made that a rebuild brings
    back. No further step is taken until they have said for some seconds that it has lost nothing.
    """


@dataclass(frozen=True, slots=True)
class ConfirmObject(Action):
    """Ask the API whether the object still exists, so that nothing is made for an object that is already deleted."""


@dataclass(frozen=True, slots=True)
class ReleaseObject(Action):
    """Remove the finalizer, or forget the object if it is gone: nothing is left to do for it."""


@dataclass(frozen=True, slots=True)
class TellObject(Action):
    """Post an Event on the object."""

    reason: str
    note: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """What to report about an object's readiness.

    Attributes:
        reason: A word of the closed list.
        message: A sentence for humans, with the remedy.
        view: The topic, if the object has it.
        is_passing: A step is under way. It is reported only if it takes long.
        keeps_status: Nothing new is known, so the reported state of the topic stays.
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
    """What to do for each object of one cluster.

    Args:
        desired: Objects of one cluster, with all objects that name the same topics. An object that is gone, and whose
            `deletionPolicy` is still to be carried out, is among them, as one that is being deleted with a finalizer.
        observed: The brokers' topics by name. They are complete, unless `surroundings` says otherwise.
        surroundings: Whether the brokers can be asked and changed.
        holds: Whether the operator sets a finalizer on objects with `deletionPolicy: Delete`. Without it, the watch
            reports their deletion.
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
            text = "the topic of the earlier object of this name is being deleted"
            plans.append(TopicPlan(other, (), Finding("Creating", text, is_passing=True)))
        else:
            plans.append(_plan_owner(other, None, surroundings, holds=holds))
    return plans


def _plan_loser(topic: Topic, owner: Topic, surroundings: Surroundings) -> TopicPlan:
    text = f"managed by {owner.namespace}/{owner.name}; delete one of the two objects: the other keeps the topic"
    finding = Finding("ResourceConflict", text)
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
    """The plan for the object that has the topic. Each case that needs steps has a function of its own."""
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
        text = f"the object has topic {topic.status.topic_name}, and a topic keeps its name: make another object"
        return TopicPlan(topic, (), Finding("RenameRefused", text))
    if view is None:
        return _plan_creation(topic, holds=holds)
    return _plan_existing(topic, view, holds=holds)


# ---- cases ----------------------------------------------------------------------------------------------


def _plan_creation(topic: Topic, *, holds: bool) -> TopicPlan:
    made: tuple[Action, ...] = (
        CreateTopic(topic.topic_name, topic.spec.partitions, TopicSettings.of(topic.spec), incarnation_of(topic)),
    )
    if topic.status.incarnation:
        # Rule `lost-is-not-deleted` (I1): a topic that the object had is made again only if the brokers say that the
        # coordinator has lost nothing. Without it:
        #   1. The coordinator is restored as it was before the topic was made, or comes back empty.
        #   2. The stream of topics does not have the topic, and the operator makes it again.
        #   3. `seriatim coordinator rebuild` finds another topic of that name, and the messages of the first one stay
        #      on the disks, where no consumer gets them.
        made = (ConfirmLoss(), *made)
        note = f"topic {topic.topic_name} was deleted by others: it is made again, without its messages"
        tell = TellObject("TopicRecreated", note, is_warning=True)
    else:
        tell = TellObject("TopicCreated", f"topic {topic.topic_name} with {topic.spec.partitions} partitions")
    held = _held(topic, holds=holds)
    if topic.spec.deletion_policy == "Delete" and not holds:
        held = (*held, ConfirmObject())
    return TopicPlan(topic, (*held, *made, tell), Finding("Creating", is_passing=True))


def _plan_existing(topic: Topic, view: TopicView, *, holds: bool) -> TopicPlan:
    held = _held(topic, holds=holds)
    if view.phase == "DELETING":
        return TopicPlan(topic, held, Finding("Creating", "a topic of that name is being deleted", is_passing=True))
    refusal = _refusal(topic, view)
    if refusal is not None:
        mine = view if owns(topic, view) else None
        return TopicPlan(topic, (), Finding(refusal.reason, refusal.message, mine))
    update = _update(topic, view)
    if update is not None:
        # The same with partitions that the topic had: a rebuild brings them back.
        had_more = update.partitions and (topic.status.partitions or 0) > view.partition_count
        first = (ConfirmLoss(),) if had_more and owns(topic, view) else ()
        steps = (*held, *first, update, _tell_update(topic, update))
        return TopicPlan(topic, steps, Finding("Updating", view=view, is_passing=True))
    if not view.is_whole:
        return TopicPlan(topic, held, Finding("Creating", view=view, is_passing=True))
    # The Event comes only now, in the pass whose report gives the topic to the object. So it is posted once.
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
    tell = TellObject("TopicDeleted", f"topic {topic.topic_name} with its messages, because of deletionPolicy Delete")
    return TopicPlan(topic, (DeleteTopic(view.name, view.incarnation), tell), deleting)


def _refusal(topic: Topic, view: TopicView) -> Finding | None:
    """A difference between object and topic that no step can repair, or None."""
    wanted = TopicSettings.of(topic.spec)
    if view.settings.flush != wanted.flush:
        has = "Flushed" if view.settings.flush else "Replicated"
        return Finding("OtherDurability", f"the topic is {has} for ever: write durability: {has} into a new object")
    if view.partition_count > topic.spec.partitions:
        count = view.partition_count
        text = f"the topic has {count} partitions, and partitions cannot be removed: write partitions: {count}"
        return Finding("MorePartitions", text)
    return None


def _adoption(topic: Topic, view: TopicView) -> tuple[Action, ...]:
    if owns(topic, view):
        return ()
    if topic.status.incarnation:
        note = f"topic {view.name} was deleted and recreated by others: the object has the new one from now on"
        return (TellObject("TopicReplaced", note, is_warning=True),)
    return (TellObject("TopicAdopted", f"topic {view.name} was there before this object, which has it from now on"),)


def _update(topic: Topic, view: TopicView) -> UpdateTopic | None:
    wanted = TopicSettings.of(topic.spec)
    if topic.spec.attributes is None:  # the object says nothing of them: other tools may have set some
        wanted = replace(wanted, attributes=view.settings.attributes)
    grown = topic.spec.partitions if topic.spec.partitions > view.partition_count else 0
    if wanted == view.settings and not grown:
        return None
    names = (field.name for field in fields(TopicSettings))
    changed = tuple(name for name in names if getattr(wanted, name) != getattr(view.settings, name))
    return UpdateTopic(view.name, view.incarnation, grown, wanted, changed)


def _tell_update(topic: Topic, update: UpdateTopic) -> TellObject:
    what = ", ".join([*(["partitions"] if update.partitions else []), *update.changed])
    if topic.status.observed_generation == topic.metadata.generation:
        return TellObject("DriftReverted", f"changed by others, and changed back: {what}", is_warning=True)
    return TellObject("TopicUpdated", f"changed: {what}")


# ---- who owns what --------------------------------------------------------------------------------------


def incarnation_of(topic: Topic) -> TopicIncarnation:
    """The incarnation of the topic that this object makes next. It stays the same until that topic is reported.

    So if the answer to a creation is lost, or the operator ends, the creation is repeated and makes one topic. And a
    topic that is made again has another incarnation than the one before.
    """
    return TopicIncarnation.of_bytes(uuid.uuid5(_INCARNATIONS, f"{topic.uid}/{topic.status.incarnation}").bytes)


def owns(topic: Topic, view: TopicView) -> bool:
    """Whether the object made or took over this topic."""
    return view.incarnation == topic.status.incarnation or view.incarnation == incarnation_of(topic)


def _deletes(topic: Topic) -> bool:
    """Whether the topic is deleted with the object: the policy says so, and the finalizer is set.

    Without the finalizer the object does not wait for the topic, or the watch has not reported its deletion yet.
    """
    return topic.spec.deletion_policy == "Delete" and TOPIC_FINALIZER in topic.metadata.finalizers


def _held(topic: Topic, *, holds: bool) -> tuple[Action, ...]:
    """The step that sets or removes the finalizer as the policy says; none if the operator sets no finalizers here."""
    is_held = TOPIC_FINALIZER in topic.metadata.finalizers
    if not holds:
        return ()
    if topic.spec.deletion_policy == "Delete":
        return () if is_held else (HoldObject(),)
    return (ReleaseObject(),) if is_held else ()


def _let_go(plan: TopicPlan) -> TopicPlan:
    """The plan, with a step that removes the finalizer: the operator sets none in its own namespace."""
    metadata = plan.topic.metadata
    is_held = TOPIC_FINALIZER in metadata.finalizers and not metadata.is_deleted
    return replace(plan, steps=(ReleaseObject(), *plan.steps)) if is_held else plan


def _released(topic: Topic, *before: Action) -> tuple[Action, ...]:
    """The steps, followed by the removal of the finalizer if the object has it."""
    return (*before, ReleaseObject()) if TOPIC_FINALIZER in topic.metadata.finalizers else ()
