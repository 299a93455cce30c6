"""`LocalCluster` with real processes, a real coordinator and a fake broker program: life, death and certificates."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console
from seriatim_api.errors import BadRequestError, PreconditionError
from seriatim_api.ids import MemberId, RunId
from seriatim_api.troubles import COORDINATOR_BEHIND
from seriatim_api.v1 import records_pb2
from seriatim_broker.adapters.etcd import EtcdConfig, EtcdCoordinator
from seriatim_local import Hosts, LinkDelay, LocalCluster
from seriatim_local.commands import render_status
from seriatim_local.death_certificates import certificate_key
from seriatim_local.layout import ports
from seriatim_local.layout.ports import PortRange
from seriatim_local.processes.procfs import ProcessIdentity, identify, state_of
from seriatim_local.state import is_running, read_state

from .fakes import FakePrograms, incarnation_of

DEADLINE_S = 20.0
QUIET_S = 0.05


@pytest.fixture(autouse=True)
def ports_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take ports that clusters of other tests do not take: they begin at the lowest, at the same time."""
    monkeypatch.setattr(ports, "BASE_PORT_FIRST", 20_000)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path / "c", groups=2, members=2, programs=FakePrograms()) as found:
        yield found


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await holds():  # noqa: ASYNC110 - other processes signal nothing
            await asyncio.sleep(0.02)


async def certificate(cluster: LocalCluster, broker: str, run: int) -> records_pb2.DeathCertificate | None:
    coordinator = EtcdCoordinator(EtcdConfig((str(cluster.plan.coordinator),)))
    try:
        key = certificate_key("local", RunId(MemberId(broker, incarnation_of(broker)), run))
        found = await coordinator.get(key)
    finally:
        await coordinator.close()
    return None if found is None else records_pb2.DeathCertificate.FromString(found.value)


async def say(address: str, text: str) -> str:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(text.encode() + b"\n")
        return (await asyncio.wait_for(reader.readline(), DEADLINE_S)).decode().strip()
    finally:
        writer.close()


async def test_a_killed_broker_is_certified_with_the_run_that_died_and_starts_again(cluster: LocalCluster) -> None:
    assert await say(cluster.bootstrap[0], "hello") == "g0-0 1 hello"
    pid = cluster.pid("g0-0")
    assert pid is not None
    (record,) = await cluster.kill("g0-0")
    assert (record.kind, record.victim, record.phase) == ("kill", "g0-0", "inject")
    assert cluster.pid("g0-0") is None

    async def certified() -> bool:
        return await certificate(cluster, "g0-0", 1) is not None

    await until(certified)
    found = await certificate(cluster, "g0-0", 1)
    assert found is not None
    assert (found.member.broker, found.run, found.issuer) == ("g0-0", 1, "runner")
    assert str(pid) in found.evidence
    assert "SIGKILL" in found.evidence

    await cluster.start_again("g0-0")
    await cluster.wait_ready("g0-0")
    assert await say(cluster.bootstrap[0], "hello") == "g0-0 2 hello"
    assert await certificate(cluster, "g0-0", 2) is None
    assert [(fault.kind, fault.phase) for fault in cluster.faults] == [("kill", "inject"), ("kill", "heal")]


async def test_a_death_nobody_asked_for_is_noticed_and_certified_as_well(cluster: LocalCluster) -> None:
    pid = cluster.pid("g1-1")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    async def certified() -> bool:
        return await certificate(cluster, "g1-1", 1) is not None

    await until(certified)
    assert [(fault.kind, fault.victim) for fault in cluster.faults] == [("end", "g1-1")]
    assert (await cluster.status()).brokers[3].state == "dead"


async def test_certificates_wait_for_a_coordinator_that_is_away(cluster: LocalCluster) -> None:
    await cluster.kill("coordinator")
    await cluster.kill("g0")
    status = await cluster.status()
    assert (status.coordinator_state, status.certificates_pending) == ("dead", 2)
    await cluster.start_again("coordinator")

    async def certified() -> bool:
        return (await cluster.status()).certificates_pending == 0

    await until(certified)
    assert await certificate(cluster, "g0-0", 1) is not None
    assert await certificate(cluster, "g0-1", 1) is not None


