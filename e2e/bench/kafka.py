"""One Kafka broker on this machine, for `KAFKA=1 make bench-spark`: Spark's source of Kafka is compared with ours.

Its programs and the jars that Spark loads are those of `tools/kafka`. Nothing else of the project needs them.
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
"""The Spark for which there is the source of Kafka that `tools/kafka/connector/pom.xml` names."""

CHILD: Final = str(Path(child.__file__).resolve())
HEAP: Final = "1g"
"""As Kafka's own start script has it."""

CLUSTER_ID: Final = "c2VyaWF0aW0tYmVuY2gxMA"
START_DEADLINE_S: Final = 120.0
END_DEADLINE_S: Final = 30.0
LOOK_S: Final = 0.1
READY: Final = b"Kafka Server started"


class KafkaError(NotMeasuredError):
    """Kafka did not start; the text has the end of what it printed."""


def fits_spark() -> bool:
    """Whether the pyspark of this environment can load that source."""
    return version("pyspark").startswith(f"{SPARK}.")


def connector_jars() -> str:
    """What Spark must load, as its setting `spark.jars` wants it."""
    return ",".join(sorted(str(path) for path in fetch.CONNECTOR.glob("*.jar")))


@asynccontextmanager
async def broker(directory: Path, partitions: int) -> AsyncIterator[str]:
    """Run a broker, which is its own controller, and give its address.

    It ends with the block, and the kernel ends it with this process.

    Args:
        directory: A new one, for its data and its log.
        partitions: Of a topic that is written first.

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
    """Its address, and the file with its settings; the directory is made."""
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
