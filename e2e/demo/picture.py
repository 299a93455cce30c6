"""Draws the picture of a demo run: which broker group held each partition at which time, all faults, and the rate.

This module writes the SVG itself: rectangles, lines and labels. The same records give the same picture. A plotting
library would not make the code shorter, and matplotlib brings 60 MB. The picture has a light ground of its own, so that
it looks the same on a light and on a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from e2e.demo.report import DemoFault, RateSample, SegmentSpan

WIDTH: Final = 1200
_LEFT: Final = 112
_RIGHT: Final = 28
_TOP: Final = 122
_LEGEND_AT: Final = 84
_RATE_HEIGHT: Final = 92
_LANE_HEIGHT: Final = 20
_ROW_HEIGHT: Final = 26
_ROW_SPACE: Final = 7
_PANEL_SPACE: Final = 30
_BOTTOM: Final = 52
_LABEL_WIDTH_MIN: Final = 18  # a bar narrower than this has no room for its segment's number

# Okabe and Ito's colours, which people with any colour vision can tell apart.
_GROUP_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8C6BB1", "#B3A125", "#7F7F7F")
_FAULT_COLOUR: Final = "#B3261E"
_INK: Final = "#1F2933"
_FAINT: Final = "#6B7785"
_LINE: Final = "#D5DBE1"
_GROUND: Final = "#FCFCFA"
_RATE_COLOUR: Final = "#3E4C59"
_FONT: Final = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True, slots=True)
class _Scale:
    """Converts seconds to pixels."""

    duration_s: float

    def x(self, at_s: float) -> float:
        share = min(max(at_s / self.duration_s, 0.0), 1.0)
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 2)


def draw(
    segments: Sequence[SegmentSpan],
    faults: Sequence[DemoFault],
    rates: Sequence[RateSample],
    *,
    duration_s: float,
    title: str,
    subtitle: str = "",
) -> str:
    """Return the picture as the text of an SVG file.

    Args:
        segments: The segments of all partitions. Each partition is a row, each segment a bar.
        faults: Each fault is a mark, in a lane for its kind. The mark is hollow if the fault hit nothing.
        rates: Samples of the rate in the order of time; may be empty.
        duration_s: The end of the time axis, in seconds. Everything beyond it is cut off.
        title: The headline.
        subtitle: The line below the headline.
    """
    assert duration_s > 0
    scale = _Scale(duration_s)
    labels = _fault_labels(faults)
    partitions = sorted({segment.partition for segment in segments})
    rate_top = _TOP
    lanes_top = rate_top + _RATE_HEIGHT + _PANEL_SPACE
    rows_top = lanes_top + len(labels) * _LANE_HEIGHT + (_PANEL_SPACE if labels else 0)
    rows_end = rows_top + len(partitions) * (_ROW_HEIGHT + _ROW_SPACE)
    height = rows_end + _BOTTOM
    svg = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {WIDTH} {height}",
            "width": str(WIDTH),
            "height": str(height),
            "role": "img",
            "font-family": _FONT,
        },
    )
    _add(svg, "title", text=title)
    figures = f"{len(segments)} segments of {len(partitions)} partitions, {len(faults)} faults"
    _add(svg, "desc", text=f"{figures}. {subtitle}")
    _hatch(svg)
    _add(svg, "rect", x=0.5, y=0.5, width=WIDTH - 1, height=height - 1, rx=10, fill=_GROUND, stroke=_LINE)
    _text(svg, 24, 36, title, size=20, weight="600")
    _text(svg, 24, 58, subtitle, size=13, fill=_FAINT)
    colours = _colours(segments)
    _legend(svg, colours, segments, faults)
    _time_grid(svg, scale, rate_top, rows_end)
    _rate_panel(svg, scale, rates, rate_top)
    _fault_lanes(svg, scale, faults, labels, lanes_top)
    rows = {partition: rows_top + n * (_ROW_HEIGHT + _ROW_SPACE) for n, partition in enumerate(partitions)}
    _row_bars(svg, scale, segments, rows, colours)
    _fault_lines(svg, scale, faults, rows_top, rows_end)
    _row_labels(svg, scale, segments, rows, colours)
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def write(
    path: Path,
    segments: Sequence[SegmentSpan],
    faults: Sequence[DemoFault],
    rates: Sequence[RateSample],
    *,
    duration_s: float,
    title: str,
    subtitle: str = "",
) -> None:
    """Draw into a file.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_text(draw(segments, faults, rates, duration_s=duration_s, title=title, subtitle=subtitle))


