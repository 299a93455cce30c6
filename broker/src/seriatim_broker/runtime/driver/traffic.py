"""Counts what this broker takes from producers, by partition. Balance asks for it.

For each batch the hot path adds two numbers. A partition without traffic has no entry. A question ends a counting
window that is at least 10 s old. So nothing runs on a timer, and old counts are forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from seriatim_api.ids import PartitionId

from ...interfaces.clock import Clock

WINDOW_S = 10.0
"""A question ends a window that is at least this old. So a frequent question gets up to twice this time."""

STALE_S = 120.0
"""A window that was counted for longer says nothing about the present: it is given out once, and then forgotten."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Batches and bytes by partition, and the seconds over which they were counted."""

    seconds: float
    partitions: dict[PartitionId, tuple[int, int]]


MeasureTraffic = Callable[[str, float], Awaitable[Measured]]
"""`measure(broker, deadline_s)`: ask a broker what it took lately.

Raises (when awaited):
    SeriatimError: It did not answer.
"""


class Traffic:
    """The counters of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before: dict[PartitionId, list[int]] = {}
        self._now: dict[PartitionId, list[int]] = {}
        self._began_us = self._before_began_us = clock.monotonic_us()

    def add(self, partition: PartitionId, size_bytes: int) -> None:
        """Count a batch."""
        counted = self._now.get(partition)
        if counted is None:
            self._now[partition] = [1, size_bytes]
        else:
            counted[0] += 1
            counted[1] += size_bytes

    def measure(self) -> Measured:
        """The counts of this window and the one before."""
        now_us = self._clock.monotonic_us()
        partitions = {partition: (batches, size) for partition, (batches, size) in self._before.items()}
        for partition, (batches, size) in self._now.items():
            batches_before, size_before = partitions.get(partition, (0, 0))
            partitions[partition] = (batches_before + batches, size_before + size)
        measured = Measured((now_us - self._before_began_us) / 1e6, partitions)
        if now_us - self._began_us >= WINDOW_S * 1e6:
            is_stale = now_us - self._began_us >= STALE_S * 1e6
            self._before = {} if is_stale else self._now
            self._before_began_us = now_us if is_stale else self._began_us
            self._now, self._began_us = {}, now_us
        return measured
