"""Messages on which consumers failed, one by one, in memory until they are read for their next attempt.

A message that failed comes again after its delay, mostly alone. Its batch is no longer in memory by then if consumers
are fast. Without this cache, each attempt would read a batch of up to 1 MiB from the disk to take one message out.

It is a cache only: a message that is not here is read from the disk. Messages below the commit never change, so what is
kept is never out of date.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from seriatim_api.ids import PartitionId

CACHE_BYTES_MAX: Final = 16 << 20
OVERHEAD_BYTES: Final = 400
"""An entry takes about this many bytes beside its message: its key, its time, and the places in the table."""

DELAY_S_MAX: Final = 600.0
"""Messages with a longer delay are not kept: one read of the disk in ten minutes costs nothing."""

GRACE_S: Final = 60.0
"""A message is kept for this long after its delay, or after it was read for an attempt."""

SWEEP_S: Final = 10.0


class RetryCache:
    """Bodies of single messages on which consumers failed, by partition and offset. The owner calls `close`.

    Args:
        bytes_max: Memory for all of them. The one that was not used for longest goes first.
        is_needed: Whether this broker serves a consumer group with order by key on a partition. If it does not, the
            messages of the partition are let go within 10 s.
    """

    def __init__(self, bytes_max: int, is_needed: Callable[[PartitionId], bool]) -> None:
        self._bytes_max = bytes_max
        self._is_needed = is_needed
        self._kept: OrderedDict[tuple[PartitionId, int], tuple[bytes, float]] = OrderedDict()  # -> (body, kept until)
        self._timer: asyncio.TimerHandle | None = None
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def is_wanted(self, partition: PartitionId, offset: int) -> bool:
        """Whether a consumer failed on the message, and it could not be kept because it was not in memory."""
        return self._kept.get((partition, offset), (None, 0.0))[0] == b""

    def find(self, partition: PartitionId, offset: int) -> bytes | None:
        """The message, as a body of its own; None if it is not kept."""
        if not self._kept:
            return None
        place = (partition, offset)
        found = self._kept.get(place)
        if found is None or not found[0]:
            return None
        self._kept[place] = (found[0], max(found[1], _now() + GRACE_S))
        self._kept.move_to_end(place)
        return found[0]

    def put(self, partition: PartitionId, offset: int, body: bytes, after_s: float) -> None:
        """Keep a message that comes again after this many seconds; b"": keep it when it is read for that."""
        place, until = (partition, offset), _now() + after_s + GRACE_S
        before = self._kept.get(place)
        if before is not None:
            self._drop(place)
            body, until = body or before[0], max(until, before[1])
        if after_s > DELAY_S_MAX or len(body) + OVERHEAD_BYTES > self._bytes_max:
            return
        self._kept[place] = (body, until)
        self.size_bytes += len(body) + OVERHEAD_BYTES
        while self.size_bytes > self._bytes_max:
            self._drop(next(iter(self._kept)))
        if self._timer is None:
            self._set_timer()

    def close(self) -> None:
        """Let go of everything."""
        self._kept.clear()
        self.size_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop(self, place: tuple[PartitionId, int]) -> None:
        self.size_bytes -= len(self._kept.pop(place)[0]) + OVERHEAD_BYTES

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Let go of messages whose time is over, and of those of partitions that this broker does not serve any more.

        Nothing shows when a message is acknowledged, a consumer group is deleted, or a partition moves. Without the
        sweep, messages would stay until others take their place.
        """
        self._timer = None
        now = _now()
        is_needed = {partition: self._is_needed(partition) for partition in {place[0] for place in self._kept}}
        for place in [place for place, (_, until) in self._kept.items() if until <= now or not is_needed[place[0]]]:
            self._drop(place)
        if self._kept:
            self._set_timer()


def _now() -> float:
    return asyncio.get_running_loop().time()
