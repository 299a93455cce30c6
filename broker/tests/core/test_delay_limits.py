"""What a master answers to a delay over the limit that it knows."""

from __future__ import annotations

import pytest
from seriatim_api.delay_limits import DAY_MS, DelayLimits
from seriatim_api.errors import BadRequestError, OverloadedError
from seriatim_broker.core.values.delayed import Amount
from seriatim_broker.core.values.delays import KnownDelayLimits


@pytest.mark.parametrize(
    ("most_ms", "are_current", "delay_ms", "error", "text"),
    [
        (1000, True, 1000, None, ""),
        (1000, True, 1001, BadRequestError, "the delay is 1001 ms, and delay_max_ms of the topic is 1000"),
        (40 * DAY_MS, True, 41 * DAY_MS, BadRequestError, "is 3456000000 (40 days): nothing was stored"),
        (0, True, 1, BadRequestError, "takes no delayed messages, because its delay_max_ms is 0: nothing was stored"),
        (1000, False, 1000, None, ""),
        (1000, False, 1001, OverloadedError, "nothing was stored; the producer sends it again"),
        (0, False, 1, OverloadedError, "nothing was stored; the producer sends it again"),
    ],
)
def test_a_delay_over_the_limit(
    most_ms: int, are_current: bool, delay_ms: int, error: type[Exception] | None, text: str
) -> None:
    refusal = KnownDelayLimits(DelayLimits(delay_max_ms=most_ms), are_current).refusal(delay_ms)
    assert type(refusal) is (error or type(None))
    assert text in str(refusal or "")


@pytest.mark.parametrize(
    ("pending", "retention_bytes", "text"),
    [
        (Amount(9, 1 << 40), 0, ""),
        (
            Amount(10, 5),
            0,
            "10 delayed messages wait in the partition, and delayed_pending_max is 10: nothing was stored",
        ),
        (Amount(10, 5), 8, "or raise delayed_pending_max of the topic"),
        (Amount(1, 499), 1_000, ""),
        (
            Amount(1, 500),
            1_000,
            "500 bytes wait in the partition, which is half of its retention_bytes (1,000) or more",
        ),
        (Amount(1, 500), 1_000, "cancel some, or raise retention_bytes of the topic"),
    ],
)
def test_a_partition_in_which_too_much_waits(pending: Amount, retention_bytes: int, text: str) -> None:
    limits = KnownDelayLimits(DelayLimits(delayed_pending_max=10), retention_bytes=retention_bytes)
    refusal = limits.refusal_if_full(pending)
    assert isinstance(refusal, OverloadedError) if text else refusal is None
    assert text in str(refusal or "")
