"""Drivers of Spark as processes, with all processes that they start: Java and Python workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from e2e.spark_faults.driver import READY

START_DEADLINE_S: Final = 120.0
LINE_BYTES_MAX: Final = 1 << 20
WORKER: Final = b"pyspark.daemon"


class DriverEndedError(RuntimeError):
    """The process has ended although it was not told to."""


class Driver:
    """One process of `e2e.spark_faults.driver`. It leads a session that contains all processes that it starts."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, directory: Path, log: Path) -> Driver:
        """Start a driver, and do not wait until it takes jobs."""
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "e2e.spark_faults.driver", str(directory), stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, stderr=file, start_new_session=True, limit=LINE_BYTES_MAX,
            )  # fmt: skip
        return cls(process)

    async def wait_ready(self) -> None:
        """Wait until the driver takes jobs.

        Raises:
            DriverEndedError: The driver has ended.
        """
        async with asyncio.timeout(START_DEADLINE_S):
            while await self._line() != READY:
                pass

    def give(self, job: Mapping[str, Any]) -> None:
        """Give the driver a job. `answer` shows when the job is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")

    async def answer(self) -> str | None:
        """Return the error that ended the job; None if it succeeded.

        Raises:
            DriverEndedError: The driver has ended.
        """
        while True:
            line = await self._line()
            if line.startswith("{"):
                error: str | None = json.loads(line)["error"]
                return error

    async def _line(self) -> str:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise DriverEndedError(f"driver {self.pid} has ended")
        return line.decode().strip()

    @property
    def pid(self) -> int:
        """The process id, which is also the number of its session."""
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send the signal to all processes of the session."""
        for pid in session_of(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def kill(self) -> None:
        """Send SIGKILL to all processes of the session."""
        self.signal(signal.SIGKILL)
        await self._process.wait()


def session_of(session_id: int) -> list[int]:
    """Return the processes of a session."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if _stat(pid)[1] == session_id]


def workers_of(session_id: int) -> list[int]:
    """Return the Python workers of a driver that leads a session: processes that Spark's daemon has forked."""
    daemons = {pid for pid in session_of(session_id) if WORKER in _command(pid)}
    return sorted(pid for pid in daemons if _stat(pid)[0] in daemons)


def _stat(pid: int) -> tuple[int, int]:
    """The parent of a process, and its session."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # the process has ended meanwhile
        return 0, 0
    return int(fields[1]), int(fields[3])


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