async def test_a_frozen_broker_is_shown_as_such_and_is_not_certified(cluster: LocalCluster) -> None:
    await cluster.freeze("g0-1")

    async def frozen() -> bool:
        return (await cluster.status()).brokers[1].state == "frozen"

    await until(frozen)
    assert not (await cluster.status()).brokers[1].ready
    await cluster.thaw("g0-1")
    await cluster.wait_ready("g0-1")
    assert await certificate(cluster, "g0-1", 1) is None


async def test_the_status_names_what_brokers_say_a_person_has_to_do(cluster: LocalCluster) -> None:
    (cluster.data_directory("g0-1") / "readyz").write_text(f"g0-1: {COORDINATOR_BEHIND.line('it lost epoch 7')}\n")
    status = await cluster.status()
    assert [broker.ready for broker in status.brokers] == [True, False, True, True]
    assert [broker.troubles for broker in status.brokers if broker.name != "g0-1"] == [(), (), ()]
    (line,) = status.brokers[1].troubles
    assert line.startswith("coordinator-behind (error 605): it lost epoch 7. To do: ")
    assert "seriatim coordinator rebuild" in line
    console = Console(width=200, file=io.StringIO())
    console.print(render_status(asdict(status)))
    assert isinstance(console.file, io.StringIO)
    assert f"g0-1: {line}" in console.file.getvalue()


