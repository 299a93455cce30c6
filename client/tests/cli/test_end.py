"""`consume --no-follow` ends when the group has read what the topic held at the beginning, and not before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from seriatim import GroupDescription, GroupPartition, Message, Topic, TopicDescription, TopicSettings
from seriatim.cli import consume as module
from seriatim.cli._operations.topic_end import TopicEnd
from seriatim.cli.consume import ConsumeOptions, Consumption
from seriatim_api.errors import DeadlineExceededError, UnavailableError, UnknownGroupError, UnknownTopicError
from seriatim_api.ids import make_offset

from .memory import chain_of, message_at, place_of, segment_of

OPTIONS = ConsumeOptions("t", "g", "earliest", None, follow=False, output="raw")


def test_the_end_is_fixed_when_it_is_first_known() -> None:
    end = TopicEnd({0: 3, 1: 3})
    assert end.behind == (0, 1)
    end.see([place_of(0, 3, 0, 5), place_of(1, 1, 9, 4)])
    end.see([place_of(0, 3, 4, 100), place_of(1, 3, 0, 0)])
    assert end.behind == (0,), "the second partition's open segment is empty, and the group stands in it"
    end.see([place_of(0, 3, 5, 100), place_of(1, 3, 0, 0)])
    assert end.behind == ()
    assert not end.is_drained
    end.see([place_of(0, 3, 105, 0), place_of(1, 3, 0, 0)])
    assert end.is_drained


@pytest.mark.parametrize(
    "unknown",
    [
        place_of(0, 3, 0, 0, error="[602] no answer"),
        place_of(0, 3, 0, 0, end_is_at_least=True),
        place_of(0, 2, 900, 0),
        place_of(0, 3, 0, 0, has_cursor=False),
    ],
)
def test_what_is_not_known_is_no_end(unknown: GroupPartition) -> None:
    end = TopicEnd({0: 3})
    end.see([unknown])
    assert end.behind == (0,)


def test_a_group_behind_the_segment_has_passed_its_end() -> None:
    end = TopicEnd({0: 3})
    end.see([place_of(0, 4, 0, 0, end_is_at_least=True)])
    assert end.behind == ()


class Cluster:
    """One partition: an open segment 5 with one message; the group crosses four empty ones, one with each look."""

    name = "c"

    def __init__(self) -> None:
        self.looks = 0
        self.errors: list[Exception] = []
        self.segment = 1
        self.acked = 0
        self.stands = False
        self.has_arrived = False

    async def describe_topic(self, name: str) -> TopicDescription:
        segments = tuple(segment_of(no, "g0", ("g0-0",), "SEALED", 0) for no in range(1, 5))
        chain = chain_of(name, 0, 7, ("g0",), (*segments, segment_of(5, "g0", ("g0-0",), "OPEN", None)))
        return TopicDescription(Topic(name, "i1", "READY", (1,), TopicSettings(), 0), (chain,))

    async def describe_group(self, topic: str, group: str) -> GroupDescription:
        self.looks += 1
        if self.errors:
            raise self.errors.pop()
        if self.segment < 5:
            self.segment += not self.stands
            return GroupDescription(topic, group, (place_of(0, self.segment, 0, 0, end_is_at_least=True),))
        self.has_arrived = True
        return GroupDescription(topic, group, (place_of(0, 5, self.acked, 1 - self.acked),))

    async def fetch(self, _max_messages: int, timeout_s: float) -> list[Message]:
        await asyncio.sleep(timeout_s)
        late = message_at("t", 0, 0, b"late")._replace(offset=make_offset(5, 0))
        return [late] if self.has_arrived and not self.acked else []

    async def ack(self, _message: Message) -> bool:
        self.acked = 1
        return True


async def consume(cluster: Any) -> bytes:
    printed: list[bytes] = []
    await Consumption(OPTIONS, cluster, None, printed.append, lambda: None, cluster).run()
    return b"".join(printed)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    monkeypatch.setattr(module, "IDLE_S", 0.001)


async def test_empty_segments_are_not_the_end() -> None:
    cluster = Cluster()
    cluster.errors = [UnavailableError("gone"), UnknownGroupError("not yet")]
    assert await consume(cluster) == b"late\n"


async def test_a_group_that_stands_still_is_an_error_and_not_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALLED_S", 0.01)
    cluster = Cluster()
    cluster.stands = True
    with pytest.raises(DeadlineExceededError, match="partition 0 has messages that this group has not read"):
        await consume(cluster)


async def test_a_topic_that_is_gone_is_said() -> None:
    cluster = Cluster()
    cluster.errors = [UnknownTopicError("gone")]
    with pytest.raises(UnknownTopicError):
        await consume(cluster)
