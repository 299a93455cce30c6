"""Decides about the topic that takes a consumer group's messages after their last attempt.

A Topic object decides about it if there is one. Otherwise the operator makes the topic, and adds partitions when the
source has more: dead letters of partition i go to partition i. The operator never deletes it, because its messages may
be the only copies of what went wrong.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Final

from .actions import Action
from .topics import CreateTopic, TellObject, TopicSettings, TopicView, UpdateTopic

RETENTION_MS: Final = 30 * 86_400_000
"""Dead letters stay at least 30 days, because an administrator has to look at them. The command does the same."""


@dataclass(frozen=True, slots=True)
class TopicsAround:
    """The topics of a cluster.

    Attributes:
        topics: By name, as the brokers have them.
        claimed: Names that Topic objects have.
    """

    topics: Mapping[str, TopicView]
    claimed: Container[str]


NO_TOPICS: Final = TopicsAround({}, ())


@dataclass(frozen=True, slots=True)
class DeadLetterPlan:
    """Steps for the topic of the dead letters, and why the consumer group cannot use it yet (reason and message)."""

    steps: tuple[Action, ...] = ()
    reason: str = ""
    message: str = ""


def plan_dead_letters(name: str, source: str, around: TopicsAround) -> DeadLetterPlan:
    """What to do about the topic of the dead letters.

    Args:
        name: Its name; empty: the consumer group has none.
        source: The topic that the consumer group reads.
        around: The topics that are there.
    """
    from_topic = around.topics.get(source)
    if not name or from_topic is None:
        return DeadLetterPlan()
    found, count = around.topics.get(name), from_topic.partition_count
    is_claimed = name in around.claimed
    if found is None and is_claimed:
        return DeadLetterPlan((), "DeadLetterTopicMissing", f"the Topic of {name} has not made it yet")
    if found is None:
        made = CreateTopic(name, count, settings_of(from_topic.settings), "")
        note = f"topic {name} with {count} partitions takes dead letters; it stays when this object is deleted"
        return DeadLetterPlan((made, TellObject("DeadLetterTopicCreated", note)))
    if found.partition_count >= count:
        return DeadLetterPlan()
    if is_claimed:
        text = f"topic {name} has {found.partition_count} partitions: write partitions: {count} into its Topic"
        return DeadLetterPlan((), "DeadLetterTopicSmall", text)
    return DeadLetterPlan((UpdateTopic(name, found.incarnation, count, found.settings, ()),))


def settings_of(source: TopicSettings) -> TopicSettings:
    """The settings of a new topic for dead letters: those of the source, but its messages stay longer.

    Attributes say something of the source, so the new topic has none.
    """
    kept_ms = max(source.retention_ms, RETENTION_MS) if source.retention_ms else 0
    return replace(
        source,
        retention_ms=kept_ms,
        retention_bytes=0,
        retain_unread=False,
        unread_ms_max=0,
        unread_bytes_max=0,
        attributes={},
    )
