"""What Prometheus reads about consumer groups, from brokers that serve them."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections import defaultdict

import pytest
from seriatim import Client, Message, Retry
from seriatim_local import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

MESSAGES = 200
DEADLINE_S = 60.0
LOOK_S = 0.5
"""Between two readings of the pages. A broker measures at most every 5 s."""

_SAMPLE = re.compile(
    r'^seriatim_consumer_group_(\w+)\{.*consumer_group="metered",topic="metered"\} (\S+)$', re.MULTILINE
)


def sums(cluster: LocalCluster) -> dict[str, float]:
    """The samples of the consumer group, added up over the brokers."""
    found: dict[str, float] = defaultdict(float)
    for broker in cluster.broker_names:
        with urllib.request.urlopen(f"http://{cluster.plan.broker(broker).admin}/metrics", timeout=10) as page:
            for name, value in _SAMPLE.findall(page.read().decode()):
                found[name] += float(value)
    return found


async def until(cluster: LocalCluster, **wanted: float) -> dict[str, float]:
    """Read the pages until they have these values."""
    found: dict[str, float] = {}
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = await asyncio.to_thread(sums, cluster)
                if all(found.get(name) == value for name, value in wanted.items()):
                    return found
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise AssertionError(f"the brokers say {found}, not {wanted}") from None


async def test_a_group_has_series_of_its_lag_its_waiting_keys_and_its_grants(cluster: LocalCluster) -> None:
    is_mended = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.key == b"k7" and not is_mended.is_set():
            raise Retry(0.2 if message.attempt > 1 else 5, "not yet")

    async with Client.connect(cluster.bootstrap) as client:
        await client.admin().create_topic("metered", 2)
        async with client.producer("metered") as producer:
            for number in range(MESSAGES):
                await producer.send(b"%d" % number, key=b"k%d" % (number % 20))
        consumer = await client.consumer("metered", "metered", mode="key_ordered")
        running = asyncio.create_task(consumer.run(handle, 8))
        waiting = await until(cluster, lag_messages=MESSAGES // 20, delayed_keys=1, parked_keys=0, consumers=2)
        assert waiting["oldest_seconds"] > 0
        assert waiting["failed_attempts_total"] >= 1
        is_mended.set()
        done = await until(cluster, lag_messages=0, delayed_keys=0, acked_messages_total=MESSAGES, oldest_seconds=0)
        assert done["delivered_messages_total"] >= MESSAGES
        assert done["grants_total"] > done["repeated_grants_total"] >= 1
        await consumer.close()
        await running
