"""How a process of a pool shows that a function has begun: it writes the call's number into a file, at its place.

A pool says that a call is given to its processes, also if none of them has started yet. A new process imports the
program first, which may take seconds.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from seriatim._consuming.handlers import call_in_pool

NUMBER_BYTES: Final = 8


class ProcessMarks:
    """The file, in the directory for temporary files, and its places.

    Args:
        count: Maximum number of functions that run at once.

    Raises:
        OSError: The file cannot be made.
    """

    def __init__(self, count: int) -> None:
        self._descriptor, self.path = tempfile.mkstemp(prefix="seriatim-begun-")
        os.ftruncate(self._descriptor, count * NUMBER_BYTES)
        self._free = list(range(count))
        self._number = 0

    def take(self) -> tuple[int, int]:
        """A place that no other call has, and a number for the call."""
        self._number += 1
        return self._free.pop(), self._number

    def give(self, mark: tuple[int, int]) -> None:
        """The call has ended."""
        self._free.append(mark[0])

    def has_begun(self, mark: tuple[int, int]) -> bool:
        """Whether the function of a call has begun."""
        place, number = mark
        return os.pread(self._descriptor, NUMBER_BYTES, place * NUMBER_BYTES) == number.to_bytes(NUMBER_BYTES, "big")

    def close(self) -> None:
        """Remove the file. Functions that begin later mark nothing."""
        os.close(self._descriptor)
        with suppress(OSError):
            os.unlink(self.path)


def call_marked(function: Callable[[Any], object], given: Any, path: str, mark: tuple[int, int]) -> Any:
    """In a process of a pool: mark that the function begins, and call it. See `call_in_pool`."""
    place, number = mark
    with suppress(OSError):  # the consumer has gone
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(descriptor, number.to_bytes(NUMBER_BYTES, "big"), place * NUMBER_BYTES)
        finally:
            os.close(descriptor)
    return call_in_pool(function, given)
