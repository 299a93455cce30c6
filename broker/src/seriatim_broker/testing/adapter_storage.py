"""The real storage adapter in virtual time. Its code runs over a database in memory.

An `AdapterDisk` outlives processes. Beside the adapter's database it has an image: the content of the disk if the
adapter were right. A submit is durable in the image when its flush has ended, whatever the adapter reports. The
simulator's checks read the image, and compare each start with it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, NoReturn

from seriatim_api.batch import Checksum
from seriatim_api.ids import PartitionId

from seriatim_broker.adapters.rocks import RocksSettings, RocksStorage
from seriatim_broker.adapters.rocks.floor import Floor
from seriatim_broker.adapters.rocks.keys import batch_key
from seriatim_broker.core.values.log import Batch, DueRow, RecoveredPartition, StoredVolley, Write
from seriatim_broker.core.values.positions import BatchPlace, Measure

from .memory_database import MemoryDatabase, MemoryEngine, MemoryMark
from .memory_disk import MemoryDisk
from .virtual_time import Timers

EXTENT_COUNT: Final = 12

SETTINGS: Final = RocksSettings(
    extents=EXTENT_COUNT,
    extent_size_bytes_max=6_000,
    extent_copy_size_bytes_min=1,
    apart_size_bytes_min=1,
    head_cache_size_bytes_max=6_000,
    reserve_bytes_min=0,
)
"""Small sizes, so that extents fill up, are copied forward and emptied, and reads come from all places."""

QUEUE_COUNT_MAX: Final = 1_000


class AdapterDisk(MemoryDisk):
    """The database of the adapter, and the image of what it should have."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.database = MemoryDatabase(EXTENT_COUNT)
        self.chance = chance
        self.written_ticket = 0
        self._written_count: dict[int, int] = {}  # writes of the database that wait: up to which ticket

    def written(self, ticket: int) -> None:
        """Note that the database has all submits up to this ticket, and no later one."""
        self.written_ticket = ticket
        self._written_count[self.database.pending_count] = ticket

    def flush(self, ticket: int) -> None:
        """Make all submits up to and including `ticket` durable. The database has no others."""
        super().flush(ticket)
        self._written_count.clear()

    def crash(self, kept_count: int) -> None:
        """Lose writes that were not flushed, and keep a first part of them: whole writes of the adapter.

        It is about as large a part of these as `kept_count` is of the submits that are not durable.
        """
        counts = sorted(count for count in self._written_count if 0 < count <= self.database.pending_count)
        chosen = min(kept_count, self.pending_count) * (len(counts) + 1) // (self.pending_count + 1)
        kept = counts[chosen - 1] if chosen else 0
        kept_ticket = self._written_count[kept] if chosen else 0
        self.database.crash(kept)
        super().crash(sum(1 for ticket, _ in self._pending if ticket <= kept_ticket))
        self._written_count.clear()

    def flip(self, partition: PartitionId, segment_no: int, base_index: int) -> None:
        """Change one bit of a stored batch, in each place where it is stored."""
        self.database.flip(batch_key(partition, segment_no, base_index), self.chance)

    def twin(self) -> AdapterDisk:
        """A copy of the durable content."""
        twin = AdapterDisk(self.chance)
        twin.durable, twin.visible = self.durable.twin(), self.durable.twin()
        twin._ticket = twin.written_ticket = self._ticket
        twin.durable_count = self.durable_count
        twin.database = self.database.twin()
        return twin

    def wipe(self) -> None:
        """Lose all content."""
        super().wipe()
        self.database = MemoryDatabase(EXTENT_COUNT)


class ProcessEndedError(BaseException):
    """The adapter ended its process. Code of that process must not catch this."""


