"""The thread that flushes the write-ahead log, because the event loop must not wait for a disk."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable


class FlushThread:
    """One thread. `start` begins it, and `close` ends it."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[int, int], None]) -> None:
        """Begin the thread. It calls `work(ticket, sequence)` for each `put`; `work` must raise nothing."""
        self._thread = threading.Thread(target=self._run, args=(work,), name="seriatim-flusher", daemon=True)
        self._thread.start()

    def put(self, ticket: int, sequence: int) -> None:
        """Have the thread call `work(ticket, sequence)`, after the calls for earlier puts."""
        self._queue.put((ticket, sequence))

    async def close(self) -> None:
        """Let the thread do the work that was put, and wait for its end."""
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
            self._thread = None

    def _run(self, work: Callable[[int, int], None]) -> None:
        while (item := self._queue.get()) is not None:
            work(*item)
