"""The report of the demo: messages, faults, problems, and whether the run failed.

The figures come from the checker's `Report`, from the runner's records of faults and segments, and from the comparison
of the rebuilt histories. This module puts them together, prints them with rich, and makes the one JSON object that is
the demo's last line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

from rich.console import Console
from rich.table import Table
from seriatim.history import KINDS, REORDERED, Report, render

Role = Literal["master", "server", "consumer", "none"]
"""The role of the victim at the moment of the fault: master of an open segment, server of consumers, a process
with consumers, or none of these.
"""

DIFFERENCES_SHOWN_MAX: Final = 10
BROKEN_PROMISES: Final = (REORDERED, *(kind for kind in KINDS if REORDERED not in kind))
"""The counts of the checker's report that must be 0."""


@dataclass(frozen=True, slots=True)
class DemoFault:
    """One fault, as the runner saw it.

    Attributes:
        kind: For example `kill`, `freeze`, `cut`.
        victim: The member, the link, or both members, as a text for people.
        role: The role of the victim when it was struck.
        at_s: When it was struck, in seconds since the demo began to send.
        healed_at_s: When it was mended (restarted, thawed, joined again); None: not before the end.
        hit: Whether the fault counts: at that moment the victim had an open segment or served a consumer, and messages
            were under way there before and after it.
        gap_ms: The longest time for which a partition of the victim accepted nothing while messages waited; None: not
            known yet, or the victim was a member of no open segment.
        both_members: Whether both members of a group were struck.
    """

    kind: str
    victim: str
    role: Role
    at_s: float
    healed_at_s: float | None
    hit: bool
    gap_ms: float | None
    both_members: bool = False

    @property
    def label(self) -> str:
        """The kind, with the word `both` if both members were struck."""
        return f"{self.kind} both" if self.both_members else self.kind


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """One segment of one partition's chain.

    Attributes:
        partition: The partition in the topic.
        segment_no: The segment's number.
        group: The broker group that held it.
        state: OPEN, SEALED, UNSETTLED or LOST, at the end of the demo.
        opened_at_s: When it was opened, in seconds since the demo began to send (negative: before that).
        sealed_at_s: When the next segment was opened; None: it is open.
        length: The number of messages in it; None: not settled.
    """

    partition: int
    segment_no: int
    group: str
    state: str
    opened_at_s: float
    sealed_at_s: float | None
    length: int | None


@dataclass(frozen=True, slots=True)
class RateSample:
    """Messages acknowledged in a second, around a moment."""

    at_s: float
    messages_per_s: float


@dataclass(frozen=True, slots=True)
class Silence:
    """A time in which a partition acknowledged nothing while messages waited, in seconds since the demo began."""

    partition: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that is known when the demo is over.

    Attributes:
        check: The checker's judgement of the recorded history.
        event_count: The number of events that the demo had to send.
        duration_s: From the first send to the last acknowledgement, in seconds.
        drained_s: From the first send to the last delivery, in seconds.
        histories_equal: Whether the rebuilt histories equal those of the file, byte for byte.
        differences: If they are not equal: sentences from `rebuild.differences`.
        digest: SHA-256 of the rebuilt histories.
        faults: Every fault that was injected.
        segments: Every segment of the topic's chains.
        seed: The seed that replays the fault plan.
        quick: Whether this was `QUICK=1`.
        hits_min: The number of faults that must have hit.
        hits_planned: The number that would have had to hit on a faster machine.
        longest_silence_s: The longest time in which a partition acknowledged nothing while messages waited, as the
            producer saw it, in seconds. No gap of a fault can be longer.
        kinds_wanted: At least one fault of each of these kinds (`DemoFault.label`) must have hit.
    """

    check: Report
    event_count: int
    duration_s: float
    drained_s: float
    histories_equal: bool
    differences: Sequence[str]
    digest: str
    faults: Sequence[DemoFault]
    segments: Sequence[SegmentSpan]
    seed: int
    quick: bool
    hits_min: int
    hits_planned: int
    longest_silence_s: float
    kinds_wanted: Sequence[str] = ()

    @property
    def throughput(self) -> float:
        """Acknowledged messages per second of sending."""
        return self.check.counts["ok"] / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def hits(self) -> list[DemoFault]:
        """The faults that count."""
        return [fault for fault in self.faults if fault.hit]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Nearest-rank percentiles of durations in milliseconds."""

    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float

    def to_dict(self) -> dict[str, float]:
        return {
            "count": self.count,
            "p50_ms": round(self.p50_ms, 1),
            "p90_ms": round(self.p90_ms, 1),
            "p99_ms": round(self.p99_ms, 1),
            "max_ms": round(self.max_ms, 1),
        }


