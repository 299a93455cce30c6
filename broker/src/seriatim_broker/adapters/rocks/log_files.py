"""The files of RocksDB's write-ahead log, and the order in which they reach the disk.

RocksDB begins a new file when a memtable is full. It hands the buffer of the old file to the kernel then, without a
flush. So writes that are flushed late may be in two files. RocksDB flushes both, the old one first. But the kernel has
both by then, and may write out the new one first.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_TICK_NS: Final = 50_000_000
"""Much longer than a tick of the clock with which file systems note that a directory has changed."""


class LogFiles:
    """Knows the newest file, and notices that RocksDB began another one. Not thread-safe.

    Args:
        directory: The directory of the database, which is open.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._newest = -1  # its number
        self._changed_ns = 0
        self._ended()

    def flush_ended(self) -> None:
        """Flush the files that RocksDB has ended, before anything of the newest one reaches the kernel. Blocks.

        Without it:
          1. A slave writes batches a and b, to be flushed late. The memtable is full between them: a is in file 1, and
             b in file 2. The flush hands b to the kernel, and begins with file 1.
          2. The kernel writes out file 2, and the machine loses power.
          3. The slave starts. RocksDB replays b without a. The log has a gap, and the slave refuses its whole disk.

        Raises:
            OSError: It is no longer known what is on the disk.
        """
        for path in self._ended():
            try:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # all of it is in tables by now
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def _ended(self) -> list[Path]:
        """The files that were the newest one, or came after it, and that are not the newest one any more."""
        changed_ns = self._directory.stat().st_mtime_ns
        if changed_ns == self._changed_ns:
            return []
        is_over = time.time_ns() - changed_ns > _TICK_NS  # else a file may still be made at the same time
        self._changed_ns = changed_ns if is_over else 0
        paths = sorted(self._directory.glob("*.log"), key=_number)
        ended = [path for path in paths if _number(path) >= self._newest][:-1]
        self._newest = _number(paths[-1]) if paths else self._newest
        return ended


def _number(path: Path) -> int:
    return int(path.stem)
