"""Turns: decides when each partition of a producer is served.

There is no task for a partition and none for a message. Partitions with something to do are queued, and one callback
at the end of a turn of the event loop serves them all. Partitions that wait for a time share two timers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from seriatim._runtime.alarms import Alarms
from seriatim._runtime.failure import Failure, entry


class Served(Protocol):
    """A partition, as its turns see it."""

    is_ready: bool

    def pump(self) -> None:
        """Serve the partition: it is its turn."""

    def timer_due(self) -> None:
        """The time for which its core asked has come."""


class Turns:
    """The turns of one producer's partitions.

    Args:
        failure: Gets an exception that a turn raises.
    """

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Served] = deque()
        self._turn_is_due = False
        self._lingering: Alarms[Served] = Alarms(self.make_ready, failure.happened)
        self._core_timers: Alarms[Served] = Alarms(lambda partition: partition.timer_due(), failure.happened)

    def make_ready(self, partition: Served) -> None:
        """Serve the partition at the end of this turn of the loop: it may have a batch to cut."""
        if not partition.is_ready:
            partition.is_ready = True
            self._ready.append(partition)
            if not self._turn_is_due:
                self._turn_is_due = True
                self._loop.call_soon(self._turn)

    def linger(self, partition: Served, until: float) -> None:
        """Make the partition ready at `until`, in seconds of the monotonic clock."""
        self._lingering.set(partition, until)

    def wake_at(self, partition: Served, at: float) -> None:
        """Call the partition's `timer_due` at `at`, in seconds of the monotonic clock."""
        self._core_timers.set(partition, at)

    def wake_core(self, partition: Served, at_us: int | None) -> None:
        """Call the partition's `timer_due` at `at_us`, in µs of the monotonic clock; None: do nothing."""
        if at_us is not None:
            self._core_timers.set(partition, at_us / 1e6)

    def cancel(self) -> None:
        """Cancel both timers."""
        self._lingering.cancel()
        self._core_timers.cancel()

    @entry
    def _turn(self) -> None:
        """Serve the partitions that are ready. None of them raises, because `pump` is an entry."""
        self._turn_is_due = False
        for _ in range(len(self._ready)):
            partition = self._ready.popleft()
            partition.is_ready = False
            partition.pump()
