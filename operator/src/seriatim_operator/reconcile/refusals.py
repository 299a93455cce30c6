"""Remembers which writes for one cluster failed, so that a pass continues with the others and the status says why.

A write that fails with the same content again and again is tried after 1 s, 2 s, 4 s and then every 10 s. With another
content it is tried at once. A failure is reported when it has lasted for 3 s, because many end by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from ..cluster.kube import KubeError

AGAIN_FIRST_S: Final = 1.0
AGAIN_LAST_S: Final = 10.0
TOLD_AFTER_S: Final = 3.0


@dataclass(slots=True)
class _Refused:
    content: str
    since_s: float
    next_s: float
    pause_s: float
    why: str
    is_new: bool = True
    """No Event reports it yet."""


class Refusals:
    """The writes that failed, by a name such as `Service orders`. There are at most as many as a plan has steps.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: dict[str, _Refused] = {}

    def is_due(self, write: str, content: str = "") -> bool:
        """Whether the write may be sent now."""
        found = self._found.get(write)
        return found is None or found.content != content or self._clock() >= found.next_s

    def note(self, write: str, error: KubeError, content: str = "") -> None:
        """Note that the write failed."""
        now_s, found = self._clock(), self._found.get(write)
        if found is None or found.content != content:
            self._found[write] = _Refused(content, now_s, now_s + AGAIN_FIRST_S, AGAIN_FIRST_S, error.sentence)
            return
        found.pause_s = min(2 * found.pause_s, AGAIN_LAST_S)
        found.next_s, found.why = now_s + found.pause_s, error.sentence

    def clear(self, write: str) -> None:
        """Note that the write succeeded."""
        self._found.pop(write, None)

    def keep(self, planned: Collection[str]) -> None:
        """Forget the writes that are not planned any more."""
        self._found = {write: found for write, found in self._found.items() if write in planned}

    def failing(self) -> frozenset[str]:
        """The writes that failed at their last try."""
        return frozenset(self._found)

    def lasting(self) -> Mapping[str, str]:
        """The API's own words for each write that has failed for 3 s."""
        return {write: found.why for write, found in self._found.items() if self._lasts(found)}

    def take_new(self) -> list[tuple[str, str]]:
        """Those of `lasting` that no earlier call of this method returned. Another content makes a write new again."""
        new = [(write, found) for write, found in self._found.items() if found.is_new and self._lasts(found)]
        for _, found in new:
            found.is_new = False
        return [(write, found.why) for write, found in new]

    def next_s(self) -> float | None:
        """Seconds until the next write is due, or the next failure is reported; None if there is none."""
        now_s = self._clock()
        times = [found.next_s for found in self._found.values()]
        times += [found.since_s + TOLD_AFTER_S for found in self._found.values() if not self._lasts(found)]
        return max(0.0, min(times) - now_s) if times else None

    def _lasts(self, found: _Refused) -> bool:
        return self._clock() - found.since_s >= TOLD_AFTER_S
