"""The demo's verdict, its figures and its picture, from made-up records."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console
from seriatim.history import MemoryHistory, Report, check_events

from e2e.demo.picture import draw, write
from e2e.demo.report import (
    DemoFault,
    Outcome,
    RateSample,
    SegmentSpan,
    Silence,
    exit_status,
    gaps_by_kind,
    json_line,
    percentiles,
    print_report,
    problems,
)
from e2e.demo.run import rate_samples

FAULTS = (
    DemoFault("kill", "alpha-0", "master", 2.0, 4.0, True, 100.0),
    DemoFault("kill", "beta-0", "master", 5.0, 6.0, True, 300.0),
    DemoFault("kill", "alpha", "master", 6.0, 9.0, True, 900.0, both_members=True),
    DemoFault("freeze", "gamma-1", "none", 7.0, None, False, None),
    DemoFault("cut", "alpha-0 → alpha-1", "server", 8.0, 8.5, True, None),
)
SEGMENTS = (
    SegmentSpan(0, 1, "alpha", "SEALED", -0.5, 2.1, 1000),
    SegmentSpan(0, 2, "beta", "UNSETTLED", 2.1, 5.1, None),
    SegmentSpan(0, 3, "gamma <&>", "OPEN", 5.1, None, 77),
    SegmentSpan(1, 1, "beta", "LOST", -0.5, 5.1, None),
    SegmentSpan(1, 2, "gamma <&>", "OPEN", 5.1, None, 5),
)


def checked(*, lose: bool = False) -> Report:
    history = MemoryHistory("test")
    history.sends(range(50), producer="p", topic="t", partition=0, sequence=0)
    history.outcomes(range(50), "ok", offset="1:0")
    history.deliveries(range(49 if lose else 50), group="g", consumer="c", topic="t", partition=0, offset="1:0")
    history.end()
    return check_events(history.events)


def outcome() -> Outcome:
    return Outcome(
        check=checked(), event_count=50, duration_s=10.0, drained_s=11.0, histories_equal=True, differences=(),
        digest="abc", faults=FAULTS, segments=SEGMENTS, seed=42, quick=True, hits_min=4,
        hits_planned=4, longest_silence_s=0.95,
        kinds_wanted=("kill", "kill both", "cut"),
    )  # fmt: skip


def test_a_good_run() -> None:
    assert problems(outcome()) == []
    assert exit_status(outcome()) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"check": checked(lose=True)}, "1 lost"),
        ({"event_count": 51}, "50 of 51 events"),
        ({"histories_equal": False}, "histories"),
        ({"hits_min": 5}, "only 4 of at least 5"),
        ({"kinds_wanted": ("freeze",)}, "no fault hit of kind freeze"),
        ({"check": check_events([])}, "no consumer group"),
    ],
)
def test_every_shortcoming_fails_the_run(change: dict[str, object], words: str) -> None:
    failed = replace(outcome(), **change)  # type: ignore[arg-type]
    assert any(words in problem for problem in problems(failed))
    assert exit_status(failed) == 1
    assert json.loads(json_line(failed))["ok"] is False


def test_percentiles_are_values_that_were_measured() -> None:
    found = percentiles(float(n) for n in range(1, 101))
    assert found is not None
    assert (found.count, found.p50_ms, found.p90_ms, found.p99_ms, found.max_ms) == (100, 50, 90, 99, 100)
    assert percentiles([]) is None
    one = percentiles([7.0])
    assert one is not None
    assert one.p50_ms == one.p99_ms == 7.0


def test_gaps_of_both_members_stand_apart() -> None:
    gaps = gaps_by_kind(FAULTS)
    assert set(gaps) == {"kill", "kill both"}
    assert gaps["kill"].max_ms == 300.0
    figures = json.loads(json_line(outcome()))
    assert figures["gap_one_member"]["count"] == 2
    assert figures["gap_both_members"]["max_ms"] == 900.0
    assert figures["faults_hit"] == 4
    assert figures["messages_per_s"] == 5


def test_the_last_line_is_one_json_object() -> None:
    line = json_line(outcome())
    assert "\n" not in line
    assert json.loads(line)["lost"] == json.loads(line)["reordered"] == 0


@pytest.mark.parametrize("good", [True, False])
def test_the_report_is_printed(good: bool) -> None:
    text = io.StringIO()
    said = replace(outcome(), check=checked(lose=not good), differences=() if good else ("N1: [x] differs",))
    print_report(Console(file=text, width=80, color_system=None), said)
    assert "gap: kill both" in text.getvalue()
    assert ("OK nothing lost" in text.getvalue()) is good
    assert ("SEED=42" in text.getvalue()) is not good
    assert ("N1: [x] differs" in text.getvalue()) is not good
    assert "longest silence  950 ms" in text.getvalue()
    text = io.StringIO()
    print_report(Console(file=text, width=100, color_system=None), replace(said, hits_planned=6))
    assert "at least 4 (6 on a faster machine)" in text.getvalue()


def test_the_report_fits_on_a_screen() -> None:
    kinds = ("cut", "freeze", "kill", "stop", "hang")
    faults = [
        DemoFault(kind, "alpha", "master", 2.0, 4.0, True, 1_046.0, both_members=both)
        for kind in kinds for both in (False, True)
    ]  # fmt: skip
    text = io.StringIO()
    said = replace(outcome(), event_count=1_264_226, faults=faults)
    print_report(Console(file=text, width=80, color_system=None), said)
    lines = text.getvalue().splitlines()
    assert len(lines) <= 22, "the line of the picture and the JSON line come below it"
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in text.getvalue()


def test_the_picture_is_well_formed_and_complete(tmp_path: Path) -> None:
    rates = [RateSample(n / 2, 1000.0 + n) for n in range(20)]
    path = tmp_path / "demo.svg"
    write(path, SEGMENTS, FAULTS, rates, duration_s=10.0, title="Demo <1>", subtitle="all & sundry")
    svg = ET.fromstring(path.read_text())
    texts = [element.text for element in svg.iter() if element.tag.endswith("}text")]
    for words in ("Demo <1>", "alpha", "beta", "gamma <&>", "unsettled", "lost", "kill both", "partition 1", "10 s"):
        assert words in texts
    titles = [element.text or "" for element in svg.iter() if element.tag.endswith("}title")]
    assert sum(title.startswith("segment ") for title in titles) == len(SEGMENTS)
    assert sum("gap" in title for title in titles) == 3
    assert path.read_text() == draw(SEGMENTS, FAULTS, rates, duration_s=10.0, title="Demo <1>", subtitle="all & sundry")


def test_the_rest_at_full_speed_does_not_hide_a_gap() -> None:
    rates = [RateSample(n / 10, 0.0 if n in (40, 41) else 10_000.0) for n in range(90)] + [RateSample(9.0, 270_000.0)]
    svg = ET.fromstring(draw(SEGMENTS, FAULTS, rates, duration_s=10.0, title="Demo"))
    (line,) = [element for element in svg.iter() if element.tag.endswith("}polyline")]
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert heights[40] - heights[39] > 30, "the gap is a third of the panel"
    assert min(heights) == heights[-1], "the peak is cut off at the top"
    texts = [element.text for element in svg.iter() if element.tag.endswith("}text")]
    assert "25k/s (at most 270k/s)" in texts


def test_each_silence_is_a_notch_in_the_row_of_its_partition() -> None:
    silences = [Silence(0, 2.0, 2.15), Silence(1, 6.0, 7.0), Silence(7, 1.0, 2.0)]
    svg = ET.fromstring(draw(SEGMENTS, FAULTS, [], silences, duration_s=10.0, title="Demo"))
    titles = [element.text for element in svg.iter() if element.tag.endswith("}title")]
    assert [title for title in titles if title and "nothing acknowledged" in title] == [
        "nothing acknowledged for 150 ms", "nothing acknowledged for 1,000 ms",
    ]  # fmt: skip
    assert "nothing acknowledged" in [element.text for element in svg.iter() if element.tag.endswith("}text")]


def test_the_rate_has_a_sample_for_each_tenth_of_a_second() -> None:
    samples = rate_samples({0: 50, 1: 40, 4: 60}, 0.5)
    assert [sample.messages_per_s for sample in samples] == pytest.approx([500, 400, 0, 0, 600])
    assert [sample.at_s for sample in samples] == pytest.approx([0.05, 0.15, 0.25, 0.35, 0.45])
    long = rate_samples({0: 50, 3999: 40}, 400.0)
    assert len(long) == 1000
    assert (long[0].messages_per_s, long[-1].messages_per_s) == pytest.approx((125.0, 100.0))


def test_a_picture_of_nothing() -> None:
    assert ET.fromstring(draw([], [], [], duration_s=0.3, title="Nothing")) is not None
