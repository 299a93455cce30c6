"""Counts topics and consumer groups of the brokers that have no Kubernetes object: programs and commands make them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from seriatim_api.errors import SeriatimError, UnknownTopicError
from seriatim_api.v1 import records_pb2

from ..cluster.connection import Connection
from ..cluster.kube import Kube
from .errors import PluginError
from .live import reach_brokers
from .look import Look

TOPICS_ASKED_MAX: Final = 200
"""Of this many topics the brokers are asked for their consumer groups, which costs a call for each topic."""


class Answering(Protocol):
    """The brokers, as far as this module asks them."""

    async def list_topics(self, limit: int) -> list[records_pb2.TopicRecord]:
        """The first topics by name."""

    async def list_consumer_groups(self, topic: str) -> list[str]:
        """The names of a topic's consumer groups."""


async def tell_without_objects(connection: Connection, kube: Kube, look: Look) -> str:
    """A sentence about topics and consumer groups without objects; empty if there are none or no broker answers."""
    try:
        async with reach_brokers(connection, kube, look.cluster) as brokers:
            return await count_without_objects(brokers, look)
    except (PluginError, SeriatimError):
        return ""  # the findings about the brokers say why


async def count_without_objects(brokers: Answering, look: Look) -> str:
    """The sentence.

    Raises:
        SeriatimError: The brokers do not answer.
    """
    names = [topic.name for topic in await brokers.list_topics(TOPICS_ASKED_MAX + 1)]
    asked = names[:TOPICS_ASKED_MAX]
    claimed = {topic.topic_name for topic in look.topics}
    groups = {(group.spec.topic, group.group_name) for group in look.consumer_groups}
    free_topics = sum(name not in claimed for name in asked)
    free_groups = 0
    for name in asked:
        free_groups += sum((name, group) not in groups for group in await _groups_of(brokers, name))
    if not free_topics and not free_groups:
        return ""
    among = f" among the first {TOPICS_ASKED_MAX} topics" if len(names) > TOPICS_ASKED_MAX else ""
    return (
        f"the brokers also have {_count(free_topics, 'topic')} and {_count(free_groups, 'consumer group')}{among} "
        "that no object claims: programs and commands made them"
    )


async def _groups_of(brokers: Answering, topic: str) -> Iterable[str]:
    try:
        return await brokers.list_consumer_groups(topic)
    except UnknownTopicError:
        return ()  # it was deleted meanwhile


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
