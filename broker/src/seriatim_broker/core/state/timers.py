"""When the core must be woken, and which part of it."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

from seriatim_api.ids import PartitionId

from ..values.kinds import TimerKind
from ..values.states import State


class Timer(NamedTuple):
    """When to wake which part of the core. It is a hint: the part checks its own deadlines when it is called."""

    at_us: int
    serial: int
    partition: PartitionId | None
    kind: TimerKind
    detail: str | int


@dataclass(slots=True, eq=False)
class TimerQueue(State):
    """The timers of a broker, earliest first."""

    heap: list[Timer] = field(default_factory=list)  # those of one time fire in the order of their serial numbers
    # what is polled -> the next time
    polls: dict[tuple[TimerKind, PartitionId, str | int], int] = field(default_factory=dict)

    def due(self, now_us: int) -> Timer | None:
        """Take the earliest timer that is due; None if none is."""
        if not self.heap or self.heap[0].at_us > now_us:
            return None
        timer = heapq.heappop(self.heap)
        if timer.partition is not None:
            key = (timer.kind, timer.partition, timer.detail)
            if self.polls.get(key) == timer.at_us:
                del self.polls[key]
        return timer
