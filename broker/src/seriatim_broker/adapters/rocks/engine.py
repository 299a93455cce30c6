"""The RocksDB database, through rocksdict.

Some calls of rocksdict keep the interpreter lock, and this decides how we may call them. (Measured with rocksdict
0.3.29 and RocksDB 10.4, on a disk that takes 25 ms for each write and flush.)

    flush_wal, flush, compact_range           release the lock: we call them in a worker thread
    create_column_family, drop_…, set_options keep it for 150 to 550 ms: they flush the manifest and the options file
    opening, closing                          keep it for 100 ms and more: before the broker serves, and after
    write                                     keeps it, and does not reach the disk (below)
    get, iterators                            keep it for each block that must be read

While any thread keeps the lock, the event loop stands still, and the broker answers no heartbeat. So:

* All column families are made while the database is opened. An extent that is used up is emptied and used again, and
  never dropped. Its column family is of the FIFO kind, with automatic compaction off. So `compact_range` drops every
  file without reading it, in one durable step. (For this reason, never run a tool that compacts on the directory. The
  next start or read would miss what it dropped.)
* `write` must never reach the disk. With `manual_wal_flush` it fills a buffer in memory. RocksDB holds a mutex while it
  hands that buffer to the disk, so `write` must never run at the same time as `flush_wal`. The writer sees to that.
  `write` touches the disk only when a memtable is full: it makes a new, empty log file. If writes wait for a late
  flush, it also hands their bytes, at most `late_size_bytes_max`, to the kernel first (seen: 0.5 ms for 1 MB).
* Reads run in worker threads, and delay the event loop for one block at a time. Their beginning and their end take
  RocksDB's big mutex. They must not run beside the first half of `flush_wal`. Otherwise (this was seen, 22 ms):
    1. The flusher hands the buffer to the disk. It has the mutex of the write-ahead log, but not the interpreter lock.
    2. A background thread, at the end of a flush, takes the big mutex, and then waits for the mutex of the log.
    3. A reader waits for the big mutex and keeps the interpreter lock. So the event loop waits too.
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
    DELAY,
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
from .log_files import LogFiles
from .settings import RocksSettings

_log = structlog.get_logger(__name__)

EXIT_DISK_FAILED: Final = 74
"""Exit status of a process that cannot trust its disk (EX_IOERR)."""

_KEY_MAX: Final = b"\xff" * 32


def die(reason: str, error: BaseException | None = None) -> NoReturn:
    """End the process at once with exit status 74, because it is no longer known what is on the disk."""
    _log.critical("disk failed, the process ends", reason=reason, error=str(error) if error is not None else None)
    os._exit(EXIT_DISK_FAILED)


class Engine:
    """An open database."""

    def __init__(self, path: Path, settings: RocksSettings) -> None:
        """Open the database in `path`, or make it. Replays the write-ahead log of the last member run. Blocks.

        Afterwards there are the extents 1 to `settings.extents`, and all higher ones that existed before.

        Raises:
            CorruptionError: A log or table is damaged. A record that is cut off at the end of the log is no damage.
            StorageError: The database cannot be opened for another reason.
        """
        assert settings.extents is not None
        self._write_options = WriteOptions()
        self._write_options.no_slowdown = True
        self._write_options.sync = False
        self._not_beside_buffer = threading.Lock()
        self._compact_options = CompactOptions()
        self._compact_options.set_exclusive_manual_compaction(False)  # compactions of other families continue
        try:
            known = Rdict.list_cf(str(path), options.raw()) if (path / "CURRENT").exists() else []
            names = {META, INDEX, CURSOR, DELAY, *map(extent_name, range(1, settings.extents + 1)), *known} - {
                "default"
            }
            extents = sorted(name for name in names if name.startswith(EXTENT_PREFIX))
            database, kinds = options.load(settings)
            kind_of = {name: kinds[options.EXTENT if name in extents else options.SMALL] for name in sorted(names)}
            self._db = Rdict(str(path), database, kind_of)
            self._families: dict[str, Rdict] = {name: self._db.get_column_family(name) for name in names}
            self._handles: dict[str, Family] = {name: self._db.get_column_family_handle(name) for name in names}
            options.check(path, extents)
            self._log_files = LogFiles(path)
            self._unflushed_count = 0  # writes since the last flush
        except Exception as error:
            raise _opening_error(path, error) from error
        self.extents = [int(name.removeprefix(EXTENT_PREFIX)) for name in extents]

    def family(self, name: str) -> Family:
        """The handle of a column family, for writing."""
        return self._handles[name]

    # ---- extents ----------------------------------------------------------------------------------------

    def empty_extent(self, extent: int) -> bool:
        """Remove all rows of an extent, durably. Call it in a worker thread. Returns whether the extent is empty.

        No write to the extent may run at the same time. An error ends the process.
        """
        family = self._families[extent_name(extent)]
        try:
            family.compact_range(b"", _KEY_MAX, self._compact_options)
        except Exception as error:
            die(f"extent {extent} cannot be emptied", error)
        with self.extent_cursor(extent) as cursor:
            return next(cursor.forward(b""), None) is None

    def extent_size_bytes(self, extent: int) -> int:
        """An estimate of the bytes that an extent takes, on disk and in memory."""
        family = self._families[extent_name(extent)]
        tables = family.property_int_value("rocksdb.total-sst-files-size") or 0
        memory = family.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
        return int(tables) + int(memory)

    # ---- writing ----------------------------------------------------------------------------------------

    def write(self, ops: Iterable[Op]) -> int:
        """Apply all operations or none, in memory. Returns the sequence number after them.

        It must not run at the same time as `flush_wal` (see the module). Any error except a refusal ends the process.

        Raises:
            WriteRefusedError: Memtables wait for the disk, and nothing was written. Try again a few milliseconds later.
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
        self._unflushed_count += 1
        return self.sequence()

    def flush_wal(self) -> None:
        """Write out the buffer of the write-ahead log, and flush the file. Call it in a worker thread.

        Raises:
            FlushFailedError: It is no longer known what is on the disk.
        """
        try:
            if self._unflushed_count > 1:  # a single one is in one file, and the buffer was empty before it
                self._log_files.flush_ended()
            self._unflushed_count = 0
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
        """A new iterator over the rows of a column family below `end`, as they are now. The caller closes it."""
        with self._not_beside_buffer:
            return Cursor(self._families[name].iter(), end, self._not_beside_buffer)

    def extent_cursor(self, extent: int, end: bytes | None = None) -> Cursor:
        """A new iterator over the rows of an extent below `end`, as they are now. The caller closes it.

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
        """Write all memtables out and close. Call it in a worker thread.

        The next start then has no write-ahead log to replay.
        """
        try:
            for family in self._families.values():
                family.flush(True)
            self._handles.clear()
            self._families.clear()
            self._db.close()
        except Exception as error:
            die("the database cannot be closed", error)


class Cursor:
    """An iterator. After the last key it asks RocksDB for its status, so that an error does not look like the end.

    It compares keys with the upper bound itself, and does not give the bound to RocksDB. rocksdict 0.3.29 gives RocksDB
    a pointer to the bound's bytes, and then frees them (seen: an iterator that ended before its first key).
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
        """Keys and values, ascending, from the first key at or above `key`.

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
    """The error of the catalogue for a failed read."""
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
