"""Alarms for many sleepers over one timer of the event loop.

A client may have thousands of partitions, and most of them change the time of their alarm before it comes.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Sleeper = TypeVar("Sleeper")


class Alarms(Generic[Sleeper]):
    """Wakes each sleeper once at the earliest time that it asked for.

    A later request for a later time changes nothing, and a request cannot be withdrawn. A sleeper that is woken checks
    whether it has something to do, and may ask again.

    Args:
        wake: Called with the sleeper, whose request is then forgotten. It may ask again at once.
        failed: Called with an exception that `wake` raised. The other sleepers are woken all the same.
    """

    def __init__(self, wake: Callable[[Sleeper], None], failed: Callable[[BaseException], Any]) -> None:
        self._wake = wake
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._wishes: dict[Sleeper, float] = {}
        self._heap: list[tuple[float, int, Sleeper]] = []
        self._count = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def set(self, sleeper: Sleeper, at: float) -> None:
        """Wake the sleeper at `at`, in seconds of the monotonic clock, unless it already asked for an earlier time."""
        wish = self._wishes.get(sleeper)
        if wish is not None and wish <= at:
            return
        self._wishes[sleeper] = at
        heapq.heappush(self._heap, (at, next(self._count), sleeper))
        self._arm()

    def cancel(self) -> None:
        """Forget all requests."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()
        self._wishes.clear()

    def _arm(self) -> None:
        if not self._heap:
            return
        at = self._heap[0][0]
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self._timer = None
        try:
            self._wake_due()
        except Exception as exc:
            self._failed(exc)
        finally:
            self._arm()

    def _wake_due(self) -> None:
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now:
            at, _, sleeper = heapq.heappop(self._heap)
            if self._wishes.get(sleeper) == at:  # otherwise an earlier time took its place
                del self._wishes[sleeper]
                self._wake(sleeper)
