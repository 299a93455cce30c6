"""What the server of a segment says is still delayed in it."""

from __future__ import annotations

from typing import Any

import pytest
from seriatim_api.errors import NotServingError
from seriatim_broker.core.values import delayed_messages as dm
from seriatim_broker.core.values.delayed import DONE
from seriatim_broker.core.values.log import DueRow
from seriatim_broker.core.values.states import put

from .support import P
from .test_firing import NAME, Firing


@pytest.fixture
def bench() -> Firing:
    return Firing.opened()


def ask(bench: Firing, event: type[Any], *what: Any) -> Any:
    """Ask the core. Returns its answer."""
    bench.requests += 1
    bench.do(event(bench.requests, P, *what))
    kind = dm.FiringListed if event is dm.ListFiring else dm.DelayedFiltered
    return next(one for one in bench.all(kind) if one.request == bench.requests)


def left(bench: Firing) -> list[tuple[int, int]]:
    """The first index and the number of messages of each row of which something is left."""
    rows = [row for batch in bench.batches() if (row := DueRow.of(batch.header))]
    found = ask(bench, dm.FilterDelayed, 1, tuple(rows))
    assert found.error is None
    return [(row.index, row.message_count) for row in found.rows]


def test_what_is_fired_cancelled_or_not_committed_is_not_left(bench: Firing) -> None:
    bench.send(10)
    bench.send(900, count=4)
    bench.send(900)
    bench.serve()
    bench.cancel(1)
    bench.cancel(3)
    bench.send(900, committed=False)
    bench.until_due(20)
    assert bench.volleys() == [[0]]
    assert left(bench) == [(2, 2), (5, 1)], "what is in a volley is not left"
    bench.done()
    assert left(bench) == [(2, 2), (5, 1)]
    assert ask(bench, dm.ListFiring, (1,)).cancelled_count == 2


def test_a_list_begins_after_what_is_done_with(bench: Firing) -> None:
    bench.send(10)
    bench.send(60_000)
    bench.serve()
    bench.until_due(20)
    bench.done()
    ((no, begin),) = ask(bench, dm.ListFiring, (1,)).segments
    rows = sorted(row for batch in bench.batches() if (row := DueRow.of(batch.header)))
    assert no == 1
    assert rows[0][:2] <= begin < rows[1][:2]
    bench.until_due(59_000)
    ((_, begin),) = ask(bench, dm.ListFiring, (1,)).segments
    assert rows[0][:2] <= begin < rows[1][:2], "a row in memory is not left out"


def test_segments_without_delayed_messages_are_no_part_of_the_list(bench: Firing) -> None:
    found = ask(bench, dm.ListFiring, (1,))
    assert (found.segments, found.unserved) == ((), ())


def test_segments_that_are_not_served_here_are_named(bench: Firing) -> None:
    bench.send()
    bench.serve()
    found = ask(bench, dm.ListFiring, (1, 2))
    assert ([no for no, _ in found.segments], found.unserved) == ([1], (2,))
    refused = ask(bench, dm.FilterDelayed, 2, (DueRow(1, 0, 1, 1),))
    assert isinstance(refused.error, NotServingError)


def test_each_member_knows_that_nothing_of_a_segment_is_left(bench: Firing) -> None:
    bench.send(900, count=4)
    bench.serve()
    bench.cancel(1)
    bench.serve()
    rows = bench.part.ledger_rows
    bench.part.ledger_rows = put(rows, NAME, {**rows[NAME], DONE: b""})
    bench.part.firing = {}
    bench.lag = True
    found = ask(bench, dm.ListFiring, (1,))
    assert (found.segments, found.unserved, found.cancelled_count) == ((), (), 1)
    assert not bench.part.firing, "it is not begun again"


def test_a_segment_whose_server_may_not_act_has_no_server_now(bench: Firing) -> None:
    bench.lag = True
    bench.send()
    bench.serve()
    found = ask(bench, dm.ListFiring, (1,))
    assert (found.segments, found.unserved) == ((), (1,)), "the ledger is not begun"
    bench.lag = False
    bench.serve()
    assert ask(bench, dm.ListFiring, (1,)).unserved == ()
