"""Reads of batches: the newest from memory, older ones from the disk, and after the end of the log from tail copies.

Worker threads (`scan`) verify each batch that comes from the disk: its place, its body, its header, and the checksum
chain to the next. A reader whose next read begins where the last one ended has a place (`scans`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from seriatim_api.batch import FLAG_STAGED, Checksum
from seriatim_api.errors import DeadlineExceededError, StorageError

from ...core.values.log import Batch
from ...core.values.positions import BatchPlace, Measure
from . import keys
from .checks import verify_link, verify_tail
from .codec import read_preparation, read_tail
from .copies import CopyTable
from .extents import ExtentLog, ExtentTable
from .finding import find_in_memory, find_on_disk
from .floor import META, Database
from .head_cache import HeadCache
from .lending import Lending
from .scan import Scan, Stored, Stretch, plan, read_stretches
from .scans import Place, Scans
from .settings import RocksSettings
from .writer import Writer

_THREADS: Final = 2
_ATTEMPTS_MAX: Final = 8

_Result = TypeVar("_Result")


class Reader:
    """All reads while the broker serves. It runs on the event loop, except for the work of its two threads."""

    def __init__(
        self,
        engine: Database,
        checksum: Checksum,
        table: ExtentTable,
        copies: CopyTable,
        head_cache: HeadCache,
        writer: Writer,
        settings: RocksSettings,
        lending: Lending,
    ) -> None:
        self._engine = engine
        self._lending = lending
        self._checksum = checksum
        self._table = table
        self._copies = copies
        self._head_cache = head_cache
        self._writer = writer
        self._deadline_s = settings.read_deadline_ms / 1000
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="seriatim-read")
        self._scans = Scans(settings, self._work)

    async def close(self) -> None:
        """Let go of all places, and wait for reads that are under way."""
        self._scans.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    def let_go(self) -> None:
        """Let go of all places, and of the files that they keep alive, because an extent is being emptied."""
        self._scans.drop_all()

    @property
    def scan_count(self) -> int:
        """The number of places of sequential readers that are kept. For a metric."""
        return self._scans.count

    @property
    def bytes_ahead(self) -> int:
        """Bytes that are read ahead of readers, in memory or under way. For a metric."""
        return self._scans.bytes_ahead

    def read_at_once(
        self, partition: int, segment: int, from_index: int, until_index: int, max_bytes: int
    ) -> list[Batch] | None:
        """The batches that a sequential `read` would give, if they are in memory; otherwise None."""
        log = self._table.log(partition, segment)
        if log is None or not log.first_index <= from_index < min(log.tail, until_index) or self._is_moving(log):
            return None
        first = self._head_cache.first_index(partition, segment)
        if first is not None and first <= from_index:
            return self._noted(log, self._head_cache.read(partition, segment, from_index, until_index, max_bytes))
        if not self._scans.is_ready(partition, segment, from_index):
            return None
        place = self._scans.take(partition, segment, from_index, log)
        if place is None:
            return None
        found = place.take(until_index, max_bytes)
        self._keep(place, log, found[-1].header.end_index if found else from_index, until_index)
        return self._noted(log, found) or None

    async def read(
        self,
        partition: int,
        segment: int,
        from_index: int,
        until_index: int,
        max_bytes: int,
        *,
        sequential: bool = False,
    ) -> list[Batch]:
        """Batches with indexes of [from_index, until_index), beginning with the one that contains `from_index`.

        The read gives at least one batch if there is one, then as many as fit into `max_bytes`; a sequential read may
        give fewer. It gives none if retention has dropped `from_index`. See `interfaces.storage`.

        Raises:
            CorruptionError: A body or the chain does not match its checksum.
            DeadlineExceededError: The disk did not answer within `read_deadline_ms`, or the log changed during each of
                8 tries.
        """
        for _attempt in range(_ATTEMPTS_MAX):
            log = await self._log(partition, segment)
            if log is None:
                return await self._read_once(None, partition, segment, from_index, until_index, max_bytes, sequential)
            if from_index < log.first_index:
                return []
            cuts, moves = log.cuts, log.moves
            try:
                found = await self._read_once(log, partition, segment, from_index, until_index, max_bytes, sequential)
            except StorageError:
                if (log.cuts, log.moves) == (cuts, moves):
                    raise
                continue
            if log.cuts == cuts:
                return self._noted(log, found)
        raise DeadlineExceededError(f"partition id {partition} segment {segment} changes faster than it can be read")

    async def find(
        self, partition: int, segment: int, until_index: int, measure: Measure, value: int
    ) -> BatchPlace | None:
        """The first batch that reaches `value`, of those that begin below `until_index`.

        Raises:
            CorruptionError: A header does not match its checksum, or a batch is missing.
            DeadlineExceededError: The disk did not answer in time.
        """
        for _attempt in range(_ATTEMPTS_MAX):
            log = await self._log(partition, segment)
            if log is None or not log.runs:
                return None
            cuts, moves = log.cuts, log.moves
            kept = self._head_cache.of_segment(partition, segment)
            newest = [batch for batch in kept if batch.header.base_index >= log.runs[0].start]
            found, is_before = find_in_memory(newest, log.position, until_index, measure, value)
            on_disk_until = min(until_index, newest[0].header.base_index if newest else log.tail)
            if not is_before or log.runs[0].start >= on_disk_until:
                return found
            try:
                earlier = await self._in_time(
                    self._work(
                        find_on_disk, self._engine, self._checksum, partition, segment, log.runs, on_disk_until,
                        measure, value,
                    )
                )  # fmt: skip
            except StorageError:
                if (log.cuts, log.moves) == (cuts, moves):
                    raise
                continue
            if log.cuts == cuts:
                return earlier if earlier is not None else found
        raise DeadlineExceededError(f"partition id {partition} segment {segment} changes faster than it can be read")

    async def rows(self, partition: int, segment: int, read: Callable[..., list[_Result]], *args: Any) -> list[_Result]:
        """What `read` finds of a log's delayed batches, in a worker thread (`delayed`).

        Raises:
            CorruptionError: A row cannot be read, or is missing.
            DeadlineExceededError: The disk did not answer in time.
        """
        for _attempt in range(_ATTEMPTS_MAX):
            log = self._table.log(partition, segment)
            if log is None or log.delayed_ticket is None:
                return []
            if log.delayed_ticket > self._writer.written_ticket:
                await self._writer.wait(log.delayed_ticket)
            cuts = log.cuts
            try:
                found = await self._in_time(self._work(read, self._engine, partition, segment, log.first_index, *args))
            except StorageError:
                if log.cuts == cuts:
                    raise
                continue
            if log.cuts == cuts:
                return found
        raise DeadlineExceededError(f"partition id {partition} segment {segment} changes faster than it can be read")

    def _noted(self, log: ExtentLog, found: list[Batch]) -> list[Batch]:
        """Note the staged batches among those that were read, because another log may adopt their bodies."""
        for batch in found:
            if batch.header.flags & FLAG_STAGED and batch.header.base_index < log.tail:
                self._lending.note(log, batch.header)
        return found

    def _is_moving(self, log: ExtentLog) -> bool:
        return log.moved_ticket > self._writer.written_ticket

    async def _log(self, partition: int, segment: int) -> ExtentLog | None:
        """A segment's log; None if there is none. Waits until batches that are being moved are at their new place."""
        while (log := self._table.log(partition, segment)) and self._is_moving(log):
            await self._writer.wait(log.moved_ticket)
        return log

    async def read_disk(
        self, partition: int, segment: int, stretches: Sequence[Stretch], max_bytes: int
    ) -> list[Stored]:
        """Read from the engine, in a worker thread. No later read continues here."""
        return await self._in_time(
            self._work(read_stretches, self._engine, self._checksum, partition, segment, stretches, max_bytes)
        )

    async def _read_on(
        self, log: ExtentLog, partition: int, segment: int, from_index: int, until_index: int, max_bytes: int
    ) -> list[Batch]:
        """Read from the engine with the reader's place, or with a new one. Keeps the place for the next read."""
        place = self._scans.take(partition, segment, from_index, log)
        if place is None:
            scan = Scan(self._engine, self._checksum, partition, segment)
            place = Place(partition, segment, log, scan, asyncio.get_running_loop().time())
        try:
            if place.ahead is not None:
                await self._in_time(place.ahead)
                self._scans.arrived(place)
            found = place.take(until_index, max_bytes)
            if not found:
                stretches = plan(log, from_index, until_index)
                stored = await self._in_time(self._work(place.scan.read, stretches, max_bytes))
                found = [one.batch for one in stored]
        except BaseException:
            self._scans.drop(place)
            raise
        self._keep(place, log, found[-1].header.end_index if found else from_index, until_index)
        return found

    def _keep(self, place: Place, log: ExtentLog, index: int, until_index: int) -> None:
        """Keep a place for the next read, and have the next piece read ahead."""
        if not place.is_of(log) or not self._scans.keep(place, index) or not self._scans.may_read_ahead(place):
            return
        first = self._head_cache.first_index(place.partition, place.segment)
        stretches = plan(log, index, until_index if first is None else min(until_index, first))
        if stretches:
            self._scans.read_ahead(place, stretches)

    async def _read_once(
        self,
        log: ExtentLog | None,
        partition: int,
        segment: int,
        from_index: int,
        until_index: int,
        max_bytes: int,
        sequential: bool,
    ) -> list[Batch]:
        first = self._head_cache.first_index(partition, segment)
        found: list[Batch] = []
        if log is not None and from_index < log.tail and (first is None or from_index < first):
            until = until_index if first is None else min(until_index, first)
            if sequential:
                found = await self._read_on(log, partition, segment, from_index, until, max_bytes)
            else:
                stored = await self.read_disk(partition, segment, plan(log, from_index, until), max_bytes)
                found = [one.batch for one in stored]
        index, left = _rest(found, from_index, max_bytes)
        first = self._head_cache.first_index(partition, segment)
        if first is not None and first <= index < until_index and (left > 0 or not found):
            _join(found, self._head_cache.read(partition, segment, index, until_index, left), left)
            index, left = _rest(found, from_index, max_bytes)
        tail = log.tail if log is not None else 0
        while tail <= index < until_index and (left > 0 or not found):
            more = await self._read_copy(partition, segment, index, until_index, left)
            _join(found, more, left)
            if not more or found[-1] is not more[-1]:
                break
            index, left = _rest(found, from_index, max_bytes)
        return found

    async def _read_copy(
        self, partition: int, segment: int, from_index: int, until_index: int, max_bytes: int
    ) -> list[Batch]:
        ref = self._copies.covering(partition, segment, from_index)
        if ref is None:
            return []
        tail = ref.tail
        if tail is None:
            value = await self._in_time(self._work(self._engine.get, META, ref.key))
            if value is None:
                return []  # the tail copy was dropped in the meantime
            _partition, kind, number, rest = keys.split_meta_key(ref.key)
            is_alone = kind == keys.TAIL
            tail = read_tail(value) if is_alone else read_preparation(number, rest, value).tail
            assert tail is not None
            verify_tail(tail, self._checksum)
        found: list[Batch] = []
        size = 0
        for batch in tail.batches:
            if batch.header.end_index <= from_index or batch.header.base_index >= until_index:
                continue
            size += batch.size_bytes
            if found and size > max_bytes:
                break
            found.append(batch)
        return found

    def _work(self, function: Callable[..., _Result], *args: Any) -> asyncio.Future[_Result]:
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def _in_time(self, result: Awaitable[_Result]) -> _Result:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await result
        except TimeoutError as error:
            raise DeadlineExceededError(f"the disk did not answer a read within {self._deadline_s} s") from error


def _rest(found: list[Batch], from_index: int, max_bytes: int) -> tuple[int, int]:
    """The index at which to continue, and the bytes that may still be read."""
    if not found:
        return from_index, max_bytes
    return found[-1].header.end_index, max_bytes - sum(batch.size_bytes for batch in found)


def _join(found: list[Batch], more: list[Batch], left: int) -> None:
    """Add batches of the next source to those found, as far as they fit. Checks that each follows the one before."""
    for batch in more:
        if found:
            verify_link(found[-1].header, batch.header)
            left -= batch.size_bytes
            if left < 0:
                return
        found.append(batch)
