"""Partitions that are added while a producer and a consumer are at work."""

from __future__ import annotations

import pytest
from seriatim import Client

from ..fake_broker import running, until


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim._growth.LOOK_S", 0.02)


async def test_a_producer_uses_new_partitions_and_the_old_ones_keep_what_they_have() -> None:
    async with running(2) as cluster:
        cluster.create_topic("t", 2)
        address = cluster.brokers[0].address
        async with Client.connect(address) as client, client.producer("t", linger_ms=0) as producer:
            await (await producer.send(b"before", partition=1))
            cluster.grow_topic("t", 4)
            await until(lambda: producer.partition_count == 4)
            for number in range(4):
                await (await producer.send(b"%d" % number, partition=number))
            spread = [await producer.send(b"k", key=b"key-%d" % number) for number in range(40)]
            assert {(await delivery).partition for delivery in spread} == {0, 1, 2, 3}
        assert cluster.values("t", 1)[:2] == [b"before", b"1"]
        assert cluster.values("t", 3)[0] == b"3"


async def test_a_consumer_of_all_partitions_reads_new_ones_from_their_beginning() -> None:
    async with running(2) as cluster:
        cluster.create_topic("t", 1)
        async with (
            Client.connect(cluster.brokers[0].address) as client,
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
    async with running(1) as cluster:
        cluster.create_topic("t", 1)
        async with (
            Client.connect(cluster.brokers[0].address) as client,
            client.producer("t") as producer,
            client.consumer("t", "g", partitions=[0]) as consumer,
        ):
            cluster.grow_topic("t", 2)
            await until(lambda: producer.partition_count == 2)
            await until(lambda: bool(consumer.joined))
            assert consumer.joined == (0,)


async def test_a_topic_made_anew_under_its_name_is_not_taken_for_more_of_it() -> None:
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
