"""What the chains of topics say about a cluster: which copies answer, and what each broker group and broker has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..spec.topic import TopicState
from .topics import ChainView, TopicView

WORST_FIRST: Final[tuple[TopicState, ...]] = (
    "Unsettled",
    "Unreachable",
    "Lost",
    "OneCopy",
    "CopyAway",
    "CatchingUp",
    "Unknown",
    "Healthy",
)
"""States of a topic. Worst is what stops consumers, then a loss, then what the next fault would stop or lose."""

TROUBLES: Final[tuple[TopicState, ...]] = WORST_FIRST[:6]

WEAK: Final[tuple[TopicState, ...]] = ("OneCopy", "CopyAway", "CatchingUp")
"""States in which nothing is lost and nothing stops, and one more fault could do so."""

NAMED_MAX: Final = 3
"""How many topics are named for each trouble. The others are counted."""


def state_of_chain(chain: ChainView, live: Collection[str] | None) -> TopicState:
    """The state of one chain.

    Args:
        chain: The chain.
        live: Names of the brokers that answer, and their disks; None: not known yet.
    """
    if chain.unsettled_count:
        return "Unsettled"

    def fewest(answering: Iterable[int]) -> int:
        return min(answering, default=2)

    def answer(brokers: tuple[str, ...]) -> int:
        return len(brokers) if live is None else sum(one in live for one in brokers)

    listed = fewest(answer(holders.listed) for holders in chain.copies)
    if listed == 0:
        return "Unreachable"
    if chain.lost_count:
        return "Lost"
    if chain.one_copy_count:
        return "OneCopy"
    if listed == 1:
        return "CopyAway"
    if fewest(answer(holders.in_sync) for holders in chain.copies) < 2:
        return "CatchingUp"
    return "Healthy" if live is not None else "Unknown"


def state_of_topic(view: TopicView, live: Collection[str] | None) -> TopicState:
    """The state of the worst chain of a topic; `Unknown` until the brokers have reported all its chains."""
    if not view.is_whole:
        return "Unknown"
    states = {state_of_chain(chain, live) for chain in view.chains.values()}
    return next((state for state in WORST_FIRST if state in states), "Unknown")


def is_as_planned(view: TopicView, live: Collection[str] | None, planned: frozenset[str]) -> bool:
    """Whether copies of a topic do not answer only because their brokers are away as planned.

    Args:
        view: The topic, whose state is `CopyAway`.
        live: The brokers that answer, and their disks.
        planned: Those that are away as planned.
    """
    return bool(planned) and live is not None and state_of_topic(view, planned.union(live)) != "CopyAway"


@dataclass(frozen=True, slots=True)
class ChainsView:
    """The chains of all topics of a cluster, in short.

    Attributes:
        troubles: How many topics are in each state of `TROUBLES`; a state without topics is missing. Topics of which
            copies are away as planned do not count.
        named: The first of these topics by name, at most `NAMED_MAX` for each state.
        open_segments: Open segments by broker group.
        masters: Open segments by their master.
        segments: Segments by broker that has a copy, complete or not. Lost ones do not count.
        topics: How many topics there are.
    """

    troubles: Mapping[TopicState, int] = field(default_factory=dict)
    named: Mapping[TopicState, tuple[str, ...]] = field(default_factory=dict)
    open_segments: Mapping[str, int] = field(default_factory=dict)
    masters: Mapping[str, int] = field(default_factory=dict)
    segments: Mapping[str, int] = field(default_factory=dict)
    topics: int = 0

    def told(self, state: TopicState) -> str:
        """The topics in a state, as `topics a, b and 3 more`."""
        names, count = self.named.get(state, ()), self.troubles.get(state, 0)
        more = f" and {count - len(names)} more" if count > len(names) else ""
        return f"{'topic' if count == 1 else 'topics'} {', '.join(names)}{more}"

    def segments_of(self, brokers: Iterable[str]) -> int:
        """Segments of a broker group: as many as the member has that has most of them."""
        return max((self.segments.get(broker, 0) for broker in brokers), default=0)


@dataclass(frozen=True, slots=True)
class _Short:
    """The share of one topic in the counts."""

    state: TopicState
    is_as_planned: bool
    open_segments: Counter[str]
    masters: Counter[str]
    segments: Counter[str]


class ChainCounts:
    """Counts over the chains of all topics. A topic that changed costs as much as it has partitions.

    Attributes:
        live: Names of the brokers that answer, and their disks; None: not known yet.
        planned: Names of the brokers that are away as planned, and their disks.
    """

    def __init__(self) -> None:
        self.live: frozenset[str] | None = None
        self.planned: frozenset[str] = frozenset()
        self._shorts: dict[str, _Short] = {}
        self._by_state: dict[TopicState, set[str]] = {}
        self._open_segments: Counter[str] = Counter()
        self._masters: Counter[str] = Counter()
        self._segments: Counter[str] = Counter()

    def put(self, name: str, view: TopicView | None) -> bool:
        """Count a topic as it is now; None: it is gone. Returns whether its state, or its reason, has changed."""
        before = self._shorts.pop(name, None)
        if before is not None:
            self._by_state.get(before.state, set()).discard(name)
            self._open_segments.subtract(before.open_segments)
            self._masters.subtract(before.masters)
            self._segments.subtract(before.segments)
        if view is None:
            return before is not None
        short = self._shorts[name] = self._short(view)
        if not short.is_as_planned:
            self._by_state.setdefault(short.state, set()).add(name)
        self._open_segments.update(short.open_segments)
        self._masters.update(short.masters)
        self._segments.update(short.segments)
        return before is None or (before.state, before.is_as_planned) != (short.state, short.is_as_planned)

    def see_live(
        self, live: frozenset[str] | None, planned: frozenset[str], topics: Mapping[str, TopicView]
    ) -> list[str]:
        """Take which brokers answer or are away as planned. Returns the names of topics that have changed by that."""
        if (live, planned) == (self.live, self.planned):
            return []
        self.live, self.planned = live, planned
        return [name for name, view in topics.items() if self.put(name, view)]

    def view(self) -> ChainsView:
        """The counts as they are now."""
        troubles = {state: names for state in TROUBLES if (names := self._by_state.get(state))}
        return ChainsView(
            troubles={state: len(names) for state, names in troubles.items()},
            named={state: tuple(sorted(names)[:NAMED_MAX]) for state, names in troubles.items()},
            open_segments=+self._open_segments,
            masters=+self._masters,
            segments=+self._segments,
            topics=len(self._shorts),
        )

    def _short(self, view: TopicView) -> _Short:
        open_segments: Counter[str] = Counter()
        masters: Counter[str] = Counter()
        segments: Counter[str] = Counter()
        for chain in view.chains.values():
            open_segments[chain.group] += 1
            masters[chain.master] += 1
            for holders, count in chain.copies.items():
                for broker in holders.listed:
                    segments[broker] += count
        state = state_of_topic(view, self.live)
        planned = state == "CopyAway" and is_as_planned(view, self.live, self.planned)
        return _Short(state, planned, open_segments, masters, segments)
