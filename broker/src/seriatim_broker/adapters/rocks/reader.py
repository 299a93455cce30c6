"""Reading batches: from memory at the head of the log, from the disk before that, from tail copies behind its end.

What comes from the disk is verified: place, body and chain of each batch, and the chain from each to the next. That
is done in worker threads. rocksdict keeps the interpreter lock inside each step of an iterator, so a step is one
batch: between two of them the event loop has its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from seriatim_api.batch import Checksum, chain_is_intact
from seriatim_api.errors import CorruptionError, DeadlineExceededError, StorageError

from ...core.log import Batch, TailCopy
from ...core.positions import BatchPlace, Measure
from . import keys
from .codec import read_batch, read_prefix, read_preparation, read_tail
from .copies import CopyTable
from .extents import ExtentTable, Run, SegmentLog
from .finding import find_in_memory, find_on_disk
from .floor import META, Database, Rows
from .head_cache import HeadCache
from .keys import batch_key, segment_range, split_batch_key
from .settings import RocksSettings
from .writer import Writer

_THREADS: Final = 2
_ATTEMPTS_MAX: Final = 8

_Result = TypeVar("_Result")


class Stretch(NamedTuple):
    """Indexes of [from_index, until_index) that lie in one extent."""

    extent: int
    from_index: int
    until_index: int


class Stored(NamedTuple):
    """A batch with what stands before it in its value."""

    commit: int
    position: int
    batch: Batch


class Reader:
    """All reading while the broker serves; on the event loop, but for what it hands to its threads."""

    def __init__(
        self,
        engine: Database,
        checksum: Checksum,
        table: ExtentTable,
        copies: CopyTable,
        head: HeadCache,
        writer: Writer,
        settings: RocksSettings,
    ) -> None:
        self._engine = engine
        self._checksum = checksum
        self._table = table
        self._copies = copies
        self._head = head
        self._writer = writer
        self._deadline_s = settings.read_deadline_ms / 1000
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="seriatim-read")

    def close(self) -> None:
        """Wait for the reads under way. Blocks."""
        self._threads.shutdown()

    async def read(
        self, partition: int, segment: int, from_index: int, until_index: int, max_bytes: int
    ) -> list[Batch]:
        """Batches that hold indexes of [from_index, until_index), from the one that contains `from_index`.

        At least one if there is any, then as many as fit in `max_bytes`. None if retention has dropped `from_index`.

        Raises:
            CorruptionError: A body or the chain does not match its checksum.
            DeadlineExceededError: The disk did not answer in time.
        """
        for _attempt in range(_ATTEMPTS_MAX):
            log = await self._log(partition, segment)
            if log is None:
                return await self._read_once(None, partition, segment, from_index, until_index, max_bytes)
            if from_index < log.first_index:
                return []
            cuts, moves = log.cuts, log.moves
            try:
                found = await self._read_once(log, partition, segment, from_index, until_index, max_bytes)
            except StorageError:
                if (log.cuts, log.moves) == (cuts, moves):
                    raise
                continue
            if log.cuts == cuts:
                return found
        raise DeadlineExceededError(f"partition {partition} segment {segment} changes faster than it can be read")

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
            kept = self._head.of_segment(partition, segment)
            newest = [batch for batch in kept if batch.header.base_index >= log.runs[0].start]
            found, is_before = find_in_memory(newest, log.position, until_index, measure, value)
            on_disk_until = min(until_index, newest[0].header.base_index if newest else log.tail)
            if not is_before or log.runs[0].start >= on_disk_until:
                return found
            try:
                earlier = await self._in_thread(
                    find_on_disk, self._engine, self._checksum, partition, segment, log.runs, on_disk_until, measure,
                    value,
                )  # fmt: skip
            except StorageError:
                if (log.cuts, log.moves) == (cuts, moves):
                    raise
                continue
            if log.cuts == cuts:
                return earlier if earlier is not None else found
        raise DeadlineExceededError(f"partition {partition} segment {segment} changes faster than it can be read")

    async def _log(self, partition: int, segment: int) -> SegmentLog | None:
        """A segment's log, once everything that is being moved is where the log says."""
        while (log := self._table.log(partition, segment)) and log.moved_ticket > self._writer.written_ticket:
            await self._writer.wait(log.moved_ticket)
        return log

    async def read_disk(
        self, partition: int, segment: int, stretches: Sequence[Stretch], max_bytes: int
    ) -> list[Stored]:
        """Read from the engine, in a worker thread."""
        return await self._in_thread(
            read_stretches, self._engine, self._checksum, partition, segment, stretches, max_bytes
        )

    async def _read_once(
        self, log: SegmentLog | None, partition: int, segment: int, from_index: int, until_index: int, max_bytes: int
    ) -> list[Batch]:
        first = self._head.first_index(partition, segment)
        found: list[Batch] = []
        if log is not None and from_index < log.tail and (first is None or from_index < first):
            stretches = plan(log, from_index, until_index if first is None else min(until_index, first))
            stored = await self.read_disk(partition, segment, stretches, max_bytes)
            found = [one.batch for one in stored]
        index, left = _rest(found, from_index, max_bytes)
        first = self._head.first_index(partition, segment)
        if first is not None and first <= index < until_index and (left > 0 or not found):
            _join(found, self._head.read(partition, segment, index, until_index, left), left)
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
            value = await self._in_thread(self._engine.get, META, ref.key)
            if value is None:
                return []  # dropped meanwhile
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

    async def _in_thread(self, function: Callable[..., _Result], *args: Any) -> _Result:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
        except TimeoutError as error:
            raise DeadlineExceededError(f"the disk did not answer a read within {self._deadline_s} s") from error


