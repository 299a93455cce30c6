"""Draws the picture of a demo run: which broker group held each partition at which time, all faults, and the rate.

`svg` has what this picture shares with those of other demos.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from e2e.demo.report import DemoFault, RateSample, SegmentSpan, Silence
from e2e.demo.svg import (
    BOTTOM,
    COLOURS,
    GROUND,
    LANE_HEIGHT,
    LEFT,
    LEGEND_AT,
    PANEL_SPACE,
    RATE_HEIGHT,
    TOP,
    Scale,
    add,
    begin,
    end,
    fault_labels,
    fault_lanes,
    fault_lines,
    fault_mark,
    ink_on,
    rate_panel,
    text_at,
    time_grid,
)

_ROW_HEIGHT: Final = 26
_ROW_SPACE: Final = 7
_NOTCH_HEIGHT: Final = 7
_LABEL_WIDTH_MIN: Final = 18  # a bar narrower than this has no room for its segment's number


def draw(
    segments: Sequence[SegmentSpan],
    faults: Sequence[DemoFault],
    rates: Sequence[RateSample],
    silences: Sequence[Silence] = (),
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
        silences: When a partition acknowledged nothing: a notch in its row.
        duration_s: The end of the time axis, in seconds. Everything beyond it is cut off.
        title: The headline.
        subtitle: The line below the headline.
    """
    assert duration_s > 0
    scale = Scale(duration_s)
    labels = fault_labels(faults)
    partitions = sorted({segment.partition for segment in segments})
    rate_top = TOP
    lanes_top = rate_top + RATE_HEIGHT + PANEL_SPACE
    rows_top = lanes_top + len(labels) * LANE_HEIGHT + (PANEL_SPACE if labels else 0)
    rows_end = rows_top + len(partitions) * (_ROW_HEIGHT + _ROW_SPACE)
    height = rows_end + BOTTOM
    figures = f"{len(segments)} segments of {len(partitions)} partitions, {len(faults)} faults"
    svg = begin(height, title, subtitle, figures)
    _hatch(svg)
    colours = _colours(segments)
    _legend(svg, colours, segments, faults, silences)
    time_grid(svg, scale, rate_top, rows_end)
    rate_panel(svg, scale, rates, rate_top)
    fault_lanes(svg, scale, faults, labels, lanes_top)
    rows = {partition: rows_top + n * (_ROW_HEIGHT + _ROW_SPACE) for n, partition in enumerate(partitions)}
    _row_bars(svg, scale, segments, rows, colours)
    _notches(svg, scale, silences, rows)
    fault_lines(svg, scale, faults, rows_top - 6, rows_end - _ROW_SPACE + 3)
    _row_labels(svg, scale, segments, rows, colours)
    return end(svg)


