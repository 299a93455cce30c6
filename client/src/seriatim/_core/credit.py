"""Credit of a stream that delivers: how many bytes a broker may send before the application has taken them. Pure.

The window follows the application: it is as large as what the application takes in `CREDIT_SPAN_US` and two round trips
to the broker, between two limits. A reader of many old messages needs a large window, because all bytes that are under
way on the stream count. A slow reader, or one that waits for new messages, needs only the smallest one.

Without the round trips:

1. A broker is 25 ms away, so a credit and the bytes for it take 50 ms.
2. The application could take 500 MB/s. The window has what it takes in 30 ms.
3. So in 20 of 50 ms it has nothing, takes less, and the window shrinks, again and again, to the smallest one.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from .state import State

CREDIT_SPAN_US: Final = 30_000
"""The window covers this time at the present rate of reading, besides the round trips. At 500 MB/s that is 15 MB."""

SPAN_TRIPS: Final = 2
"""And so many round trips: one for the credit and the bytes, another for packets that are late."""

MEASURED_COUNT: Final = 8
"""The shortest of the newest 8 round trips counts, because an answer may have waited behind other bytes."""

FAR_BYTES_MAX: Final = 64 << 20
"""Limit for the window over a distance, unless the application chose a limit itself. It is what a reader of 500 MB/s
needs at a round trip of 50 ms."""

GRANT_SHARE: Final = 4
GRANT_BYTES_MAX: Final = 1 << 20
"""Credit is given back when a quarter of the window is free, or this many bytes. So there are few requests, and the
broker never waits."""


class CreditAccount(State):
    """The credit of one stream.

    Args:
        least_bytes: The window at first, and for a slow reader.
        most_bytes: The largest window without a distance.
        now_us: The monotonic time in µs.
        is_fixed: Whether `most_bytes` is the limit over a distance, too. Otherwise the limit grows with the round trip,
            to at most `FAR_BYTES_MAX` (64 MiB).
    """

    __slots__ = (
        "_freed_bytes",
        "_granted_us",
        "_is_fixed",
        "_least_bytes",
        "_most_bytes",
        "_round_trips_us",
        "window_bytes",
    )

    def __init__(self, least_bytes: int, most_bytes: int, now_us: int, *, is_fixed: bool = False) -> None:
        assert 0 < least_bytes <= most_bytes, (least_bytes, most_bytes)
        self._least_bytes = least_bytes
        self._most_bytes = most_bytes
        self._is_fixed = is_fixed
        self._freed_bytes = 0
        self._granted_us = now_us
        self._round_trips_us: deque[int] = deque(maxlen=MEASURED_COUNT)
        self.window_bytes = least_bytes

    def measured(self, round_trip_us: int) -> None:
        """Note how long a question to the broker and its answer took."""
        self._round_trips_us.append(max(round_trip_us, 0))

    @property
    def _span_us(self) -> int:
        return CREDIT_SPAN_US + SPAN_TRIPS * min(self._round_trips_us, default=0)

    @property
    def limit_bytes(self) -> int:
        """The largest window now."""
        if self._is_fixed:
            return self._most_bytes
        far = min(self._most_bytes * self._span_us // CREDIT_SPAN_US, FAR_BYTES_MAX)
        return max(self._most_bytes, far)

    def free(self, size_bytes: int, now_us: int) -> int:
        """Note that the application took bytes, or that the client dropped them. Returns the bytes to grant now.

        That is mostly 0. The bytes that are granted and not freed are at most the largest window so far. After a window
        has shrunk, they fall to the new window with the next grants.
        """
        self._freed_bytes += size_bytes
        if self._freed_bytes < min(self.window_bytes // GRANT_SHARE, GRANT_BYTES_MAX):
            return 0
        freed = self._freed_bytes
        wanted = freed * self._span_us // max(now_us - self._granted_us, 1)
        window = min(max(wanted, self._least_bytes), self.limit_bytes)
        # The window changes by at most the bytes that were taken, because one fast moment says little. It shrinks when
        # fewer bytes are granted than were taken.
        change = min(max(window - self.window_bytes, -freed), freed)
        self._freed_bytes = 0
        self._granted_us = now_us
        self.window_bytes += change
        return freed + change
