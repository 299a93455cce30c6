"""A task must not end well unless it has given all of its rows, once and in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from seriatim_api.ids import make_offset
from seriatim_spark.errors import ReadOrderError
from seriatim_spark.reading.contiguity import Contiguity

START, END = make_offset(1, 10), make_offset(2, 20)


def test_rows_of_two_segments_with_repeats_passed_over() -> None:
    check = Contiguity("t/0", START, END)
    check.take(make_offset(1, 10), 5, 0)
    check.take(make_offset(1, 18), 2, 3)  # three were passed over
    check.take(make_offset(2, 0), 10, 3)
    check.take(make_offset(2, 14), 6, 7)
    check.finish(END, 7)


def test_a_range_may_end_with_repeats_or_be_gone_in_the_middle() -> None:
    check = Contiguity("t/0", START, END)
    check.take(make_offset(1, 10), 5, 0)
    check.lose(make_offset(1, 15), make_offset(2, 4))
    check.take(make_offset(2, 4), 6, 0)
    check.finish(END, 10)


BREAKS: dict[str, Callable[[Contiguity], None]] = {
    "a hole": lambda check: check.take(make_offset(1, 16), 4, 0),
    "a repeat": lambda check: check.take(make_offset(1, 14), 4, 0),
    "an older segment": lambda check: check.take(make_offset(0, 15), 4, 0),
    "the middle of the next segment": lambda check: check.take(make_offset(2, 5), 4, 0),
    "too many": lambda check: check.take(make_offset(2, 0), 21, 0),
    "the end too early": lambda check: check.finish(END, 0),
    "another end": lambda check: check.finish(make_offset(2, 19), 0),
    "a gap from the past": lambda check: check.lose(make_offset(1, 3), make_offset(2, 0)),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_does_not_follow_is_an_error(name: str) -> None:
    check = Contiguity("t/0", START, END)
    check.take(make_offset(1, 10), 5, 0)
    with pytest.raises(ReadOrderError, match="t/0"):
        BREAKS[name](check)
