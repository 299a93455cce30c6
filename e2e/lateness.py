"""How late delayed messages come, and whether each comes once.

A value begins with its number. When a message was due is in its receipt, by the clock of a broker on this machine. So
how late it came is known when both have come.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from seriatim import Consumer

SIZE_BYTES: Final = 512
NUMBER_BYTES: Final = 8
NOISE: Final = random.Random(5).randbytes(SIZE_BYTES - NUMBER_BYTES)

EARLY_MS_MAX: Final = 100.0
"""A message that comes earlier than this before it is due breaks a promise."""

LAST_S: Final = 1.0
"""Seconds after the last message in which a second copy of one would come."""


def value_of(number: int) -> bytes:
    """The value of a message. Ordinary ones, which arrivals do not count, have number 0."""
    return number.to_bytes(NUMBER_BYTES, "big") + NOISE


def now_ms() -> int:
    """The time of this machine, in ms since 1970."""
    return time.time_ns() // 1_000_000


class Arrival(NamedTuple):
    """A message came first, at a time of the monotonic clock, and of the wall clock; both in seconds."""

    number: int
    at: float
    wall_s: float


@dataclass(slots=True)
class Arrivals:
    """What a consumer has read of the delayed messages.

    A message that comes again from the same place was delivered twice, which is no fault. From another place it was
    fired twice.

    Attributes:
        came: The first arrival of each message, in this order.
        places: Of each number: the partition and the offset from which it came first.
        twice: How many came from a second place.
    """

    came: list[Arrival] = field(default_factory=list)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    twice: int = 0

    @property
    def last_at(self) -> float:
        """When the last message came, by the monotonic clock."""
        return self.came[-1].at if self.came else math.inf

    def late(self, due_ms: Mapping[int, int]) -> list[tuple[float, float]]:
        """When messages came (monotonic clock, in seconds), and how many ms after they were due.

        Args:
            due_ms: When each acknowledged message is due; 0: not known.
        """
        return [(at, wall_s * 1000 - due) for number, at, wall_s in self.came if (due := due_ms.get(number, 0))]

    def take(self, value: bytes, place: tuple[int, int], wall_s: float) -> None:
        """Take note of a message that came at that time of the wall clock."""
        number = int.from_bytes(value[:NUMBER_BYTES], "big")
        if number and number not in self.places:
            self.places[number] = place
            self.came.append(Arrival(number, time.monotonic(), wall_s))
        elif number and self.places[number] != place:
            self.twice += 1

    async def read(self, consumer: Consumer) -> None:
        """Read until the task is cancelled."""
        while True:
            if (fetched := await consumer.fetch_table()) is not None:
                wall_s = time.time()
                for row, value in enumerate(fetched.table.column("value").to_pylist()):
                    self.take(value, (fetched.partition, fetched.offset + row), wall_s)
                await consumer.ack(fetched)

    async def wait_for(self, count: int, deadline_s: float) -> None:
        """Wait until that number came, or none came for `deadline_s`; then a second for what comes twice."""
        begin = time.monotonic()
        while len(self.came) < count:
            if time.monotonic() - max([begin, *(arrival.at for arrival in self.came[-1:])]) >= deadline_s:
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(LAST_S)

    def problems(self, due_ms: Mapping[int, int]) -> list[str]:
        """Say what is lost, came twice or too early. `due_ms` has all messages that must come, as for `late`."""
        lost = len(due_ms.keys() - self.places.keys())
        early_ms = -min((late_ms for _, late_ms in self.late(due_ms)), default=0.0)
        found = [f"{lost:,} of {len(due_ms):,} acknowledged messages were not fired"] if lost else []
        found += [f"{self.twice:,} were fired twice"] if self.twice else []
        found += [f"one came {early_ms:.0f} ms before it was due"] if early_ms > EARLY_MS_MAX else []
        return found

    def gap_s(self, at: float) -> float:
        """The longest time between two messages of which the later one came after `at`."""
        times = [arrival.at for arrival in self.came]
        return max((later - earlier for earlier, later in pairwise(times) if later > at), default=math.inf)
