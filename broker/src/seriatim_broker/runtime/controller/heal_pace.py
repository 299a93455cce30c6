"""When the controller scans all chains for segments that lack copies."""

from __future__ import annotations

from dataclasses import dataclass

from seriatim_api.ids import MemberId

HEAL_PASS_US = 500_000
"""Pause between two scans while they find that something was done meanwhile."""

FRUITLESS_US = 15_000_000
"""The longest pause. In groups of three and more, segments may be opened without a member at any time, so also the
pause after a scan that found nothing."""

FRUITLESS_SHARE = 20
"""The longest pause is at least this many times as long as the last scan took: with many partitions, such scans take
5 % of the time."""


@dataclass(frozen=True, slots=True)
class Lost:
    """What every scan depends on: members that were away for too long, and all that are registered."""

    dead: frozenset[MemberId] = frozenset()
    registered: frozenset[MemberId] = frozenset()


class HealPace:
    """A scan that found as much to do as the one before has changed nothing, and the next one waits twice as long.

    A change of members makes a scan due at once.
    """

    def __init__(self) -> None:
        self._scanned: tuple[Lost | None, frozenset[MemberId]] = (None, frozenset())
        self._wanted = self._pause_us = self._due_us = 0

    def is_due(self, now_us: int, lost: Lost, running: frozenset[MemberId], *, grows: bool) -> bool:
        """Whether to scan now.

        Args:
            now_us: The time.
            lost: What every scan depends on.
            running: The members that run. They count while something is to be done, or while segments may grow.
            grows: Whether segments may be open with fewer members than they should have.
        """
        if lost != self._scanned[0]:
            return True
        return (grows or self._wanted > 0) and (running != self._scanned[1] or now_us >= self._due_us)

    def note(self, began_us: int, now_us: int, lost: Lost, running: frozenset[MemberId], wanted: int) -> None:
        """A scan found `wanted` segments that lack copies."""
        took_us = now_us - began_us
        most_us = max(FRUITLESS_US, FRUITLESS_SHARE * took_us)
        if not wanted:
            self._pause_us = most_us
        elif (wanted, lost, running) == (self._wanted, *self._scanned):
            self._pause_us = min(2 * self._pause_us, most_us)
        else:
            self._pause_us = max(HEAL_PASS_US, 2 * took_us)
        self._wanted, self._scanned = wanted, (lost, running)
        self._due_us = now_us + self._pause_us

    def pause_us(self, now_us: int) -> int:
        """How long no scan is due, if no members change; 0 or less if one is due."""
        return self._due_us - now_us
