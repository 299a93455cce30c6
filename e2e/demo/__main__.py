"""`python -m e2e.demo`, or `make demo`: QUICK=1 runs a part, SEED=n repeats a fault plan, LATENCY=25 delays all
links by 25 ms each way, OUT= names the directory of the results.

If stdout is a terminal, the demo draws the run; otherwise it prints lines of progress. Then it prints the report, and
as the last line one JSON object with the figures. The exit status is 0 only if no message was lost or reordered and the
histories are equal.
"""

from __future__ import annotations

import os
import sys

from rich.console import Console

from e2e.demo import picture
from e2e.demo.live import draw, progress_line
from e2e.demo.report import exit_status, json_line, print_report
from e2e.demo.run import Demo, Result
from e2e.demo.settings import Settings, SettingsError, read_settings
from e2e.demo.view import EXIT_USAGE, View, carry_out
from e2e.distance import told
from e2e.usage import read_command_line


def main() -> int:
    console = Console()
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    part = "a part of " if settings.quick else ""
    console.print(
        f"{part}the flights out of New York in 2013, through {settings.group_count * settings.member_count} brokers"
        f" that are killed, frozen and cut off  (SEED={settings.seed}{told(settings.delay or None)}, files in"
        f" {settings.out}/)",
        highlight=False,
    )
    view = View(console, draw, progress_line)
    demo = Demo(settings, on_scene=view.scene, on_fault=view.fault)
    result = carry_out(console, view, demo.run, out=settings.out, seed=settings.seed)
    if isinstance(result, int):
        return result
    _show(console, settings, result)
    return exit_status(result.outcome)


def _show(console: Console, settings: Settings, result: Result) -> None:
    outcome = result.outcome
    print_report(console, outcome)
    path = settings.out / "segments.svg"
    picture.write(
        path,
        outcome.segments,
        outcome.faults,
        result.rates,
        result.silences,
        duration_s=result.duration_s,
        title="Segments and faults of the demo",
        subtitle=f"{outcome.event_count:,} events, {len(outcome.hits)} faults that hit, seed {outcome.seed}",
    )
    line = json_line(outcome)
    (settings.out / "report.json").write_text(line + "\n")
    console.print(f"picture: {path}   histories: {settings.out}/*.jsonl", highlight=False)
    print(line, flush=True)


if __name__ == "__main__":
    read_command_line("e2e.demo", __doc__)
    sys.exit(main())
