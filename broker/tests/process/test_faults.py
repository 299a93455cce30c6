"""What a cluster of processes does when members freeze, die together, or lose their coordinator."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from pathlib import Path

import pytest
from seriatim_api.ids import make_offset
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


async def test_a_frozen_master_is_left_and_follows_when_it_thaws(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 2) as cluster, Admin(cluster.addresses["g0-0"]) as first:
        topic = await first.create("freeze", 2)
        route = await fill(first, topic.partition_ids[0], 5)
        asker = other_group(cluster, route.master_broker)
        async with Admin(cluster.addresses[asker]) as admin:
            began = time.monotonic()
            cluster.brokers[route.master_broker].send(signal.SIGSTOP)
            after = await admin.route(topic.partition_ids[0], failed=route.segment)
            assert after.segment == route.segment + 1
            assert time.monotonic() - began < 4
            cluster.brokers[route.master_broker].send(signal.SIGCONT)
            async with Producer(route.master_address) as zombie:
                reply = await zombie.append(topic.partition_ids[0], 0, [b"late"], starts=True)
                assert reply.HasField("error")
            resolve = broker_pb2.ResolveConsumerRequest(partition_id=topic.partition_ids[0], group="g")
            head = await admin.routing.ResolveConsumer(resolve, timeout=10)
            async with Consumer(head.server_address, topic.partition_ids[0], "g") as consumer:
                await consumer.until(lambda c: len(c.values) == 5)


async def test_a_group_that_died_whole_is_opened_over_and_settled_when_it_is_back(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 2) as cluster, Admin(cluster.addresses["g0-0"]) as first:
        topic = await first.create("both", 1)
        partition = topic.partition_ids[0]
        route = await fill(first, partition, 7)
        group = route.master_broker.split("-")[0]
        asker = other_group(cluster, route.master_broker)
        victims = [name for name in cluster.brokers if name.startswith(group)]
        async with Admin(cluster.addresses[asker]) as admin:
            await asyncio.gather(*(cluster.brokers[name].end(signal.SIGKILL) for name in victims))
            for name in victims:
                await admin.declare_dead(name)
            after = await admin.route(partition, failed=route.segment)
            assert after.segment == route.segment + 1
            async with Producer(after.master_address) as producer:
                reply = await producer.append(partition, 0, [b"over"], starts=True)
                assert reply.offset == make_offset(after.segment, 0)
            for name in victims:
                await cluster.brokers[name].start()
            watch = admin.admin.WatchChain(broker_pb2.DescribeChainRequest(topic="both", partition=0))
            async with asyncio.timeout(60):
                async for chain in watch:
                    if chain.segments[0].state == records_pb2.SEGMENT_STATE_SEALED:
                        break
            watch.cancel()
            assert chain.segments[0].sealed_len == 7
            assert chain.segments[1].base == 7


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
            while True:  # elected again once its lease is granted anew
                described = await admin.admin.DescribeCluster(broker_pb2.DescribeClusterRequest())
                if described.controller and all(broker.live for broker in described.brokers):
                    break
                await asyncio.sleep(0.1)


async def test_a_lost_disk_is_made_good_by_a_copy_that_can_be_read(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 2, "--set", "heal_after_s=1") as cluster:
        async with Admin(cluster.addresses["g0-0"]) as first:
            partition = (await first.create("heal", 1)).partition_ids[0]
            route = await fill(first, partition, 9)
        lost, group = route.master_broker, route.master_broker.split("-")[0]
        survivor = next(name for name in cluster.brokers if name.startswith(group) and name != lost)
        async with Admin(cluster.addresses[other_group(cluster, lost)]) as admin:
            await cluster.brokers[lost].end(signal.SIGKILL)
            await admin.route(partition, failed=route.segment)
            fresh = cluster.make(lost, "--replace-disk", "--set", "heal_after_s=1", data="fresh")
            cluster.brokers[lost] = fresh
            await fresh.start()
            await cluster.ready(lost)
            watch = admin.admin.WatchChain(broker_pb2.DescribeChainRequest(topic="heal", partition=0))
            async with asyncio.timeout(60):
                async for chain in watch:
                    described = await admin.admin.DescribeCluster(broker_pb2.DescribeClusterRequest())
                    registered = {(b.record.member.broker, b.record.member.incarnation) for b in described.brokers}
                    copies = {(member.broker, member.incarnation) for member in chain.segments[0].members}
                    if len(copies) == 2 and copies <= registered:
                        break
            watch.cancel()
            await cluster.brokers[survivor].end(signal.SIGKILL)
            await admin.declare_dead(survivor)
            server = await admin.consumer(partition, "late", avoid=survivor)
            async with Consumer(server, partition, "late") as consumer:
                await consumer.until(lambda c: c.values == [b"m%d" % at for at in range(9)])


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


async def test_a_flipped_bit_is_found_by_a_scrub_and_repaired_from_the_other_member(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 2) as cluster, Admin(cluster.addresses["g0-0"]) as first:
        partition = (await first.create("flip", 1)).partition_ids[0]
        route = await first.route(partition)
        values = [secrets.token_bytes(20_000) for _ in range(60)]
        async with Producer(route.master_address) as producer:
            for at, value in enumerate(values):
                assert not (await producer.append(partition, at, [value], starts=at == 0)).HasField("error")
        victim = route.master_broker
        async with Admin(cluster.addresses[other_group(cluster, victim)]) as admin:
            assert await cluster.brokers[victim].end(signal.SIGTERM) == 0  # its memory is on its disk then
            table = max((tmp_path / victim / "log").glob("*.sst"), key=lambda file: file.stat().st_size)
            with table.open("r+b") as file:
                file.seek(table.stat().st_size // 2)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 16]))
            await cluster.brokers[victim].start()
            await cluster.ready(victim)
            scrub = broker_pb2.ScrubRequest(broker=victim)
            found = await admin.admin.Scrub(scrub, timeout=30)
            assert [(damage.partition_id, damage.segment) for damage in found.damages] == [(partition, 1)]
            async with asyncio.timeout(30):
                while True:  # a scrub in the middle of the repair has nothing to read, and finds no damage either
                    damages = (await admin.admin.Scrub(scrub, timeout=30)).damages
                    if not damages and "copy_repaired" in cluster.brokers[victim].log_text():
                        break
                    await asyncio.sleep(0.1)
            for name in cluster.brokers:
                if name.startswith(victim.split("-")[0]) and name != victim:
                    await cluster.brokers[name].end(signal.SIGKILL)
                    await admin.declare_dead(name)
                    survivor = await admin.consumer(partition, "g", avoid=name)
            assert survivor == cluster.addresses[victim]
            async with Consumer(survivor, partition, "g") as consumer:
                await consumer.until(lambda c: c.values == values)
