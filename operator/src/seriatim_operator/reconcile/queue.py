"""The work queue: one pass at a time for each key, and 4 passes of different keys at once.

A key that is added twice while it waits gets one pass. A key that is added during its pass gets one more pass. If a
pass fails, the key comes again after a pause of 0.2 s, which doubles at each failure up to 60 s. If a pass returns a
time, the key comes again at that time.
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
"""Passes at once. Most of the time they wait for the API or for brokers."""

OnPass = Callable[[Hashable, float, BaseException | None], None]

_log = structlog.get_logger(__name__)


@dataclass(order=True, slots=True)
class _Due:
    at_s: float
    number: int
    key: Hashable = field(compare=False)


class WorkQueue:
    """Runs `work(key)` for each key that was added.

    Args:
        work: One pass. It returns after how many seconds the key comes again, or None.
        clock: Returns monotonic seconds.
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
        self._on_pass: OnPass = lambda key, took_s, error: None

    def on_pass(self, told: OnPass) -> None:
        """Report each pass that ended from now on: its key, the seconds that it took, and its error if it failed."""
        self._on_pass = told

    def add(self, key: Hashable, after_s: float = 0.0) -> None:
        """Add a key, due after a number of seconds. If the key waits already, the earlier time counts."""
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
        """Remove a key, because its object is gone. A pass under way continues."""
        self._due_at.pop(key, None)
        self._failures.pop(key, None)
        self._again.discard(key)

    @property
    def depth(self) -> int:
        """How many keys wait, due or not."""
        return len(self._due_at)

    def oldest_s(self) -> float:
        """Seconds since the oldest pass under way began; 0 if none runs. The health probe fails if it is over 300 s."""
        return max((self._clock() - began_s for began_s in self._running.values()), default=0.0)

    def running(self) -> dict[Hashable, float]:
        """The passes under way, and when each began by the clock."""
        return dict(self._running)

    async def run(self) -> None:
        """Run passes until cancelled, which also cancels the passes under way.

        Raises:
            ExceptionGroup: An assertion in a pass failed. The process must end.
        """
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
                self._on_pass(key, self._clock() - self._running[key], None)
            except AssertionError:
                raise  # our code has a mistake: the process ends, and a new one starts
            except (Exception, asyncio.CancelledError) as exc:
                if _is_cancelled():
                    raise
                # A library may cancel what the pass awaits, and not the pass. Without this, the worker would end, and
                # with the last worker the process.
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                again_s = min(FIRST_PAUSE_S * 2 ** (failures - 1), LAST_PAUSE_S)
                self._on_pass(key, self._clock() - self._running[key], exc)
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
                    continue  # the key has another time now
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


def _is_cancelled() -> bool:
    """Whether the current task is being cancelled, and not only something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
