"""Whether the disk has room for new messages: a part of it is kept free, for what keeps the broker going."""

from __future__ import annotations

import os
import time
from pathlib import Path

import structlog

from .settings import RocksSettings

_log = structlog.get_logger(__name__)


def disk_size_bytes(directory: Path) -> int:
    """Of the file system that holds a directory."""
    disk = os.statvfs(directory)
    return disk.f_blocks * disk.f_frsize


class DiskRoom:
    """The free space of a directory's file system."""

    def __init__(self, directory: Path, settings: RocksSettings) -> None:
        self._directory = directory
        self._settings = settings
        self._look_again_s = 0.0
        self._is_full = False

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
        reserve = max(size_bytes * settings.reserve_percent // 100, settings.reserve_bytes_min)
        is_full = disk.f_bavail * disk.f_frsize < reserve
        if is_full != self._is_full:
            _log.warning("disk reserve", is_reached=is_full, reserve=reserve)
        self._is_full = is_full
