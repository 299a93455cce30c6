"""`python -m e2e.demo`, or `make demo`: QUICK=1 runs a part, SEED=n repeats a fault plan, OUT= names the directory of
the results.

If stdout is a terminal, the demo draws the run; otherwise it prints lines of progress. Then it prints the report, and
as the last line one JSON object with the figures. The exit status is 0 only if no message was lost or reordered and the
histories are equal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Final, TextIO

import structlog
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from seriatim_api.errors import SeriatimError

from e2e.demo import picture
from e2e.demo.flights import FlightsError
from e2e.demo.live import Scene, draw, fault_line, progress_line
from e2e.demo.report import DemoFault, exit_status, json_line, print_report
from e2e.demo.run import Demo, Result
from e2e.demo.settings import Settings, SettingsError, read_settings
from e2e.workers import WorkerError

FRAME_S: Final = 0.2
"""The time between two frames of the live view."""

LINE_S: Final = 5.0
"""The time between two lines of progress if stdout is not a terminal."""

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


class _View:
    """Shows the run while it goes on: as a live picture on a terminal, otherwise as lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._shown_at = 0.0
        self._doing = ""

    def __enter__(self) -> _View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def scene(self, scene: Scene) -> None:
        """Show the new state of the run, on a terminal at most once every `FRAME_S`."""
        now = time.monotonic()
        if self._live is not None:
            if now - self._shown_at >= FRAME_S:
                self._live.update(draw(scene, max(40, self._console.width)), refresh=True)
                self._shown_at = now
        elif now - self._shown_at >= LINE_S or (not scene.total and scene.doing != self._doing):
            self._console.print(progress_line(scene), markup=False, highlight=False, soft_wrap=True)
            self._shown_at, self._doing = now, scene.doing

    def fault(self, fault: DemoFault) -> None:
        """Print a line for a fault that is over. The live view needs no such line, because it shows all faults."""
        if self._live is None:
            self._console.print(fault_line(fault), markup=False, highlight=False, soft_wrap=True)


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
        f" that are killed, frozen and cut off  (SEED={settings.seed}, files in {settings.out}/)",
        highlight=False,
    )
    settings.out.mkdir(parents=True, exist_ok=True)
    with (settings.out / "demo.log").open("w") as log:
        _log_to(log)
        try:
            with _View(console) as view:
                result = asyncio.run(_run(settings, view))
        except (KeyboardInterrupt, asyncio.CancelledError):
            console.print("interrupted; everything that was started has ended")
            return EXIT_INTERRUPTED
        except (SeriatimError, WorkerError, FlightsError, OSError) as error:
            console.print(f"[bold red]FAILED[/] {escape(str(error))}  (SEED={settings.seed})", highlight=False)
            return EXIT_FAILED
    _show(console, settings, result)
    return exit_status(result.outcome)


async def _run(settings: Settings, view: _View) -> Result:
    """Run the demo as a task that SIGTERM ends as Ctrl-C does. If several things fail, raise the first failure."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await Demo(settings, on_scene=view.scene, on_fault=view.fault).run()
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _show(console: Console, settings: Settings, result: Result) -> None:
    outcome = result.outcome
    print_report(console, outcome)
    path = settings.out / "segments.svg"
    picture.write(
        path,
        outcome.segments,
        outcome.faults,
        result.rates,
        duration_s=result.duration_s,
        title="Segments and faults of the demo",
        subtitle=f"{outcome.event_count:,} events, {len(outcome.hits)} faults that hit, seed {outcome.seed}",
    )
    line = json_line(outcome)
    (settings.out / "report.json").write_text(line + "\n")
    console.print(f"picture: {path}   histories: {settings.out}/*.jsonl", highlight=False)
    print(line, flush=True)


def _log_to(file: TextIO) -> None:
    """Write the log of the cluster's runner to a file, because the live view draws on the terminal."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(file),
        cache_logger_on_first_use=False,
    )


if __name__ == "__main__":
    sys.exit(main())
