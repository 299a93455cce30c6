"""Certificates of runs that live, and directories deleted under a broker: real processes and real disks."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from seriatim_api.errors import RunAliveError
from seriatim_api.ids import MemberId, RunId
from seriatim_api.v1 import broker_pb2, records_pb2
from seriatim_broker.adapters.etcd import EtcdConfig, EtcdCoordinator
from seriatim_broker.composition import EXIT_STATUS_RUN_OVER
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.membership.registration import certify_death

from tools.ports import free_ports

from .cluster import Cluster, running_cluster
from .test_faults import fill, other_group
from .wire import Admin, Consumer, Producer, refusal

pytestmark = pytest.mark.slow

SILENCE_S = 3.0
"""How long a producer waits for an acknowledgement that must not come: a switch takes a tenth of it."""


class Way:
    """A broker's way to the coordinator, which can be cut: what is on it is lost, and nothing gets through."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._writers: list[asyncio.StreamWriter] = []
        self._carriers: set[asyncio.Task[None]] = set()
        self.is_cut = False
        self.address = ""

    async def open(self) -> asyncio.Server:
        """Listen on a free port."""
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    def cut(self) -> None:
        """From now on nothing gets through."""
        self.is_cut = True
        for writer in self._writers:
            writer.transport.abort()  # type: ignore[attr-defined]

    async def close(self) -> None:
        """Let go of all connections."""
        self.cut()
        await asyncio.gather(*self._carriers, return_exceptions=True)
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrier = asyncio.current_task()
        assert carrier is not None
        self._carriers.add(carrier)
        self._writers.append(writer)
        if self.is_cut:
            writer.transport.abort()  # type: ignore[attr-defined]
            return
        host, _, port = self._target.rpartition(":")
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            self._writers.append(far_writer)
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def cluster_with_ways(directory: Path) -> AsyncIterator[tuple[Cluster, dict[str, Way]]]:
    """Two groups; each broker reaches the coordinator by a way of its own."""
    cluster = Cluster(directory, 2)
    ways = {name: Way(cluster.coordinator_address) for name in cluster.brokers}
    servers = [await way.open() for way in ways.values()]
    for name, way in ways.items():
        cluster.brokers[name] = cluster.make(name, "--coordinator", way.address, "--set", "heal_after_s=1")
    try:
        await cluster.start()
        yield cluster, ways
    finally:
        await cluster.stop()
        for server in servers:
            server.close()
        for way in ways.values():
            await way.close()


async def run_of(admin: Admin, broker: str) -> RunId:
    described = await admin.admin.DescribeCluster(broker_pb2.DescribeClusterRequest())
    record = next(b.record for b in described.brokers if b.record.member.broker == broker)
    return RunId(MemberId(broker, record.member.incarnation), record.run)


async def certify(cluster: Cluster, run: RunId) -> None:
    """Write a certificate past the brokers, who would refuse."""
    coordinator = EtcdCoordinator(EtcdConfig((cluster.coordinator_address,), None))
    try:
        assert await certify_death(coordinator, Keys("test"), run, "test", "an administrator who is wrong", 1)
    finally:
        await coordinator.close()


async def exit_status(cluster: Cluster, broker: str) -> int:
    running = cluster.brokers[broker].running
    assert running is not None
    async with asyncio.timeout(30):
        return await running.wait()


async def copies(admin: Admin, topic: str) -> None:
    """Wait until each sealed segment is listed on two disks that have their slots."""
    watch = admin.admin.WatchChain(broker_pb2.DescribeChainRequest(topic=topic, partition=0))
    async with asyncio.timeout(60):
        async for chain in watch:
            described = await admin.admin.DescribeCluster(broker_pb2.DescribeClusterRequest())
            there = {b.record.member.incarnation for b in described.brokers}
            sealed = [s for s in chain.segments if s.state == records_pb2.SEGMENT_STATE_SEALED]
            if all(sum(m.incarnation in there for m in segment.members) >= 2 for segment in sealed):
                break
    watch.cancel()


