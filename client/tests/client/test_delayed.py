"""Delayed messages in the client: cancellations and what is retried, and what waits, page by page."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from seriatim import Admin, CancelOutcome, Client, DelayedMessages, DelayedStats
from seriatim._transport.cancellations import Cancellations
from seriatim_api.errors import (
    BadRequestError,
    IllegalNameError,
    NotServingError,
    OverloadedError,
    PartitionOutOfRangeError,
    SeriatimError,
    UnknownTopicError,
)
from seriatim_api.ids import OFFSET_MAX, make_offset
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import broker_pb2, delayed_pb2, records_pb2


class Broker:
    """Answers what it is given, or raises it."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, str | None]] = []
        self.admin = Admin(cast(Any, self))
        self.cancellations = Cancellations(cast(Any, self))

    async def delayed(self, _method: str, request: Any, timeout_s: float, first: str | None = None) -> Any:
        assert timeout_s > 0
        copy = type(request)()
        copy.CopyFrom(request)
        self.asked.append((copy, first))
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if isinstance(answer, SeriatimError):
            raise answer
        return answer

    async def routing(self, _method: str, request: Any, _timeout_s: float) -> Any:
        if request.topic != "t":
            raise UnknownTopicError("there is no such topic")
        return broker_pb2.GetTopicResponse(topic=records_pb2.TopicRecord(name="t", partition_ids=(7, 8)))

    async def cancel(self, offset: int = make_offset(3, 5), timeout_s: float = 10.0) -> CancelOutcome:
        return await self.cancellations.cancel("t", 1, offset, timeout_s)


def answer(*results: int, address: str = "b:1") -> delayed_pb2.CancelDelayedResponse:
    messages = [delayed_pb2.CancelledMessage(result=cast(Any, result)) for result in results]
    return delayed_pb2.CancelDelayedResponse(messages=messages, server_address=address)


def page(*rows: tuple[int, int], after: tuple[int, int] | None = None, **more: Any) -> delayed_pb2.ListDelayedResponse:
    found = delayed_pb2.ListDelayedResponse(
        rows=[delayed_pb2.DelayedMessages(due_ms=due, offset=at, message_count=2, size_bytes=9) for due, at in rows],
        **more,
    )
    if after is not None:
        found.next.due_ms, found.next.offset = after
    return found


async def test_each_answer_is_an_outcome_and_its_server_is_asked_first_next_time() -> None:
    broker = Broker(answer(1), answer(2, address=""), answer(3))
    assert await broker.cancel() is CancelOutcome.CANCELLED
    assert await broker.cancel(make_offset(3, 9)) is CancelOutcome.TOO_LATE
    assert await broker.cancel(make_offset(4, 0)) is CancelOutcome.NOT_FOUND
    assert [first for _, first in broker.asked] == [None, "b:1", None]
    assert broker.asked[0][0] == delayed_pb2.CancelDelayedRequest(topic="t", partition=1, offsets=[make_offset(3, 5)])


async def test_a_retriable_refusal_is_asked_again_until_the_time_is_over() -> None:
    refused = delayed_pb2.CancelledMessage(error=error_to_proto(NotServingError("not settled", retry_after_ms=1)))
    one = delayed_pb2.CancelDelayedResponse(messages=[refused])
    broker = Broker(OverloadedError("busy", retry_after_ms=1), NotServingError("not yet"), one, answer(1))
    assert await broker.cancel() is CancelOutcome.CANCELLED
    broker = Broker(*[NotServingError("not yet", retry_after_ms=20)] * 9)
    with pytest.raises(NotServingError):
        await broker.cancel(timeout_s=0.05)
    assert 1 < len(broker.asked) < 5
    broker = Broker(PartitionOutOfRangeError("no such partition"))
    with pytest.raises(PartitionOutOfRangeError):
        await broker.cancel()


async def test_messages_that_wait_for_a_question_are_in_the_next_one() -> None:
    broker = Broker(answer(1), answer(2), answer(3, 1, 2), answer(1), answer(1))
    outcomes = await asyncio.gather(*(broker.cancel(make_offset(3, at)) for at in range(6)))
    kinds = (CancelOutcome.CANCELLED, CancelOutcome.TOO_LATE, CancelOutcome.NOT_FOUND)
    assert [kinds.index(outcome) for outcome in outcomes] == [0, 1, 2, 0, 0, 1]
    assert [[offset & 0xFF for offset in asked.offsets] for asked, _ in broker.asked] == [[0], [1], [2, 4, 5], [3]]
    assert await broker.cancel() is CancelOutcome.CANCELLED, "nothing is left under way"


