"""Runs one Kafka broker on this machine. `KAFKA=1 make bench-spark` uses it to compare Spark's source of Kafka with
ours.

`tools/kafka` fetches its programs and the jars that Spark loads. Nothing else in the project needs them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

from seriatim_local import child

from e2e.bench.program import NotMeasuredError
from tools.check_java import java
from tools.kafka import fetch
from tools.ports import free_ports

SPARK: Final = "4.2"
"""The version of Spark that fits the source of Kafka which `tools/kafka/connector/pom.xml` names."""

CHILD: Final = str(Path(child.__file__).resolve())
HEAP: Final = "1g"
"""The same size as in Kafka's own start script."""

CLUSTER_ID: Final = "c2VyaWF0aW0tYmVuY2gxMA"
START_DEADLINE_S: Final = 120.0
END_DEADLINE_S: Final = 30.0
LOOK_S: Final = 0.1
READY: Final = b"Kafka Server started"


class KafkaError(NotMeasuredError):
    """Kafka did not start. The text has the end of its output."""


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
        KafkaError: It did not start.
    """
    address, file = _configured(directory, partitions)
    log = directory / "kafka.log"
    formatting = await _start(
        log, "kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(file)
    )
    try:
        status = await asyncio.wait_for(formatting.wait(), START_DEADLINE_S)
    finally:
        await _end(formatting)
    if status != 0:
        raise KafkaError(f"Kafka's storage tool ended with status {status}: {_tail(log)}")
    running = await _start(log, "kafka.Kafka", str(file))
    try:
        await _ready(running, log)
        yield address
    finally:
        await _end(running)


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


async def _start(log: Path, module: str, *arguments: str) -> asyncio.subprocess.Process:
    program = java()
    assert program is not None, "make looked for Java before"
    with log.open("ab") as out:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", CHILD, str(os.getpid()),
            program, f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseG1GC", "-Dorg.apache.logging.log4j.level=INFO",
            "-cp", f"{fetch.BROKER}/*", module, *arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip


async def _ready(running: asyncio.subprocess.Process, log: Path) -> None:
    until = time.monotonic() + START_DEADLINE_S
    while not _says_ready(log):
        if running.returncode is not None:
            raise KafkaError(f"Kafka ended with status {running.returncode}: {_tail(log)}")
        if time.monotonic() >= until:
            raise KafkaError(f"Kafka did not start within {START_DEADLINE_S:g} s: {_tail(log)}")
        await asyncio.sleep(LOOK_S)


async def _end(running: asyncio.subprocess.Process) -> None:
    if running.returncode is not None:
        return
    running.terminate()
    try:
        await asyncio.wait_for(running.wait(), END_DEADLINE_S)
    except TimeoutError:
        running.kill()
        await running.wait()


def _says_ready(log: Path) -> bool:
    return READY in log.read_bytes()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1500:].strip()
