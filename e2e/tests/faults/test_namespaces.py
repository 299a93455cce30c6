"""Names, addresses and commands of a network of namespaces.

With root, it also checks that packets arrive or are lost.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from seriatim_api.errors import PreconditionError

from e2e.faults.systems import namespaces
from e2e.faults.systems.namespaces import Layout, Namespaces, lay_out, leftovers, token_of

BROKERS = ("g0-0", "g0-1", "g1-0")
LACKING = namespaces.missing()

needs_namespaces = pytest.mark.skipif(bool(LACKING), reason=f"no network namespaces: {LACKING}")


def layout() -> Layout:
    return lay_out(token_of(4_194_304, 255), 254, BROKERS)


def test_names_of_interfaces_fit_and_carry_the_run() -> None:
    found = layout()
    cables = [machine.cable for machine in found.machines.values()]
    assert all(len(name) < 16 and name.startswith("sr400000ff") for name in [found.bridge, *cables])
    assert len(set(cables)) == len(cables) == len(BROKERS) + 3
    assert token_of(7, 1) != token_of(7, 2) != token_of(8, 2)


def test_each_process_has_an_address_and_the_cluster_its_hosts() -> None:
    found = layout()
    addresses = [machine.address for machine in found.machines.values()]
    assert len({*addresses, found.here}) == len(addresses) + 1
    assert found.hosts.coordinator == "10.213.254.1"
    assert found.hosts.brokers == ("10.213.254.2", "10.213.254.3", "10.213.254.4")


def test_all_that_is_made_is_removed() -> None:
    found = layout()
    made = {command[3] for command in found.make() if command[:3] == ["ip", "netns", "add"]}
    cables = {command[4] for command in found.make() if command[:4] == ["ip", "link", "add", "name"]}
    removed = {command[3] for command in found.remove()}
    assert removed == made | cables
    assert found.bridge in removed


def test_one_way_concerns_the_sender_alone() -> None:
    (command,) = layout().silence([("g0-0", "g1-0")])
    assert command[:6] == ["ip", "-n", "sr400000ff-g0-0", "neigh", "replace", "10.213.254.4"]
    (command,) = layout().restore([("g0-0", "g1-0")])
    assert command[:6] == ["ip", "-n", "sr400000ff-g0-0", "neigh", "del", "10.213.254.4"]


def test_clients_are_all_client_processes() -> None:
    assert [command[2] for command in layout().silence([("clients", "g0-0")])] == [
        "sr400000ff-producer", "sr400000ff-reader",
    ]  # fmt: skip
    assert [command[5] for command in layout().silence([("g0-0", "clients")])] == ["10.213.254.200", "10.213.254.201"]


def test_one_end_of_a_connection_is_enough_to_break_it() -> None:
    pairs = [("clients", "g0-0"), ("g0-0", "clients"), ("clients", "g0-1"), ("g0-1", "clients")]
    commands = layout().reset(pairs)
    assert [command[3] for command in commands] == ["sr400000ff-producer", "sr400000ff-reader"]
    assert {command[-1] for command in commands} == {"dst 10.213.254.2 or dst 10.213.254.3"}


def test_only_what_ended_runs_left_is_swept() -> None:
    names = ["lo", "eth0", "sr00000501", "sr00000501v2", "sr00000501-g0-0", "sr00000601-g0-0", "srv0", "sr0000050"]
    assert leftovers(names, lambda pid: pid == 6) == ["sr00000501", "sr00000501v2", "sr00000501-g0-0"]


def traces(bridge: str) -> list[str]:
    """Return the objects of a network that the kernel has, by the name of its bridge."""
    seen = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout.split()
    seen += subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout.split()
    return [word for word in seen if bridge in word]


@pytest_asyncio.fixture
async def network() -> AsyncIterator[Namespaces]:
    made = await Namespaces.create(BROKERS)
    yield made
    await made.remove()
    assert traces(made.layout.bridge) == []


ECHO = """
import socket, sys
listening = socket.create_server((sys.argv[1], 7000))
while True:
    peer, _ = listening.accept()
    try:
        while data := peer.recv(100):
            peer.sendall(data)
    except ConnectionError:
        pass
"""
SAY = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2])) as peer:
    peer.sendall(b"hello")
    assert peer.recv(100) == b"hello"
"""

HOLD = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000)) as peer:
    print("connected", flush=True)
    peer.recv(1)
