"""A task in the background that watches something for a producer or a consumer, until it is closed."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class Watch(ABC):
    """Runs `_run` from now on.

    Args:
        name: The task's name.
        failed: Called with an unexpected exception, which ends the watch.
    """

    def __init__(self, name: str, failed: Callable[[BaseException], Any]) -> None:
        self._failed = failed
        self._task = asyncio.create_task(self._run(), name=name)
        self._task.add_done_callback(self._ended)

    @abstractmethod
    async def _run(self) -> None:
        """Watch."""

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def stop(self) -> None:
        """End the watch."""
        self._task.cancel()

    async def close(self) -> None:
        """End the watch, and wait until its task has ended."""
        self.stop()
        await asyncio.gather(self._task, return_exceptions=True)
