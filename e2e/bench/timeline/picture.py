"""The picture of a timeline: a bar for each hop, from the hop before to it, in the colour of its process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from e2e.bench.timeline.hops import Hop, Measured, Role
from e2e.charts import COLOURS, FAINT, Picture, add, box, text_at

ROW: Final = 24
COLOUR: Final[dict[Role, str]] = dict(zip(("client", "master", "slave"), COLOURS, strict=False))


def picture(rows: Sequence[Measured], meanwhile: Sequence[tuple[Hop, float]], title: str) -> Picture:
    """Draw the medians, to be saved.

    Args:
        rows: The way of a message.
        meanwhile: What the master does at the same time, with its moments in µs.
        title: The headline.
    """
    subtitle = "medians, in µs; a bar begins at the hop before"
    drawn = Picture(title, subtitle, end=max(row.at_us for row in rows), width=1000, left=330, right=60)
    for role, colour in COLOUR.items():
        drawn.legend(role, box(colour))
    before_us = 0.0
    for row in rows:
        _bar(drawn, row.hop, before_us, row.at_us, f"{row.took_us:,.0f}")
        before_us = max(before_us, row.at_us)
    if meanwhile:
        drawn.label(drawn.y + ROW / 2, "meanwhile:", fill=FAINT)
        drawn.y += ROW
        before_us = rows[1].at_us  # the master has the message
        for hop, at_us in meanwhile:
            _bar(drawn, hop, before_us, at_us, f"{at_us - before_us:,.0f}")
            before_us = at_us
    drawn.grid("", "µs since the program began to send")
    return drawn


def _bar(drawn: Picture, hop: Hop, from_us: float, to_us: float, took: str) -> None:
    begin, end = drawn.x(from_us), drawn.x(max(from_us, to_us))
    drawn.label(drawn.y + ROW / 2, hop.text)
    width = round(max(end - begin, 1.0), 2)
    add(drawn.svg, "rect", x=begin, y=drawn.y + 4, width=width, height=ROW - 8, fill=COLOUR[hop.role])
    text_at(drawn.svg, end + 6, drawn.y + 16, took, size=11, fill=FAINT)
    drawn.y += ROW
