"""Lines of a log that come again and again. What fails is tried again, and each try would log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

LINES_MAX: Final = 500
"""At most so many lines are remembered. Above it the oldest one is forgotten, and would be written again."""


class Repeats:
    """Says whether a line was written a moment ago with the same fields, and counts those that are left out.

    Args:
        within_s: The same line is written once in so many seconds.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, within_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._within_s = within_s
        self._clock = clock
        self._written: dict[tuple[tuple[str, str], ...], tuple[float, int]] = {}

    def take(self, fields: Mapping[str, object]) -> int | None:
        """Take a line: None if it is to be left out; otherwise how many such lines were left out before it."""
        line = tuple(sorted((name, str(value)) for name, value in fields.items()))
        now_s = self._clock()
        written_s, left_out = self._written.get(line, (now_s - self._within_s, 0))
        if now_s - written_s < self._within_s:
            self._written[line] = written_s, left_out + 1
            return None
        self._written.pop(line, None)
        self._written[line] = now_s, 0
        if len(self._written) > LINES_MAX:
            del self._written[next(iter(self._written))]
        return left_out
