"""The storage of a broker: `interfaces.storage` on RocksDB.

The parts:

    floor           what the storage needs of the machine: `engine` (rocksdict), `watermark`, `flusher`, `room`
    writer          groups of writes, and their flushes
    extents         where batches are
    lending         bodies of staged batches that other logs adopt
    head_cache      newest batches, in memory
    copies          tail copies
    reader          reads, with `scan`, `scans` and `checks`
    recovery        what a start finds
    housekeeping    gives disk space back

This module ties them together. It turns each `Write` into operations of one group, and changes the tables in memory at
once.

The event loop never waits for the disk here. No other thread waits for the disk while it holds the interpreter lock
(see `engine`), except for the blocks of a read.

A storage belongs to one event loop: that of the first `submit`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import structlog
from seriatim_api.batch import FLAG_STAGED, BatchHeader, Checksum
from seriatim_api.errors import CorruptionError
from seriatim_api.ids import PartitionId

from ...core.values.log import (
    Batch,
    DropBlock,
    DropCursor,
    DropPartition,
    DropPreparation,
    DropSegment,
    DueRow,
    PutBatch,
    PutBlock,
    PutChain,
    PutCursor,
    PutHandOver,
    PutLedger,
    PutPreparation,
    PutSegment,
    PutTailCopy,
    RecoveredPartition,
    Rewrite,
    StoredVolley,
    TrimLog,
    Truncate,
    Write,
    all_may_wait,
)
from ...core.values.positions import BatchPlace, Measure
from ...core.values.producers import Changes
from . import codec, delayed, keys
from .copies import CopyTable
from .engine import Engine, die
from .extents import Extent, ExtentLog, ExtentTable
from .floor import CURSOR, DELETE, DELETE_RANGE, INDEX, META, PUT, REMEDY, Floor, extent_name
from .flusher import FlushThread
from .head_cache import HeadCache
from .housekeeping import Housekeeper
from .lending import Lending
from .reader import Reader
from .recovery import Recovery, recover_extents
from .room import DiskRoom, disk_size_bytes
from .scan import Stored
from .settings import RocksSettings
from .watermark import Watermark
from .writer import WriteGroup, Writer

_log = structlog.get_logger(__name__)

_DATABASE: Final = "log"
_KEY_BYTES: Final = 16

TRIMMED_SHARE: Final = 8
"""If retention trims logs, and at least half of all extents are spare, an extent takes at most one eighth of the bytes
that are in use.

