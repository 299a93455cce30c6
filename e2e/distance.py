"""LATENCY and JITTER: how far apart the processes of demos, of the fault suite and of benchmarks are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from seriatim_local import LinkDelay
from seriatim_local.delays import NO_DELAY, parse_delay

JITTER_SHARE: Final = 4
"""Unless JITTER says otherwise, 5 % of the chunks are late by up to four times the latency, as after a lost packet."""


class DistanceError(ValueError):
    """LATENCY or JITTER has a value without a meaning."""


def read_delay(environment: Mapping[str, str]) -> LinkDelay | None:
    """Read the delay of all links, each way. LATENCY=25 is 25 ms, and JITTER=100 the jitter of 100 ms.

    Returns:
        The delay, which may be 0; None if LATENCY is not set.

    Raises:
        DistanceError: One of them is no number of ms from 0 to 10,000, or JITTER is set without LATENCY.
    """
    latency, jitter = environment.get("LATENCY", ""), environment.get("JITTER", "")
    if not latency:
        if jitter:
            raise DistanceError("JITTER needs LATENCY: the latency of each link in ms, such as LATENCY=25")
        return None
    delay_s = _seconds("LATENCY", latency)
    return LinkDelay(delay_s, _seconds("JITTER", jitter) if jitter else min(JITTER_SHARE * delay_s, 10.0))


def read_delay_or_none(environment: Mapping[str, str]) -> LinkDelay:
    """The same, for programs that always use the proxy: no delay if LATENCY is not set."""
    return read_delay(environment) or NO_DELAY


def told_delay(environment: Mapping[str, str]) -> str:
    """What a title says about the delay; empty if LATENCY is not set."""
    delay = read_delay(environment)
    return "" if delay is None else f", links of {delay} each way"


def _seconds(name: str, text: str) -> float:
    try:
        return parse_delay(f"{text}ms")
    except ValueError:
        raise DistanceError(f"{name} is a number of ms from 0 to 10000, not {text!r}") from None
