"""When the core has to be woken, and what for."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from seriatim_api.ids import PartitionId

from ..values.kinds import TimerKind
from ..values.states import State


class Timer(NamedTuple):
    """When to wake which part. A hint: the part that wakes looks at its own deadlines."""

    at_us: int
    serial: int
    partition: PartitionId | None
    kind: TimerKind
    detail: str | int


class TimerQueue(State):
    """The timers of a broker, earliest first."""

    __slots__ = ("heap", "polls")

    def __init__(self) -> None:
        self.heap: list[Timer] = []
        self.polls: dict[tuple[TimerKind, PartitionId, str | int], int] = {}  # what is polled -> when next

    def push(self, timer: Timer) -> None:
        """Wake at that time; timers of one time fire in the order of their serial numbers."""
        heapq.heappush(self.heap, timer)

    def is_polled_earlier(self, key: tuple[TimerKind, PartitionId, str | int], at_us: int) -> bool:
        """Whether a poll of the same thing is due at that time or before; if not, that time is noted for it."""
        if self.polls.get(key, at_us + 1) <= at_us:
            return True
        self.polls[key] = at_us
        return False

    def due(self, now_us: int) -> Timer | None:
        """Take the next timer whose time has come; None if there is none."""
        if not self.heap or self.heap[0].at_us > now_us:
            return None
        timer = heapq.heappop(self.heap)
        if timer.partition is not None:
            key = (timer.kind, timer.partition, timer.detail)
            if self.polls.get(key) == timer.at_us:
                del self.polls[key]
        return timer
