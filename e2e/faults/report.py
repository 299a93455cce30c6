"""The results of cases: judges them, gathers them by fault, prints a table, writes JSON, and says if the run failed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from seriatim.history import KINDS, REORDERED, Report

UNKNOWN_SHARE_MAX: Final = 0.01
"""If the share of unknown outcomes is above this, a history shows too little."""

OTHER_KINDS: Final = tuple(kind for kind in KINDS if kind not in ("lost", "repeated") and REORDERED not in kind)
"""Findings of the checker that have no column of their own."""


COUNTS: Final = ("sent", "acknowledged", "failed", "delivered", "lost", "repeated", "reordered", "other", "given_up")
"""The fields of a result that are numbers of messages or findings."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case.

    Attributes:
        number, fault, workload, repetition, seed: Those of the case; `seed` is the run's.
        sent, acknowledged, failed, delivered: Messages, from the histories.
        lost, repeated, reordered: Messages; repeated ones were not flagged.
        other: Other findings of the checker.
        given_up: Messages in a declared gap that a group did not get, summed over the groups.
        unknown_share: The share of sent messages with an unknown outcome. Messages that a killed producer left without
            outcome do not count.
        gap_s: The longest time in which a partition acknowledged nothing, from the fault to the end; None: not
            measured.
        two_copies_s: From the heal until everything had two copies again; None: it had not, or the case did not wait.
        duration_s: The time of the whole case.
        problems: Why the case fails; empty if it does not.
        notes: What was done and seen.
        network: How its processes were linked.
        features: The features that an administrator used beside the load, in their order.
    """

    number: int
    fault: str
    workload: str
    repetition: int
    seed: int
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    delivered: int = 0
    lost: int = 0
    repeated: int = 0
    reordered: int = 0
    other: int = 0
    given_up: int = 0
    unknown_share: float = 0.0
    gap_s: float | None = None
    two_copies_s: float | None = None
    duration_s: float = 0.0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    network: str = "proxy"
    features: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the case has no problem."""
        return not self.problems


def judge(report: Report, *, producer_killed: bool, declares_gaps: bool = False) -> dict[str, object]:
    """Return the fields of a result that follow from the histories, with the problems in them.

    Args:
        report: The checker's report.
        producer_killed: Whether a producer's process was killed. Then its last messages have no outcome, because the
            process that would have got it is gone.
        declares_gaps: Whether the case declares gaps. If not, each gap is a problem.
    """
    counts = report.counts
    other = sum(counts[kind] for kind in OTHER_KINDS)
    unknown = counts["unknown"] + (0 if producer_killed else counts["no_outcome"])
    share = unknown / counts["sent"] if counts["sent"] else 0.0
    problems = [f"{counts[kind]:,} {kind}" for kind in ("lost", "repeated", "reordered", *OTHER_KINDS) if counts[kind]]
    if share > UNKNOWN_SHARE_MAX:
        problems.append(f"{share:.2%} of the outcomes are unknown")
    if counts["gaps"] and not declares_gaps:
        problems.append(f"readers were notified of {counts['gaps']} gaps, and none was declared")
    if not counts["ok"]:
        problems.append("nothing was acknowledged")
    if not counts["delivered"]:
        problems.append("nothing was delivered")
    return {
        "sent": counts["sent"],
        "acknowledged": counts["ok"],
        "failed": counts["failed"],
        "delivered": counts["delivered"],
        "lost": counts["lost"],
        "repeated": counts["repeated"],
        "reordered": counts["reordered"],
        "other": other,
        "given_up": counts["in_gaps"],
        "unknown_share": share,
        "problems": tuple(problems),
    }


@dataclass(frozen=True, slots=True)
class Row:
    """All cases of one fault."""

    fault: str
    runs: int
    failed_runs: int
    acknowledged: int
    lost: int
    repeated: int
    reordered: int
    other: int
    unknown_share: float
    gap_s: float | None
    two_copies_s: float | None


def rows(results: Sequence[CaseResult]) -> list[Row]:
    """Return one row for each fault, in the order in which they came first.

    Shares and times are the worst of its cases.
    """
    found = []
    for fault in dict.fromkeys(result.fault for result in results):
        mine = [result for result in results if result.fault == fault]
        found.append(
            Row(
                fault=fault,
                runs=len(mine),
                failed_runs=sum(not result.ok for result in mine),
                acknowledged=sum(result.acknowledged for result in mine),
                lost=sum(result.lost for result in mine),
                repeated=sum(result.repeated for result in mine),
                reordered=sum(result.reordered for result in mine),
                other=sum(result.other for result in mine),
                unknown_share=max(result.unknown_share for result in mine),
                gap_s=_worst([result.gap_s for result in mine]),
                two_copies_s=_worst([result.two_copies_s for result in mine]),
            )
        )
    return found


