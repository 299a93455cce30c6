"""Dead letters in the client: what is listed, what is replayed before what, and how calls are cut into pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim import Admin, Message
from seriatim._admin.dead_letters import KEY_COUNT_MAX, REPLAY_COUNT_MAX
from seriatim._values.headers import headers_of
from seriatim_api.bodies import read_body
from seriatim_api.dead_letters import DeadLetterOrigin, dead_letter_headers, resolution_headers, resolution_value
from seriatim_api.errors import OverloadedError, PreconditionError
from seriatim_api.ids import make_offset
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import broker_pb2, dead_letters_pb2, records_pb2

DEAD = "orders.billing.dead"


class Topic:
    """A dead-letter topic of two partitions, and a broker that replays and drops."""

    def __init__(self) -> None:
        self.logs: dict[int, list[Message]] = {0: [], 1: []}
        self.calls: list[Any] = []
        self.error: Any = None
        self.made_at_ms = 1
        self.admin = Admin(cast(Any, self), cast(Any, self._read))
        self.admin.describe_topic = self._describe  # type: ignore[method-assign,assignment]

    async def routing(self, method: str, request: Any, _timeout_s: float) -> Any:
        assert (method, request.topic) == ("GetTopic", "orders")
        return broker_pb2.GetTopicResponse(topic=records_pb2.TopicRecord(name="orders", created_at_ms=self.made_at_ms))

    async def _describe(self, _name: str) -> Any:
        return SimpleNamespace(chains=tuple(self.logs))

    def _read(self, _topic: str, partition: int, **more: Any) -> Any:
        assert more["raw"], "resolutions and copies are for no ordinary reader"

        class Reader:
            async def __aenter__(self) -> AsyncIterator[Message]:
                async def each() -> AsyncIterator[Message]:
                    for message in list(log):
                        yield message

                return each()

            async def __aexit__(self, *_: object) -> None:
                """Nothing is open."""

        log = self.logs[partition]
        return Reader()

    def add(self, key: bytes | None, value: bytes | None = b"v", partition: int = 0, **origin: Any) -> int:
        """A dead letter. Returns its offset."""
        log, sent = self.logs[partition], origin.pop("sent", (("n", b"h"),))
        fields: dict[str, Any] = {"topic": "orders", "partition": partition, "offset": make_offset(3, len(log))}
        fields |= {"group": "billing", "attempts": 5, "reason": "no", "time_ms": 7}
        found = DeadLetterOrigin(**(fields | origin))
        headers = headers_of(dead_letter_headers(sent, found))
        offset = make_offset(1, len(log))
        log.append(Message(DEAD, partition, offset, key, value or b"", 5, headers, "t", 1, False, 0, value is None))
        return log[-1].offset

    def resolve(self, *offsets: int) -> None:
        """A resolution in partition 0."""
        log, headers = self.logs[0], headers_of(resolution_headers("dropped"))
        offset = make_offset(1, len(log))
        log.append(Message(DEAD, 0, offset, None, resolution_value(offsets), 5, headers, None, 1, False, 0))

    async def dead_letters(self, method: str, request: Any, _timeout_s: float) -> Any:
        self.calls.append(request)
        if method == "DropDeadLetters":
            return dead_letters_pb2.DropDeadLettersResponse()
        answer = dead_letters_pb2.ReplayDeadLettersResponse(offsets=[letter.offset + 90 for letter in request.letters])
        if self.error is not None:
            answer.error.CopyFrom(error_to_proto(self.error))
        return answer

    async def listed(self, **which: Any) -> list[int]:
        """The offsets that are listed."""
        return [letter.offset async for letter in self.admin.dead_letters(DEAD, **which)]

    async def letters(self, *offsets: int) -> list[Any]:
        """The dead letters at these offsets of partition 0."""
        return [letter async for letter in self.admin.dead_letters(DEAD, partition=0) if letter.offset in offsets]


async def test_what_is_resolved_or_no_dead_letter_is_not_listed() -> None:
    topic = Topic()
    first, second = topic.add(b"a"), topic.add(b"b")
    topic.logs[0].append(topic.logs[0][0]._replace(offset=make_offset(1, 2), headers={}))
    topic.resolve(first)
    third = topic.add(b"a", partition=1)
    assert await topic.listed() == [second, third]
    assert await topic.listed(partition=0) == [second]
    assert await topic.listed(key=b"a") == [third]
    assert await topic.listed(group="other") == []
    assert await topic.listed(partition=0, after=second) == []


async def test_the_same_dead_letter_at_two_places_is_listed_once_and_done_with_once() -> None:
    topic = Topic()
    first = topic.add(b"a", offset=make_offset(3, 1))
    topic.add(b"a", offset=make_offset(3, 1))
    assert await topic.listed() == [first]
    topic.resolve(first)
    assert await topic.listed() == []


async def test_a_dead_letter_of_a_deleted_topic_is_replayed_only_if_that_is_said() -> None:
    topic = Topic()
    topic.made_at_ms = 100
    old, new = topic.add(b"a", time_ms=99), topic.add(b"a", time_ms=100)
    with pytest.raises(PreconditionError, match="into-new-topic"):
        await topic.admin.replay_dead_letters(DEAD, await topic.letters(old, new))
    assert topic.calls == [], "also the new one is not replayed"
    (copy,) = await topic.admin.replay_dead_letters(DEAD, await topic.letters(new))
    assert copy.offset == new, "the old one of the same key stays where it is"
    both = await topic.admin.replay_dead_letters(DEAD, await topic.letters(old), into_new_topic=True)
    assert [one.offset for one in both] == [old]


async def test_a_dead_letter_says_what_its_message_was() -> None:
    topic = Topic()
    (letter,) = await topic.letters(topic.add(b"a"))
    assert (letter.key, letter.value, letter.headers, letter.tag) == (b"a", b"v", {"n": b"h"}, "t")
    assert (letter.origin_topic, letter.origin_offset, letter.attempts) == ("orders", make_offset(3, 0), 5)


async def test_earlier_ones_of_the_same_key_and_group_are_replayed_first() -> None:
    topic = Topic()
    early = topic.add(b"a")
    topic.add(b"b")
    topic.add(b"a", group="other")
    topic.add(None)
    chosen, alone = topic.add(b"a"), topic.add(None)
    topic.add(b"a")
    replayed = await topic.admin.replay_dead_letters(DEAD, await topic.letters(chosen, alone))
    (call,) = topic.calls
    assert [letter.offset for letter in call.letters] == [early, chosen, alone]
    assert [copy.copy_offset for copy in replayed] == [early + 90, chosen + 90, alone + 90]
    assert [letter.keyed for letter in call.letters] == [True, True, False]


async def test_replays_and_drops_are_cut_into_pages_and_too_many_are_refused() -> None:
    topic = Topic()
    for _ in range(REPLAY_COUNT_MAX + 1):
        topic.add(b"a")
    last = topic.logs[0][-1].offset
    assert len(await topic.admin.replay_dead_letters(DEAD, await topic.letters(last))) == REPLAY_COUNT_MAX + 1
    assert [len(call.letters) for call in topic.calls] == [REPLAY_COUNT_MAX, 1]
    letters = await topic.letters(last)
    await topic.admin.drop_dead_letters(DEAD, letters)
    assert list(topic.calls[-1].offsets) == [last]
    with pytest.raises(PreconditionError):
        await topic.admin.drop_dead_letters(DEAD, letters * (KEY_COUNT_MAX + 1))


async def test_an_error_of_a_replay_is_raised() -> None:
    topic = Topic()
    chosen = topic.add(b"a")
    topic.error = OverloadedError("wait")
    with pytest.raises(OverloadedError):
        await topic.admin.replay_dead_letters(DEAD, await topic.letters(chosen))


async def test_a_replayed_copy_has_a_null_value_and_all_headers() -> None:
    topic = Topic()
    sent = [("n", None), ("", b""), ("n", b"2"), ("a", None), ("n", b"1")]
    place = topic.add(b"a", None, sent=sent)
    (letter,) = await topic.letters(place)
    assert (letter.value, letter.value_is_null) == (b"", True)
    assert letter.header_list == tuple(sent)
    assert letter.headers == {"n": b"1", "": b"", "a": b""}
    await topic.admin.replay_dead_letters(DEAD, [letter])
    (copy,) = topic.calls[0].letters
    (row,) = read_body(copy.body, 1).to_pylist()
    assert (row["key"], row["value"]) == (b"a", None)
    assert row["headers"][:-1] == sent
    assert row["headers"][-1][0] == "seriatim-history"