So an extent has messages of about the same age, and its space comes back early."""


class RocksStorage:
    """A log of extents with the control records beside it, in one RocksDB.

    Attributes:
        adopted_bytes: Bytes of the bodies that were adopted in this member run, and so not written again.
        on_adopted: Called with the size of each adopted body.
    """

    def __init__(
        self,
        floor: Floor,
        settings: RocksSettings,
        checksum: Checksum,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the storage over a floor that was just opened. For a directory, use `open`. Blocks.

        Raises:
            CorruptionError: The database ends before writes that were durable.
        """
        self._floor = floor
        self._settings = settings
        self._checksum = checksum
        self._engine = floor.database
        self._table = ExtentTable()
        self._copies = CopyTable()
        self._head_cache = HeadCache(settings.head_cache_size_bytes_max)
        self._writer = Writer(floor, settings)
        self._writer.on_flushed = self._flushed
        self._lending = Lending(settings.apart_size_bytes_min)
        self.reader = Reader(
            self._engine, checksum, self._table, self._copies, self._head_cache, self._writer, settings, self._lending
        )
        self._delayed = delayed.DelayedRows(self._engine, self._table, self._writer, self.reader)
        self._housekeeper = Housekeeper(self, self._table, self._writer, self.reader, settings)
        self._trimmed_extent_bytes = 1 << 62  # no limit, because nothing was trimmed or dropped yet
        self.adopted_bytes = 0
        self.on_adopted: Callable[[int], None] = lambda _size_bytes: None
        self._report: Callable[[int], None] = lambda _ticket: None
        self._on_closed = on_closed
        self.room: DiskRoom | None = None
        self._is_recovered = False
        self._is_closed = False
        self._apply: dict[type[Any], Callable[[WriteGroup, Any], None]] = {
            PutBatch: self._put_batch,
            PutSegment: self._put_segment,
            PutPreparation: self._put_preparation,
            DropPreparation: self._drop_preparation,
            PutBlock: self._put_block,
            DropBlock: self._drop_block,
            PutTailCopy: self._put_tail_copy,
            Truncate: self._truncate,
            TrimLog: self._trim,
            Rewrite: self._rewrite,
            PutCursor: self._put_cursor,
            PutLedger: self._put_ledger,
            PutHandOver: self._put_handoff,
            DropCursor: self._drop_cursor,
            PutChain: self._put_chain,
            DropSegment: self._drop_segment,
            DropPartition: self._drop_partition,
        }
        sequence = floor.database.sequence()
        floor.mark.check(sequence)
        floor.mark.open(sequence)
        recover_extents(floor.database, self._table)

    @classmethod
    def open(
        cls,
        directory: Path,
        settings: RocksSettings,
        checksum: Checksum,
        *,
        is_expected: bool = False,
        on_closed: Callable[[], None] = lambda: None,
    ) -> RocksStorage:
        """Open the storage in a directory that this process has locked. Makes it if there is none. Blocks.

        Args:
            directory: The data directory. This process must hold the lock of the identity file.
            settings: Sizes and limits.
            checksum: CRC-32C.
            is_expected: Whether an earlier start made the storage here. Then a missing storage is an error.
            on_closed: Called by `close` when all is written and the database is closed. The caller marks a clean
                shutdown in it.

        Raises:
            CorruptionError: The storage is damaged, or ends before writes that were durable, or is missing.
            StorageError: The storage cannot be opened.
        """
        settings = settings.for_disk(disk_size_bytes(directory))
        room = DiskRoom(directory, settings)
        floor = Floor(
            Engine(directory / _DATABASE, settings),
            Watermark(directory, checksum, is_expected=is_expected),
            FlushThread(),
            room.is_full,
            _now_ms,
            die,
        )
        storage = cls(floor, settings, checksum, on_closed)
        storage.room = room
        return storage

    # ---- the interface ----------------------------------------------------------------------------------

    def recover(self) -> Iterator[RecoveredPartition]:
        """The data on the disk, partition by partition. Call it once, and iterate to the end before `submit`. Blocks.

        Raises:
            CorruptionError: A checksum does not match, or something is missing.
        """
        assert not self._is_recovered, "recovered twice"
        try:
            yield from Recovery(self._engine, self._checksum, self._table, self._copies).partitions()
        except CorruptionError as error:
            raise CorruptionError(f"{error.message}. {REMEDY}") from error
        self._is_recovered = True

    def submit(self, writes: Sequence[Write]) -> int:
        """Take writes, which become durable together and after all earlier ones. Returns their ticket."""
        assert self._is_recovered, "submit before recover came to its end"
        assert not self._is_closed, "submit after close"

        def fill(group: WriteGroup) -> None:
            for write in writes:
                self._apply[type(write)](group, write)

        return self._writer.submit(fill, may_wait=all_may_wait(writes))

    def on_durable(self, report: Callable[[int], None]) -> None:
        """Set the function that is called, on the event loop, with the highest durable ticket."""
        self._report = report

    @property
    def is_saturated(self) -> bool:
        """Whether more bytes than the limit are not durable yet. Then new appends should be refused."""
        return self._writer.is_saturated

    @property
    def durable_sequence(self) -> int:
        """The database's sequence number of the newest write that is durable."""
        return self._writer.durable_sequence

    @property
    def written_ticket(self) -> int:
        """The newest ticket whose writes the engine has, flushed or not."""
        return self._writer.written_ticket

    @property
    def refusals(self) -> int:
        """How often the engine refused a write for the moment. For a metric."""
        return self._writer.refusals

    @property
    def extent_count(self) -> int:
        """The number of extents in use. For a metric."""
        return len(self._table.extents)

    def is_disk_full(self) -> bool:
        """Whether the disk has reached its reserve. Then new appends must be refused. It is measured once a second."""
        return self._floor.is_full()

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
        """Batches with indexes of [from_index, until_index), beginning with the one that contains `from_index`.

        See `interfaces.storage`.
        """
        return await self.reader.read(partition, segment_no, from_index, until_index, max_bytes, sequential=sequential)

    def read_at_once(
        self, partition: PartitionId, segment_no: int, from_index: int, until_index: int, max_bytes: int
    ) -> list[Batch] | None:
        """The batches that a sequential `read` would give, if they are in memory; otherwise None."""
        return self.reader.read_at_once(partition, segment_no, from_index, until_index, max_bytes)

    async def find(
        self, partition: PartitionId, segment_no: int, until_index: int, measure: Measure, value: int
    ) -> BatchPlace | None:
        """The first batch that reaches `value`, of those that begin below `until_index`.

        Raises:
            CorruptionError: A header does not match its checksum, or a batch is missing.
            DeadlineExceededError: The disk did not answer in time.
        """
        return await self.reader.find(partition, segment_no, until_index, measure, value)

    async def read_due(
        self, partition: PartitionId, segment_no: int, after: tuple[int, int], until_ms: int, count_max: int
    ) -> list[DueRow]:
        """Delayed batches of a segment's log, by due time and then by first index.

        See `interfaces.storage`.
        """
        return await self.reader.rows(partition, segment_no, delayed.due_rows, after, until_ms, count_max)

    async def read_delayed(
        self, partition: PartitionId, segment_no: int, from_index: int, count_max: int
    ) -> list[DueRow]:
        """Delayed batches of a segment's log by index, beginning with the one that contains `from_index`."""
        return await self.reader.rows(partition, segment_no, delayed.rows_from, from_index, count_max)

    async def read_volleys(
        self, partition: PartitionId, segment_no: int, from_index: int, count_max: int
    ) -> list[StoredVolley]:
        """Batches of a segment's log that a broker made of delayed messages, by index."""
        return await self.reader.rows(partition, segment_no, delayed.volleys_from, from_index, count_max)

    async def close(self) -> None:
        """Write and flush all submitted writes, write all memtables out, and let go of the directory. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._housekeeper.close()
        await self._writer.close()
        loop = asyncio.get_running_loop()
        await self.reader.close()
        await loop.run_in_executor(None, self._engine.close)
        self._floor.mark.close()
        self._on_closed()

    async def settle(self) -> None:
        """Wait until all writes are durable and housekeeping has nothing left to do. For tests."""
        await self._writer.drain()
        await self._housekeeper.settle()

    def _flushed(self, ticket: int) -> None:
        self._head_cache.evict(ticket)
        self._copies.written(ticket)
        self._report(ticket)

    # ---- writes to operations ---------------------------------------------------------------------------

    def _put_batch(self, group: WriteGroup, write: PutBatch) -> None:
        partition, batch = write.partition, write.batch
        header = batch.header
        log = self._table.ensure_log(partition, header.segment)
        assert header.partition == partition, (header.partition, partition)
        assert not log.runs or header.base_index == log.tail, (partition, header.segment, header.base_index, log.tail)
        self._put_value(group, log, write)
        self._delayed.put(group, log, batch)
        # Rule `storage-window-later` (I9): a batch and the windows that changed before it are one write. Without it:
        # 1. a of producer P is committed. As writes b, which says so. The window that names a waits for the next group.
        # 2. As goes down before that group, and Am's disk is lost. As starts again. It takes a for known.
        # 3. A switch fences As. As answers a tail with a, and a producer table without a.
        # 4. P, which had no answer, resends a. The next segment's master takes it as new: a is delivered twice.
        self._put_windows(group, partition, header.segment, write.windows)
        self._head_cache.add(self._writer.ticket + 1, partition, batch)

    def _put_value(self, group: WriteGroup, log: ExtentLog, write: PutBatch) -> None:
        batch, header = write.batch, write.batch.header
        extent = self._active(group)
        apart = self._lending.body_of(write.adopts, header) if write.adopts is not None else None
        if apart is not None and not self._table.may_adopt(log, extent, apart.extent):
            apart = None
        if apart is not None:
            self.adopted_bytes += len(batch.body)
            self.on_adopted(len(batch.body))
        bodies = apart.extent if apart is not None else _bodies_of(header, extent)
        position = log.position
        run = self._table.append(
            log, extent, header.end_index, batch.size_bytes, header.base_index, bodies, is_adopted=apart is not None
        )
        if run is not None:
            key = keys.batch_key(header.partition, header.segment, header.base_index)
            group.add((PUT, self._engine.family(INDEX), key, codec.write_run(run)), 2 * _KEY_BYTES)
        self._put_row(group, extent, Stored(write.commit, position, batch), apart)

    def _put_row(self, group: WriteGroup, extent: Extent, stored: Stored, apart: codec.BodyPlace | None = None) -> None:
        """Put a batch into an extent.

        Args:
            group: Takes the operations.
            extent: The extent.
            stored: The batch, with the commit and the position that go into its value.
            apart: Where its body is already; None: the body is written too. A staged body gets a key of its own.
        """
        batch, header = stored.batch, stored.batch.header
        family = self._engine.family(extent_name(extent.number))
        size_bytes = codec.BATCH_OVERHEAD_BYTES + _KEY_BYTES
        if apart is None and self._lending.is_apart(header):
            apart = codec.BodyPlace(extent.number, keys.body_key(header))
            group.add((PUT, family, apart.key, batch.body), len(apart.key) + len(batch.body))
        if apart is None:
            size_bytes += len(batch.body)
        key = keys.batch_key(header.partition, header.segment, header.base_index)
        group.add((PUT, family, key, codec.batch_parts(batch, stored.commit, stored.position, apart)), size_bytes)

    def _put_segment(self, group: WriteGroup, write: PutSegment) -> None:
        key = keys.meta_key(write.partition, keys.SEGMENT, write.segment.no)
        self._put(group, META, key, codec.write(write.segment))

    def _put_preparation(self, group: WriteGroup, write: PutPreparation) -> None:
        preparation = write.preparation
        key = keys.meta_key(write.partition, keys.PREPARATION, preparation.segment_no, preparation.switch_attempt)
        self._put(group, META, key, codec.write(preparation))
        self._copies.put(write.partition, key, preparation.tail, self._writer.ticket + 1)

    def _drop_preparation(self, group: WriteGroup, write: DropPreparation) -> None:
        key = keys.meta_key(write.partition, keys.PREPARATION, write.segment_no, write.switch_attempt)
        group.add((DELETE, self._engine.family(META), key, None), len(key))
        self._copies.drop(write.partition, key)

    def _put_block(self, group: WriteGroup, write: PutBlock) -> None:
        self._put(group, META, keys.meta_key(write.partition, keys.BLOCK, 0, write.block), write.data)

    def _drop_block(self, group: WriteGroup, write: DropBlock) -> None:
        key = keys.meta_key(write.partition, keys.BLOCK, 0, write.block)
        group.add((DELETE, self._engine.family(META), key, None), len(key))

    def _put_tail_copy(self, group: WriteGroup, write: PutTailCopy) -> None:
        tail = write.tail
        key = keys.tail_key(write.partition, tail.segment_no, write.place)
        self._put(group, META, key, codec.write(tail))
        self._copies.put(write.partition, key, tail, self._writer.ticket + 1)

    def _put_cursor(self, group: WriteGroup, write: PutCursor) -> None:
        key = keys.cursor_key(write.partition, write.cursor.segment_no, write.cursor.consumer_group)
        self._put(group, CURSOR, key, codec.write(write.cursor))

    def _put_ledger(self, group: WriteGroup, write: PutLedger) -> None:
        place = (write.partition, write.cursor.segment_no, write.cursor.consumer_group)
        if write.change.is_full:
            self._delete_range(group, CURSOR, keys.ledger_range(*place))
        self._put(group, CURSOR, keys.cursor_key(*place), codec.write(write.cursor))
        prefix = keys.ledger_key(*place, b"")
        for name, value in write.change.puts:
            self._put(group, CURSOR, prefix + name, value)
        for name in write.change.deletes:
            key = prefix + name
            group.add((DELETE, self._engine.family(CURSOR), key, None), len(key))

    def _put_handoff(self, group: WriteGroup, write: PutHandOver) -> None:
        handoff = write.handoff
        key = keys.handoff_key(write.partition, handoff.segment_no, handoff.consumer_group)
        self._put(group, CURSOR, key, codec.write(handoff))

    def _drop_cursor(self, group: WriteGroup, write: DropCursor) -> None:
        place = (write.partition, write.segment_no, write.consumer_group)
        self._delete_range(group, CURSOR, keys.ledger_range(*place))
        key = keys.cursor_key(*place)
        group.add((DELETE, self._engine.family(CURSOR), key, None), len(key))

    def _put_chain(self, group: WriteGroup, write: PutChain) -> None:
        chain = write.chain
        self._put(group, META, keys.meta_key(write.partition, keys.CHAIN, 0), codec.write_bare_chain(chain))
        for no in write.changed:
            segment = chain.segment(no)
            assert segment is not None, (write.partition, no)
            key = keys.meta_key(write.partition, keys.CHAIN, no)
            self._put(group, META, key, codec.write(segment))
        for no in write.gone:
            key = keys.meta_key(write.partition, keys.CHAIN, no)
            group.add((DELETE, self._engine.family(META), key, None), len(key))

    def _truncate(self, group: WriteGroup, write: Truncate) -> None:
        partition, segment = write.partition, write.segment_no
        log = self._table.log(partition, segment)
        if log is not None and write.length < log.tail:
            self._cut(group, partition, segment, log, write.length)
        group.settle()
        if write.windows is None:
            self._delete_range(group, META, keys.meta_range(partition, keys.WINDOW, segment))
        self._put_windows(group, partition, segment, write.windows or ())

    def _put_windows(self, group: WriteGroup, partition: int, segment: int, windows: Changes) -> None:
        for producer, window in windows:
            group.set_window(
                self._engine.family(META), keys.meta_key(partition, keys.WINDOW, segment, producer), window
            )

    def _cut(self, group: WriteGroup, partition: int, segment: int, log: ExtentLog, length: int) -> None:
        last = log.runs[log.run_at(length)] if log.runs else None
        self._delayed.cut(group, partition, segment, log, length)
        known = log.position - self._head_cache.truncate(partition, segment, length)
        # Exact if the cache had all batches that are cut; otherwise an estimate, which the next start corrects.
        position = max(known, last.position) if last is not None else known
        gone, touched = self._table.truncate(log, length, position)
        # Rule `storage-cut-in-memory` (I6): a cut is durable. Without it:
        # 1. As has 7 messages of a segment that the chain sealed at 5. As cuts its log to 5 in memory only.
        # 2. As starts again, and finds 7 messages.
        # 3. As takes messages 5 and 6, which are not part of the segment, for its content.
        for run in gone:
            key = keys.batch_key(partition, segment, run.start)
            group.add((DELETE, self._engine.family(INDEX), key, None), len(key))
        for extent in sorted(touched):
            self._delete_range(group, extent_name(extent), keys.segment_range(partition, segment, length))
        self._housekeeper.wake()

    def _trim(self, group: WriteGroup, write: TrimLog) -> None:
        """Drop the messages below `write.below` from the log. Housekeeping gives their space back later."""
        partition, segment = write.partition, write.segment_no
        log = self._table.ensure_log(partition, segment)
        gone, left = self._table.trim(log, write.below, write.size_bytes)
        for run in gone:
            key = keys.batch_key(partition, segment, run.start)
            group.add((DELETE, self._engine.family(INDEX), key, None), len(key))
        self._size_extents()
        if left is not None:
            key = keys.batch_key(partition, segment, left.start)
            self._put(group, INDEX, key, codec.write_run(left))
        if gone:
            self._delayed.trim(group, partition, segment, log)
            self._housekeeper.wake()

    def _size_extents(self) -> None:
        """Make extents small from now on, because logs let go of messages, and will let go of more."""
        live_bytes = sum(extent.live_bytes for extent in self._table.extents.values())
        self._trimmed_extent_bytes = max(live_bytes // TRIMMED_SHARE, self._settings.extent_copy_size_bytes_min)

    def _rewrite(self, group: WriteGroup, write: Rewrite) -> None:
        """Write batches of the log again, in another extent, so that damaged ones stay behind in the old extent.

        If no extent is spare, they go into the same extent, and may have to be written again later.
        """
        partition, segment = write.partition, write.segment_no
        log = self._table.log(partition, segment)
        assert log is not None, (partition, segment)
        batches = list(write.batches)
        while batches:
            start = batches[0].header.base_index
            place = log.run_at(start)
            run, end = log.runs[place], log.end_of(place)[0]
            assert run.start == start, (run, start)
            active = self._table.active
            if active is not None and run.extent == active.number and self._table.spares:
                self._begin_extent(group)
            count = sum(1 for batch in batches if batch.header.base_index < end)
            of_run, batches = batches[:count], batches[count:]
            positions = accumulate((batch.size_bytes for batch in of_run), initial=run.position)
            stored = [Stored(batch.header.base_index, at, batch) for at, batch in zip(positions, of_run, strict=False)]
            self._put_again(group, partition, segment, log, place, stored)

    def _drop_segment(self, group: WriteGroup, write: DropSegment) -> None:
        self._drop_log(group, write.partition, write.segment_no)
        self._size_extents()
        group.settle()
        place = (write.partition, write.segment_no)
        for kind in (keys.SEGMENT, keys.WINDOW, keys.PREPARATION, keys.TAIL, keys.CHAIN):
            key_range = keys.meta_range(write.partition, kind, write.segment_no)
            self._delete_range(group, META, key_range)
            self._copies.drop_range(write.partition, key_range)
        self._delete_range(group, CURSOR, keys.place_range(*place))
        self._delete_range(group, INDEX, keys.place_range(*place))

    def _drop_partition(self, group: WriteGroup, write: DropPartition) -> None:
        for segment in self._table.segments_of(write.partition):
            self._drop_log(group, write.partition, segment)
        group.settle()
        key_range = keys.partition_range(write.partition)
        for family in (META, CURSOR, INDEX):
            self._delete_range(group, family, key_range)
        self._copies.drop_range(write.partition, key_range)

    def _drop_log(self, group: WriteGroup, partition: int, segment: int) -> None:
        self._head_cache.truncate(partition, segment, 0)
        log = self._table.forget(partition, segment)
        active = self._table.active
        if log is not None:
            self._delayed.drop(group, partition, segment, log)
        if log is not None and active is not None:
            # If the segment is ever copied here again, it goes to this extent or a later one. There must be no old
            # batches of it.
            self._delete_range(group, extent_name(active.number), keys.segment_range(partition, segment))
        self._housekeeper.wake()

    def _put(self, group: WriteGroup, family: str, key: bytes, value: bytes) -> None:
        group.add((PUT, self._engine.family(family), key, value), len(key) + len(value))

    def _delete_range(self, group: WriteGroup, family: str, key_range: tuple[bytes, bytes]) -> None:
        group.add((DELETE_RANGE, self._engine.family(family), *key_range), len(key_range[0]) + len(key_range[1]))

    # ---- extents ----------------------------------------------------------------------------------------

    def _active(self, group: WriteGroup) -> Extent:
        """The extent that takes the next batch. Begins another if the active one is full or old and one is spare."""
        active, spares, settings = self._table.active, self._table.spares, self._settings
        if active is None:
            return self._begin_extent(group)
        if not spares:
            return active
        is_full = active.size_bytes >= settings.extent_size_bytes_max
        if not is_full and len(spares) >= len(self._table.extents):
            is_full = active.size_bytes >= self._trimmed_extent_bytes
            is_full = is_full or self._floor.now_ms() - active.opened_at_ms >= settings.extent_age_s_max * 1000
        return self._begin_extent(group) if is_full else active

    def _begin_extent(self, group: WriteGroup) -> Extent:
        extent = self._table.begin(self._floor.now_ms())
        self._put(group, INDEX, keys.extent_key(extent.number), codec.write(codec.Extent(extent.opened_at_ms)))
        self._housekeeper.wake()
        return extent

    def rotate(self) -> None:
        """Begin another extent. At least one must be spare."""
        self._writer.submit(self._begin_extent)

    async def empty_extent(self, number: int) -> bool:
        """Empty a dead extent, then drop its record. Returns whether the extent is empty.

        In the other order a crash between the two would leave a spare extent that has batches.
        """
        assert number in self._table.dead(), number
        self.reader.let_go()
        if not await asyncio.get_running_loop().run_in_executor(None, self._engine.empty_extent, number):
            _log.error("extent cannot be emptied", extent=number)
            return False
        key = keys.extent_key(number)
        self._writer.submit(lambda group: group.add((DELETE, self._engine.family(INDEX), key, None), len(key)))
        self._table.retire(number)
        _log.info("extent emptied", extent=number)
        return True

    async def sweep_rows(self) -> bool:
        """Delete some rows of delayed batches that retention dropped. Returns whether there may be more."""
        return await self._delayed.sweep()

    def put_moved(self, partition: int, segment: int, log: ExtentLog, place: int, stored: Sequence[Stored]) -> None:
        """Write the first batches of a run again, in the active extent."""
        self._writer.submit(lambda group: self._put_again(group, partition, segment, log, place, stored))

    def _put_again(
        self, group: WriteGroup, partition: int, segment: int, log: ExtentLog, place: int, stored: Sequence[Stored]
    ) -> None:
        log.moved_ticket = self._writer.ticket + 1
        target = self._active(group)
        for one in stored:
            self._put_row(group, target, one)
        last = stored[-1]
        mid, mid_position = last.batch.header.end_index, last.position + last.batch.size_bytes
        bodies = _bodies_of(last.batch.header, target)
        for run in self._table.move(log, place, mid, mid_position, target, bodies):
            if run is not None:
                key = keys.batch_key(partition, segment, run.start)
                self._put(group, INDEX, key, codec.write_run(run))


def log_end(directory: Path, settings: RocksSettings, checksum: Checksum, enough: int) -> int:
    """Up to which sequence number the storage in a directory has writes. Blocks. This process must have locked it.

    The watermark says it at once. It may be too low after a loss of power. So if it is below `enough`, the database is
    opened and closed again, which takes as long as its write-ahead log is long.

    Args:
        directory: The data directory.
        settings: Sizes and limits.
        checksum: CRC-32C.
        enough: If the watermark is as high as this, the database is not opened.

    Raises:
        CorruptionError: The database is damaged.
        StorageError: It cannot be opened.
    """
    noted = Watermark(directory, checksum).noted()
    if noted >= enough or not (directory / _DATABASE / "CURRENT").exists():
        return noted
    engine = Engine(directory / _DATABASE, settings.for_disk(disk_size_bytes(directory)))
    try:
        return engine.sequence()
    finally:
        engine.close()


def _bodies_of(header: BatchHeader, extent: Extent) -> int:
    """The extent with the separate bodies of a run that begins with this batch; 0 if it is no stage log."""
    return extent.number if header.flags & FLAG_STAGED else 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
