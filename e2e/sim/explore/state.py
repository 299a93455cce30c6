"""What a state of the small world is: numbers of tables, except for the small things."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from seriatim_api.ids import PartitionId

PARTITION = PartitionId(2)  # its first segment has the first member of its group as master
NAMES = ("A1", "A2", "B1", "B2")
GROUPS = (("A", (0, 1)), ("B", (2, 3)))
PRODUCER = b"producer-of-four"
STRANGER = 1
"""The request number of a complaint whose answer nobody wants."""
QUESTION = 2
"""The request number of the producer's question."""
DOWN = -1

WALL_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How large the world is: what may happen, and how often at most.

    With `old_news`, a chain record that its receiver knows already may arrive late.
    With `quick_disks`, what is written is durable at once. With `apart`, the ends of a link notice a crash one by one,
    and the links of a broker that starts come up one by one. `victims` may crash, `hearers` may be complained to.
    """

    messages: int = 2
    window: int = 2
    crashes: int = 1
    restarts: int = 1
    timeouts: int = 1
    complaints: int = 1
    timers: int = 1
    questions: int = 2
    quick_disks: int = 0
    old_news: int = 0
    apart: int = 0
    victims: str = ",".join(NAMES)
    hearers: str = ",".join(NAMES)


class Budget(NamedTuple):
    """What may still happen."""

    crashes: int
    restarts: int
    timeouts: int
    complaints: int
    timers: int
    questions: int


class Promise(NamedTuple):
    """A batch that a master acknowledged, and where."""

    segment: int
    base: int
    end: int
    batch_id: int


class Stream(NamedTuple):
    """The producer's stream to a broker: what is on its way on it, and whether the broker is still there."""

    number: int
    broker: int
    run: int
    out: tuple[int, ...]
    back: tuple[int, ...]


class State(NamedTuple):
    """All of the world. Numbers of tables, except for the small things."""

    cores: tuple[int, ...]
    runs: tuple[int, ...]
    images: tuple[int, ...]
    pending: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, ...], ...]  # of each broker, by peer: the session it knows, 0 for none
    lanes: tuple[tuple[tuple[int, int, int], tuple[int, ...]], ...]  # (from, to, lane): messages
    requests: tuple[tuple[int, ...], ...]
    late: tuple[int, ...]
    chain: int
    revision: int
    certificates: frozenset[tuple[int, int]]
    producer: int
    streams: tuple[Stream, ...]
    opened: int  # streams so far
    asks: int  # number of the question that nobody was asked yet, 0 for none
    asked: int  # the broker that was asked, or DOWN
    places: frozenset[tuple[int, int, int]]  # of each attempt: request, segment, base index
    promises: frozenset[Promise]
    budget: Budget


Action = tuple[Any, ...]


class Draft:
    """A state in the making."""

    def __init__(self, state: State) -> None:
        for name, value in zip(State._fields, state, strict=True):
            if name != "lanes":
                setattr(self, name, list(value) if name in _LISTS else value)  # type: ignore[call-overload]
        self.lanes = dict(state.lanes)
        self.ends = [list(ends) for ends in state.ends]
        self.seen: set[str] = set()

    cores: list[int]
    runs: list[int]
    images: list[int]
    pending: list[tuple[int, ...]]
    ends: list[list[int]]
    lanes: dict[tuple[int, int, int], tuple[int, ...]]
    requests: list[tuple[int, ...]]
    late: tuple[int, ...]
    chain: int
    revision: int
    certificates: frozenset[tuple[int, int]]
    producer: int
    streams: tuple[Stream, ...]
    opened: int
    asks: int
    asked: int
    places: frozenset[tuple[int, int, int]]
    promises: frozenset[Promise]
    budget: Budget

    def spend(self, what: str) -> None:
        """One less of it may happen from now on."""
        self.budget = self.budget._replace(**{what: getattr(self.budget, what) - 1})

    def done(self) -> State:
        """The state."""
        return State(
            tuple(self.cores),
            tuple(self.runs),
            tuple(self.images),
            tuple(self.pending),
            tuple(tuple(ends) for ends in self.ends),
            tuple(sorted(item for item in self.lanes.items() if item[1])),
            tuple(self.requests),
            self.late,
            self.chain,
            self.revision,
            self.certificates,
            self.producer,
            self.streams,
            self.opened,
            self.asks,
            self.asked,
            self.places,
            self.promises,
            self.budget,
        )


_LISTS = ("cores", "runs", "images", "pending", "requests")


def session_of(first_run: int, second_run: int) -> int:
    """The number of the link between two runs, at both ends."""
    return 100 * min(first_run, second_run) + max(first_run, second_run) + 1
