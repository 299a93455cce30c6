"""The picture of the replay: rows in the second topic over time, and what was killed when. SVG written by hand."""

from __future__ import annotations

from html import escape
from typing import Final

from e2e.demo_spark.strikes import Course

WIDTH: Final = 900
HEIGHT: Final = 260
LEFT: Final = 90
TOP: Final = 60
COLOURS: Final = {"driver": "#B3261E", "worker": "#E69F00", "broker": "#0072B2"}


def draw(course: Course, total: int) -> str:
    """Return the picture as the text of an SVG file.

    Args:
        course: The course of the replay.
        total: The number of rows that it had to send.
    """
    span = course.took_s or 1.0

    def x(at_s: float) -> float:
        return round(LEFT + WIDTH * min(at_s / span, 1.0), 1)

    def y(rows: int) -> float:
        return round(TOP + HEIGHT * (1 - min(rows, total) / max(total, 1)), 1)

    points = " ".join(f"{x(at)},{y(rows)}" for at, rows in [*course.rows, (span, total)])
    title = f"{total:,} rows replayed in {span:.0f} s, by {course.starts} drivers, {len(course.strikes)} kills"
    size = f'width="{LEFT + WIDTH + 40}" height="{TOP + HEIGHT + 50}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">',
        f'<rect {size} fill="#FCFCFA"/>',
        f'<text x="10" y="20" font-weight="bold">{escape(title)}</text>',
        f'<text x="10" y="{TOP + 5}">{total:,}</text>',
        f'<text x="10" y="{TOP + HEIGHT}">0</text>',
        f'<text x="{LEFT}" y="{TOP + HEIGHT + 20}">0 s</text>',
        f'<text x="{LEFT + WIDTH - 30}" y="{TOP + HEIGHT + 20}">{span:.0f} s</text>',
        f'<line x1="{LEFT}" y1="{TOP + HEIGHT}" x2="{LEFT + WIDTH}" y2="{TOP + HEIGHT}" stroke="#6B7785"/>',
    ]
    for strike in course.strikes:
        colour = COLOURS[strike.kind]
        parts.append(
            f'<line x1="{x(strike.at_s)}" y1="{TOP}" x2="{x(strike.at_s)}" y2="{TOP + HEIGHT}" stroke="{colour}" '
            f'stroke-dasharray="4 3"><title>{escape(strike.victim)} at {strike.at_s:.1f} s</title></line>'
        )
    for number, (kind, colour) in enumerate(COLOURS.items()):
        parts.append(f'<text x="{LEFT + 110 * number}" y="42" fill="{colour}">| {kind} killed</text>')
    parts.append(f'<polyline fill="none" stroke="#3E4C59" stroke-width="2" points="{points}"/>')
    return "\n".join([*parts, "</svg>", ""])
