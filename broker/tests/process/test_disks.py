"""What a cluster of processes does when a disk hangs."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from seriatim_api.v1 import broker_pb2, records_pb2
from seriatim_broker.composition import EXIT_STATUS_RUN_OVER

from tools.ports import free_ports

from .cluster import Cluster, running_cluster
from .test_faults import fill
from .wire import Admin, Consumer, Producer

pytestmark = pytest.mark.slow

HUNG = "sync_ms=600000"
DEADLINE_S = 20.0


async def until(is_so: Callable[[], Awaitable[object]]) -> None:
    """Ask again and again: of other processes there is nothing else to wait on."""
    async with asyncio.timeout(DEADLINE_S):
        while not await is_so():  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("role", ["master", "slave"])
async def test_a_disk_that_hangs_is_left_by_everybody_though_nobody_complains(tmp_path: Path, role: str) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.may_slow_disks()
    try:
        await cluster.start()
        async with Admin(cluster.addresses["g0-0"]) as admin:
            partition = (await admin.create("hang", 1)).partition_ids[0]
            route = await fill(admin, partition, 5)
            group = route.master_broker.split("-")[0]
            members = {"master": route.master_broker}
            members["slave"] = next(
                name for name in cluster.brokers if name.startswith(group) and name != members["master"]
            )
            hung = members[role]
            asked = next(name for name in cluster.brokers if not name.startswith(group))
            async with Admin(cluster.addresses[asked]) as other, Producer(route.master_address) as producer:
                began_s = time.monotonic()
                cluster.set_disk(hung, HUNG)
                answer = asyncio.create_task(producer.append(partition, 0, [b"m5"], starts=True))
                chain = broker_pb2.DescribeChainRequest(topic="hang", partition=0)
                watch = other.admin.WatchChain(chain)
                async with asyncio.timeout(DEADLINE_S):
                    async for seen in watch:
                        if seen.segments[0].state == records_pb2.SEGMENT_STATE_SEALED:
                            break
                watch.cancel()
                assert time.monotonic() - began_s < 10
                answer.cancel()
                await asyncio.gather(answer, return_exceptions=True)

                async def is_not_ready() -> bool:
                    status, text = await cluster.get(hung, "/readyz")
                    return status == 503 and "hangs" in text

                await until(is_not_ready)
                assert (await cluster.get(hung, "/healthz"))[0] == 200  # it may continue soon

                async def is_counted() -> bool:  # /readyz looks itself, the note waits for the broker's next look
                    counted = re.search(
                        rf'^seriatim_notes_total{{broker="{hung}",name="disk_hangs"}} (\S+)$',
                        (await cluster.get(hung, "/metrics"))[1],
                        re.MULTILINE,
                    )
                    return counted is not None and float(counted[1]) >= 1  # a busy disk may have hung before, too

                await until(is_counted)
                head = await other.routing.ResolveConsumer(
                    broker_pb2.ResolveConsumerRequest(partition_id=partition, group="late"), timeout=10
                )
                while head.server_broker == hung:  # a consumer complains
                    head = await other.routing.ResolveConsumer(
                        broker_pb2.ResolveConsumerRequest(
                            partition_id=partition, group="late", failed_server_epoch=head.server_epoch
                        ),
                        timeout=10,
                    )
                async with Consumer(head.server_address, partition, "late") as consumer:
                    await consumer.until(lambda c: c.values[:5] == [b"m%d" % at for at in range(5)])
                cluster.set_disk(hung, "")
                await cluster.ready(hung)
    finally:
        await cluster.stop()


# ---- the same directory twice ---------------------------------------------------------------------------


async def test_a_copy_of_a_living_brokers_directory_is_refused_and_a_frozen_one_ends_when_it_thaws(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        living = cluster.brokers["g0-0"]
        copied = await asyncio.to_thread(shutil.copytree, tmp_path / "g0-0", tmp_path / "copy")
        assert copied.exists()
        second = cluster.make("g0-0", data="copy", log="copy")
        port, admin, links = free_ports(3)
        second.arguments[second.arguments.index("--listen") + 1] = f"127.0.0.1:{port}"
        second.arguments[second.arguments.index("--admin-listen") + 1] = f"127.0.0.1:{admin}"
        second.arguments += ["--set", f"link_listen=127.0.0.1:{links}"]
        try:
            await second.start()
            assert second.running is not None
            async with asyncio.timeout(DEADLINE_S):
                assert await second.running.wait() == 2
            assert "[708]" in second.log_text()
            assert (await cluster.get("g0-0", "/readyz"))[0] == 200
            living.send(signal.SIGSTOP)  # it cannot answer who it is
            await second.start()

            async def has_joined() -> bool:
                return '"joined"' in second.log_text()

            await until(has_joined)
            living.send(signal.SIGCONT)
            assert living.running is not None
            async with asyncio.timeout(DEADLINE_S):
                assert await living.running.wait() == EXIT_STATUS_RUN_OVER
            assert "[706]" in living.log_text() or "RunOverError" in living.log_text()
        finally:
            if second.running is not None:
                await second.end()


# ---- an older copy of a disk, from within its run -------------------------------------------------------


async def test_an_older_disk_that_waits_for_the_second_member_loses_nothing(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        partition, older = await _older_disk_of(cluster, tmp_path)
        other = next(name for name in cluster.brokers if name != older)
        await asyncio.gather(cluster.brokers[older].start(), cluster.brokers[other].start())
        for name in cluster.brokers:
            await cluster.ready(name)
        assert await _read(cluster, partition, 9) == [b"m%d" % at for at in range(9)]


async def test_a_member_that_the_chain_contradicts_runs_on_and_keeps_what_it_has(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 2) as cluster:
        _partition, older = await _older_disk_of(cluster, tmp_path)
        group = older.split("-")[0]
        other = next(name for name in cluster.brokers if name != older and name.startswith(group))
        asked = next(name for name in cluster.brokers if not name.startswith(group))
        await cluster.brokers[older].start()
        async with Admin(cluster.addresses[asked]) as admin:
            watch = admin.admin.WatchChain(broker_pb2.DescribeChainRequest(topic="older", partition=0))
            async with asyncio.timeout(DEADLINE_S):
                async for seen in watch:  # it waits three seconds for the second member, and decides alone
                    if seen.segments[0].state == records_pb2.SEGMENT_STATE_SEALED:
                        break
            watch.cancel()
            assert seen.segments[0].sealed_len < 9
        for _ in range(2):  # also at each later start
            await cluster.brokers[other].start()
            await cluster.ready(other)

            async def warns() -> bool:
                return "messages beyond the length" in (await cluster.get(other, "/readyz"))[1]

            await until(warns)
            assert "seriatim_quarantined_segments" in (await cluster.get(other, "/metrics"))[1]
            async with Admin(cluster.addresses[asked]) as admin:
                kept = await admin.admin.ReadQuarantined(broker_pb2.ReadQuarantinedRequest(broker=other), timeout=20)
            assert (kept.segment, kept.kept_len) == (1, 9)
            assert kept.next_index == 9
            assert b"m8" in kept.bodies
            await cluster.brokers[other].end()


async def test_a_copy_below_the_watermark_is_refused_and_the_true_disk_is_not(tmp_path: Path) -> None:
    """Rule `below-the-watermark`: a broker that stops cleanly notes how far its disk is."""
    async with running_cluster(tmp_path, 1) as cluster:
        async with Admin(cluster.addresses["g0-0"]) as admin:
            partition = (await admin.create("older", 1)).partition_ids[0]
            await asyncio.to_thread(shutil.copytree, tmp_path / "g0-1", tmp_path / "copy")
            await fill(admin, partition, 5)
        await asyncio.gather(*(broker.end(signal.SIGTERM) for broker in cluster.brokers.values()))
        (tmp_path / "g0-1").rename(tmp_path / "true")
        (tmp_path / "copy").rename(tmp_path / "g0-1")
        older = cluster.brokers["g0-1"]
        await older.start()
        assert older.running is not None
        async with asyncio.timeout(DEADLINE_S):
            assert await older.running.wait() != 0
        assert "[702]" in older.log_text()
        assert "durable up to" in older.log_text()
        shutil.rmtree(tmp_path / "g0-1")
        (tmp_path / "true").rename(tmp_path / "g0-1")
        for name, broker in cluster.brokers.items():
            await broker.start()
            assert broker.running is not None, name
        for name in cluster.brokers:
            await cluster.ready(name)
        assert await _read(cluster, partition, 5) == [b"m%d" % at for at in range(5)]


async def _older_disk_of(cluster: Cluster, directory: Path) -> tuple[int, str]:
    """Nine messages are acknowledged; both members are killed, and the slave has a copy from before most of them."""
    async with Admin(cluster.addresses["g0-0"]) as admin:
        partition = (await admin.create("older", 1)).partition_ids[0]
        route = await admin.route(partition)
        group = route.master_broker.split("-")[0]
        slave = next(name for name in cluster.brokers if name.startswith(group) and name != route.master_broker)
        async with Producer(route.master_address) as producer:
            for at in range(9):
                if at == 3:
                    await asyncio.to_thread(shutil.copytree, directory / slave, directory / "older")
                assert not (await producer.append(partition, at, [b"m%d" % at], starts=at == 0)).HasField("error")
            await asyncio.gather(*(cluster.brokers[name].end() for name in (slave, route.master_broker)))
    shutil.rmtree(directory / slave)
    (directory / "older").rename(directory / slave)
    return partition, slave


async def _read(cluster: Cluster, partition: int, count: int) -> list[bytes]:
    """What a new group gets."""
    async with Admin(next(iter(cluster.addresses.values()))) as admin:
        asked = broker_pb2.ResolveConsumerRequest(partition_id=partition, group="new")
        head = await admin.routing.ResolveConsumer(asked, timeout=20)
        async with Consumer(head.server_address, partition, "new") as consumer:
            await consumer.until(lambda c: len(c.values) >= count)
            return list(consumer.values[:count])