async def test_no_broker_certifies_a_run_that_answers_it(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, Admin(cluster.addresses["g0-0"]) as admin:
        await fill(admin, (await admin.create("alive", 1)).partition_ids[0], 3)  # so there is a link
        for broker in ("g0-0", "g0-1"):
            request = broker_pb2.DeclareDeadRequest(broker=broker, issuer="test", run=1)
            error = await refusal(admin.admin.DeclareDead(request, timeout=10))
            assert isinstance(error, RunAliveError)
            assert "end its process first" in str(error)
        await cluster.brokers["g0-1"].end(signal.SIGKILL)
        await admin.admin.DeclareDead(request, timeout=10)


async def test_a_broker_that_reads_its_own_certificate_ends_and_comes_back_as_a_new_run(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 2) as cluster, Admin(cluster.addresses["g0-0"]) as first:
        partition = (await first.create("own", 1)).partition_ids[0]
        route = await fill(first, partition, 9)
        async with Admin(cluster.addresses[other_group(cluster, route.master_broker)]) as admin:
            run = await run_of(admin, route.master_broker)
            await certify(cluster, run)
            assert await exit_status(cluster, run.member.broker) == EXIT_STATUS_RUN_OVER
            assert "[706] a death certificate says that member run 1" in cluster.brokers[run.member.broker].log_text()
            after = await admin.route(partition, failed=route.segment)
            assert after.segment == route.segment + 1
            await cluster.brokers[run.member.broker].start()
            await cluster.ready(run.member.broker)
            assert await run_of(admin, run.member.broker) == RunId(run.member, 2)
            server = await admin.consumer(partition, "all", avoid="")
            async with Consumer(server, partition, "all") as consumer:
                await consumer.until(lambda c: c.values == [b"m%d" % at for at in range(9)])


@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_broker_whose_directory_is_gone_ends(tmp_path: Path, how: str) -> None:
    async with running_cluster(tmp_path, 2) as cluster, Admin(cluster.addresses["g0-0"]) as first:
        route = await fill(first, (await first.create("gone", 1)).partition_ids[0], 3)
        data = tmp_path / route.master_broker
        if how == "deleted":
            shutil.rmtree(data)
        else:
            data.rename(tmp_path / "away")
            shutil.copytree(tmp_path / "away", data)
        assert await exit_status(cluster, route.master_broker) == EXIT_STATUS_RUN_OVER
        assert "[706] the data directory" in cluster.brokers[route.master_broker].log_text()


async def test_a_process_that_was_declared_dead_is_no_copy_and_acknowledges_nothing(tmp_path: Path) -> None:
    """It cannot read that it was declared dead; its disk is given up; then the one real disk beside it fails."""
    async with cluster_with_ways(tmp_path) as (cluster, ways), Admin(cluster.addresses["g0-0"]) as first:
        partition = (await first.create("zombie", 1)).partition_ids[0]
        route = await fill(first, partition, 9)
        dead = route.master_broker
        other = next(name for name in cluster.brokers if name.startswith(dead.split("-")[0]) and name != dead)
        sent = [b"m%d" % at for at in range(9)]
        async with Admin(cluster.addresses[other_group(cluster, dead)]) as admin:
            run = await run_of(admin, dead)
            async with Producer(route.master_address) as zombie:
                assert not (await zombie.append(partition, 0, [b"m9"], starts=True)).HasField("error")
                sent.append(b"m9")
                ways[dead].cut()
                await certify(cluster, run)
                after = await admin.route(partition, failed=route.segment)
                assert after.segment == route.segment + 1
                with contextlib.suppress(TimeoutError):  # no answer is no acknowledgement either
                    async with asyncio.timeout(SILENCE_S):
                        reply = await zombie.append(partition, 1, [b"not acknowledged"])
                        assert reply.HasField("error"), "acknowledged by a process that was declared dead"
            process = cluster.brokers[dead]
            ports = [f"127.0.0.1:{port}" for port in free_ports(3)]
            cluster.addresses[dead], cluster.admin[dead], cluster.links[dead] = ports
            fresh = cluster.make(dead, "--replace-disk", "--set", "heal_after_s=1", data="fresh", log="fresh")
            cluster.brokers[dead] = fresh
            await fresh.start()
            try:
                await cluster.ready(dead)
                assert process.running is not None
                assert process.running.returncode is None, "it lives all the time"
                async with Producer(after.master_address) as producer:
                    assert not (await producer.append(partition, 0, [b"next"], starts=True)).HasField("error")
                await copies(admin, "zombie")
                assert "dismissed_run_refused" in cluster.brokers[other].log_text()
            finally:
                await process.end(signal.SIGKILL)
            shutil.rmtree(tmp_path / dead)
            await cluster.brokers[other].end(signal.SIGKILL)
            shutil.rmtree(tmp_path / other)
            await admin.declare_dead(other)
            server = await admin.consumer(partition, "late", avoid=other)
            async with Consumer(server, partition, "late") as consumer:
                await consumer.until(lambda c: len(c.values) >= 10)
                assert consumer.values == sent, "all that was acknowledged in the segment of the dead process"
