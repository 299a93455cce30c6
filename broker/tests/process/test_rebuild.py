"""Real brokers whose coordinator goes back in time, or comes back empty: they stop, and it is rebuilt from them."""

from __future__ import annotations

import asyncio
import shutil
import signal
import ssl
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from seriatim_api import troubles
from seriatim_api.network.tls import TlsFiles
from seriatim_local import tls as local_tls

from tools.ports import free_ports

from .cluster import Cluster
from .wire import Admin, Consumer, Producer

pytestmark = [pytest.mark.asyncio, pytest.mark.faults]

DEADLINE_S = 60
ETCD_BINARY = Path(__file__).resolve().parents[3] / ".tools" / "bin" / "etcd"


def tls_options(files: TlsFiles, prefix: str = "--tls") -> list[str]:
    """As the commands take them: `--tls-ca FILE …`."""
    named = (("ca", files.ca), ("cert", files.cert), ("key", files.key))
    return [word for name, file in named for word in (f"{prefix}-{name}", str(file))]


class Coordinator:
    """The coordinator of a cluster: embedded, or a real etcd under the same address."""

    def __init__(self, cluster: Cluster, directory: Path, kind: str, tls: TlsFiles | None = None) -> None:
        if kind == "etcd" and not ETCD_BINARY.exists():
            pytest.skip("no .tools/bin/etcd: `make tools` builds it (needs Go)")
        self._tls = tls
        if kind == "embedded" and tls is not None:
            cluster.coordinator.arguments += tls_options(tls)
        self._embedded = cluster.coordinator if kind == "embedded" else None
        self._client_url = f"{'http' if tls is None else 'https'}://{cluster.coordinator_address}"
        self._peer_url = f"http://127.0.0.1:{free_ports(1)[0]}"
        self._etcd: asyncio.subprocess.Process | None = None
        self._log = directory / "etcd.log"
        self.data = directory / "c"

    async def start(self) -> None:
        if self._embedded is not None:
            await self._embedded.start()
            return
        words = ["--name=one", f"--data-dir={self.data}", f"--initial-cluster=one={self._peer_url}"]
        words += [f"--listen-client-urls={self._client_url}", f"--advertise-client-urls={self._client_url}"]
        words += [f"--listen-peer-urls={self._peer_url}", f"--initial-advertise-peer-urls={self._peer_url}"]
        if self._tls is not None:
            files = (("trusted-ca", self._tls.ca), ("cert", self._tls.cert), ("key", self._tls.key))
            words += [f"--{name}-file={file}" for name, file in files] + ["--client-cert-auth"]
        with self._log.open("ab") as log:
            self._etcd = await asyncio.create_subprocess_exec(str(ETCD_BINARY), *words, stdout=log, stderr=log)

    async def stop(self) -> None:
        if self._embedded is not None and self._embedded.running is not None:
            await self._embedded.end(signal.SIGKILL)
        elif self._etcd is not None and self._etcd.returncode is None:
            self._etcd.kill()
            await self._etcd.wait()


