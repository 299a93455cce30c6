"""Draws the chart's dashboards from a Prometheus, as SVG files: each panel with its own queries, on Grafana's grid."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import urllib3

from e2e.charts import COLOURS, FAINT, GROUND, INK, LINE, add, canvas, text_at
from tools.kubernetes.layout import ROOT

DASHBOARDS: Final = ROOT / "files" / "dashboards"
DRAWN: Final = ("brokers", "consumer-groups", "operator", "topics")

COLUMN: Final = 50
ROW: Final = 36
TITLE_HEIGHT: Final = 50
PAD: Final = 10
LEGEND_MAX: Final = 4
STEP_S: Final = 5
RATE_S: Final = 20
"""What `$__rate_interval` is: four scrapes, as in Grafana."""

ANSWER_S: Final = 30.0


class NotDrawnError(Exception):
    """Prometheus refused a query. The text says which, and why."""


@dataclass(frozen=True, slots=True)
class Line:
    """A series of a panel: its legend, and its values by time."""

    label: str
    points: tuple[tuple[float, float], ...]


def draw_dashboards(prometheus: str, directory: Path, begin_s: float, end_s: float) -> list[Path]:
    """Draw each dashboard for a span of time. Return the files.

    Raises:
        HTTPError: Prometheus does not answer (urllib3's).
        NotDrawnError: It refused a query.
    """
    files = []
    for name in DRAWN:
        dashboard = json.loads((DASHBOARDS / f"{name}.json").read_text())
        panels = [(panel, lines_of(prometheus, panel, begin_s, end_s)) for panel in dashboard["panels"]]
        file = directory / f"{name}.svg"
        file.write_text(ET.tostring(picture(dashboard["title"], panels, begin_s, end_s), encoding="unicode") + "\n")
        files.append(file)
    return files


def lines_of(prometheus: str, panel: Mapping[str, Any], begin_s: float, end_s: float) -> list[Line]:
    """Ask Prometheus for the series of all queries of a panel."""
    found = []
    for target in panel.get("targets", ()):
        arguments = {"query": filled(target["expr"]), "start": str(begin_s), "end": str(end_s), "step": str(STEP_S)}
        answer = urllib3.request("GET", f"{prometheus}/api/v1/query_range", fields=arguments, timeout=ANSWER_S)
        if answer.status != 200:
            raise NotDrawnError(f"{panel['title']}: {answer.data.decode(errors='replace')[:500]}")
        for series in answer.json()["data"]["result"]:
            points = [(float(at), float(value)) for at, value in series["values"]]
            kept = tuple((at, value) for at, value in points if math.isfinite(value))
            found.append(Line(legend(target.get("legendFormat", ""), series["metric"]), kept))
    return found


def filled(expression: str) -> str:
    """A query with Grafana's variables filled in: everything is chosen."""
    query = expression.replace("$__rate_interval", f"{RATE_S}s").replace("$__range", f"{RATE_S}s")
    for name in ("namespace", "cluster", "topic", "group"):
        query = query.replace(f"${name}", ".*")
    return query


def legend(form: str, labels: Mapping[str, str]) -> str:
    """The legend of a series: the form with its labels, or the labels if there is no form."""
    if not form:
        return ", ".join(f"{name}={value}" for name, value in labels.items() if name != "__name__")
    for name, value in labels.items():
        form = form.replace(f"{{{{{name}}}}}", value)
    return form


def picture(
    title: str, panels: Sequence[tuple[Mapping[str, Any], Sequence[Line]]], begin_s: float, end_s: float
) -> ET.Element:
    """The picture of a dashboard as an SVG element."""
    width = 24 * COLUMN
    height = TITLE_HEIGHT + ROW * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel, _ in panels)
    root = canvas(width, height)
    add(root, "rect", x=0, y=0, width=width, height=height, fill=GROUND)
    text_at(root, PAD, 30, f"{title}: {end_s - begin_s:.0f} s", size=18, weight="600")
    for panel, lines in panels:
        at = panel["gridPos"]
        place = (at["x"] * COLUMN, TITLE_HEIGHT + at["y"] * ROW, at["w"] * COLUMN, at["h"] * ROW)
        _draw_panel(root, panel, lines, place, (begin_s, end_s))
    return root


def _draw_panel(
    root: ET.Element,
    panel: Mapping[str, Any],
    lines: Sequence[Line],
    place: tuple[int, int, int, int],
    span: tuple[float, float],
) -> None:
    x, y, width, height = place
    add(root, "rect", x=x + 3, y=y + 3, width=width - 6, height=height - 6, fill="none", stroke=LINE)
    text_at(root, x + PAD, y + 20, panel["title"], size=12, weight="600")
    lines = [line for line in lines if line.points]
    if not lines:
        text_at(root, x + width / 2, y + height / 2, "no data", fill=FAINT, anchor="middle")
        return
    unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "none")
    if panel["type"] == "stat":
        for number, line in enumerate(lines[:LEGEND_MAX]):
            said = f"{line.label}: {amount(line.points[-1][1], unit)}"
            text_at(root, x + PAD, y + 60 + 34 * number, said, size=24, fill=INK)
        return
    most = max(value for line in lines for _, value in line.points) or 1.0
    left, top, wide, high = x + 60, y + 32, width - 75, height - 32 - 20 - 15 * min(len(lines), LEGEND_MAX)
    for share in (0.0, 0.5, 1.0):
        line_y = top + high * (1 - share)
        add(root, "line", x1=left, x2=left + wide, y1=line_y, y2=line_y, stroke=LINE)
        text_at(root, left - 6, line_y + 4, amount(most * share, unit), size=10, fill=FAINT, anchor="end")
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{left + wide * (at - span[0]) / (span[1] - span[0]):.1f},{top + high * (1 - max(value, 0) / most):.1f}"
            for at, value in line.points
        )
        add(root, "polyline", points=points, fill="none", stroke=colour, stroke_width=1.5)
        if number < LEGEND_MAX:
            text_y = top + high + 18 + 15 * number
            add(root, "line", x1=left, x2=left + 16, y1=text_y - 4, y2=text_y - 4, stroke=colour, stroke_width=3)
            more = f" (and {len(lines) - LEGEND_MAX} more)" if number == LEGEND_MAX - 1 < len(lines) - 1 else ""
            text_at(root, left + 22, text_y, line.label[:60] + more, size=10, fill=FAINT)


def amount(value: float, unit: str) -> str:
    """A value with its unit, short."""
    if unit == "percentunit":
        return f"{value:.0%}"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if 0 < value < 1 else f"{value:.3g} s"
    ends = {"bytes": " B", "Bps": " B/s", "cps": "/s"}.get(unit, "")
    for power, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= power:
            return f"{value / power:.3g} {letter}{ends.strip()}"
    return f"{value:.3g}{ends}"
