"""Credit of a consume stream: how many bytes a broker may send that the application has not taken. Pure.

The window follows the application: it is what the application takes in `CREDIT_SPAN_US`, between two limits. A reader
that drains old messages needs a large one, because all that is under way on the stream counts. A reader that is slow,
or that waits for new messages, needs no more than the least one.
"""

from __future__ import annotations

from typing import Final

from .state import State

CREDIT_SPAN_US: Final = 30_000
"""Of reading at the present pace: longer than a grant and what it allows take to travel, at 500 MB/s 15 MB."""

GRANT_SHARE: Final = 4
GRANT_BYTES_MAX: Final = 1 << 20
"""Credit is given back when a quarter of the window is free, or this much: few requests, and the broker never waits."""


class CreditAccount(State):
    """What the broker may send before it hears of more.

    Args:
        least_bytes: The window at first, and for a reader that is slow.
        most_bytes: The largest window.
        now_us: Monotonic time.
    """

    __slots__ = ("_freed_bytes", "_granted_us", "_least_bytes", "_most_bytes", "window_bytes")

    def __init__(self, least_bytes: int, most_bytes: int, now_us: int) -> None:
        assert 0 < least_bytes <= most_bytes, (least_bytes, most_bytes)
        self._least_bytes = least_bytes
        self._most_bytes = most_bytes
        self._freed_bytes = 0
        self._granted_us = now_us
        self.window_bytes = least_bytes

    def free(self, size_bytes: int, now_us: int) -> int:
        """The application took (or we dropped) so much; returns what to grant now, mostly 0.

        What was granted and not freed is at most the window as it was largest since, and soon the window as it is.
        """
        self._freed_bytes += size_bytes
        if self._freed_bytes < min(self.window_bytes // GRANT_SHARE, GRANT_BYTES_MAX):
            return 0
        freed = self._freed_bytes
        wanted = freed * CREDIT_SPAN_US // max(now_us - self._granted_us, 1)
        window = min(max(wanted, self._least_bytes), self._most_bytes)
        # No faster than by what was taken: one quick moment says little. To shrink is to keep back what was taken.
        change = min(max(window - self.window_bytes, -freed), freed)
        self._freed_bytes = 0
        self._granted_us = now_us
        self.window_bytes += change
        return freed + change
