"""The consumer over real gRPC: order, acks, standby, segments, losses of the server."""

from __future__ import annotations

import asyncio

import pytest
from seriatim import AckLevel, Assignment, Client, Consumer, Message, Producer
from seriatim._consuming import streams
from seriatim_api import errors

from ..fake_broker import FakeCluster, connected, running, until

pytestmark = pytest.mark.usefixtures("carriage")


async def fill(producer: Producer, begin: int, end: int, partition: int = 0) -> None:
    for n in range(begin, end, 10):
        await (await producer.send_many([b"%d" % m for m in range(n, n + 10)], partition=partition))


async def read(consumer: Consumer, count: int, *, ack: bool = True) -> list[Message]:
    messages: list[Message] = []
    async with asyncio.timeout(10):
        while len(messages) < count:
            messages += await consumer.fetch(count - len(messages), 1.0)
            if ack:
                await consumer.ack_all()
    return messages


def numbers(messages: list[Message]) -> list[int]:
    return [int(message.value) for message in messages]


async def test_iterates_in_order_and_acks() -> None:
    async with running() as cluster:
        cluster.create_topic("t")
        address = cluster.brokers[0].address
        async with Client.connect(address) as client, client.producer("t") as producer:
            await (await producer.send(b"0", key=b"k", headers={"h": b"1"}, tag="x", timestamp_ms=5))
            await fill(producer, 1, 101)
            async with client.consumer("t", "g") as consumer:
                found: list[Message] = []
                async for message in consumer:
                    found.append(message)
                    assert await consumer.ack(message)
                    if len(found) == 101:
                        break
                group = cluster.partition("t").groups["g"]
                await until(lambda: group.acked == 101)
        assert numbers(found) == list(range(101))
        first = found[0]
        assert (first.key, first.headers, first.tag, first.timestamp_ms) == (b"k", {"h": b"1"}, "x", 5)
        assert (first.topic, first.partition, first.attempt, first.maybe_repeated) == ("t", 0, 1, False)
        assert found[1].key is None
        assert found[1].headers == {}
        assert [m.offset for m in found] == list(range(first.offset, first.offset + 101))


async def test_the_end_waits_until_a_broker_that_is_busy_has_read_the_last_acks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "DRAIN_DEADLINE_S", 30.0)
    async with connected() as (cluster, client), client.producer("t") as producer:
        broker = cluster.brokers[0]
        await fill(producer, 0, 20)
        consumer = await client.consumer("t", "g").__aenter__()
        await read(consumer, 20, ack=False)
        broker.reads.clear()
        await consumer.ack_all()
        closing = asyncio.create_task(consumer.close())
        await asyncio.wait([closing], timeout=0.1)  # if it does not wait, it has broken off the stream by now
        broker.reads.set()
        await closing
        assert cluster.partition("t").groups["g"].acked == 20
        assert not broker.consume_streams


async def test_the_end_does_not_wait_for_a_broker_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "DRAIN_DEADLINE_S", 0.05)
    async with connected() as (cluster, client), client.producer("t") as producer:
        broker = cluster.brokers[0]
        await fill(producer, 0, 10)
        async with asyncio.timeout(10), client.consumer("t", "g") as consumer:
            await read(consumer, 10, ack=False)
            broker.reads.clear()
            await consumer.ack_all()
        assert cluster.partition("t").groups["g"].acked == 0


async def test_long_poll_waits_and_gives_up() -> None:
    async with connected() as (_, client), client.consumer("t", "g") as consumer:
        assert await consumer.fetch(10, 0.05) == []
        waiting = asyncio.create_task(consumer.fetch(10, 5.0))
        async with client.producer("t") as producer:
            await producer.send(b"7")
            assert numbers(await waiting) == [7]


