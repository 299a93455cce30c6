"""The picture of a run of a demo: a rate over time, a lane for each kind of fault, and lines from faults to rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.etree import ElementTree as ET

from e2e.charts import GROUND, Picture, add, titled
from e2e.demo.report import DemoFault

FAULT_COLOUR: Final = "#B3261E"
LANE_HEIGHT: Final = 20


class RunPicture(Picture):
    """A picture whose axis is the time in seconds, since the first message if nothing else is said."""

    axis = "time since the first message"

    def __init__(self, title: str, subtitle: str, *, duration_s: float, faults: Sequence[DemoFault]) -> None:
        super().__init__(title, subtitle, end=duration_s)
        self._faults = faults

    def fault_legend(self) -> None:
        """Say in the legend what the marks of faults mean."""
        if self._faults:
            self.legend("fault", lambda parent, x, y: _mark(parent, x, y, is_hit=True))
        if not all(fault.hit for fault in self._faults):
            self.legend("fault that hit nothing", lambda parent, x, y: _mark(parent, x, y, is_hit=False))

    def lanes(self) -> None:
        """Draw a lane for each kind, with a mark for each fault and a line for the time that it lasts."""
        for kind in sorted({fault.kind for fault in self._faults}):
            y = self.y + LANE_HEIGHT / 2
            self.label(y, kind, weight="600", fill=FAULT_COLOUR)
            self.line(y)
            for fault in self._faults:
                if fault.kind == kind:
                    lane = titled(self.svg, _words(fault))
                    x, healed = self.x(fault.at_s), self.x(math.inf if fault.healed_at_s is None else fault.healed_at_s)
                    stroke = {"stroke": FAULT_COLOUR, "stroke_width": 4, "stroke_opacity": 0.35}
                    add(lane, "line", x1=x, x2=healed, y1=y, y2=y, stroke_linecap="round", **stroke)
                    _mark(lane, x, y, is_hit=fault.hit)
            self.y += LANE_HEIGHT
        self.y += 30 if self._faults else 0

    def fault_lines(self, top: float, end: float) -> None:
        """Draw a line over the rows for each fault that hit, so that one sees what it ended."""
        for x in (self.x(fault.at_s) for fault in self._faults if fault.hit):
            stroke = {"stroke": FAULT_COLOUR, "stroke_width": 1.1, "stroke_opacity": 0.75, "stroke_dasharray": "4 3"}
            add(self.svg, "line", x1=x, x2=x, y1=top, y2=end, **stroke)

    def finish(self) -> ET.Element:
        """Draw the axis, and end the picture."""
        self.grid(" s", self.axis)
        return super().finish()


def _words(fault: DemoFault) -> str:
    mended = "" if fault.healed_at_s is None else f", mended at {fault.healed_at_s:.1f} s"
    gap = "" if fault.gap_ms is None else f", gap {fault.gap_ms:.0f} ms"
    hit = "" if fault.hit else ", hit nothing"
    return f"{fault.kind} {fault.victim} ({fault.role}) at {fault.at_s:.1f} s{mended}{gap}{hit}"


def _mark(parent: ET.Element, x: float, y: float, *, is_hit: bool) -> None:
    """Draw a small diamond: full if the fault hit, hollow if it did not."""
    points = f"{x:g},{y - 6:g} {x + 5:g},{y:g} {x:g},{y + 6:g} {x - 5:g},{y:g}"
    fill = FAULT_COLOUR if is_hit else GROUND
    add(parent, "polygon", points=points, fill=fill, stroke=FAULT_COLOUR, stroke_width=1.4)
