"""Latencies of one workload, counted in an HdrHistogram (https://hdrhistogram.github.io/HdrHistogram/).

A sender with a fixed rate counts a message from the moment at which it *should* have been sent. So a pause of the
cluster counts for each message that was due in it (Gil Tene calls the other way "coordinated omission").
"""

from __future__ import annotations

from typing import Final

from hdrh.histogram import HdrHistogram

LOWEST_US: Final = 1
HIGHEST_US: Final = 120_000_000
DIGITS: Final = 3
"""A counted latency differs by less than a thousandth from the measured one."""


class Latency:
    """Counts latencies between 1 µs and two minutes."""

    def __init__(self) -> None:
        self._histogram = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)

    def add(self, seconds: float) -> None:
        """Count one latency. Longer and shorter ones count as the limits."""
        self._histogram.record_value(min(max(round(seconds * 1e6), LOWEST_US), HIGHEST_US))

    @property
    def count(self) -> int:
        """How many were counted."""
        return int(self._histogram.get_total_count())

    def ms(self, percentile: float) -> float:
        """The latency in ms that `percentile` per cent of the messages did not exceed."""
        return float(self._histogram.get_value_at_percentile(percentile)) / 1000

    @property
    def max_ms(self) -> float:
        """The longest one."""
        return float(self._histogram.get_max_value()) / 1000

    def encoded(self) -> str:
        """The whole histogram in its compressed text form, which other tools read too."""
        return str(self._histogram.encode().decode("ascii"))

    @classmethod
    def decode(cls, encoded: str) -> Latency:
        """Read the text form."""
        read = cls()
        read._histogram = HdrHistogram.decode(encoded)
        return read
