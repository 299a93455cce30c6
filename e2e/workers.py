"""Child processes that talk with their parent in JSON lines: the producers and consumers of a run.

The parent uses `Worker`, the child uses `Parent`. A child ends when its stdin ends, so it does not outlive the process
that started it. Each program decides what its lines mean.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

LINE_SIZE_BYTES_MAX: Final = 4 << 20
"""The longest line in either direction."""

END_GRACE_S: Final = 3.0
"""The time that a child gets to end by itself after its stdin is closed."""

_TAIL_BYTES: Final = 2000


class WorkerError(RuntimeError):
    """A child ended too early, or did not say a line in time. The message has the end of its log."""


class Worker:
    """A child process, as its parent sees it. Make one with `start_worker`.

    Attributes:
        latest: The last line of each kind (`k`), as plain data.
    """

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, log: Path, on_line: Callable[[dict[str, Any]], None]
    ) -> None:
        self.name = name
        self.latest: dict[str, dict[str, Any]] = {}
        self._process = process
        self._log = log
        self._on_line = on_line
        self._changed = asyncio.Condition()
        self._ended = False

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    async def read(self) -> None:
        """Read the child's lines until it has ended. The owner runs this as a task."""
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                message = json.loads(line)
                self.latest[message["k"]] = message
                self._on_line(message)
                async with self._changed:
                    self._changed.notify_all()
        finally:
            self._ended = True
            async with self._changed:
                self._changed.notify_all()

    def tell(self, **message: object) -> None:
        """Send the child a line. If the child has ended, nothing happens."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def wait_for(self, kind: str, deadline_s: float | None) -> dict[str, Any]:
        """Wait for a line of that kind, and return it.

        Raises:
            WorkerError: The worker ended without such a line, or wrote none within `deadline_s` seconds (None: no
                limit).
        """
        try:
            async with asyncio.timeout(deadline_s), self._changed:
                await self._changed.wait_for(lambda: kind in self.latest or self._ended)
        except TimeoutError:
            raise WorkerError(f"{self.name} did not say {kind!r} within {deadline_s:g} s; {self._tail()}") from None
        if kind not in self.latest:
            raise WorkerError(f"{self.name} ended (status {self._process.returncode}); {self._tail()}")
        return self.latest[kind]

    def send_signal(self, number: signal.Signals) -> None:
        """Send the child a signal. If the child has ended, nothing happens."""
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def wait_ended(self) -> None:
        """Wait until the child has ended, and all its lines are read."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._ended)

    @property
    def has_ended(self) -> bool:
        """Whether the child has ended, and all its lines are read."""
        return self._ended

    async def status(self) -> int:
        """Wait until the child has ended. Return its exit status."""
        return await self._process.wait()

    async def end(self) -> None:
        """Close the child's stdin. If the child does not end, send SIGTERM, then SIGKILL, each after `END_GRACE_S`."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        for step in (None, signal.SIGTERM, signal.SIGKILL):
            if step is not None and self._process.returncode is None:
                self._process.send_signal(step)
            try:
                async with asyncio.timeout(END_GRACE_S):
                    await self._process.wait()
                    return
            except TimeoutError:
                continue

    def _tail(self) -> str:
        return f"the end of {self._log}:\n{self._log.read_bytes()[-_TAIL_BYTES:].decode(errors='replace').strip()}"


@asynccontextmanager
async def start_worker(
    name: str,
    module: str,
    arguments: Sequence[str],
    *,
    log: Path,
    on_line: Callable[[dict[str, Any]], None] = lambda _line: None,
) -> AsyncIterator[Worker]:
    """Run `python -m module arguments...` for as long as the block lasts.

    Args:
        name: The worker's name in messages.
        module: A program that uses `Parent`.
        arguments: The arguments of its command line.
        log: The file to which its stderr is appended.
        on_line: Called in the event loop with each line that the child says.
    """
    with log.open("ab") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=stderr,
            limit=LINE_SIZE_BYTES_MAX,
            start_new_session=True,  # so that Ctrl-C at the terminal reaches only the parent
        )  # fmt: skip
    worker = Worker(name, process, log, on_line)
    reading = asyncio.create_task(worker.read(), name=f"lines of {name}")
    try:
        yield worker
    finally:
        await worker.end()
        await reading


class Parent:
    """The parent, as its child sees it: it takes lines, and gives commands."""

    def __init__(self, on_line: Callable[[dict[str, Any]], None]) -> None:
        self._on_line = on_line
        self.gone = asyncio.Event()

    async def listen(self) -> None:
        """Take commands until the parent closes the pipe. The owner runs this as a task."""
        reader = asyncio.StreamReader(limit=LINE_SIZE_BYTES_MAX)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer
        )
        while line := await reader.readline():
            self._on_line(json.loads(line))
        self.gone.set()

    def say(self, kind: str, **message: object) -> None:
        """Say a line. This may block, but only for a moment, because lines are short and the parent always reads."""
        print(json.dumps({"k": kind, **message}), flush=True)  # stdout is the channel


def processes_that_name(text: str) -> list[str]:
    """Return the command lines of all processes that contain `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in line:
                found.append(line)
    return found
