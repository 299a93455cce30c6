"""Runs one Kafka broker on this machine. `KAFKA=1 make bench-spark` uses it to compare Spark's source of Kafka with
ours.

`tools/kafka` fetches its programs and the jars that Spark loads. Nothing else in the project needs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

from e2e.bench.peers import servers
from tools.check_java import java
from tools.kafka import fetch
from tools.ports import free_ports

SPARK: Final = "4.2"
"""The version of Spark that fits the source of Kafka which `tools/kafka/connector/pom.xml` names."""

HEAP: Final = "1g"
"""The same size as in Kafka's own start script."""

CLUSTER_ID: Final = "c2VyaWF0aW0tYmVuY2gxMA"
READY: Final = b"Kafka Server started"


def fits_spark() -> bool:
    """Whether the pyspark of this environment can load Spark's source of Kafka."""
    return version("pyspark").startswith(f"{SPARK}.")


def connector_jars() -> str:
    """Return the jars that Spark must load, in the form of its setting `spark.jars`."""
    return ",".join(sorted(str(path) for path in fetch.CONNECTOR.glob("*.jar")))


@asynccontextmanager
async def broker(directory: Path, partitions: int) -> AsyncIterator[str]:
    """Run a broker that is its own controller, and give its address.

    The broker ends with the block. If this process dies, the kernel ends the broker.

    Args:
        directory: A new directory, for its data and its log.
        partitions: The number of partitions of a topic that is made by its first write.

    Raises:
        ServerError: It did not start.
    """
    address, file = _configured(directory, partitions)
    log = directory / "kafka.log"
    await format_disk(file, log)
    running = await start_broker(file, log)
    try:
        await servers.until_ready("Kafka", running, log, READY)
        yield address
    finally:
        await servers.end(running)


async def format_disk(file: Path, log: Path) -> None:
    """Prepare the directory that a file with a server's settings names.

    Raises:
        ServerError: Kafka's tool ended with an error.
    """
    tool = ("kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(file))
    await servers.until_done("Kafka's storage tool", await servers.start(log, *java_command(*tool)), log)


async def start_broker(file: Path, log: Path, heap: str = HEAP) -> asyncio.subprocess.Process:
    """Start a server with the settings in a file."""
    return await servers.start(log, *java_command("kafka.Kafka", str(file), heap=heap))


def java_command(*arguments: str, heap: str = HEAP) -> list[str]:
    """A command that runs one of Kafka's programs, or a Java file that uses its classes."""
    program = java()
    assert program is not None, "make looked for Java before"
    options = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC", "-Dorg.apache.logging.log4j.level=INFO"]
    return [program, *options, "-cp", f"{fetch.BROKER}/*", *arguments]


def _configured(directory: Path, partitions: int) -> tuple[str, Path]:
    """Make the directory and the file with the settings. Return the broker's address and the file."""
    directory.mkdir(parents=True)
    port, control = free_ports(2)
    settings = {
        "process.roles": "broker,controller", "node.id": "1", "log.dirs": str(directory / "data"),
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER", "controller.quorum.voters": f"1@127.0.0.1:{control}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "num.partitions": str(partitions), "default.replication.factor": "1", "offsets.topic.replication.factor": "1",
    }  # fmt: skip
    file = directory / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return f"127.0.0.1:{port}", file
