"""Figures of a stream of sends: rate, outcomes, latency percentiles, and the longest gap without an acknowledgement.

Pure: its callers give it times as seconds of one monotonic clock. Latencies go into buckets that grow by 2 %. So memory
stays small however many messages there are, and a percentile is right to 2 %.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

OutcomeName = Literal["ok", "failed", "unknown"]

_BUCKET_GROWTH: Final = math.log(1.02)
_LATENCY_MS_MIN: Final = 0.01
RATE_WINDOW_S: Final = 1.0
"""Seconds over which the live line counts its present rate."""


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


class SendMeter:
    """Counts sends and their outcomes.

    A gap is a time without any `ok` while a message waits for one. It begins at the last `ok`, or when the first
    message began to wait. It ends at the next `ok`.
    """

    def __init__(self, now: float) -> None:
        self._begin = now
        self._end = now
        self._waiting = 0
        self._gap_begin = now
        self._recent: deque[tuple[float, int]] = deque()
        self._latencies = Latencies()
        self._counts: dict[OutcomeName, int] = {"ok": 0, "failed": 0, "unknown": 0}
        self.sent = 0
        self.gap_s_max = 0.0

    @property
    def waiting(self) -> int:
        """The number of messages that were sent and have no outcome yet."""
        return self._waiting

    def send(self, now: float, count: int = 1) -> None:
        """Count messages that are handed to the client."""
        if self._waiting == 0:
            self._gap_begin = now
        self._waiting += count
        self.sent += count

    def outcome(self, outcome: OutcomeName, sent_at: float, now: float, count: int = 1) -> None:
        """Count the outcome of messages that were sent at `sent_at`."""
        assert count <= self._waiting, "an outcome for what was not sent"
        self._waiting -= count
        self._counts[outcome] += count
        self._end = now
        if outcome != "ok":
            return
        self._latencies.add((now - sent_at) * 1000, count)
        self.gap_s_max = max(self.gap_s_max, now - self._gap_begin)
        self._gap_begin = now
        self._recent.append((now, count))
        self._forget(now)

    def rate(self, now: float) -> float:
        """The number of messages acknowledged in the last second."""
        self._forget(now)
        return sum(count for _, count in self._recent) / RATE_WINDOW_S

    def gap_s(self, now: float) -> float:
        """How long the present gap has lasted, in seconds; 0 if no message waits."""
        return now - self._gap_begin if self._waiting else 0.0

    def line(self, now: float) -> str:
        """The text of the live line."""
        ok, failed, unknown = (self._counts[name] for name in ("ok", "failed", "unknown"))
        bad = f"  failed {failed:,}" * bool(failed) + f"  unknown {unknown:,}" * bool(unknown)
        longest = max(self.gap_s_max, self.gap_s(now))
        return f"{self.rate(now):,.0f} msg/s  acked {ok:,}  waiting {self._waiting:,}{bad}  longest gap {ms(longest)}"

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
        )

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - RATE_WINDOW_S:
            self._recent.popleft()


def describe(summary: Summary) -> str:
    """The summary as two lines for people."""
    bad = f", {summary.failed:,} failed" * bool(summary.failed)
    bad += f", {summary.unknown:,} unknown" * bool(summary.unknown)
    first = f"{summary.sent:,} sent: {summary.ok:,} ok{bad}, in {summary.duration_s:,.1f} s ({summary.rate:,.0f} msg/s)"
    if summary.p50_ms is None or summary.p99_ms is None:
        return first
    return (
        f"{first}\nacknowledged after {summary.p50_ms:g} ms (p50), {summary.p99_ms:g} ms (p99); "
        f"longest gap {summary.gap_ms_max:g} ms"
    )


def ms(seconds: float) -> str:
    """A duration as text for the live line."""
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")
