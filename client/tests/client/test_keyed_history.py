"""What a client writes into a history if messages are given by key: each way to consume, checked by the checker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from seriatim import Client, KeyedBatch, KeyedConsumer, Message, Retry
from seriatim.history import MemoryHistory, check_events, render
from seriatim_api.v1 import records_pb2

from ..fake_broker import running, until
from ..fake_keyed import FakeKeyed
from .test_keyed_consumer import add

Use = Callable[[KeyedConsumer, FakeKeyed], Awaitable[None]]


@asynccontextmanager
async def recorded(
    rows: str, mode: Any = "key_ordered", **options: Any
) -> AsyncIterator[tuple[MemoryHistory, FakeKeyed, KeyedConsumer]]:
    """A consumer whose client records, on one partition whose messages were sent by a program that recorded too."""
    history = MemoryHistory("test")
    async with running() as cluster:
        cluster.create_topic("t", 1)
        shared, by_key = records_pb2.CONSUMER_MODE_SHARED, records_pb2.CONSUMER_MODE_KEY_ORDERED
        group = FakeKeyed(cluster, shared if mode == "shared" else by_key, **options)
        add(group, cluster, rows)
        for number, row in enumerate(group.rows):
            history.send(str(number), producer="p", topic="t", partition=0, sequence=number, key=row.key)
            history.outcome(str(number), "ok", offset=row.offset)
        async with (
            Client.connect(cluster.brokers[0].address, recorder=history, message_id=bytes.decode) as client,
            client.consumer("t", "g", mode=mode, name="c", session_ms=60_000, ack_interval_ms=1) as consumer,
        ):
            await until(lambda: bool(consumer.joined))
            yield history, group, consumer


def of_kind(history: MemoryHistory, kind: str) -> list[dict[str, Any]]:
    return [event for event in history.events if event["k"] == kind]


def judged(history: MemoryHistory) -> None:
    history.end("g", topic="t")
    report = check_events(history.events)
    assert report.ok, render(report)


async def _with_handlers(consumer: KeyedConsumer, group: FakeKeyed) -> None:
    failures = [Retry(0.001, "not yet"), Retry(0.001, "not yet")]

    async def handle(message: Message) -> None:
        if message.value == b"1":
            await asyncio.sleep(0)
        if failures:
            raise failures.pop()

    async with asyncio.TaskGroup() as tasks:
        running_ = tasks.create_task(consumer.run(handle, 4))
        await until(lambda: not group.values_left)
        await consumer.close()
        await running_


async def _in_batches(consumer: KeyedConsumer, group: FakeKeyed) -> None:
    failures = [0]

    async def handle(batch: KeyedBatch) -> None:
        if failures:
            failures.clear()
            batch.fail(batch.messages[0], 0.001, "not yet")

    async with asyncio.TaskGroup() as tasks:
        running_ = tasks.create_task(consumer.run_batches(handle, 2))
        await until(lambda: not group.values_left)
        await consumer.close()
        await running_


async def _one_by_one(consumer: KeyedConsumer, group: FakeKeyed) -> None:
    async for item in consumer:
        async with item:
            pass
        if item.message.value == b"5":
            break
    await until(lambda: not group.values_left)


async def _by_asking(consumer: KeyedConsumer, group: FakeKeyed) -> None:
    while group.values_left:
        for item in await consumer.receive(10, 0.2):
            item.ack()
        await asyncio.sleep(0)


@pytest.mark.parametrize("use", [_with_handlers, _in_batches, _one_by_one, _by_asking], ids=lambda use: use.__name__)
@pytest.mark.parametrize("mode", ["key_ordered", "shared"])
async def test_each_way_to_consume_is_recorded_and_checks_out(use: Use, mode: str) -> None:
    async with recorded("ababab", mode) as (history, group, consumer):
        await use(consumer, group)
        if use in (_one_by_one, _by_asking):  # the others have closed the consumer
            await until(lambda: sum(len(_list(event["o"])) for event in of_kind(history, "confirm")) >= 6)
    judged(history)
    delivered, acked = of_kind(history, "deliver"), of_kind(history, "ack")
    assert {event["c"] for event in delivered + acked} == {"c"}
    assert all(event["u"] for event in delivered + acked)
    assert sum(len(_list(event["o"])) for event in acked) == 6
    assert {event.get("y") for event in delivered} == ({"a", "b"} if mode == "key_ordered" else {None})
    if use in (_with_handlers, _in_batches):
        assert of_kind(history, "nack")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


async def test_an_acknowledgement_under_a_grant_that_has_ended_is_not_recorded() -> None:
    async with recorded("a", grant_ms=40) as (history, group, consumer):
        (item,) = await consumer.receive(1, 30.0, hold_s=0.02)
        group.grant_ms = 30_000  # the next grant is long enough
        await until(lambda: bool(of_kind(history, "void")))
        assert not item.ack()
        assert not of_kind(history, "ack")
        (again,) = await consumer.receive(1, 30.0)
        again.ack()
        await until(lambda: not group.values_left)
    judged(history)


async def test_an_at_most_once_group_is_recorded_as_one() -> None:
    async with recorded("ab", at_most_once=True) as (history, _group, consumer):
        for item in await consumer.receive(10, 1.0):
            item.ack()
    assert all(event["b"] for event in of_kind(history, "deliver"))
    judged(history)
