"""The demo's verdict and its report, from made-up records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from seriatim.history import check_events

from e2e.demo.histories import HistoriesOutcome, rate_samples, tell
from e2e.demo.report import DemoFault, percentiles
from e2e.demo.segments import SegmentSpan
from e2e.tests.reports import checked, printed

FAULTS = (
    DemoFault("kill", "alpha-0", "master", 2.0, 4.0, True, 100.0),
    DemoFault("kill", "beta-0", "master", 5.0, 6.0, True, 300.0),
    DemoFault("kill both", "alpha", "master", 6.0, 9.0, True, 900.0),
    DemoFault("freeze", "gamma-1", "none", 7.0, None, False, None),
    DemoFault("cut", "alpha-0 → alpha-1", "server", 8.0, 8.5, True, None),
)


def outcome() -> HistoriesOutcome:
    return HistoriesOutcome(
        check=checked(), event_count=50, duration_s=10.0, drained_s=11.0, differences=(), digest="abc", faults=FAULTS,
        segments=[SegmentSpan(0, 1, "alpha", "OPEN", -0.5, None, 1000)], seed=42, quick=True, hits_min=4,
        hits_planned=4, longest_silence_s=0.95, kinds_wanted=("kill", "kill both", "cut"),
    )  # fmt: skip


def test_a_good_run(tmp_path: Path) -> None:
    status, report, figures = printed(tell(outcome()), tmp_path)
    assert status == 0
    assert "OK nothing lost" in report
    assert "gap: kill both" in report
    assert "longest silence  950 ms" in report
    assert figures["ok"]
    assert figures["lost"] == figures["reordered"] == 0
    assert figures["gap_one_member"] == {"count": 2, "p50_ms": 100.0, "p90_ms": 300.0, "p99_ms": 300.0, "max_ms": 300.0}
    assert (figures["faults_hit"], figures["messages_per_s"]) == (4, 5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"check": checked(lose=True)}, "1 lost"),
        ({"event_count": 51}, "50 of 51 events"),
        ({"differences": ["N1: [x] differs"]}, "histories"),
        ({"hits_min": 5}, "only 4 of at least 5"),
        ({"kinds_wanted": ("freeze",)}, "no fault hit of kind freeze"),
        ({"check": check_events([])}, "no consumer group"),
    ],
)
def test_every_shortcoming_fails_the_run(change: dict[str, object], words: str, tmp_path: Path) -> None:
    failed = replace(outcome(), **change)  # type: ignore[arg-type]
    assert any(words in problem for problem in failed.problems())
    status, report, figures = printed(tell(failed), tmp_path)
    assert status == 1
    assert figures["ok"] is False
    assert "SEED=42" in report
    assert all(text in report for text in failed.differences)


def test_the_report_fits_on_a_screen(tmp_path: Path) -> None:
    kinds = ("cut", "freeze", "kill", "stop", "hang")
    faults = [
        DemoFault(kind + both, "alpha", "master", 2.0, 4.0, True, 1_046.0) for kind in kinds for both in ("", " both")
    ]  # fmt: skip
    _, report, _ = printed(tell(replace(outcome(), event_count=1_264_226, faults=faults, hits_planned=6)), tmp_path)
    assert len(report.splitlines()) <= 23, "the last line comes below it"
    assert "…" not in report
    assert "at least 4 (6 if faster)" in report


def test_percentiles_are_values_that_were_measured() -> None:
    wanted = {"count": 100, "p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "max_ms": 100.0}
    assert percentiles(float(n) for n in range(1, 101)) == wanted
    assert percentiles([]) is None


def test_the_rate_has_a_sample_for_each_tenth_of_a_second() -> None:
    at, values = zip(*rate_samples({0: 50, 1: 40, 4: 60}, 0.5), strict=True)
    assert values == pytest.approx([500, 400, 0, 0, 600])
    assert at == pytest.approx([0.05, 0.15, 0.25, 0.35, 0.45])
    assert len(rate_samples({0: 50, 3999: 40}, 400.0)) == 1000
