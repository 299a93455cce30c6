"""Reads of a segment's log from the engine, batch after batch. They verify each batch, and the next read can continue.

This module runs in worker threads only. rocksdict keeps the interpreter lock during each step of an iterator. So a step
is one batch, and the event loop has its turn between two steps.

A new iterator costs half a millisecond before its first batch. It is opened, it looks back for the batch that contains
the index, and it seeks in each file of the extent. A scan that continues pays that once. The price is that an iterator
keeps alive the files and memtables with which it began. `scans` limits the number of scans and their age.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from seriatim_api.batch import BatchHeader, Checksum
from seriatim_api.errors import CorruptionError

from ...core.values.log import Batch
from .checks import verify, verify_link
from .codec import BodyPlace, read_body, read_header, read_prefix
from .extents import ExtentLog, ExtentRun
from .floor import Database, Rows
from .keys import batch_key, segment_range, split_batch_key

_NO_LIMIT_BYTES: Final = 1 << 62
_NOTHING: Final[Iterator[tuple[bytes, bytes]]] = iter(())


class Stretch(NamedTuple):
    """The indexes [from_index, until_index) of a segment, which are in one extent."""

    extent: int
    from_index: int
    until_index: int


class Stored(NamedTuple):
    """A batch, with the commit and the position that are before it in its value on disk."""

    commit: int
    position: int
    batch: Batch


def plan(log: ExtentLog, from_index: int, until_index: int) -> list[Stretch]:
    """The stretches that have [from_index, until_index) of a segment's log, ascending."""
    until_index = min(until_index, log.tail)
    stretches: list[Stretch] = []
    for place in range(log.run_at(from_index), len(log.runs)):
        run = log.runs[place]
        begin, end = max(run.start, from_index), min(log.end_of(place)[0], until_index)
        if begin < end:
            stretches.append(Stretch(run.extent, begin, end))
    return stretches


class Scan:
    """One reader's way through a segment's log, from one batch to the next. Its calls run one at a time."""

    def __init__(self, engine: Database, checksum: Checksum, partition: int, segment: int) -> None:
        self._engine = engine
        self._checksum = checksum
        self._partition = partition
        self._segment = segment
        self._lock = threading.Lock()
        self._is_closed = False
        self._cursor: AbstractContextManager[Rows] | None = None
        self._extent = 0  # of the cursor
        self._rows = _NOTHING
        self._last: BatchHeader | None = None  # of the batch that was returned last; the next batch must follow it
        self._held: Stored | None = None  # a batch that did not fit; the next read returns it first

    @property
    def held_bytes(self) -> int:
        """Bytes that the scan keeps in memory between two reads. During a read it may be the number before or after."""
        held = self._held
        return 0 if held is None else held.batch.size_bytes

    def read(self, stretches: Sequence[Stretch], max_bytes: int) -> list[Stored]:
        """Batches of the stretches, at least one, then up to `max_bytes`.

        The first read begins with the batch that contains the first index. Each later read must begin at the index
        where the read before ended. If a batch cannot be read, the read gives the good batches before it. A read that
        begins at the bad batch fails.

        Rule `good-before-damage` (I13): two copies that are damaged in different places are repaired from each other.
        Without it:

        1. Am's copy is damaged at index 5, and As's copy at index 2.
        2. Am reads indexes 0 to 9, gets only an error, and asks As for all of them.
        3. As's read of 0 to 9 gives only an error too, although As's index 5 is good. Both copies stay damaged.

        Raises:
            CorruptionError: The first batch is missing, is out of its place, or does not match its checksum. The scan
                cannot be used any more.
        """
        found: list[Stored] = []
        size = 0
        with self._lock:
            if self._is_closed:
                return found  # the scan was closed before this read began
            for stretch in stretches:
                index = stretch.from_index
                while index < stretch.until_index:
                    # Rule `storage-damage-is-end` (I13): damage is not the end of the log. Without it:
                    # 1. Batch a of As's copy is damaged. A reader asks for a. The read gives no batch and no error.
                    # 2. As does not know that a is damaged, and does not fetch it from Am. The reader waits for ever.
                    # 3. If a is uncommitted and As starts, As believes that its log ends before a.
                    try:
                        stored = self._held or self._next(stretch.extent, index)
                    except CorruptionError:
                        if not found:
                            raise
                        self._close_cursor()
                        return found
                    # This must raise, and not end the read: a later read that begins at this batch could not see that
                    # the batch does not follow the one before.
                    self._check_place(stored.batch.header, stretch.extent, index)
                    self._held = stored
                    size += stored.batch.size_bytes
                    if found and size > max_bytes:
                        return found
                    found.append(stored)
                    self._last, self._held = stored.batch.header, None
                    index = stored.batch.header.end_index
        return found

    def let_go(self) -> None:
        """Close the iterator. The next read opens another one at the same place."""
        with self._lock:
            self._close_cursor()

    def close(self) -> None:
        """Close the iterator for good. Waits for a read that is under way."""
        with self._lock:
            self._is_closed = True
            self._close_cursor()

    def _next(self, extent: int, index: int) -> Stored:
        """The batch after the last one, or the first batch of the scan. Its body and header are verified."""
        row = next(self._rows, None) if self._cursor is not None and self._extent == extent else None
        if row is None:  # no iterator is open, or the open one began before the next batch was written
            row = self._open(extent, index)
        if row is None:
            raise self._missing(extent, index)
        return read_stored(self._engine, self._checksum, *row)

    def _check_place(self, header: BatchHeader, extent: int, index: int) -> None:
        """Check that a batch follows the last one, or that the first batch of the scan contains the index."""
        if self._last is not None:
            verify_link(self._last, header)
        elif not header.base_index <= index < header.end_index:
            raise self._missing(extent, index)

    def _open(self, extent: int, index: int) -> tuple[bytes, bytes] | None:
        """Open a new iterator, which sees all that is written by now. Returns its first row."""
        self._close_cursor()
        low, high = segment_range(self._partition, self._segment)
        cursor = self._engine.extent_cursor(extent, high)
        rows = cursor.__enter__()
        self._cursor, self._extent = cursor, extent
        begin = batch_key(self._partition, self._segment, index)
        if self._last is None:
            before = rows.at_or_before(begin)
            if before is not None and before[0] >= low:
                begin = before[0]
        self._rows = rows.forward(begin)
        return next(self._rows, None)

    def _close_cursor(self) -> None:
        cursor, self._cursor, self._rows = self._cursor, None, _NOTHING
        if cursor is not None:
            cursor.__exit__(None, None, None)

    def _missing(self, extent: int, index: int) -> CorruptionError:
        return CorruptionError(
            f"partition id {self._partition} segment {self._segment}: batches from index {index} on are missing in "
            f"extent {extent}"
        )


