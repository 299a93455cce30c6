"""The machine's clocks."""

from __future__ import annotations

import time


class SystemClock:
    """The `interfaces.clock.Clock` of a real process. Its monotonic clock is asyncio's."""

    def monotonic_us(self) -> int:
        """Microseconds of `CLOCK_MONOTONIC`."""
        return time.monotonic_ns() // 1000

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000
