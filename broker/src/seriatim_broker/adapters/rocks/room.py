"""Whether the disk has room for new messages: a part of it is kept free, for what keeps the broker going."""

from __future__ import annotations

import os
import time
from pathlib import Path

import structlog

from .settings import RocksSettings

ROOM_AGAIN_PERCENT = 110
"""Of the reserve must be free before appends are taken again, or a broker would change its mind all the time."""

_log = structlog.get_logger(__name__)


def disk_size_bytes(directory: Path) -> int:
    """Of the file system that holds a directory."""
    disk = os.statvfs(directory)
    return disk.f_blocks * disk.f_frsize


def reserve_bytes(size_bytes: int, settings: RocksSettings) -> int:
    """How much of a disk of that size is kept free of new appends.

    A percentage, at least `reserve_bytes_min`; of a small disk at most `reserve_percent_max`, because with a fixed
    least reserve a disk of 2 GiB would take nothing.
    """
    least = min(settings.reserve_bytes_min, size_bytes * settings.reserve_percent_max // 100)
    return max(size_bytes * settings.reserve_percent // 100, least)


class DiskRoom:
    """The free space of a directory's file system."""

    def __init__(self, directory: Path, settings: RocksSettings) -> None:
        self._directory = directory
        self._settings = settings
        self._look_again_s = 0.0
        self._is_full = False
        self.reserve_bytes = 0
        self.free_bytes = 0

    def is_full(self) -> bool:
        """Whether the reserve is reached; a look is believed for `disk_check_ms`."""
        now_s = time.monotonic()
        if now_s >= self._look_again_s:
            self._look_again_s = now_s + self._settings.disk_check_ms / 1000
            self._look()
        return self._is_full

    def _look(self) -> None:
        settings = self._settings
        disk = os.statvfs(self._directory)
        size_bytes = disk.f_blocks * disk.f_frsize
        self.reserve_bytes = reserve_bytes(size_bytes, settings)
        self.free_bytes = disk.f_bavail * disk.f_frsize
        needed = self.reserve_bytes if not self._is_full else self.reserve_bytes * ROOM_AGAIN_PERCENT // 100
        is_full = self.free_bytes < needed
        if is_full != self._is_full:
            _log.warning(
                "disk reserve", is_reached=is_full, reserve_bytes=self.reserve_bytes, free_bytes=self.free_bytes
            )
        self._is_full = is_full
