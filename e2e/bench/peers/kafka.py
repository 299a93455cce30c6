"""Kafka with a controller and several brokers, each a process of its own, so that a leader can be killed alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.bench.peers.kafka_broker import READY, format_disk, java_command, start_broker
from e2e.bench.peers.peer import ask
from e2e.bench.peers.servers import end, until_ready
from tools.kafka import fetch
from tools.ports import free_ports

CONTROLLER: Final = 100
PROBE: Final = fetch.HERE / "Probe.java"
BATCH_BYTES: Final = 131_072
LINGER_MS: Final = 5


@dataclass(frozen=True, slots=True)
class Kafka:
    """Kafka at the version that `tools/kafka/broker/pom.xml` names."""

    name: str = "Kafka"
    settings: str = (
        "acks=all; single: linger.ms=0; bulk: batch.size=131072, linger.ms=5, buffer.memory=64 MiB; flushed: "
        "flush.messages=1; two copies: 2 replicas, min.insync.replicas=2; gap: flushed, 3 replicas, "
        "min.insync.replicas=2, because with 2 replicas a dead one stops the partition"
    )
    bulk: Sequence[str] = (str(BATCH_BYTES), str(LINGER_MS))
    servers: int = 2

    @property
    def version(self) -> str:
        """The version, from the name of the jar."""
        jar = next(fetch.BROKER.glob("kafka_2.13-*.jar"))
        return jar.stem.partition("-")[2]

    @asynccontextmanager
    async def cluster(self, directory: Path, servers: int, *, flush: bool) -> AsyncIterator[KafkaCluster]:
        """Run a cluster. Flushes are a setting of a topic in Kafka."""
        running: dict[str, asyncio.subprocess.Process] = {}
        control, *ports = free_ports(servers + 1)
        async with AsyncExitStack() as stack:
            for number, port in {CONTROLLER: control, **dict(enumerate(ports, 1))}.items():
                file, log = _settings_file(directory, number, port, control), directory / f"{number}.log"
                await format_disk(file, log)
                process = await start_broker(file, log, heap="256m" if number == CONTROLLER else "1g")
                stack.push_async_callback(end, process)
                running[str(number)] = process
            for name, process in running.items():
                await until_ready(f"Kafka's server {name}", process, directory / f"{name}.log", READY)
            addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
            yield KafkaCluster(addresses, running, flush)


def _settings_file(directory: Path, number: int, port: int, control: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    is_controller = number == CONTROLLER
    settings = {
        "process.roles": "controller" if is_controller else "broker",
        "node.id": str(number),
        "log.dirs": str(directory / str(number)),
        "listeners": f"{'CONTROLLER' if is_controller else 'PLAINTEXT'}://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{control}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "auto.create.topics.enable": "false",
    }
    file = directory / f"{number}.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return file


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """A running cluster. Servers are named by their numbers."""

    addresses: str
    running: dict[str, asyncio.subprocess.Process]
    flush: bool

    async def create(self, topic: str, copies: int) -> str:
        """Make a topic with one partition."""
        answer = await ask(self.client("create", topic, str(copies), "2", str(self.flush).lower()))
        return str(answer["leader"])

    def client(self, *arguments: str) -> list[str]:
        """Java compiles the client when it starts it."""
        return java_command(str(PROBE), self.addresses, *arguments, heap="512m")

    async def kill(self, server: str) -> None:
        """Kill a broker."""
        self.running[server].kill()
        await self.running[server].wait()
