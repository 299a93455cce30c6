"""Decides how each attempt at a message goes: how long it takes, and whether it fails. This module is pure.

A fate follows from the seed, the number of the event and the number of the attempt. So it does not matter which
consumer works on the message. Only the first two attempts may fail by chance, so that chance parks nothing: the poison
aircraft are told to the consumers, and fail until they are mended.
"""

from __future__ import annotations

import random
from typing import Final, Literal, NamedTuple

Kind = Literal["works", "asks again", "raises", "slow", "hangs"]
How = Literal["raises", "gives up"]

WORK_S: Final = (0.008, 0.020)
"""The least and the most time that a handler takes, in seconds."""

SLOW_S: Final = 1.5
"""How long a slow handler takes. Its grant is extended meanwhile."""

TIMEOUT_S: Final = 7.0
"""A handler that hangs is cancelled after this time. A process that is frozen continues before that, so that its
handlers write to the store, which must refuse them."""

HANGS_S: Final = 3_600.0

AGAIN_S: Final = 0.15
"""The delay that a handler asks for, in seconds."""

CHANCES: Final[tuple[tuple[float, Kind], ...]] = (
    (0.015, "asks again"),
    (0.025, "raises"),
    (0.027, "slow"),
    (0.0274, "hangs"),
)
"""Below each share, the attempt goes so. Above the last one it works."""

_LONG: Final[dict[Kind, float]] = {"slow": SLOW_S, "hangs": HANGS_S}

FAILING_ATTEMPTS_MAX: Final = 2


class Fate(NamedTuple):
    """How one attempt goes, and how long it takes, in seconds."""

    kind: Kind
    work_s: float


class Poison(NamedTuple):
    """An aircraft whose events fail until it is mended. The consumers are notified of it as a JSON array.

    Attributes:
        key: The aircraft.
        first: The number of the first event that fails.
        how: Whether the handler raises, or says that no attempt can succeed.
    """

    key: str
    first: int
    how: How

    def strikes(self, key: bytes, number: int) -> bool:
        """Whether an event of that aircraft fails."""
        return number >= self.first and key.decode() == self.key


def fate_of(seed: int, number: int, attempt: int) -> Fate:
    """Return the fate of one attempt at an event.

    Args:
        seed: The seed of the run.
        number: The event's number.
        attempt: The number of the attempt, from 1.
    """
    draw = random.Random(f"{seed}/{number}/{attempt}")
    work_s = draw.uniform(*WORK_S)
    drawn = draw.random()
    if attempt > FAILING_ATTEMPTS_MAX:
        return Fate("works", work_s)
    kind: Kind = next((kind for below, kind in CHANCES if drawn < below), "works")
    if kind not in _LONG:
        return Fate(kind, work_s)
    return Fate(kind, _LONG[kind]) if attempt == 1 else Fate("works", work_s)
