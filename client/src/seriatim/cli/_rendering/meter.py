"""Figures of a stream of sends: rate, outcomes, latency percentiles, and the longest gap without an acknowledgement.

Pure: its callers give it times as seconds of one monotonic clock. Latencies go into buckets that grow by 2 %. So memory
stays small however many messages there are, and a percentile is right to 2 %.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from seriatim.cli._rendering.times import span

OutcomeName = Literal["ok", "failed", "unknown"]

_BUCKET_GROWTH: Final = math.log(1.02)
_LATENCY_MS_MIN: Final = 0.01
RATE_WINDOW_S: Final = 1.0
"""Seconds over which the live line counts its present rate."""

WAIT_SHOWN_S: Final = 1.0
"""If a partition acknowledges nothing for this many seconds, the live line says so."""


class Latencies:
    """A histogram of durations in milliseconds."""

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0

    def add(self, duration_ms: float, count: int = 1) -> None:
        """Count a duration `count` times."""
        bucket = math.ceil(math.log(max(duration_ms, _LATENCY_MS_MIN) / _LATENCY_MS_MIN) / _BUCKET_GROWTH)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count

    def percentile(self, share: float) -> float | None:
        """The duration in ms that a `share` (0 to 1) of all durations do not exceed; None if there are none."""
        assert 0 <= share <= 1
        wanted = max(1, math.ceil(share * self.count))
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return _LATENCY_MS_MIN * math.exp(bucket * _BUCKET_GROWTH)
        return None


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of the meter. Times are in milliseconds, except `duration_s`; None: nothing was measured."""

    sent: int
    ok: int
    failed: int
    unknown: int
    duration_s: float
    rate: float
    p50_ms: float | None
    p99_ms: float | None
    gap_ms_max: float
    gap_partition: int | None


class SendMeter:
    """Counts sends and their outcomes.

    A gap is a time without any `ok` of a partition while a message to it waits for one. It begins at the partition's
    last `ok`, or when the first message began to wait. It ends at the next `ok`.
    """

    def __init__(self, now: float) -> None:
        self._begin = now
        self._end = now
        self._waiting: dict[int, int] = {}  # by partition
        self._gap_begin: dict[int, float] = {}  # of the partitions with messages that wait
        self._recent: deque[tuple[float, int]] = deque()
        self._latencies = Latencies()
        self._counts: dict[OutcomeName, int] = {"ok": 0, "failed": 0, "unknown": 0}
        self.sent = 0
        self.gap_s_max = 0.0
        self._gap_partition: int | None = None

    @property
    def waiting(self) -> int:
        """The number of messages that were sent and have no outcome yet."""
        return sum(self._waiting.values())

    def send(self, partition: int, now: float, count: int = 1) -> None:
        """Count messages that are handed to the client."""
        if not self._waiting.get(partition):
            self._gap_begin[partition] = now
        self._waiting[partition] = self._waiting.get(partition, 0) + count
        self.sent += count

    def outcome(self, partition: int, outcome: OutcomeName, sent_at: float, now: float, count: int = 1) -> None:
        """Count the outcome of messages that were sent at `sent_at`."""
        assert count <= self._waiting.get(partition, 0), "an outcome for what was not sent"
        self._waiting[partition] -= count
        self._counts[outcome] += count
        self._end = now
        if outcome == "ok":
            self._accepted(partition, sent_at, now, count)
        if not self._waiting[partition]:
            del self._waiting[partition], self._gap_begin[partition]

    def _accepted(self, partition: int, sent_at: float, now: float, count: int) -> None:
        self._latencies.add((now - sent_at) * 1000, count)
        gap_s = now - self._gap_begin[partition]
        if gap_s > self.gap_s_max:
            self.gap_s_max, self._gap_partition = gap_s, partition
        self._gap_begin[partition] = now
        self._recent.append((now, count))
        self._forget(now)

    def rate(self, now: float) -> float:
        """The number of messages acknowledged in the last second."""
        self._forget(now)
        return sum(count for _, count in self._recent) / RATE_WINDOW_S

    def gap(self, now: float) -> tuple[float, int | None]:
        """The longest gap that lasts: its seconds, and the partition; (0, None) if no message waits."""
        if not self._gap_begin:
            return 0.0, None
        partition = min(self._gap_begin, key=self._gap_begin.__getitem__)
        return now - self._gap_begin[partition], partition

    def line(self, now: float, master_of: Callable[[int], str | None]) -> str:
        """The text of the live line.

        Args:
            now: The present time.
            master_of: The broker that accepts messages of a partition; None: not known.
        """
        ok, failed, unknown = (self._counts[name] for name in ("ok", "failed", "unknown"))
        bad = f"  failed {failed:,}" * bool(failed) + f"  unknown {unknown:,}" * bool(unknown)
        gap_s, partition = self.gap(now)
        end = f"longest gap {span(max(self.gap_s_max, gap_s))}"
        if partition is not None and gap_s >= WAIT_SHOWN_S:
            others = sum(begin <= now - WAIT_SHOWN_S for begin in self._gap_begin.values()) - 1
            more = f" (and {others} more)" * bool(others)
            end = f"partition {partition}{more} waits {gap_s:.0f} s for {master_of(partition) or 'a master'}"
        return f"{self.rate(now):,.0f} msg/s  acked {ok:,}  waiting {self.waiting:,}{bad}  {end}"

    def summary(self) -> Summary:
        """The figures at the end."""
        duration_s = self._end - self._begin
        return Summary(
            sent=self.sent,
            ok=self._counts["ok"],
            failed=self._counts["failed"],
            unknown=self._counts["unknown"],
            duration_s=round(duration_s, 3),
            rate=round(self._counts["ok"] / duration_s, 1) if duration_s > 0 else 0.0,
            p50_ms=_rounded(self._latencies.percentile(0.5)),
            p99_ms=_rounded(self._latencies.percentile(0.99)),
            gap_ms_max=round(self.gap_s_max * 1000, 1),
            gap_partition=self._gap_partition,
        )

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - RATE_WINDOW_S:
            self._recent.popleft()


def describe(summary: Summary) -> str:
    """The summary as two lines for humans."""
    bad = f", {summary.failed:,} failed" * bool(summary.failed)
    bad += f", {summary.unknown:,} unknown" * bool(summary.unknown)
    unsettled = summary.sent - summary.ok - summary.failed - summary.unknown
    bad += f", {unsettled:,} without an outcome" * bool(unsettled)
    first = f"{summary.sent:,} sent: {summary.ok:,} ok{bad}, in {span(summary.duration_s)} ({summary.rate:,.0f} msg/s)"
    if summary.p50_ms is None or summary.p99_ms is None:
        return first
    return (
        f"{first}\nacked after {span(summary.p50_ms / 1000)} (p50), {span(summary.p99_ms / 1000)} (p99); "
        f"longest gap {span(summary.gap_ms_max / 1000)} (partition {summary.gap_partition})"
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")
