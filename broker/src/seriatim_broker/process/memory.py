"""Two settings of a server process's memory. A start sets the first before it allocates anything large.

1. The C library gives large free blocks back to the kernel at once. A moment later it asks for them again, and the
   kernel zeroes them page by page. A broker fills and frees memtables all day: this was a tenth of its processor time.
2. If there are many objects, a full collection of Python stops the event loop for tens of milliseconds. The objects
   that exist after the start live as long as the process, so that collections need not look at them again.
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
"""Allocations between two collections of the youngest objects. Python's default of 700 suits programs with few
objects."""


def keep_freed_memory() -> None:
    """Let the allocator keep up to 256 MiB of freed memory. Does nothing if the C library is not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES_MAX)


def settle_objects() -> None:
    """Take all present objects out of future collections, and have collections run less often. Call it after start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 20)
