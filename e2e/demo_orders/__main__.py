"""`python -m e2e.demo_orders`, or `make demo-orders`: QUICK=1 runs a part, SEED=n repeats a plan, OUT= names the
directory of the results.

If stdout is a terminal, the demo draws the run; otherwise it prints lines of progress. Then it prints the report, and
as the last line one JSON object with the figures. The exit status is 0 only if each aircraft's events were worked on
once and in order.
"""

from __future__ import annotations

import os
import sys

from rich.console import Console

from e2e.demo.settings import SettingsError
from e2e.demo.view import EXIT_USAGE, View, carry_out
from e2e.demo_orders import picture
from e2e.demo_orders.live import draw, progress_line
from e2e.demo_orders.report import exit_status, json_line, print_report
from e2e.demo_orders.run import Demo, Result
from e2e.demo_orders.settings import Settings, read_settings
from e2e.distance import told
from e2e.usage import read_command_line


def main() -> int:
    console = Console()
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    console.print(
        f"flights, worked on by {settings.consumer_count} consumers in the order of each aircraft, while consumers and"
        f" brokers are killed  (SEED={settings.seed}{told(settings.delay or None)}, files in {settings.out}/)",
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
    path = settings.out / "attempts.svg"
    picture.write(
        path,
        result.story,
        title="Attempts and faults of the demo",
        subtitle=(
            f"{outcome.event_count:,} events of {outcome.judgement.aircraft:,} aircraft, {outcome.consumer_count}"
            f" consumers in {outcome.process_count} processes, {len(outcome.hits)} faults, seed {outcome.seed}"
        ),
    )
    line = json_line(outcome)
    (settings.out / "report.json").write_text(line + "\n")
    console.print(f"picture: {path}   histories: {settings.out}/*.jsonl", highlight=False)
    print(line, flush=True)


if __name__ == "__main__":
    read_command_line("e2e.demo_orders", __doc__)
    sys.exit(main())
