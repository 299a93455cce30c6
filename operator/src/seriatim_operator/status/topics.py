"""The status of a topic: pure functions of the object, of what was found, and of what the brokers have.

The operator writes a status when something changed that people wait for or act on: a segment was opened, a broker group
or a master took over, copies are missing. A change of numbers that move with the traffic is no reason to write, because
the brokers' metrics have them. They are written together with other changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from seriatim_api.ids import format_offset

from ..plan.topics import ChainView, Finding, TopicView
from ..spec.base import Condition
from ..spec.topic import CHAINS_SHOWN_MAX, SOURCES_SHOWN_MAX, ChainStatus, Topic, TopicState, TopicStatus
from .conditions import Fact, settle

GROUPS_SHOWN_MAX: Final = 1000

_UNKNOWN_REASONS: Final = frozenset({"BrokersSilent", "Paused"})
"""With these reasons the operator cannot know whether the topic accepts messages now."""


def topic_status(topic: Topic, finding: Finding, now_s: float, dead_letters_of: tuple[str, ...] = ()) -> TopicStatus:
    """The status of the topic, from what the operator knows now.

    Args:
        topic: The object.
        finding: What the pass found.
        now_s: Unix time in seconds.
        dead_letters_of: The consumer groups whose dead letters the topic takes, as `<topic>/<group>`.
    """
    before, view = topic.status, finding.view
    if finding.keeps_status:
        kept = [fact for fact in _as_facts(before) if fact.type != "Ready"]
        facts = [_ready(finding), *(kept or [_chain_fact("Unknown")])]
        # The observed generation stays as well, because the operator has not acted on a newer one.
        return before.model_copy(update={"conditions": _settled(topic, facts, now_s)})
    generation = topic.metadata.generation
    state = state_of(view) if view is not None else "Unknown"
    conditions = _settled(topic, [_ready(finding), _chain_fact(state)], now_s)
    if view is None:
        return TopicStatus(observed_generation=generation, conditions=conditions)
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
        retention_acts=view.retention_acts,
        dead_letters_of=dead_letters_of[:SOURCES_SHOWN_MAX] or None,
        groups=tuple(sorted({chain.group for chain in chains}))[:GROUPS_SHOWN_MAX],
        chains=tuple(_chain_status(chain) for chain in chains[:CHAINS_SHOWN_MAX]),
    )


def is_news(before: TopicStatus, after: TopicStatus) -> bool:
    """Whether the status has to be written: it differs in more than counts of messages and what retention moves."""
    return _without_figures(after) != _without_figures(before)


def _without_figures(status: TopicStatus) -> TopicStatus:
    unmoved = {"kept_from": "", "dropped_messages": None}
    chains = tuple(chain.model_copy(update=unmoved) for chain in status.chains)
    return status.model_copy(update={"sealed_messages": None, "chains": chains})


def state_of(view: TopicView) -> TopicState:
    """The state of the worst chain. Worst is what stops consumers, then a loss, then a segment with one copy."""
    if not view.is_whole:
        return "Unknown"
    chains = view.chains.values()
    if any(chain.unsettled_count for chain in chains):
        return "Unsettled"
    if any(chain.lost_count for chain in chains):
        return "Lost"
    if any(chain.one_copy_count for chain in chains):
        return "OneCopy"
    return "Healthy"


def _settled(topic: Topic, facts: Iterable[Fact], now_s: float) -> tuple[Condition, ...]:
    return settle(topic.status.conditions, facts, generation=topic.metadata.generation, now_s=now_s)


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
        case "OneCopy":
            text = "a sealed segment has one copy left; brokers make the second if its member stays away (heal_after_s)"
            return Fact("ChainHealthy", "False", "OneCopy", text)
        case "Unsettled":
            text = "no member of a segment answers: consumers wait there until one returns; see seriatim chain show"
            return Fact("ChainHealthy", "False", "Unsettled", text)
        case "Lost":
            text = "a person declared a segment lost: consumers get an event about the gap and go on"
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
