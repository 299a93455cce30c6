"""Three consumers of an exclusive group share four partitions; one is killed, and one is added: nothing comes twice."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest
from seriatim import Client, Consumer
from seriatim_local import LocalCluster

from e2e.workers import start_worker

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

TOPIC, GROUP, PARTITIONS = "shares", "g", 4
DEADLINE_S = 60.0


class Readers:
    """Consumers in this process, and what each of them was given."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.seen: Counter[int] = Counter()
        self.flagged = 0
        self.last: dict[int, int] = {}
        self.begun_s = time.monotonic()

    async def read(self, consumer: Consumer) -> None:
        async for message in consumer:
            number = int(message.value)
            self.seen[number] += 1
            self.flagged += message.maybe_repeated or message.attempt > 1
            assert self.last.get(message.partition, -1) < number or message.maybe_repeated or message.attempt > 1
            self.last[message.partition] = max(number, self.last.get(message.partition, -1))
            await consumer.ack(message)

    async def shares(self) -> list[str]:
        """The consumer of each partition."""
        described = await self.client.admin().describe_group(TOPIC, GROUP)
        return [row.active_consumer for row in sorted(described.partitions, key=lambda row: row.partition)]

    async def until_shared(self, *names: str, count: int = PARTITIONS) -> None:
        """Wait until each of these consumers, and no other one, reads its share of this many partitions."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = await self.shares()
                most = -(-count // len(names))
                if len(found) == count and set(found) == set(names) and max(Counter(found).values()) <= most:
                    print(f"{time.monotonic() - self.begun_s:5.1f} s: {' '.join(found)}")
                    return
                await asyncio.sleep(0.1)


async def test_partitions_are_shared_and_nothing_comes_twice(cluster: LocalCluster, tmp_path: Path) -> None:
    arguments = [
        "--bootstrap", ",".join(cluster.bootstrap), "--topic", TOPIC, "--partitions", str(PARTITIONS),
        "--group", GROUP, "--name", "killed", "--history", str(tmp_path / "killed.jsonl"),
    ]  # fmt: skip
    numbers = count()
    async with Client.connect(cluster.bootstrap) as client, AsyncExitStack() as stack:
        await client.admin().create_topic(TOPIC, PARTITIONS)
        await client.admin().create_group(TOPIC, GROUP)
        readers = Readers(client)
        tasks: list[asyncio.Task[None]] = []

        async def add(name: str) -> None:
            consumer = await stack.enter_async_context(client.consumer(TOPIC, GROUP, name=name))
            tasks.append(asyncio.create_task(readers.read(consumer), name=name))

        producer = await stack.enter_async_context(client.producer(TOPIC))

        async def send() -> None:
            while True:
                number = next(numbers)
                await producer.send(b"%d" % number, partition=number % PARTITIONS)
                await asyncio.sleep(0.002)

        sending = asyncio.create_task(send(), name="sending")
        await add("one")
        await readers.until_shared("one")
        await add("two")
        worker = start_worker("killed", "e2e.tests.process.reader", arguments, log=tmp_path / "killed.log")
        killed = await stack.enter_async_context(worker)
        await readers.until_shared("one", "two", "killed")
        assert readers.flagged == 0, "no consumer died"
        os.kill(killed.pid, signal.SIGKILL)
        await readers.until_shared("one", "two")
        await add("three")
        await readers.until_shared("one", "two", "three")
        await client.admin().update_topic(TOPIC, 2 * PARTITIONS)
        await readers.until_shared("one", "two", "three", count=2 * PARTITIONS)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await producer.flush()
        sent = next(numbers)
        async with asyncio.timeout(DEADLINE_S):
            while any(row.lag for row in (await client.admin().describe_group(TOPIC, GROUP)).partitions):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    repeats = sum(readers.seen.values()) - len(readers.seen)
    print(f"sent {sent}; repeats by the kill {readers.flagged}, by hand-overs {repeats}")
    assert repeats == 0, "only what the killed consumer had not acknowledged came again, and it is not counted here"
