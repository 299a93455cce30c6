"""What the pictures of the demos have in common: a ground, an axis of time, a rate, faults as marks and lines.

The pictures are SVG files that this package writes itself: rectangles, lines and labels. The same records give the same
picture. A plotting library would not make the code shorter, and matplotlib brings 60 MB. The pictures have a light
ground of their own, so that they look the same on a light and on a dark page.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

from e2e.demo.report import DemoFault, RateSample

WIDTH: Final = 1200
LEFT: Final = 140
RIGHT: Final = 28
TOP: Final = 122
LEGEND_AT: Final = 84
RATE_HEIGHT: Final = 92
RATE_TOP_RATIO: Final = 2.5
LANE_HEIGHT: Final = 20
PANEL_SPACE: Final = 30
BOTTOM: Final = 52

# Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8C6BB1", "#B3A125", "#7F7F7F")
FAULT_COLOUR: Final = "#B3261E"
INK: Final = "#1F2933"
FAINT: Final = "#6B7785"
LINE: Final = "#D5DBE1"
GROUND: Final = "#FCFCFA"
RATE_COLOUR: Final = "#3E4C59"
FONT: Final = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True, slots=True)
class Scale:
    """Converts seconds to pixels."""

    duration_s: float

    def x(self, at_s: float) -> float:
        """The place of a time. Times beyond the axis are at its ends."""
        share = min(max(at_s / self.duration_s, 0.0), 1.0)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 2)


def canvas(width: float, height: float) -> ET.Element:
    """A picture without anything in it."""
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    return ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, "role": "img", "font-family": FONT})


def add(parent: ET.Element, tag: str, *, text: str = "", **attributes: object) -> ET.Element:
    """Add an element. An underscore in the name of an attribute is a hyphen in the file."""
    element = ET.SubElement(
        parent, tag, {name.rstrip("_").replace("_", "-"): _value(value) for name, value in attributes.items()}
    )
    if text:
        element.text = text
    return element


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def text_at(
    parent: ET.Element,
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    fill: str = INK,
    anchor: str = "start",
    weight: str = "400",
) -> None:
    """Write words at a place; nothing if they are empty."""
    if text:
        add(parent, "text", text=text, x=x, y=y, font_size=size, fill=fill, text_anchor=anchor, font_weight=weight)


def begin(height: float, title: str, subtitle: str, figures: str) -> ET.Element:
    """Begin a picture: its ground, headline, and the line below the headline."""
    svg = canvas(WIDTH, height)
    add(svg, "title", text=title)
    add(svg, "desc", text=f"{figures}. {subtitle}")
    add(svg, "rect", x=0.5, y=0.5, width=WIDTH - 1, height=height - 1, rx=10, fill=GROUND, stroke=LINE)
    text_at(svg, 24, 36, title, size=20, weight="600")
    text_at(svg, 24, 58, subtitle, size=13, fill=FAINT)
    return svg


def end(svg: ET.Element) -> str:
    """The picture as the text of an SVG file."""
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def _tick_seconds(duration_s: float) -> float:
    """Return a round distance that gives six to twelve ticks."""
    rough = duration_s / 10
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(step * magnitude for step in (1.0, 2.0, 5.0, 10.0) if step * magnitude >= rough)


def time_grid(svg: ET.Element, scale: Scale, top: float, end: float) -> None:
    """Draw a line for each round time, with the time below it."""
    step = _tick_seconds(scale.duration_s)
    for n in range(int(scale.duration_s / step + 1e-9) + 1):
        x = scale.x(n * step)
        add(svg, "line", x1=x, x2=x, y1=top, y2=end, stroke=LINE, stroke_width=1)
        text_at(svg, x, end + 18, f"{n * step:g} s", size=11, fill=FAINT, anchor="middle")
    middle = (LEFT + WIDTH - RIGHT) / 2
    text_at(svg, middle, end + 38, "time since the first message", size=11, fill=FAINT, anchor="middle")


def rate_panel(
    svg: ET.Element, scale: Scale, rates: Sequence[RateSample], top: float, *, what: str = "accepted"
) -> None:
    """Draw a rate over time.

    The rest of the events is sent at many times the rate before. So the axis ends at `RATE_TOP_RATIO` times the median
    of the rates. Higher rates are cut off, and a label names the highest one. Otherwise a gap could not be seen.

    Args:
        svg: The picture.
        scale: Its axis of time.
        rates: Samples in the order of time; may be empty.
        top: The upper edge of the panel, which is `RATE_HEIGHT` high.
        what: What is counted, in a word.
    """
    base = top + RATE_HEIGHT
    text_at(svg, LEFT - 12, base - RATE_HEIGHT + 12, what, anchor="end", weight="600")
    text_at(svg, LEFT - 12, base - RATE_HEIGHT + 28, "a second", size=11, fill=FAINT, anchor="end")
    add(svg, "line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, stroke=FAINT, stroke_width=1)
    if not rates:
        return
    highest = max(sample.messages_per_s for sample in rates)
    peak = _round_up(min(highest, RATE_TOP_RATIO * statistics.median(s.messages_per_s for s in rates) or highest))
    more = f" (at most {_short(float(f'{highest:.2g}'))})" if highest > peak else ""
    add(svg, "line", x1=LEFT, x2=WIDTH - RIGHT, y1=top, y2=top, stroke=LINE, stroke_width=1, stroke_dasharray="3 3")
    text_at(svg, WIDTH - RIGHT, top - 4, _short(peak) + more, size=11, fill=FAINT, anchor="end")
    points = [(scale.x(s.at_s), round(base - RATE_HEIGHT * min(s.messages_per_s / peak, 1), 2)) for s in rates]
    line = " ".join(f"{x:g},{y:g}" for x, y in points)
    area = f"{points[0][0]:g},{base:g} {line} {points[-1][0]:g},{base:g}"
    add(svg, "polygon", points=area, fill=RATE_COLOUR, fill_opacity=0.12)
    add(svg, "polyline", points=line, fill="none", stroke=RATE_COLOUR, stroke_width=1.5, stroke_linejoin="round")


def _round_up(value: float) -> float:
    """Round up to the next of 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten: the top of an axis."""
    if value <= 0:
        return 1.0
    magnitude = 10.0 ** math.floor(math.log10(value))
    return next(step * magnitude for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * magnitude >= value)


def _short(value: float) -> str:
    return f"{value / 1000:g}k/s" if value >= 1000 else f"{value:g}/s"


def fault_labels(faults: Sequence[DemoFault]) -> list[str]:
    """The kinds of these faults, in the order of their lanes."""
    return sorted({fault.label for fault in faults}, key=lambda label: (label.endswith(" both"), label))


def fault_lanes(svg: ET.Element, scale: Scale, faults: Sequence[DemoFault], labels: Sequence[str], top: float) -> None:
    """Draw a lane of `LANE_HEIGHT` for each kind, with a mark for each fault and a line for the time that it lasts."""
    for n, label in enumerate(labels):
        y = top + (n + 0.5) * LANE_HEIGHT
        of_kind = [fault for fault in faults if fault.label == label]
        text_at(svg, LEFT - 12, y + 4, label, anchor="end", weight="600", fill=FAULT_COLOUR)
        add(svg, "line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, stroke=LINE, stroke_width=1)
        for fault in of_kind:
            x, healed = scale.x(fault.at_s), scale.x(fault.healed_at_s if fault.healed_at_s is not None else math.inf)
            mark = add(svg, "g")
            add(mark, "title", text=_fault_words(fault))
            add(
                mark, "line", x1=x, x2=healed, y1=y, y2=y, stroke=FAULT_COLOUR, stroke_width=4,
                stroke_opacity=0.35, stroke_linecap="round",
            )  # fmt: skip
            fault_mark(mark, x, y, hit=fault.hit)


def _fault_words(fault: DemoFault) -> str:
    words = f"{fault.label} {fault.victim} ({fault.role}) at {fault.at_s:.1f} s"
    if fault.healed_at_s is not None:
        words += f", mended at {fault.healed_at_s:.1f} s"
    if fault.gap_ms is not None:
        words += f", gap {fault.gap_ms:.0f} ms"
    return words if fault.hit else words + ", hit nothing"


def fault_mark(parent: ET.Element, x: float, y: float, *, hit: bool) -> None:
    """Draw a small diamond: full if the fault hit, hollow if it did not."""
    points = f"{x:g},{y - 6:g} {x + 5:g},{y:g} {x:g},{y + 6:g} {x - 5:g},{y:g}"
    fill = FAULT_COLOUR if hit else GROUND
    add(parent, "polygon", points=points, fill=fill, stroke=FAULT_COLOUR, stroke_width=1.4)


def fault_lines(svg: ET.Element, scale: Scale, faults: Sequence[DemoFault], top: float, end: float) -> None:
    """Draw a line over the rows for each fault that hit, so that one sees what it ended."""
    for fault in faults:
        if fault.hit:
            x = scale.x(fault.at_s)
            add(
                svg, "line", x1=x, x2=x, y1=top, y2=end, stroke=FAULT_COLOUR, stroke_width=1.1,
                stroke_opacity=0.75, stroke_dasharray="4 3",
            )  # fmt: skip


def ink_on(ground: str) -> str:
    """Return dark or white, whichever is easier to read on this colour."""
    red, green, blue = (int(ground[n : n + 2], 16) for n in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#FFFFFF"
