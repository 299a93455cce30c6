"""How long the way of a grant through the broker is."""

from __future__ import annotations

from tools import lines

from .grant_trace import traced


def test_functions_that_a_grant_enters_become_no_more() -> None:
    found = traced()
    assert len(found) <= lines.limits()["grant_functions"], "merge what only passes on (`grant_trace` prints the way)"
    assert found == traced(), "the same functions each time, in the same order"
    assert {function.place.partition("/")[0] for function in found} == {"core", "rpc", "runtime"}
