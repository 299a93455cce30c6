"""What Prometheus reads about the whole cluster and its topics, while a broker is away and after it came back."""

from __future__ import annotations

import asyncio
import re
import urllib.request

import pytest
from seriatim import Client
from seriatim_local import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

MESSAGES = 60
DEADLINE_S = 60.0
LOOK_S = 0.5

_CLUSTER = re.compile(r"^seriatim_cluster_(\w+)\{[^}]*\} (\S+)$", re.MULTILINE)
_STORED = re.compile(r'^seriatim_topic_stored_messages_total\{.*topic="watched"\} (\S+)$', re.MULTILINE)


def read(cluster: LocalCluster) -> tuple[dict[str, float], float]:
    """The figures of the cluster, which one broker has, and the messages of the topic that all brokers stored."""
    figures: dict[str, float] = {}
    stored = 0.0
    for broker in cluster.broker_names:
        try:
            with urllib.request.urlopen(f"http://{cluster.plan.broker(broker).admin}/metrics", timeout=10) as page:
                text = page.read().decode()
        except OSError:
            continue  # it was killed
        figures |= {name: float(value) for name, value in _CLUSTER.findall(text)}
        stored += sum(map(float, _STORED.findall(text)))
    return figures, stored


async def until(cluster: LocalCluster, stored_min: int = 0, **wanted: float) -> dict[str, float]:
    """Read the pages until they have these values."""
    figures: dict[str, float] = {}
    stored = 0.0
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                figures, stored = await asyncio.to_thread(read, cluster)
                if stored >= stored_min and all(figures.get(name) == value for name, value in wanted.items()):
                    return figures
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise AssertionError(f"the brokers say {figures} and {stored}, not {wanted} and {stored_min}") from None


async def test_copies_that_a_killed_broker_has_do_not_count_until_it_is_back(cluster: LocalCluster) -> None:
    async with Client.connect(cluster.bootstrap) as client:
        await client.admin().create_topic("watched", 1)
        async with client.producer("watched") as producer:
            for number in range(MESSAGES):
                await producer.send(b"%d" % number)
            well = await until(cluster, MESSAGES, brokers=6, brokers_away=0, broker_groups_not_whole=0)
            assert well["partitions_without_head"] == well["partitions_no_copy"] == 0
            one_copy = well["partitions_one_copy"]
            _, (_, slave) = await cluster.open_members("watched", 0)
            await cluster.kill(slave)
            await producer.send(b"the next broker group takes it")
        hurt = await until(cluster, brokers_away=1, broker_groups_not_whole=1, partitions_without_head=0)
        assert hurt["partitions_one_copy"] > one_copy
        await cluster.start_again(slave)
        await until(cluster, brokers_away=0, broker_groups_not_whole=0, partitions_one_copy=one_copy)