def percentiles(values_ms: Iterable[float]) -> Percentiles | None:
    """Return percentiles by nearest rank: each is one of the values. None if there are no values."""
    values = sorted(values_ms)
    if not values:
        return None

    def rank(share: float) -> float:
        return values[max(0, math.ceil(share * len(values)) - 1)]

    return Percentiles(len(values), rank(0.5), rank(0.9), rank(0.99), values[-1])


def gaps_by_kind(faults: Iterable[DemoFault]) -> dict[str, Percentiles]:
    """Return the gaps of the faults that hit, sorted by kind. Faults of both members are kinds of their own."""
    found: dict[str, Percentiles] = {}
    counted = sorted((fault for fault in faults if fault.hit and fault.gap_ms is not None), key=lambda f: f.label)
    for label, group in groupby(counted, key=lambda fault: fault.label):
        gaps = percentiles(fault.gap_ms for fault in group if fault.gap_ms is not None)
        assert gaps is not None
        found[label] = gaps
    return found


def problems(outcome: Outcome) -> list[str]:
    """Say why the run did not show what it had to show; empty if it did."""
    counts = outcome.check.counts
    found = [f"{counts[kind]:,} {kind}" for kind in BROKEN_PROMISES if counts[kind]]
    if counts["sent"] != outcome.event_count:
        found.append(f"{counts['sent']:,} of {outcome.event_count:,} events were sent")
    if not outcome.check.groups:
        found.append("no consumer group was recorded")
    if not outcome.histories_equal:
        found.append("the rebuilt histories are not those of the file")
    if len(outcome.hits) < outcome.hits_min:
        found.append(f"only {len(outcome.hits)} of at least {outcome.hits_min} faults hit")
    hit_kinds = {fault.label for fault in outcome.hits}
    missing = [kind for kind in outcome.kinds_wanted if kind not in hit_kinds]
    if missing:
        found.append(f"no fault hit of kind {', '.join(missing)}")
    return found


def exit_status(outcome: Outcome) -> int:
    """Return 0 only if there is no problem."""
    return 1 if problems(outcome) else 0


def summary(outcome: Outcome) -> dict[str, object]:
    """Return the figures as plain data."""
    counts = outcome.check.counts
    both = [fault for fault in outcome.hits if fault.both_members and fault.gap_ms is not None]
    single = [fault for fault in outcome.hits if not fault.both_members and fault.gap_ms is not None]
    return {
        "ok": not problems(outcome),
        "problems": problems(outcome),
        "seed": outcome.seed,
        "quick": outcome.quick,
        "events": outcome.event_count,
        "sent": counts["sent"],
        "acknowledged": counts["ok"],
        "failed": counts["failed"],
        "unknown": counts["unknown"],
        "unknown_share": round(outcome.check.unknown_share, 8),
        "delivered": counts["delivered"],
        "redelivered_flagged": counts["redelivered"],
        "lost": counts["lost"],
        "repeated": counts["repeated"],
        "reordered": counts["reordered"],
        "stuck": counts["stuck"],
        "histories_equal": outcome.histories_equal,
        "histories_sha256": outcome.digest,
        "duration_s": round(outcome.duration_s, 3),
        "drained_s": round(outcome.drained_s, 3),
        "messages_per_s": round(outcome.throughput),
        "segments": len(outcome.segments),
        "faults": len(outcome.faults),
        "faults_hit": len(outcome.hits),
        "longest_silence_ms": round(outcome.longest_silence_s * 1000, 1),
        "gap_one_member": _gaps(single),
        "gap_both_members": _gaps(both),
        "gap_by_kind": {kind: gaps.to_dict() for kind, gaps in gaps_by_kind(outcome.faults).items()},
    }


