"""What tests of the demos' reports have in common: a judged history, and what is printed."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console
from seriatim.history import MemoryHistory, Report, check_events

from e2e.demo.report import Told, show


def checked(*, lose: bool = False) -> Report:
    history = MemoryHistory("test")
    history.sends(range(50), producer="p", topic="t", partition=0, sequence=0)
    history.outcomes(range(50), "ok", offset="1:0")
    history.deliveries(range(49 if lose else 50), group="g", consumer="c", topic="t", partition=0, offset="1:0")
    history.end()
    return check_events(history.events)


def printed(told: Told, out: Path) -> tuple[int, str, dict[str, object]]:
    """Print the report. Return the exit status, the report and the last line."""
    text = io.StringIO()
    status = show(Console(file=text, width=80, color_system=None), out, told)
    report, last = text.getvalue().rstrip("\n").rsplit("\n", 1)
    assert (out / "report.json").read_text() == last + "\n"
    return status, report, json.loads(last)
