"""`python -m e2e.spark_faults`, or `make faults-spark`: RUNS=200 runs of the sink, seeds from SEED=1 on, at most
MINUTES=n.

It prints a table: which processes were struck at each moment, and in how many runs each row was there once and in
order. The last line is one JSON object. The exit status is 0 only if every run has each row once and in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from e2e.spark_faults.run import ALL_MOMENTS, KINDS, Course, run_all
from e2e.usage import EXIT_INTERRUPTED, EXIT_USAGE, log_to, read_command_line, run_until_signal

OUT: Final = "faults-spark-out"
RUNS: Final = 200


def read_number(environment: Mapping[str, str], name: str, default: int) -> int:
    """Read a whole number above 0 from the environment.

    Raises:
        ValueError: The text is not such a number.
    """
    text = environment.get(name) or str(default)
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{name} is a whole number above 0, not {text!r}")
    return int(text)


def main() -> int:
    console = Console(width=None if sys.stdout.isatty() else 150)
    try:
        first, count, minutes = (
            read_number(os.environ, name, default) for name, default in (("SEED", 1), ("RUNS", RUNS), ("MINUTES", 600))
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    out = Path(os.environ.get("OUT") or OUT)
    out.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=out)).resolve()
    console.print(f"{count} runs of the sink from SEED={first} on; drivers write to {out}/drivers.log", highlight=False)
    begun, seeds = time.monotonic(), range(first, first + count)
    with (out / "brokers.log").open("w") as log:
        log_to(log)
        try:
            until = begun + 60 * minutes
            run = run_all(directory, out / "drivers.log", seeds, until, partial(_tell, console))
            courses = asyncio.run(run_until_signal(run))
        except (KeyboardInterrupt, asyncio.CancelledError):
            console.print("interrupted; everything that was started has ended")
            return EXIT_INTERRUPTED
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    figures = figures_of(courses) | {"seed": first, "seconds": round(time.monotonic() - begun)}
    console.print(table_of(courses))
    _tell_ends(console, courses)
    line = json.dumps(figures)
    (out / "report.json").write_text(line + "\n")
    print(line, flush=True)
    return 1 if figures["problems"] or not courses else 0


def _tell(console: Console, course: Course) -> None:
    """Print a run that has ended."""
    struck = ", ".join(f"{fault.kind} {fault.moment} of {fault.batch}" for fault in course.hit) or "nothing struck"
    text = f"  {course.seed:>4}: {course.took_s:5.1f} s, {course.starts} starts, {struck}"
    console.print(text, style="dim", highlight=False)
    for problem in course.problems:
        console.print(f"[bold red]{escape(problem)}[/]", highlight=False)


def _tell_ends(console: Console, courses: Sequence[Course]) -> None:
    """Print how zombies ended, and the errors with which queries ended."""
    ends = Counter(_kind(end) for course in courses for end in course.zombies)
    if ends:
        told_ends = ", ".join(f"{count} {end}" for end, count in ends.most_common())
        console.print(f"how zombies ended: {told_ends}", highlight=False)
    for course in courses:
        for kind, text in course.errors:
            if kind not in ("worker", "no fault"):
                console.print(f"run {course.seed}: the query ended after a {kind}: {escape(text)}", highlight=False)


def _kind(end: str | None) -> str:
    return "well" if end is None else end.partition(":")[0]


def figures_of(courses: Sequence[Course]) -> dict[str, object]:
    """Return the figures of all runs together."""
    hit = Counter(fault.kind for course in courses for fault in course.hit)
    refused = sum("WriterConflictError" in (end or "") for course in courses for end in course.zombies)
    return {
        "runs": len(courses), "rows": sum(course.rows for course in courses), "struck": dict(hit),
        "starts": sum(course.starts for course in courses), "zombies_refused": refused,
        "problems": [f"SEED={course.seed}: {problem}" for course in courses for problem in course.problems],
    }  # fmt: skip


def table_of(courses: Sequence[Course]) -> Table:
    """Make the table: what was struck at each moment, and in how many runs each row was there once and in order."""
    table = Table(
        title="faults struck at each moment of a micro-batch; exact: runs with each row once and in order",
        caption="worker: a Python worker of a task or of a commit is killed; broker: one of the target is killed;\n"
        "driver: killed with all it started; zombie: frozen until another driver is done, and then woken",
    )
    for name in ("struck", *ALL_MOMENTS, "all", "runs", "exact"):
        table.add_column(name, justify="left" if name == "struck" else "right")
    for kind in KINDS:
        hit = Counter(fault.moment for course in courses for fault in course.hit if fault.kind == kind)
        runs = [course for course in courses if any(fault.kind == kind for fault in course.hit)]
        exact = sum(not course.problems for course in runs)
        counts = [str(hit[moment]) for moment in ALL_MOMENTS]
        table.add_row(kind, *counts, str(hit.total()), str(len(runs)), str(exact))
    total = Counter(fault.moment for course in courses for fault in course.hit)
    exact = sum(not course.problems for course in courses)
    counts = [str(total[moment]) for moment in ALL_MOMENTS]
    table.add_row("all", *counts, str(total.total()), str(len(courses)), str(exact))
    return table


if __name__ == "__main__":
    read_command_line("e2e.spark_faults", __doc__)
    sys.exit(main())
