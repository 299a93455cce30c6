"""What the demos print at their end: a table, a verdict, and one JSON object as the last line.

Each demo has its own figures. What the two demos with flights and faults of brokers have in common is in `Outcome`: the
checker's report, the faults, and whether the rebuilt histories are those of the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from rich.console import Console
from rich.table import Table
from seriatim.history import KINDS, REORDERED, Report, render

Role = Literal["master", "server", "consumer", "none"]
"""The role of the victim at the moment of the fault: master of an open segment, server of consumers, a process
with consumers, or none of these.
"""

Row = tuple[str, str, str]
"""A line of the table: a name, a figure, and more words."""

DETAILS_SHOWN_MAX: Final = 10
BROKEN_PROMISES: Final = (REORDERED, *(kind for kind in KINDS if REORDERED not in kind))
"""The counts of the checker's report that must be 0."""

COUNTS: Final = ("sent", "failed", "unknown", "delivered", "lost", "repeated", "reordered", "stuck")
"""The counts that the last line has under their own names."""


@dataclass(frozen=True, slots=True)
class DemoFault:
    """One fault, as the runner saw it.

    Attributes:
        kind: For example `kill`, `kill both` (members of a group), `cut`.
        victim: The member, the link, or both members, as human-readable text.
        role: The role of the victim when it was struck.
        at_s: When it was struck, in seconds since the demo began to send.
        healed_at_s: When it was mended (restarted, thawed, joined again); None: not before the end.
        hit: Whether the fault counts: at that moment the victim had an open segment or served a consumer, and messages
            were under way there before and after it.
        gap_ms: The longest time for which a partition of the victim accepted nothing while messages waited; None: not
            known yet, or the victim was a member of no open segment.
    """

    kind: str
    victim: str
    role: Role
    at_s: float
    healed_at_s: float | None = None
    hit: bool = True
    gap_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What a demo prints at its end.

    Attributes:
        problems: Why the run did not show what it had to show; empty if it did.
        good: The sentence for a run without problems.
        details: Lines below the table, of which the first ones are printed.
        figures: The JSON object, without what follows from the fields above.
        pictures: The names of the files with pictures.
    """

    seed: int
    problems: Sequence[str]
    good: str
    rows: Sequence[Row]
    details: Sequence[str]
    figures: Mapping[str, object]
    pictures: str


def show(console: Console, out: Path, told: Told) -> int:
    """Print the report, which fits on a screen of 80 columns and 24 lines, and write it to `report.json`.

    Returns:
        The exit status: 0 only if there is no problem.
    """
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    for row in told.rows:
        table.add_row(*row)
    console.rule("[bold]What happened", characters="─")
    console.print(table)
    for line in told.details[:DETAILS_SHOWN_MAX]:
        console.print(line, markup=False, highlight=False)
    if told.problems:
        console.print("[bold red]FAILED[/] ", end="")
        console.print(f"{'; '.join(told.problems)}  (SEED={told.seed} plans it again)", markup=False, highlight=False)
    else:
        console.print(f"[bold green]OK[/] {told.good}", highlight=False, soft_wrap=True)
    figures = {"ok": not told.problems, "problems": list(told.problems), "seed": told.seed, **told.figures}
    line = json.dumps(figures, allow_nan=False)
    (out / "report.json").write_text(line + "\n")
    console.print(f"picture: {out}/{told.pictures}   all files: {out}/", highlight=False, soft_wrap=True)
    print(line, file=console.file, flush=True)  # not by rich, which would wrap it
    return 1 if told.problems else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is known when the flights were sent and read, and brokers failed.

    Attributes:
        check: The checker's judgement of the recorded history.
        event_count: The number of events that the demo had to send.
        duration_s: The time of the work, in seconds, which the rates are of.
        differences: How the rebuilt histories differ from those of the file: sentences from `rebuild.differences`.
        digest: SHA-256 of the rebuilt histories.
        faults: Every fault that was injected.
        seed: The seed that replays the fault plan.
        quick: Whether this was `QUICK=1`.
        hits_min: The number of faults that must have hit.
        kinds_wanted: At least one fault of each of these kinds must have hit.
        longest_silence_s: The longest time in which a partition acknowledged nothing while messages waited, as the
            producer saw it, in seconds. No gap of a fault can be longer.
    """

    check: Report
    event_count: int
    duration_s: float
    differences: Sequence[str]
    digest: str
    faults: Sequence[DemoFault]
    seed: int
    quick: bool
    hits_min: int
    kinds_wanted: Sequence[str]
    longest_silence_s: float = 0.0

    @property
    def hits(self) -> list[DemoFault]:
        """The faults that count."""
        return [fault for fault in self.faults if fault.hit]

    @property
    def picture_s(self) -> float:
        """The end of the axis of time, in seconds. It holds all events and all faults."""
        return max(self.duration_s, 1.0, *(fault.healed_at_s or fault.at_s for fault in self.faults), 0.0)

    def problems(self) -> list[str]:
        """Say why the run did not show what it had to show; empty if it did."""
        counts = self.check.counts
        found = [f"{counts[kind]:,} {kind}" for kind in BROKEN_PROMISES if counts[kind]]
        if counts["sent"] != self.event_count:
            found.append(f"{counts['sent']:,} of {self.event_count:,} events were sent")
        if not self.check.groups:
            found.append("no consumer group was recorded")
        if self.differences:
            found.append("the rebuilt histories are not those of the file")
        found += self.own_problems()
        if len(self.hits) < self.hits_min:
            found.append(f"only {len(self.hits)} of at least {self.hits_min} faults hit")
        missing = [kind for kind in self.kinds_wanted if kind not in {fault.kind for fault in self.hits}]
        if missing:
            found.append(f"no fault hit of kind {', '.join(missing)}")
        return found

    def own_problems(self) -> list[str]:
        """What only this demo can find."""
        return []

    def told(self, *, good: str, rows: Iterable[Row], figures: Mapping[str, object], pictures: str) -> Told:
        """Add what both demos report."""
        counts = self.check.counts
        kinds = sorted({fault.kind for fault in self.hits})
        gaps = {kind: found for kind in kinds if (found := self.gaps(kind)) is not None}
        more: list[Row] = [
            ("longest silence", f"{self.longest_silence_s * 1000:,.0f} ms", "of a partition, as the producer saw it"),
            *(
                (f"gap: {kind}", f"{gap['p50_ms']:,.0f} ms", f"median of {gap['count']}, {gap['max_ms']:,.0f} at most")
                for kind, gap in gaps.items()
            ),
        ]
        common = {
            "quick": self.quick, "events": self.event_count, "acknowledged": counts["ok"],
            **{name: counts[name] for name in COUNTS},
            "redelivered_flagged": counts["redelivered"], "unknown_share": round(self.check.unknown_share, 8),
            "histories_equal": not self.differences, "histories_sha256": self.digest,
            "duration_s": round(self.duration_s, 3), "faults": len(self.faults), "faults_hit": len(self.hits),
            "longest_silence_ms": round(self.longest_silence_s * 1000, 1), "gap_by_kind": gaps,
        }  # fmt: skip
        details = [*([] if self.check.ok else [render(self.check)]), *(f"  {text}" for text in self.differences)]
        return Told(self.seed, self.problems(), good, [*rows, *more], details, {**common, **figures}, pictures)

    def gaps(self, *kinds: str) -> dict[str, float] | None:
        """Percentiles of the gaps of faults of these kinds that hit."""
        return percentiles(fault.gap_ms for fault in self.hits if fault.kind in kinds and fault.gap_ms is not None)


def percentiles(values_ms: Iterable[float]) -> dict[str, float] | None:
    """Return percentiles by nearest rank: each is one of the values. None if there are no values."""
    values = sorted(values_ms)
    if not values:
        return None
    ranks = {f"p{share}_ms": max(0, math.ceil(share * len(values) / 100) - 1) for share in (50, 90, 99)}
    found = {name: round(values[rank], 1) for name, rank in ranks.items()}
    return {"count": len(values), **found, "max_ms": round(values[-1], 1)}


def verdict(count: int) -> str:
    """A count that must be 0, in green or red."""
    return f"[bold red]{count:,}[/]" if count else "[green]0[/]"


def equality(differences: Sequence[str]) -> str:
    """Whether the histories are equal, in green or red."""
    return "[bold red]differ[/]" if differences else "[green]equal[/]"