def _worst(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of the whole run.

    Attributes:
        seed: The seed of the schedule.
        quick: Whether it was `QUICK=1`.
        duration_s: From the start of the first process to the end of the last.
        results: The results of the cases.
        left_out: Faults that this machine cannot do, with the reason.
        no_namespaces: Why faults of links went through the proxy; empty if they did not have to.
    """

    seed: int
    quick: bool
    duration_s: float
    results: tuple[CaseResult, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    no_namespaces: str = ""

    @property
    def ok(self) -> bool:
        """Whether there was a case, and all cases have no problem."""
        return bool(self.results) and all(result.ok for result in self.results)


def exit_status(run: RunResult) -> int:
    """Return 0 only if nothing is wrong."""
    return 0 if run.ok else 1


def summary_line(run: RunResult) -> str:
    """Return the line from which `.ci/run` sums the cases, and the faults that were left out (as skipped)."""
    failed = sum(not result.ok for result in run.results)
    return f"{len(run.results) - failed} passed, {failed} failed, {len(run.left_out)} skipped"


def to_json(run: RunResult) -> str:
    """Return the run as one JSON document."""
    document = {
        "ok": run.ok,
        "seed": run.seed,
        "quick": run.quick,
        "duration_s": round(run.duration_s, 1),
        "left_out": run.left_out,
        "networks": _networks(run.results),
        "no_namespaces": run.no_namespaces,
        "features": features(run.results),
        "faults": [asdict(row) for row in rows(run.results)],
        "cases": [{"ok": result.ok, **asdict(result)} for result in run.results],
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _networks(results: Sequence[CaseResult]) -> dict[str, int]:
    """Count the cases on each kind of network."""
    return dict(Counter(result.network for result in results))


def features(results: Sequence[CaseResult]) -> dict[str, int]:
    """Count the cases in which an administrator used each feature."""
    return dict(sorted(Counter(feature for result in results for feature in result.features).items()))


def print_run(console: Console, run: RunResult) -> None:
    """Print the table, the cases that failed, and one line at the end."""
    console.print(_table(rows(run.results)))
    used = ", ".join(f"{count} cases by {name}" for name, count in _networks(run.results).items())
    why = f" (no namespaces: {run.no_namespaces})" if run.no_namespaces else ""
    console.print(f"linked: {used}{why}", highlight=False, markup=False)
    if counts := features(run.results):
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        console.print(f"features: {told}", highlight=False, markup=False)
    for fault, reason in run.left_out.items():
        console.print(f"left out: {fault}: {reason}", highlight=False, markup=False)
    for result in run.results:
        for problem in result.problems:
            text = f"case {result.number}, {result.fault}, load {result.workload}: {problem}"
            console.print(f"FAILED {text}", style="red", highlight=False, markup=False)
    failed = sum(not result.ok for result in run.results)
    acknowledged = sum(result.acknowledged for result in run.results)
    verdict = "[green]OK[/]" if run.ok else "[bold red]FAILED[/]"
    console.print(
        f"{verdict} {len(run.results)} cases, {failed} failed, {acknowledged:,} messages acknowledged, "
        f"{run.duration_s:.0f} s (SEED={run.seed})",
        highlight=False,
    )


def _table(found: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("fault")
    names = (
        "runs", "failed", "acknowledged", "lost", "repeated", "reordered", "other", "unknown", "longest gap",
        "two copies",
    )  # fmt: skip
    for name in names:
        table.add_column(name, justify="right")
    for row in found:
        table.add_row(
            row.fault, str(row.runs), _bad(row.failed_runs), f"{row.acknowledged:,}", _bad(row.lost),
            _bad(row.repeated), _bad(row.reordered), _bad(row.other), f"{row.unknown_share:.2%}",
            _seconds(row.gap_s), _seconds(row.two_copies_s),
        )  # fmt: skip
    return table


def _bad(count: int) -> str:
    return f"[bold red]{count:,}[/]" if count else "0"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"
