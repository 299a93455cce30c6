"""How a server process keeps its memory: set once at start, before anything large is allocated.

The C library gives large blocks back to the kernel as soon as they are free, and takes them again, zeroed page by
page, a moment later: for a broker that fills and frees memtables all day that was a tenth of its processor time.
Python's full collections stop the loop for tens of milliseconds once there are many objects; what exists after the
start lives as long as the process, and need not be looked at again.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # malloc.h
_M_MMAP_THRESHOLD: Final = -3

_KEPT_BYTES_MAX: Final = 256 << 20
_MAPPED_BYTES_MIN: Final = 64 << 20

_YOUNG_OBJECTS: Final = 50_000
"""Allocations between two collections of the youngest objects; Python's 700 is for programs that hold little."""


def keep_freed_memory() -> None:
    """Let the allocator keep up to 256 MiB of freed memory. Does nothing where the C library is not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES_MAX)


def settle_objects() -> None:
    """Everything that the start made is there for good: collections look at what is newer only, and less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 20)
