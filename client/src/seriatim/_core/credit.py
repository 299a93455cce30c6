"""Credit of a consume stream: how many bytes a broker may send before the application has taken them. Pure.

The window follows the application: it is as large as what the application takes in `CREDIT_SPAN_US`, between two
limits. A reader of many old messages needs a large window, because all bytes that are under way on the stream count. A
slow reader, or one that waits for new messages, needs only the smallest one.
"""

from __future__ import annotations

from typing import Final

from .state import State

CREDIT_SPAN_US: Final = 30_000
"""The window covers this time at the present rate of reading. It is longer than the way of a credit to the broker and
of the bytes back. At 500 MB/s the window is 15 MB."""

GRANT_SHARE: Final = 4
GRANT_BYTES_MAX: Final = 1 << 20
"""Credit is given back when a quarter of the window is free, or this many bytes. So there are few requests, and the
broker never waits."""


class CreditAccount(State):
    """The credit of one stream.

    Args:
        least_bytes: The window at first, and for a slow reader.
        most_bytes: The largest window.
        now_us: The monotonic time in µs.
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
        """Note that the application took bytes, or that the client dropped them. Returns the bytes to grant now.

        That is mostly 0. The bytes that are granted and not freed are at most the largest window so far. After a window
        has shrunk, they fall to the new window with the next grants.
        """
        self._freed_bytes += size_bytes
        if self._freed_bytes < min(self.window_bytes // GRANT_SHARE, GRANT_BYTES_MAX):
            return 0
        freed = self._freed_bytes
        wanted = freed * CREDIT_SPAN_US // max(now_us - self._granted_us, 1)
        window = min(max(wanted, self._least_bytes), self._most_bytes)
        # The window changes by at most the bytes that were taken, because one fast moment says little. It shrinks when
        # fewer bytes are granted than were taken.
        change = min(max(window - self.window_bytes, -freed), freed)
        self._freed_bytes = 0
        self._granted_us = now_us
        self.window_bytes += change
        return freed + change
