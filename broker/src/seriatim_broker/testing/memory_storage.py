"""The broker's storage interface over a `MemoryDisk`, for tests of the runtime that need no files.

Writes become durable in the next turn of the event loop. `hold` stops that, so that a test can look at writes that wait
for a flush. The disk outlives the storage, so a second storage over it finds what a restart would find.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from seriatim_api.ids import PartitionId

from seriatim_broker.core.values.log import Batch, RecoveredPartition, Write
from seriatim_broker.core.values.positions import BatchPlace, Measure

from .memory_disk import MemoryDisk


class MemoryStorage:
    """A storage in memory, for one event loop.

    Attributes:
        disk: The disk. For a restart, give it to the next storage.
        hold: While it is true, nothing becomes durable. Call `flush` after setting it to false.
        saturated: The value of `is_saturated`. A test may set it.
        full: The value of `is_disk_full`. A test may set it.
    """

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.hold = False
        self.saturated = False
        self.full = False
        self._report: Callable[[int], None] | None = None
        self._ticket = 0
        self._reported = 0
        self._flush_is_due = False
        self._closed = False

    def recover(self) -> Iterator[RecoveredPartition]:
        """The data on the disk, partition by partition."""
        return iter(self.disk.recover())

    def submit(self, writes: Sequence[Write]) -> int:
        """Take writes. Returns their ticket."""
        assert not self._closed, "a closed storage takes no writes"
        self._ticket = self.disk.submit(writes)
        if not self.hold and not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self.flush)
        return self._ticket

    def on_durable(self, report: Callable[[int], None]) -> None:
        """Set the function that is called with the highest durable ticket."""
        self._report = report

    def flush(self) -> None:
        """Make all writes durable, and report it."""
        self._flush_is_due = False
        if self.hold or self._closed:
            return
        self.disk.flush(self._ticket)
        if self._report is not None and self._reported < self._ticket:
            self._reported = self._ticket
            self._report(self._ticket)

    @property
    def durable_sequence(self) -> int:
        """How far the disk is durable."""
        return self.disk.durable_count

    @property
    def is_saturated(self) -> bool:
        """Whether new appends should be refused for the moment."""
        return self.saturated

    def is_disk_full(self) -> bool:
        """Whether new appends must be refused."""
        return self.full

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
        """Batches with indexes of [from_index, until_index), at least one if there is one."""
        return self.disk.read(partition, segment_no, from_index, until_index, max_bytes)

    async def find(
        self, partition: PartitionId, segment_no: int, until_index: int, measure: Measure, value: int
    ) -> BatchPlace | None:
        """The first batch that reaches `value`, of those that begin below `until_index`."""
        return self.disk.find(partition, segment_no, until_index, measure, value)

    def read_at_once(
        self, partition: PartitionId, segment_no: int, from_index: int, until_index: int, max_bytes: int
    ) -> list[Batch] | None:
        """None, so that a test sees each read."""
        return None

    async def close(self) -> None:
        """Flush all writes, and take no more."""
        self.hold = False
        self.flush()
        self._closed = True
