"""The files of the write-ahead log reach the disk in their order, also if writes that are flushed late are in two."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from seriatim_broker.adapters.rocks import log_files, options
from seriatim_broker.adapters.rocks.engine import Engine
from seriatim_broker.adapters.rocks.floor import PUT, FlushFailedError
from seriatim_broker.adapters.rocks.settings import RocksSettings

SETTINGS = RocksSettings(extents=16, extent_memtable_size_bytes=1 << 20, memtables_count_max=9)
VALUE_BYTES = 50_000


class Bench:
    """An engine with small memtables, and what this process flushes itself."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory = directory / "database"
        patch.setattr(options, "_text", self._tables_later)
        self.engine = Engine(self.directory, SETTINGS)
        self.flushed: list[tuple[str, int]] = []  # a file, and the size of the newest one at that moment
        self._count = 0
        patch.setattr(log_files.os, "fsync", self._fsync)

    @staticmethod
    def _tables_later(settings: RocksSettings, text: Callable[[RocksSettings], str] = options._text) -> str:
        """RocksDB makes tables of several memtables only. Else it may make one, and delete its file, before a flush."""
        return text(settings).replace(
            "max_write_buffer_number=", "min_write_buffer_number_to_merge=8\n  max_write_buffer_number="
        )

    def _fsync(self, file: int) -> None:
        name = Path(f"/proc/self/fd/{file}").readlink().name
        self.flushed.append((name, self.logs()[-1].stat().st_size))

    def logs(self) -> list[Path]:
        """The files, the newest one last."""
        return sorted(self.directory.glob("*.log"))

    def write(self) -> None:
        """Write one row."""
        self._count += 1
        key = self._count.to_bytes(8, "big")
        self.engine.write([(PUT, self.engine.family("extent-00000001"), key, os.urandom(VALUE_BYTES))])

    def write_until_a_new_file(self, *, flushes: bool) -> str:
        """Write rows until RocksDB begins a file. Returns the name of the one before."""
        before = self.logs()[-1].name
        while self.logs()[-1].name == before:
            if flushes:
                self.engine.flush_wal()
            self.write()
        return before


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_a_file_that_ended_with_late_writes_is_flushed_before_the_kernel_has_anything_of_the_next_one(
    bench: Bench,
) -> None:
    bench.write()
    bench.engine.flush_wal()
    for number in range(1, 3):
        ended = bench.write_until_a_new_file(flushes=False)
        bench.write()
        bench.engine.flush_wal()
        assert (bench.flushed[-1], len(bench.flushed)) == ((ended, 0), number)
        assert bench.logs()[-1].stat().st_size > 0


def test_a_write_that_is_flushed_alone_needs_no_such_flush(bench: Bench) -> None:
    bench.write()
    bench.engine.flush_wal()
    bench.write_until_a_new_file(flushes=True)
    bench.engine.flush_wal()
    assert bench.flushed == []


def test_no_flush_without_a_new_file(bench: Bench) -> None:
    for _ in range(3):
        bench.write()
        bench.write()
        bench.engine.flush_wal()
    assert bench.flushed == []


def test_an_older_file_that_cannot_be_flushed_is_a_failed_flush(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_file: int) -> None:
        raise OSError(5, "EIO, as asked")

    bench.write()
    bench.engine.flush_wal()
    bench.write_until_a_new_file(flushes=False)
    monkeypatch.setattr(log_files.os, "fsync", fails)
    with pytest.raises(FlushFailedError, match="EIO"):
        bench.engine.flush_wal()
