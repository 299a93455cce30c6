"""What the runtime asks of the time.

Waits are the event loop's affair (`asyncio.sleep`, timeouts); a clock is for what is compared or written down. It is
injected, so that a simulated broker's may be wrong.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The two clocks of a process."""

    def monotonic_us(self) -> int:
        """Microseconds since some moment; never goes back, and is not comparable between processes."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC, as far as this machine knows; may jump."""
