"""What happened to each message of the demo, and what of it must not happen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from seriatim import CancelOutcome

from e2e.demo.report import DemoFault, Row, Told, percentiles, verdict
from e2e.lateness import EARLY_MS_MAX, Arrivals

NOTHING: Final = {"p50_ms": 0.0, "p99_ms": 0.0, "max_ms": 0.0}
"""How late nothing was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fates:
    """What is known at the end of a run.

    Attributes:
        sent_count: How many messages the demo had to send.
        due_ms: When each acknowledged message was due, by its number; 0: not known.
        outcomes: The answer to each message that was called back, by number.
        arrivals: What came.
        faults: The brokers that were killed.
        cancelled_min: How many messages had to be called back in time.
        hits_min: How many brokers had to be killed.
        seed: The seed of delays and victims.
        quick: Whether this was `QUICK=1`.
        duration_s: From the first message that was sent to the last one that came, in seconds.
    """

    sent_count: int
    due_ms: Mapping[int, int]
    outcomes: Mapping[int, CancelOutcome]
    arrivals: Arrivals
    faults: Sequence[DemoFault]
    cancelled_min: int
    hits_min: int
    seed: int
    quick: bool
    duration_s: float

    @property
    def cancelled(self) -> frozenset[int]:
        """The messages of which a broker said that they never come."""
        return frozenset(number for number, said in self.outcomes.items() if said is CancelOutcome.CANCELLED)

    @property
    def late(self) -> list[tuple[float, float]]:
        """When messages came, and how many ms after they were due."""
        return self.arrivals.late(self.due_ms)

    def problems(self) -> list[str]:
        """Say why the run did not show what it had to show; empty if it did."""
        cancelled, came = self.cancelled, self.arrivals.places.keys()
        found = self.arrivals.problems({number: due for number, due in self.due_ms.items() if number not in cancelled})
        if wrong := len(cancelled & came):
            found.append(f"{wrong:,} came although they were cancelled")
        if unknown := sum(said is CancelOutcome.NOT_FOUND for said in self.outcomes.values()):
            found.append(f"{unknown:,} were not found when they were called back")
        if len(self.due_ms) < self.sent_count:
            found.append(f"only {len(self.due_ms):,} of {self.sent_count:,} messages were acknowledged")
        if len(cancelled) < self.cancelled_min:
            found.append(f"only {len(cancelled):,} of {self.cancelled_min:,} messages were cancelled")
        if len(self.faults) < self.hits_min:
            found.append(f"only {len(self.faults)} of {self.hits_min} brokers were killed")
        return found

    def told(self, pictures: str) -> Told:
        """What the report says."""
        arrivals, cancelled = self.arrivals, self.cancelled
        lost = len(self.due_ms.keys() - cancelled - arrivals.places.keys())
        came = len(cancelled & arrivals.places.keys())
        late = percentiles(late_ms for _, late_ms in self.late) or {
            "p50_ms": 0,
            "p99_ms": 0,
            "max_ms": 0,
        }
        early_ms = max(0.0, *(round(-late_ms, 1) for _, late_ms in self.late))
        rows: list[Row] = [
            ("sent", f"{len(self.due_ms):,}", "acknowledged, with delays of 1 to 20 s"),
            ("cancelled", f"{len(cancelled):,}", "called back before they were due"),
            ("… and came", verdict(came), "although they were cancelled"),
            ("fired", f"{len(arrivals.came):,}", "came to the consumer"),
            ("lost", verdict(lost), "acknowledged, not cancelled, and did not come"),
            ("fired twice", verdict(arrivals.twice), "came from two places of the log"),
            ("late", f"{late['p50_ms']:,.0f} ms", f"p50; p99 {late['p99_ms']:,.0f}, at most {late['max_ms']:,.0f} ms"),
            ("early", f"{early_ms:,.0f} ms", f"at most; {EARLY_MS_MAX:.0f} ms are allowed"),
            ("killed", f"{len(self.faults)}", ", ".join(fault.victim for fault in self.faults)),
        ]  # fmt: skip
        figures = {
            "quick": self.quick, "acknowledged": len(self.due_ms), "cancelled": len(cancelled),
            "cancelled_came": came, "fired": len(arrivals.came), "lost": lost, "twice": arrivals.twice, "late": late,
            "early_ms": early_ms, "kills": len(self.faults), "duration_s": round(self.duration_s, 1),
        }  # fmt: skip
        good = "each message came once and not before it was due, and none that was cancelled came"
        return Told(self.seed, self.problems(), good, rows, [], figures, pictures)
