"""Checks whether the disk has room for new messages. A reserve stays free of them, so that the broker can continue."""

from __future__ import annotations

import os
import time
from pathlib import Path

import structlog

from .settings import RocksSettings

ROOM_AGAIN_PERCENT = 110
"""Percent of the reserve that must be free before the disk counts as not full again. With 100 it would change between
full and not full all the time."""

_log = structlog.get_logger(__name__)


def disk_size_bytes(directory: Path) -> int:
    """The size of the file system that has this directory."""
    disk = os.statvfs(directory)
    return disk.f_blocks * disk.f_frsize


def reserve_bytes(size_bytes: int, settings: RocksSettings) -> int:
    """Bytes of a disk of this size that are kept free of new appends.

    It is `reserve_percent` of the disk, but at least `reserve_bytes_min`. This least reserve is at most
    `reserve_percent_max` of the disk. Otherwise a disk of 2 GiB would take no message.
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
        self.size_bytes = 0
        self.reserve_bytes = 0
        self.free_bytes = 0

    def is_full(self) -> bool:
        """Whether the disk has reached its reserve. The answer may be up to `disk_check_ms` old."""
        now_s = time.monotonic()
        if now_s >= self._look_again_s:
            self._look_again_s = now_s + self._settings.disk_check_ms / 1000
            self._look()
        return self._is_full

    def _look(self) -> None:
        settings = self._settings
        disk = os.statvfs(self._directory)
        self.size_bytes = disk.f_blocks * disk.f_frsize
        self.reserve_bytes = reserve_bytes(self.size_bytes, settings)
        self.free_bytes = disk.f_bavail * disk.f_frsize
        needed = self.reserve_bytes if not self._is_full else self.reserve_bytes * ROOM_AGAIN_PERCENT // 100
        is_full = self.free_bytes < needed
        if is_full != self._is_full:
            _log.warning(
                "disk reserve", is_reached=is_full, reserve_bytes=self.reserve_bytes, free_bytes=self.free_bytes
            )
        self._is_full = is_full
