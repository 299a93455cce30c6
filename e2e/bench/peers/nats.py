"""NATS JetStream with three servers: two copies of a stream need three servers, because their leader is elected."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.bench.peers.peer import ask
from e2e.bench.peers.servers import end, start, until_ready
from tools.ports import free_ports

BIN: Final = Path(__file__).resolve().parents[3] / ".tools" / "nats"
READY: Final = b"metadata leader"
"""Each server logs who leads the cluster: it, or another one."""
PENDING: Final = 4_000


@dataclass(frozen=True, slots=True)
class Nats:
    """NATS at the version that `tools/nats/go.mod` names."""

    name: str = "NATS"
    settings: str = (
        "file storage; client connected to the stream's leader; bulk: 4,000 messages under way; flushed: sync_interval "
        "always; two copies: 2 replicas on 3 servers; gap: 3 replicas, flushed, client connected to any server"
    )
    bulk: Sequence[str] = (str(PENDING),)
    servers: int = 3

    @property
    def version(self) -> str:
        """What the server says."""
        told = subprocess.run([BIN / "nats-server", "--version"], capture_output=True, text=True, check=True)
        return told.stdout.strip().rpartition("v")[2]

    @asynccontextmanager
    async def cluster(self, directory: Path, servers: int, *, flush: bool) -> AsyncIterator[NatsCluster]:
        """Run a cluster. Flushes are a setting of the servers in NATS."""
        ports = free_ports(2 * servers)
        clients, routes = ports[:servers], ports[servers:]
        running: dict[str, asyncio.subprocess.Process] = {}
        async with AsyncExitStack() as stack:
            for number in range(servers):
                name = f"n{number + 1}"
                file = _settings_file(directory, name, clients[number], routes[number], routes, flush=flush)
                process = await start(directory / f"{name}.log", str(BIN / "nats-server"), "-c", str(file))
                stack.push_async_callback(end, process)
                running[name] = process
            for name, process in running.items():  # each knows the leader then, or is it
                await until_ready(f"NATS's server {name}", process, directory / f"{name}.log", READY)
            addresses = ",".join(f"nats://127.0.0.1:{port}" for port in clients)
            yield NatsCluster(addresses, running)


def _settings_file(directory: Path, name: str, port: int, route: int, routes: Sequence[int], *, flush: bool) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    others = ", ".join(f'"nats://127.0.0.1:{other}"' for other in routes if other != route)
    flushing = ", sync_interval: always" if flush else ""
    file = directory / f"{name}.conf"
    file.write_text(
        f"server_name: {name}\n"
        f"listen: 127.0.0.1:{port}\n"
        f'jetstream {{ store_dir: "{directory / name}", max_file_store: 20GB{flushing} }}\n'
        f"cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{others}] }}\n"
    )
    return file


@dataclass(frozen=True, slots=True)
class NatsCluster:
    """A running cluster."""

    addresses: str
    running: dict[str, asyncio.subprocess.Process]

    async def create(self, topic: str, copies: int) -> str:
        """Make a stream."""
        answer = await ask(self.client("create", topic, str(copies)))
        return str(answer["leader"])

    def client(self, *arguments: str) -> list[str]:
        """The client takes the command after the addresses."""
        return [str(BIN / "probe"), self.addresses, *arguments]

    async def kill(self, server: str) -> None:
        """Kill a server."""
        self.running[server].kill()
        await self.running[server].wait()
