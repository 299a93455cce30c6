"""Draws the running demo of orders for a terminal: rate, consumers, the aircraft that fail, faults. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from e2e.demo.live import fault_rows, headline, rate_rows, recent_rate
from e2e.demo.report import DemoFault

FAULTS_SHOWN_MAX = 6
_LINES_BUT_FAULTS = 16
"""The lines of the picture without those of consumers and faults."""
_COLUMN_WIDTH = 17


@dataclass(slots=True)
class Scene:
    """All that the live view shows of one moment. The runner updates it.

    Attributes:
        at_s: Seconds since the demo began to send; 0 before that.
        total: The number of events that the demo sends.
        finished: By the consumers' places: how many messages they have finished.
        rates: Messages finished in each `rate_step_s` seconds so far, oldest first.
        faults: Every fault so far, the present one last.
        aircraft: By aircraft: what is happening to the ones that fail.
        doing: What the demo does right now, as a text for people.
    """

    title: str
    total: int
    faults_min: int
    at_s: float = 0.0
    sent: int = 0
    acknowledged: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    rate_step_s: float = 0.5
    rates: list[int] = field(default_factory=list)
    faults: list[DemoFault] = field(default_factory=list)
    aircraft: dict[str, str] = field(default_factory=dict)
    doing: str = ""

    @property
    def finished_count(self) -> int:
        """How many messages all consumers have finished."""
        return sum(self.finished.values())

    @property
    def hit_count(self) -> int:
        """The number of faults that count."""
        return sum(fault.hit for fault in self.faults)

    def count(self, finished: dict[str, int]) -> None:
        """Take new figures of the consumers."""
        before = self.finished_count
        self.finished = finished
        step = max(0, int(self.at_s / self.rate_step_s))
        self.rates += [0] * (step + 1 - len(self.rates))
        self.rates[step] += max(0, self.finished_count - before)


def draw(scene: Scene, width: int, height: int) -> RenderableType:
    """Draw the scene for a terminal of `width` columns and `height` lines. On a low one fewer faults are shown."""
    assert width >= 40
    inner = width - 4
    room = height - _LINES_BUT_FAULTS - max(1, math.ceil(len(scene.finished) / _columns(inner)))
    return Group(
        _headline(scene, width),
        _panel(rate_rows(scene.rates, scene.rate_step_s, inner), "finished a second"),
        _panel(_consumers(scene, inner), "finished by consumer"),
        _panel(_aircraft(scene), "aircraft that fail"),
        _panel(
            fault_rows(sorted(scene.faults, key=lambda fault: fault.at_s), min(max(1, room), FAULTS_SHOWN_MAX)),
            f"faults: {scene.hit_count} of {scene.faults_min} hit",
        ),
        Text(f" {scene.doing}", style="italic", no_wrap=True, overflow="ellipsis"),
    )


def progress_line(scene: Scene) -> str:
    """Return the scene as one line."""
    aircraft = "".join(f"  {key} {state}" for key, state in scene.aircraft.items())
    return (
        f"{scene.at_s:6.1f} s  {scene.finished_count:>8,} of {scene.total:,} finished"
        f" ({recent_rate(scene.rates, scene.rate_step_s):,.0f}/s)"
        f"  {scene.hit_count} of {scene.faults_min} faults hit{aircraft}  {scene.doing}"
    )


def _panel(inside: RenderableType, title: str) -> Panel:
    return Panel(inside, title=title, title_align="left", border_style="dim")


def _headline(scene: Scene, width: int) -> Text:
    share = min(scene.finished_count / scene.total, 1.0) if scene.total else 0.0
    figures = Text(f"{scene.finished_count:,} finished", style="bold")
    figures.append(f" of {scene.acknowledged:,} sent", style="not bold")
    return headline(scene.title, scene.at_s, share, figures, width)


def _columns(width: int) -> int:
    """How many consumers stand side by side."""
    return max(1, width // (_COLUMN_WIDTH + 1))


def _consumers(scene: Scene, width: int) -> Text:
    """Draw a bar for each consumer, several in a line."""
    columns = _columns(width)
    most = max(scene.finished.values(), default=0)
    text = Text(no_wrap=True, overflow="crop")
    for number, (name, count) in enumerate(sorted(scene.finished.items())):
        if number:
            text.append("\n" if number % columns == 0 else " ")
        full = round(count / most * 5) if most else 0
        text.append(f"{name} ", style="dim")
        text.append("█" * full + "·" * (5 - full), style="cyan")
        text.append(f" {count:>6,}")
    return text


def _aircraft(scene: Scene) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for number, (key, state) in enumerate(scene.aircraft.items()):
        text.append("\n" * bool(number))
        text.append(f"{key} ", style="bold")
        text.append(state)
    text.append("\n" * (2 - max(1, len(scene.aircraft))))
    return text
