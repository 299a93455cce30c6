"""The wall clocks of the live brokers: no broker removes or drops anything because its own clock alone is ahead.

Rule `earliest-clock` (I13): the clock of one broker alone removes nothing that a client may still use. Without it:
  1. A consumer of a broadcast group is connected. Its server noted an hour ago that it is here.
  2. A broker whose clock is nine days ahead is elected. To it, the note is nine days old, and it removes the cursor.
  3. The consumer reconnects, and begins at the end: it misses all messages between.

Rule `ahead-drops-nothing` (RETAIN): retention does not go by a clock that is ahead of most others. Without it:
  1. A topic keeps three days. The clock of a broker is nine days ahead, and it leads a partition of the topic.
  2. To it, all messages are older than three days. It drops them.
A clock that is behind must not stop retention, because then disks fill. So not the earliest clock counts, but the
middle one. Of two brokers this is the earlier one.

Each broker writes its wall clock into its live key, at least every `TOLD_S`. The server of a consumer that is here is
live, and it renews its note by its own clock. So the note is never old by the earliest clock. A broker whose clock is
behind only delays removals.
"""

from __future__ import annotations

from statistics import median_low
from typing import Final

import structlog
from google.protobuf.message import DecodeError
from seriatim_api.v1 import records_pb2

from ...interfaces.clock import Clock
from ...interfaces.coordinator import Coordinator
from ..coordinator.keys import Keys

TOLD_S: Final = 120.0
"""Seconds between two notes of a broker's clock in its live key: at 100 brokers nearly a write a second."""

DIFFER_MS: Final = 60_000
"""From this difference on, the log says so."""

_log = structlog.get_logger(__name__)


class WallClocks:
    """The wall clocks of the live brokers, for one duty."""

    def __init__(self, coordinator: Coordinator, keys: Keys, clock: Clock) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self._clock = clock
        self._told = ""

    async def earliest_ms(self) -> int | None:
        """The earliest of the clocks, up to `TOLD_S` ago; None: another one is not known, so nothing may be removed."""
        own_ms = self._clock.wall_ms()
        known = await self._read(own_ms)
        return min(own_ms, *known) if known else None

    async def agreed_ms(self) -> int:
        """This broker's clock, or the middle one of all if this one is ahead of it.

        A note may be `TOLD_S` old, so a clock that is less than that ahead counts as it is.
        """
        own_ms = self._clock.wall_ms()
        known = await self._read(own_ms)
        return min(own_ms, median_low(known) + round(TOLD_S * 1000)) if known else own_ms

    async def _read(self, own_ms: int) -> list[int]:
        """The clocks of the live brokers, up to `TOLD_S` ago; empty: none of another broker, or not all, are known."""
        known: dict[str, int] = {}
        for item in (await self._coordinator.list(self._keys.lives)).items:
            broker = item.key.removeprefix(self._keys.lives)
            try:
                known[broker] = records_pb2.LiveRecord.FromString(item.value).wall_ms
            except DecodeError:
                known[broker] = 0
        if len(known) < 2 or not all(known.values()):
            return []  # this broker is alone, or a record cannot be read
        self._tell(own_ms, known)
        return list(known.values())

    def _tell(self, own_ms: int, known: dict[str, int]) -> None:
        """Log once which broker's clock is furthest from this one's, if it is far."""
        far = {broker: _apart_ms(own_ms, wall_ms) for broker, wall_ms in known.items()}
        broker = max(far, key=lambda name: (abs(far[name]), name))
        told = broker if abs(far[broker]) > DIFFER_MS else ""
        if told and told != self._told:
            _log.warning(
                "clocks_differ",
                broker=broker,
                ahead_s=far[broker] // 1000,
                consequence="what is old by one clock alone is kept",
                remedy="synchronise the clocks of the brokers",
            )
        self._told = told


def _apart_ms(own_ms: int, wall_ms: int) -> int:
    """How far a clock that was noted within the last `TOLD_S` is ahead of this one at least; below 0: behind."""
    ahead_ms = wall_ms - own_ms
    return ahead_ms if ahead_ms > 0 else min(0, ahead_ms + round(TOLD_S * 1000))
