"""What people did makes some promises void: the checker says what it cannot judge, and judges all else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from seriatim.history import KINDS, HistoryFormatError, MemoryHistory, Report, check_events


def sent(count: int = 4, topic: str = "orders") -> MemoryHistory:
    """A producer has sent messages 0, 1, 2, … to one partition, and all are acknowledged."""
    history = MemoryHistory("test")
    for number in range(count):
        history.send(number, producer="p", epoch=0, sequence=number, topic=topic, partition=0)
        history.outcome(number, "ok", offset=f"1:{number}")
    return history


def given(history: MemoryHistory, *numbers: int, first: int | None = None, group: str = "g") -> None:
    """A consumer is given these messages, one after another."""
    for place, number in enumerate(numbers):
        offset = f"1:{number if first is None else first + place}"
        history.deliver(number, group=group, consumer="c", topic="orders", partition=0, offset=offset)


def judged(history: MemoryHistory) -> Report:
    history.end(group=None, drained=True)
    return check_events(history.events)


def test_message_that_a_moved_group_never_got_is_lost() -> None:
    history = sent()
    history.person("move", group="g", topic="orders", partition=0, way="mode", done=True)
    history.send(4, producer="p", epoch=0, sequence=4, topic="orders", partition=0)
    history.outcome(4, "ok", offset="1:4")
    given(history, 0, 1, 2)
    assert judged(history).counts["lost"] == 1


def test_changed_mode_is_not_judged_and_other_groups_are() -> None:
    history = sent()
    given(history, 0, 1)
    history.deliver(
        1, group="g", consumer="c", topic="orders", partition=0, offset="1:1", key=b"k", token=7, group_epoch=2
    )
    given(history, 0, 2, 1, 3, group="other")
    report = judged(history)
    assert report.counts["reordered"] == 1
    assert {finding.group for finding in report.findings} == {"other"}
    assert [what.split(" (")[0] for what in report.unjudged] == ["group g, because its mode was changed"]


def test_deleted_group_is_not_judged() -> None:
    history = sent()
    given(history, 0, 1, 2, 3)
    history.person("delete", group="g", topic="orders", partition=0)
    given(history, 0, 1)
    report = judged(history)
    assert report.ok
    assert [what.split(" (")[0] for what in report.unjudged] == ["group g, because it was deleted"]


def test_topic_made_again_is_not_judged() -> None:
    history = sent()
    given(history, 0, 1, 2, 3)
    history.topic("delete", "orders")
    history.send(9, producer="p2", epoch=0, sequence=0, topic="orders", partition=0)
    history.outcome(9, "ok", offset="1:0")
    given(history, 9, first=0)
    report = judged(history)
    assert report.ok
    assert len(report.unjudged) == 1


@pytest.mark.parametrize("is_told", [False, True])
def test_published_rows_are_sent_by_no_producer(is_told: bool) -> None:
    history = sent()
    if is_told:
        history.topic("publish", "orders")
    given(history, 0, 1, 2, 3)
    given(history, 9, first=4)
    report = judged(history)
    assert report.counts["unsent"] == (0 if is_told else 1)
    assert len(report.unjudged) == is_told


WHERE = {"group": "g", "topic": "orders", "partition": 0}


def moved(history: MemoryHistory, way: str, first: int, end: int | None = None) -> None:
    """A person moves the group, and the answer comes."""
    place: dict[str, Any] = {"way": way, "offset": f"1:{first}", "end": None if end is None else f"1:{end}"}
    history.person("move", **WHERE, **place)
    history.person("move", done=True, **WHERE, **place)


def findings(history: MemoryHistory) -> dict[str, int]:
    report = judged(history)
    assert not report.unjudged
    return {kind: count for kind, count in report.counts.items() if kind in KINDS and count}


def test_rewind_gives_all_from_its_place_on_once_more() -> None:
    history = sent(6)
    given(history, 0, 1, 2, 3)
    moved(history, "rewind", 1)
    given(history, 1, 2, 3, 4)
    moved(history, "rewind", 2)
    given(history, 2, 3, 4, 5)
    assert findings(history) == {}


@pytest.mark.parametrize(
    ("again", "repeated"), [((0, 1, 2, 3), 1), ((1, 2, 3, 3), 1), ((1, 2, 1, 2, 3), 2), ((2, 3), 0)]
)
def test_rewind_explains_nothing_below_its_place_and_nothing_twice(again: tuple[int, ...], repeated: int) -> None:
    history = sent()
    given(history, 0, 1, 2, 3)
    moved(history, "rewind", 1)
    given(history, *again)
    assert findings(history).get("repeated", 0) == repeated


def test_rewind_explains_no_repeat_before_it() -> None:
    history = sent()
    given(history, 0, 1, 2, 2, 3)
    moved(history, "rewind", 0)
    given(history, 0, 1, 2, 3)
    assert findings(history) == {"repeated": 1}


def test_rewind_to_the_time_before_the_group_puts_messages_behind_in_their_order() -> None:
    history = sent(6)
    given(history, 4, 5)
    moved(history, "rewind", 0)
    given(history, 0, 1, 2, 3, 4, 5)
    assert findings(history) == {}
    history = sent(6)
    given(history, 4, 5)
    moved(history, "rewind", 0)
    given(history, 0, 2, 1, 3, 4, 5)
    assert findings(history).keys() == {"reordered_offset", "reordered_producer", "reordered_realtime"}


def test_order_before_a_rewind_is_judged() -> None:
    history = sent()
    given(history, 0, 2, 1, 3)
    moved(history, "rewind", 0)
    given(history, 0, 1, 2, 3)
    assert "reordered_offset" in findings(history)


@pytest.mark.parametrize("is_answered", [True, False])
def test_skip_passes_what_is_between_its_places(is_answered: bool) -> None:
    history = sent(6)
    given(history, 0, 1)
    moved(history, "skip", 2, 5)
    if not is_answered:
        history.events.pop()
    given(history, 5)
    assert findings(history) == {}


@pytest.mark.parametrize(("first", "end", "lost"), [(2, 4, 1), (3, 5, 1), (2, 5, 0)])
def test_skip_explains_no_loss_before_or_behind_it(first: int, end: int, lost: int) -> None:
    history = sent(6)
    given(history, 0, 1)
    moved(history, "skip", first, end)
    given(history, 5)
    assert findings(history).get("lost", 0) == lost


def test_rewind_explains_no_loss() -> None:
    history = sent()
    given(history, 0, 2, 3)
    moved(history, "rewind", 2)
    given(history, 2, 3)
    assert findings(history) == {"lost": 1}


def test_what_a_group_was_rewound_to_must_come_again() -> None:
    history = sent(5)
    given(history, 0, 1, 2, 3)
    moved(history, "rewind", 1)
    given(history, 1, 3, 4)
    report = judged(history)
    (finding,) = report.findings
    assert (finding.kind, report.counts["lost"]) == ("lost", 1)
    assert "message 2 at 1:2 did not come again to group g, rewound to 1:1" in finding.text


def _unanswered(history: MemoryHistory) -> None:
    moved(history, "rewind", 1)
    history.events.pop()


def _skipped_later(history: MemoryHistory) -> None:
    moved(history, "rewind", 1)
    moved(history, "skip", 1, 4)


def _gone(history: MemoryHistory) -> None:
    moved(history, "rewind", 1)
    history.gap(topic="orders", partition=0, first="1:1", end="1:4", group="g", why="dropped")


def _rewound_behind_it(history: MemoryHistory) -> None:
    moved(history, "rewind", 1)
    given(history, 1, 2, 3)
    moved(history, "rewind", 3)
    given(history, 3)


def _rewound_after_the_end(history: MemoryHistory) -> None:
    history.end(group=None, drained=True)
    moved(history, "rewind", 1)


def _mode_changed_later(history: MemoryHistory) -> None:
    moved(history, "rewind", 1)
    history.person("move", group="g", topic="orders", partition=0, way="mode", done=True)


@pytest.mark.parametrize(
    "happens",
    [_unanswered, _skipped_later, _gone, _rewound_behind_it, _rewound_after_the_end, _mode_changed_later],
)
def test_what_need_not_come_again_after_a_rewind(happens: Callable[[MemoryHistory], None]) -> None:
    history = sent()
    given(history, 0, 1, 2, 3)
    happens(history)
    if happens is not _rewound_after_the_end:
        history.end(group=None, drained=True)
    assert check_events(history.events).counts["lost"] == 0


def test_message_that_a_second_rewind_leads_to_must_come_again() -> None:
    history = sent()
    given(history, 0, 1, 2, 3)
    moved(history, "rewind", 1)
    given(history, 1, 2, 3)
    moved(history, "rewind", 2)
    given(history, 2)
    assert findings(history) == {"lost": 1}


def test_a_group_that_was_rewound_and_did_not_drain_is_stuck() -> None:
    history = sent()
    given(history, 0, 1, 2, 3)
    moved(history, "rewind", 2)
    given(history, 2)
    history.end(group=None, drained=False)
    assert check_events(history.events).counts["stuck"] == 1


def test_what_was_skipped_and_then_rewound_must_come() -> None:
    history = sent(6)
    given(history, 0)
    moved(history, "skip", 1, 5)
    moved(history, "rewind", 3)
    given(history, 3, 5)
    assert findings(history) == {"lost": 1}


def test_message_of_another_consumer_may_come_late_below_a_skip_alone() -> None:
    history = sent(6)
    given(history, 0)
    moved(history, "skip", 1, 4)
    given(history, 4, 2, 5)
    assert findings(history) == {}
    history = sent(6)
    given(history, 0)
    moved(history, "skip", 1, 4)
    given(history, 5, 4)
    assert "reordered_offset" in findings(history)


@pytest.mark.parametrize(
    "fields",
    [
        {"x": "move"},
        {"x": "move", "o": "1:1"},
        {"x": "move", "d": "sideways", "o": "1:1"},
        {"x": "move", "d": "rewind"},
        {"x": "move", "d": "skip", "o": "1:2"},
        {"x": "move", "d": "skip", "o": "1:2", "z": "1:1"},
        {"x": "release", "d": "mode"},
    ],
)
def test_move_without_its_bounds_is_refused(fields: dict[str, str]) -> None:
    history = sent()
    history.events.append({"k": "person", "at": history.events[-1]["at"], "g": "g", "t": "orders", "q": 0, **fields})
    with pytest.raises(HistoryFormatError, match="d is the way of each move"):
        judged(history)
