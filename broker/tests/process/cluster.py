"""Real processes for tests: a coordinator and brokers on free ports, ended by pid when the test is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tools.ports import free_ports

READY_DEADLINE_S = 60.0
_SLOWDISK = Path(__file__).parents[3] / "tools" / "slowdisk" / "slowdisk.c"


class Process:
    """One process and its log."""

    def __init__(self, name: str, directory: Path, arguments: list[str]) -> None:
        self.name = name
        self.arguments = arguments
        self.log = directory / f"{name}.log"
        self.running: asyncio.subprocess.Process | None = None
        self.environment: dict[str, str] = {}

    async def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SERIATIM_")}
        environment |= self.environment
        with self.log.open("ab") as log:
            self.running = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "seriatim_broker", *self.arguments, stdout=log, stderr=log, env=environment
            )

    def send(self, number: int) -> None:
        assert self.running is not None
        with contextlib.suppress(ProcessLookupError):
            self.running.send_signal(number)

    async def end(self, number: int = signal.SIGKILL) -> int:
        """Signal it and reap it; returns its exit status."""
        assert self.running is not None
        if self.running.returncode is None:
            self.send(number)
        async with asyncio.timeout(60):
            return await self.running.wait()

    def log_text(self) -> str:
        return self.log.read_text()


class Cluster:
    """A coordinator and `groups` broker groups of two."""

    def __init__(self, directory: Path, groups: int, options: tuple[str, ...] = ()) -> None:
        names = [f"g{group}-{slot}" for group in range(groups) for slot in range(2)]
        ports = free_ports(1 + 3 * len(names))
        self.directory = directory
        self.addresses = {name: f"127.0.0.1:{ports[1 + at]}" for at, name in enumerate(names)}
        self.admin = {name: f"127.0.0.1:{ports[1 + len(names) + at]}" for at, name in enumerate(names)}
        links = [f"127.0.0.1:{port}" for port in ports[1 + 2 * len(names) :]]
        links[1::2] = ["127.0.0.1:0"] * groups  # the system chooses the port of every other broker
        self.links = dict(zip(names, links, strict=True))
        self.coordinator_address = f"127.0.0.1:{ports[0]}"
        self.coordinator = Process(
            "coordinator",
            directory,
            ["coordinator", "--data", str(directory / "c"), "--listen", self.coordinator_address],
        )
        self.brokers = {name: self.make(name, *options) for name in names}
        self.disk_controls: dict[str, Path] = {}
        self.admin_tls: ssl.SSLContext | None = None

    def make(self, name: str, *options: str, data: str | None = None, log: str | None = None) -> Process:
        """A broker that is not started."""
        group, _, slot = name.partition("-")
        words = ["--cluster", "test", "--group", group, "--slot", slot, "--data", str(self.directory / (data or name))]
        words += ["--listen", self.addresses[name], "--coordinator", self.coordinator_address]
        words += ["--set", f"link_listen={self.links[name]}"]
        words += ["--admin-listen", self.admin[name], "--set", "stop_deadline_s=2", "--set", "join_deadline_s=60"]
        return Process(log or name, self.directory, ["broker", *words, *options])

    async def start(self) -> None:
        await self.coordinator.start()
        for broker in self.brokers.values():
            await broker.start()
        for name in self.brokers:
            await self.ready(name)

    def may_slow_disks(self) -> None:
        """Before the start: have the library of `tools/slowdisk` below each broker. Skips without a C compiler."""
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            pytest.skip("no C compiler: the slow disk cannot be built")
        library = self.directory / "slowdisk.so"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SLOWDISK), "-ldl"]
        subprocess.run(command, check=True, timeout=60)
        for name, broker in self.brokers.items():
            control = self.disk_controls[name] = self.directory / f"{name}.disk"
            control.touch()
            broker.environment = {
                "LD_PRELOAD": str(library),
                "SLOWDISK_PREFIX": str(self.directory.resolve() / name),
                "SLOWDISK_CONTROL": str(control),
            }

    def set_disk(self, name: str, settings: str) -> None:
        """Have the disk of a broker behave so from now on; empty: well."""
        self.disk_controls[name].write_text(settings)

    async def ready(self, name: str) -> None:
        """Wait until a broker is admitted and serving."""
        async with asyncio.timeout(READY_DEADLINE_S):
            while (await self.get(name, "/readyz"))[0] != 200:
                running = self.brokers[name].running
                assert running is not None
                assert running.returncode is None, self.brokers[name].log_text()
                await asyncio.sleep(0.05)  # there is nothing to wait on but the port itself

    async def get(self, name: str, path: str) -> tuple[int, str]:
        """What the admin port answers; status 0 if it does not answer."""
        host, _, port = self.admin[name].rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port), ssl=self.admin_tls)
        except OSError:
            return 0, ""
        try:
            writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            header, _, body = (await reader.read()).partition(b"\r\n\r\n")
            return (int(header.split()[1]), body.decode()) if header else (0, "")
        finally:
            writer.close()

    async def stop(self) -> None:
        for process in (*self.brokers.values(), self.coordinator):
            if process.running is not None:
                process.send(signal.SIGCONT)
                await process.end()


@contextlib.asynccontextmanager
async def running_cluster(directory: Path, groups: int, *options: str) -> AsyncIterator[Cluster]:
    """A started cluster; all its processes are ended afterwards, and their logs reported if the test failed."""
    cluster = Cluster(directory, groups, options)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()
