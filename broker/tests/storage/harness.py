"""The RocksDB storage under the contract's cases."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from pathlib import Path

from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.adapters.rocks import RocksSettings, RocksStorage
from seriatim_broker.core.values.log import RecoveredPartition

DEADLINE_S = 20.0
MIB = 1 << 20


class _Reports:
    """What one storage reported. (An abandoned one keeps reporting.)"""

    def __init__(self) -> None:
        self._ticket = 0
        self._reported = asyncio.Event()

    def take(self, ticket: int) -> None:
        assert ticket > self._ticket, "tickets are reported in order"
        self._ticket = ticket
        self._reported.set()

    async def reach(self, ticket: int) -> None:
        while self._ticket < ticket:
            self._reported.clear()
            await self._reported.wait()


class RocksHarness:
    """A storage in a directory. A crash is a copy of the directory at that moment, opened in the original's place."""

    def __init__(self, directory: Path, settings: RocksSettings) -> None:
        self._parent = directory
        self._settings = settings
        self._lives = 0
        self._abandoned: list[RocksStorage] = []
        self.directory = directory / "0"
        self.directory.mkdir(parents=True)
        self._open()

    def _open(self) -> None:
        self.storage = RocksStorage.open(self.directory, self._settings, crc32c)
        self.recovered: dict[int, RecoveredPartition] = {found.partition: found for found in self.storage.recover()}
        self._reports = _Reports()
        self.storage.on_durable(self._reports.take)

    async def durable(self, ticket: int) -> None:
        """Wait until a ticket is reported durable."""
        async with asyncio.timeout(DEADLINE_S):
            await self._reports.reach(ticket)

    def copy(self) -> Path:
        """What a crash at this moment leaves of the directory, under another name."""
        self._lives += 1
        copy = self._parent / str(self._lives)
        _copy_at_one_moment(self.directory, copy)
        return copy

    async def reopen(self, *, crash: bool) -> None:
        """End the storage and open it again; after a crash, what the files held at that moment."""
        if crash:
            self._abandoned.append(self.storage)
            self.directory = self.copy()
        else:
            await self.storage.close()
        self._open()

    async def close(self) -> None:
        """Close what was opened."""
        for storage in (*self._abandoned, self.storage):
            await storage.close()


def _copy_at_one_moment(directory: Path, copy: Path) -> None:
    """Copy a directory in which others may be writing, until nothing changed meanwhile."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        assert time.monotonic() < deadline, f"{directory} does not come to rest"
        before = _look(directory)
        try:
            shutil.copytree(directory, copy)
        except (OSError, shutil.Error):  # a file went away
            before = {}
        if before and before == _look(directory):
            return
        shutil.rmtree(copy, ignore_errors=True)


def _look(directory: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for file in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found[str(file)] = (file.stat().st_size, file.stat().st_mtime_ns)
    return found
