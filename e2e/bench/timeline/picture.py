"""The picture of a timeline: a bar for each hop, from the hop before to it, in the colour of its process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.etree import ElementTree as ET

from e2e.bench.timeline.hops import Hop, Measured, Role
from e2e.demo.svg import COLOURS, FAINT, GROUND, LINE, add, canvas, text_at

WIDTH: Final = 1000
LEFT: Final = 330
RIGHT: Final = 60
TOP: Final = 84
ROW: Final = 24
BOTTOM: Final = 44
COLOUR: Final[dict[Role, str]] = dict(zip(("client", "master", "slave"), COLOURS, strict=False))


def picture(rows: Sequence[Measured], meanwhile: Sequence[tuple[Hop, float]], title: str) -> ET.Element:
    """Draw the medians.

    Args:
        rows: The way of a message.
        meanwhile: What the master does at the same time, with its moments in µs.
        title: The headline.
    """
    end_us = max(row.at_us for row in rows)
    bottom = TOP + ROW * (len(rows) + (len(meanwhile) + 1 if meanwhile else 0))
    height = bottom + BOTTOM
    svg = canvas(WIDTH, height)
    add(svg, "title", text=title)
    add(svg, "rect", x=0, y=0, width=WIDTH, height=height, fill=GROUND)
    text_at(svg, 24, 28, title, size=18, weight="600")
    text_at(svg, 24, 46, "medians, in µs since the program began to send; a bar begins at the hop before", fill=FAINT)
    for number, (role, colour) in enumerate(COLOUR.items()):
        x = 24 + 110 * number
        add(svg, "rect", x=x, y=57, width=12, height=12, fill=colour)
        text_at(svg, x + 18, 67, role)
    _grid(svg, end_us, bottom)
    before_us = 0.0
    for number, row in enumerate(rows):
        _bar(svg, TOP + ROW * number, row.hop, before_us, row.at_us, end_us, f"{row.took_us:,.0f}")
        before_us = max(before_us, row.at_us)
    if meanwhile:
        top = TOP + ROW * (len(rows) + 1)
        text_at(svg, LEFT - 12, top - ROW + 16, "meanwhile:", anchor="end", fill=FAINT)
        before_us = rows[1].at_us  # the master has the message
        for number, (hop, at_us) in enumerate(meanwhile):
            _bar(svg, top + ROW * number, hop, before_us, at_us, end_us, f"{at_us - before_us:,.0f}")
            before_us = at_us
    return svg


def _grid(svg: ET.Element, end_us: float, bottom: float) -> None:
    step = _step_us(end_us)
    for number in range(math.floor(end_us / step) + 1):
        x = _x(number * step, end_us)
        add(svg, "line", x1=x, x2=x, y1=TOP, y2=bottom, stroke=LINE)
        text_at(svg, x, bottom + 20, f"{number * step:,.0f}", size=11, anchor="middle", fill=FAINT)


def _step_us(end_us: float) -> float:
    """A round distance between lines that gives five to twelve of them."""
    magnitude = 10.0 ** math.floor(math.log10(max(end_us, 1.0) / 10))
    return next(step * magnitude for step in (1.0, 2.0, 5.0, 10.0) if step * magnitude * 12 >= end_us)


def _bar(svg: ET.Element, top: float, hop: Hop, from_us: float, to_us: float, end_us: float, took: str) -> None:
    begin, end = _x(from_us, end_us), _x(max(from_us, to_us), end_us)
    text_at(svg, LEFT - 12, top + 16, hop.text, anchor="end")
    add(svg, "rect", x=begin, y=top + 4, width=round(max(end - begin, 1.0), 2), height=ROW - 8, fill=COLOUR[hop.role])
    text_at(svg, end + 6, top + 16, took, size=11, fill=FAINT)


def _x(at_us: float, end_us: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * at_us / end_us, 2)
