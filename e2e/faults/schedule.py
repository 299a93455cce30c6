"""Decides from the seed alone which fault comes when, under which load, and with which dice. Pure.

A case's dice depend on the seed, the name of its fault, and how often that fault came before. They do not depend on its
place in the run. So `ONLY="kill master"` replays the same cases as in a whole run. The timing of real processes does
not follow from a seed. So a replay strikes the same things at about the same moments, not at exactly the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

HOLD_S: Final = (1.0, 2.5)
"""How long most faults last, in seconds. It is longer than brokers wait for a silent member."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The load of a case.

    Attributes:
        keys: The number of different keys; 0: messages have no key, and go to the partitions in turn.
        rate: Messages in a second.
        size_bytes: The size of each message.
        resets: Whether the clients' connections are broken again and again.
        is_slow: Whether the consumer is slow, so that a backlog grows.
        flush: Whether topic and producer wait for flushes. It is False only to check that the suite notices.
        is_late: Whether a second group starts from the earliest offset after the fault has healed.
        retention_ms: How long the topic keeps messages; 0: for ever.
        has_workers: Whether a group of workers, in which order is by key, is there too.
        delays: Whether most messages are delayed, and some of these cancelled.
    """

    name: str
    partitions: int
    keys: int = 0
    rate: float = 250.0
    size_bytes: int = 100
    resets: bool = False
    is_slow: bool = False
    is_late: bool = False
    flush: bool = True
    retention_ms: int = 0
    has_workers: bool = False
    delays: bool = False


DELAYED: Final = "delayed"

WORKLOADS: Final = (
    Workload("ordered", partitions=1),
    Workload("keys", partitions=4, keys=100, has_workers=True),
    Workload("resend", partitions=2, resets=True),
    Workload("slow", partitions=1, size_bytes=1_000, is_slow=True),
    Workload("late", partitions=2, is_late=True),
    Workload(DELAYED, partitions=2, rate=300.0, delays=True),
)

CLIENT_SAFE: Final = tuple(load.name for load in WORKLOADS if not load.resets)
"""Loads that do not break the clients' connections themselves."""


def among(*names: str) -> tuple[str, ...]:
    """Return those of these loads that there are."""
    return tuple(load.name for load in WORKLOADS if load.name in names)


@dataclass(frozen=True, slots=True)
class Planned:
    """The facts about a fault that the schedule needs.

    Attributes:
        name: The name of the fault.
        workloads: The names of loads that go with it; empty: all.
        place: The kind of cluster that it needs. Faults with the same place come one after another.
    """

    name: str
    workloads: tuple[str, ...] = ()
    place: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of one fault.

    Attributes:
        number: The number in this run of the suite, from 1.
        fault: The name of the fault.
        repetition: How often this fault came before.
        workload: The load.
        hold_s: How long the fault lasts, unless the fault itself decides.
        seed: The seed of all further dice.
    """

    number: int
    fault: str
    repetition: int
    workload: Workload
    hold_s: float
    seed: str

    def dice(self) -> random.Random:
        """Return the case's own dice, which are always the same."""
        return random.Random(self.seed)


def plan(seed: int, faults: Sequence[Planned], *, shuffled: bool = True) -> Iterator[Case]:
    """Return rounds of all faults, without end. Each round has another order.

    Args:
        seed: The seed of the run.
        faults: The faults; at least one.
        shuffled: False: each round has the given order.
    """
    assert faults
    number = 0
    repetition = 0
    while True:
        order = list(faults)
        if shuffled:
            random.Random(f"{seed}/{repetition}").shuffle(order)
        # The start of a cluster takes longer than most faults. So each round begins with the kind of cluster that the
        # last one ended with.
        order.sort(key=lambda fault: fault.place, reverse=repetition % 2 == 1)
        for fault in order:
            number += 1
            yield case(seed, fault, repetition, number)
        repetition += 1


def case(seed: int, fault: Planned, repetition: int, number: int = 1) -> Case:
    """Return the case in which `fault` comes for the `repetition`th time."""
    base = f"{seed}/{fault.name}/{repetition}"
    dice = random.Random(base)
    workloads = [load for load in WORKLOADS if not fault.workloads or load.name in fault.workloads]
    assert workloads, f"{fault.name} goes with no load"
    # Each time that the fault comes, it gets another load. The first load differs from fault to fault.
    first = random.Random(f"{seed}/{fault.name}").randrange(len(workloads))
    return Case(
        number=number,
        fault=fault.name,
        repetition=repetition,
        workload=workloads[(first + repetition) % len(workloads)],
        hold_s=dice.uniform(*HOLD_S),
        seed=base,
    )
