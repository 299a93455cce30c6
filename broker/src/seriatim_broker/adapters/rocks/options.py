"""RocksDB's options, as the text of an options file in RocksDB's own format.

rocksdict has setters for most options, but not for all that we need: `manual_wal_flush`, the level of RocksDB's own log
file, `ttl`. But it has `Options.load_latest`, so we give it all options in a file. RocksDB refuses a name or a value
that it does not know. When RocksDB opens the database, it writes the options that it took into a file, and `check`
reads that file.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from rocksdict import Cache, Options
from seriatim_api.errors import StorageError

from .settings import RocksSettings

EXTENT: Final = "extent"
SMALL: Final = "small"

_VITAL: Final = {
    "DBOptions": ("manual_wal_flush=true", "info_log_level=ERROR_LEVEL"),
    EXTENT: ("disable_auto_compactions=true",),
}
"""Without these options a write would wait for the disk, or an extent would be emptied while it is in use."""

# `write` fills RocksDB's buffer of the write-ahead log. If a group, and what waits there for a late flush, were larger
# than this, `write` would reach the disk.
_WAL_BUFFER_BYTES: Final = 8 << 20


def load(settings: RocksSettings) -> tuple[Options, dict[str, Options]]:
    """The options of the database, and of each kind of column family: `EXTENT` and `SMALL`."""
    directory = Path(tempfile.mkdtemp(prefix="seriatim-options-"))
    try:
        (directory / "OPTIONS-000001").write_text(_text(settings))
        (directory / "rocksdict-config.json").write_text('{"raw_mode": true}')
        options, families = Options.load_latest(str(directory), cache=Cache(settings.block_cache_size_bytes))
    finally:
        shutil.rmtree(directory)
    return options, families


def raw() -> Options:
    """Options for calls that open nothing."""
    return Options(raw_mode=True)


def check(path: Path, extents: list[str]) -> None:
    """Check that the database in `path`, which was just opened, took the options of `_VITAL`.

    Raises:
        StorageError: It did not take one of them.
    """
    newest = max(path.glob("OPTIONS-*"), key=lambda file: file.name)
    sections = {name: lines for name, _closed, lines in (part.partition("]") for part in newest.read_text().split("["))}
    wanted = {"DBOptions": _VITAL["DBOptions"], **{f'CFOptions "{name}"': _VITAL[EXTENT] for name in extents}}
    for section, lines in wanted.items():
        for line in lines:
            if f"\n  {line}\n" not in sections.get(section, ""):
                raise StorageError(f"this rocksdict does not take {line} for {section}: the disk cannot be used safely")


def _text(settings: RocksSettings) -> str:
    trigger = settings.level0_files_compaction
    database = {
        "create_if_missing": True,
        "create_missing_column_families": True,
        "manual_wal_flush": True,
        "info_log_level": "ERROR_LEVEL",  # RocksDB writes to this log during `write`, when a memtable is full
        "wal_recovery_mode": "kTolerateCorruptedTailRecords",
        "db_write_buffer_size": settings.memtables_size_bytes_max,
        "max_total_wal_size": settings.wal_size_bytes_max,
        "writable_file_max_buffer_size": _WAL_BUFFER_BYTES,
        "max_open_files": settings.open_files_max,
        "max_background_jobs": 2,
        "max_file_opening_threads": 1,  # with 16, RocksDB starts 15 threads for each column family, also with few files
        "avoid_unnecessary_blocking_io": True,
        "advise_random_on_open": "false",  # or the kernel reads nothing ahead of a consumer that is far behind
        "bytes_per_sync": 1 << 20,
        "keep_log_file_num": 4,
        "max_log_file_size": 8 << 20,
        "stats_dump_period_sec": 0,
        "stats_persist_period_sec": 0,
    }
    every_family = {"max_write_buffer_number": settings.memtables_count_max}
    extent = every_family | {
        "write_buffer_size": settings.extent_memtable_size_bytes,
        "compression": "kNoCompression",
        # RocksDB never compacts it by itself. If it is asked to, it drops all files and reads none (see `engine`).
        "disable_auto_compactions": True,
        "compaction_style": "kCompactionStyleFIFO",
        "compaction_options_fifo": "{max_table_files_size=1;}",
        "num_levels": 1,
        "ttl": 0,  # with a TTL, RocksDB needs every file of an extent open
    }
    small = every_family | {
        "write_buffer_size": settings.meta_memtable_size_bytes,
        "compression": "kLZ4Compression",
        "level0_file_num_compaction_trigger": trigger,
        "level0_slowdown_writes_trigger": trigger * 2,
        "level0_stop_writes_trigger": trigger * 3,
    }
    table = {"block_size": 32 << 10, "cache_index_and_filter_blocks": True}
    return "".join(
        (
            _section("Version", {"rocksdb_version": "10.4.2", "options_file_version": "1.1"}),
            _section("DBOptions", database),
            _family("default", {}, {}),
            # A body that is stored apart is searched by its key, in every file of the extent.
            _family(EXTENT, extent, table | {"filter_policy": "bloomfilter:10:false"}),
            _family(SMALL, small, table),
        )
    )


def _family(name: str, options: dict[str, Any], table: dict[str, Any]) -> str:
    return _section(f'CFOptions "{name}"', options) + _section(f'TableOptions/BlockBasedTable "{name}"', table)


def _section(name: str, values: dict[str, Any]) -> str:
    lines = (f"  {key}={str(value).lower() if value is True else value}\n" for key, value in values.items())
    return f"[{name}]\n" + "".join(lines)