@dataclass(eq=False)
class AdapterStorage:
    """The `interfaces.storage.Storage` of the process whose event loop is running, through the adapter.

    Args:
        disk: The disk.
        timers: The time of the disk.
        checksum: CRC-32C.
        now_ms: The wall clock of the process.
        flush_us: Draws the duration of the next flush, in microseconds.
        ended: Called when the adapter ends the process.

    Attributes:
        look_full: Says whether the disk has reached its reserve.
    """

    _disk: AdapterDisk
    _timers: Timers
    _checksum: Checksum
    _now_ms: Callable[[], int]
    _flush_us: Callable[[], int]
    _tell_ended: Callable[[], object]

    def __post_init__(self) -> None:
        self.look_full: Callable[[], bool] = lambda: False
        self._tickets: deque[tuple[int, int]] = deque()  # the adapter's and the image's
        self._ended = False
        self._engine: _Engine | None = None
        self._rocks: RocksStorage | None = None

    # ---- what the adapter stands on ---------------------------------------------------------------------

    def _open(self) -> RocksStorage:
        database = self._disk.database
        self._engine = _Engine(database, self._flushed)
        floor = Floor(
            self._engine,
            MemoryMark(database),
            _Flusher(self._after_a_flush),
            lambda: self.look_full(),
            self._now_ms,
            self._die,
        )
        return RocksStorage(floor, SETTINGS, self._checksum)

    def _die(self, reason: str, error: BaseException | None) -> NoReturn:
        self._ended = True
        self._tell_ended()
        raise ProcessEndedError(reason) from error

    def _note_written(self) -> None:
        """Note which submits the adapter has written to the database. They wait for their flush."""
        written = self._disk.written_ticket
        while self._tickets and self._tickets[0][0] <= self.rocks.written_ticket:
            written = self._tickets.popleft()[1]
        self._disk.written(written)

    def _after_a_flush(self, flush: Callable[[], object]) -> None:
        self._timers.after(self._flush_us(), self._unless_ended, flush)

    def _unless_ended(self, flush: Callable[[], object]) -> None:
        if not self._ended:
            with contextlib.suppress(ProcessEndedError):
                flush()

    def _flushed(self) -> None:
        self._note_written()  # the adapter writes nothing during a flush
        self._disk.flush(self._disk.written_ticket)

    # ---- the interface ----------------------------------------------------------------------------------

    @property
    def rocks(self) -> RocksStorage:
        """The adapter. It exists when `recover` was called."""
        assert self._rocks is not None
        return self._rocks

    def recover(self) -> Iterator[RecoveredPartition]:
        """The data on the disk, partition by partition."""
        self._rocks = self._open()
        return self._rocks.recover()

    def submit(self, writes: Sequence[Write]) -> int:
        """Take writes. Returns their ticket."""
        assert not self._ended, "a closed storage takes no writes"
        ticket = self.rocks.submit(writes)
        self._tickets.append((ticket, self._disk.submit(writes)))
        self._note_written()  # the adapter may have written it at once
        return ticket

    def on_durable(self, report: Callable[[int], None]) -> None:
        """Set the function that is called with the highest durable ticket, but never after the end of the process."""

        def unless_ended(ticket: int) -> None:
            if not self._ended:
                report(ticket)

        self.rocks.on_durable(unless_ended)

    @property
    def durable_sequence(self) -> int:
        """How far the disk is durable."""
        return self._rocks.durable_sequence if self._rocks is not None else self._disk.database.sequence

    @property
    def is_saturated(self) -> bool:
        """Whether new appends should be refused for the moment."""
        return self._disk.pending_count > QUEUE_COUNT_MAX

    def is_disk_full(self) -> bool:
        """Whether new appends must be refused."""
        return self.rocks.is_disk_full()

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
        return await self.rocks.read(partition, segment_no, from_index, until_index, max_bytes, sequential=sequential)

    async def find(
        self, partition: PartitionId, segment_no: int, until_index: int, measure: Measure, value: int
    ) -> BatchPlace | None:
        """The first batch that reaches `value`, of those that begin below `until_index`."""
        return await self.rocks.find(partition, segment_no, until_index, measure, value)

    def read_at_once(
        self, partition: PartitionId, segment_no: int, from_index: int, until_index: int, max_bytes: int
    ) -> list[Batch] | None:
        """The batches of a sequential `read` if they are in memory; otherwise None."""
        return self.rocks.read_at_once(partition, segment_no, from_index, until_index, max_bytes)

    async def read_due(
        self, partition: PartitionId, segment_no: int, after: tuple[int, int], until_ms: int, count_max: int
    ) -> list[DueRow]:
        """Delayed batches of a segment's log, by due time and then by first index.

        See `interfaces.storage`.
        """
        return await self.rocks.read_due(partition, segment_no, after, until_ms, count_max)

    async def read_delayed(
        self, partition: PartitionId, segment_no: int, from_index: int, count_max: int
    ) -> list[DueRow]:
        """Delayed batches of a segment's log by index, beginning with the one that contains `from_index`."""
        return await self.rocks.read_delayed(partition, segment_no, from_index, count_max)

    async def read_volleys(
        self, partition: PartitionId, segment_no: int, from_index: int, count_max: int
    ) -> list[StoredVolley]:
        """Batches of a segment's log that a broker made of delayed messages, by index."""
        return await self.rocks.read_volleys(partition, segment_no, from_index, count_max)

    def end(self) -> None:
        """Note that the process has ended. No more of its writes become durable by themselves."""
        self._ended = True
        if self._engine is not None:
            self._engine.let_go()
        if self._rocks is not None:
            self._note_written()

    async def close(self) -> None:
        """Flush all writes, and take no more."""
        if self._rocks is not None and not self._ended:
            await self._rocks.close()
            self._ended = True


class _Flusher:
    """The `Flusher` of the simulation. It calls the adapter's flush when the disk's time for it is over."""

    def __init__(self, after_a_flush: Callable[[Callable[[], object]], None]) -> None:
        self._after_a_flush = after_a_flush
        self._work: Callable[[int, int], None] = lambda _ticket, _sequence: None

    def start(self, work: Callable[[int, int], None]) -> None:
        """Set the function to call for each `put`."""
        self._work = work

    def put(self, ticket: int, sequence: int) -> None:
        """Have one flush done."""
        self._after_a_flush(partial(self._work, ticket, sequence))

    async def close(self) -> None:
        """Do nothing, because the writer has waited for all flushes before."""


class _Engine(MemoryEngine):
    """A `MemoryEngine` that tells the storage when a flush has ended."""

    def __init__(self, database: MemoryDatabase, flushed: Callable[[], None]) -> None:
        super().__init__(database)
        self._tell_flushed = flushed

    def flush_wal(self) -> None:
        super().flush_wal()
        self._tell_flushed()
