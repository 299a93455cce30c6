"""The picture of a benchmark's latencies: for each histogram, the latency that a share of the messages did not exceed.

Both axes are those of HdrHistogram's own plots: the share in steps of ten (90, 99, 99.9 per cent), so that the slowest
messages are seen, and the latency on a scale of powers of ten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from e2e.bench.figures import Figure
from e2e.bench.latency import Latency
from e2e.demo.svg import COLOURS, FAINT, GROUND, LINE, add, canvas, text_at

WIDTH: Final = 1000
LEFT: Final = 70
RIGHT: Final = 300
TOP: Final = 60
HEIGHT: Final = 420
BOTTOM: Final = 50
SHARES: Final = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)
POINTS: Final = 160


def draw(figures: Sequence[Figure], file: Path) -> bool:
    """Draw all histograms of the figures into an SVG file. Return False if there is none."""
    curves = {
        _label(figure, name if len(found) > 1 else ""): Latency.decode(encoded)
        for figure in figures
        if isinstance(found := figure.details.get("histograms"), Mapping)
        for name, encoded in found.items()
    }
    if not curves:
        return False
    file.write_text(ET.tostring(picture(curves), encoding="unicode") + "\n")
    return True


def picture(curves: Mapping[str, Latency]) -> ET.Element:
    """The picture as an SVG element."""
    most = max(latency.max_ms for latency in curves.values())
    least = min(latency.ms(0.01) for latency in curves.values())
    low, high = math.floor(math.log10(max(least, 0.01))), math.ceil(math.log10(max(most, 0.1)))
    high = max(high, low + 1)
    height = TOP + HEIGHT + BOTTOM
    root = canvas(WIDTH, height)
    add(root, "rect", x=0, y=0, width=WIDTH, height=height, fill=GROUND)
    text_at(root, LEFT, 28, "Latency by share of messages", size=18, weight="600")
    text_at(root, LEFT, 46, "share of messages that took at most so long; latency in ms", fill=FAINT)
    for share in SHARES:
        x = _x(share)
        add(root, "line", x1=x, x2=x, y1=TOP, y2=TOP + HEIGHT, stroke=LINE)
        text_at(root, x, TOP + HEIGHT + 20, f"{share:g} %", anchor="middle", fill=FAINT)
    for power in range(low, high + 1):
        y = _y(10.0**power, low, high)
        add(root, "line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, stroke=LINE)
        text_at(root, LEFT - 8, y + 4, f"{10.0**power:g}", anchor="end", fill=FAINT)
    for number, (name, latency) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{_x(share):.1f},{_y(latency.ms(share), low, high):.1f}" for share in _shares_of(latency.count)
        )
        add(root, "polyline", points=points, fill="none", stroke=colour, stroke_width=2)
        y = TOP + 12 + 34 * number
        add(root, "line", x1=WIDTH - RIGHT + 16, x2=WIDTH - RIGHT + 40, y1=y, y2=y, stroke=colour, stroke_width=3)
        text_at(root, WIDTH - RIGHT + 48, y + 4, name)
        summary = f"p50 {latency.ms(50):.2f}, p99 {latency.ms(99):.2f}, longest {latency.max_ms:.1f} ms"
        text_at(root, WIDTH - RIGHT + 48, y + 18, summary, size=11, fill=FAINT)
    return root


def _label(figure: Figure, name: str) -> str:
    """What a curve is called: the figure's name without its measure."""
    whole = figure.name.rpartition(".")[0] or figure.name
    return f"{whole}, {name}" if name else whole


def _depth(share: float) -> float:
    """How often the share of slower messages is a tenth: 0 for 0 per cent, 1 for 90, 2 for 99."""
    return -math.log10(1 - share / 100)


def _shares_of(count: int) -> list[float]:
    """Shares at equal steps of the axis, as far as one of so many messages tells anything."""
    end = min(_depth(SHARES[-1]), math.log10(max(count, 10)))
    return [100 * (1 - 10 ** -(end * step / POINTS)) for step in range(POINTS + 1)]


def _x(share: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * _depth(share) / _depth(SHARES[-1])


def _y(ms: float, low: int, high: int) -> float:
    at = (math.log10(max(ms, 10.0**low)) - low) / (high - low)
    return TOP + HEIGHT * (1 - at)
