"""The metrics of the whole cluster, for Prometheus: partitions, copies and broker groups, as the controller sees them.

Only the controller has values. While its page is read, it follows all topics and chains, as for a program that watches
topics (`runtime.coordinator.topic_feed`). It keeps a count for each different set of members that has a partition. So a
reading costs as much as there are such sets, and not as much as there are partitions. If the page is not read for
`UNREAD_S`, it follows nothing.

A copy counts only if its broker is there: a broker that is listed and does not run has no copy for these figures. One
that came back counts as a second copy when it has copied what it lacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from seriatim_api.ids import MemberId

from ..interfaces.clock import Clock
from ..runtime.coordinator.topic_feed import Standing, TopicFeed, WatchedTopics

LOOK_S: Final = 1.0
"""Between two checks whether this broker is the controller, while the page is read."""

UNREAD_S: Final = 300.0
"""If the page was not read for this long, the cluster is not followed any more."""

_GAUGES: Final = {
    "topics": "Topics of the cluster",
    "partitions": "Partitions of the cluster, with the hidden ones of publications",
    "partitions_without_head": "Partitions that accept no messages, because a member of their open segment is away",
    "partitions_one_copy": "Partitions of which some messages are not surely on two running brokers, but on one",
    "partitions_fewer_copies": "Partitions of which some messages are surely on fewer running brokers than groups have",
    "partitions_no_copy": "Partitions of which some messages are on no running broker: consumers wait there",
    "partitions_unsettled": "Partitions with a segment whose length no member has told: consumers wait there",
    "partitions_lost": "Partitions with a segment that was declared lost",
    "broker_groups": "Broker groups of the cluster",
    "broker_groups_not_whole": "Broker groups of which a member does not run or is not linked, or with one member only",
    "brokers": "Brokers that were admitted to the cluster",
    "brokers_away": "Brokers that were admitted and do not run",
}


class Members(Protocol):
    """What is known of the brokers of the cluster."""

    def broker_groups(self) -> dict[str, tuple[MemberId, ...]]:
        """The admitted members of each broker group."""
        ...

    def unlinked(self, broker: str) -> tuple[str, ...]:
        """Live members of its own broker group to which a live broker says that it has no link."""
        ...


@dataclass(slots=True, eq=False)
class ClusterMeter:
    """Shows the state of the cluster, if this broker is the controller.

    Args:
        broker: The value of the label `broker`.
        feed: Follows topics and chains.
        members: The brokers of the cluster.
        is_there: Whether a member is admitted and runs, as far as this broker knows.
        is_controller: Whether this broker is the controller.
        copies_wanted: How many copies the controller has made.
        clock: Says how long the page was not read.
    """

    _broker: str
    _feed: TopicFeed
    _members: Members
    _is_there: Callable[[MemberId], bool]
    _is_controller: Callable[[], bool]
    _copies_wanted: Callable[[], int]
    _clock: Clock
    _is_read: asyncio.Event = field(default_factory=asyncio.Event)
    _read_at_us: int = 0
    _followed: WatchedTopics | None = None

    async def run(self) -> None:
        """Follow the cluster while this broker is the controller and the page is read, until cancelled."""
        while True:
            await self._is_read.wait()
            if self._is_controller():
                async with self._feed.follow() as followed:
                    await self._show(followed)
            if not self._was_read():
                self._is_read.clear()
            await asyncio.sleep(LOOK_S)

    async def _show(self, followed: WatchedTopics) -> None:
        """Have values until this broker is not the controller any more, or the page is not read."""
        self._followed = followed
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                if not self._is_controller() or not self._was_read():
                    return
        finally:
            self._followed = None

    def _partition_figures(self, standings: Mapping[Standing, int]) -> dict[str, int]:
        return partition_figures(standings, self._is_there, self._copies_wanted())

    def _was_read(self) -> bool:
        return self._clock.monotonic_us() - self._read_at_us < UNREAD_S * 1e6

    def collect(self) -> Iterable[Metric]:
        """All samples now; none if this broker is not the controller. The registry calls it."""
        self._read_at_us = self._clock.monotonic_us()
        self._is_read.set()
        values: Mapping[str, int] = {}
        if self._followed is not None and self._followed.is_listed:
            topics = self._followed.topic_count
            values = {"topics": topics, **self._partition_figures(self._followed.standings)}
            values |= broker_figures(self._members, self._is_there)
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"seriatim_cluster_{name}", text, labels=["broker"])
            if name in values:
                gauge.add_metric([self._broker], values[name])
            yield gauge


def partition_figures(
    standings: Mapping[Standing, int], is_there: Callable[[MemberId], bool], copies: int
) -> dict[str, int]:
    """How many partitions are in each state.

    Args:
        standings: For each standing, the number of partitions that have it.
        is_there: Whether a member runs.
        copies: How many copies segments should have.
    """
    found = dict.fromkeys((name for name in _GAUGES if name.startswith("partitions")), 0)
    there: dict[MemberId, bool] = {}

    def runs(member: MemberId) -> bool:
        known = there.get(member)
        if known is None:
            known = there[member] = is_there(member)
        return known

    for standing, count in standings.items():
        listed = min((sum(map(runs, held.listed)) for held in standing.copies), default=copies)
        in_sync = min((sum(map(runs, held.in_sync)) for held in standing.copies), default=copies)
        found["partitions"] += count
        found["partitions_without_head"] += count * (not all(map(runs, standing.open_members)))
        found["partitions_one_copy"] += count * (listed > 0 and in_sync < 2)
        found["partitions_fewer_copies"] += count * (in_sync < copies)
        found["partitions_no_copy"] += count * (listed == 0)
        found["partitions_unsettled"] += count * standing.is_unsettled
        found["partitions_lost"] += count * standing.is_lost
    return found


def broker_figures(members: Members, is_there: Callable[[MemberId], bool]) -> dict[str, int]:
    """How many brokers and broker groups there are, and how many are not as they should be."""
    groups = members.broker_groups()
    running = {name: [member for member in group if is_there(member)] for name, group in groups.items()}
    whole = [
        name
        for name, group in running.items()
        if len(group) >= 2 and len(group) == len(groups[name]) and not any(members.unlinked(m.broker) for m in group)
    ]
    count = sum(map(len, groups.values()))
    return {
        "broker_groups": len(groups),
        "broker_groups_not_whole": len(groups) - len(whole),
        "brokers": count,
        "brokers_away": count - sum(map(len, running.values())),
    }
