"""The metrics of consumer groups, for Prometheus.

Their labels name a topic and a consumer group, so their number is limited: `group_series_max` consumer groups have
series of their own, those with the most unacknowledged messages, and all others are added up under `(other)`. A
consumer group keeps its series until another one has twice as many such messages. So series do not come and go, and no
counter of `(other)` ever falls.

The code that handles messages adds to plain integers (`ConsumerGroupCounts`), once for each request or frame. When
Prometheus reads the page, it gets the figures of the measurement before, and the next measurement begins. It looks at
the consumer groups that this broker serves, one after another, with other work of the broker in between. While the page
is not read, nothing is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import PartitionId, split_offset

from ..core.consumers.groups.figures import ConsumerGroupFigures, figures_of
from ..core.state.consumers import ConsumerGroup
from ..core.state.partition import Partition, Partitions
from ..core.values.positions import BatchPlace, Measure
from ..counters.consumer_groups import COUNT_NAMES, ConsumerGroupTally
from ..runtime.duties.unread import Unread

MEASURE_S_MIN: Final = 5.0
"""The least time between two measurements, however often the page is read."""

LOOKUPS_MAX: Final = 200
"""Partitions for which one measurement looks up on the disk how old the first unacknowledged message is. Such a lookup
is a binary search. Partitions whose first unacknowledged message is the same as before need none."""

KEEPS_SERIES: Final = 2
"""Another consumer group takes over series if it has this many times the unacknowledged messages."""

_log = structlog.get_logger(__name__)


class ConsumerGroupName(NamedTuple):
    """A consumer group of a topic. All consumers of a broadcast group are one."""

    topic: str
    consumer_group: str


OTHER: Final = ConsumerGroupName("(other)", "(other)")
"""All consumer groups without series of their own. No topic can have that name."""


class Served(Protocol):
    """The core, of which only the partitions are read."""

    partitions: Partitions


class Finds(Protocol):
    """The storage, as far as it is asked here."""

    async def find(
        self, partition: PartitionId, segment_no: int, until_index: int, measure: Measure, value: int
    ) -> BatchPlace | None:
        """The first batch that reaches `value`."""
        ...


@dataclass(slots=True)
class _Sums:
    """The figures of one consumer group over the partitions that this broker serves, and what was counted of it."""

    lag_messages: int = 0
    unread_messages: int = 0
    in_flight_messages: int = 0
    aside_messages: int = 0
    parked_keys: int = 0
    delayed_keys: int = 0
    forwarding_keys: int = 0
    full_lists: int = 0
    consumers: int = 0
    unread_partitions: int = 0
    read_partitions: int = 0
    oldest_ms: int = 0
    unread_oldest_ms: int = 0

    @property
    def rank(self) -> int:
        """How much it needs series of its own."""
        return max(self.lag_messages, self.unread_messages)

    def add(self, found: ConsumerGroupFigures, oldest_ms: int) -> None:
        """Add the figures of a partition."""
        self.lag_messages += found.lag_messages
        self.in_flight_messages += found.in_flight_messages
        self.aside_messages += found.aside_messages
        self.parked_keys += found.parked_keys
        self.delayed_keys += found.delayed_keys
        self.forwarding_keys += found.forwarding_keys
        self.full_lists += found.is_full
        self.consumers += found.consumers
        self.read_partitions += found.is_read
        self.take_oldest(oldest_ms)

    def take_oldest(self, oldest_ms: int) -> None:
        """A message of that append time is not acknowledged; 0: none is known."""
        if oldest_ms:
            self.oldest_ms = min(self.oldest_ms or oldest_ms, oldest_ms)

    def add_unread(self, unread: Unread) -> None:
        """Add what was not read of partitions that this broker leads."""
        self.unread_messages += unread.messages
        self.unread_partitions += unread.partitions
        if unread.oldest_ms:
            self.unread_oldest_ms = min(self.unread_oldest_ms or unread.oldest_ms, unread.oldest_ms)

    def add_sums(self, other: _Sums) -> None:
        """Add those of another consumer group."""
        unread = Unread(other.unread_messages, other.unread_oldest_ms)
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.take_oldest(other.oldest_ms)
        self.add_unread(unread._replace(messages=0, partitions=0))


_GAUGES: Final = (
    ("lag_messages", "Messages that are not acknowledged, of partitions that this broker serves to consumers"),
    (
        "unread_messages",
        "Messages after the place of the consumer group, of partitions that this broker leads, with consumers or not",
    ),
    ("in_flight_messages", "Messages that consumers have and have not acknowledged"),
    ("aside_messages", "Messages in lists of keys that are parked, delayed, or were so before"),
    ("parked_keys", "Keys that wait for an administrator"),
    ("delayed_keys", "Keys that wait for their next attempt"),
    ("forwarding_keys", "Keys whose first message is on its way to the dead-letter topic"),
    ("full_lists", "Partitions on which the lists of keys are full, so that no more messages are read"),
    ("consumers", "Consumers, counted once for each partition that they read or stand by for"),
    ("unread_partitions", "Partitions that this broker leads, with unread messages of the consumer group"),
    (
        "read_partitions",
        (
            "Partitions that this broker serves, with messages that are not acknowledged and an active consumer. All "
            "unread partitions but these have no consumer"
        ),
    ),
)
_AGES: Final = (
    (
        "oldest_seconds",
        (
            "Age of the oldest message that is not acknowledged, of partitions that this broker serves to consumers; "
            "if this broker does not have its segment, the time since that was sealed"
        ),
        attrgetter("oldest_ms"),
    ),
    (
        "unread_seconds",
        "Age of the oldest of the unread messages; in a sealed segment, the time since that was sealed",
        attrgetter("unread_oldest_ms"),
    ),
)
_SUMMED: Final = tuple(name for name, _ in _GAUGES)
_COUNTERS: Final = {
    "acked_messages": "Acknowledgements of single messages that arrived; none in exclusive mode",
    "dead_letters": "Messages that went to the dead-letter topic",
    "delivered_messages": "Messages that were given to consumers",
    "expired_grants": "Grants whose deadline passed before all their messages were acknowledged",
    "failed_attempts": "Attempts that consumers reported as failed",
    "grants": "Grants; none in exclusive mode",
    "keys_parked": "Keys that were parked after their last attempt",
    "repeated_grants": "Grants that were not the first attempt, or that an earlier server may have made too",
}


@dataclass(slots=True, eq=False)
class ConsumerGroupMeter:
    """Measures consumer groups when Prometheus reads the page, and shows them.

    Args:
        broker: The value of the label `broker`.
        core: The core.
        storage: Is asked when a message was appended.
        wall_ms: Returns the present time.
        tally: The counts.
        unread: Returns what consumer groups have not read of the partitions that this broker leads.
        series_max: How many consumer groups have series of their own.
    """

    _broker: str
    _core: Served
    _storage: Finds
    _wall_ms: Callable[[], int]
    _tally: ConsumerGroupTally
    _unread: Callable[[], Mapping[tuple[str, str], Unread]]
    _series_max: int
    _is_read: asyncio.Event = field(default_factory=asyncio.Event)
    _shown: dict[ConsumerGroupName, _Sums] = field(default_factory=dict)
    _totals: dict[ConsumerGroupName, list[int]] = field(default_factory=dict)
    _measured_ms: int = 0
    _turn: int = 0
    _oldest: dict[tuple[PartitionId, str], tuple[int, int]] = field(
        default_factory=dict
    )  # an offset and its append time

    async def run(self) -> None:
        """Measure each time after the page was read, until cancelled."""
        while True:
            await self._is_read.wait()
            self._is_read.clear()
            await self.measure()
            await asyncio.sleep(MEASURE_S_MIN)

    # ---- measuring ----

    async def measure(self) -> None:
        """Take all figures and counts."""
        sums: dict[ConsumerGroupName, _Sums] = {}
        topics: dict[PartitionId, str] = {}
        oldest: dict[tuple[PartitionId, str], tuple[int, int]] = {}
        lookups = LOOKUPS_MAX
        for partition in self._in_turn():
            if partition.chain is not None:
                topics[partition.id] = partition.chain.topic
            for consumer_group in list(partition.consumer_groups.values()):
                found = figures_of(partition, consumer_group)
                if found is None or partition.chain is None:
                    continue
                place, asked = await self._appended_at(partition, consumer_group, found, may_look=lookups > 0)
                lookups -= asked
                if place is not None:
                    oldest[partition.id, consumer_group.name] = place
                name = _name(partition.chain.topic, consumer_group.name)
                sums.setdefault(name, _Sums()).add(found, place[1] if place is not None else 0)
                await asyncio.sleep(0)
        self._oldest = oldest
        for (topic, group), unread in self._unread().items():
            sums.setdefault(_name(topic, group), _Sums()).add_unread(unread)
        self._measured_ms = self._wall_ms()
        counted = self._take_counts(topics)
        # A consumer group that this broker has stopped serving keeps its series for what was counted of it before.
        # Without that, `(other)` gets messages although there is one consumer group only.
        for name, _ in counted:
            if name != OTHER:
                sums.setdefault(name, _Sums())
        self._show(sums)
        self._count(counted)

    def _in_turn(self) -> list[Partition]:
        """Partitions with consumer groups. Each measurement begins at another one, so that all get their lookups."""
        found = [partition for partition in self._core.partitions.values() if partition.consumer_groups]
        begin = self._turn % len(found) if found else 0
        self._turn += LOOKUPS_MAX
        return found[begin:] + found[:begin]

    async def _appended_at(
        self, partition: Partition, consumer_group: ConsumerGroup, found: ConsumerGroupFigures, *, may_look: bool
    ) -> tuple[tuple[int, int] | None, bool]:
        """The oldest unacknowledged offset with its append time, if it is known, and whether the disk was asked."""
        if found.oldest is None:
            return None, False
        known = self._oldest.get((partition.id, consumer_group.name))
        segment_no, index = split_offset(found.oldest)
        log = partition.logs.get(segment_no)
        sealed_at_ms = _sealed_at_ms(partition, segment_no)
        is_exact = known is not None and known[0] == found.oldest and known[1] not in (0, sealed_at_ms)
        if log is None and not is_exact:
            return (found.oldest, sealed_at_ms), False
        if log is None or is_exact or not may_look:
            return known, False
        try:
            place = await self._storage.find(partition.id, segment_no, log.readable_below, Measure.INDEX, index)
        except SeriatimError as exc:
            _log.info("age_unknown", partition=partition.id, group=consumer_group.name, error=str(exc))
            return known, True
        return (None if place is None else (found.oldest, place.append_time_ms)), True

    def _show(self, sums: Mapping[ConsumerGroupName, _Sums]) -> None:
        """Choose the consumer groups that have series of their own, and add up the others."""

        def rank(name: ConsumerGroupName) -> tuple[int, bool, ConsumerGroupName]:
            is_shown = name in self._shown
            return -sums[name].rank * (KEEPS_SERIES if is_shown else 1), not is_shown, name

        names = sorted(sums, key=rank)
        shown = {name: sums[name] for name in sorted(names[: self._series_max])}
        rest = names[self._series_max :]
        if rest or OTHER in self._totals:
            other = shown[OTHER] = _Sums()
            for name in rest:
                other.add_sums(sums[name])
        self._shown = shown

    def _take_counts(self, topics: Mapping[PartitionId, str]) -> list[tuple[ConsumerGroupName, Sequence[int]]]:
        """What was counted since the last measurement. If the topic is not known any more, it is of `OTHER`."""
        counted: list[tuple[ConsumerGroupName, Sequence[int]]] = []
        for partition, group, counts in self._tally.take():
            topic = topics.get(partition) or self._topic_of(partition)
            counted.append((_name(topic, group) if topic else OTHER, counts))
        return counted

    def _count(self, counted: Iterable[tuple[ConsumerGroupName, Sequence[int]]]) -> None:
        totals = {name: self._totals.get(name, [0] * len(COUNT_NAMES)) for name in self._shown}
        for name, counts in counted:
            if name not in totals:
                name = OTHER
                self._shown.setdefault(OTHER, _Sums())
            total = totals.setdefault(name, [0] * len(COUNT_NAMES))
            for place, count in enumerate(counts):
                total[place] += count
        self._totals = totals

    def _topic_of(self, partition: PartitionId) -> str:
        known = self._core.partitions.get(partition)
        return known.chain.topic if known is not None and known.chain is not None else ""

    # ---- the page ----

    def collect(self) -> Iterable[Metric]:
        """All samples of the last measurement. The registry calls it."""
        self._is_read.set()
        labels = ["broker", "topic", "consumer_group"]
        for name, text in _GAUGES:
            gauge = GaugeMetricFamily(f"seriatim_consumer_group_{name}", text, labels=labels)
            value = attrgetter(name)
            for group, sums in self._shown.items():
                gauge.add_metric([self._broker, *group], value(sums))
            yield gauge
        for name, text, oldest_ms in _AGES:
            oldest = GaugeMetricFamily(f"seriatim_consumer_group_{name}", text, labels=labels)
            for group, sums in self._shown.items():
                appended_ms = oldest_ms(sums)
                age_s = max(self._measured_ms - appended_ms, 0) / 1000 if appended_ms else 0.0
                oldest.add_metric([self._broker, *group], age_s)
            yield oldest
        for place, name in enumerate(COUNT_NAMES):
            counter = CounterMetricFamily(f"seriatim_consumer_group_{name}", _COUNTERS[name], labels=labels)
            for group, counts in self._totals.items():
                counter.add_metric([self._broker, *group], counts[place])
            yield counter


def _sealed_at_ms(partition: Partition, segment_no: int) -> int:
    """When a segment was sealed: a message of it that this broker does not have is at least so old; 0: not known.

    Such a message waits in the list of a key, for example of a parked one, and this broker serves a later segment.
    """
    segment = partition.chain.segment(segment_no) if partition.chain is not None else None
    return segment.sealed_at_ms if segment is not None else 0


def _name(topic: str, group: str) -> ConsumerGroupName:
    return ConsumerGroupName(topic, group.partition("/")[0])
