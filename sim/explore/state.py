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
"""The request number of a complaint whose answer no client reads."""
QUESTION = 2
"""The request number of the producer's question."""
DOWN = -1

WALL_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How large the world is: what may happen, and how often at most.

    With `old_news`, a chain record that its receiver knows already may arrive late.
    With `reduced`, states that differ only in what can never matter again are one (`reductions`).
    With `quick_disks`, what is written is durable at once, except on the disks of `slow_disks`.
    With `apart`, the ends of a link notice a crash one by one, and links of a broker that starts come up one by one.
    `victims` may crash, `hearers` may be complained to.
    `prelude` has happened already: kinds of actions, each with the name of the broker where it happens, as in
    "append:A1,crash:A1". It uses up budgets.
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
    slow_disks: str = ""
    old_news: int = 0
    apart: int = 0
    reduced: int = 1
    prelude: str = ""
    victims: str = ",".join(NAMES)
    hearers: str = ",".join(NAMES)


class Budget(NamedTuple):
    """How often each kind of misfortune may still happen."""

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


class Place(NamedTuple):
    """Where a broker put an attempt that it has not answered."""

    request: int
    segment: int
    base: int
    broker: int


class Stream(NamedTuple):
    """The producer's stream to a broker: the messages on their way, and whether the broker is still there."""

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
    ends: tuple[tuple[int, ...], ...]  # of each broker, by peer: the session it knows, 0 if it knows none
    lanes: tuple[tuple[tuple[int, int, int], tuple[int, ...]], ...]  # (from, to, lane): messages
    requests: tuple[tuple[int, ...], ...]
    late: tuple[int, ...]
    chain: int
    revision: int
    certificates: frozenset[tuple[int, int]]
    producer: int
    streams: tuple[Stream, ...]
    opened: int  # streams so far
    asks: int  # number of the question that no broker was asked yet, 0 if there is no question
    asked: int  # the broker that was asked, or DOWN
    places: frozenset[Place]
    promises: frozenset[Promise]
    budget: Budget


Action = tuple[Any, ...]


class Draft:
    """A state in the making."""

    __slots__ = (*State._fields, "before", "seen")

    def __init__(self, state: State) -> None:
        self.before = state
        self.cores = list(state.cores)
        self.runs = list(state.runs)
        self.images = list(state.images)
        self.pending = list(state.pending)
        self.ends = state.ends
        self.lanes = dict(state.lanes)
        self.requests = list(state.requests)
        self.late = state.late
        self.chain = state.chain
        self.revision = state.revision
        self.certificates = state.certificates
        self.producer = state.producer
        self.streams = state.streams
        self.opened = state.opened
        self.asks = state.asks
        self.asked = state.asked
        self.places = state.places
        self.promises = state.promises
        self.budget = state.budget
        self.seen: set[str] = set()

    def spend(self, what: str) -> None:
        """One less of it may happen from now on."""
        self.budget = self.budget._replace(**{what: getattr(self.budget, what) - 1})

    def set_end(self, broker: int, peer: int, session: int) -> None:
        """What a broker knows of its link to another."""
        ends = self.ends[broker]
        changed = (*ends[:peer], session, *ends[peer + 1 :])
        self.ends = (*self.ends[:broker], changed, *self.ends[broker + 1 :])

    def done(self) -> State:
        """The state."""
        return State(
            tuple(self.cores),
            tuple(self.runs),
            tuple(self.images),
            tuple(self.pending),
            self.ends,
            tuple(sorted([item for item in self.lanes.items() if item[1]])),
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


def session_of(first_run: int, second_run: int) -> int:
    """The number of the link between two runs, at both ends."""
    return 100 * min(first_run, second_run) + max(first_run, second_run) + 1
