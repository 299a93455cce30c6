"""Draws the running demo for a terminal: rate, chains, faults and their gaps, and how far the consumer is.

This module is pure. A `Scene` has the figures of a moment. `draw` makes it into something that rich prints, and
`progress_line` into one line if there is no terminal. The runner gathers the figures. Chains and faults share one axis
of time, so that a reader sees which fault ended which segment. Words or shapes repeat what a colour says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from e2e.demo.report import DemoFault, SegmentSpan

RATE_WINDOW_S: Final = 60.0
"""The length of the past that the sparkline shows."""

FAULTS_SHOWN_MAX: Final = 8
_LINES_BUT_FAULTS: Final = 14
"""The lines of the picture without those of partitions and faults."""
_GROUP_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8C6BB1")
_SPARKS: Final = " ▁▂▃▄▅▆▇█"
_LABEL_WIDTH: Final = 5
_ROWS_OF_SPARK: Final = 3


@dataclass(slots=True)
class Scene:
    """All that the live view shows of one moment. The runner updates it.

    Attributes:
        at_s: Seconds since the demo began to send; 0 before that.
        total: The number of events that the demo sends.
        rates: Messages acknowledged in each `rate_step_s` seconds so far, oldest first.
        faults: Every fault so far, the present one last.
        segments: Every segment of every chain.
        accepted: By partition: the number of events that were acknowledged. Their sum is `acknowledged`.
        consumed: By partition: the number of events that the consumer has got. Their sum is `delivered`.
        doing: What the demo does right now, as a text for people.
        hits_min: How many faults must hit.
    """

    title: str
    total: int
    hits_min: int
    at_s: float = 0.0
    sent: int = 0
    acknowledged: int = 0
    unknown: int = 0
    delivered: int = 0
    rate_step_s: float = 0.5
    rates: list[int] = field(default_factory=list)
    faults: list[DemoFault] = field(default_factory=list)
    segments: Sequence[SegmentSpan] = ()
    accepted: dict[int, int] = field(default_factory=dict)
    consumed: dict[int, int] = field(default_factory=dict)
    doing: str = ""

    @property
    def hit_count(self) -> int:
        """The number of faults that count."""
        return sum(fault.hit for fault in self.faults)

    @property
    def rate(self) -> float:
        """Messages acknowledged in a second, over the last 3 s."""
        return recent_rate(self.rates, self.rate_step_s)


def draw(scene: Scene, width: int, height: int) -> RenderableType:
    """Draw the scene for a terminal of `width` columns and `height` lines. On a low one fewer faults are shown."""
    assert width >= 40
    inner = width - 4
    room = height - _LINES_BUT_FAULTS - len({span.partition for span in scene.segments})
    return Group(
        _headline(scene, width),
        Panel(
            rate_rows(scene.rates, scene.rate_step_s, inner),
            title="acknowledged a second",
            title_align="left",
            border_style="dim",
        ),
        Panel(
            _chains(scene, inner),
            title="chains (right: the consumer's backlog)",
            title_align="left",
            border_style="dim",
        ),
        Panel(
            fault_rows(scene.faults, min(max(1, room), FAULTS_SHOWN_MAX)),
            title=_fault_title(scene),
            title_align="left",
            border_style="dim",
        ),
        Text(f" {scene.doing}", style="italic", no_wrap=True, overflow="ellipsis"),
    )


def progress_line(scene: Scene) -> str:
    """Return the scene as one line."""
    return (
        f"{scene.at_s:6.1f} s  {scene.acknowledged:>9,} of {scene.total:,} acknowledged ({scene.rate:,.0f}/s)"
        f"  {scene.delivered:>9,} consumed  {len(scene.segments):>3} segments"
        f"  {scene.hit_count} of {scene.hits_min} faults hit  {scene.doing}"
    )


def fault_line(fault: DemoFault, at_s: float) -> str:
    """Describe a fault in one line, when it is over. Its gap must be known.

    Args:
        fault: The fault.
        at_s: When the line is printed. Lines that begin with this time stand in the order of time.
    """
    gap = "no gap seen" if fault.gap_ms is None else f"gap {fault.gap_ms:,.0f} ms"
    hit = "" if fault.hit else "  (hit nothing: does not count)"
    struck = f"{fault.label:<9} {fault.victim:<18} {fault.role:<8}"
    return f"{at_s:6.1f} s  {struck}  struck at {fault.at_s:.1f} s, {gap}{hit}"


def _headline(scene: Scene, width: int) -> Text:
    figures = Text(f"{scene.acknowledged:,} acknowledged", style="bold")
    figures.append(f"  {scene.delivered:,} consumed", style="not bold")
    if scene.unknown:
        figures.append(f"  {scene.unknown:,} unknown", style="not bold yellow")
    return headline(scene.title, scene.at_s, scene.acknowledged / scene.total if scene.total else 0.0, figures, width)


def headline(title: str, at_s: float, share: float, figures: Text, width: int) -> Text:
    """Draw the first line: the title, the time, a bar that is full at a share of 1, and figures. All fit in `width`."""
    before, after = f"  {at_s:.0f} s  ", f"  {share:.0%}  "
    room = width - len(title) - 2 - len(before) - len(after) - len(figures)
    bar_width = max(0, min(width // 4, room))
    full = round(share * bar_width)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f" {title} ", style="bold reverse")
    text.append(before)
    text.append("━" * full, style="green")
    text.append("━" * (bar_width - full), style="bright_black")
    text.append(after)
    text.append_text(figures)
    return text


def recent_rate(counts: Sequence[int], step_s: float) -> float:
    """Messages in a second, over the last 3 s. `counts` are those of steps of `step_s`."""
    recent = counts[-max(1, round(3 / step_s)) :]
    return sum(recent) / (len(recent) * step_s) if recent else 0.0


def rate_rows(counts: Sequence[int], step_s: float, width: int) -> RenderableType:
    """Draw messages in a second over the last minute, and tell the most and the newest rate.

    `counts` are those of steps of `step_s`.
    """
    count = min(width - 12, round(RATE_WINDOW_S / step_s))
    shown = [rate / step_s for rate in counts[-count:]]
    lines = sparkline(shown, _ROWS_OF_SPARK)
    labels = [f"most {max(shown, default=0.0):>6,.0f} ", " " * 12, f"now  {recent_rate(counts, step_s):>6,.0f} "]
    text = Text(no_wrap=True, overflow="crop")
    for number, (label, line) in enumerate(zip(labels, lines, strict=True)):
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


def _chains(scene: Scene, width: int) -> RenderableType:
    columns = width - _LABEL_WIDTH - 12
    duration_s = max(scene.at_s, 1.0)
    colours = _colours(scene.segments)
    text = Text(no_wrap=True, overflow="crop")
    text.append(" " * _LABEL_WIDTH)
    text.append(_fault_marks(scene.faults, duration_s, columns), style="bold red")
    for partition, spans in groupby(sorted(scene.segments, key=lambda s: (s.partition, s.segment_no)), _partition):
        text.append(f"\n{partition:>3}  ")
        shown = list(spans)
        text.append_text(ribbon(shown, duration_s, columns, colours))
        text.append(f" {_behind(scene, partition, shown)}", style="dim")
    text.append("\n     ")
    for group, colour in colours.items():
        text.append("█", style=colour)
        text.append(f" {group}   ")
    text.append("▒ not settled   ┊ next segment   ✕ fault", style="dim")
    return text


def _partition(span: SegmentSpan) -> int:
    return span.partition


def _behind(scene: Scene, partition: int, spans: Sequence[SegmentSpan]) -> str:
    if any(span.state == "UNSETTLED" for span in spans):
        return "not settled"  # how many messages it has is not known, so the consumer cannot be level
    backlog = scene.accepted.get(partition, 0) - scene.consumed.get(partition, 0)
    return f"-{backlog:,}" if backlog > 0 else "level"


def _colours(segments: Iterable[SegmentSpan]) -> dict[str, str]:
    groups = sorted({segment.group for segment in segments})
    return {group: _GROUP_COLOURS[number % len(_GROUP_COLOURS)] for number, group in enumerate(groups)}


def ribbon(spans: Sequence[SegmentSpan], duration_s: float, columns: int, colours: dict[str, str]) -> Text:
    """Draw one partition's segments along the axis of time.

    Each cell is a step of time. It shows the newest segment that touches it.
    """
    cells: list[tuple[str, str]] = [(" ", "")] * columns
    for number, span in enumerate(spans):
        begin = _column(span.opened_at_s, duration_s, columns)
        end = columns if span.sealed_at_s is None else _column(span.sealed_at_s, duration_s, columns) + 1
        body = "█" if span.state in ("OPEN", "SEALED") else "▒"
        for column in range(begin, min(end, columns)):
            cells[column] = (body, colours[span.group])
        if number and begin < columns:
            cells[begin] = ("┊", colours[span.group])
    text = Text()
    for style, run in groupby(cells, key=lambda cell: cell[1]):
        text.append("".join(character for character, _ in run), style=style)
    return text


def _column(at_s: float, duration_s: float, columns: int) -> int:
    return min(max(int(at_s / duration_s * columns), 0), columns - 1)


def _fault_marks(faults: Iterable[DemoFault], duration_s: float, columns: int) -> str:
    marks = [" "] * columns
    for fault in faults:
        marks[_column(fault.at_s, duration_s, columns)] = "✕" if fault.hit else "·"
    return "".join(marks)


def _fault_title(scene: Scene) -> str:
    return f"faults: {scene.hit_count} of {scene.hits_min} hit"


def fault_rows(faults: Sequence[DemoFault], shown_max: int = FAULTS_SHOWN_MAX) -> RenderableType:
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
        table.add_row(f"{fault.at_s:.1f} s", fault.label, fault.victim, fault.role, gap, style=style)
    for _ in range(shown_max - len(shown)):
        table.add_row("", "", "", "", "")
    return table
