"""The report, the live view and the picture of the demo of orders, from made-up records."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console
from seriatim.history import MemoryHistory, Report, check_events

from e2e.demo.report import DemoFault
from e2e.demo.view import View
from e2e.demo_orders.delivery_attempts import DeliveryAttempt
from e2e.demo_orders.delivery_attempts import Outcome as AttemptOutcome
from e2e.demo_orders.judging import DeadLettered, Judgement, Parked
from e2e.demo_orders.live import Scene, draw, progress_line
from e2e.demo_orders.picture import LANES_MAX, Story, sample
from e2e.demo_orders.picture import draw as draw_picture
from e2e.demo_orders.report import Outcome, exit_status, json_line, print_report, problems

FAULTS = (
    DemoFault("kill", "g0-0", "master", 2.0, 3.0, True, 120.0),
    DemoFault("kill", "g1", "master", 5.0, 6.0, True, 900.0, both_members=True),
    DemoFault("freeze", "g2-1", "server", 6.0, None, True, 560.0),
    DemoFault("kill consumers", "c05 to c08", "consumer", 4.0, 5.5, True, None),
    DemoFault("freeze consumers", "c01 to c04", "consumer", 7.0, None, True, None),
)
PARKED = Parked("N14228", attempts=5, waiting=6, parked_at=102.0, released_at=106.0)
DEAD = DeadLettered("N35271", letters=(1, 2), begun_at=106.0, replayed_at=109.0)


def checked(*, lose: bool = False) -> Report:
    history = MemoryHistory("test")
    history.sends(range(50), producer="p", topic="t", partition=0, sequence=0)
    history.outcomes(range(50), "ok", offset="1:0")
    history.deliveries(range(49 if lose else 50), group="g", consumer="c", topic="t", partition=0, offset="1:0")
    history.end()
    return check_events(history.events)


JUDGEMENT = Judgement(
    taken=50, repeats=4, unflagged=0, refused=1, attempts=60, failed=7, cut_off=2, aircraft=12, differences=(),
    digest="abc", take_overs_s=(0.2, 0.4), others_meanwhile=20, problems=(),
)  # fmt: skip


def outcome() -> Outcome:
    return Outcome(
        check=checked(), judgement=JUDGEMENT, event_count=50, duration_s=10.0, partition_count=3, consumer_count=16,
        process_count=4, process_starts=5, faults=FAULTS, parked=PARKED, dead=DEAD, seed=42, quick=True, faults_min=5,
        kinds_wanted=("kill", "kill both", "freeze", "kill consumers", "freeze consumers"),
    )  # fmt: skip


def test_a_good_run() -> None:
    assert problems(outcome()) == []
    assert exit_status(outcome()) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"check": checked(lose=True)}, "1 lost"),
        ({"event_count": 51}, "50 of 51 events"),
        ({"judgement": replace(JUDGEMENT, taken=49)}, "took 49 events of 50"),
        ({"judgement": replace(JUDGEMENT, differences=("N1",))}, "histories"),
        ({"judgement": replace(JUDGEMENT, problems=("all is bad",))}, "all is bad"),
        ({"parked": None}, "no aircraft was parked"),
        ({"dead": None}, "no message was dead-lettered"),
        ({"faults_min": 6}, "only 5 of at least 6"),
        ({"kinds_wanted": ("stop",)}, "no fault hit of kind stop"),
    ],
)
def test_every_shortcoming_fails_the_run(change: dict[str, object], words: str) -> None:
    failed = replace(outcome(), **change)  # type: ignore[arg-type]
    assert any(words in problem for problem in problems(failed))
    assert exit_status(failed) == 1
    assert json.loads(json_line(failed))["ok"] is False


def printed(said: Outcome) -> list[str]:
    text = io.StringIO()
    print_report(Console(file=text, width=80, color_system=None), said)
    return text.getvalue().splitlines()


def test_the_report_fits_on_a_screen() -> None:
    grown = replace(
        JUDGEMENT, taken=1_264_226, attempts=1_303_117, failed=38_112, cut_off=1_312, repeats=12_345, aircraft=4_917,
        take_overs_s=(1.2,) * 1_200, others_meanwhile=123_456,
    )  # fmt: skip
    assert "…" not in "".join(printed(replace(outcome(), event_count=1_264_226, judgement=grown, process_starts=24)))
    lines = printed(outcome())
    assert len(lines) <= 22, "the line of the picture and the JSON line come below it"
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert "…" not in text
    for words in ("N14228 parked", "N35271 given up", "keys taken over", "gap: kill both", "OK"):
        assert words in text
    assert "SEED=42" in "\n".join(printed(replace(outcome(), faults_min=6)))


def test_the_last_line_is_one_json_object() -> None:
    line = json_line(outcome())
    assert "\n" not in line
    figures = json.loads(line)
    assert figures["take_over"]["max_ms"] == 400.0
    assert figures["parked"] == {
        "key": "N14228", "attempts": 5, "waiting": 6, "seconds": 4.0, "others_meanwhile": 20,
    }  # fmt: skip
    assert figures["messages_per_s"] == 5


SCENE = Scene(
    title="Seriatim", total=1000, faults_min=7, at_s=10.0, sent=700, acknowledged=600,
    finished={f"c{number:02}": 30 + number for number in range(1, 17)}, rates=[20, 40, 60, 80] * 5,
    faults=list(FAULTS), aircraft={"N14228": "is parked", "N35271": "2 dead letters"}, doing="kill g0-0 (master)",
)  # fmt: skip


@pytest.mark.parametrize("width", [40, 80, 120])
def test_everything_is_on_the_screen(width: int) -> None:
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(draw(SCENE, width, 24))
    lines = text.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    if width == 80:
        assert len(lines) <= 24
        for words in ("c16", "N14228 is parked", "faults: 5 of 7 hit", "kill g0-0 (master)"):
            assert words in text.getvalue(), words


def test_lines_for_where_there_is_no_terminal() -> None:
    assert "N14228 is parked" in progress_line(SCENE)
    assert "of 1,000 finished" in progress_line(SCENE)


def test_the_last_line_is_how_it_was_at_the_end() -> None:
    text = io.StringIO()
    with View(Console(file=text, width=200), draw, progress_line) as view:
        view.scene(Scene("Seriatim", total=100, faults_min=1, finished={"c01": 99}))
        view.scene(Scene("Seriatim", total=100, faults_min=1, finished={"c01": 100}))
    assert "  100 of 100 finished" in text.getvalue().splitlines()[-1]
    with suppress(OSError), View(Console(file=text, width=200), draw, progress_line) as view:
        view.scene(Scene("Seriatim", total=100, faults_min=1, finished={"c01": 50}))
        before = text.getvalue()
        raise OSError
    assert text.getvalue() == before, "a run that failed says so itself"


def test_the_scene_counts_what_is_finished_in_steps() -> None:
    scene = Scene("Seriatim", total=100, faults_min=1)
    scene.count({"c01": 3})
    scene.at_s = 1.2
    scene.count({"c01": 5, "c02": 4})
    assert scene.rates == [3, 0, 6]
    assert scene.finished_count == 9


def attempts() -> list[DeliveryAttempt]:
    found = []
    outcomes: list[AttemptOutcome] = ["done", "raised", "cut off", "overtaken", "gave up", "repeat"]
    for number in range(120):
        key = f"N{number % 20}" if number % 5 else ("N14228" if number % 2 else "N35271")
        kind = outcomes[number % 6] if number % 4 == 0 else "done"
        begun = 100.0 + number * 0.08
        found.append(
            DeliveryAttempt(key, number, 0, number, 1, False, 5, f"c{number % 4 + 1:02}", begun, begun + 0.01, kind)
        )
    return found


def story() -> Story:
    return Story(attempts(), [["c01", "c02"], ["c03", "c04"]], FAULTS, PARKED, DEAD, 100.0, 10.0)


def test_the_picture_is_well_formed_and_complete() -> None:
    text = draw_picture(story(), title="Attempts <1>", subtitle="all & sundry")
    svg = ET.fromstring(text)
    texts = [element.text for element in svg.iter() if element.tag.endswith("}text")]
    for words in ("Attempts <1>", "process 2", "N14228", "N35271", "kill consumers", "parked", "overtaken", "10 s"):
        assert words in texts, words
    titles = [element.text or "" for element in svg.iter() if element.tag.endswith("}title")]
    assert any(title.startswith("parked, 6 messages") for title in titles)
    assert any("attempt 1" in title for title in titles)
    assert text == draw_picture(story(), title="Attempts <1>", subtitle="all & sundry")


def test_the_sample_begins_with_the_aircraft_that_failed() -> None:
    keys = sample(story())
    assert keys[:2] == ["N14228", "N35271"]
    assert len(keys) == len(set(keys)) == LANES_MAX


def test_a_picture_of_nothing() -> None:
    empty = Story([], [["c01"]], (), None, None, 0.0, 0.3)
    assert ET.fromstring(draw_picture(empty, title="Nothing")) is not None
