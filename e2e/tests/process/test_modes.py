"""Other ways to consume, on processes: shared, broadcast, at most once, and messages that are asked for."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from seriatim import Client, GroupSettings, KeyedConsumer, Message, sync
from seriatim_api.errors import IllegalNameError, UnsupportedModeError
from seriatim_local import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

DEADLINE_S = 60.0


async def send(client: Client, topic: str, first: int, end: int, keys: int = 10) -> None:
    """Messages `first` to `end`, acknowledged."""
    async with client.producer(topic) as producer:
        for number in range(first, end):
            await producer.send(b"%d" % number, key=b"k%d" % (number % keys))


async def kill_the_master(client: Client, cluster: LocalCluster, topic: str) -> None:
    """The master of the topic's first partition dies, and starts again."""
    chain = (await client.admin().describe_topic(topic)).chains[0]
    victim = chain.segments[-1].members[0]
    await cluster.kill(victim)
    await cluster.start_again(victim)


async def receive_until(consumer: KeyedConsumer, seen: Counter[int], count: int) -> None:
    """Ask for messages and acknowledge them, until this many different ones were there."""
    async with asyncio.timeout(DEADLINE_S):
        while len(seen) < count:
            for item in await consumer.receive(100, 0.5):
                seen[int(item.message.value)] += 1
                item.ack()


async def test_shared_consumers_get_each_message_through_a_failover(cluster: LocalCluster) -> None:
    seen: Counter[int] = Counter()
    async with Client.connect(cluster.bootstrap) as client:
        await client.admin().create_topic("pool", 1)
        consumers = [await client.consumer("pool", "workers", mode="shared") for _ in range(3)]
        await send(client, "pool", 0, 500)
        asking = [asyncio.create_task(receive_until(consumer, seen, 1_000)) for consumer in consumers]
        await kill_the_master(client, cluster, "pool")
        await send(client, "pool", 500, 1_000)
        await asyncio.gather(*asking)
        with pytest.raises(UnsupportedModeError):
            async with client.consumer("pool", "workers", mode="key_ordered") as wrong:
                await wrong.receive(timeout_s=DEADLINE_S)
    assert sorted(seen) == list(range(1_000))


async def test_asking_holds_nothing_and_unfinished_messages_come_again(cluster: LocalCluster) -> None:
    async with Client.connect(cluster.bootstrap) as client:
        await client.admin().create_topic("asked", 2)
        await send(client, "asked", 0, 40, keys=40)
        async with (
            client.consumer("asked", "g", mode="key_ordered") as one,
            client.consumer("asked", "g", mode="key_ordered") as two,
        ):
            kept = await one.receive(5, DEADLINE_S, hold_s=2)
            seen: Counter[int] = Counter()
            await receive_until(two, seen, 40 - len(kept))
            assert not {int(item.message.value) for item in kept} & set(seen)
            await receive_until(two, seen, 40)
            assert not kept[0].ack()
        rows = (await client.admin().describe_group("asked", "g")).partitions
        assert [row.lag for row in rows] == [0, 0]


async def test_a_group_of_each_mode_begins_where_its_first_consumer_says(cluster: LocalCluster) -> None:
    async with Client.connect(cluster.bootstrap) as client:
        await client.admin().create_topic("begins", 1)
        async with client.producer("begins") as producer:
            deliveries = [await producer.send(b"%d" % number, key=b"k") for number in range(10)]
            at = (await deliveries[6]).offset
        async with client.consumer("begins", "by-key", mode="key_ordered", partitions=[0], start=at) as consumer:
            assert [int(item.message.value) for item in await consumer.receive(timeout_s=DEADLINE_S)] == [6]
        async with client.consumer("begins", "all", mode="broadcast", name="c", partitions=[0], start=at) as reader:
            assert [int(message.value) for message in await reader.fetch(timeout_s=DEADLINE_S)] == [6, 7, 8, 9]
        # The group is there by now, so its settings stay.
        async with client.consumer("begins", "by-key", mode="key_ordered", partitions=[0], start=0) as consumer:
            assert [int(item.message.value) for item in await consumer.receive(timeout_s=DEADLINE_S)] == [6]


