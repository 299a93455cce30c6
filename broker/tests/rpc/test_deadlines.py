"""When an answer leaves: before the time that the asker keeps for its way."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from seriatim_api.network.round_trips import WAY_KEY
from seriatim_broker.rpc.calls.services import deadline_us, ends_s, remaining_s


def call(left_s: float | None, way: str | None = None) -> Any:
    metadata = () if way is None else ((WAY_KEY, way),)
    return SimpleNamespace(time_remaining=lambda: left_s, invocation_metadata=lambda: metadata)


@pytest.mark.parametrize(
    ("left_s", "way", "expected_s"),
    [
        (1.3, "300", 1.0),  # whatever has passed on the way here
        (1.1, "300", 0.8),
        (0.2, "300", 0.001),  # too late: answer at once
        (2.0, None, 2.0),  # the caller does not say it
        (2.0, "many", 2.0),
        (600.0, "0", 60.0),
        (None, None, 10.0),
    ],
)
def test_the_time_for_an_answer_leaves_out_the_way(left_s: float | None, way: str | None, expected_s: float) -> None:
    """Rule `waits-end-before-the-way`."""
    assert remaining_s(call(left_s, way)) == pytest.approx(expected_s)


def test_the_deadline_of_a_question_that_waits_is_exact_if_the_way_is_known() -> None:
    now_us = time.monotonic_ns() // 1000
    assert 1.0 <= (deadline_us(call(1.3, "300")) - now_us) / 1e6 < 1.2
    assert 0.95 <= (deadline_us(call(1.0)) - now_us) / 1e6 < 1.0
    assert ends_s(call(1.3, "300")) == 1.3, "the servicer waits for the core beyond that deadline"