def _add(parent: ET.Element, tag: str, *, text: str = "", **attributes: object) -> ET.Element:
    element = ET.SubElement(
        parent, tag, {name.rstrip("_").replace("_", "-"): _value(value) for name, value in attributes.items()}
    )
    if text:
        element.text = text
    return element


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _text(
    parent: ET.Element,
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    fill: str = _INK,
    anchor: str = "start",
    weight: str = "400",
) -> None:
    if text:
        _add(parent, "text", text=text, x=x, y=y, font_size=size, fill=fill, text_anchor=anchor, font_weight=weight)


def _hatch(svg: ET.Element) -> None:
    """Define the stripes that are laid over a segment whose length is not known."""
    definitions = _add(svg, "defs")
    pattern = _add(
        definitions, "pattern", id="unsettled", width=7, height=7, patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )  # fmt: skip
    _add(pattern, "rect", width=3, height=7, fill="#FFFFFF", fill_opacity=0.65)


def _colours(segments: Sequence[SegmentSpan]) -> dict[str, str]:
    groups = sorted({segment.group for segment in segments})
    return {group: _GROUP_COLOURS[n % len(_GROUP_COLOURS)] for n, group in enumerate(groups)}


def _fault_labels(faults: Sequence[DemoFault]) -> list[str]:
    return sorted({fault.label for fault in faults}, key=lambda label: (label.endswith(" both"), label))


def _legend(
    svg: ET.Element, colours: dict[str, str], segments: Sequence[SegmentSpan], faults: Sequence[DemoFault]
) -> None:
    """Draw the legend on a line of its own: broker groups, unusual states, marks."""
    entries: list[tuple[str, str, str]] = [("group", group, colour) for group, colour in colours.items()]
    states = {segment.state for segment in segments}
    entries += [("state", state.lower(), state) for state in ("UNSETTLED", "LOST") if state in states]
    if faults:
        entries.append(("fault", "fault", "hit"))
    if any(not fault.hit for fault in faults):
        entries.append(("fault", "fault that hit nothing", "missed"))
    x = float(_LEFT)
    for kind, label, what in entries:
        if kind == "group":
            _add(svg, "rect", x=x, y=_LEGEND_AT - 11, width=16, height=13, rx=3, fill=what)
        elif kind == "state":
            _bar(svg, x, _LEGEND_AT - 11, 16, 13, "#9AA5B1", what)
        else:
            _mark(svg, x + 8, _LEGEND_AT - 4.5, hit=what == "hit")
        _text(svg, x + 23, _LEGEND_AT, label, size=12)
        x += 23 + 8.0 * len(label) + 20  # a guess at the text's width, generous for most fonts


def _tick_seconds(duration_s: float) -> float:
    """Return a round distance that gives six to twelve ticks."""
    rough = duration_s / 10
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(step * magnitude for step in (1.0, 2.0, 5.0, 10.0) if step * magnitude >= rough)


def _time_grid(svg: ET.Element, scale: _Scale, top: float, end: float) -> None:
    step = _tick_seconds(scale.duration_s)
    for n in range(int(scale.duration_s / step + 1e-9) + 1):
        x = scale.x(n * step)
        _add(svg, "line", x1=x, x2=x, y1=top, y2=end, stroke=_LINE, stroke_width=1)
        _text(svg, x, end + 18, f"{n * step:g} s", size=11, fill=_FAINT, anchor="middle")
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    _text(svg, middle, end + 38, "time since the first message", size=11, fill=_FAINT, anchor="middle")


