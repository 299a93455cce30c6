"""`KeyedConsumer.run_batches`: many messages at once, acknowledged together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from seriatim import KeyedBatch, KeyedConsumer
from seriatim_api.errors import BadRequestError, PreconditionError

from ..fake_broker import until
from .test_keyed_consumer import consuming


@asynccontextmanager
async def handling(consumer: KeyedConsumer, handler: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
    """`run_batches` in a task, until the end of the block."""
    task = asyncio.create_task(consumer.run_batches(handler, *args, **options))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_batch_is_acknowledged_when_its_handler_returns() -> None:
    seen: list[tuple[bytes | None, int]] = []
    tables: list[int] = []

    async def handle(batch: KeyedBatch) -> None:
        assert [message.offset for message in batch.messages] == list(batch.offsets)
        assert len(batch) == len(batch.messages) == batch.table.num_rows
        tables.append(batch.table.num_rows)
        seen.extend((message.key, int(message.value)) for message in batch.messages)

    async with consuming("abacbc") as (group, consumer), handling(consumer, handle):
        await until(lambda: not group.values_left)
    assert sorted(seen, key=lambda row: (row[0] or b"", row[1])) == [
        (b"a", 0), (b"a", 2), (b"b", 1), (b"b", 4), (b"c", 3), (b"c", 5),
    ]  # fmt: skip
    assert [number for key, number in seen if key == b"a"] == [0, 2]
    assert sum(tables) == 6


async def test_a_batch_whose_handler_waits_is_begun_and_acknowledged() -> None:
    async def handle(_batch: KeyedBatch) -> None:
        await asyncio.sleep(0)

    async with consuming("abc") as (group, consumer), handling(consumer, handle):
        await until(lambda: not group.values_left)


async def test_one_message_of_a_batch_can_be_given_back() -> None:
    seen: list[tuple[int, int]] = []

    async def handle(batch: KeyedBatch) -> None:
        for message in batch.messages:
            number = int(message.value)
            seen.append((number, message.attempt))
            if number == 2 and message.attempt == 1:
                batch.fail(message, 0.0, "not now")

    async with consuming("abaa") as (group, consumer), handling(consumer, handle):
        await until(lambda: not group.values_left)
        nacks = [(nack.reason, nack.delay_ms) for nack in group.nacks]
    assert nacks == [("not now", 0)]
    assert [number for number, _ in seen].count(1) == 1, "the other key was acknowledged"
    assert [number for number, _ in seen].count(0) == 1, "so was the earlier message of the key"
    assert (2, 2) in seen
    assert [number for number, _ in seen][-1] == 3, "the later message of the key comes after the one that failed"


async def test_a_handler_that_raises_gives_back_all_keys_of_its_batch() -> None:
    attempts: list[list[int]] = []

    async def handle(batch: KeyedBatch) -> None:
        attempts.append([message.attempt for message in batch.messages])
        if len(attempts) == 1:
            raise ValueError("no database")

    async with consuming("ab") as (group, consumer), handling(consumer, handle, 1):
        await until(lambda: not group.values_left)
        assert {nack.reason for nack in group.nacks} == {"ValueError: no database"}
    assert attempts[0] == [1] * len(attempts[0])
    assert 2 in attempts[-1]


async def test_a_handler_that_takes_too_long_gives_its_batch_back() -> None:
    calls: list[int] = []

    async def handle(_batch: KeyedBatch) -> None:
        calls.append(1)
        if len(calls) == 1:
            await asyncio.Event().wait()

    async with consuming("a") as (group, consumer), handling(consumer, handle, 1, timeout_s=0.05):
        await until(lambda: not group.values_left)
        assert "longer than" in group.nacks[0].reason


async def test_a_cancelled_run_gives_back_what_its_handlers_had() -> None:
    begun = asyncio.Event()

    async def handle(_batch: KeyedBatch) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with consuming("a") as (group, consumer):
        async with handling(consumer, handle, 1):
            await begun.wait()
        done: list[int] = []

        async def take(batch: KeyedBatch) -> None:
            done.append(len(batch))

        async with handling(consumer, take):
            await until(lambda: not group.values_left)


async def test_what_is_not_of_a_batch_is_refused() -> None:
    refused: list[BaseException] = []
    first: list[Any] = []

    async def handle(batch: KeyedBatch) -> None:
        try:
            if first:
                batch.fail(first[0])
            else:
                first.append(batch.messages[0])
                batch.fail(batch.messages[0], -1)
        except BadRequestError as error:
            refused.append(error)

    async with consuming("aa", run_max=1) as (group, consumer), handling(consumer, handle, 1):
        await until(lambda: not group.values_left)
    assert refused
    assert "between 0 and 40 days" in str(refused[0])


async def test_bad_arguments_are_refused() -> None:
    async def handle(_batch: KeyedBatch) -> None:
        pass

    async with consuming("") as (_, consumer):
        with pytest.raises(BadRequestError, match="concurrency"):
            await consumer.run_batches(handle, 0)
        with pytest.raises(BadRequestError, match="timeout"):
            await consumer.run_batches(handle, timeout_s=0)
        with pytest.raises(BadRequestError, match="async def"):
            await consumer.run_batches(print)  # type: ignore[arg-type]
        await consumer.receive(1, 0.01)
        with pytest.raises(PreconditionError):
            await consumer.run_batches(handle)
