"""LATENCY and JITTER: how far apart the processes of demos, of the fault suite and of benchmarks are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from seriatim_local import LinkDelay
from seriatim_local.links.delays import DELAY_S_MAX, NO_DELAY, parse_delay

from e2e.usage import SettingsError

JITTER_SHARE: Final = 4
"""In the fault suite and in demos, 5 % of the chunks are late by up to four times the latency, as after a lost packet,
unless JITTER says otherwise. Benchmarks have no jitter unless it is set. Thousands of chunks in a second wait behind
the late ones, so with a jitter of 100 ms a busy link of 25 ms is one of 125 ms."""


class DistanceError(SettingsError):
    """LATENCY or JITTER has a value without a meaning."""


def read_delay(environment: Mapping[str, str], jitter_share: float = 0.0) -> LinkDelay | None:
    """Read the delay of all links, each way. LATENCY=25 is 25 ms, and JITTER=100 a jitter of 100 ms.

    Args:
        environment: Has the variables.
        jitter_share: The jitter as a multiple of the latency, unless JITTER is set.

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
    return LinkDelay(delay_s, _seconds("JITTER", jitter) if jitter else min(jitter_share * delay_s, DELAY_S_MAX))


def read_rough_delay(environment: Mapping[str, str]) -> LinkDelay:
    """The same with `JITTER_SHARE`, for programs that always use the proxy: no delay if LATENCY is not set."""
    return read_delay(environment, JITTER_SHARE) or NO_DELAY


def told(delay: LinkDelay | None) -> str:
    """What a title says about the delay; empty if there is none."""
    return "" if delay is None else f", links of {delay} each way"


def _seconds(name: str, text: str) -> float:
    try:
        return parse_delay(f"{text}ms")
    except ValueError:
        raise DistanceError(f"{name} is a number of ms from 0 to 10000, not {text!r}") from None
