"""Which partitions of a consumer are served nothing, though they should be. Pure.

The consumer shows every few seconds which of its partitions wait to be served. A partition that has waited for
`UNSERVED_S` without any progress is asked about: a partition without messages waits, and nothing is wrong. The
questions about a partition, and so the lines about it, become rarer, up to `ASK_S_MAX`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

UNSERVED_S: Final = 10.0
"""A partition is served nothing if it has waited for this long, in seconds. A switch takes less."""

ASK_S_MAX: Final = 320.0
"""The longest pause between two questions about a partition, in seconds. An idle consumer asks so often."""

ASKED_MAX: Final = 100
"""The most partitions of one question. The others come with the next ones."""


class Waiting(NamedTuple):
    """A partition that waits to be served. `mark` changes with each message and segment that it gets."""

    number: int
    mark: Hashable
    is_joined: bool


class Unserved(NamedTuple):
    """A partition that is served nothing, for how many seconds, and its lag; None: no broker could report it."""

    number: int
    for_s: float
    lag: int | None


@dataclass(slots=True)
class _Wait:
    mark: Hashable
    is_joined: bool
    since: float
    ask_at: float
    pause_s: float = UNSERVED_S
    is_told: bool = False


class ServiceWatch:
    """Finds the partitions of one consumer that are served nothing. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._waits: dict[int, _Wait] = {}
        self._over: list[Unserved] = []

    @property
    def unserved(self) -> tuple[int, ...]:
        """The partitions that were reported, and are still served nothing."""
        return tuple(number for number, wait in self._waits.items() if wait.is_told)

    def look(self, now: float, waiting: Iterable[Waiting]) -> list[int]:
        """Take in which partitions wait now, and return those about which a broker is to be asked."""
        waits: dict[int, _Wait] = {}
        due: list[tuple[float, int]] = []
        for number, mark, is_joined in waiting:
            wait = self._waits.pop(number, None)
            if wait is None or wait.mark != mark:
                self._end(number, wait, now)
                wait = _Wait(mark, is_joined, now, now + UNSERVED_S)
            wait.is_joined = is_joined
            waits[number] = wait
            if now >= wait.ask_at:
                due.append((wait.ask_at, number))
        for number, wait in self._waits.items():
            self._end(number, wait, now)
        self._waits = waits
        due.sort()
        return [number for _, number in due[:ASKED_MAX]]

    def answered(self, now: float, asked: Iterable[int], lags: Mapping[int, int | None]) -> list[Unserved]:
        """Take in the lags, and return the partitions to notify administrators of, those that wait longest first.

        Args:
            now: The time.
            asked: The partitions that were asked about.
            lags: Their lags, as far as a broker could tell.
        """
        found: list[Unserved] = []
        for number in asked:
            wait = self._waits.get(number)
            if wait is None:
                continue
            wait.ask_at = now + wait.pause_s
            wait.pause_s = min(2 * wait.pause_s, ASK_S_MAX)
            lag = lags.get(number)
            # If no broker can tell, a partition whose server knows the consumer is taken for one without messages.
            if lag or (lag is None and not wait.is_joined):
                wait.is_told = True
                found.append(Unserved(number, now - wait.since, lag))
            else:
                self._end(number, wait, now)
        return sorted(found, key=lambda one: -one.for_s)

    def take_over(self) -> list[Unserved]:
        """The partitions that were reported and are served again, each once, and how long it took."""
        over, self._over = self._over, []
        return over

    def _end(self, number: int, wait: _Wait | None, now: float) -> None:
        if wait is not None and wait.is_told:
            wait.is_told = False
            self._over.append(Unserved(number, now - wait.since, 0))
