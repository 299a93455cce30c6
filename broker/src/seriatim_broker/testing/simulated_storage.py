"""A storage with the faults of a disk: flushes and reads take time, the disk is saturated or full, and bits flip.

It puts the asynchronous interface of the broker's storage over a `MemoryDisk`, which outlives the process. One flush
runs at a time, for all writes that were submitted before it began. If the process ends, `MemoryDisk.crash` decides
which of the unflushed writes are kept: a prefix of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from seriatim_api.errors import CorruptionError
from seriatim_api.ids import PartitionId

from seriatim_broker.core.values.log import Batch, DueRow, RecoveredPartition, StoredVolley, Write
from seriatim_broker.core.values.positions import BatchPlace, Measure

from .memory_disk import MemoryDisk
from .virtual_time import Timers


class SimulatedStorage:
    """The `interfaces.storage.Storage` of the process whose event loop is running.

    Args:
        disk: The disk.
        timers: The time of the disk, which continues while the process is frozen.
        flush_us: Draws the duration of the next flush, in microseconds.
        read_us: Draws the duration of the next read, in microseconds.

    Attributes:
        look_full: Says whether the disk has reached its reserve.
        queue_count_max: With more unflushed submits than this, the storage is saturated.
    """

    def __init__(
        self, disk: MemoryDisk, timers: Timers, flush_us: Callable[[], int], read_us: Callable[[], int]
    ) -> None:
        self.disk = disk
        self.look_full: Callable[[], bool] = lambda: False
        self.queue_count_max = 1_000
        self._timers = timers
        self._flush_us = flush_us
        self._read_us = read_us
        self._loop = asyncio.get_running_loop()
        self._report: Callable[[int], None] = lambda _ticket: None
        self._submitted = 0
        self._durable = 0
        self._flushing = False
        self._ended = False
        self._closing: asyncio.Event | None = None

    def recover(self) -> Iterator[RecoveredPartition]:
        """The data on the disk, partition by partition."""
        return iter(self.disk.recover())

    def submit(self, writes: Sequence[Write]) -> int:
        """Take writes. Returns their ticket."""
        assert not self._ended, "a closed storage takes no writes"
        self._submitted = self.disk.submit(writes)
        if not self._flushing:
            self._begin_flush()
        return self._submitted

    def on_durable(self, report: Callable[[int], None]) -> None:
        """Set the function that is called with the highest durable ticket."""
        self._report = report

    def _begin_flush(self) -> None:
        self._flushing = True
        self._timers.after(self._flush_us(), self._flushed, self._submitted)

    def _flushed(self, ticket: int) -> None:
        if self._ended:
            return
        self.disk.flush(ticket)
        self._durable = ticket
        self._flushing = False
        if self._submitted > ticket:
            self._begin_flush()
        elif self._closing is not None:
            self._closing.set()
        self._loop.call_soon(self._tell, ticket)

    def _tell(self, ticket: int) -> None:
        self._report(ticket)

    @property
    def durable_sequence(self) -> int:
        """How far the disk is durable."""
        return self.disk.durable_count

    @property
    def is_saturated(self) -> bool:
        """Whether new appends should be refused for the moment."""
        return self.disk.pending_count > self.queue_count_max

    def is_disk_full(self) -> bool:
        """Whether new appends must be refused."""
        return self.look_full()

    async def read(
        self,
        partition: PartitionId,
        segment_no: int,
        from_index: int,
        until_index: int,
        max_bytes: int,
        *,
        sequential: bool = False,
    ) -> list[Batch]:
        """Batches with indexes of [from_index, until_index), at least one if there is one.

        Raises:
            CorruptionError: A batch is damaged.
        """
        await asyncio.sleep(self._read_us() / 1e6)
        batches = self.disk.read(partition, segment_no, from_index, until_index, max_bytes)
        for batch in batches:
            if self.disk.is_flipped(partition, batch):
                raise CorruptionError(f"the batch at {segment_no}:{batch.header.base_index} is not what was written")
        return batches

    async def find(
        self, partition: PartitionId, segment_no: int, until_index: int, measure: Measure, value: int
    ) -> BatchPlace | None:
        """The first batch that reaches `value`, of those that begin below `until_index`."""
        await asyncio.sleep(self._read_us() / 1e6)
        return self.disk.find(partition, segment_no, until_index, measure, value)

    async def read_due(
        self, partition: PartitionId, segment_no: int, after: tuple[int, int], until_ms: int, count_max: int
    ) -> list[DueRow]:
        """Delayed batches of a segment's log, by due time and then by first index.

        See `interfaces.storage`.
        """
        await asyncio.sleep(self._read_us() / 1e6)
        return self.disk.read_due(partition, segment_no, after, until_ms, count_max)

    async def read_delayed(
        self, partition: PartitionId, segment_no: int, from_index: int, count_max: int
    ) -> list[DueRow]:
        """Delayed batches of a segment's log by index, beginning with the one that contains `from_index`."""
        await asyncio.sleep(self._read_us() / 1e6)
        return self.disk.read_delayed(partition, segment_no, from_index, count_max)

    async def read_volleys(
        self, partition: PartitionId, segment_no: int, from_index: int, count_max: int
    ) -> list[StoredVolley]:
        """Batches of a segment's log that a broker made of delayed messages, by index."""
        await asyncio.sleep(self._read_us() / 1e6)
        return self.disk.read_volleys(partition, segment_no, from_index, count_max)

    def read_at_once(
        self, partition: PartitionId, segment_no: int, from_index: int, until_index: int, max_bytes: int
    ) -> list[Batch] | None:
        """None, because each read takes time."""
        return None

    def end(self) -> None:
        """Note that the process has ended. No more of its writes become durable by themselves."""
        self._ended = True

    async def close(self) -> None:
        """Flush all writes, and take no more."""
        if self._durable < self._submitted:
            self._closing = asyncio.Event()
            await self._closing.wait()
        self._ended = True
