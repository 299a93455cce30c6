"""Delayed messages that retention would drop: their server appends them once more, still delayed."""

from __future__ import annotations

import pytest
from seriatim_api.batch import FLAG_CONTROL, FLAG_DELAYED, parse_header
from seriatim_api.delayed import CancelOutcome
from seriatim_api.errors import SeriatimError, UnavailableError
from seriatim_api.ids import make_offset
from seriatim_broker.core.delayed import moving
from seriatim_broker.core.values import delayed_messages as dm

from .support import M01, MS, P
from .test_firing import Firing

LATE_MS = 60_000
AWAY = UnavailableError("the master is not there")


def move(bench: Firing, below: int) -> int | None:
    """Retention wants to drop messages below an index soon. Returns up to where it may."""
    bench.requests += 1
    request = bench.requests
    bench.do(dm.AskPending(request, P, 1, below))
    bench.serve()
    found = [one for one in bench.all(dm.PendingFound) if one.request == request]
    return found[0].first if found and found[0].error is None else None


def work(bench: Firing, ms: int = 500, error: SeriatimError | None = None) -> list[tuple[int, int, bool]]:
    """Time passes, and the master takes all volleys, or refuses them. Returns the first index of each that it took, the
    number of messages, and whether it was moved.
    """
    found = []
    for _ in range(ms // 20):
        bench.wait(20 * MS, (M01,))
        bench.serve()
        while requests := bench.requested():
            headers = [parse_header(header) for header, _ in requests[0].batches] if error is None else []
            found += [
                (header.origin[1] - make_offset(1, 0), header.message_count, bool(header.flags & FLAG_DELAYED))
                for header in headers
                if not header.flags & FLAG_CONTROL
            ]
            bench.done(None if error is None else 0, error)
    return found


def cancelled(bench: Firing, index: int) -> dm.DelayedCancelled | None:
    """The answer to a cancellation."""
    request = bench.cancel(index)
    bench.serve()
    return next((one for one in bench.all(dm.DelayedCancelled) if one.request == request), None)


@pytest.fixture
def bench() -> Firing:
    bench = Firing.opened()
    for due_ms in (LATE_MS, 100, LATE_MS, LATE_MS):
        bench.send(due_ms, count=2)
    bench.serve()
    return bench


def test_what_is_delayed_below_an_index_is_moved_and_nothing_else(bench: Firing) -> None:
    cancelled(bench, 4)
    assert move(bench, 6) == 0
    assert sorted(work(bench)) == [(0, 2, True), (2, 2, False), (5, 1, True)], "4 is cancelled, 6 is not below"
    assert move(bench, 6) == 6, "retention may drop it"
    assert bench.rows().moved == {0: 0b100011}


def test_a_number_is_not_enough_for_retention(bench: Firing) -> None:
    move(bench, 6)
    assert work(bench, 100, AWAY) == []
    assert move(bench, 6) == 0
    work(bench)
    assert move(bench, 6) == 6


def test_a_message_in_a_move_is_cancelled_when_its_place_is_known(bench: Firing) -> None:
    move(bench, 2)
    work(bench, 100, AWAY)
    answer = cancelled(bench, 0)
    assert answer is not None
    assert answer.outcome is None
    work(bench)
    answer = cancelled(bench, 0)
    assert answer is not None
    assert (answer.outcome, answer.may_be_moved) == (CancelOutcome.TOO_LATE, True)


def test_what_is_due_soon_is_fired_and_not_moved(bench: Firing) -> None:
    bench.send(moving.SOON_MS - 500, count=1)
    bench.serve()
    move(bench, 9)
    found = work(bench, moving.SOON_MS)
    assert sorted(found) == [(0, 2, True), (2, 2, False), (4, 2, True), (6, 2, True), (8, 1, False)]


def test_a_move_that_cannot_be_read_is_fired_when_due(bench: Firing) -> None:
    bench.unreadable = {0}
    move(bench, 2)
    work(bench)
    bench.unreadable = set()
    assert [is_moved for first, _, is_moved in work(bench, LATE_MS) if first == 0] == [False]


def test_moves_have_a_pace(bench: Firing) -> None:
    for _ in range(20):
        bench.send(LATE_MS, count=1)
    bench.serve()
    move(bench, 28)
    begin = len(work(bench, 40))
    assert 0 < begin <= 3 * moving.MOVES_MAX
    assert len(work(bench, 1_000)) == 24 - begin, "one was fired, and the last one is not below"


def test_a_place_that_is_dropped_while_it_is_looked_up_may_be_moved(bench: Firing) -> None:
    move(bench, 2)
    work(bench)
    request = bench.cancel(0)
    (asked,) = [one for one in bench.all(dm.FindDelayed) if one.serial not in bench.answered]
    bench.do(dm.DelayedFound(asked.serial, P, 1, None))
    (answer,) = [one for one in bench.all(dm.DelayedCancelled) if one.request == request]
    assert (answer.outcome, answer.may_be_moved) == (CancelOutcome.NOT_FOUND, True)