def write(
    path: Path,
    segments: Sequence[SegmentSpan],
    faults: Sequence[DemoFault],
    rates: Sequence[RateSample],
    silences: Sequence[Silence] = (),
    *,
    duration_s: float,
    title: str,
    subtitle: str = "",
) -> None:
    """Draw into a file.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_text(draw(segments, faults, rates, silences, duration_s=duration_s, title=title, subtitle=subtitle))


def _hatch(svg: ET.Element) -> None:
    """Define the stripes that are laid over a segment whose length is not known."""
    definitions = add(svg, "defs")
    pattern = add(
        definitions, "pattern", id="unsettled", width=7, height=7, patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )  # fmt: skip
    add(pattern, "rect", width=3, height=7, fill="#FFFFFF", fill_opacity=0.65)


def _colours(segments: Sequence[SegmentSpan]) -> dict[str, str]:
    groups = sorted({segment.group for segment in segments})
    return {group: COLOURS[n % len(COLOURS)] for n, group in enumerate(groups)}


def _legend(
    svg: ET.Element,
    colours: dict[str, str],
    segments: Sequence[SegmentSpan],
    faults: Sequence[DemoFault],
    silences: Sequence[Silence],
) -> None:
    """Draw the legend on a line of its own: broker groups, unusual states, marks."""
    entries: list[tuple[str, str, str]] = [("group", group, colour) for group, colour in colours.items()]
    states = {segment.state for segment in segments}
    entries += [("state", state.lower(), state) for state in ("UNSETTLED", "LOST") if state in states]
    if faults:
        entries.append(("fault", "fault", "hit"))
    if any(not fault.hit for fault in faults):
        entries.append(("fault", "fault that hit nothing", "missed"))
    if silences:
        entries.append(("silence", "nothing acknowledged", ""))
    x = float(LEFT)
    for kind, label, what in entries:
        if kind == "group":
            add(svg, "rect", x=x, y=LEGEND_AT - 11, width=16, height=13, rx=3, fill=what)
        elif kind == "state":
            _bar(svg, x, LEGEND_AT - 11, 16, 13, "#9AA5B1", what)
        elif kind == "silence":
            _bar(svg, x, LEGEND_AT - 11, 16, 13, "#9AA5B1", "SEALED")
            add(svg, "rect", x=x + 5, y=LEGEND_AT - 11 + 13 - _NOTCH_HEIGHT, width=6, height=_NOTCH_HEIGHT, fill=GROUND)
        else:
            fault_mark(svg, x + 8, LEGEND_AT - 4.5, hit=what == "hit")
        text_at(svg, x + 23, LEGEND_AT, label, size=12)
        x += 23 + 8.0 * len(label) + 20  # a guess at the text's width, generous for most fonts


def _row_bars(
    svg: ET.Element,
    scale: Scale,
    segments: Sequence[SegmentSpan],
    rows: Mapping[int, float],
    colours: dict[str, str],
) -> None:
    for segment in segments:
        x, width = _extent(scale, segment)
        group = add(svg, "g")
        length = "length not settled" if segment.length is None else f"{segment.length:,} messages"
        words = f"segment {segment.segment_no} on {segment.group}: {segment.state}, {length}"
        add(group, "title", text=words)
        _bar(group, x, rows[segment.partition], width, _ROW_HEIGHT, colours[segment.group], segment.state)


def _notches(svg: ET.Element, scale: Scale, silences: Sequence[Silence], rows: Mapping[int, float]) -> None:
    """Cut a notch into a row for each time in which its partition acknowledged nothing. The shortest one is visible."""
    for silence in silences:
        if silence.partition not in rows:
            continue
        x, end_x = scale.x(silence.begin_s), scale.x(silence.end_s)
        group = add(svg, "g")
        add(group, "title", text=f"nothing acknowledged for {(silence.end_s - silence.begin_s) * 1000:,.0f} ms")
        y = rows[silence.partition] + _ROW_HEIGHT - _NOTCH_HEIGHT
        add(group, "rect", x=x, y=y, width=max(end_x - x, 2.0), height=_NOTCH_HEIGHT, fill=GROUND)


def _extent(scale: Scale, segment: SegmentSpan) -> tuple[float, float]:
    """Return where a segment's bar begins, and its width.

    Thin gaps separate bars, and the shortest bar stays visible.
    """
    x = scale.x(segment.opened_at_s)
    end_x = scale.x(segment.sealed_at_s if segment.sealed_at_s is not None else math.inf)
    return x, max(end_x - x - 1.2, 0.8)


def _row_labels(
    svg: ET.Element,
    scale: Scale,
    segments: Sequence[SegmentSpan],
    rows: Mapping[int, float],
    colours: dict[str, str],
) -> None:
    """Write the number of each partition, and the number of each segment that has room for it.

    This comes last, so that no line crosses a number.
    """
    middle = _ROW_HEIGHT / 2 + 4
    for partition, y in rows.items():
        text_at(svg, LEFT - 12, y + middle, f"partition {partition}", anchor="end")
    for segment in segments:
        x, width = _extent(scale, segment)
        y, number = rows[segment.partition], str(segment.segment_no)
        room = 7.5 * len(number) + 6
        if width < max(room, _LABEL_WIDTH_MIN):
            continue
        centre = x + width / 2
        striped = segment.state in ("UNSETTLED", "LOST")
        colour = colours[segment.group]
        ground = GROUND if striped else colour
        add(svg, "rect", x=centre - room / 2, y=y + 5, width=room, height=_ROW_HEIGHT - 10, rx=3, fill=ground)
        text_at(svg, centre, y + middle, number, size=11, fill=ink_on(ground), anchor="middle", weight="600")


def _bar(parent: ET.Element, x: float, y: float, width: float, height: float, colour: str, state: str) -> None:
    rx = min(3.0, width / 2)
    if state == "LOST":
        add(
            parent, "rect", x=x + 0.7, y=y + 0.7, width=max(width - 1.4, 0.4), height=height - 1.4, rx=rx,
            fill=GROUND, stroke=colour, stroke_width=1.4, stroke_dasharray="3 2",
        )  # fmt: skip
        return
    add(parent, "rect", x=x, y=y, width=width, height=height, rx=rx, fill=colour)
    if state == "UNSETTLED":
        add(parent, "rect", x=x, y=y, width=width, height=height, rx=rx, fill="url(#unsettled)")
