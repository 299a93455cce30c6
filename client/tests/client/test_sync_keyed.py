"""The consumer by key of the synchronous client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from seriatim import Message, Retry, sync
from seriatim_api import errors

from ..fake_keyed import FakeKeyed
from .test_public import fake_in_a_thread


@contextmanager
def consuming(rows: str, **options: Any) -> Iterator[tuple[FakeKeyed, sync.KeyedConsumer, sync.Client]]:
    """A consumer, and its group: each letter of `rows` is a message with that key and a number."""
    with fake_in_a_thread() as cluster, sync.Client.connect(cluster.brokers[0].address) as client:
        record = client.admin().create_topic("t")
        group = FakeKeyed(cluster, **options)
        loop_free = [(key.encode(), b"%d" % at) for at, key in enumerate(rows)]
        group.add(record.partition_ids[0], loop_free)
        with client.consumer("t", "g", mode="key_ordered") as consumer:
            yield group, consumer, client


@contextmanager
def handling(consumer: sync.KeyedConsumer, handler: Callable[[Message], object]) -> Iterator[list[BaseException]]:
    """`run` in a thread, until the end of the block."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run(handler, 4)
        except BaseException as exc:
            raised.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield raised
    finally:
        consumer.close()
        thread.join(10)
    assert not thread.is_alive()


def test_a_handler_works_on_all_messages_in_the_order_of_their_keys() -> None:
    done: list[int] = []
    all_done = threading.Event()

    def handle(message: Message) -> None:
        if message.value == b"1" and message.attempt == 1:
            raise Retry(0.01)
        done.append(int(message.value))
        if len(done) == 5:
            all_done.set()

    with consuming("aabbb") as (_, consumer, client):
        with handling(consumer, handle) as raised:
            assert all_done.wait(10)
            assert client.admin().list_topics(), "a handler's thread and this one may both call"
        assert raised == []
    assert [value for value in done if value < 2] == [0, 1]
    assert [value for value in done if value >= 2] == [2, 3, 4]


def test_a_coroutine_function_is_refused() -> None:
    async def handle(_message: Message) -> None:
        pass

    with consuming("a") as (_, consumer, _client), pytest.raises(errors.BadRequestError, match="coroutine"):
        consumer.run(handle)


def test_items_are_acknowledged_at_the_end_of_their_blocks() -> None:
    with consuming("aab") as (group, consumer, _):
        for item in consumer:
            with item as message:
                value = int(message.value)
            if value == 1:
                break
        assert not group.rows[1].is_done or group.rows[0].is_done
    assert [row.is_done for row in group.rows][:2] == [True, True]


def test_an_iteration_ends_when_another_thread_closes_the_consumer() -> None:
    seen: list[int] = []
    first = threading.Event()

    def iterate() -> None:
        for item in consumer:
            with item as message:
                seen.append(int(message.value))
            first.set()
        seen.append(-1)

    with consuming("a") as (_, consumer, _client):
        thread = threading.Thread(target=iterate)
        thread.start()
        assert first.wait(10)
        consumer.close()
        thread.join(10)
        assert not thread.is_alive()
    assert seen == [0, -1]


def test_messages_are_asked_for() -> None:
    with consuming("abc") as (group, consumer, _):
        first, second, third = consumer.receive(5)
        assert first.extend(60)
        second.nack(0.01, "later")
        assert third.ack()
        [again] = consumer.receive()
        assert (again.message.value, again.message.attempt) == (second.message.value, 2)
        assert first.is_current
        with pytest.raises(ValueError, match="no"), first:
            raise ValueError("no")
        assert not first.ack()
    assert [row.is_done for row in group.rows] == [False, False, True]
    assert [nack.reason for nack in group.nacks] == ["later", "ValueError: no"]


def test_batches_are_worked_on_in_threads_and_one_message_can_be_given_back() -> None:
    done: list[int] = []
    all_done = threading.Event()

    def handle(batch: sync.KeyedBatch) -> None:
        assert batch.table.num_rows == len(batch) == len(batch.offsets)
        for message in batch.messages:
            if message.value == b"1" and message.attempt == 1:
                batch.fail(message, 0.01, "not yet")
            else:
                done.append(int(message.value))
        if len(set(done)) == 4:
            all_done.set()

    with consuming("abcd") as (group, consumer, _):
        thread = threading.Thread(target=consumer.run_batches, args=(handle, 2))
        thread.start()
        assert all_done.wait(10)
        consumer.close()
        thread.join(10)
        assert not thread.is_alive()
        assert len(group.nacks) == 1


def test_a_coroutine_function_is_no_handler_of_batches() -> None:
    async def handle(_batch: sync.KeyedBatch) -> None: ...

    with consuming("a") as (_, consumer, _client), pytest.raises(errors.BadRequestError, match="plain functions"):
        consumer.run_batches(handle)
