"""Durations of retry policies, and their limits."""

from __future__ import annotations

from typing import get_args

import pytest
from seriatim_api import retry
from seriatim_api.errors import BadRequestError
from seriatim_operator.spec import consumer_group
from seriatim_operator.spec.consumer_group import BackOff, RetrySpec, WhenExhausted
from seriatim_operator.spec.errors import InvalidDurationError
from seriatim_operator.spec.values import format_pause, parse_pause_ms


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0s", 0),
        ("1ms", 1),
        ("500ms", 500),
        ("1s", 1_000),
        ("1m30s", 90_000),
        ("1h1m1s", 3_661_000),
        ("168h", 604_800_000),
    ],
)
def test_a_pause_is_read_and_written(text: str, milliseconds: int) -> None:
    assert parse_pause_ms(text) == milliseconds
    assert format_pause(milliseconds) == text


@pytest.mark.parametrize("text", ["", "5", "1d", "-1s", "1.5s", "s", "1s 2s", "99999999999s"])
def test_what_is_no_pause_is_refused(text: str) -> None:
    with pytest.raises(InvalidDurationError):
        parse_pause_ms(text)


def test_limits_are_those_of_the_brokers() -> None:
    assert consumer_group.ATTEMPTS_MAX == retry.ATTEMPTS_MAX
    assert consumer_group.DELAYS_MAX == retry.DELAY_COUNT_MAX
    assert parse_pause_ms(consumer_group.DELAY_MAX) == retry.DELAY_MS_MAX
    assert parse_pause_ms(consumer_group.GRANT_MIN) == retry.GRANT_MS_MIN
    assert parse_pause_ms(consumer_group.GRANT_MAX) == retry.GRANT_MS_MAX
    name = retry.dead_letter_topic_of("events", "billing")
    assert name == f"events.billing.{consumer_group.DEAD_LETTER_SUFFIX}"


def check(spec: RetrySpec) -> None:
    """Ask whether brokers would take the policy."""
    retry.check_retry(
        attempts_max=spec.attempts or 0,
        back_off=spec.back_off.lower(),
        delays_ms=spec.delays_ms,
        jitter_percent=spec.jitter_percent,
        exhausted={"ParkKey": "park_key", "DeadLetter": "dead_letter", "Block": "block"}[spec.when_exhausted],
        dead_letter_topic="",
        grant_ms=spec.grant_ms,
    )


def test_brokers_take_what_the_object_can_say() -> None:
    check(RetrySpec())
    delays = {"Fixed": ("1s",), "Exponential": ("1ms", "168h"), "List": ("1s",) * 32}
    for back_off in get_args(BackOff):
        for exhausted in get_args(WhenExhausted):
            check(RetrySpec(back_off=back_off, delays=delays[back_off], when_exhausted=exhausted))
    with pytest.raises(BadRequestError):
        check(RetrySpec(back_off="Fixed", delays=("1s", "2s")))
