"""`python -m e2e.demo_spark`, or `make demo-spark`: QUICK=1 runs a part, SEED=n repeats strikes, OUT= names the
directory of the results.

The last line is one JSON object, after the report. The exit status is 0 only if all comparisons found no difference.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Final

import structlog
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from seriatim_spark.pipelines.command_line import last_line

from e2e.demo.settings import Settings, SettingsError, read_settings
from e2e.demo_spark.run import FIRST, SECOND, Demo, Outcome
from e2e.usage import read_command_line

OUT: Final = "demo-spark-out"
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


def main() -> int:
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        settings = read_settings({**os.environ, "OUT": os.environ.get("OUT") or OUT})
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    out = settings.out
    out.mkdir(parents=True, exist_ok=True)
    console.print(
        f"{'a part of ' if settings.quick else ''}the flights out of New York in 2013, through Spark and back into a "
        f"topic  (SEED={settings.seed}, files in {out}/)",
        highlight=False,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends all processes as Ctrl-C does
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=out))
    with (out / "demo.log").open("w") as log:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(log), cache_logger_on_first_use=False)
        try:
            outcome = asyncio.run(
                Demo(settings, lambda doing: console.print(f"  {doing}", style="dim", highlight=False)).run(directory)
            )
        except KeyboardInterrupt:
            console.print("interrupted; everything that was started has ended")
            return EXIT_INTERRUPTED
        except Exception as error:  # Spark raises errors of many types; the log has the whole text
            log.write("".join(traceback.format_exception(error)))
            console.print(f"[bold red]FAILED[/] {escape(last_line(error))}  (SEED={settings.seed})", highlight=False)
            return 1
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    _report(console, settings, outcome)
    return 1 if outcome.problems else 0


def _report(console: Console, settings: Settings, outcome: Outcome) -> None:
    kinds = Counter(strike.kind for strike in outcome.course.strikes)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in (
        ("events sent", f"{outcome.events:,}"),
        ("rows in Parquet, audited", f"{outcome.audited:,}"),
        ("aircraft whose state is the last event", f"{outcome.aircraft:,}"),
        ("killed during the replay", ", ".join(f"{kind}s: {count}" for kind, count in sorted(kinds.items())) or "none"),
        ("drivers that the replay took", str(outcome.course.starts)),
        (f"rows of {SECOND}, in the order of {FIRST}", f"{outcome.copied:,}"),
        ("what differs", str(len(outcome.problems))),
    ):
        table.add_row(name, value)
    console.print(table)
    for problem in outcome.problems[:20]:
        console.print(f"[bold red]{escape(problem)}[/]", highlight=False)
    console.print(f"pictures: {settings.out}/traffic.svg, audit.svg, replay.svg", highlight=False)
    figures = {
        "events": outcome.events, "archived": outcome.archived, "audited": outcome.audited,
        "aircraft": outcome.aircraft, "copied": outcome.copied, "killed": dict(kinds),
        "drivers": outcome.course.starts, "replay_s": round(outcome.course.took_s, 1),
        "seconds": round(outcome.took_s, 1), "seed": settings.seed, "problems": outcome.problems,
    }  # fmt: skip
    line = json.dumps(figures)
    (settings.out / "report.json").write_text(line + "\n")
    print(line, flush=True)


if __name__ == "__main__":
    read_command_line("e2e.demo_spark", __doc__)
    sys.exit(main())
