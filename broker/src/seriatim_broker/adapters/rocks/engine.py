"""The one place that knows rocksdict: opening, column families, writing, flushing, iterating.

What rocksdict does with the interpreter lock decides how it may be called (measured, rocksdict 0.3.29, RocksDB 10.4,
on a disk that takes 25 ms for each write and sync):

    flush_wal, flush, compact_range           let go of it: they belong in a worker thread
    create_column_family, drop_…, set_options keep it for 150 to 550 ms: manifest and options file are synced
    opening, closing                          keep it for 100 ms and more: before the broker serves, and after
    write                                     keeps it, and does not reach the disk (below)
    get, iterators                            keep it for each block that must be read

While it is kept the event loop stands still, whatever thread made the call: no heartbeat is answered. So:

* All column families are made while the database is opened. An extent that is used up is emptied and used again, never
  dropped: its column family is of the FIFO kind with automatic compaction off, and a compaction asked for by
  `compact_range` then drops every file without reading it, in one durable step.
  (So no tool that compacts may be let loose on the directory. What it drops is missed at the next start or read.)
* `write` must never reach the disk. With `manual_wal_flush` it fills a buffer in memory; and since RocksDB holds one
  mutex while it hands that buffer to the disk, `write` must never run beside `flush_wal`. The writer takes care of
  that. What is left of the disk in `write` is the making of a new, empty log file when a memtable is full.
* Reads run in worker threads, and hold up the loop for one block at a time. What begins and ends them takes RocksDB's
  big mutex, and must not run beside the first half of `flush_wal` either. Otherwise (seen, 22 ms):
    1. the flusher hands the buffer to the disk, under the mutex of the write-ahead log, without the interpreter lock;
    2. a background thread, at the end of a flush, takes the big mutex, then waits for that of the log;
    3. a reader waits for the big mutex, with the interpreter lock, and so does the loop.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog
from rocksdict import CompactOptions, Rdict, WriteBatch, WriteOptions
from seriatim_api.errors import CorruptionError, StorageError

from . import options
from .floor import (
    CURSOR,
    DELETE,
    EXTENT_PREFIX,
    INDEX,
    META,
    PUT,
    REMEDY,
    Family,
    FlushFailedError,
    Op,
    WriteRefusedError,
    extent_name,
)
from .settings import RocksSettings

_log = structlog.get_logger(__name__)

EXIT_DISK_FAILED: Final = 74
"""Exit status of a process that cannot trust its disk (EX_IOERR)."""

_KEY_MAX: Final = b"\xff" * 32


def die(reason: str, error: BaseException | None = None) -> NoReturn:
    """End the process at once: what the disk holds is no longer known, so nothing more may be promised."""
    _log.critical("disk failed, the process ends", reason=reason, error=str(error) if error is not None else None)
    os._exit(EXIT_DISK_FAILED)


class Engine:
    """An open database."""

    def __init__(self, path: Path, settings: RocksSettings) -> None:
        """Open, or make, the database in `path`; replays what the last run left in its write-ahead log.

        Extents 1 to `settings.extents` are there afterwards, and those above that were there before. Blocks.

        Raises:
            CorruptionError: A log or table is damaged. A record cut off at the end of the log is not damage.
            StorageError: It cannot be opened for another reason.
        """
        assert settings.extents is not None
        self._write_options = WriteOptions()
        self._write_options.no_slowdown = True
        self._write_options.sync = False
        self._not_beside_buffer = threading.Lock()
        self._compact_options = CompactOptions()
        self._compact_options.set_exclusive_manual_compaction(False)  # compactions of other families go on
        try:
            known = Rdict.list_cf(str(path), options.raw()) if (path / "CURRENT").exists() else []
            names = {META, INDEX, CURSOR, *map(extent_name, range(1, settings.extents + 1)), *known} - {"default"}
            extents = sorted(name for name in names if name.startswith(EXTENT_PREFIX))
            database, kinds = options.load(settings)
            kind_of = {name: kinds[options.EXTENT if name in extents else options.SMALL] for name in sorted(names)}
            self._db = Rdict(str(path), database, kind_of)
            self._families: dict[str, Rdict] = {name: self._db.get_column_family(name) for name in names}
            self._handles: dict[str, Family] = {name: self._db.get_column_family_handle(name) for name in names}
            options.check(path, extents)
        except Exception as error:
            raise _opening_error(path, error) from error
        self.extents = [int(name.removeprefix(EXTENT_PREFIX)) for name in extents]

    def family(self, name: str) -> Family:
        """The handle of a column family, for writing."""
        return self._handles[name]

    # ---- extents ----------------------------------------------------------------------------------------

    def empty_extent(self, extent: int) -> bool:
        """Take everything out of an extent, durably; for a worker thread. Returns whether it is empty now.

        Nobody may write to it meanwhile.
        """
        family = self._families[extent_name(extent)]
        try:
            family.compact_range(b"", _KEY_MAX, self._compact_options)
        except Exception as error:
            die(f"extent {extent} cannot be emptied", error)
        with self.extent_cursor(extent) as cursor:
            return next(cursor.forward(b""), None) is None

    def extent_size_bytes(self, extent: int) -> int:
        """What an extent takes, on disk and in memory; an estimate."""
        family = self._families[extent_name(extent)]
        tables = family.property_int_value("rocksdb.total-sst-files-size") or 0
        memory = family.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
        return int(tables) + int(memory)

    # ---- writing ----------------------------------------------------------------------------------------

    def write(self, ops: Iterable[Op]) -> int:
        """Apply all or nothing, in memory; returns the sequence number after it.

        Never beside `flush_wal` (see the module). Any error but a refusal ends the process.

        Raises:
            WriteRefusedError: Memtables are waiting for the disk; try again soon.
        """
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for kind, family, key, value in ops:
            if kind == PUT:
                put(key, value if type(value) is bytes else b"".join(value), family)
            elif kind == DELETE:
                batch.delete(key, family)
            else:
                batch.delete_range(key, value, family)
        try:
            self._db.write(batch, self._write_options)
        except Exception as error:
            if "incomplete" in str(error).lower():
                raise WriteRefusedError(str(error)) from error
            die("a write failed", error)
        return self.sequence()

    def flush_wal(self) -> None:
        """Write the log's buffer out and sync it; for a worker thread.

        Raises:
            FlushFailedError: What the disk holds is no longer known.
        """
        try:
            with self._not_beside_buffer:
                self._db.flush_wal(False)
            self._db.flush_wal(True)
        except Exception as error:
            raise FlushFailedError(str(error)) from error

    def sequence(self) -> int:
        """The newest sequence number."""
        number: int = self._db.latest_sequence_number()
        return number

    # ---- reading ----------------------------------------------------------------------------------------

    def cursor(self, name: str, end: bytes | None = None) -> Cursor:
        """A new iterator over a column family, as it is now, up to `end`. To be closed."""
        with self._not_beside_buffer:
            return Cursor(self._families[name].iter(), end, self._not_beside_buffer)

    def extent_cursor(self, extent: int, end: bytes | None = None) -> Cursor:
        """A new iterator over an extent. To be closed.

        Raises:
            CorruptionError: There is no such extent.
        """
        return self.cursor(self._extent_name(extent), end)

    def get_from_extent(self, extent: int, key: bytes) -> bytes | None:
        """One value of an extent, or None.

        Raises:
            CorruptionError: There is no such extent, or the block does not match its checksum.
        """
        return self.get(self._extent_name(extent), key)

    def _extent_name(self, extent: int) -> str:
        name = extent_name(extent)
        if name not in self._families:
            raise CorruptionError(f"extent {extent} is missing, but the index names it", extent=extent)
        return name

    def get(self, name: str, key: bytes) -> bytes | None:
        """One value, or None.

        Raises:
            CorruptionError: The block that holds it does not match its checksum.
        """
        try:
            with self._not_beside_buffer:
                value: bytes | None = self._families[name].get(key)
        except Exception as error:
            raise reading_error(error) from error
        return value

    # ---- the end ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write all memtables out, so that the next start has no log to replay, and close; for a worker thread."""
        try:
            for family in self._families.values():
                family.flush(True)
            self._handles.clear()
            self._families.clear()
            self._db.close()
        except Exception as error:
            die("the database cannot be closed", error)


