"""Credit of a stream that delivers: how many bytes a broker may send before the application has taken them. Pure.

The window follows the application: it is as large as what the application takes in `CREDIT_SPAN_US` and two round trips
to the broker, between two limits. A reader of many old messages needs a large window, because all bytes that are under
way on the stream count. A slow reader, or one that waits for new messages, needs only the smallest one.

Without the round trips:

1. A broker is 25 ms away, so a credit and the bytes for it take 50 ms.
2. The application could take 500 MB/s. The window has what it takes in 30 ms.
3. So in 20 of 50 ms it has nothing, takes less, and the window shrinks, again and again, to the smallest one.

What far streams of a client have more than near ones comes from a pool, which limits the client's memory.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from .distance import NEAR_US
from .state import State

CREDIT_SPAN_US: Final = 30_000
"""The window covers this time at the present rate of reading, besides the round trips. At 500 MB/s that is 15 MB."""

SPAN_TRIPS: Final = 2
"""And this many round trips: one for the credit and the bytes, another for packets that are late."""

MEASURED_COUNT: Final = 8
"""The shortest of the newest 8 round trips counts, because an answer may have waited behind other bytes."""

FAR_BYTES_MAX: Final = 256 << 20
"""What the windows of all far streams of a client may have together above their limits without a distance. One reader
of 600 MB/s needs it at a round trip of 200 ms. An application that chooses a limit for its streams takes nothing of it.
"""

GRANT_SHARE: Final = 4
GRANT_BYTES_MAX: Final = 1 << 20
"""Credit is given back when a quarter of the window is free, or this many bytes. So there are few requests, and the
broker never waits."""


class CreditPool(State):
    """What the far streams of a client may have above their limits without a distance.

    Args:
        size_bytes: All of it.
    """

    __slots__ = ("left_bytes",)

    def __init__(self, size_bytes: int = FAR_BYTES_MAX) -> None:
        self.left_bytes = size_bytes


class CreditAccount(State):
    """The credit of one stream.

    Args:
        least_bytes: The window at first, and for a slow reader.
        most_bytes: The largest window without a distance.
        now_us: The monotonic time in µs.
        pool: Where a far stream takes more from. None: `most_bytes` is the limit over a distance, too. Otherwise the
            limit grows with the round trip, as far as the pool has it.
    """

    __slots__ = (
        "_freed_bytes",
        "_granted_us",
        "_least_bytes",
        "_most_bytes",
        "_pool",
        "_round_trips_us",
        "window_bytes",
    )

    def __init__(self, least_bytes: int, most_bytes: int, now_us: int, pool: CreditPool | None = None) -> None:
        assert 0 < least_bytes <= most_bytes, (least_bytes, most_bytes)
        self._least_bytes = least_bytes
        self._most_bytes = most_bytes
        self._pool = pool
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
        if self._pool is None:
            return self._most_bytes
        pooled = self._pooled_bytes + self._pool.left_bytes
        return min(self._most_bytes * self._span_us // CREDIT_SPAN_US, self._most_bytes + pooled)

    @property
    def _pooled_bytes(self) -> int:
        """What the window has of the pool."""
        return max(self.window_bytes - self._most_bytes, 0)

    def _resize(self, window_bytes: int) -> None:
        before, self.window_bytes = self._pooled_bytes, window_bytes
        if self._pool is not None:
            self._pool.left_bytes += before - self._pooled_bytes
            assert self._pool.left_bytes >= 0

    def begin(self) -> int:
        """The stream is up, and its round trip was measured. Returns the bytes to grant at once to a far broker.

        Without it:

        1. A broker is 100 ms away. Its first credit lasts for some milliseconds, and the next one comes after 200 ms.
        2. The window grows by what was taken: at most to twice of it in 200 ms.
        3. A reader of old messages needs a second until it has what it could take.
        """
        if min(self._round_trips_us, default=0) < NEAR_US:
            return 0
        window = min(self._least_bytes * self._span_us // CREDIT_SPAN_US, self.limit_bytes)
        more = max(window - self.window_bytes, 0)
        self._resize(self.window_bytes + more)
        return more

    def close(self) -> None:
        """The stream has ended: others may have what it had of the pool.

        The application may still take what came before. Without the last line: 1. It takes that after the end. 2. The
        window grows, and has bytes of the pool again. 3. Nothing gives them back, and in time far readers are slow.
        """
        self._resize(min(self.window_bytes, self._least_bytes))
        self._pool = None

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
        self._resize(self.window_bytes + change)
        return freed + change
