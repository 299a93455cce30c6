"""A consumer group in which order is by key, on processes: handlers that fail, and brokers that are killed."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest
from seriatim import Client, Message, Retry
from seriatim_local import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

MESSAGES = 6_000
KEYS = 40
DEADLINE_S = 60.0


class Application:
    """Handlers that fail sometimes, and note what they finished."""

    def __init__(self) -> None:
        self.finished: dict[bytes, list[int]] = defaultdict(list)
        self._progress = asyncio.Condition()
        self._chance = random.Random(7)
        self._values: set[int] = set()

    async def handle(self, message: Message) -> None:
        """Work on one message, and fail on some."""
        assert message.key is not None
        drawn = self._chance.random()
        if drawn < 0.01:
            raise Retry(0.05, "drawn")
        if drawn < 0.011:
            raise ValueError("drawn")
        value = int(message.value)
        self.finished[message.key].append(value)
        self._values.add(value)
        async with self._progress:
            self._progress.notify_all()

    async def until(self, count: int) -> None:
        """Wait until so many different messages are finished."""
        async with asyncio.timeout(DEADLINE_S), self._progress:
            await self._progress.wait_for(lambda: len(self._values) >= count)


async def test_order_within_a_key_outlives_brokers_and_failing_handlers(cluster: LocalCluster) -> None:
    app = Application()
    async with Client.connect(cluster.bootstrap) as client:
        await client.admin().create_topic("keyed", 2)

        async def produce() -> None:
            async with client.producer("keyed") as producer:
                for number in range(MESSAGES):
                    await producer.send(b"%d" % number, key=b"k%d" % (number % KEYS))

        consumers = [await client.consumer("keyed", "billing", mode="key_ordered") for _ in range(3)]
        running = [asyncio.create_task(consumer.run(app.handle, 8)) for consumer in consumers]
        producing = asyncio.create_task(produce())
        for count in (MESSAGES // 4, MESSAGES // 2):
            await app.until(count)
            chain = (await client.admin().describe_topic("keyed")).chains[0]
            victim = chain.segments[-1].members[0]
            await cluster.kill(victim)
            await cluster.start_again(victim)
        await producing
        await app.until(MESSAGES)
        for consumer in consumers:
            await consumer.close()
        await asyncio.gather(*running)
    for key, values in app.finished.items():
        firsts = list(dict.fromkeys(values))
        assert firsts == sorted(firsts), f"{key!r} was not worked on in its order"
    assert sum(len(set(values)) for values in app.finished.values()) == MESSAGES