class Cursor:
    """An iterator whose end is never mistaken: after the last key its status is asked.

    The upper bound is compared here and not given to RocksDB: rocksdict 0.3.29 hands on a pointer to the bound's
    bytes and lets go of them (seen: an iterator that ends before its first key).
    """

    __slots__ = ("_end", "_iter", "_lock")

    def __init__(self, iterator: Any, end: bytes | None, lock: threading.Lock) -> None:
        self._iter = iterator
        self._end = end
        self._lock = lock

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_exception: object) -> None:
        with self._lock:
            self._iter = None

    def forward(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from the first at or above `key`.

        Raises:
            CorruptionError: A block does not match its checksum.
        """
        iterator, end = self._iter, self._end
        iterator.seek(key)
        while iterator.valid():
            key = iterator.key()
            if end is not None and key >= end:
                return
            yield key, iterator.value()
            iterator.next()
        self._check()

    def at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The last key at or below `key` with its value, or None.

        Raises:
            CorruptionError: A block does not match its checksum.
        """
        iterator = self._iter
        iterator.seek_for_prev(key)
        if iterator.valid():
            return iterator.key(), iterator.value()
        self._check()
        return None

    def _check(self) -> None:
        try:
            self._iter.status()
        except Exception as error:
            raise reading_error(error) from error


def reading_error(error: Exception) -> StorageError:
    """The typed error for a failed read."""
    if _is_corruption(error):
        return CorruptionError(f"what was read from the disk is not what was written: {error}")
    return StorageError(f"the disk cannot be read: {error}")


def _opening_error(path: Path, error: Exception) -> StorageError:
    if isinstance(error, StorageError):
        return error
    if _is_corruption(error):
        return CorruptionError(
            f"the database in {path} is damaged ({error}); its log is never cut at a damaged record. {REMEDY}"
        )
    return StorageError(f"the database in {path} cannot be opened: {error}")


def _is_corruption(error: Exception) -> bool:
    text = str(error).lower()
    return "corrupt" in text or "checksum" in text or "no such file" in text
