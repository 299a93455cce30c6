"""Which retry policies are legal: at each limit, and one beyond it."""

from __future__ import annotations

from typing import Any

import pytest
from seriatim_api.errors import BadRequestError, IllegalNameError
from seriatim_api.retry import DELAY_COUNT_MAX, DELAY_MS_MAX, check_retry, dead_letter_topic_of

LEGAL: dict[str, Any] = {
    "attempts_max": 5,
    "back_off": "exponential",
    "delays_ms": (1_000, 60_000),
    "jitter_percent": 20,
    "exhausted": "park_key",
    "dead_letter_topic": "",
    "grant_ms": 30_000,
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"attempts_max": 0},
        {"attempts_max": 1_000},
        {"back_off": "fixed", "delays_ms": (1,)},
        {"back_off": "list", "delays_ms": (DELAY_MS_MAX,) * DELAY_COUNT_MAX},
        {"delays_ms": (5, 5)},
        {"jitter_percent": 0},
        {"jitter_percent": 100},
        {"exhausted": "block"},
        {"exhausted": "dead_letter"},
        {"exhausted": "dead_letter", "dead_letter_topic": "orders.dead"},
        {"grant_ms": 1_000},
        {"grant_ms": 86_400_000},
    ],
)
def test_policies_up_to_the_limits_are_legal(change: dict[str, Any]) -> None:
    check_retry(**{**LEGAL, **change})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"attempts_max": -1}, "at most 1,000 attempts"),
        ({"attempts_max": 1_001}, "at most 1,000 attempts"),
        ({"back_off": "random"}, "no back-off 'random'"),
        ({"delays_ms": (1_000,)}, "two delays: the first and the longest one; given: 1"),
        ({"back_off": "fixed"}, "one delay"),
        ({"back_off": "fixed", "delays_ms": ()}, "one delay"),
        ({"back_off": "list", "delays_ms": ()}, "1 to 32 delays"),
        ({"back_off": "list", "delays_ms": (1,) * (DELAY_COUNT_MAX + 1)}, "1 to 32 delays"),
        ({"delays_ms": (0, 5)}, "a delay is 1 ms"),
        ({"delays_ms": (-5, 5)}, "a delay is 1 ms"),
        ({"delays_ms": (1, DELAY_MS_MAX + 1)}, "7 days"),
        ({"delays_ms": (2_000, 1_000)}, "shorter than the first one"),
        ({"jitter_percent": -1}, "0 to 100 percent"),
        ({"jitter_percent": 101}, "0 to 100 percent"),
        ({"exhausted": "forget"}, "not 'forget'"),
        ({"dead_letter_topic": "orders.dead"}, "has no dead-letter topic"),
        ({"grant_ms": 999}, "1 s to 24 h"),
        ({"grant_ms": 86_400_001}, "1 s to 24 h"),
    ],
)
def test_others_are_refused_with_their_limit(change: dict[str, Any], text: str) -> None:
    with pytest.raises(BadRequestError, match=text):
        check_retry(**{**LEGAL, **change})


def test_a_dead_letter_topic_has_the_name_of_a_topic() -> None:
    with pytest.raises(IllegalNameError):
        check_retry(**{**LEGAL, "exhausted": "dead_letter", "dead_letter_topic": "a b"})
    assert dead_letter_topic_of("orders", "billing") == "orders.billing.dead"
    with pytest.raises(BadRequestError, match="too long"):
        dead_letter_topic_of("o" * 200, "b" * 60)
    with pytest.raises(BadRequestError):
        dead_letter_topic_of("orders", "news/reader")
