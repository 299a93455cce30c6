"""The one place that knows rocksdict: opening, options, column families, writing, flushing, iterating.

What rocksdict does with the interpreter lock decides how it may be called (measured, rocksdict 0.3.29, RocksDB 10.4):

* `flush_wal`, `flush`, `compact_range` and `close` let go of it: they belong in a worker thread.
* `write`, iterators and the making and dropping of column families keep it: whatever thread they run in, the event
  loop stands still meanwhile. So `write` must never reach the disk. With `manual_wal_flush` it fills a buffer in
  memory; and since RocksDB holds one mutex while it hands that buffer to the disk, `write` must never run beside
  `flush_wal`. The writer takes care of that.

rocksdict has no setter for `manual_wal_flush`, nor for the level of RocksDB's own log file, which it writes to inside
`write` whenever a memtable is full. Both come in through an options file that is made for the purpose, in RocksDB's
format; whether they were taken is checked after opening.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)
from seriatim_api.errors import CorruptionError, StorageError

from .settings import RocksSettings

_log = structlog.get_logger(__name__)

EXIT_DISK_FAILED: Final = 74
"""Exit status of a process that cannot trust its disk (EX_IOERR)."""

PUT: Final = 0
DELETE: Final = 1
DELETE_RANGE: Final = 2

Family = Any
"""A column family's handle."""

Op = tuple[int, Family, bytes, Any]
"""(PUT, family, key, value or pieces), (DELETE, family, key, None), (DELETE_RANGE, family, begin, end)."""

META: Final = "meta"
INDEX: Final = "index"
CURSOR: Final = "cursor"
_EXTENT_PREFIX: Final = "extent-"

_WAL_BUFFER_BYTES: Final = 8 << 20
_BLOCK_BYTES: Final = 32 << 10
_UNSETTABLE_OPTIONS: Final = ("manual_wal_flush=true", "info_log_level=ERROR_LEVEL")
_INFO_LOG_BYTES_MAX: Final = 8 << 20
_PAUSE_MS_MAX: Final = 20.0


class WriteRefusedError(Exception):
    """The engine would have had to wait; nothing was written. Never leaves the storage."""


def die(reason: str, error: BaseException | None = None) -> NoReturn:
    """End the process at once: what the disk holds is no longer known, so nothing more may be promised."""
    _log.critical("disk failed, the process ends", reason=reason, error=str(error) if error is not None else None)
    os._exit(EXIT_DISK_FAILED)


def extent_name(extent: int) -> str:
    """The name of an extent's column family."""
    return f"{_EXTENT_PREFIX}{extent:08d}"