def _rate_panel(svg: ET.Element, scale: _Scale, rates: Sequence[RateSample], top: float) -> None:
    base = top + _RATE_HEIGHT
    _text(svg, _LEFT - 12, base - _RATE_HEIGHT + 12, "accepted", anchor="end", weight="600")
    _text(svg, _LEFT - 12, base - _RATE_HEIGHT + 28, "a second", size=11, fill=_FAINT, anchor="end")
    _add(svg, "line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=base, y2=base, stroke=_FAINT, stroke_width=1)
    if not rates:
        return
    peak = _round_up(max(sample.messages_per_s for sample in rates))
    _add(svg, "line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=top, y2=top, stroke=_LINE, stroke_width=1, stroke_dasharray="3 3")
    _text(svg, WIDTH - _RIGHT, top - 4, _short(peak), size=11, fill=_FAINT, anchor="end")
    points = [(scale.x(s.at_s), round(base - _RATE_HEIGHT * s.messages_per_s / peak, 2)) for s in rates]
    line = " ".join(f"{x:g},{y:g}" for x, y in points)
    area = f"{points[0][0]:g},{base:g} {line} {points[-1][0]:g},{base:g}"
    _add(svg, "polygon", points=area, fill=_RATE_COLOUR, fill_opacity=0.12)
    _add(svg, "polyline", points=line, fill="none", stroke=_RATE_COLOUR, stroke_width=1.5, stroke_linejoin="round")


def _round_up(value: float) -> float:
    """Round up to the next of 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten: the top of an axis."""
    if value <= 0:
        return 1.0
    magnitude = 10.0 ** math.floor(math.log10(value))
    return next(step * magnitude for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * magnitude >= value)


def _short(value: float) -> str:
    return f"{value / 1000:g}k/s" if value >= 1000 else f"{value:g}/s"


def _fault_lanes(
    svg: ET.Element, scale: _Scale, faults: Sequence[DemoFault], labels: Sequence[str], top: float
) -> None:
    for n, label in enumerate(labels):
        y = top + (n + 0.5) * _LANE_HEIGHT
        of_kind = [fault for fault in faults if fault.label == label]
        _text(svg, _LEFT - 12, y + 4, label, anchor="end", weight="600", fill=_FAULT_COLOUR)
        _add(svg, "line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y, stroke=_LINE, stroke_width=1)
        for fault in of_kind:
            x, healed = scale.x(fault.at_s), scale.x(fault.healed_at_s if fault.healed_at_s is not None else math.inf)
            mark = _add(svg, "g")
            _add(mark, "title", text=_fault_words(fault))
            _add(
                mark, "line", x1=x, x2=healed, y1=y, y2=y, stroke=_FAULT_COLOUR, stroke_width=4,
                stroke_opacity=0.35, stroke_linecap="round",
            )  # fmt: skip
            _mark(mark, x, y, hit=fault.hit)


def _fault_words(fault: DemoFault) -> str:
    words = f"{fault.label} {fault.victim} ({fault.role}) at {fault.at_s:.1f} s"
    if fault.healed_at_s is not None:
        words += f", mended at {fault.healed_at_s:.1f} s"
    if fault.gap_ms is not None:
        words += f", gap {fault.gap_ms:.0f} ms"
    return words if fault.hit else words + ", hit nothing"


def _mark(parent: ET.Element, x: float, y: float, *, hit: bool) -> None:
    """Draw a small diamond: full if the fault hit, hollow if it did not."""
    points = f"{x:g},{y - 6:g} {x + 5:g},{y:g} {x:g},{y + 6:g} {x - 5:g},{y:g}"
    fill = _FAULT_COLOUR if hit else _GROUND
    _add(parent, "polygon", points=points, fill=fill, stroke=_FAULT_COLOUR, stroke_width=1.4)


def _fault_lines(svg: ET.Element, scale: _Scale, faults: Sequence[DemoFault], top: float, end: float) -> None:
    """Draw a line over the bars for each fault that hit, so that one sees which segments it ended."""
    for fault in faults:
        if fault.hit:
            x = scale.x(fault.at_s)
            _add(
                svg, "line", x1=x, x2=x, y1=top - 6, y2=end - _ROW_SPACE + 3, stroke=_FAULT_COLOUR, stroke_width=1.1,
                stroke_opacity=0.75, stroke_dasharray="4 3",
            )  # fmt: skip


def _row_bars(
    svg: ET.Element,
    scale: _Scale,
    segments: Sequence[SegmentSpan],
    rows: Mapping[int, float],
    colours: dict[str, str],
) -> None:
    for segment in segments:
        x, width = _extent(scale, segment)
        group = _add(svg, "g")
        length = "length not settled" if segment.length is None else f"{segment.length:,} messages"
        words = f"segment {segment.segment_no} on {segment.group}: {segment.state}, {length}"
        _add(group, "title", text=words)
        _bar(group, x, rows[segment.partition], width, _ROW_HEIGHT, colours[segment.group], segment.state)


def _extent(scale: _Scale, segment: SegmentSpan) -> tuple[float, float]:
    """Return where a segment's bar begins, and its width.

    Thin gaps separate bars, and the shortest bar stays visible.
    """
    x = scale.x(segment.opened_at_s)
    end = scale.x(segment.sealed_at_s if segment.sealed_at_s is not None else math.inf)
    return x, max(end - x - 1.2, 0.8)


def _row_labels(
    svg: ET.Element,
    scale: _Scale,
    segments: Sequence[SegmentSpan],
    rows: Mapping[int, float],
    colours: dict[str, str],
) -> None:
    """Write the number of each partition, and the number of each segment that has room for it.

    This comes last, so that no line crosses a number.
    """
    middle = _ROW_HEIGHT / 2 + 4
    for partition, y in rows.items():
        _text(svg, _LEFT - 12, y + middle, f"partition {partition}", anchor="end")
    for segment in segments:
        x, width = _extent(scale, segment)
        y, number = rows[segment.partition], str(segment.segment_no)
        room = 7.5 * len(number) + 6
        if width < max(room, _LABEL_WIDTH_MIN):
            continue
        centre = x + width / 2
        striped = segment.state in ("UNSETTLED", "LOST")
        colour = colours[segment.group]
        ground = _GROUND if striped else colour
        _add(svg, "rect", x=centre - room / 2, y=y + 5, width=room, height=_ROW_HEIGHT - 10, rx=3, fill=ground)
        _text(svg, centre, y + middle, number, size=11, fill=_ink_on(ground), anchor="middle", weight="600")


def _ink_on(ground: str) -> str:
    """Return dark or white, whichever is easier to read on this colour."""
    red, green, blue = (int(ground[n : n + 2], 16) for n in (1, 3, 5))
    return _INK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#FFFFFF"


def _bar(parent: ET.Element, x: float, y: float, width: float, height: float, colour: str, state: str) -> None:
    rx = min(3.0, width / 2)
    if state == "LOST":
        _add(
            parent, "rect", x=x + 0.7, y=y + 0.7, width=max(width - 1.4, 0.4), height=height - 1.4, rx=rx,
            fill=_GROUND, stroke=colour, stroke_width=1.4, stroke_dasharray="3 2",
        )  # fmt: skip
        return
    _add(parent, "rect", x=x, y=y, width=width, height=height, rx=rx, fill=colour)
    if state == "UNSETTLED":
        _add(parent, "rect", x=x, y=y, width=width, height=height, rx=rx, fill="url(#unsettled)")
