"""Round trips: how long a question and its answer are on their way, as measured on earlier calls to an address.

A question that waits has two times. The asker says how long the broker may hold the question, and itself waits longer:
until the answer has come back. gRPC sends one time only, as a duration that the broker counts from the arrival. So the
asker also sends, as metadata, how much of it is for the way. Without it:

  1. A client asks with a deadline of 1 s. Each direction takes 25 ms.
  2. The broker has nothing new, so it holds the question for 0.95 s and answers.
  3. The answer arrives after 1 s. The client has given up, and asks the same again. This repeats for ever.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WAY_KEY: Final = "seriatim-way-ms"
"""Metadata of a call: its answer leaves at least this many milliseconds before the deadline."""

WAY_S_MAX: Final = 10.0
"""The most seconds for the way, whatever was measured or a caller says."""

KEPT: Final = 8
"""The shortest of the newest 8 measurements counts, because a longer one may have waited for a busy broker."""

UNKNOWN_S: Final = 0.1
"""The least assumed round trip to an address that has not answered yet, in seconds. If a broker elsewhere is farther
away, this one may be, too."""

LATE_S: Final = 0.1
"""Seconds for event loops that are late, in addition to the way."""

TRIPS: Final = 4
"""The way has room for this many round trips: one for the question and its answer, up to three for a new connection."""

DOUBLINGS_MAX: Final = 2
"""The way is doubled for each late answer in a row, but not more often than this."""

ADDRESSES_MAX: Final = 1_000
"""The most addresses whose measurements are kept. Beyond it, the one that was measured first is forgotten."""


class RoundTrips:
    """The measurements of one client or broker."""

    def __init__(self) -> None:
        self._measured: dict[str, deque[float]] = {}
        self._late: dict[str, int] = {}  # answers in a row that did not come in time

    def took(self, address: str, took_s: float) -> None:
        """The broker answered at once, and the answer was here after this many seconds."""
        if address not in self._measured:
            self._measured[address] = deque(maxlen=KEPT)
            if len(self._measured) > ADDRESSES_MAX:
                del self._measured[next(iter(self._measured))]
        self._measured[address].append(max(took_s, 0.0))

    def answered(self, address: str) -> None:
        """An answer came in time."""
        self._late.pop(address, None)

    def late(self, address: str) -> None:
        """No answer came in time. It may be on its way, so the next one gets twice as long."""
        self._late[address] = min(self._late.get(address, 0) + 1, DOUBLINGS_MAX)
        if len(self._late) > ADDRESSES_MAX:
            del self._late[next(iter(self._late))]

    def round_trip_s(self, address: str) -> float:
        """Seconds for a question and its answer, without the time that the broker needs."""
        measured = self._measured.get(address)
        if measured is not None:
            return min(measured)
        return max((UNKNOWN_S, *map(min, self._measured.values())))

    def known_s(self, address: str) -> float:
        """The round trip as far as it is known: of another address if this one was not asked yet, and else 0."""
        measured = self._measured.get(address)
        return min(measured) if measured is not None else min(map(min, self._measured.values()), default=0.0)

    def way_s(self, address: str) -> float:
        """Seconds that an asker waits longer than the broker may hold its question."""
        once_s = LATE_S + TRIPS * self.round_trip_s(address)
        return float(min(once_s * 2 ** self._late.get(address, 0), WAY_S_MAX))


def way_metadata(way_s: float) -> tuple[str, str]:
    """The metadata that says how much of a call's time is for the way."""
    return WAY_KEY, str(round(way_s * 1000))


def way_of(text: str | None) -> float | None:
    """Seconds for the way, from a caller's metadata; None if it said nothing that can be read."""
    if text is None or not text.isdecimal() or len(text) > len(str(int(WAY_S_MAX * 1000))):
        return None
    return min(int(text) / 1000, WAY_S_MAX)
