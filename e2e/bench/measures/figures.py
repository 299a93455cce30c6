"""The figures of a benchmark, each with its aim: as a table for humans, and as JSON to compare runs.

If a figure was not verified, `Figure.problem` is shown in its place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

NEAR: Final = 0.9
"""The share of its aim from which on a figure is shown as near it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure.

    Attributes:
        name: A short and stable name: the key in the JSON.
        text: What was measured, as human-readable text.
        value: The measured value in `unit`; None: it could not be measured, see `problem`.
        unit: For example `msg/s`, `ms`, `µs`, or `x` (times as much).
        aim: The value to reach; None: there is no aim.
        higher_is_better: Whether more is better, as with messages in a second.
        details: Other facts about the figure.
        problem: Why the figure does not count; empty if it counts.
    """

    name: str
    text: str
    value: float | None
    unit: str
    aim: float | None = None
    higher_is_better: bool = False
    details: Mapping[str, object] = field(default_factory=dict)
    problem: str = ""

    @property
    def ratio(self) -> float | None:
        """The share of the aim that was reached; 1 or more is all of it."""
        if self.value is None or self.aim is None or self.problem or self.value <= 0:
            return None
        return self.value / self.aim if self.higher_is_better else self.aim / self.value


def percentile(values: Sequence[float], part: float) -> float:
    """Return a percentile by nearest rank: it is one of the values."""
    assert values
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def table(figures: Sequence[Figure], title: str) -> Table:
    """Show the figures beside their aims."""
    drawn = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    drawn.add_column("")
    for name in ("measured", "aim", "of the aim"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("", style="dim")
    for figure in figures:
        aim = "–" if figure.aim is None else amount(figure.aim, figure.unit)
        measured = "–" if figure.value is None or figure.problem else amount(figure.value, figure.unit)
        note = f"[bold red]{figure.problem}[/]" if figure.problem else _notes(figure.details)
        drawn.add_row(figure.text, f"[bold]{measured}[/]", aim, share(figure.ratio), note)
    return drawn


def narrow_table(title: str, *columns: str, first: str = "") -> Table:
    """A table for numbers beside texts, with no more space than it needs.

    Args:
        title: Stands above it.
        columns: The columns of numbers.
        first: The column of texts.
    """
    drawn = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    drawn.add_column(first)
    for column in columns:
        drawn.add_column(column, justify="right", no_wrap=True)
    return drawn


def tell_below(drawn: Table, problems: Sequence[str]) -> None:
    """Write problems below a table, in red, one on a line."""
    drawn.caption = Text("\n".join(problems), style="bold red") if problems else None
    drawn.caption_justify = "left"


def rounded(value: float) -> str:
    """A value without its unit, as tables show it."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def amount(value: float, unit: str) -> str:
    """A value with its unit, as tables show it."""
    if unit in ("msg/s", "MB/s"):
        return f"{value:,.0f} {unit}"
    return f"{rounded(value)} {unit}"


def share(ratio: float | None) -> str:
    """A share of an aim, in green, yellow or red."""
    if ratio is None:
        return "–"
    colour = "green" if ratio >= 1 else "yellow" if ratio >= NEAR else "red"
    return f"[{colour}]{ratio:.0%}[/]"


def _notes(details: Mapping[str, object]) -> str:
    said = []
    cpu = details.get("cpu_s_per_million")
    if isinstance(cpu, Mapping):
        said.append("CPU s a million: " + ", ".join(f"{role} {used}" for role, used in cpu.items()))
    if "work_ms" in details:
        said.append(f"work {details['work_ms']:.2f} ms")
    if "max_ms" in details:
        said.append(f"longest {details['max_ms']:.1f} ms")
    if "p99_ms" in details:
        said.append(f"p99 {details['p99_ms']:.2f} ms")
    least, most = details.get("least"), details.get("most")
    if isinstance(least, float) and isinstance(most, float):
        said.append(f"from {rounded(least)} to {rounded(most)}")
    return "; ".join(said)


def to_json(figures: Sequence[Figure], machine: Mapping[str, object], took_s: float, *, benchmark: str) -> str:
    """Write all figures as JSON, so that the next run can be compared with them."""
    return json.dumps(
        {
            "benchmark": benchmark,
            "took_s": round(took_s, 1),
            "machine": dict(machine),
            "figures": {
                figure.name: {**asdict(figure), "ratio": None if figure.ratio is None else round(figure.ratio, 3)}
                for figure in figures
            },
        },
        indent=2,
        allow_nan=False,
    )


def write_json(path: Path, text: str) -> None:
    """Write a file, and make its directory if it is missing.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