class Engine:
    """An open database."""

    def __init__(self, path: Path, settings: RocksSettings) -> None:
        """Open, or make, the database in `path`; replays what the last run left in its write-ahead log.

        Raises:
            CorruptionError: A log or table is damaged. A record cut off at the end of the log is not damage.
            StorageError: It cannot be opened for another reason.
        """
        self._settings = settings
        self._cache = Cache(settings.block_cache_size_bytes)
        self._write_options = WriteOptions()
        self._write_options.no_slowdown = True
        self._write_options.sync = False
        try:
            self._db = self._open(path)
            for name in (META, INDEX, CURSOR):
                if name not in self._families:
                    self._families[name] = self._db.create_column_family(name, self._meta_options())
            self._check_options(path)
        except Exception as error:
            raise _opening_error(path, error) from error
        self._handles: dict[str, Family] = {}

    def _open(self, path: Path) -> Rdict:
        names = Rdict.list_cf(str(path), Options(raw_mode=True)) if (path / "CURRENT").exists() else []
        families = {
            name: self._extent_options() if name.startswith(_EXTENT_PREFIX) else self._meta_options() for name in names
        }
        db = Rdict(str(path), self._database_options(), families or None)
        self._families: dict[str, Rdict] = {name: db.get_column_family(name) for name in names if name != "default"}
        return db

    # ---- column families --------------------------------------------------------------------------------

    def family(self, name: str) -> Family:
        """The handle of a column family, for writing."""
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = self._db.get_column_family_handle(name)
        return handle

    def extents(self) -> list[int]:
        """Numbers of the extents that are there, ascending."""
        found = (name for name in self._families if name.startswith(_EXTENT_PREFIX))
        return sorted(int(name.removeprefix(_EXTENT_PREFIX)) for name in found)

    def make_extent(self, extent: int) -> None:
        """Make an empty extent. Blocks for several fsyncs, with the interpreter lock held."""
        name = extent_name(extent)
        assert name not in self._families, name
        begin = time.monotonic()
        try:
            self._families[name] = self._db.create_column_family(name, self._extent_options())
        except Exception as error:
            die(f"extent {extent} cannot be made", error)
        _tell_pause("extent made", extent, begin)

    def drop_extent(self, extent: int) -> None:
        """Drop an extent whole: its files go as soon as nobody reads them. Blocks for an fsync, with the lock held."""
        name = extent_name(extent)
        begin = time.monotonic()
        self._handles.pop(name, None)
        del self._families[name]
        try:
            self._db.drop_column_family(name)
        except Exception as error:
            die(f"extent {extent} cannot be dropped", error)
        _tell_pause("extent dropped", extent, begin)

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
        sequence: int = self._db.latest_sequence_number()
        return sequence

    def flush_wal(self) -> None:
        """Write the log's buffer out and sync it; for a worker thread. An error ends the process."""
        try:
            self._db.flush_wal(True)
        except Exception as error:
            die("the write-ahead log cannot be flushed", error)

    def sequence(self) -> int:
        """The newest sequence number."""
        number: int = self._db.latest_sequence_number()
        return number

    # ---- reading ----------------------------------------------------------------------------------------

    def cursor(self, name: str, end: bytes | None = None) -> Cursor:
        """A new iterator over a column family, as it is now, up to `end`."""
        return Cursor(self._families[name].iter(), end)

    def extent_cursor(self, extent: int, end: bytes | None = None) -> Cursor:
        """A new iterator over an extent.

        Raises:
            CorruptionError: There is no such extent.
        """
        if extent_name(extent) not in self._families:
            raise CorruptionError(f"extent {extent} is missing, but the index names it", extent=extent)
        return self.cursor(extent_name(extent), end)

    def get(self, name: str, key: bytes) -> bytes | None:
        """One value, or None.

        Raises:
            CorruptionError: The block that holds it does not match its checksum.
        """
        try:
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

    # ---- options ----------------------------------------------------------------------------------------

    def _database_options(self) -> Options:
        settings = self._settings
        options = _options_with_manual_wal()
        options.create_if_missing(True)
        options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
        options.set_db_write_buffer_size(settings.memtables_size_bytes_max)
        options.set_max_total_wal_size(settings.wal_size_bytes_max)
        options.set_writable_file_max_buffer_size(_WAL_BUFFER_BYTES)
        options.set_max_open_files(settings.open_files_max)
        options.set_max_background_jobs(2)
        options.set_avoid_unnecessary_blocking_io(True)
        options.set_bytes_per_sync(1 << 20)
        options.set_keep_log_file_num(4)
        options.set_max_log_file_size(_INFO_LOG_BYTES_MAX)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        return options

    def _extent_options(self) -> Options:
        options = self._family_options(self._settings.extent_memtable_size_bytes)
        options.set_disable_auto_compactions(True)
        options.set_compression_type(DBCompressionType.none())
        return options

    def _meta_options(self) -> Options:
        trigger = self._settings.level0_files_compaction
        options = self._family_options(self._settings.meta_memtable_size_bytes)
        options.set_level_zero_file_num_compaction_trigger(trigger)
        options.set_level_zero_slowdown_writes_trigger(trigger * 2)
        options.set_level_zero_stop_writes_trigger(trigger * 3)
        options.set_compression_type(DBCompressionType.lz4())
        return options

    def _family_options(self, memtable_size_bytes: int) -> Options:
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_block_size(_BLOCK_BYTES)
        table.set_cache_index_and_filter_blocks(True)
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_size(memtable_size_bytes)
        options.set_max_write_buffer_number(self._settings.memtables_count_max)
        return options

    def _check_options(self, path: Path) -> None:
        newest = max(path.glob("OPTIONS-*"), key=lambda file: file.name)
        text = newest.read_text()
        for line in _UNSETTABLE_OPTIONS:
            if line not in text:
                raise StorageError(f"this rocksdict does not take {line}: writes would block on the disk")


class Cursor:
    """An iterator whose end is never mistaken: after the last key its status is asked.

    The upper bound is compared here and not given to RocksDB: rocksdict 0.3.29 hands on a pointer to the bound's
    bytes and lets go of them (seen: an iterator that ends before its first key).
    """

    __slots__ = ("_end", "_iter")

    def __init__(self, iterator: Any, end: bytes | None) -> None:
        self._iter = iterator
        self._end = end

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


def _tell_pause(what: str, extent: int, begin: float) -> None:
    pause_ms = round((time.monotonic() - begin) * 1000, 1)
    log = _log.warning if pause_ms > _PAUSE_MS_MAX else _log.info
    log(what, extent=extent, pause_ms=pause_ms)


def _opening_error(path: Path, error: Exception) -> StorageError:
    if isinstance(error, StorageError):
        return error
    if _is_corruption(error):
        return CorruptionError(
            f"the database in {path} is damaged ({error}); its log is never cut at a damaged record. Remedy: give the "
            "slot a new, empty disk (a new incarnation) and let it be copied from the other members"
        )
    return StorageError(f"the database in {path} cannot be opened: {error}")


def _is_corruption(error: Exception) -> bool:
    text = str(error).lower()
    return "corrupt" in text or "checksum" in text or "no such file" in text


def _options_with_manual_wal() -> Options:
    directory = Path(tempfile.mkdtemp(prefix="seriatim-options-"))
    try:
        (directory / "OPTIONS-000001").write_text(
            "[Version]\n  rocksdb_version=10.4.2\n  options_file_version=1.1\n"
            "[DBOptions]\n"
            + "".join(f"  {line}\n" for line in _UNSETTABLE_OPTIONS)
            + '[CFOptions "default"]\n[TableOptions/BlockBasedTable "default"]\n'
        )
        (directory / "rocksdict-config.json").write_text('{"raw_mode": true}')
        options, _families = Options.load_latest(str(directory))
    finally:
        shutil.rmtree(directory)
    return options