async def test_an_error_is_that_of_all_messages_of_the_question() -> None:
    wrong = PartitionOutOfRangeError("no such partition")
    broker = Broker(answer(1), answer(1), wrong, answer(1))
    calls = (broker.cancel(make_offset(3, at)) for at in range(5))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [outcome is wrong for outcome in outcomes] == [False, False, True, False, True]


async def test_a_cancelled_caller_does_not_hold_up_the_others() -> None:
    broker = Broker(*[answer(1)] * 4)
    tasks = [asyncio.create_task(broker.cancel(make_offset(3, at))) for at in range(5)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(outcome, CancelOutcome) for outcome in done] == [False, True, False, True, True]
    assert await broker.cancel(timeout_s=1.0) is CancelOutcome.CANCELLED


@pytest.mark.parametrize(
    ("error", "topic", "partition", "origin", "timeout_s"),
    [
        (IllegalNameError, "a b", 0, 1, 1.0),
        (BadRequestError, "t", -1, 1, 1.0),
        (BadRequestError, "t", 0, -1, 1.0),
        (BadRequestError, "t", 0, OFFSET_MAX + 1, 1.0),
        (BadRequestError, "t", 0, "3:5", 1.0),
        (BadRequestError, "t", 0, 1, float("nan")),
    ],
)
async def test_an_argument_that_is_none_is_refused_without_a_question(
    error: type[SeriatimError], topic: str, partition: int, origin: Any, timeout_s: float
) -> None:
    async with Client.connect("127.0.0.1:1") as client:
        with pytest.raises(error):
            await client.cancel(topic, partition, origin, timeout_s=timeout_s)


async def test_what_waits_comes_page_by_page_and_partition_by_partition() -> None:
    broker = Broker(page((5, 1), after=(5, 1)), page(after=(6, 1)), page((7, 2)), page((1, 3)))
    rows = [row async for row in broker.admin.delayed("t", until=datetime.fromtimestamp(9, UTC))]
    assert rows == [DelayedMessages(*row) for row in ((0, 1, 5, 2, 9), (0, 2, 7, 2, 9), (1, 3, 1, 2, 9))]
    assert [(asked.partition, asked.after.due_ms, asked.until_ms) for asked, _ in broker.asked] == [
        (0, 0, 9000), (0, 5, 9000), (0, 6, 9000), (1, 0, 9000),
    ]  # fmt: skip


async def test_segments_without_a_server_are_reported_after_the_rows() -> None:
    missing: list[Any] = []
    broker = Broker(page((5, 1), after=(5, 1), unserved=[4]), page(unserved=[3, 4]))
    rows = [row.offset async for row in broker.admin.delayed("t", 1, on_unserved=lambda *told: missing.append(told))]
    assert (rows, missing) == ([1], [(1, (3, 4))])
    listed = Broker(page((5, 1), unserved=[4])).admin.delayed("t", 1)
    assert (await anext(listed)).offset == 1
    with pytest.raises(NotServingError, match="segment 4 of t/1"):
        await anext(listed)


async def test_a_place_that_cannot_be_is_refused() -> None:
    admin = Broker().admin
    for error, topic, partition, until in (
        (UnknownTopicError, "u", None, None),
        (PartitionOutOfRangeError, "t", 2, None),
        (BadRequestError, "t", -1, None),
        (BadRequestError, "t", 0, datetime(2026, 1, 1)),  # noqa: DTZ001 - that is what is refused
        (BadRequestError, "t", 0, datetime.fromtimestamp(-1, UTC)),
        (BadRequestError, "t", 0, 5),
    ):
        with pytest.raises(error):
            await anext(aiter(admin.delayed(topic, partition, cast(Any, until))))


async def test_figures_are_the_sums_of_all_pages() -> None:
    broker = Broker(page((5, 1), (6, 2), after=(6, 2), cancelled_count=3), page((7, 3)), page(unserved=[2]))
    assert await broker.admin.delayed_stats("t") == [
        DelayedStats(0, 6, 27, 5, 3, ()),
        DelayedStats(1, 0, 0, None, 0, (2,)),
    ]


async def test_a_moved_message_is_listed_by_its_origin() -> None:
    listed = page((9, make_offset(5, 7)), (10, make_offset(5, 8)))
    listed.rows[0].origin = make_offset(1, 3)
    assert [row.offset async for row in Broker(listed).admin.delayed("t", 1)] == [make_offset(1, 3), make_offset(5, 8)]
