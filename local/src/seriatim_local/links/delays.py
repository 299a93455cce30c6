"""The delay of one direction of a link, as users write it (`25ms`), and as it is drawn for each chunk of bytes."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Final

from seriatim_api.errors import BadRequestError

DELAY_S_MAX: Final = 10.0
"""Limit for a delay, and for a jitter. Longer ones are what a cut is for."""

LATE_SHARE: Final = 0.05
"""The share of the chunks that the jitter makes later still."""

_FORM: Final = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s*(ms|s)")


@dataclass(frozen=True, slots=True)
class LinkDelay:
    """How long bytes are on their way in one direction.

    Attributes:
        delay_s: Seconds that each chunk takes.
        jitter_s: `LATE_SHARE` (5 %) of the chunks take up to this many seconds more. Those after them wait for them.
    """

    delay_s: float
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.delay_s <= DELAY_S_MAX and 0 <= self.jitter_s <= DELAY_S_MAX):
            raise BadRequestError(f"a delay and a jitter are from 0 to {DELAY_S_MAX:g} s each")

    def __bool__(self) -> bool:
        return self.delay_s > 0 or self.jitter_s > 0

    def __str__(self) -> str:
        jitter = f"+{self.jitter_s * 1000:g}ms" if self.jitter_s else ""
        return f"{self.delay_s * 1000:g}ms{jitter}"

    def draw(self, source: random.Random) -> float:
        """The delay of one chunk, in seconds."""
        late = self.jitter_s > 0 and source.random() < LATE_SHARE
        return self.delay_s + (source.random() * self.jitter_s if late else 0.0)


NO_DELAY: Final = LinkDelay(0.0)


def parse_delay(text: str) -> float:
    """Read a delay, such as `25ms` or `0.2s`. Returns seconds.

    Raises:
        ValueError: The text is not a delay, or longer than `DELAY_S_MAX` (10 s).
    """
    found = _FORM.fullmatch(text.strip().lower())
    seconds = float(found[1]) / (1000 if found[2] == "ms" else 1) if found is not None else -1.0
    if not 0 <= seconds <= DELAY_S_MAX:
        raise ValueError(f"{text!r} is no delay: write a number and ms or s, at most {DELAY_S_MAX:g}s, such as 25ms")
    return seconds
