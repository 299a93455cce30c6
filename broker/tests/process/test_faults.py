"""What a cluster of processes does when members die together, or lose their coordinator, beyond what `e2e` shows."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from seriatim_api.v1 import broker_pb2, records_pb2

from .cluster import Cluster, running_cluster
from .wire import Admin, Consumer, Producer, refusal

pytestmark = pytest.mark.slow


async def fill(admin: Admin, partition: int, count: int) -> broker_pb2.AppendReply:
    """Append `count` messages to a new partition; returns the route."""
    route = await admin.route(partition)
    async with Producer(route.master_address) as producer:
        for at in range(count):
            assert not (await producer.append(partition, at, [b"m%d" % at], starts=at == 0)).HasField("error")
    return route


def other_group(cluster: Cluster, broker: str) -> str:
    """A member of a group that `broker` is not in."""
    return next(name for name in cluster.brokers if name.split("-")[0] != broker.split("-")[0])


async def test_messages_flow_while_the_coordinator_is_away(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, Admin(cluster.addresses["g0-0"]) as admin:
        topic = await admin.create("away", 1)
        partition = topic.partition_ids[0]
        route = await admin.route(partition)
        async with Producer(route.master_address) as producer, Consumer(route.master_address, partition, "g") as reader:
            assert not (await producer.append(partition, 0, [b"m0"], starts=True)).HasField("error")
            await reader.until(lambda c: c.values == [b"m0"])
            await cluster.coordinator.end(signal.SIGKILL)
            for at in range(1, 20):
                assert not (await producer.append(partition, at, [b"m%d" % at])).HasField("error")
            await reader.until(lambda c: len(c.values) == 20)
            await cluster.coordinator.start()
            for name in cluster.brokers:
                await cluster.ready(name)
            assert not (await producer.append(partition, 20, [b"m20"])).HasField("error")
        async with asyncio.timeout(60):
            while True:  # elected again once its lease is granted again
                described = await admin.admin.DescribeCluster(broker_pb2.DescribeClusterRequest())
                if described.controller and all(broker.live for broker in described.brokers):
                    break
                await asyncio.sleep(0.1)


async def test_the_controller_leaves_a_dead_group_without_any_complaint(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 2) as cluster, Admin(cluster.addresses["g0-0"]) as first:
        partitions = list((await first.create("idle", 6)).partition_ids)
        routes = [await first.route(partition) for partition in partitions]
        group = routes[0].master_broker.split("-")[0]
        victims = [name for name in cluster.brokers if name.startswith(group)]
        async with Admin(cluster.addresses[other_group(cluster, victims[0])]) as admin:
            await asyncio.gather(*(cluster.brokers[name].end(signal.SIGKILL) for name in victims))
            for name in victims:
                await admin.declare_dead(name)
            for number, route in enumerate(routes):
                if not route.master_broker.startswith(group):
                    continue
                watch = admin.admin.WatchChain(broker_pb2.DescribeChainRequest(topic="idle", partition=number))
                async with asyncio.timeout(30):
                    async for chain in watch:
                        if not chain.segments[-1].group.startswith(group):
                            break
                watch.cancel()
                assert chain.segments[0].state == records_pb2.SEGMENT_STATE_UNSETTLED


async def test_a_second_process_on_the_same_address_or_directory_is_refused(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        cluster.addresses["g1-0"] = cluster.addresses["g0-0"]
        cluster.admin["g1-0"] = cluster.admin["g0-0"]
        cluster.links["g1-0"] = cluster.links["g0-0"]
        for name, data, expected in (("g1-0", None, "[130]"), ("g0-0", None, "[710]")):
            broker = cluster.make(name, data=data, log=f"second-{name}")
            await broker.start()
            assert broker.running is not None
            async with asyncio.timeout(60):
                assert await broker.running.wait() == 2
            assert expected in broker.log_text()


async def test_a_segment_whose_disks_are_all_lost_is_declared_a_gap_and_groups_go_on(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 2) as cluster, Admin(cluster.addresses["g0-0"]) as first:
        partition = (await first.create("gap", 1)).partition_ids[0]
        route = await fill(first, partition, 5)
        group = route.master_broker.split("-")[0]
        victims = [name for name in cluster.brokers if name.startswith(group)]
        async with Admin(cluster.addresses[other_group(cluster, route.master_broker)]) as admin:
            request = broker_pb2.DeclareGapRequest(topic="gap", partition=0, segment=1, issuer="test")
            await asyncio.gather(*(cluster.brokers[name].end(signal.SIGKILL) for name in victims))
            refused = await refusal(admin.admin.DeclareGap(request, timeout=10))
            assert "declare-dead" in str(refused)
            for name in victims:
                await admin.declare_dead(name)
            after = await admin.route(partition, failed=route.segment)
            async with Producer(after.master_address) as producer:
                assert not (await producer.append(partition, 0, [b"behind"], starts=True)).HasField("error")
            await admin.admin.DeclareGap(request, timeout=10)
            server = await admin.consumer(partition, "g", avoid=victims[0])
            async with Consumer(server, partition, "g") as consumer:
                await consumer.until(lambda c: c.values == [b"behind"])
                assert "gap" in consumer.kinds()
            old = cluster.brokers[victims[0]]
            await old.start()
            assert old.running is not None
            async with asyncio.timeout(60):
                assert await old.running.wait() == 2
            assert "[705]" in old.log_text()