async def test_each_broadcast_consumer_gets_all_and_goes_on_under_its_name(cluster: LocalCluster) -> None:
    async with Client.connect(cluster.bootstrap) as client:
        await client.admin().create_topic("news", 1)
        await send(client, "news", 0, 10)
        values: dict[str, list[int]] = {"a": [], "b": []}

        async def read(name: str, count: int) -> None:
            async with (
                asyncio.timeout(DEADLINE_S),
                client.consumer("news", "caches", mode="broadcast", name=name) as consumer,
            ):
                while not consumer.assigned:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                ready[name].set()
                while len(values[name]) < count:
                    for message in await consumer.fetch():
                        values[name].append(int(message.value))
                        await consumer.ack(message)

        ready = {name: asyncio.Event() for name in values}
        reading = [asyncio.create_task(read(name, 20)) for name in values]
        for event in ready.values():
            await event.wait()
        await send(client, "news", 10, 30)
        await asyncio.gather(*reading)
        await send(client, "news", 30, 40)
        await read("a", 30)
        assert values == {"a": list(range(10, 40)), "b": list(range(10, 30))}
        assert await client.admin().list_groups("news") == ["caches/a", "caches/b"]
        described = await client.admin().describe_group("news", "caches/b")
        assert (described.partitions[0].lag, described.settings) == (10, GroupSettings("broadcast"))
        await client.admin().delete_group("news", "caches/b")
        assert await client.admin().list_groups("news") == ["caches/a"]


@pytest.mark.parametrize("mode", ["exclusive", "key_ordered"])
async def test_at_most_once_nothing_comes_twice_through_a_failover(cluster: LocalCluster, mode: str) -> None:
    topic = f"once-{mode}"
    seen: Counter[int] = Counter()
    order: list[int] = []

    async def handle(message: Message) -> None:
        seen[int(message.value)] += 1
        order.append(int(message.value))
        assert not message.maybe_repeated
        if int(message.value) % 7 == 3:
            raise ValueError("a failure loses the message")

    async with Client.connect(cluster.bootstrap) as client:
        await client.admin().create_topic(topic, 1)
        settings = GroupSettings(mode, at_most_once=True)  # type: ignore[arg-type]
        await client.admin().create_group(topic, "g", settings=settings)

        async def consume() -> None:
            if mode == "exclusive":
                async with client.consumer(topic, "g") as consumer:
                    async for message in consumer:
                        try:
                            await handle(message)
                        except ValueError:
                            continue
            else:
                async with client.consumer(topic, "g", mode="key_ordered") as consumer:
                    await consumer.run(handle)

        consuming = asyncio.create_task(consume())
        await send(client, topic, 0, 500)
        async with asyncio.timeout(DEADLINE_S):
            while len(seen) < 100:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await kill_the_master(client, cluster, topic)
        await send(client, topic, 500, 1_000)
        async with asyncio.timeout(DEADLINE_S):
            while 999 not in seen or (await client.admin().describe_group(topic, "g")).partitions[0].lag:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
    assert max(seen.values()) == 1
    assert len(seen) >= 600, "what was on its way to the consumer is lost, and no more"
    per_key = [[value for value in order if value % 10 == key] for key in range(10)]
    assert all(values == sorted(values) for values in per_key)


async def test_a_broadcast_name_is_legal_in_that_mode_only(cluster: LocalCluster) -> None:
    async with Client.connect(cluster.bootstrap) as client:
        admin = client.admin()
        await admin.create_topic("names", 1)
        for group, mode in (("a/b", "exclusive"), ("a/b", "shared"), ("ab", "broadcast"), ("a/b/c", "broadcast")):
            with pytest.raises(IllegalNameError):
                await admin.create_group("names", group, settings=GroupSettings(mode))  # type: ignore[arg-type]
        await admin.create_group("names", "a/b", settings=GroupSettings("broadcast"))
        assert await admin.list_groups("names") == ["a/b"]


def work_by_key(cluster: LocalCluster) -> list[int]:
    """A program without asyncio."""
    with sync.Client.connect(cluster.bootstrap) as client:
        client.admin().create_topic("sync", 1)
        with client.producer("sync") as producer:
            numbers = range(100)
            producer.send_many([b"%d" % number for number in numbers], [b"k%d" % (number % 5) for number in numbers])
            producer.flush()
        with client.consumer("sync", "g", mode="key_ordered") as consumer:
            done: list[int] = []
            while len(done) < 100:
                for item in consumer.receive(50, DEADLINE_S):
                    with item as message:
                        done.append(int(message.value))
    return done


async def test_the_synchronous_client_works_by_key(cluster: LocalCluster) -> None:
    done = await asyncio.to_thread(work_by_key, cluster)
    assert all([value for value in done if value % 5 == key] == list(range(key, 100, 5)) for key in range(5))
