"""The picture of a benchmark's latencies: for each histogram, the latency that a share of the messages did not exceed.

Both axes are those of HdrHistogram's own plots: the share in steps of ten (90, 99, 99.9 per cent), so that the slowest
messages are seen, and the latency on a scale of powers of ten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from e2e.bench.measures.figures import Figure
from e2e.bench.measures.latency import Latency
from e2e.charts import COLOURS, FAINT, Picture, add, text_at

HEIGHT: Final = 420
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
    picture(curves).save(file)
    return True


def picture(curves: Mapping[str, Latency]) -> Picture:
    """The picture, to be saved."""
    most = max(latency.max_ms for latency in curves.values())
    least = min(latency.ms(0.01) for latency in curves.values())
    low, high = math.floor(math.log10(max(least, 0.01))), math.ceil(math.log10(max(most, 0.1)))
    high = max(high, low + 1)
    drawn = Picture(
        "Latency by share of messages", "share of messages that took at most this long; latency in ms",
        end=_depth(SHARES[-1]), width=1000, left=70, right=300,
    )  # fmt: skip
    base = drawn.y + HEIGHT
    scale = HEIGHT / (high - low)
    for power in range(low, high + 1):
        drawn.line(base - scale * (power - low))
        drawn.label(base - scale * (power - low), f"{10.0**power:g}", fill=FAINT)
    for number, (name, latency) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{drawn.x(_depth(share)):.1f},{base - scale * (math.log10(max(latency.ms(share), 10.0**low)) - low):.1f}"
            for share in _shares_of(latency.count)
        )
        add(drawn.svg, "polyline", points=points, fill="none", stroke=colour, stroke_width=2)
        x, y = drawn.right + 16, drawn.y + 12 + 34 * number
        add(drawn.svg, "line", x1=x, x2=x + 24, y1=y, y2=y, stroke=colour, stroke_width=3)
        text_at(drawn.svg, x + 32, y + 4, name)
        summary = f"p50 {latency.ms(50):.2f}, p99 {latency.ms(99):.2f}, longest {latency.max_ms:.1f} ms"
        text_at(drawn.svg, x + 32, y + 18, summary, size=11, fill=FAINT)
    drawn.y = base
    for share in SHARES:
        drawn.tick(_depth(share), f"{share:g} %")
    return drawn


def _label(figure: Figure, name: str) -> str:
    """What a curve is called: the figure's name without its measure."""
    whole = figure.name.rpartition(".")[0] or figure.name
    return f"{whole}, {name}" if name else whole


def _depth(share: float) -> float:
    """How often the share of slower messages is a tenth: 0 for 0 per cent, 1 for 90, 2 for 99."""
    return -math.log10(1 - share / 100)


def _shares_of(count: int) -> list[float]:
    """Shares at equal steps of the axis, as far as one of this many messages says anything."""
    end = min(_depth(SHARES[-1]), math.log10(max(count, 10)))
    return [100 * (1 - 10 ** -(end * step / POINTS)) for step in range(POINTS + 1)]
