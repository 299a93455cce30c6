"""The live view and the picture of a made-up run."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

from rich.console import Console

from e2e.demo.live import View, draw, fault_line, sparkline
from e2e.demo.report import DemoFault
from e2e.demo.segments import ChainScene, SegmentSpan, ribbon
from e2e.demo.segments import draw as draw_picture

SCENE = ChainScene(
    total=1000,
    hits_min=6,
    at_s=10.0,
    sent=700,
    acknowledged=600,
    delivered=590,
    rates=[20, 40, 60, 80] * 5,
    faults=[
        DemoFault("kill", "g0-0", "master", 2.0, 3.0, True, 120.0),
        DemoFault("kill both", "g1", "master", 5.0, 6.0, True, 900.0),
        DemoFault("cut", "g2-1 from all", "server", 9.0),
    ],
    segments=(
        SegmentSpan(0, 1, "g0", "SEALED", -0.5, 2.1, 300),
        SegmentSpan(0, 2, "g1", "UNSETTLED", 2.1, 5.0, None),
        SegmentSpan(0, 3, "g2", "OPEN", 5.0, None, 77),
        SegmentSpan(1, 1, "g1", "LOST", -0.5, None, 300),
        SegmentSpan(2, 1, "g1", "OPEN", -0.5, None, 163),
    ),
    accepted={0: 137, 1: 300, 2: 163},
    consumed={0: 137, 1: 300, 2: 153},
    doing="cut g2-1 from all (server)",
)


def shown(scene: ChainScene, width: int = 100, height: int = 40) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(draw(scene, width, height))
    return text.getvalue().splitlines()


def test_the_screen() -> None:
    lines = shown(SCENE)
    for wanted in (
        "600 acknowledged", "590 consumed", "60%", "faults: 3 of 6 hit", "kill both", "900 ms", "g2-1 from all",
        "not settled", "▒", "┊", "✕", "cut g2-1 from all (server)",
    ):  # fmt: skip
        assert wanted in "\n".join(lines), wanted
    rows = [line for line in lines if line.startswith(("│   0 ", "│   1 ", "│   2 "))]
    assert [row.rstrip(" │").split("  ")[-1].split("█")[-1].split("▒")[-1].strip() for row in rows] == [
        "not settled", "level", "-10",
    ]  # fmt: skip
    colours = {"g0": "red", "g1": "green", "g2": "blue"}
    assert ribbon(SCENE.segments[:3], 10.0, 20, colours).plain == "████┊▒▒▒▒▒┊█████████"
    assert sparkline([0, 50, 100], 2) == ["  █", " ██"]
    assert all(len(line) <= 40 for line in shown(SCENE, 40))
    assert "starting" in "".join(shown(ChainScene(hits_min=6, doing="starting")))


def test_24_lines_have_the_newest_fault_and_all_figures() -> None:
    spans = [SegmentSpan(partition, 1, "g1", "OPEN", -0.5, None, 300) for partition in range(6)]
    faults = [DemoFault("kill", f"g0-{number}", "master", number, None, True, 120.0) for number in range(20)]
    busy = replace(
        SCENE, segments=spans, faults=faults, total=1_264_226, acknowledged=1_264_226, delivered=1_264_225, unknown=17
    )
    lines = shown(busy, 80, 24)
    assert len(lines) == 24
    assert "1,264,226 acknowledged  1,264,225 consumed  17 unknown" in lines[0]
    assert "…" not in lines[0]
    assert "g0-19" in lines[-3]
    assert lines[-1].strip() == SCENE.doing


def test_lines_without_a_terminal() -> None:
    text = io.StringIO()
    with View(Console(file=text, width=200)) as view:
        view.scene(SCENE)
        view.fault(SCENE.faults[0])
    first, fault, last = text.getvalue().splitlines()
    assert "600 of 1,000 acknowledged" in first
    assert "3 of 6 faults hit" in first
    assert fault.startswith("  10.0 s  kill"), "the lines stand in the order of the times that they begin with"
    assert "struck at 2.0 s, gap 120 ms" in fault
    assert last == first, "it reports how it was at the end"
    assert "does not count" in fault_line(DemoFault("freeze", "g0-1", "none", 1.0, 2.0, False, None), 3.0)


def test_the_picture(tmp_path: Path) -> None:
    file = tmp_path / "segments.svg"
    rates = [(n / 10, 0.0 if n in (40, 41) else 10_000.0) for n in range(90)] + [(9.0, 270_000.0)]
    silences = [(0, 2.0, 2.15), (7, 1.0, 2.0)]
    draw_picture(file, SCENE.segments, SCENE.faults, rates, silences, duration_s=10.0, subtitle="all & <sundry>")
    svg = ET.fromstring(file.read_text())
    texts = [element.text or "" for element in svg.iter() if element.tag.endswith(("}text", "}title"))]
    for words in (
        "all & <sundry>", "g2", "unsettled", "lost", "kill both", "partition 1", "10 s", "nothing acknowledged",
        "nothing acknowledged for 150 ms", "25k/s (at most 270k/s)",
    ):  # fmt: skip
        assert words in texts, words
    (line,) = [element for element in svg.iter() if element.tag.endswith("}polyline")]
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert heights[40] - heights[39] > 30, "full speed at the end does not hide a gap"
    draw_picture(file, [], [], [], [], duration_s=0.3, subtitle="")
