"""Topics and consumer groups that no object claims are counted."""

from __future__ import annotations

import pytest
from seriatim_api.errors import UnknownTopicError
from seriatim_api.v1 import records_pb2
from seriatim_operator.plugin.without_objects import TOPICS_ASKED_MAX, count_without_objects
from seriatim_operator.spec.consumer_group import ConsumerGroup
from seriatim_operator.spec.topic import Topic

from ..spec.objects import good
from .objects import healthy


class Having:
    """Brokers with these topics, each with its consumer groups."""

    def __init__(self, topics: dict[str, list[str]], gone: frozenset[str] = frozenset()) -> None:
        self.topics = topics
        self.gone = gone
        self.asked: list[str] = []

    async def list_topics(self, limit: int) -> list[records_pb2.TopicRecord]:
        return [records_pb2.TopicRecord(name=name) for name in sorted(self.topics)[:limit]]

    async def list_consumer_groups(self, topic: str) -> list[str]:
        self.asked.append(topic)
        if topic in self.gone:
            raise UnknownTopicError(f"there is no topic {topic!r}", topic=topic)
        return self.topics[topic]


LOOK = healthy(
    topics=(Topic.from_manifest(good("Topic", "events")),),
    consumer_groups=(ConsumerGroup.from_manifest(good("ConsumerGroup", "billing", topic="events")),),
)


@pytest.mark.parametrize(
    ("topics", "told"),
    [
        ({"events": ["billing"]}, ""),
        ({"events": ["billing", "audit"]}, "0 topics and 1 consumer group that"),
        ({"events": [], "trades": ["billing", "audit"]}, "1 topic and 2 consumer groups that"),
    ],
)
async def test_what_no_object_claims_is_counted(topics: dict[str, list[str]], told: str) -> None:
    said = await count_without_objects(Having(topics), LOOK)
    assert told in said
    assert bool(told) == bool(said)


async def test_a_topic_that_is_deleted_meanwhile_has_no_groups() -> None:
    said = await count_without_objects(Having({"events": ["audit"], "gone": ["a"]}, frozenset({"gone"})), LOOK)
    assert "1 topic and 1 consumer group that" in said


async def test_not_more_topics_are_asked_than_the_limit() -> None:
    brokers = Having({f"t{number:04}": [] for number in range(TOPICS_ASKED_MAX + 50)})
    said = await count_without_objects(brokers, LOOK)
    assert len(brokers.asked) == TOPICS_ASKED_MAX
    assert f"{TOPICS_ASKED_MAX} topics and 0 consumer groups among the first {TOPICS_ASKED_MAX} topics" in said