def _gaps(faults: Iterable[DemoFault]) -> dict[str, float] | None:
    found = percentiles(fault.gap_ms for fault in faults if fault.gap_ms is not None)
    return None if found is None else found.to_dict()


def json_line(outcome: Outcome) -> str:
    """Return the demo's last line: one JSON object, without a newline."""
    return json.dumps(summary(outcome), separators=(", ", ": "), allow_nan=False)


def print_report(console: Console, outcome: Outcome) -> None:
    """Print the report without the last line. It fits on a screen of 80 columns and 24 lines.

    The caller prints the last line (`json_line`) plainly, so that it is not wrapped.
    """
    console.rule("[bold]What happened", characters="─")
    console.print(_figures(outcome))
    if not outcome.check.ok:
        console.print(render(outcome.check), markup=False, highlight=False)
    for difference in outcome.differences[:DIFFERENCES_SHOWN_MAX]:
        console.print(f"  {difference}", markup=False, highlight=False)
    found = problems(outcome)
    if found:
        console.print(f"[bold red]FAILED[/] {'; '.join(found)}  [dim](SEED={outcome.seed} replays the fault plan)[/]")
    else:
        console.print("[bold green]OK[/] nothing lost, repeated or reordered; all histories are those of the file")


def _figures(outcome: Outcome) -> Table:
    counts = outcome.check.counts
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    rows: list[tuple[str, str, str]] = [
        (
            "events sent",
            f"{counts['sent']:,}",
            f"of {outcome.event_count:,}, to {_partition_count(outcome)} partitions",
        ),
        ("acknowledged", f"{counts['ok']:,}", f"{outcome.throughput:,.0f} a second over {outcome.duration_s:.1f} s"),
        (
            "other outcomes",
            f"{counts['failed'] + counts['unknown']:,}",
            f"{counts['failed']:,} failed, {counts['unknown']:,} unknown ({outcome.check.unknown_share:.4%} of all)",
        ),
        ("delivered", f"{counts['delivered']:,}", f"the last one after {outcome.drained_s:.1f} s"),
        ("flagged repeats", f"{counts['redelivered']:,}", "delivered again, and said so"),
        (
            "broken promises",
            verdict(sum(counts[kind] for kind in BROKEN_PROMISES)),
            ", ".join(f"{counts[kind]:,} {kind}" for kind in ("lost", "repeated", "reordered", "stuck")),
        ),
        ("histories", "[green]equal[/]" if outcome.histories_equal else "[bold red]differ[/]", "byte for byte"),
        ("faults that hit", f"{len(outcome.hits):,}", f"of {len(outcome.faults):,}; {_segments(outcome)}"),
        ("longest silence", f"{outcome.longest_silence_s * 1000:,.0f} ms", "of a partition, as the producer saw it"),
        *_gap_rows(outcome.faults),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _segments(outcome: Outcome) -> str:
    slow = "" if outcome.hits_min == outcome.hits_planned else f" ({outcome.hits_planned} on a faster machine)"
    return f"at least {outcome.hits_min}{slow}; the chains got {len(outcome.segments):,} segments"


def _gap_rows(faults: Sequence[DemoFault]) -> list[tuple[str, str, str]]:
    """One row for each kind of fault that hit: the time without an acknowledgement. Faults of both members are last."""
    gaps = sorted(gaps_by_kind(faults).items(), key=lambda item: (item[0].endswith(" both"), item[0]))
    return [
        (f"gap: {label}", f"{found.p50_ms:,.0f} ms", f"median of {found.count}, {found.max_ms:,.0f} at most")
        for label, found in gaps
    ]


def _partition_count(outcome: Outcome) -> int:
    return len({segment.partition for segment in outcome.segments})


def verdict(count: int) -> str:
    """A count that must be 0, in green or red."""
    return f"[bold red]{count:,}[/]" if count else "[green]0[/]"