async def test_cuts_are_by_directed_pair(cluster: LocalCluster) -> None:
    peers = dict(cluster.plan.broker("g0-1").peers)
    reader, writer = await asyncio.open_connection(peers["g0-0"].host, peers["g0-0"].port)
    try:
        await cluster.cut("g0-0", "all")
        writer.write(b"are you there\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readline(), QUIET_S)
        assert await say(cluster.bootstrap[1], "hello") == "g0-1 1 hello"
        status = await cluster.status()
        assert status.brokers[0].cuts == ("clients", "coordinator", "g0-1", "g1-0", "g1-1")
        assert status.brokers[1].cuts == ("g0-0",)
        assert status.brokers[0].ready  # the admin port is the operator's, not the network's
        await cluster.heal("g0-0", "g0-1")
        assert await asyncio.wait_for(reader.readline(), DEADLINE_S) == b"g0-0 1 are you there\n"
        await cluster.heal()
        assert await say(cluster.bootstrap[0], "hello") == "g0-0 1 hello"
    finally:
        writer.close()


async def test_cutting_clients_leaves_the_brokers_connected(cluster: LocalCluster) -> None:
    await cluster.cut("clients", "g0-0", reset=True)
    with pytest.raises(ConnectionError):
        await say(cluster.bootstrap[0], "hello")
    peer = dict(cluster.plan.broker("g0-1").peers)["g0-0"]
    assert await say(str(peer), "hello") == "g0-0 1 hello"


async def round_trip(address: str) -> float:
    """Seconds until the fake broker has answered a line."""
    begun = asyncio.get_running_loop().time()
    await say(address, "hello")
    return asyncio.get_running_loop().time() - begun


async def test_lags_are_by_directed_pair_and_end_by_healing(cluster: LocalCluster) -> None:
    near, far = LinkDelay(0.1), LinkDelay(0.2, 0.1)
    assert await cluster.lag("g0-0", "all", LinkDelay(0.0)) == ()
    (record,) = await cluster.lag("g0-0", "all", near)
    assert (record.kind, record.victim, record.phase, record.details) == ("lag", "g0-0-all", "inject", "100ms")
    assert await round_trip(cluster.bootstrap[0]) >= 0.38  # the connection takes a round trip first
    assert await cluster.lag("g0-0", "all", near) == ()
    await cluster.lag("g0-0", "clients", far, one_way=True)
    status = await cluster.status()
    assert status.brokers[0].delays == ("<clients, coordinator, g0-1, g1-0, g1-1 100ms", ">clients 200ms+100ms")
    assert [broker.delays for broker in status.brokers[1:]] == [("g0-0 100ms",)] * 3
    console = Console(width=200, file=io.StringIO())
    console.print(render_status(asdict(status)))
    assert isinstance(console.file, io.StringIO)
    assert "lag of g0-1: g0-0 100ms" in console.file.getvalue()
    await cluster.cut("g0-0", "g0-1")
    assert [(each.kind, each.victim, each.phase) for each in await cluster.heal("g0-0", "g0-1")] == [
        ("cut", "g0-0-g0-1", "heal"),
        ("lag", "g0-0-g0-1", "heal"),
    ]
    (record,) = await cluster.lag("g0-0", "g1", LinkDelay(0.0))
    assert (record.kind, record.phase) == ("lag", "heal")
    await cluster.heal()
    assert [broker.delays for broker in (await cluster.status()).brokers] == [()] * 4
    assert await cluster.heal() == ()


async def test_a_distance_from_the_start_on_survives_healing(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, groups=1, delay=LinkDelay(0.05), programs=FakePrograms()) as cluster:
        assert await cluster.heal() == ()
        await cluster.lag("g0-0", "g0-1", LinkDelay(0.1))
        assert (await cluster.status()).brokers[1].delays == ("clients, coordinator 50ms", "g0-0 100ms")
        assert [each.kind for each in await cluster.heal("g0-0")] == ["lag"]
        await cluster.add_group()
        assert {broker.delays for broker in (await cluster.status()).brokers} == {("all 50ms",)}
        assert await round_trip(cluster.bootstrap[0]) >= 0.18


async def test_unknown_names_are_refused_with_the_known_ones(cluster: LocalCluster) -> None:
    with pytest.raises(BadRequestError, match="g1-0"):
        await cluster.kill("g7")
    with pytest.raises(BadRequestError, match="no link"):
        await cluster.cut("clients", "coordinator")
    with pytest.raises(BadRequestError, match="no link"):
        await cluster.lag("clients", "coordinator", LinkDelay(0.1))


async def test_everything_is_taken_down_and_the_ports_and_data_are_kept(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, groups=1, programs=FakePrograms())
    async with cluster:
        first = cluster.bootstrap
        state = read_state(tmp_path)
        assert state is not None
        assert is_running(tmp_path)
        assert [entry.name for entry in state.processes] == ["runner", "coordinator", "g0-0", "g0-1", "proxy"]
        await cluster.freeze("g0-1")
    for entry in state.processes[1:]:
        assert state_of(ProcessIdentity(entry.pid, entry.started_ticks)) == "dead"
    assert not is_running(tmp_path)
    assert "handed over" in cluster.log_file("g0-0").read_text()
    assert "handed over" in cluster.log_file("g0-1").read_text()  # thawed, so that it could
    with PortRange.reserve(cluster.plan.base_port):
        pass
    async with LocalCluster(tmp_path, groups=1, programs=FakePrograms()) as again:
        assert again.bootstrap == first
        assert await say(again.bootstrap[0], "hello") == "g0-0 2 hello"
        assert await certificate(again, "g0-0", 1) is not None


async def test_without_the_proxy_brokers_are_reached_directly_and_cuts_are_refused(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, groups=1, proxy=False, programs=FakePrograms()) as cluster:
        assert cluster.plan.broker("g0-0").listen == cluster.plan.broker("g0-0").advertised
        assert await say(cluster.bootstrap[1], "hello") == "g0-1 1 hello"
        with pytest.raises(PreconditionError, match="proxy"):
            await cluster.cut("g0-0", "g0-1")
        with pytest.raises(PreconditionError, match="start it with --proxy"):
            await cluster.lag("g0-0", "g0-1", LinkDelay(0.1))


class RecordedNetwork:
    """Loopback addresses of its own, and a list of what was asked of it."""

    hosts = Hosts("127.0.3.1", ("127.0.3.2", "127.0.3.3"))

    def __init__(self) -> None:
        self.deeds: list[tuple[object, ...]] = []

    def command(self, process: str, argv: Sequence[str]) -> Sequence[str]:
        self.deeds.append(("run", process))
        return ["env", f"MACHINE={process}", *argv]

    async def cut(self, paths: Iterable[tuple[str, str]], mode: str) -> None:
        self.deeds.append(("cut", *paths, mode))

    async def heal(self, paths: Iterable[tuple[str, str]]) -> None:
        self.deeds.append(("heal", *paths))


async def test_on_a_network_of_its_own_processes_and_cuts_are_left_to_that(tmp_path: Path) -> None:
    network = RecordedNetwork()
    async with LocalCluster(tmp_path, groups=1, network=network, programs=FakePrograms()) as cluster:
        assert cluster.bootstrap[0].startswith("127.0.3.2:")
        assert await say(cluster.bootstrap[1], "hello") == "g0-1 1 hello"
        assert network.deeds == [("run", "coordinator"), ("run", "g0-0"), ("run", "g0-1")]
        await cluster.restart("g0-1")
        await cluster.wait_ready("g0-1")
        await cluster.cut("g0-0", "g0-1", one_way=True)
        assert next(broker.cuts for broker in (await cluster.status()).brokers) == (">g0-1",)
        await cluster.heal("g0-0", "g0-1")
        await cluster.cut("g0-0", "coordinator", reset=True)
        with pytest.raises(PreconditionError, match="network of its own"):
            await cluster.lag("g0-0", "g0-1", LinkDelay(0.1))
    assert network.deeds[3:] == [
        ("run", "g0-1"),
        ("cut", ("g0-0", "g0-1"), "silent"),
        ("heal", ("g0-0", "g0-1")),
        ("cut", ("coordinator", "g0-0"), ("g0-0", "coordinator"), "reset"),
        ("heal", ("coordinator", "g0-0"), ("g0-0", "coordinator")),
    ]


async def test_a_broker_that_does_not_start_says_why_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="this disk belongs to another member"):
        async with LocalCluster(tmp_path, groups=1, programs=FakePrograms(failing="g0-1")):
            pass
    state = read_state(tmp_path)
    assert state is not None
    assert [entry.name for entry in state.processes] == ["runner"]
    assert not is_running(tmp_path)


