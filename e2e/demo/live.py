"""Shows a running demo: as a live picture on a terminal, otherwise as lines.

A `Scene` has the figures of a moment, which the runner updates. Each demo has a scene of its own, with panels between
the rate and the faults. Words or shapes repeat what a colour says.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from e2e.demo.report import DemoFault

FRAME_S: Final = 0.2
"""The time between two frames of the live view."""

LINE_S: Final = 5.0
"""The time between two lines of progress if stdout is not a terminal."""

WIDTH_MIN: Final = 40
"""A narrower terminal is drawn on as if it were so wide."""

RATE_STEP_S: Final = 0.5
RATE_WINDOW_S: Final = 60.0
"""The length of the past that the sparkline shows."""

FAULTS_SHOWN_MAX: Final = 8
_LINES_BUT_PANELS: Final = 10
"""The lines of the picture without those of the panels and of faults."""
_SPARKS: Final = " ▁▂▃▄▅▆▇█"
_ROWS_OF_SPARK: Final = 3


@dataclass(slots=True)
class Scene:
    """All that the view shows of one moment.

    Attributes:
        hits_min: How many faults must hit.
        total: The number of events that the demo sends; 0 until that is known.
        at_s: Seconds since the demo began to send; 0 before that.
        rates: What was counted in each `RATE_STEP_S` so far, oldest first.
        faults: Every fault so far, in the order of time.
        doing: What the demo does right now, as human-readable text.
    """

    title: ClassVar[str] = "Seriatim"
    counted: ClassVar[str] = "acknowledged"
    """What the rate and the bar count, in a word."""

    hits_min: int
    total: int = 0
    at_s: float = 0.0
    sent: int = 0
    acknowledged: int = 0
    unknown: int = 0
    rates: list[int] = field(default_factory=list)
    faults: Sequence[DemoFault] = ()
    doing: str = ""

    @property
    def done(self) -> int:
        """How much of `total` is done."""
        return self.acknowledged

    @property
    def rate(self) -> float:
        """What was counted in a second, over the last 3 s."""
        recent = self.rates[-round(3 / RATE_STEP_S) :]
        return sum(recent) / (len(recent) * RATE_STEP_S) if recent else 0.0

    @property
    def hits(self) -> str:
        """How many faults hit, in words."""
        return f"{sum(fault.hit for fault in self.faults)} of {self.hits_min}"

    def count(self, at_s: float, more: int) -> None:
        """Add to the rate of a moment."""
        step = max(0, int(at_s / RATE_STEP_S))
        self.rates += [0] * (step + 1 - len(self.rates))
        self.rates[step] += more

    def figures(self) -> list[tuple[str, str]]:
        """The figures after the bar, and their styles."""
        return []

    def panels(self, width: int) -> list[tuple[str, Text]]:
        """The panels of this demo, and their titles."""
        return []

    def more(self) -> str:
        """What the line of progress shows in this demo only."""
        return ""


def draw(scene: Scene, width: int, height: int) -> RenderableType:
    """Draw the scene for a terminal of `width` columns and `height` lines. On a low one fewer faults are shown."""
    assert width >= WIDTH_MIN
    inner = width - 4
    panels = scene.panels(inner)
    room = height - _LINES_BUT_PANELS - sum(text.plain.count("\n") + 3 for _, text in panels)
    faults = _fault_rows(scene.faults, min(max(1, room), FAULTS_SHOWN_MAX))
    shown: list[tuple[str, RenderableType]]
    shown = [(f"{scene.counted} a second", _rate_rows(scene, inner)), *panels, (f"faults: {scene.hits} hit", faults)]
    return Group(
        _headline(scene, width),
        *(Panel(inside, title=title, title_align="left", border_style="dim") for title, inside in shown),
        Text(f" {scene.doing}", style="italic", no_wrap=True, overflow="ellipsis"),
    )


def progress_line(scene: Scene) -> str:
    """Return the scene as one line."""
    if not scene.total:
        return f"{scene.at_s:6.1f} s  {scene.doing}"
    return (
        f"{scene.at_s:6.1f} s  {scene.done:>9,} of {scene.total:,} {scene.counted} ({scene.rate:,.0f}/s)"
        f"{scene.more()}  {scene.hits} faults hit  {scene.doing}"
    )


def fault_line(fault: DemoFault, at_s: float) -> str:
    """Describe a fault in one line, when it is over. Its gap must be known.

    Args:
        fault: The fault.
        at_s: When the line is printed. Lines that begin with this time stand in the order of time.
    """
    gap = "no gap seen" if fault.gap_ms is None else f"gap {fault.gap_ms:,.0f} ms"
    hit = "" if fault.hit else "  (hit nothing: does not count)"
    struck = f"{fault.kind:<9} {fault.victim:<18} {fault.role:<8}"
    return f"{at_s:6.1f} s  {struck}  struck at {fault.at_s:.1f} s, {gap}{hit}"


def _headline(scene: Scene, width: int) -> Text:
    """Draw the first line: the title, the time, a bar that is full when all is done, and figures. All fit in it."""
    share = min(scene.done / scene.total, 1.0) if scene.total else 0.0
    before, after = f"  {scene.at_s:.0f} s  ", f"  {share:.0%}  "
    figures = [(f"{scene.done:,} {scene.counted}", "bold"), *scene.figures()]
    room = width - len(scene.title) - 2 - len(before) - len(after) - sum(len(text) for text, _ in figures)
    bar_width = max(0, min(width // 4, room))
    full = round(share * bar_width)
    bar = ("━" * full, "green"), ("━" * (bar_width - full), "bright_black")
    return Text.assemble(
        (f" {scene.title} ", "bold reverse"), before, *bar, after, *figures, no_wrap=True, overflow="ellipsis"
    )


def _rate_rows(scene: Scene, width: int) -> Text:
    """Draw the rate over the last minute, and report the most and the newest rate."""
    count = min(width - 12, round(RATE_WINDOW_S / RATE_STEP_S))
    shown = [rate / RATE_STEP_S for rate in scene.rates[-count:]]
    labels = [f"most {max(shown, default=0.0):>6,.0f} ", " " * 12, f"now  {scene.rate:>6,.0f} "]
    text = Text(no_wrap=True, overflow="crop")
    for number, (label, line) in enumerate(zip(labels, sparkline(shown, _ROWS_OF_SPARK), strict=True)):
        text.append("\n" * bool(number) + label, style="bold" if number == _ROWS_OF_SPARK - 1 else "dim")
        text.append(line, style="cyan")
    return text


def sparkline(values: Sequence[float], rows: int) -> list[str]:
    """Draw a column for each value, with a height in eighths of a line.

    Return `rows` lines, the highest first. The greatest value fills its column.
    """
    top = max(values, default=0.0)
    heights = [round(value / top * rows * 8) if top > 0 else 0 for value in values]
    return ["".join(_SPARKS[min(max(height - 8 * row, 0), 8)] for height in heights) for row in reversed(range(rows))]


def _fault_rows(faults: Sequence[DemoFault], shown_max: int) -> Table:
    """The newest faults, the present one last, with room for `shown_max`."""
    table = Table(box=None, pad_edge=False, expand=False)
    for name in ("at", "fault", "victim", "it was"):
        table.add_column(name, style="", header_style="dim", no_wrap=True)
    table.add_column("gap", justify="right", header_style="dim", no_wrap=True)
    shown = faults[-shown_max:]
    for fault in shown:
        ongoing = fault.healed_at_s is None
        gap = "…" if ongoing else "none" if fault.gap_ms is None else f"{fault.gap_ms:,.0f} ms"
        style = "bold" if ongoing else "" if fault.hit else "dim"
        table.add_row(f"{fault.at_s:.1f} s", fault.kind, fault.victim, fault.role, gap, style=style)
    for _ in range(shown_max - len(shown)):
        table.add_row("", "", "", "", "")
    return table


class View:
    """Shows the run while it continues: as a live picture on a terminal, otherwise as lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # A screen of its own: a picture that is higher than the terminal would leave lines above the report.
        self._live = Live(console=console, auto_refresh=False, screen=True) if console.is_terminal else None
        self._shown_at = 0.0
        self._doing = ""
        self._last: Scene | None = None

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the picture. Where there is none, print how it was at the end."""
        if self._live is not None:
            self._live.stop()
        elif kind is None and self._last is not None:
            self._say(progress_line(self._last))

    def scene(self, scene: Scene) -> None:
        """Show the new state of the run, on a terminal at most once every `FRAME_S`."""
        now = time.monotonic()
        self._last = scene
        if self._live is not None:
            if now - self._shown_at >= FRAME_S:
                width, height = self._console.size
                self._live.update(draw(scene, max(WIDTH_MIN, width), height), refresh=True)
                self._shown_at = now
        elif now - self._shown_at >= LINE_S or (not scene.total and scene.doing != self._doing):
            self._say(progress_line(scene))
            self._shown_at, self._doing = now, scene.doing

    def fault(self, fault: DemoFault) -> None:
        """Print a line for a fault that is over. The live view needs no such line, because it shows all faults."""
        if self._live is None:
            self._say(fault_line(fault, fault.at_s if self._last is None else self._last.at_s))

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
