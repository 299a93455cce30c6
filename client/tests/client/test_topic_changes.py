"""Partitions that are added while a producer and a consumer are at work."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pyarrow as pa
import pytest
from seriatim import Client
from seriatim_api.errors import MessageTooLargeError, PartitionOutOfRangeError, UnknownTopicError
from seriatim_api.v1 import broker_pb2

from ..fake_broker import connected, running, until


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim._topic_changes.LOOK_S", 0.02)


async def test_a_producer_uses_new_partitions_and_keeps_old_ones() -> None:
    async with connected(2, brokers=2) as (cluster, client), client.producer("t", linger_ms=0) as producer:
        await (await producer.send(b"before", partition=1))
        cluster.grow_topic("t", 4)
        await until(lambda: producer.partition_count == 4)
        for number in range(4):
            await (await producer.send(b"%d" % number, partition=number))
        spread = [await producer.send(b"k", key=b"key-%d" % number) for number in range(40)]
        assert {(await delivery).partition for delivery in spread} == {0, 1, 2, 3}
    assert cluster.values("t", 1)[:2] == [b"before", b"1"]
    assert cluster.values("t", 3)[0] == b"3"


async def test_a_producer_asks_before_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim._topic_changes.LOOK_S", 60.0)
    monkeypatch.setattr("seriatim._topic_changes.SHARED_S", 0.0)
    async with running(1) as cluster:
        record = cluster.create_topic("t", 1, message_size_bytes_max=10)
        async with Client.connect(cluster.brokers[0].address) as client, client.producer("t", linger_ms=0) as producer:
            with pytest.raises(PartitionOutOfRangeError):
                await producer.send(b"value", partition=1)
            with pytest.raises(MessageTooLargeError):
                await producer.send_many([b"value" * 3])
            cluster.grow_topic("t", 4)
            with pytest.raises(PartitionOutOfRangeError):
                producer.send_nowait(b"value", partition=1)
            await (await producer.send(b"value", partition=1))
            record.settings.message_size_bytes_max = 20
            await (await producer.send_many([b"value" * 3]))
            record.settings.message_size_bytes_max = 30
            await (await producer.send_table(pa.table({"value": [b"value" * 5]}), partition=3))
            assert producer.message_size_bytes_max == 30


async def test_a_consumer_of_all_reads_new_partitions_from_the_start() -> None:
    async with (
        connected(brokers=2) as (cluster, client),
        client.producer("t", linger_ms=0) as producer,
        client.consumer("t", "g", start="latest") as consumer,
    ):
        await until(lambda: consumer.joined == (0,))
        cluster.grow_topic("t", 3)
        await until(lambda: producer.partition_count == 3)
        await (await producer.send(b"in the new one", partition=2))
        (message,) = await consumer.fetch(1, 10)
        assert (message.partition, message.value) == (2, b"in the new one")
        await until(lambda: consumer.assigned == (0, 1, 2))


async def test_a_consumer_of_named_partitions_keeps_to_them() -> None:
    async with (
        connected() as (cluster, client),
        client.producer("t") as producer,
        client.consumer("t", "g", partitions=[0]) as consumer,
    ):
        cluster.grow_topic("t", 2)
        await until(lambda: producer.partition_count == 2)
        await until(lambda: bool(consumer.joined))
        assert consumer.joined == (0,)


async def test_a_new_topic_with_the_same_name_is_another_topic() -> None:
    async with running(1) as cluster:
        cluster.create_topic("t", 1)
        cluster.create_topic("u", 1)
        async with (
            Client.connect(cluster.brokers[0].address) as client,
            client.producer("t") as old,
            client.producer("u") as other,
        ):
            cluster.create_topic("t", 3).incarnation = "another"
            cluster.grow_topic("u", 2)
            await until(lambda: other.partition_count == 2)
            assert old.partition_count == 1


async def test_watches_of_one_client_share_a_recent_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (cluster, client):
        caller = client._caller
        asked: list[int] = []
        ask = caller.routing

        async def counted(method: str, request: broker_pb2.GetTopicRequest, timeout_s: float) -> Any:
            asked.append(request.known_partition_count)
            return await ask(method, request, timeout_s)

        monkeypatch.setattr(caller, "routing", counted)
        request = broker_pb2.GetTopicRequest(topic="t", known_partition_count=1)
        first = await caller.topic(request, 2.0, within_s=60.0)
        assert await caller.topic(request, 2.0, within_s=60.0) is first
        assert asked == [1]
        other = broker_pb2.GetTopicRequest(topic="t", known_partition_count=0)
        assert (await caller.topic(other, 2.0, within_s=60.0)).routes, "another question has its own answer"
        cluster.grow_topic("t", 3)
        assert len((await caller.topic(request, 2.0, within_s=0.0)).routes) == 3, "an older answer does not count"
        assert asked == [1, 0, 1]
        asked.clear()
        later = broker_pb2.GetTopicRequest(topic="t", known_partition_count=3)
        many = await asyncio.gather(*(caller.topic(later, 2.0, within_s=60.0) for _ in range(20)))
        assert asked == [3], "who asks before there is an answer waits for it"
        assert all(answer is many[0] for answer in many)
        assert not caller._waiting


async def test_each_watch_has_its_own_error() -> None:
    async with running(1) as cluster, Client.connect(cluster.brokers[0].address) as client:
        request = broker_pb2.GetTopicRequest(topic="t", known_partition_count=1)
        with pytest.raises(UnknownTopicError):
            await client._caller.topic(request, 2.0, within_s=60.0)
        cluster.create_topic("t", 2)
        assert len((await client._caller.topic(request, 2.0, within_s=60.0)).routes) == 2
        with pytest.raises(UnknownTopicError):
            await client._caller.topic(broker_pb2.GetTopicRequest(topic="u"), 2.0, within_s=60.0)


async def test_many_consumers_ask_an_older_broker_as_often_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim._topic_changes.LOOK_S", 0.2)
    async with running(1) as cluster:
        cluster.is_old = True
        cluster.create_topic("t", 1)
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client.connect(cluster.brokers[0].address))
            consumers = [
                await stack.enter_async_context(client.consumer("t", "g", mode="key_ordered")) for _ in range(20)
            ]
            caller, looks, asked = client._caller, 0, 0
            look, ask = caller.topic, caller.routing

            async def looked(*arguments: Any, **named: Any) -> Any:
                nonlocal looks
                looks += 1
                return await look(*arguments, **named)

            async def counted(*arguments: Any, **named: Any) -> Any:
                nonlocal asked
                asked += arguments[0] == "GetTopic"
                return await ask(*arguments, **named)

            monkeypatch.setattr(caller, "topic", looked)
            monkeypatch.setattr(caller, "routing", counted)
            await until(lambda: looks >= 100)
            assert asked < looks / 2
            cluster.grow_topic("t", 2)
            await until(lambda: all(consumer.joined == (0, 1) for consumer in consumers))


async def test_an_answer_about_a_deleted_topic_is_not_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (cluster, client):
        caller = client._caller
        cluster.grow_topic("t", 3)
        request = broker_pb2.GetTopicRequest(topic="t", known_partition_count=1)
        old = await caller.topic(request, 2.0, within_s=60.0)
        assert len(old.routes) == 3, "what a watch of the old topic was reported"
        cluster.delete_topic("t")
        cluster.create_topic("t", 1).incarnation = "another"
        looks = 0
        look = caller.topic

        async def looked(*arguments: Any, **named: Any) -> Any:
            nonlocal looks
            answer = await look(*arguments, **named)
            looks += 1
            return answer

        monkeypatch.setattr(caller, "topic", looked)
        cluster.is_old = True
        async with client.producer("t", linger_ms=0) as producer:
            await until(lambda: looks >= 3)
            await (await producer.send(b"new"))
        assert cluster.values("t") == [b"new"]


async def test_watches_share_a_waiting_question_and_the_last_ends_it() -> None:
    async with connected() as (cluster, client):
        async with AsyncExitStack() as stack:
            producers = [await stack.enter_async_context(client.producer("t")) for _ in range(20)]
            await until(lambda: all(producer._topic_changes.is_told for producer in producers))
            await until(lambda: cluster.waiting == 1)
            await producers[0].close()
            assert cluster.waiting == 1
            cluster.grow_topic("t", 2)
            await until(lambda: all(producer.partition_count == 2 for producer in producers[1:]))
            await until(lambda: cluster.waiting == 1)
        await until(lambda: not cluster.waiting)
        assert not client._caller._waiting


async def test_a_waiting_client_asks_another_broker_when_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim._topic_changes.WAIT_S", 0.05)
    async with connected(brokers=2) as (cluster, client), client.producer("t") as producer:
        first, second = cluster.brokers
        client._caller._addresses = {first.address: None}  # it does not know the other one yet
        await until(lambda: second.address in client._caller._addresses)
        await until(lambda: cluster.waiting == 1)
        await first.stop()
        cluster.grow_topic("t", 2)
        await until(lambda: producer.partition_count == 2)
