"""The report, the live view and the picture of the demo of orders, from made-up records."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from e2e.demo.live import draw, progress_line
from e2e.demo.report import DemoFault
from e2e.demo_orders.delivery_attempts import DeliveryAttempt
from e2e.demo_orders.delivery_attempts import Outcome as AttemptOutcome
from e2e.demo_orders.judging import DeadLettered, Judgement, Parked
from e2e.demo_orders.orders import OrderScene, OrdersOutcome, tell
from e2e.demo_orders.picture import LANES_MAX, Story, sample
from e2e.demo_orders.picture import draw as draw_picture
from e2e.demo_orders.settings import read_settings
from e2e.tests.reports import checked, printed

FAULTS = (
    DemoFault("kill", "g0-0", "master", 2.0, 3.0, True, 120.0),
    DemoFault("kill both", "g1", "master", 5.0, 6.0, True, 900.0),
    DemoFault("freeze", "g2-1", "server", 6.0, None, True, 560.0),
    DemoFault("kill consumers", "c05 to c08", "consumer", 4.0, 5.5, True, None),
    DemoFault("freeze consumers", "c01 to c04", "consumer", 7.0),
)
PARKED = Parked("N14228", attempts=5, waiting=6, parked_at=102.0, released_at=106.0)
DEAD = DeadLettered("N35271", letters=(1, 2), begun_at=106.0, replayed_at=109.0)


JUDGEMENT = Judgement(
    taken=50, repeats=4, unflagged=0, refused=1, attempts=60, failed=7, cut_off=2, aircraft=12, differences=(),
    digest="abc", take_overs_s=(0.2, 0.4), others_meanwhile=20, problems=(),
)  # fmt: skip


def outcome() -> OrdersOutcome:
    return OrdersOutcome(
        check=checked(), judgement=JUDGEMENT, event_count=50, duration_s=10.0, differences=(), digest="abc",
        settings=read_settings({"QUICK": "1", "SEED": "42"}), process_starts=5, faults=FAULTS, parked=PARKED, dead=DEAD,
        seed=42, quick=True, hits_min=5,
        kinds_wanted=("kill", "kill both", "freeze", "kill consumers", "freeze consumers"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"check": checked(lose=True)}, "1 lost"),
        ({"event_count": 51}, "50 of 51 events"),
        ({"judgement": replace(JUDGEMENT, taken=49)}, "took 49 events of 50"),
        ({"differences": ("N1",)}, "histories"),
        ({"judgement": replace(JUDGEMENT, problems=("all is bad",))}, "all is bad"),
        ({"parked": None}, "no aircraft was parked"),
        ({"dead": None}, "no message was dead-lettered"),
        ({"hits_min": 6}, "only 5 of at least 6"),
        ({"kinds_wanted": ("stop",)}, "no fault hit of kind stop"),
    ],
)
def test_every_shortcoming_fails_the_run(change: dict[str, object], words: str, tmp_path: Path) -> None:
    failed = replace(outcome(), **change)  # type: ignore[arg-type]
    assert any(words in problem for problem in failed.problems())
    status, report, figures = printed(tell(failed), tmp_path)
    assert (status, figures["ok"]) == (1, False)
    assert "SEED=42" in report


def test_a_good_run_is_told_on_a_screen(tmp_path: Path) -> None:
    grown = replace(
        JUDGEMENT, taken=1_264_226, attempts=1_303_117, failed=38_112, cut_off=1_312, repeats=12_345, aircraft=4_917,
        take_overs_s=(1.2,) * 1_200, others_meanwhile=123_456,
    )  # fmt: skip
    _, report, _ = printed(
        tell(replace(outcome(), event_count=1_264_226, judgement=grown, process_starts=24)), tmp_path
    )
    assert "…" not in report
    status, report, figures = printed(tell(outcome()), tmp_path)
    assert status == 0
    assert len(report.splitlines()) <= 23, "the last line comes below it"
    for words in ("N14228 parked", "N35271 given up", "keys taken over", "gap: kill both", "OK"):
        assert words in report
    assert figures["take_over"] == {"count": 2, "p50_ms": 200.0, "p90_ms": 400.0, "p99_ms": 400.0, "max_ms": 400.0}
    assert figures["parked"] == {
        "key": "N14228", "attempts": 5, "waiting": 6, "seconds": 4.0, "others_meanwhile": 20,
    }  # fmt: skip


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_screen(width: int) -> None:
    finished = {f"c{number:02}": 30 + number for number in range(1, 17)}
    scene = OrderScene(
        hits_min=7, total=1000, at_s=10.0, sent=700, acknowledged=600, finished=finished, rates=[20, 40, 60, 80] * 5,
        faults=FAULTS, aircraft={"N14228": "is parked", "N35271": "2 dead letters"}, doing="kill g0-0 (master)",
    )  # fmt: skip
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(draw(scene, width, 24))
    lines = text.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    if width == 80:
        assert len(lines) <= 24
        for words in ("c16", "N14228 is parked", "faults: 5 of 7 hit", "kill g0-0 (master)"):
            assert words in text.getvalue(), words
    assert "N14228 is parked" in progress_line(scene)
    assert "616 of 1,000 finished" in progress_line(scene)


def test_the_scene_counts_what_is_finished_in_steps() -> None:
    scene = OrderScene(total=100, hits_min=1)
    scene.take({"c01": 3})
    scene.at_s = 1.2
    scene.take({"c01": 5, "c02": 4})
    assert scene.rates == [3, 0, 6]
    assert scene.done == 9


def story() -> Story:
    outcomes: list[AttemptOutcome] = ["done", "raised", "cut off", "overtaken", "gave up", "repeat"]
    attempts = []
    for number in range(120):
        key = f"N{number % 20}" if number % 5 else ("N14228" if number % 2 else "N35271")
        kind = outcomes[number % 6] if number % 4 == 0 else "done"
        begun = 100.0 + number * 0.08
        attempts.append(DeliveryAttempt(key, number, 1, False, 5, f"c{number % 4 + 1:02}", begun, begun + 0.01, kind))
    return Story(attempts, [["c01", "c02"], ["c03", "c04"]], FAULTS, PARKED, DEAD, 100.0, 10.0)


def test_the_picture(tmp_path: Path) -> None:
    file = tmp_path / "attempts.svg"
    draw_picture(file, story(), "all & <sundry>")
    texts = [element.text or "" for element in ET.fromstring(file.read_text()).iter()]
    for words in ("all & <sundry>", "process 2", "N14228", "N35271", "kill consumers", "overtaken", "10 s"):
        assert words in texts, words
    assert any(text.startswith("parked, 6 messages") for text in texts)
    draw_picture(file, Story([], [["c01"]], (), None, None, 0.0, 0.3), "")


def test_the_sample_begins_with_the_aircraft_that_failed() -> None:
    keys = sample(story())
    assert keys[:2] == ["N14228", "N35271"]
    assert len(keys) == len(set(keys)) == LANES_MAX
