"""The program around a demo: it reads the settings, shows the run and its report, and ends cleanly.

If stdout is a terminal, a demo draws the run; otherwise it prints lines of progress. Then it prints the report, and as
the last line one JSON object with the figures.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from rich.console import Console
from rich.markup import escape

from e2e.demo.live import View
from e2e.demo.report import Told, show
from e2e.demo.settings import Settings
from e2e.distance import told
from e2e.usage import EXIT_INTERRUPTED, EXIT_USAGE, SettingsError, log_to, read_command_line, run_until_signal

SettingsT = TypeVar("SettingsT", bound=Settings)


class Demo(Protocol):
    """A demo that was set up."""

    async def run(self) -> Told:
        """Run it, and say what the report reports."""


def main(
    program: str,
    about: str | None,
    headline: str,
    read: Callable[[Mapping[str, str]], SettingsT],
    demo: Callable[[SettingsT, View], Demo],
) -> int:
    """Carry out a demo, and return its exit status.

    Args:
        program: The name of its package.
        about: What it does, for `--help`.
        headline: What it does, in a line.
        read: Reads its settings from the environment.
        demo: Sets it up.
    """
    read_command_line(program, about)
    console = Console()
    try:
        settings = read(os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    part, distance = "a part of " if settings.quick else "", told(settings.delay or None)
    words = f"{part}{headline}  (SEED={settings.seed}{distance}, files in {settings.out}/)"
    console.print(words, highlight=False, soft_wrap=True)
    settings.out.mkdir(parents=True, exist_ok=True)
    with (settings.out / "demo.log").open("w") as log:
        log_to(log)
        try:
            with View(console) as view:
                found = asyncio.run(run_until_signal(demo(settings, view).run()))
        except (KeyboardInterrupt, asyncio.CancelledError):
            console.print("interrupted; everything that was started has ended")
            return EXIT_INTERRUPTED
        except Exception as error:  # Spark raises errors of many types; the log has the whole text
            log.write("".join(traceback.format_exception(error)))
            text = escape(str(error).strip() or repr(error))
            console.print(f"[bold red]FAILED[/] {text}  (SEED={settings.seed})", highlight=False)
            return 1
    return show(console, settings.out, found)
