"""The history of a run, retold by aircraft, is judged as one partition for each aircraft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from seriatim.history import HistoryWriter, Report, check_events

from e2e.demo_orders.by_key import retell

KEYS = [0, 1, 0, 1, 0]
PLACES = ["1:0", "1:1", "1:2", "1:3", "1:4"]


def judged(path: Path, deliveries: Sequence[tuple[int, str, int]], dead: Mapping[int, str] | None = None) -> Report:
    """Five events of two aircraft are sent, and delivered as said: (number, place, attempt)."""
    with HistoryWriter(path, "test") as history:
        history.sends(range(5), producer="p", topic="t", partition=2, sequence=0)
        history.outcomes(range(5), "ok", offset="1:0")
        for number, place, attempt in deliveries:
            history.deliveries([number], group="g", consumer="c", topic="t", partition=2, offset=place, attempt=attempt)
        history.end("g", topic="t")
    return check_events(retell([path], KEYS, dead or {}), groups=["g"])


def in_order(*numbers: int) -> list[tuple[int, str, int]]:
    return [(number, PLACES[number], 1) for number in numbers]


def test_aircraft_may_overtake_each_other(tmp_path: Path) -> None:
    report = judged(tmp_path / "h.jsonl", in_order(1, 3, 0, 2, 4))
    assert report.ok
    assert report.counts["sent"] == report.counts["delivered"] == 5


@pytest.mark.parametrize(
    ("deliveries", "kind"),
    [
        (in_order(0, 4, 1, 3, 2), "reordered"),
        (in_order(0, 1, 2, 3), "lost"),
        (in_order(0, 1, 2, 3, 3, 4), "repeated"),
        ([*in_order(0, 1, 2, 3), (4, "1:9", 1)], "misplaced"),
    ],
)
def test_what_breaks_the_promise_of_an_aircraft_is_found(
    tmp_path: Path, deliveries: list[tuple[int, str, int]], kind: str
) -> None:
    assert judged(tmp_path / "h.jsonl", deliveries).counts[kind] == 1


def test_a_failed_attempt_comes_again(tmp_path: Path) -> None:
    assert judged(tmp_path / "h.jsonl", [*in_order(0, 1, 2), (2, "1:2", 2), *in_order(3, 4)]).ok


def test_a_dead_letter_counts_when_its_copy_comes(tmp_path: Path) -> None:
    deliveries = [*in_order(0, 1, 2, 3, 4), (4, "1:7", 1)]
    assert judged(tmp_path / "h.jsonl", deliveries, {4: "1:4"}).ok
    assert judged(tmp_path / "i.jsonl", in_order(0, 1, 2, 3, 4), {4: "1:4"}).counts["lost"] == 1
    overtaken = judged(tmp_path / "j.jsonl", [*in_order(0, 1, 2, 3, 4), (2, "1:7", 1)], {2: "1:2"})
    assert overtaken.counts["reordered"] == 1, "what went on without it came first"


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    judged(path, in_order(0, 1, 2, 3, 4))
    with path.open("a") as file:
        file.write('{"k":"deliver","at":')
    assert check_events(retell([path], KEYS, {}), groups=["g"]).ok
