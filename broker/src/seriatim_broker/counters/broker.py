"""Counts and durations of a broker: plain attributes, to which the code that handles batches adds.

`metrics.broker` makes samples of them when Prometheus reads the page.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from .consumer_groups import ConsumerGroupTally

LATENCY_BOUNDS_S: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets: from a step in memory (0.2 ms) to a disk that stalled (5 s)."""

LATENESS_BOUNDS_S: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 600.0, 3600.0)
"""The same for delayed messages: from a volley on its way (5 ms) to a segment that was not served for an hour."""


class Histogram:
    """Counts of durations by bucket, in seconds."""

    __slots__ = ("bounds_s", "count", "counts", "max_s", "total_s")

    def __init__(self, bounds_s: tuple[float, ...] = LATENCY_BOUNDS_S) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.count = 0
        self.total_s = 0.0
        self.max_s = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count one duration, or that of several messages."""
        self.counts[bisect_left(self.bounds_s, seconds)] += count
        self.count += count
        self.total_s += seconds * count
        self.max_s = max(self.max_s, seconds)

    def buckets(self) -> Iterator[tuple[str, float]]:
        """Each bucket's upper bound, with the number of durations up to it, as Prometheus wants them."""
        total = 0
        for bound, count in zip((*map(str, self.bounds_s), "+Inf"), self.counts, strict=True):
            total += count
            yield bound, total


@dataclass(slots=True, eq=False)
class Counters:
    """All counts of a broker. Each attribute has the name of its metric, without the prefix `seriatim_`.

    `groups` has those of consumer groups.
    """

    adopted_bytes: int = 0
    appended_batches: int = 0
    appended_messages: int = 0
    appended_bytes: int = 0
    committed_batches: int = 0
    delayed_cancelled: int = 0
    delayed_moved: int = 0
    delivered_batches: int = 0
    delivered_bytes: int = 0
    publications_decided: int = 0
    published_rows: int = 0
    range_batches: int = 0
    range_bytes: int = 0
    retention_trims: int = 0
    retention_dropped_messages: int = 0
    retention_dropped_bytes: int = 0
    events: int = 0
    groups: ConsumerGroupTally = field(default_factory=ConsumerGroupTally)
    refused: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    switches: dict[str, int] = field(default_factory=dict)
    balance_moves: dict[str, int] = field(default_factory=dict)
    coordinator_writes: dict[str, int] = field(default_factory=dict)
    loop_lag_s: Histogram = field(default_factory=Histogram)
    step_s: Histogram = field(default_factory=Histogram)
    flush_s: Histogram = field(default_factory=Histogram)
    switch_gap_s: Histogram = field(default_factory=Histogram)
    delayed_late_s: Histogram = field(default_factory=lambda: Histogram(LATENESS_BOUNDS_S))

    def add(self, family: dict[str, int], label: str, count: int = 1) -> None:
        """Count under a label. The set of labels must be small and fixed."""
        family[label] = family.get(label, 0) + count