"""


async def reaches(network: Namespaces, source: str, to: str, timeout_s: float) -> bool:
    """Whether a process on one machine gets an answer from a process on another."""
    argv = network.command(source, [sys.executable, "-c", SAY, network.layout.machines[to].address, str(timeout_s)])
    process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.DEVNULL)
    return await process.wait() == 0


async def begins(network: Namespaces, broker: str) -> None:
    """Wait until an echo server answers this process."""
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection(network.layout.machines[broker].address, 7000)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return


@needs_namespaces
async def test_packets_of_a_direction_that_is_cut_do_not_arrive(network: Namespaces) -> None:
    echoes = []
    try:
        for broker in ("g0-0", "g0-1"):
            argv = network.command(broker, [sys.executable, "-c", ECHO, network.layout.machines[broker].address])
            echoes.append(await asyncio.create_subprocess_exec(*argv))
            await begins(network, broker)
        assert await reaches(network, "g1-0", "g0-0", 20)
        await network.cut([("g1-0", "g0-0")], "silent")
        assert not await reaches(network, "g1-0", "g0-0", 0.5)
        assert await reaches(network, "g1-0", "g0-1", 20), "others hear it"
        assert await reaches(network, "g0-1", "g0-0", 20), "it hears others"
        await network.heal([("g1-0", "g0-0")])
        assert await reaches(network, "g1-0", "g0-0", 20)
        await network.cut([("g0-0", "g1-0")], "silent")
        assert not await reaches(network, "g1-0", "g0-0", 0.5), "answers do not arrive"
    finally:
        for echo in echoes:
            echo.kill()
            await echo.wait()


@needs_namespaces
async def test_a_reset_breaks_connections_and_lets_new_ones_be_made(network: Namespaces) -> None:
    address = network.layout.machines["g0-0"].address
    echo = await asyncio.create_subprocess_exec(*network.command("g0-0", [sys.executable, "-c", ECHO, address]))
    try:
        await begins(network, "g0-0")
        held = await asyncio.create_subprocess_exec(
            *network.command("producer", [sys.executable, "-c", HOLD, address]),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert held.stdout is not None
        assert await held.stdout.readline() == b"connected\n"
        await network.cut([("clients", "g0-0"), ("g0-0", "clients")], "reset")
        _, said = await held.communicate()
        assert b"ConnectionAbortedError" in said
        assert await reaches(network, "producer", "g0-0", 20)
    finally:
        echo.kill()
        await echo.wait()


@needs_namespaces
async def test_a_cut_that_fails_cuts_nothing(network: Namespaces, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Layout.silence
    monkeypatch.setattr(Layout, "silence", lambda self, paths: [*whole(self, paths), ["ip", "no-such-object"]])
    with pytest.raises(PreconditionError, match="no-such-object"):
        await network.cut([("g0-0", "g0-1")], "silent")
    namespace = network.layout.machines["g0-0"].namespace
    entries = await asyncio.to_thread(
        subprocess.run, ["ip", "-n", namespace, "neigh", "show"], check=True, capture_output=True, text=True
    )
    assert "PERMANENT" not in entries.stdout


@needs_namespaces
async def test_a_network_that_cannot_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Layout] = []

    def torn(self: Layout) -> list[list[str]]:
        made.append(self)
        return [*whole(self)[:12], ["ip", "link", "set", "no-such-cable", "up"]]

    whole = Layout.make
    monkeypatch.setattr(Layout, "make", torn)
    with pytest.raises(PreconditionError, match="no-such-cable"):
        await Namespaces.create(BROKERS)
    assert traces(made[0].bridge) == []


@needs_namespaces
async def test_what_a_killed_run_left_is_removed_by_the_next(network: Namespaces) -> None:
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended.wait()
    left = lay_out(token_of(ended.pid, 0), 254, BROKERS[:1])
    for command in left.make():
        assert await (await asyncio.create_subprocess_exec(*command)).wait() == 0
    assert traces(left.bridge)
    another = await Namespaces.create(BROKERS)
    await another.remove()
    assert traces(left.bridge) == []
    assert traces(network.layout.bridge), "this run's own stays"


def test_without_root_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert namespaces.missing() == "not root"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "ss" else f"/sbin/{name}")
    assert namespaces.missing() == "no ss"


@needs_namespaces
def test_what_the_kernel_cannot_do_is_found_out_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "_can_break_connections", lambda: False)
    assert "INET_DIAG_DESTROY" in namespaces.missing()
    whole = Layout.make
    monkeypatch.setattr(Layout, "make", lambda self: [*whole(self), ["ip", "no-such-object"]])
    assert "no-such-object" in namespaces.missing()
    assert traces(f"sr{token_of(os.getpid(), 255)}") == []
