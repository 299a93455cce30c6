"""Decides which faults come, and which aircraft are poison, from the seed and the events. This module is pure."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from e2e.demo.faults import Kind, PlannedFault
from e2e.demo.report import Role
from e2e.demo.run import RESERVE_SHARE
from e2e.demo_orders.fates import Poison

BROKER_KINDS: Final[tuple[Kind, ...]] = ("kill", "kill both", "freeze")
"""Kinds of faults of brokers. A fault of each must hit."""

_BROKER_BLOCK: Final[tuple[tuple[Kind, Role], ...]] = (
    ("kill", "master"),
    ("kill", "server"),
    ("kill both", "master"),
    ("freeze", "server"),
)
_HOLD_S: Final[dict[Kind, tuple[float, float]]] = {
    "kill": (0.2, 0.8),
    "kill both": (0.5, 1.0),
    "freeze": (1.0, 2.0),
}

ConsumerKind = Literal["kill consumers", "freeze consumers"]
CONSUMER_KINDS: Final[tuple[ConsumerKind, ...]] = ("kill consumers", "freeze consumers")
_CONSUMER_BLOCK: Final[tuple[ConsumerKind, ...]] = ("kill consumers", "freeze consumers", "kill consumers")

FREEZE_S: Final = (4.8, 5.6)
"""How long a process with consumers is frozen, in seconds: for more than twice its session, so that others take its
keys over before it continues."""

PAUSE_S: Final = (1.5, 3.0)
"""The time from the end of one fault of consumers to the next one, in seconds."""

PARKED_FROM: Final = 0.12
"""The share of the events after which the parked aircraft fails."""

BUSIEST: Final = 40
"""The poison aircraft are two of this many that have most events: they are busy from the first to the last minute."""


OVERSHOOT: Final = 300
"""The producer stops up to this many events after the beginning of the reserve."""

LATE: Final = 4
"""How many of the last events are enough for the aircraft that is dead-lettered."""


@dataclass(frozen=True, slots=True)
class ConsumerFault:
    """One fault of a process with consumers.

    Attributes:
        kind: What is done to the process.
        pick: A number from 0 to 1 that picks the process.
        pause_s: The time before the fault, in seconds.
        hold_s: How long a freeze lasts; 0 for a kill, after which the process is replaced at once.
    """

    kind: ConsumerKind
    pick: float
    pause_s: float
    hold_s: float


def broker_faults(seed: int) -> Iterator[PlannedFault]:
    """The faults of brokers, without end: blocks that kill a master, a server, a whole group, and freeze a server."""
    draw = random.Random(f"brokers {seed}")
    while True:
        for kind, role in draw.sample(_BROKER_BLOCK, len(_BROKER_BLOCK)):
            yield PlannedFault(kind, role, draw.uniform(*_HOLD_S[kind]), draw.random())


def consumer_faults(seed: int, count: int) -> list[ConsumerFault]:
    """The faults of processes with consumers."""
    draw = random.Random(f"consumers {seed}")
    found: list[ConsumerFault] = []
    while len(found) < count:
        for kind in draw.sample(_CONSUMER_BLOCK, len(_CONSUMER_BLOCK)):
            hold_s = draw.uniform(*FREEZE_S) if kind == "freeze consumers" else 0.0
            found.append(ConsumerFault(kind, draw.random(), draw.uniform(*PAUSE_S), hold_s))
    return found[:count]


def choose_poison(events: pa.Table, seed: int) -> tuple[Poison, Poison]:
    """Choose two busy aircraft: one that is parked, and one whose events are dead-lettered.

    The first fails at its first event after `PARKED_FROM` of all. The second one has several of the last events. They
    are sent when the first one is released and all consumers know that.
    """
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for number, key in enumerate(events["key"].to_pylist()):
        numbers[key].append(number)
    draw = random.Random(f"poison {seed}")
    busiest = sorted(numbers, key=lambda key: (-len(numbers[key]), key))[:BUSIEST]
    late = int((1 - RESERVE_SHARE) * len(events)) + min(OVERSHOOT, int(RESERVE_SHARE * len(events) / 2))
    dead = max(draw.sample(busiest, len(busiest)), key=lambda key: min(sum(n >= late for n in numbers[key]), LATE))
    parked = draw.choice([key for key in busiest if key != dead])
    after = int(PARKED_FROM * len(events))
    first = next((number for number in numbers[parked] if number >= after), numbers[parked][-1])
    return Poison(parked.decode(), first, "raises"), Poison(dead.decode(), late, "gives up")