def plan(log: SegmentLog, from_index: int, until_index: int) -> list[Stretch]:
    """The stretches that hold [from_index, until_index) of a segment's log, ascending."""
    until_index = min(until_index, log.tail)
    stretches: list[Stretch] = []
    for place in range(log.run_at(from_index), len(log.runs)):
        run = log.runs[place]
        begin, end = max(run.start, from_index), min(log.end_of(place)[0], until_index)
        if begin < end:
            stretches.append(Stretch(run.extent, begin, end))
    return stretches


def read_stretches(
    engine: Database, checksum: Checksum, partition: int, segment: int, stretches: Iterable[Stretch], max_bytes: int
) -> list[Stored]:
    """Batches of the stretches, from the one that contains the first index; at least one, then up to `max_bytes`.

    Raises:
        CorruptionError: Something is missing, out of its place, or does not match its checksum.
    """
    found: list[Stored] = []
    size = 0
    for stretch in stretches:
        end = segment_range(partition, segment, stretch.until_index)[0]
        with engine.extent_cursor(stretch.extent, end) as cursor:
            begin = batch_key(partition, segment, stretch.from_index)
            if not found:
                begin = _key_of_first(cursor, begin, segment_range(partition, segment)[0])
            index = stretch.from_index
            for key, value in cursor.forward(begin):
                stored = Stored(*read_prefix(value), read_batch(value))
                verify(stored.batch, key, checksum)
                if found:
                    verify_link(found[-1].batch, stored.batch)
                size += stored.batch.size_bytes
                if found and size > max_bytes:
                    return found
                found.append(stored)
                index = stored.batch.header.end_index
        if index < stretch.until_index:
            raise CorruptionError(
                f"partition {partition} segment {segment}: batches from index {index} on are missing in extent "
                f"{stretch.extent}"
            )
    return found


def _key_of_first(cursor: Rows, key: bytes, low: bytes) -> bytes:
    """The key of the batch that contains the index of `key`: the last that begins at or before it, and above `low`."""
    found = cursor.at_or_before(key)
    return found[0] if found is not None and found[0] >= low else key


def last_of_run(engine: Database, checksum: Checksum, partition: int, segment: int, run: Run) -> Stored:
    """The last batch of a segment's last run, verified.

    Raises:
        CorruptionError: There is none, or it does not match its checksum.
    """
    low, high = segment_range(partition, segment)
    with engine.extent_cursor(run.extent) as cursor:
        found = cursor.at_or_before(high)
    if found is None or not low <= found[0] < high or split_batch_key(found[0])[2] < run.start:
        raise CorruptionError(
            f"partition {partition} segment {segment}: the index names batches from {run.start} on in extent "
            f"{run.extent}, which are not there"
        )
    key, value = found
    stored = Stored(*read_prefix(value), read_batch(value))
    verify(stored.batch, key, checksum)
    return stored


def verify(batch: Batch, key: bytes, checksum: Checksum) -> None:
    """Check that a batch is the one that was put under `key`.

    Raises:
        CorruptionError: It is not.
    """
    header = batch.header
    place = (header.partition, header.segment, header.base_index)
    if place != split_batch_key(key):
        raise CorruptionError(f"the batch stored for {split_batch_key(key)} says that it is {place}")
    _verify_content(batch, checksum)


def verify_link(earlier: Batch, later: Batch) -> None:
    """Check that one batch follows the other.

    Raises:
        CorruptionError: It does not.
    """
    if later.header.base_index != earlier.header.end_index:
        raise CorruptionError(f"{_name(later)}: follows index {earlier.header.end_index} on disk, but begins elsewhere")
    if later.header.previous_checksum != earlier.header.checksum:
        raise CorruptionError(f"{_name(later)}: its checksum chain does not continue the one before it")


def verify_tail(tail: TailCopy, checksum: Checksum) -> None:
    """Check a tail copy.

    Raises:
        CorruptionError: A body or the chain does not match its checksum.
    """
    for batch in tail.batches:
        _verify_content(batch, checksum)
    for earlier, later in zip(tail.batches, tail.batches[1:], strict=False):
        verify_link(earlier, later)


def _verify_content(batch: Batch, checksum: Checksum) -> None:
    header = batch.header
    if len(batch.body) != header.body_length:
        raise CorruptionError(f"{_name(batch)}: its body has {len(batch.body)} bytes, not {header.body_length}")
    if checksum(0, batch.body) != header.body_crc:
        raise CorruptionError(f"{_name(batch)}: its body does not match its checksum")
    if not chain_is_intact(header, checksum):
        raise CorruptionError(f"{_name(batch)}: its header does not match the checksum chain")


def _name(batch: Batch) -> str:
    header = batch.header
    return f"partition {header.partition} batch {header.segment}:{header.base_index}"


def _rest(found: list[Batch], from_index: int, max_bytes: int) -> tuple[int, int]:
    """The index to go on from, and the bytes left."""
    if not found:
        return from_index, max_bytes
    return found[-1].header.end_index, max_bytes - sum(batch.size_bytes for batch in found)


def _join(found: list[Batch], more: list[Batch], left: int) -> None:
    """Add batches of the next source as far as they fit, checking that they follow."""
    for batch in more:
        if found:
            verify_link(found[-1], batch)
            left -= batch.size_bytes
            if left < 0:
                return
        found.append(batch)
