"""The clocks that the runtime needs.

The runtime waits with the event loop (`asyncio.sleep`, timeouts). It reads a clock only for a time that it compares or
writes down. The clock is injected, so that the clock of a simulated broker may be wrong.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The two clocks of a process."""

    def monotonic_us(self) -> int:
        """Microseconds since a fixed moment. It never goes back, and is not comparable between processes."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC, by this machine's clock. It may jump, in both directions."""
