"""How long messages of a topic may be delayed, and how many may wait, as far as the master knows."""

from __future__ import annotations

from typing import Final, NamedTuple

from seriatim_api.delay_limits import DAY_MS, DelayLimits
from seriatim_api.errors import BadRequestError, OverloadedError, SeriatimError


class KnownDelayLimits(NamedTuple):
    """The limits of a topic, and whether they are surely those of its record.

    Attributes:
        limits: The limits.
        are_current: Whether the broker follows the topics, and the coordinator has answered within the last seconds.
    """

    limits: DelayLimits = DelayLimits()
    are_current: bool = True

    def refusal(self, delay_ms: int) -> SeriatimError | None:
        """The error of a batch with this delay, more than 0; None if the topic takes it.

        A limit that may be old refuses for the moment only (as in rule `topic-limits`).
        """
        most_ms = self.limits.delay_max_ms
        if delay_ms <= most_ms:
            return None
        if not self.are_current:
            return OverloadedError(
                "a delay is over the limit that this broker knows, and the coordinator does not tell it whether that "
                "was raised: nothing was stored; the producer sends it again",
                retry_after_ms=200,
            )
        if not most_ms:
            return BadRequestError(
                "the topic takes no delayed messages, because its delay_max_ms is 0: nothing was stored. Send without "
                "a delay, or raise delay_max_ms"
            )
        return BadRequestError(
            f"the delay is {delay_ms} ms, and delay_max_ms of the topic is {most_ms} ({most_ms / DAY_MS:g} days): "
            "nothing was stored. Send later or with a shorter delay, or raise delay_max_ms"
        )


DELAYS_DEFAULT: Final = KnownDelayLimits()
"""The limits of a topic whose settings say nothing of them."""