async def rebuild(cluster: Cluster, *more: str) -> tuple[int, str]:
    """The command's status and what it says; all brokers are named, whether or not they run."""
    brokers = ",".join(f"{name}={address}" for name, address in cluster.addresses.items())
    words = ["coordinator", "rebuild", "--cluster", "test", "--coordinator", cluster.coordinator_address]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "seriatim_broker", *words, "--brokers", brokers, *more,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def answers(cluster: Cluster, wanted: str) -> list[str]:
    """Wait until the readiness of some broker says so; the names of those that do."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            said = {name: (await cluster.get(name, "/readyz"))[1] for name in cluster.addresses}
            found = [name for name, text in said.items() if wanted in text]
            if found:
                return found
            await asyncio.sleep(0.1)  # there is nothing to wait on but the port itself


async def moved_route(cluster: Cluster, partition: int, failed: int, avoid: str) -> Any:
    """The route once the partition has left a segment."""
    address = next(address for name, address in cluster.addresses.items() if name != avoid)
    async with asyncio.timeout(DEADLINE_S), Admin(address) as admin:
        while True:
            route = await admin.route(partition, failed)
            if route.segment > failed:
                return route


async def append(address: str, partition: int, values: list[bytes]) -> list[int]:
    async with Producer(address) as producer:
        rows = [producer.row(partition, at, [value], starts=at == 0) for at, value in enumerate(values)]
        await producer.send(*rows)
        return [(await producer.reply()).offset for _ in values]


async def read_all(cluster: Cluster, partition: int, group: str, count: int) -> list[bytes]:
    """What a new group is given, from the first message on; what comes again because an ack was lost counts once."""
    given: dict[int, bytes] = {}
    async with asyncio.timeout(DEADLINE_S), Admin(next(iter(cluster.addresses.values()))) as admin:
        while len(given) < count:
            async with Consumer(await admin.consumer(partition, group), partition, group) as consumer:
                while len(given) < count:
                    taken = len(consumer.values)
                    await consumer.until(partial(has_more, taken=taken))
                    if len(consumer.values) == taken:
                        break  # it continues at another server
                    given |= dict(zip(consumer.offsets, consumer.values, strict=True))
                    await consumer.ack(consumer.offsets[-1])
    assert list(given) == sorted(given)
    return list(given.values())


def has_more(consumer: Consumer, taken: int) -> bool:
    """Whether more than `taken` values came, or no more will."""
    return len(consumer.values) > taken or not {"refused", "end_of_segment"}.isdisjoint(consumer.kinds())


@pytest.mark.parametrize("state", ["older", "empty"])
@pytest.mark.parametrize("kind", ["embedded", pytest.param("etcd", marks=pytest.mark.etcd)])
async def test_brokers_stop_and_the_coordinator_is_rebuilt(tmp_path: Path, kind: str, state: str) -> None:
    cluster = Cluster(tmp_path, 2)
    coordinator = Coordinator(cluster, tmp_path, kind)
    backup = tmp_path / "backup"
    try:
        await coordinator.start()
        for broker in cluster.brokers.values():
            await broker.start()
        for name in cluster.brokers:
            await cluster.ready(name)
        async with Admin(next(iter(cluster.addresses.values()))) as admin:
            partition = (await admin.create("t")).partition_ids[0]
            route = await admin.route(partition)
        await append(route.master_address, partition, [b"a1", b"a2", b"a3"])
        await coordinator.stop()
        shutil.copytree(coordinator.data, backup)
        await coordinator.start()
        # What is decided from here on is not in the copy: segment 2, and what is acknowledged there.
        master = next(name for name, address in cluster.addresses.items() if address == route.master_address)
        await cluster.brokers[master].end(signal.SIGKILL)
        route = await moved_route(cluster, partition, 1, master)
        await append(route.master_address, partition, [b"b1", b"b2", b"b3"])
        await cluster.brokers[master].start()
        await cluster.ready(master)
        await coordinator.stop()
        shutil.rmtree(coordinator.data)
        away = ""
        if state == "older":
            shutil.copytree(backup, coordinator.data)
        else:
            away = master
            await cluster.brokers[away].end(signal.SIGKILL)
        await coordinator.start()
        if away:  # the empty coordinator does not know the runs of this disk: the start is refused
            await cluster.brokers[away].start()
            running = cluster.brokers[away].running
            assert running is not None
            assert await asyncio.wait_for(running.wait(), DEADLINE_S) == 2
            assert "seriatim coordinator rebuild" in cluster.brokers[away].log_text()
        assert await answers(cluster, "the coordinator has lost decisions")
        pages = [(await cluster.get(name, "/readyz"))[1] for name in cluster.addresses if name != away]
        assert troubles.COORDINATOR_BEHIND in {trouble for page in pages for trouble, _ in troubles.read(page)}
        status, said = await rebuild(cluster)
        assert status == 1, said
        assert "would write: the chain of t/0" in said
        assert "Nothing was written" in said
        assert (f"did not report: {away} did not answer" in said) == bool(away), said
        assert await answers(cluster, "the coordinator has lost decisions"), "nothing has changed"
        status, said = await rebuild(cluster, "--yes")
        assert status == 0, said
        if away:
            await cluster.brokers[away].start()
        for name in cluster.brokers:
            await cluster.ready(name)
        status, said = await rebuild(cluster)
        assert status == 0, said
        assert await read_all(cluster, partition, "new", 6) == [b"a1", b"a2", b"a3", b"b1", b"b2", b"b3"]
        route = await moved_route(cluster, partition, 2, "")
        assert len(await append(route.master_address, partition, [b"c1"])) == 1
    finally:
        for broker in cluster.brokers.values():
            if broker.running is not None:
                await broker.end(signal.SIGKILL)
        await coordinator.stop()


@pytest.mark.parametrize("kind", ["embedded", pytest.param("etcd", marks=pytest.mark.etcd)])
async def test_brokers_and_coordinator_may_have_two_authorities(tmp_path: Path, kind: str) -> None:
    theirs = local_tls.make(tmp_path / "theirs", ["127.0.0.1"])
    ours = local_tls.make(tmp_path / "ours", ["127.0.0.1"])
    named = (("tls", ours.server), ("coordinator_tls", theirs.client))
    settings = [
        word
        for prefix, files in named
        for name, file in (("ca", files.ca), ("cert", files.cert), ("key", files.key))
        for word in ("--set", f"{prefix}_{name}={file}")
    ]
    cluster = Cluster(tmp_path, 1, tuple(settings))
    cluster.admin_tls = ssl.create_default_context(cafile=str(ours.ca))
    coordinator = Coordinator(cluster, tmp_path, kind, theirs.server)
    brokers = tls_options(ours.client)
    try:
        await coordinator.start()
        for name, broker in cluster.brokers.items():
            await broker.start()
            await cluster.ready(name)
        await coordinator.stop()
        shutil.rmtree(coordinator.data)
        await coordinator.start()
        assert await answers(cluster, "the coordinator has lost decisions")
        status, said = await rebuild(cluster, *brokers, *tls_options(ours.client, "--coordinator-tls"), "--yes")
        assert status == 2, said
        assert "the other side's certificate was not issued by the CA that was given" in said
        status, said = await rebuild(cluster, *tls_options(theirs.client), "--yes")
        assert status == 2, said
        assert "no broker answered" in said
        assert "the other side's certificate was not issued by the CA that was given" in said
        status, said = await rebuild(cluster, *brokers, *tls_options(theirs.client, "--coordinator-tls"), "--yes")
        assert status == 0, said
        assert "would write: the record of g0-0, run 1" in said
        for name in cluster.brokers:
            await cluster.ready(name)
    finally:
        for broker in cluster.brokers.values():
            if broker.running is not None:
                await broker.end(signal.SIGKILL)
        await coordinator.stop()
