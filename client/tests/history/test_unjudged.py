"""What people did makes some promises void: the checker says what it cannot judge, and judges all else."""

from __future__ import annotations

import pytest
from seriatim.history import MemoryHistory, Report, check_events


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


def test_exclusive_rewind_is_no_repeat() -> None:
    history = sent()
    given(history, 0, 1, 2, 3)
    history.person("move", group="g", topic="orders", partition=0)
    given(history, 1, 2, 3)
    report = judged(history)
    assert report.ok
    assert report.unjudged == (
        "whether group g was given messages once and in order, because a person moved it (events:13)",
    )


def test_message_that_a_moved_group_never_got_is_lost() -> None:
    history = sent()
    history.person("move", group="g", topic="orders", partition=0, done=True)
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
