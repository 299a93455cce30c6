"""The judgement, the report and the picture of the demo of delayed messages, from made-up arrivals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from seriatim import CancelOutcome

from e2e.demo.report import DemoFault
from e2e.demo_delayed.fates import Fates
from e2e.demo_delayed.picture import draw
from e2e.lateness import Arrival, Arrivals, value_of
from e2e.tests.reports import printed

DUE_MS = dict.fromkeys(range(1, 11), 1_000)


def arrivals(*numbers: int, late_s: float = 0.02) -> Arrivals:
    found = Arrivals()
    for number in (*numbers, 0):
        found.take(value_of(number), (0, number), 1.0 + late_s)
    return found


def fates() -> Fates:
    return Fates(
        sent_count=10, due_ms=DUE_MS, outcomes={3: CancelOutcome.CANCELLED, 4: CancelOutcome.TOO_LATE},
        arrivals=arrivals(1, 2, 4, 5, 6, 7, 8, 9, 10, 10), faults=(DemoFault("kill", "g0-0", "master", 2.0, 3.0),),
        cancelled_min=1, hits_min=1, seed=7, quick=True, duration_s=9.0,
    )  # fmt: skip


def twice() -> Arrivals:
    found = fates().arrivals
    found.take(value_of(1), (0, 99), 1.0)
    return found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arrivals": arrivals(1, 2, 4, 5, 6, 7, 8, 9)}, "1 of 9 acknowledged messages were not fired"),
        ({"arrivals": arrivals(*range(1, 11))}, "1 came although they were cancelled"),
        ({"arrivals": arrivals(1, 2, *range(4, 11), late_s=-0.2)}, "one came 200 ms before it was due"),
        ({"arrivals": twice()}, "1 were fired twice"),
        ({"outcomes": {3: CancelOutcome.CANCELLED, 5: CancelOutcome.NOT_FOUND}}, "1 were not found"),
        ({"cancelled_min": 2}, "only 1 of 2 messages were cancelled"),
        ({"sent_count": 11}, "only 10 of 11 messages were acknowledged"),
        ({"hits_min": 2}, "only 1 of 2 brokers"),
    ],
)
def test_each_broken_promise_ends_the_demo_with_status_1(change: dict[str, object], words: str, tmp_path: Path) -> None:
    status, report, _ = printed(replace(fates(), **change).told("picture.svg"), tmp_path)  # type: ignore[arg-type]
    assert (status, words in " ".join(report.split())) == (1, True), report


def test_a_run_without_problems_says_how_late_the_messages_were(tmp_path: Path) -> None:
    status, report, figures = printed(fates().told("picture.svg"), tmp_path)
    assert (status, figures["lost"], figures["fired"], figures["cancelled"]) == (0, 0, 9, 1), report
    assert figures["late"]["p50_ms"] == pytest.approx(20.0)  # type: ignore[index]


def test_the_picture_has_a_dot_for_each_lateness(tmp_path: Path) -> None:
    judged = fates()
    judged.arrivals.came[:] = [Arrival(n, 100.0 + n, 1.0 + n / 100) for n in range(1, 10)]
    draw(tmp_path / "a.svg", judged, begin=100.0)
    (dots,) = [found for found in ET.parse(tmp_path / "a.svg").iter() if found.get("stroke-width") == "2.4"]
    assert str(dots.get("d")).count("M") == 9