def read_stored(engine: Database, checksum: Checksum, key: bytes, value: bytes) -> Stored:
    """The verified batch that is stored under a key. If its body is stored apart, this reads it too.

    Raises:
        CorruptionError: The batch does not match its checksum, or its body is missing.
    """
    commit, position = read_prefix(value)
    header, body = read_header(value), read_body(value)
    if isinstance(body, BodyPlace):
        found = engine.get_from_extent(body.extent, body.key)
        if found is None:
            raise CorruptionError(
                f"partition id {header.partition} batch {header.segment}:{header.base_index}: its body is missing in "
                f"extent {body.extent}"
            )
        body = found
    stored = Stored(commit, position, Batch(header, body))
    verify(stored.batch, key, checksum)
    return stored


def read_stretches(
    engine: Database, checksum: Checksum, partition: int, segment: int, stretches: Sequence[Stretch], max_bytes: int
) -> list[Stored]:
    """One read like `Scan.read`, with no later read that continues."""
    scan = Scan(engine, checksum, partition, segment)
    try:
        return scan.read(stretches, max_bytes)
    finally:
        scan.close()


def read_all(
    engine: Database, checksum: Checksum, partition: int, segment: int, stretches: Sequence[Stretch]
) -> list[Stored]:
    """All batches of the stretches, without a limit of size.

    Raises:
        CorruptionError: A batch is missing or damaged.
    """
    found: list[Stored] = []
    for stretch in stretches:
        index = stretch.from_index
        while index < stretch.until_index:
            rest = [stretch._replace(from_index=index)]
            some = read_stretches(engine, checksum, partition, segment, rest, _NO_LIMIT_BYTES)
            if not some:
                break
            if found:
                verify_link(found[-1].batch.header, some[0].batch.header)
            found += some
            index = some[-1].batch.header.end_index
    return found


def last_of_run(engine: Database, checksum: Checksum, partition: int, segment: int, run: ExtentRun) -> Stored:
    """The last batch of a segment's last run, verified.

    Raises:
        CorruptionError: The run has no batch, or its last batch does not match its checksum.
    """
    low, high = segment_range(partition, segment)
    with engine.extent_cursor(run.extent) as cursor:
        found = cursor.at_or_before(high)
    if found is None or not low <= found[0] < high or split_batch_key(found[0])[2] < run.start:
        raise CorruptionError(
            f"partition id {partition} segment {segment}: the index names batches from {run.start} on in extent "
            f"{run.extent}, which are not there"
        )
    return read_stored(engine, checksum, *found)
