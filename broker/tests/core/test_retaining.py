"""Delayed messages and retention: below which index nothing is delayed any more."""

from __future__ import annotations

import pytest
from seriatim_broker.core.values import delayed_messages as dm

from .support import P
from .test_firing import Firing

LATE_MS = 10_000


def ask(bench: Firing, no: int = 1) -> int:
    """Retention asks. Returns the request."""
    bench.requests += 1
    bench.do(dm.AskPending(bench.requests, P, no))
    return bench.requests


def first(bench: Firing, request: int) -> int | None:
    """The answer; None: there is none, or a refusal."""
    found = [one for one in bench.all(dm.PendingFound) if one.request == request]
    return found[0].first if found and found[0].error is None else None


@pytest.fixture
def bench() -> Firing:
    bench = Firing.opened()
    for due_ms in (100, LATE_MS, 100, LATE_MS):
        bench.send(due_ms, count=2)
    bench.serve()
    return bench


def test_the_first_message_that_waits_is_answered(bench: Firing) -> None:
    request = ask(bench)
    bench.serve()
    assert first(bench, request) == 0
    bench.until_due(100)
    assert bench.fired() == [[0, 1, 4, 5]]
    request = ask(bench)
    bench.serve()
    assert first(bench, request) == 2
    bench.cancel(2)
    bench.cancel(3)
    bench.serve()
    request = ask(bench)
    bench.serve()
    assert first(bench, request) == 6, "4 and 5 are fired"


def test_a_message_in_a_volley_waits_until_it_is_stored(bench: Firing) -> None:
    bench.until_due(100)
    request = ask(bench)
    bench.serve()
    assert first(bench, request) == 0


def test_all_committed_messages_are_below_the_answer_if_none_waits(bench: Firing) -> None:
    bench.until_due(LATE_MS)
    bench.fired()
    request = ask(bench)
    bench.serve()
    assert first(bench, request) == 8
    bench.send(LATE_MS, committed=False)
    request = ask(bench)
    bench.serve()
    assert first(bench, request) == 8, "what is not committed"


def test_rows_are_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim_broker.core.delayed.retaining.ROWS_PER_READ", 2)
    bench = Firing.opened()
    for due_ms in (-1, 100, 100, 100, 100, LATE_MS):  # the first one is an ordinary message, which nothing passes
        bench.send(due_ms)
    bench.until_due(100)
    bench.fired()
    request = ask(bench)
    bench.serve()
    assert first(bench, request) == 5
    assert [read.from_index for read in bench.all(dm.ReadPending)] == [0, 5]


def test_an_answer_waits_until_every_member_has_the_floor(bench: Firing) -> None:
    """Rule `pending-is-durable`."""
    bench.lag = True
    bench.cancel(0)
    bench.cancel(1)
    bench.serve()
    request = ask(bench)
    bench.serve()
    assert first(bench, request) is None
    bench.lag = False
    bench.serve()
    assert first(bench, request) == 2


def test_a_failed_read_is_no_answer(bench: Firing) -> None:
    request = ask(bench)
    (read,) = bench.all(dm.ReadPending)
    bench.answered.add(read.serial)
    bench.do(dm.PendingRead(read.serial, P, 1, None))
    (refused,) = bench.all(dm.PendingFound)
    assert refused.request == request
    assert refused.error is not None
    assert refused.error.retriable


def test_a_segment_that_is_served_elsewhere_has_no_answer(bench: Firing) -> None:
    ask(bench, no=2)
    (refused,) = bench.all(dm.PendingFound)
    assert refused.error is not None