async def test_an_iteration_ends_quietly_when_the_consumer_is_closed() -> None:
    async with connected() as (_, client), client.producer("t") as producer:
        await fill(producer, 0, 10)
        async with client.consumer("t", "g") as consumer:
            found: list[Message] = []

            async def iterate() -> None:
                async for message in consumer:
                    found.append(message)

            iterating = asyncio.create_task(iterate())
            await until(lambda: len(found) == 10)
            await consumer.close()
            await iterating
            with pytest.raises(errors.PreconditionError, match="closed"):
                await consumer.fetch()
    assert numbers(found) == list(range(10))


async def test_crosses_segments_in_order() -> None:
    async with connected(brokers=3) as (cluster, client), client.producer("t") as producer:
        partition = cluster.partition("t")
        for n in range(6):
            await fill(producer, n * 100, n * 100 + 100)
            cluster.switch(partition, cluster.brokers[(n + 1) % 3])
        async with client.consumer("t", "g") as consumer:
            messages = await read(consumer, 600)
    assert numbers(messages) == list(range(600))
    assert [m.offset >> 40 for m in messages] == [n // 100 + 1 for n in range(600)]


async def test_the_end_of_a_segment_waits_for_the_acks() -> None:
    async with connected(brokers=2) as (cluster, client), client.producer("t") as producer:
        partition = cluster.partition("t")
        await fill(producer, 0, 20)
        cluster.switch(partition, cluster.brokers[1])
        await fill(producer, 20, 40)
        async with client.consumer("t", "g") as consumer:
            messages = await read(consumer, 20, ack=False)
            assert await consumer.fetch(10, 0.1) == []
            assert await consumer.ack(messages[-1])
            assert numbers(await read(consumer, 20)) == list(range(20, 40))


async def test_standby_takes_over_what_was_not_acked() -> None:
    async with running() as cluster:
        cluster.create_topic("t")
        address = cluster.brokers[0].address
        events: list[Assignment] = []
        async with Client.connect(address) as client, client.producer("t") as producer:
            await fill(producer, 0, 30)
            first = await client.consumer("t", "g")
            messages = await read(first, 30, ack=False)
            async with client.consumer("t", "g", on_assignment=events.append) as second:
                await until(lambda: second.joined == (0,))
                assert second.assigned == ()
                assert await second.fetch(10, 0.05) == []
                await first.ack(messages[9])
                await first.close()
                again = await read(second, 20)
                assert numbers(again) == list(range(10, 30))
                assert {m.attempt for m in again} == {2}
                assert events == [Assignment("t", 0, True, messages[10].offset)]


async def test_a_lost_server_is_left_for_the_next() -> None:
    async with running(2) as cluster:
        cluster.create_topic("t")
        partition = cluster.partition("t")
        bootstrap = [broker.address for broker in cluster.brokers]
        async with Client.connect(bootstrap) as client, client.producer("t") as producer:
            await fill(producer, 0, 30)
            async with client.consumer("t", "g") as consumer:
                before = await read(consumer, 10)
                await until(lambda: partition.groups["g"].acked == 10)
                unacked = await read(consumer, 20, ack=False)
                move_server(cluster)
                await cluster.brokers[0].stop()
                after = await read(consumer, 20, ack=False)
                assert not await consumer.ack(unacked[-1])
                assert await consumer.ack(after[-1])
        assert numbers(before) == list(range(10))
        assert numbers(after) == numbers(unacked) == list(range(10, 30))


def move_server(cluster: FakeCluster) -> None:
    """The other copy of the segment takes the right over."""
    partition = cluster.partition("t")
    partition.epoch += 1
    partition.open_segment.broker = cluster.brokers[1]
    partition.groups["g"].server_epoch += 1


async def test_a_frozen_server_is_noticed_by_asking_another() -> None:
    async with running(2) as cluster:
        cluster.create_topic("t")
        bootstrap = [broker.address for broker in cluster.brokers]
        async with Client.connect(bootstrap) as client, client.producer("t") as producer:
            await fill(producer, 0, 10)
            async with client.consumer("t", "g") as consumer:
                await read(consumer, 10)
                group = cluster.partition("t").groups["g"]
                await until(lambda: group.acked == 10)
                group.consumers = []  # the old server says nothing of it
                for broker in cluster.brokers:
                    broker.answers_pings = False
                move_server(cluster)
                await fill(producer, 10, 20)
                assert numbers(await read(consumer, 10)) == list(range(10, 20))


async def test_credit_comes_back_and_bounds_what_waits() -> None:
    async with connected() as (_, client), client.producer("t", batch_size_bytes=10_000) as producer:
        await (await producer.send_many([bytes(1000)] * 2000))
        async with client.consumer("t", "g", credit_bytes=1 << 16) as consumer:
            await until(lambda: len(consumer._inbox.chunks) > 0)
            count = 0
            while count < 2000:
                assert sum(len(chunk.body) for chunk in consumer._inbox.chunks) < 2 << 16
                count += len(await consumer.fetch(10, 1.0))
                await consumer.ack_all()


async def test_fetch_table_gives_views() -> None:
    async with connected() as (cluster, client), client.producer("t") as producer:
        await (await producer.send_many([b"%d" % n for n in range(100)]))
        async with client.consumer("t", "g") as consumer:
            fetched = await consumer.fetch_table(1.0)
            assert fetched is not None
            assert fetched.table.column("value").to_pylist() == [b"%d" % n for n in range(100)]
            assert await consumer.ack(fetched)
            await until(lambda: cluster.partition("t").groups["g"].acked == 100)
            assert await consumer.fetch_table(0.05) is None


async def test_a_hole_stops_the_consumer() -> None:
    async with connected() as (cluster, client), client.producer("t") as producer:
        await fill(producer, 0, 30)
        del cluster.partition("t").open_segment.batches[1]
        async with client.consumer("t", "g") as consumer:
            with pytest.raises(errors.OrderViolationError):
                await read(consumer, 30)


async def test_a_damaged_body_is_not_passed_on() -> None:
    async with connected() as (cluster, client), client.producer("t") as producer:
        await fill(producer, 0, 10)
        batch = cluster.partition("t").open_segment.batches[0]
        batch.body = batch.body[:-1] + b"\xff"
        async with client.consumer("t", "g") as consumer:
            with pytest.raises(errors.ChecksumMismatchError):
                await consumer.fetch()


async def test_bad_input_is_refused() -> None:
    async with connected() as (_, client), client.producer("t") as producer:
        with pytest.raises(errors.IllegalNameError):
            client.consumer("t", "no/such")
        with pytest.raises(errors.UnsupportedModeError):
            client.consumer("t", "g", mode="by-key")  # type: ignore[call-overload]
        with pytest.raises(errors.PartitionOutOfRangeError):
            await client.consumer("t", "g", partitions=[1])
        with pytest.raises(errors.UnknownTopicError):
            await client.consumer("nothing", "g")
        with pytest.raises(errors.BadRequestError):
            client.consumer("t", "g", start="middle")  # type: ignore[arg-type]
        await fill(producer, 0, 10)
        async with client.consumer("t", "g") as consumer:
            [message] = await consumer.fetch(1)
            with pytest.raises(errors.BadRequestError):
                await consumer.ack(message.offset + 1, partition=0)
            with pytest.raises(errors.BadRequestError):
                await consumer.ack(message.offset)
            assert await consumer.ack(message.offset, partition=0)


async def test_many_partitions_share_streams() -> None:
    async with running(2) as cluster:
        cluster.create_topic("t", 20)
        address = cluster.brokers[0].address
        async with (
            Client.connect(address) as client,
            client.producer("t", ack_level=AckLevel.REPLICATED) as producer,
            client.consumer("t", "g") as consumer,
        ):
            for n in range(20):
                await producer.send_many([b"%d" % m for m in range(50)], partition=n)
            await producer.flush()
            messages = await read(consumer, 1000)
            assert sum(len(broker.consume_streams) for broker in cluster.brokers) == 2
            assert sum(len(broker.append_streams) for broker in cluster.brokers) == 2
        for n in range(20):
            assert numbers([m for m in messages if m.partition == n]) == list(range(50))
