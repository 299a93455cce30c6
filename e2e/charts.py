"""Pictures as SVG files, for demos and benchmarks: a title, a legend, rows below each other, and one axis.

This package writes the files itself: rectangles, lines and labels. The same records give the same picture. A plotting
library would not make the code shorter, and matplotlib brings 60 MB. The pictures have a light ground of their own, so
that they look the same on a light and on a dark page.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

# Okabe and Ito's colours, which users with any colour vision can tell apart.
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8C6BB1", "#B3A125", "#7F7F7F")
INK: Final = "#1F2933"
FAINT: Final = "#6B7785"
LINE: Final = "#D5DBE1"
GROUND: Final = "#FCFCFA"
RATE_COLOUR: Final = "#3E4C59"
FONT: Final = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"

PANEL_SPACE: Final = 30
RATE_TOP_RATIO: Final = 2.5

Sign = Callable[[ET.Element, float, float], object]
"""Draws the sign of a legend's entry around a point."""


def canvas(width: float, height: float) -> ET.Element:
    """A picture without anything in it."""
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    return ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, "role": "img", "font-family": FONT})


def add(parent: ET.Element, tag: str, text: str = "", /, **attributes: object) -> ET.Element:
    """Add an element. An underscore in the name of an attribute is a hyphen in the file."""
    element = ET.SubElement(
        parent, tag, {name.rstrip("_").replace("_", "-"): _value(value) for name, value in attributes.items()}
    )
    if text:
        element.text = text
    return element


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def titled(parent: ET.Element, words: str) -> ET.Element:
    """Add a group of elements. A browser shows the words where the mouse is on one of them."""
    group = add(parent, "g")
    add(group, "title", words)
    return group


def text_at(
    parent: ET.Element, x: float, y: float, text: str,
    *, size: int = 12, fill: str = INK, anchor: str = "start", weight: str = "400",
) -> None:  # fmt: skip
    """Write words at a place; nothing if they are empty."""
    if text:
        add(parent, "text", text, x=x, y=y, font_size=size, fill=fill, text_anchor=anchor, font_weight=weight)


def ink_on(ground: str) -> str:
    """Return dark or white, whichever is easier to read on this colour."""
    red, green, blue = (int(ground[n : n + 2], 16) for n in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#FFFFFF"


def box(colour: str, opacity: float = 1.0) -> Sign:
    """The sign of a colour."""
    return lambda parent, x, y: add(
        parent, "rect", x=x - 8, y=y - 6.5, width=16, height=13, rx=3, fill=colour, fill_opacity=opacity
    )


def rounded_up(value: float, steps: Sequence[float] = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)) -> float:
    """Round up to the next of these steps times a power of ten: the top of an axis, or the distance of its lines."""
    if value <= 0:
        return 1.0
    magnitude = 10.0 ** math.floor(math.log10(value))
    return next(step * magnitude for step in steps if step * magnitude >= value)


