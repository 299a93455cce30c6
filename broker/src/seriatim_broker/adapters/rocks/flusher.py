"""The thread in which the write-ahead log is flushed: the event loop must not wait for a disk."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable


class FlushThread:
    """One thread, begun with the first flush and ended by `close`."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[int, int], None]) -> None:
        """Begin; `work` must raise nothing."""
        self._thread = threading.Thread(target=self._run, args=(work,), name="seriatim-flusher", daemon=True)
        self._thread.start()

    def put(self, ticket: int, sequence: int) -> None:
        """Have `work(ticket, sequence)` done, after those put before."""
        self._queue.put((ticket, sequence))

    async def close(self) -> None:
        """Wait for the thread to end."""
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
            self._thread = None

    def _run(self, work: Callable[[int, int], None]) -> None:
        while (item := self._queue.get()) is not None:
            work(*item)
