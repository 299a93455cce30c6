"""What the contract suite needs to know of an implementation of the coordinator, and the two that are real.

A third implementation joins by a class with `Harness`'s methods and a line in `conftest.HARNESSES`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import grpc
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc
from seriatim_broker.adapters.etcd import EtcdConfig, EtcdCoordinator
from seriatim_broker.interfaces.coordinator import Coordinator
from seriatim_local.embedded import EmbeddedCoordinator, serve

from tools.ports import free_port

REPOSITORY = Path(__file__).resolve().parents[3]
ETCD_BINARY = REPOSITORY / ".tools" / "bin" / "etcd"
ETCDCTL_BINARY = REPOSITORY / ".tools" / "bin" / "etcdctl"
START_S_MAX = 20.0
STOP_GRACE_S = 0.5

_CHILD = """
import asyncio, signal, sys
from pathlib import Path
from seriatim_local.embedded import serve

async def main():
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    running = await serve(Path(sys.argv[1]), sys.argv[2])
    await stopped.wait()
    await running.stop()

asyncio.run(main())
"""


class Harness(Protocol):
    """One coordinator with its data, and what a test may do to it."""

    def client(self) -> Coordinator:
        """A new client, closed at the end of the test if not before."""
        ...

    async def restart(self) -> None:
        """Stop it in an orderly way and start it again on the same data, under the same address."""
        ...

    async def crash(self) -> None:
        """End it without warning, and start it again."""
        ...

    async def compact(self, revision: int) -> None:
        """Forget what is older than `revision`."""
        ...

    def frozen(self) -> AbstractAsyncContextManager[None]:
        """It answers nothing inside the block, though its connections stay."""
        ...

    async def until(self, condition: Callable[[], Awaitable[bool]], within_s: float) -> None:
        """Let time pass until `condition` holds; fails after `within_s` seconds."""
        ...

    async def close(self) -> None:
        """Close clients and give everything back."""
        ...


async def freeze(process: subprocess.Popen[bytes]) -> None:
    """Stop a child, and wait until the last of its threads has stopped: the signal alone is only on its way."""
    process.send_signal(signal.SIGSTOP)
    await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


async def until(condition: Callable[[], Awaitable[bool]], within_s: float) -> None:
    """Ask `condition` again and again, in real time."""
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110  (what is asked is another process)
            await asyncio.sleep(0.02)


class _ServerHarness:
    """What servers at an address have in common."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._clients: list[EtcdCoordinator] = []

    def client(self) -> Coordinator:
        client = EtcdCoordinator(EtcdConfig((self.address,)))
        self._clients.append(client)
        return client

    async def compact(self, revision: int) -> None:
        async with grpc.aio.insecure_channel(self.address) as channel:
            await rpc_pb2_grpc.KVStub(channel).Compact(
                rpc_pb2.CompactionRequest(revision=revision, physical=True), timeout=10
            )

    async def until(self, condition: Callable[[], Awaitable[bool]], within_s: float) -> None:
        await until(condition, within_s)

    async def _close_clients(self) -> None:
        for client in self._clients:
            await client.close()

    async def _wait_for_service(self) -> None:
        client = EtcdCoordinator(EtcdConfig((self.address,), deadline_s=START_S_MAX))
        try:
            await client.get("is-it-there")
        finally:
            await client.close()


class EmbeddedHarness(_ServerHarness):
    """The embedded coordinator in this process; in a child where it is to be frozen or killed."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"127.0.0.1:{free_port()}")
        self._directory = directory
        self._server: EmbeddedCoordinator | None = None

    async def start(self) -> None:
        self._server = await serve(self._directory, self.address)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
            self._server = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def crash(self) -> None:
        """A child is killed; what was acknowledged by it, and before, must be there afterwards."""
        async with self.in_child() as child:
            child.kill()

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        async with self.in_child() as child:
            await freeze(child)
            try:
                yield
            finally:
                child.send_signal(signal.SIGCONT)

    @asynccontextmanager
    async def in_child(self) -> AsyncIterator[subprocess.Popen[bytes]]:
        """The same data under the same address, served by a child process inside the block."""
        await self.stop()
        child = start_child(self._directory, self.address)
        try:
            await self._wait_for_service()
            yield child
        finally:
            child.terminate()
            await asyncio.to_thread(child.wait, START_S_MAX)
            await self.start()

    async def close(self) -> None:
        await self._close_clients()
        await self.stop()


def start_child(directory: Path, address: str) -> subprocess.Popen[bytes]:
    """The embedded coordinator in a process of its own."""
    return subprocess.Popen([sys.executable, "-c", _CHILD, str(directory), address], stdout=subprocess.DEVNULL)


class EtcdProcess:
    """A real etcd of one member, shared by the tests of a session; each test keeps to a prefix of its own."""

    def __init__(self, directory: Path, *more: str) -> None:
        self._directory = directory
        self._more = more
        self.address = f"127.0.0.1:{free_port()}"
        self._peer = f"http://127.0.0.1:{free_port()}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        url = f"http://{self.address}"
        with (self._directory / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    str(ETCD_BINARY),
                    "--name=contract",
                    f"--data-dir={self._directory / 'data'}",
                    f"--listen-client-urls={url}",
                    f"--advertise-client-urls={url}",
                    f"--listen-peer-urls={self._peer}",
                    f"--initial-advertise-peer-urls={self._peer}",
                    f"--initial-cluster=contract={self._peer}",
                    "--logger=zap",
                    *self._more,
                ],
                stdout=log,
                stderr=log,
                env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            )

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            try:
                self.process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()  # etcd gives open watches 5 s to end by themselves
                self.process.wait(START_S_MAX)
            self.process = None


class EtcdHarness(_ServerHarness):
    """The session's etcd, for one test."""

    def __init__(self, etcd: EtcdProcess) -> None:
        super().__init__(etcd.address)
        self._etcd = etcd

    async def start(self) -> None:
        if self._etcd.process is None:
            self._etcd.start()
        await self._wait_for_service()

    async def restart(self) -> None:
        await self._end_and_start(signal.SIGTERM)

    async def crash(self) -> None:
        await self._end_and_start(signal.SIGKILL)

    async def _end_and_start(self, how: signal.Signals) -> None:
        await asyncio.to_thread(self._etcd.stop, how)
        self._etcd.start()
        await self._wait_for_service()

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        assert self._etcd.process is not None
        await freeze(self._etcd.process)
        try:
            yield
        finally:
            self._etcd.process.send_signal(signal.SIGCONT)
            await self._wait_for_service()

    async def close(self) -> None:
        await self._close_clients()
