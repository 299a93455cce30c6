"""The broker's storage interface over a `MemoryDisk`, for tests of the runtime that need no files.

Writes become durable at the next turn of the event loop. `hold` stops that, so that a test can look at what waits for a
flush; the disk outlives the storage, so that a second one over it finds what a restart would find.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from seriatim_api.ids import PartitionId

from seriatim_broker.core.values.log import Batch, RecoveredPartition, Write
from seriatim_broker.core.values.positions import BatchPlace, Measure

from .memory_disk import MemoryDisk


class MemoryStorage:
    """See the module. Use it from one event loop.

    Attributes:
        disk: What is written to; give it to the next storage to restart.
        hold: While true nothing becomes durable; call `flush` after lowering it.
        saturated: What `is_saturated` says; a test may raise it.
        full: What `is_disk_full` says; a test may raise it.
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
        """What is on the disk, partition by partition."""
        return iter(self.disk.recover())

    def submit(self, writes: Sequence[Write]) -> int:
        """Take writes; returns their ticket."""
        assert not self._closed, "a closed storage takes no writes"
        self._ticket = self.disk.submit(writes)
        if not self.hold and not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self.flush)
        return self._ticket

    def on_durable(self, report: Callable[[int], None]) -> None:
        """Name the function that is called with the highest durable ticket."""
        self._report = report

    def flush(self) -> None:
        """Make everything durable, and say so."""
        self._flush_is_due = False
        if self.hold or self._closed:
            return
        self.disk.sync(self._ticket)
        if self._report is not None and self._reported < self._ticket:
            self._reported = self._ticket
            self._report(self._ticket)

    @property
    def is_saturated(self) -> bool:
        """Whether new appends should be refused for now."""
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
        """Batches that hold indexes of [from_index, until_index), at least one if there is any."""
        return self.disk.read(partition, segment_no, from_index, until_index, max_bytes)

    async def find(
        self, partition: PartitionId, segment_no: int, until_index: int, measure: Measure, value: int
    ) -> BatchPlace | None:
        """The first batch that reaches `value`, of those that begin below `until_index`."""
        return self.disk.find(partition, segment_no, until_index, measure, value)

    def read_at_once(
        self, partition: PartitionId, segment_no: int, from_index: int, until_index: int, max_bytes: int
    ) -> list[Batch] | None:
        """Nothing is given at once, so that a test sees each read."""
        return None

    async def close(self) -> None:
        """Flush, and take nothing more."""
        self.hold = False
        self.flush()
        self._closed = True
