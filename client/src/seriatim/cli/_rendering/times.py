"""Times and durations as human-readable text."""

from __future__ import annotations

from datetime import UTC, datetime


def utc(time_ms: int) -> str:
    """A time as `2026-11-22 10:00:00 UTC`.

    Args:
        time_ms: Milliseconds since 1970. A message may have any number, also one that no calendar has.
    """
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since 1970"


def span(seconds: float) -> str:
    """A duration that was measured: `16.1 ms`, `850 ms`, `1.23 s`, `42.8 s`, `125 s`. Three digits say enough."""
    if seconds < 0.9995:
        return f"{float(f'{seconds * 1000:.3g}'):g} ms"
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:,.0f} s"
