"""What is reported of a topic: pure functions of the object, of what was found, and of what the brokers have.

A status is written when something changed that people wait for or act on: a segment was opened, a group or a master
took over, copies are missing. Numbers that move with the traffic are carried along, never a reason to write: they are
the brokers' metrics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from seriatim_api.ids import format_offset

from ..plan.topics import ChainView, Finding, TopicView
from ..spec.base import Condition
from ..spec.topic import CHAINS_SHOWN_MAX, ChainStatus, Topic, TopicState, TopicStatus
from .conditions import Fact, settle

GROUPS_SHOWN_MAX: Final = 1000

_UNKNOWN_REASONS: Final = frozenset({"BrokersSilent", "Paused"})
"""Nobody can say whether the topic accepts messages now."""


def topic_status(topic: Topic, finding: Finding, now_s: float) -> TopicStatus:
    """What is true of the topic, as far as is known now."""
    before, view = topic.status, finding.view
    if finding.keeps_status:
        kept = [fact for fact in _as_facts(before) if fact.type != "Ready"]
        facts = [_ready(finding), *(kept or [_chain_fact("Unknown")])]
        # The generation stays as well: nothing was done for a newer one.
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
        groups=tuple(sorted({chain.group for chain in chains}))[:GROUPS_SHOWN_MAX],
        chains=tuple(_chain_status(chain) for chain in chains[:CHAINS_SHOWN_MAX]),
    )


def is_news(before: TopicStatus, after: TopicStatus) -> bool:
    """Whether the status has to be written: anything but counts of messages, and what retention moves, differs."""
    return _without_figures(after) != _without_figures(before)


def _without_figures(status: TopicStatus) -> TopicStatus:
    unmoved = {"kept_from": "", "dropped_messages": None}
    chains = tuple(chain.model_copy(update=unmoved) for chain in status.chains)
    return status.model_copy(update={"sealed_messages": None, "chains": chains})


def state_of(view: TopicView) -> TopicState:
    """The worst of the chains: what stops consumers first, then what is lost, then what could be lost next."""
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
    """The messages have no numbers: each would be a reason to write again."""
    match state:
        case "Healthy":
            return Fact("ChainHealthy", "True", "TwoCopies")
        case "OneCopy":
            text = "a closed segment has one copy left; the brokers make the second when its member stays away"
            return Fact("ChainHealthy", "False", "OneCopy", text)
        case "Unsettled":
            text = "no member of a segment answers: consumers wait there until one comes back (seriatim chain shows it)"
            return Fact("ChainHealthy", "False", "Unsettled", text)
        case "Lost":
            text = "a segment was declared lost: consumers were told of the gap and went on"
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
