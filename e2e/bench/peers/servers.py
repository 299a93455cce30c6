"""Runs other projects' servers beside ours: they start with a log, show when they are ready, and end with the
benchmark.

If this process dies, the kernel ends them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from seriatim_local.processes import child

from e2e.bench.program import NotMeasuredError

CHILD: Final = str(Path(child.__file__).resolve())

START_DEADLINE_S: Final = 120.0
END_DEADLINE_S: Final = 30.0
LOOK_S: Final = 0.1


class ServerError(NotMeasuredError):
    """A server did not start. The text has the end of its output."""


def bound(*command: str) -> list[str]:
    """A command line for this program, which the kernel ends if this process dies."""
    return [sys.executable, "-I", "-S", CHILD, str(os.getpid()), *command]


async def start(log: Path, *command: str) -> asyncio.subprocess.Process:
    """Start a program whose output goes to the end of a log."""
    with log.open("ab") as out:
        return await asyncio.create_subprocess_exec(
            *bound(*command),
            stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip


async def until_ready(name: str, running: asyncio.subprocess.Process, log: Path, says: bytes) -> None:
    """Wait until the log of a server has these words.

    Raises:
        ServerError: It ended, or did not say so within `START_DEADLINE_S`.
    """
    until = time.monotonic() + START_DEADLINE_S
    while not _has(log, says):
        if running.returncode is not None:
            raise ServerError(f"{name} ended with status {running.returncode}: {tail(log)}")
        if time.monotonic() >= until:
            raise ServerError(f"{name} did not start within {START_DEADLINE_S:g} s: {tail(log)}")
        await asyncio.sleep(LOOK_S)


async def until_done(name: str, running: asyncio.subprocess.Process, log: Path) -> None:
    """Wait until a program ends by itself, and end it if it does not within `START_DEADLINE_S`.

    Raises:
        ServerError: It ended with an error.
        TimeoutError: It did not end.
    """
    try:
        status = await asyncio.wait_for(running.wait(), START_DEADLINE_S)
    finally:
        await end(running)
    if status != 0:
        raise ServerError(f"{name} ended with status {status}: {tail(log)}")


async def end(running: asyncio.subprocess.Process) -> None:
    """Ask a server to end, and kill it if it has not after `END_DEADLINE_S`."""
    if running.returncode is not None:
        return
    _signal(running, signal.SIGTERM)
    try:
        await asyncio.wait_for(running.wait(), END_DEADLINE_S)
    except TimeoutError:
        _signal(running, signal.SIGKILL)
        await running.wait()


def _signal(running: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal, whether the process still runs or not.

    `Process.terminate` takes the exit status of a process that has just ended. Then asyncio finds no such process, says
    so on stderr (`Unknown child process pid`), and reports 255.
    """
    with suppress(ProcessLookupError):
        os.kill(running.pid, number)


def _has(log: Path, says: bytes) -> bool:
    return says in log.read_bytes()


def tail(log: Path) -> str:
    """The end of a log."""
    return log.read_text(errors="replace")[-1500:].strip()
