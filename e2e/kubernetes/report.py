"""The results of the cases: figures beside their limits, as a table, as JSON, and as the last line, which CI reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Literal

from rich import box
from rich.console import Console
from rich.table import Table

State = Literal["passed", "failed", "skipped"]

MARKS: Final = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure.

    Attributes:
        name: What was measured.
        value: The measured value.
        unit: The unit for humans; empty: a count.
        limit: The highest allowed value; None: there is no limit.
    """

    name: str
    value: float
    unit: str = "s"
    limit: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the value is over its limit."""
        return self.limit is not None and self.value > self.limit

    def __str__(self) -> str:
        return f"{self.value:,.0f} {self.unit}".rstrip() if self.unit != "s" else f"{self.value:.2f} s"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case.

    Attributes:
        name: The name of the case.
        state: Whether it passed, failed or was skipped.
        figures: The figures, in the order in which they were measured.
        problems: Why it failed, or why it was skipped.
        notes: What was done and seen.
        sent, acknowledged, delivered: Messages of its traffic; 0 if it has no traffic.
        duration_s: The time of the whole case.
    """

    name: str
    state: State
    figures: tuple[Figure, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sent: int = 0
    acknowledged: int = 0
    delivered: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of the whole run.

    Attributes:
        results: The results of the cases, in the order of the run.
        duration_s: From the first look at the machine until the last object is removed.
        load_average: The machine's load over one minute, at the beginning and at the end. Limits hold for a machine
            that does nothing else.
        processors: The number of the machine's processors.
        notes: Notes about the run as a whole.
    """

    results: tuple[CaseResult, ...]
    duration_s: float
    load_average: tuple[float, float]
    processors: int
    notes: tuple[str, ...] = field(default=())

    def count(self, state: State) -> int:
        """Count the cases in this state."""
        return sum(result.state == state for result in self.results)


def table(results: Sequence[CaseResult]) -> Table:
    """Make a row for each figure, and for each case without a figure."""
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("case", "figure", "measured", "limit", "acknowledged", ""):
        found.add_column(title, justify="right" if title in ("measured", "limit", "acknowledged") else "left")
    for result in results:
        rows: list[Figure | None] = list(result.figures) or [None]
        for number, figure in enumerate(rows):
            first = number == 0
            acknowledged = f"{result.acknowledged:,}" if result.acknowledged and first else ""
            found.add_row(
                result.name if first else "",
                figure.name if figure else "",
                str(figure) if figure else "",
                _limit(figure),
                acknowledged,
                _mark(result, figure, first=first),
            )
    return found


def _limit(figure: Figure | None) -> str:
    if figure is None or figure.limit is None:
        return ""
    unit = figure.unit if figure.unit != "s" else "s"
    return f"≤ {figure.limit:,g} {unit}".rstrip()


def _mark(result: CaseResult, figure: Figure | None, *, first: bool) -> str:
    if figure is not None and figure.is_over:
        return "over the limit" if result.state == "passed" else f"over the limit, {MARKS[result.state]}"
    return MARKS[result.state] if first else ""


def print_run(console: Console, run: RunResult) -> None:
    """Print the table, and what went wrong."""
    console.print(table(run.results))
    for result in run.results:
        for problem in result.problems:
            console.print(f"{result.name}: {problem}", highlight=False, markup=False)
    begin, end = run.load_average
    console.print(
        f"took {run.duration_s:.0f} s on {run.processors} processors with a load of {begin:.1f} to {end:.1f}",
        highlight=False,
    )
    for note in run.notes:
        console.print(note, highlight=False, markup=False)


def to_json(run: RunResult) -> str:
    """Return the run as JSON."""
    return json.dumps(asdict(run), indent=1, ensure_ascii=False) + "\n"


def summary_line(run: RunResult) -> str:
    """Return the last line. All suites print it in the same form."""
    return f"{run.count('passed')} passed, {run.count('failed')} failed, {run.count('skipped')} skipped"


def exit_status(run: RunResult) -> int:
    """Return 0 only if no case failed and at least one passed."""
    return 0 if run.count("passed") and not run.count("failed") else 1