class Picture:
    """A picture with one axis from left to right. Its parts are drawn from the top down.

    Args:
        title: The headline.
        subtitle: The line below the headline.
        end: The end of the axis, which begins with 0. Everything beyond it is at the end.
        left: The width of the margin for the names of rows.

    Attributes:
        svg: The element of the file.
        y: Where the next part begins.
    """

    def __init__(
        self, title: str, subtitle: str = "", *, end: float, width: float = 1200, left: float = 140, right: float = 28
    ) -> None:
        assert end > 0
        self._end = end
        self._width = width
        self.left, self.right = left, width - right
        self.svg = canvas(width, 0)
        add(self.svg, "title", title)
        add(self.svg, "desc", subtitle)
        self._ground = add(self.svg, "rect", x=0.5, y=0.5, width=width - 1, rx=10, fill=GROUND, stroke=LINE)
        text_at(self.svg, 24, 36, title, size=20, weight="600")
        text_at(self.svg, 24, 58, subtitle, size=13, fill=FAINT)
        self._grid = add(self.svg, "g")
        self._legend_x = left
        self._top = self.y = 80.0

    def x(self, at: float) -> float:
        """The place of a point of the axis, in pixels."""
        share = min(max(at / self._end, 0.0), 1.0)
        return round(self.left + share * (self.right - self.left), 2)

    def legend(self, label: str, sign: Sign) -> None:
        """Add an entry to the legend, which is a line below the headline."""
        sign(self.svg, self._legend_x + 8, 79.5)
        text_at(self.svg, self._legend_x + 23, 84, label)
        self._legend_x += 41 + 7.2 * len(label)  # a guess at the text's width, generous for most fonts
        self._top = self.y = 122.0

    def label(self, y: float, text: str, note: str = "", *, fill: str = INK, weight: str = "400") -> None:
        """Write the name of a row around a height, and a note below the name."""
        at = y - 3 if note else y + 4
        text_at(self.svg, self.left - 12, at, text, anchor="end", weight=weight, fill=fill)
        text_at(self.svg, self.left - 12, at + 14, note, size=11, fill=FAINT, anchor="end")

    def line(self, y: float, colour: str = LINE, **attributes: object) -> None:
        """Draw a line along the axis."""
        add(self.svg, "line", x1=self.left, x2=self.right, y1=y, y2=y, stroke=colour, stroke_width=1, **attributes)

    def rate(
        self, points: Sequence[tuple[float, float]], name: str, note: str = "a second",
        *, unit: str = "/s", height: float = 92, is_capped: bool = True,
    ) -> None:  # fmt: skip
        """Draw values along the axis as an area.

        With `is_capped`, the scale ends at `RATE_TOP_RATIO` times the median, and a label names the highest value.
        Otherwise a few high values would make it impossible to see gaps between low ones.

        Args:
            points: Places on the axis and values, in the order of the axis; may be empty.
            name: What is counted.
            note: The line below the name.
            unit: Stands after the values of the scale.
            height: The height in pixels.
            is_capped: Whether the highest values may be cut off.
        """
        top, base = self.y, self.y + height
        self.label(top + 15, name, note, weight="600")
        self.line(base, FAINT)
        self.y = base + PANEL_SPACE
        if not points:
            return
        highest = max(value for _, value in points)
        most = RATE_TOP_RATIO * statistics.median(value for _, value in points) if is_capped else 0.0
        peak = rounded_up(min(highest, most or highest))
        more = f" (at most {_short(float(f'{highest:.2g}'))}{unit})" if highest > peak else ""
        self.line(top, stroke_dasharray="3 3")
        text_at(self.svg, self.right, top - 4, f"{_short(peak)}{unit}{more}", size=11, fill=FAINT, anchor="end")
        drawn = [(self.x(at), round(base - height * min(value / peak, 1), 2)) for at, value in points]
        line = " ".join(f"{x:g},{y:g}" for x, y in drawn)
        area = f"{drawn[0][0]:g},{base:g} {line} {drawn[-1][0]:g},{base:g}"
        add(self.svg, "polygon", points=area, fill=RATE_COLOUR, fill_opacity=0.12)
        add(
            self.svg,
            "polyline",
            points=line,
            fill="none",
            stroke=RATE_COLOUR,
            stroke_width=1.5,
            stroke_linejoin="round",
        )

    def tick(self, at: float, label: str) -> None:
        """Draw a line through all parts so far, with a label below it."""
        x = self.x(at)
        add(self._grid, "line", x1=x, x2=x, y1=self._top, y2=self.y, stroke=LINE, stroke_width=1)
        text_at(self._grid, x, self.y + 18, label, size=11, fill=FAINT, anchor="middle")

    def grid(self, unit: str, name: str) -> None:
        """Draw a tick for each round value of the axis, and name the axis."""
        step = rounded_up(self._end / 10, (1, 2, 5, 10))
        for n in range(int(self._end / step + 1e-9) + 1):
            self.tick(n * step, f"{n * step:,g}{unit}")
        text_at(self._grid, (self.left + self.right) / 2, self.y + 38, name, size=11, fill=FAINT, anchor="middle")

    def finish(self) -> ET.Element:
        """End the picture, whose height is known now. Return the element of the file."""
        height = self.y + 52
        self.svg.attrib.update(viewBox=f"0 0 {self._width:g} {height:g}", height=f"{height:g}")
        self._ground.set("height", f"{height - 1:g}")
        ET.indent(self.svg)
        return self.svg

    def save(self, file: Path) -> None:
        """End the picture, and write it into a file.

        Raises:
            OSError: The file cannot be written.
        """
        file.write_text(ET.tostring(self.finish(), encoding="unicode") + "\n")


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
