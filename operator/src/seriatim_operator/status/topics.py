"""The status of a topic: pure functions of the object, of what was found, and of what the brokers have.

The operator writes a status when something changed that administrators wait for or act on: a segment was opened, a
broker group or a master took over, copies are missing. A change of numbers that move with the traffic is no reason to
write, because the brokers' metrics have them. They are written together with other changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from seriatim_api.ids import format_offset

from ..plan.absence import AS_PLANNED
from ..plan.chains import WORST_FIRST, is_as_planned, state_of_topic
from ..plan.topics import ChainView, Finding
from ..spec.base import Condition
from ..spec.topic import CHAINS_SHOWN_MAX, SOURCES_SHOWN_MAX, ChainStatus, Topic, TopicState, TopicStatus
from .conditions import Fact, settle
from .reasons import TOPIC

GROUPS_SHOWN_MAX: Final = 1000

PARTITIONS_NAMED_MAX: Final = 5
"""How many partitions an Event names. The others are counted."""

_UNKNOWN_REASONS: Final = frozenset({"BrokersSilent", "Paused"})
"""With these reasons the operator cannot know whether the topic accepts messages now."""

_UNTOLD_REASONS: Final = frozenset({"BrokersSilent", "CoordinatorBehind", "Unconfirmed"})
"""With these reasons nothing is known of the chains."""


def topic_status(
    topic: Topic,
    finding: Finding,
    now_s: float,
    live: Collection[str] | None,
    dead_letters_of: tuple[str, ...] = (),
    planned: frozenset[str] = frozenset(),
) -> TopicStatus:
    """The status of the topic, from what the operator knows now.

    Args:
        topic: The object.
        finding: What the pass found.
        now_s: Unix time in seconds.
        live: Names of the brokers that answer, and their disks; None: not known yet.
        dead_letters_of: The consumer groups whose dead letters the topic takes, as `<topic>/<group>`.
        planned: Names of the brokers that are away as planned, and their disks.
    """
    before, view = topic.status, finding.view
    if finding.keeps_status:
        is_silent = finding.reason in _UNTOLD_REASONS
        kept = [fact for fact in _as_facts(before) if fact.type != "Ready"] if not is_silent else []
        facts = [_ready(finding), *(kept or [_chain_fact("Unknown")])]
        # The observed generation stays as well, because the operator has not acted on a newer one.
        state = "Unknown" if is_silent else before.state
        return before.model_copy(update={"conditions": _settled(topic, facts, now_s), "state": state})
    generation = topic.metadata.generation
    state = state_of_topic(view, live) if view is not None else "Unknown"
    copies = _chain_fact(state)
    if view is not None and state == "CopyAway" and is_as_planned(view, live, planned):
        text = "a broker that has a copy is away as planned: the brokers said before that this is safe"
        copies = Fact("ChainHealthy", "False", AS_PLANNED, text)
    conditions = _settled(topic, [_ready(finding), copies], now_s)
    if view is None:
        # The object keeps its topic, which may be there again. Otherwise a topic that is made next would have the
        # incarnation of the first one, and an object could get a topic of another name.
        is_kept = finding.reason != "ClusterNotFound"  # the next cluster of that name may be another one
        return TopicStatus(
            observed_generation=generation,
            conditions=conditions,
            topic_name=before.topic_name if is_kept else "",
            incarnation=before.incarnation if is_kept else "",
        )
    chains = [view.chains[number] for number in sorted(view.chains)]
    return TopicStatus(
        observed_generation=generation,
        conditions=conditions,
        topic_name=view.name,
        incarnation=view.incarnation,
        partitions=view.partition_count,
        state=state,
        segments=sum(chain.segment_count for chain in chains),
        sealed_messages=sum(chain.sealed_messages for chain in chains),
        dead_letters_of=dead_letters_of[:SOURCES_SHOWN_MAX] or None,
        groups=tuple(sorted({chain.group for chain in chains}))[:GROUPS_SHOWN_MAX],
        chains=tuple(_chain_status(chain) for chain in chains[:CHAINS_SHOWN_MAX]),
    )


@dataclass(frozen=True, slots=True)
class TopicEvent:
    """An Event on a Topic about its chains."""

    type: Literal["Normal", "Warning"]
    reason: str
    note: str


def is_in_danger(status: TopicStatus) -> bool:
    """Whether there is a Warning about the copies of a topic with this status. To catch up is no danger, nor is what
    was planned.
    """
    condition = status.condition("ChainHealthy")
    is_one = condition is not None and condition.status == "False" and condition.reason != AS_PLANNED
    return is_one and status.state != "CatchingUp"


def topic_events(
    before: TopicStatus,
    after: TopicStatus,
    live: Collection[str] | None,
    planned: Collection[str] = (),
    *,
    is_warned: bool,
) -> list[TopicEvent]:
    """Events for what happened to the chains between two statuses: masters that died, copies in danger or back.

    Args:
        before: The older status.
        after: The newer one.
        live: The brokers that answer; None if that is not known.
        planned: The brokers that are away as planned.
        is_warned: Whether the last Event about the copies was a Warning. Only then their end is news.
    """
    events = []
    masters = {chain.partition: chain.master for chain in before.chains}
    left = {
        chain.partition: masters[chain.partition]
        for chain in after.chains
        if chain.master != masters.get(chain.partition, chain.master)
        and live is not None
        and masters[chain.partition] not in live
        and masters[chain.partition] not in planned
    }
    if left and before.incarnation == after.incarnation:
        numbers = [str(number) for number in left]
        more = f" and {len(numbers) - PARTITIONS_NAMED_MAX} more" if len(numbers) > PARTITIONS_NAMED_MAX else ""
        away = ", ".join(sorted(set(left.values())))
        note = f"{away} does not answer: other brokers took over partition {', '.join(numbers[:PARTITIONS_NAMED_MAX])}"
        events.append(TopicEvent("Warning", "MasterAway", note + more))
    new = after.condition("ChainHealthy")
    if new is not None and is_in_danger(after) and _is_worse(_alarming(before), after.state):
        events.append(TopicEvent("Warning", new.reason, new.message))
    elif new is not None and new.status == "True" and is_warned:
        events.append(TopicEvent("Normal", "CopiesBack", "two brokers or more that answer have every segment again"))
    return events


def _alarming(status: TopicStatus) -> TopicState:
    """The state of a topic without what was planned."""
    condition = status.condition("ChainHealthy")
    return "Healthy" if condition is not None and condition.reason == AS_PLANNED else status.state


def _is_worse(before: TopicState, after: TopicState) -> bool:
    """Whether a state of a topic is worse than the one before. Each trouble is worse than not to know."""
    return WORST_FIRST.index(after) < WORST_FIRST.index(before)


def is_news(before: TopicStatus, after: TopicStatus) -> bool:
    """Whether the status has to be written: it differs in more than counts of messages and what retention moves."""
    return _without_figures(after) != _without_figures(before)


def _without_figures(status: TopicStatus) -> TopicStatus:
    unmoved = {"kept_from": "", "dropped_messages": None}
    chains = tuple(chain.model_copy(update=unmoved) for chain in status.chains)
    return status.model_copy(update={"sealed_messages": None, "chains": chains})


def _settled(topic: Topic, facts: Iterable[Fact], now_s: float) -> tuple[Condition, ...]:
    return settle(topic.status.conditions, facts, TOPIC, generation=topic.metadata.generation, now_s=now_s)


def _ready(finding: Finding) -> Fact:
    if finding.reason == "Accepting":
        return Fact("Ready", "True", finding.reason, finding.message)
    if finding.reason in _UNKNOWN_REASONS:
        return Fact("Ready", "Unknown", finding.reason, finding.message)
    return Fact("Ready", "False", finding.reason, finding.message)


def _chain_fact(state: TopicState) -> Fact:
    """The condition of the chains. Its messages have no numbers, because a changed number would cause another write."""
    match state:
        case "Healthy":
            return Fact("ChainHealthy", "True", "TwoCopies")
        case "CopyAway":
            text = "a broker that has a copy does not answer: one more fault would stop consumers; see kubectl seriatim"
            return Fact("ChainHealthy", "False", "CopyAway", f"{text} doctor")
        case "CatchingUp":
            text = "one broker surely has the end of a segment: another copies it, or has just stopped answering"
            return Fact("ChainHealthy", "False", "CatchingUp", text)
        case "Unreachable":
            text = "no broker that has a segment answers: consumers wait there until one returns"
            return Fact("ChainHealthy", "False", "Unreachable", f"{text}; see kubectl seriatim doctor")
        case "OneCopy":
            text = "a sealed segment has one copy left; brokers make the second if its member stays away (heal_after_s)"
            return Fact("ChainHealthy", "False", "OneCopy", text)
        case "Unsettled":
            text = "no member of a segment answers: consumers wait there until one returns; see seriatim chain show"
            return Fact("ChainHealthy", "False", "Unsettled", text)
        case "Lost":
            text = "an administrator declared a segment lost: consumers get an event about the gap and continue"
            return Fact("ChainHealthy", "False", "Lost", text)
        case _:
            return Fact("ChainHealthy", "Unknown", "NotTold")


def _as_facts(status: TopicStatus) -> list[Fact]:
    return [Fact(known.type, known.status, known.reason, known.message) for known in status.conditions]


def _chain_status(chain: ChainView) -> ChainStatus:
    return ChainStatus(
        partition=chain.partition,
        segment=chain.segment,
        group=chain.group,
        master=chain.master,
        kept_from=format_offset(chain.first_offset) if chain.first_offset else "",
        dropped_messages=chain.dropped_messages,
    )
