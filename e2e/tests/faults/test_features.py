"""Features beside the load of a case: what is drawn, and the judgement of what clients saw."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim.history import HistoryWriter
from seriatim_api.errors import UnknownTopicError
from seriatim_api.ids import make_offset

from e2e.faults.case import _judged
from e2e.faults.report import COUNTS, CaseResult, features
from e2e.faults.traffic.client import value_of
from e2e.faults.traffic.features import (
    ACTS,
    BY_KEY,
    DECLARED_LOSS,
    FEATURES,
    FIRST,
    GROUPS,
    IN_ORDER,
    PUBLISHED,
    ROWS,
    Features,
    draw,
    wrong_range,
)

TOPIC = "case-3-features"


def place(index: int) -> int:
    return make_offset(1, index)


def read(*indexes: int) -> list[tuple[int, int]]:
    """What a range read gives: the message at index i has number FIRST + i."""
    return [(place(index), FIRST + index) for index in indexes]


ACKNOWLEDGED = {FIRST + index: place(index) for index in range(4)}


def person(tmp_path: Path) -> Features:
    """An administrator with ten acknowledged messages, all of which came to all groups."""
    made = Features(("nowhere:1",), 3, random.Random(2), tmp_path / "features")
    made.has_gaps = False
    made._acknowledged = {0: {FIRST + index: place(index) for index in range(10)}}
    for seen in made._seen.values():
        seen.update(range(FIRST, FIRST + 10))
    return made


def test_each_feature_is_drawn_and_none_twice_in_a_case() -> None:
    cases = [[act.feature for act in draw(random.Random(f"features {seed}"))] for seed in range(60)]
    assert {feature for case in cases for feature in case} == set(FEATURES)
    assert all(ACTS[0] <= len(case) <= ACTS[1] and len(set(case)) == len(case) for case in cases)
    assert draw(random.Random(5)) == draw(random.Random(5))


def test_a_range_with_all_messages_in_order_is_right() -> None:
    row = (place(9), PUBLISHED + 1)
    assert wrong_range([*read(0, 1, 2, 3), row, (place(10), FIRST + 10)], ACKNOWLEDGED, []) == ""


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (read(0, 1, 3), "lacks 1 acknowledged"),
        (read(0, 1, 2, 3, 3), "1 messages twice"),
        (read(0, 2, 1, 3), "another order"),
        ([*read(0, 1, 2, 3), (place(5), PUBLISHED + 1), (place(6), PUBLISHED)], "another order"),
        ([*read(0, 1, 2, 3), (place(1), FIRST + 9)], "do not grow"),
    ],
)
def test_a_wrong_range_is_found(found: list[tuple[int, int]], said: str) -> None:
    assert said in wrong_range(found, ACKNOWLEDGED, [])


def test_a_range_may_lack_only_what_it_says_is_gone() -> None:
    assert wrong_range(read(2, 3), ACKNOWLEDGED, [(place(0), place(2))]) == ""
    assert "lacks 1 acknowledged" in wrong_range(read(2, 3), ACKNOWLEDGED, [(place(0), place(1))])


def test_a_message_that_does_not_come_after_a_rewind_is_found(tmp_path: Path) -> None:
    made = person(tmp_path)
    made._seen[BY_KEY].remove(FIRST)
    for group in GROUPS:
        made._judge_seen(group)
    (said,) = made.problems
    assert said.startswith(f"1 messages did not come to {BY_KEY}")


def test_what_was_skipped_need_not_come(tmp_path: Path) -> None:
    made = person(tmp_path)
    made._seen[IN_ORDER] -= set(range(FIRST, FIRST + 5))
    made._skipped[IN_ORDER] = FIRST + 5
    made._judge_seen(IN_ORDER)
    assert made.problems == []


@pytest.mark.parametrize(
    ("is_flagged", "group", "forgets", "said"),
    [
        (False, IN_ORDER, False, ["without a flag, after its mode had changed"]),
        (True, IN_ORDER, False, []),
        (False, BY_KEY, False, []),
        (False, IN_ORDER, True, []),
    ],
)
def test_a_repeat_after_a_change_of_mode_has_a_flag(
    tmp_path: Path, is_flagged: bool, group: str, forgets: bool, said: list[str]
) -> None:
    made = Features(("nowhere:1",), 3, random.Random(2), tmp_path / "features", forgets=forgets)
    made._given = {FIRST, FIRST + 1}
    for number in (FIRST + 2, FIRST + 1, FIRST):
        value = value_of(number, TOPIC, 60)
        made._take(group, cast(Any, SimpleNamespace(value=value, maybe_repeated=is_flagged and number in made._given)))
    assert made._seen[group] == {FIRST, FIRST + 1, FIRST + 2}
    assert len(made.problems) == len(said)
    assert all(words in problem for words, problem in zip(said, made.problems, strict=True))


class Lost:
    """An admin of a topic whose segment 1 was on two brokers, and of its dead-letter topic, which is away."""

    def __init__(self, *states: str) -> None:
        self.states = dict(enumerate(states, 1))
        self.declared: list[tuple[str, int, int]] = []

    async def describe_topic(self, name: str) -> Any:
        if name != TOPIC:
            raise UnknownTopicError(f"no topic {name}")
        members = {1: ("g0-0", "g0-1"), 2: ("g0-0", "g0-1"), 3: ("g1-0", "g1-1")}
        segments = [SimpleNamespace(no=no, state=state, members=members[no]) for no, state in self.states.items()]
        return SimpleNamespace(chains=[SimpleNamespace(partition=0, segments=segments)])

    async def declare_gap(self, topic: str, partition: int, segment: int, _issuer: str) -> None:
        self.declared.append((topic, partition, segment))


async def test_what_only_lost_disks_had_is_declared(tmp_path: Path) -> None:
    made = Features(("nowhere:1",), 3, random.Random(2), tmp_path / "features", loses=True)
    assert made.has_gaps
    admin = Lost("LOST", "UNSETTLED", "OPEN")
    made._client = cast(Any, SimpleNamespace(admin=lambda: admin))
    await made.declare_lost(("g0-0", "g0-1"), "test")
    assert admin.declared == [(TOPIC, 0, 2)]
    assert made.done == [DECLARED_LOSS]
    admin.states[2] = "OPEN"
    assert "still open" in await made._declare_lost(("g0-0", "g0-1"), "test")


def test_a_published_row_that_does_not_come_is_found(tmp_path: Path) -> None:
    made = person(tmp_path)
    made._is_published = True
    made._seen[IN_ORDER].update(range(PUBLISHED, PUBLISHED + ROWS - 1))
    made._judge_seen(IN_ORDER)
    (said,) = made.problems
    assert f"the first is {PUBLISHED + ROWS - 1}" in said


def written(directory: Path, *, without: int) -> None:
    """A history in which message 3 is not delivered if `without` is 3."""
    directory.mkdir()
    with HistoryWriter(directory / "features.jsonl", "features") as history:
        for number in range(5):
            history.send(number, topic=TOPIC, partition=0, producer="p", sequence=number)
            history.outcome(number, "ok", offset=place(number))
        for number in range(5):
            if number != without:
                history.deliver(number, group=IN_ORDER, consumer="c", topic=TOPIC, partition=0, offset=place(number))
        history.end(IN_ORDER, topic=TOPIC)


@pytest.mark.parametrize(("without", "lost"), [(-1, 0), (3, 1)])
async def test_the_history_of_the_person_is_judged(tmp_path: Path, without: int, lost: int) -> None:
    made = Features(("nowhere:1",), 3, random.Random(2), tmp_path / "features")
    made.done = ["growth", "rewind"]
    written(tmp_path / "features", without=without)
    made._history = cast(Any, object())
    fields: dict[str, Any] = dict.fromkeys(COUNTS, 0)
    problems = await _judged(made, cast(Any, SimpleNamespace(note=print)), fields)
    assert fields["lost"] == lost
    assert problems == ["beside features: 1 lost"] * lost
    assert fields["features"] == ("growth", "rewind")


def test_the_summary_counts_cases_by_feature() -> None:
    results = [
        CaseResult(number, "kill master", "keys", 0, 1, features=used)
        for number, used in enumerate((("growth", "skip"), (), ("growth",)))
    ]
    assert features(results) == {"growth": 2, "skip": 1}
