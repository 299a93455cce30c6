"""The live view of a made-up run is compared with recorded screens of 100 columns."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from e2e.demo.live import Scene, draw, fault_line, progress_line, ribbon, sparkline
from e2e.demo.report import DemoFault, SegmentSpan

SCENE = Scene(
    title="Seriatim",
    total=1000,
    hits_min=6,
    at_s=10.0,
    sent=700,
    acknowledged=600,
    delivered=590,
    rates=[20, 40, 60, 80] * 5,
    faults=[
        DemoFault("kill", "g0-0", "master", 2.0, 3.0, True, 120.0),
        DemoFault("kill", "g1", "master", 5.0, 6.0, True, 900.0, both_members=True),
        DemoFault("cut", "g2-1 from all", "server", 9.0, None, True, None),
    ],
    segments=(
        SegmentSpan(0, 1, "g0", "SEALED", -0.5, 2.1, 300),
        SegmentSpan(0, 2, "g1", "UNSETTLED", 2.1, 5.0, None),
        SegmentSpan(0, 3, "g2", "OPEN", 5.0, None, 77),
        SegmentSpan(1, 1, "g1", "OPEN", -0.5, None, 300),
        SegmentSpan(2, 1, "g1", "OPEN", -0.5, None, 163),
    ),
    accepted={0: 137, 1: 300, 2: 163},
    consumed={0: 137, 1: 300, 2: 153},
    doing="cut g2-1 from all (server)",
)


def shown(scene: Scene, width: int = 100, height: int = 40) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None, legacy_windows=False)
    console.print(draw(scene, width, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_everything_is_on_the_screen() -> None:
    text = shown(SCENE)
    for wanted in (
        "600 acknowledged", "590 consumed", "60%", "faults: 3 of 6 hit", "kill both", "900 ms", "g2-1 from all",
        "-10", "level", "not settled", "▒", "┊", "✕", "cut g2-1 from all (server)",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert all(len(line) <= 100 for line in text.splitlines())


def test_what_is_consumed_and_the_backlogs_agree() -> None:
    rows = [line for line in shown(SCENE).splitlines() if line.startswith(("│   0 ", "│   1 ", "│   2 "))]
    assert [row.rstrip(" │").split("  ")[-1].split("█")[-1].strip() for row in rows] == ["not settled", "level", "-10"]
    assert sum(SCENE.accepted.values()) == SCENE.acknowledged
    assert sum(SCENE.consumed.values()) == SCENE.delivered


def test_an_empty_scene_and_a_narrow_terminal_are_drawn_as_well() -> None:
    empty = shown(Scene("Seriatim", total=0, hits_min=6, doing="starting"))
    assert "starting" in empty
    assert all(len(line) <= 40 for line in shown(SCENE, 40).splitlines())


def test_it_fits_on_a_screen_of_24_lines_with_the_newest_fault_and_all_figures() -> None:
    spans = [SegmentSpan(partition, 1, "g1", "OPEN", -0.5, None, 300) for partition in range(6)]
    faults = [DemoFault("kill", f"g0-{number}", "master", number, None, True, 120.0) for number in range(20)]
    busy = replace(
        SCENE, segments=spans, faults=faults, total=1_264_226, acknowledged=1_264_226, delivered=1_264_225, unknown=17
    )
    lines = shown(busy, 80, 24).splitlines()
    assert len(lines) == 24
    assert "1,264,226 acknowledged  1,264,225 consumed  17 unknown" in lines[0]
    assert "…" not in lines[0]
    assert "g0-19" in lines[-3]
    assert lines[-1].strip() == SCENE.doing
    assert "✕ fault " in shown(busy, 80, 24)


def test_the_sparkline_fills_its_highest_column() -> None:
    assert sparkline([0, 50, 100], 2) == ["  █", " ██"]
    assert sparkline([1, 8], 1) == ["▁█"]
    assert sparkline([], 2) == ["", ""]
    assert sparkline([0, 0], 1) == ["  "]


def test_a_ribbon_shows_who_held_the_partition_when() -> None:
    colours = {"g0": "red", "g1": "green", "g2": "blue"}
    drawn = ribbon([segment for segment in SCENE.segments if segment.partition == 0], 10.0, 20, colours)
    assert isinstance(drawn, Text)
    assert drawn.plain == "████┊▒▒▒▒▒┊█████████"


def test_lines_for_where_there_is_no_terminal() -> None:
    assert "600 of 1,000 acknowledged" in progress_line(SCENE)
    assert "3 of 6 faults hit" in progress_line(SCENE)
    line = fault_line(SCENE.faults[0], 4.5)
    assert line.startswith("   4.5 s  kill"), "the lines stand in the order of the times that they begin with"
    assert "struck at 2.0 s, gap 120 ms" in line
    missed = DemoFault("freeze", "g0-1", "none", 1.0, 2.0, False, None)
    assert "does not count" in fault_line(missed, 3.0)
