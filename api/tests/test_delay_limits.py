"""Which limits for delayed messages a topic may have, and which its record says."""

from __future__ import annotations

from typing import Any

import pytest
from seriatim_api.delay_limits import DELAY_MAX_MS_MAX, DelayLimits, check_delay_limits, delay_limits_of
from seriatim_api.errors import BadRequestError
from seriatim_api.v1.records_pb2 import TopicSettings


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        ({}, DelayLimits(40 * 86_400_000, 10_000_000)),
        ({"delay_max_ms": 0}, DelayLimits(delay_max_ms=0)),
        ({"delay_max_ms": 7, "delayed_pending_max": 8}, DelayLimits(7, 8)),
        ({"delay_max_ms": 1 << 63, "delayed_pending_max": 0}, DelayLimits(DELAY_MAX_MS_MAX)),
    ],
    ids=["record of an earlier version", "no delays", "both", "stored by an earlier version"],
)
def test_limits_of_a_record(settings: dict[str, Any], limits: DelayLimits) -> None:
    assert delay_limits_of(TopicSettings(**settings)) == limits


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("delay_max_ms", -1, "is -1: it is 0 .the topic takes no delayed messages. to 366 days"),
        ("delay_max_ms", DELAY_MAX_MS_MAX + 1, "is 31622400001: it is 0"),
        ("delay_max_ms", 1.5, "is a whole number, not 1.5"),
        ("delay_max_ms", float("nan"), "is a whole number, not nan"),
        ("delay_max_ms", True, "is a whole number, not True"),
        ("delay_max_ms", "40d", "is a whole number, not '40d'"),
        ("delayed_pending_max", 0, "is 0: it is at least 1 message"),
        ("delayed_pending_max", 1 << 63, "is 9223372036854775808: it is at least 1 message"),
        ("delayed_pending_max", None, "is a whole number, not None"),
    ],
)
def test_limits_that_no_topic_can_have(name: str, value: object, text: str) -> None:
    with pytest.raises(BadRequestError, match=f"{name} {text}"):
        check_delay_limits({name: value, "retention_ms": -1})


@pytest.mark.parametrize("settings", [{}, {"delay_max_ms": 0}, {"delay_max_ms": DELAY_MAX_MS_MAX}])
def test_limits_that_a_topic_can_have(settings: dict[str, object]) -> None:
    check_delay_limits({**settings, "delayed_pending_max": 1})
