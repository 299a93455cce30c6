"""What this broker takes from producers, counted by partition, for whoever wants to know what it took lately.

The hot path adds two numbers; a partition without traffic has no entry. Counting goes on in windows that change when
somebody asks, so nothing happens on a timer, and what was counted long ago is forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from seriatim_api.ids import PartitionId

from ..interfaces.clock import Clock

WINDOW_S = 10.0
"""A window that is younger goes on when somebody asks: who asks often gets figures of up to twice this."""

STALE_S = 120.0
"""A window that was counted for longer says nothing of lately: nobody has asked, and it is given out once only."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Batches and bytes by partition, and for how many seconds they were counted."""

    seconds: float
    partitions: dict[PartitionId, tuple[int, int]]


MeasureTraffic = Callable[[str, float], Awaitable[Measured]]
"""Asks a broker what it took lately, within so many seconds.

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
        """A batch has come."""
        counted = self._now.get(partition)
        if counted is None:
            self._now[partition] = [1, size_bytes]
        else:
            counted[0] += 1
            counted[1] += size_bytes

    def measure(self) -> Measured:
        """What was counted in the window before this one and in this one."""
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
