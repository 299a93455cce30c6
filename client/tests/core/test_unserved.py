"""Which partitions are reported as unserved, how often they are asked about, and when that is over."""

from __future__ import annotations

from itertools import pairwise

from seriatim._core.unserved import ASK_S_MAX, ASKED_MAX, ServiceWatch, Unserved, Waiting

OUT = Waiting(0, "", False)
IDLE = Waiting(1, (1, 1, 10), True)


def looks(watch: ServiceWatch, waiting: list[Waiting], until_s: int, lag: int | None) -> list[float]:
    """Look each 5 s, and return when the partitions were reported."""
    told = []
    for now in range(0, until_s + 1, 5):
        asked = watch.look(now, waiting)
        if asked and watch.answered(now, asked, dict.fromkeys(asked, lag)):
            told.append(now)
    return told


def test_a_partition_without_service_is_told_after_10_s_and_ever_more_rarely() -> None:
    watch = ServiceWatch()
    told = looks(watch, [OUT], 2000, 7)
    assert told[:5] == [10, 20, 40, 80, 160]
    assert [after - before for before, after in pairwise(told[6:])] == [ASK_S_MAX] * 4
    assert watch.unserved == (0,)


def test_a_partition_without_messages_is_asked_about_and_not_told() -> None:
    watch = ServiceWatch()
    assert looks(watch, [IDLE, OUT], 100, 0) == []
    assert watch.unserved == ()


def test_an_unknown_lag_is_told_only_of_a_partition_that_is_not_joined() -> None:
    watch = ServiceWatch()
    for now in (0, 10):
        asked = watch.look(now, [OUT, IDLE])
    assert watch.answered(10, asked, {}) == [Unserved(0, 10, None)]


def test_progress_begins_the_wait_anew() -> None:
    watch = ServiceWatch()
    assert watch.look(0, [IDLE]) == watch.look(9, [IDLE]) == []
    assert watch.look(10, [IDLE._replace(mark=(1, 1, 11))]) == []
    assert watch.look(19, [IDLE._replace(mark=(1, 1, 11))]) == []
    assert watch.look(20, [IDLE._replace(mark=(1, 1, 11))]) == [1]


def test_service_that_came_back_is_told_once() -> None:
    for after in ([], [OUT._replace(mark=(1, 1, 1), is_joined=True)]):
        watch = ServiceWatch()
        looks(watch, [OUT], 20, 7)
        assert watch.take_over() == []
        watch.look(25, after)
        assert watch.take_over() == [Unserved(0, 25, 0)]
        assert watch.take_over() == []
        assert watch.unserved == ()
        watch.look(30, [])
        assert watch.take_over() == []


def test_messages_that_others_read_end_it_too() -> None:
    watch = ServiceWatch()
    looks(watch, [OUT], 10, 7)
    assert watch.answered(20, watch.look(20, [OUT]), {0: 0}) == []
    assert watch.take_over() == [Unserved(0, 20, 0)]


def test_many_partitions_are_asked_about_in_turn() -> None:
    waiting = [Waiting(number, "", False) for number in range(2 * ASKED_MAX + 1)]
    watch = ServiceWatch()
    watch.look(0, waiting)
    seen: list[int] = []
    for now in (10, 15, 20):
        asked = watch.look(now, waiting)
        assert len(asked) <= ASKED_MAX
        seen += asked
        watch.answered(now, asked, {})
    assert sorted(set(seen)) == list(range(2 * ASKED_MAX + 1))
