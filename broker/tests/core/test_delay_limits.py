"""What a master answers to a delay over the limit that it knows."""

from __future__ import annotations

import pytest
from seriatim_api.delay_limits import DAY_MS, DelayLimits
from seriatim_api.errors import BadRequestError, OverloadedError
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
