"""Lines of the log that repeat."""

from __future__ import annotations

import pytest
import structlog
from seriatim_api.log_repeats import LINES_MAX, WithoutRepeats
from seriatim_operator.logs import REPEATED_S


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_same_line_is_written_once_in_ten_seconds_and_counted() -> None:
    clock = Clock()
    repeats = WithoutRepeats(REPEATED_S, structlog.DropEvent, clock)
    line = {"event": "brokers_silent", "cluster": "orders", "error": "no route"}
    assert repeats(None, "info", dict(line)) == line
    for _ in range(19):
        clock.now_s += REPEATED_S / 20
        with pytest.raises(structlog.DropEvent):
            repeats(None, "info", dict(line))
    clock.now_s += REPEATED_S / 20
    assert repeats(None, "info", dict(line)) == {**line, "repeated": 19}
    clock.now_s += REPEATED_S
    assert repeats(None, "info", dict(line)) == line


def test_a_line_that_differs_in_a_field_is_written() -> None:
    repeats = WithoutRepeats(REPEATED_S, structlog.DropEvent, Clock())
    for error in ("no route", "refused"):
        assert repeats(None, "info", {"event": "brokers_silent", "error": error})["error"] == error


def test_remembered_lines_have_a_limit() -> None:
    repeats = WithoutRepeats(REPEATED_S, structlog.DropEvent, Clock())
    for number in range(LINES_MAX + 1):
        repeats(None, "info", {"event": "e", "number": number})
    assert repeats(None, "info", {"event": "e", "number": 0}) == {"event": "e", "number": 0}, "the oldest is forgotten"
    with pytest.raises(structlog.DropEvent):
        repeats(None, "info", {"event": "e", "number": LINES_MAX})
