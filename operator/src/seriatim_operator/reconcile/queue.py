"""The work queue: one pass at a time for each key, many keys side by side.

A key that is added while it waits is there once; one that is added while it is worked on runs once more afterwards. A
pass that fails comes again after a pause that doubles; one that asks for it comes again at its time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field

import structlog

FIRST_PAUSE_S = 0.2
LAST_PAUSE_S = 60.0
WORKERS = 4
"""Passes at once: they wait for others most of the time."""

_log = structlog.get_logger(__name__)


@dataclass(order=True, slots=True)
class _Due:
    at_s: float
    number: int
    key: Hashable = field(compare=False)


class WorkQueue:
    """Runs `work(key)` for what was added.

    Args:
        work: One pass; returns after how many seconds to come again, or None.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, work: Callable[[Hashable], Awaitable[float | None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._work = work
        self._clock = clock
        self._due: list[_Due] = []
        self._due_at: dict[Hashable, float] = {}
        self._numbers = itertools.count()
        self._running: dict[Hashable, float] = {}
        self._again: set[Hashable] = set()
        self._failures: dict[Hashable, int] = {}
        self._changed = asyncio.Event()

    def add(self, key: Hashable, after_s: float = 0.0) -> None:
        """Have a key worked on, at once or later; the earlier of two times counts."""
        if key in self._running and after_s <= 0:
            self._again.add(key)
            return
        at_s = self._clock() + after_s
        if self._due_at.get(key, float("inf")) <= at_s:
            return
        self._due_at[key] = at_s
        heapq.heappush(self._due, _Due(at_s, next(self._numbers), key))
        self._changed.set()

    def forget(self, key: Hashable) -> None:
        """What the key stands for is gone."""
        self._due_at.pop(key, None)
        self._failures.pop(key, None)
        self._again.discard(key)

    @property
    def depth(self) -> int:
        """Keys that wait, due or not."""
        return len(self._due_at)

    def oldest_s(self) -> float:
        """For how long the pass that has run longest runs; 0 if none does. A probe fails when it grows."""
        return max((self._clock() - began_s for began_s in self._running.values()), default=0.0)

    def running(self) -> dict[Hashable, float]:
        """The passes under way and when they began, by the clock."""
        return dict(self._running)

    async def run(self) -> None:
        """Work until cancelled; a pass under way is cancelled too."""
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(self._worker(), name=f"reconcile worker {number}")

    async def _worker(self) -> None:
        while True:
            key = await self._next()
            again_s: float | None = None
            try:
                again_s = await self._work(key)
                self._failures.pop(key, None)
            except (asyncio.CancelledError, AssertionError):
                raise  # the end, or a mistake of ours: the process ends, and another begins with fresh eyes
            except Exception as exc:
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                again_s = min(FIRST_PAUSE_S * 2 ** (failures - 1), LAST_PAUSE_S)
                _log.warning("reconcile_failed", key=str(key), again_s=again_s, error=repr(exc))
            finally:
                self._running.pop(key, None)
            if key in self._again:
                self._again.discard(key)
                again_s = 0.0 if key not in self._failures else again_s
            if again_s is not None:
                self.add(key, again_s)

    async def _next(self) -> Hashable:
        while True:
            now_s = self._clock()
            while self._due and (entry := self._due[0]).at_s <= now_s:
                heapq.heappop(self._due)
                if self._due_at.get(entry.key) != entry.at_s:
                    continue  # an earlier time took its place
                if entry.key in self._running:
                    del self._due_at[entry.key]
                    self._again.add(entry.key)
                    continue
                del self._due_at[entry.key]
                self._running[entry.key] = now_s
                self._changed.set()  # another worker may find the next one due
                return entry.key
            self._changed.clear()
            pause_s = self._due[0].at_s - now_s if self._due else None
            try:
                await asyncio.wait_for(self._changed.wait(), pause_s)
            except TimeoutError:
                continue