async def test_a_second_cluster_in_a_directory_is_refused(cluster: LocalCluster) -> None:
    with pytest.raises(PreconditionError, match="runs in"):
        await LocalCluster(cluster.directory, programs=FakePrograms()).start()


async def first_port_that_is_free(host: str) -> asyncio.Server:
    """Listen at the first base port that no program of this machine has now."""
    for base in range(ports.BASE_PORT_FIRST, ports.BASE_PORT_FIRST + 1000, ports.PORT_COUNT):
        with contextlib.suppress(OSError):
            return await asyncio.start_server(lambda _reader, writer: writer.close(), host, base)
    raise AssertionError("no base port is free")


async def test_a_port_taken_by_others_is_refused_or_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = await first_port_that_is_free("127.0.0.2")
    base = blocker.sockets[0].getsockname()[1]
    monkeypatch.setattr(ports, "BASE_PORT_FIRST", base)
    async with blocker:
        with pytest.raises(PreconditionError, match=f"another program uses 127.0.0.2:{base}"):
            await LocalCluster(tmp_path / "a", groups=1, base_port=base, programs=FakePrograms()).start()
        async with LocalCluster(tmp_path / "b", groups=1, members=1, programs=FakePrograms()) as cluster:
            assert cluster.plan.base_port > base


def rewrite_state(directory: Path, **fields: object) -> None:
    path = directory / "cluster.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@asynccontextmanager
async def sleeper() -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def entry(name: str, process: asyncio.subprocess.Process, *, younger_by: int = 0) -> dict[str, object]:
    identity = identify(process.pid)
    assert identity is not None
    return {"name": name, "pid": process.pid, "started_ticks": identity.started_ticks - younger_by}


async def test_what_a_dead_runner_left_is_killed_and_a_reused_pid_is_not(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, groups=1, members=1, programs=FakePrograms()):
        pass
    async with sleeper() as left, sleeper() as stranger:
        rewrite_state(tmp_path, processes=[entry("g0-0", left), entry("g0-1", stranger, younger_by=1)])
        async with LocalCluster(tmp_path, groups=1, members=1, programs=FakePrograms()):
            assert await asyncio.wait_for(left.wait(), DEADLINE_S) == -signal.SIGKILL
            assert stranger.returncode is None
            os.kill(stranger.pid, 0)


async def test_a_state_file_from_before_a_machine_crash_kills_nobody(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, groups=1, members=1, programs=FakePrograms()) as cluster:
        base_port = cluster.plan.base_port
    async with sleeper() as bystander:
        rewrite_state(tmp_path, processes=[entry("g0-0", bystander)], boot="another boot of this machine")
        async with LocalCluster(tmp_path, groups=1, members=1, programs=FakePrograms()) as again:
            assert again.plan.base_port == base_port
            assert bystander.returncode is None
            os.kill(bystander.pid, 0)
