"""The metrics of topics, for Prometheus: messages and bytes that this broker stored as the master of their partitions.

A gauge beside them says how many delayed messages wait, as `runtime.duties.delayed_counts` has counted them.

Their labels name a topic, so their number is limited: `topic_series_max` topics have series of their own, those that
took the most bytes lately, and all others are added up under `(other)`. A topic keeps its series until another one took
twice as much. So series do not come and go, and no counter of `(other)` ever falls.

Nothing is counted for a message. The logs know how many messages and bytes they have. When Prometheus reads the page,
it gets the counts of the measurement before, and the next measurement begins. It adds what the logs of the open
segments that this broker leads have more than before, `PARTITIONS_PER_TURN` at a time, with other work of the broker in
between. While the page is not read, nothing is measured. A segment that began and ended between two measurements is
left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from seriatim_api.ids import PartitionId
from seriatim_api.publications import STAGE_TOPIC

from ..core.state.partition import Partition, Partitions

MEASURE_S_MIN: Final = 5.0
"""The least time between two measurements, however often the page is read."""

PARTITIONS_PER_TURN: Final = 200
"""After this many partitions the rest of the broker has its turn."""

KEEPS_SERIES: Final = 2
"""Another topic takes over series if it took this many times the bytes."""

OTHER: Final = "(other)"
"""All topics without series of their own. No topic can have that name."""

_COUNTERS: Final = (
    ("messages", "Messages that this broker stored as the master of their partitions, by topic"),
    ("bytes", "Bytes that this broker stored as the master of their partitions, by topic, headers included"),
)


class Leads(Protocol):
    """The core, of which only the partitions are read."""

    partitions: Partitions


class TopicMeter:
    """Measures topics when Prometheus reads the page, and shows them.

    Args:
        broker: The value of the label `broker`.
        core: The core.
        series_max: How many topics have series of their own.
        pending: Returns how many delayed messages wait in the segments that this broker serves, by topic.
    """

    def __init__(
        self, broker: str, core: Leads, series_max: int, pending: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        self._broker = broker
        self._core = core
        self._series_max = series_max
        self._pending = pending
        self._is_read = asyncio.Event()
        self._seen: dict[PartitionId, dict[int, tuple[int, int]]] = {}  # messages and bytes of logs, by segment
        self._weights: dict[str, float] = {}  # bytes that topics took; those of the measurement before count half
        self._totals: dict[str, tuple[int, int]] = {}

    async def run(self) -> None:
        """Measure each time after the page was read, until cancelled."""
        while True:
            await self._is_read.wait()
            self._is_read.clear()
            await self.measure()
            await asyncio.sleep(MEASURE_S_MIN)

    async def measure(self) -> None:
        """Add what the logs have more than at the last measurement."""
        more: dict[str, tuple[int, int]] = {}
        seen: dict[PartitionId, dict[int, tuple[int, int]]] = {}
        for number, partition in enumerate(list(self._core.partitions.values()), 1):
            if partition.chain is not None and partition.chain.topic != STAGE_TOPIC:
                found, messages, size_bytes = self._look(partition)
                if found:
                    seen[partition.id] = found
                if messages:
                    before = more.get(partition.chain.topic, (0, 0))
                    more[partition.chain.topic] = before[0] + messages, before[1] + size_bytes
            if number % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._seen = seen
        self._add(more)

    def _look(self, partition: Partition) -> tuple[dict[int, tuple[int, int]], int, int]:
        """The logs of segments that this broker leads or just led, and what they have more than before."""
        before = self._seen.get(partition.id, {})
        found: dict[int, tuple[int, int]] = {}
        messages = size_bytes = 0
        open_log = partition.open_log()
        numbers = sorted({*before, *([open_log.no] if open_log is not None and open_log.unbroken else ())})
        for no in numbers:
            log = partition.logs.get(no)
            if log is None:
                continue
            known = before.get(no, (0, 0))
            messages += max(log.tail - known[0], 0)
            size_bytes += max(log.size_bytes - known[1], 0)
            if log is open_log:
                found[no] = log.tail, log.size_bytes
        return found, messages, size_bytes

    def _add(self, more: Mapping[str, tuple[int, int]]) -> None:
        weights = {topic: weight / 2 for topic, weight in self._weights.items() if weight >= 1}
        for topic, (_, size_bytes) in more.items():
            weights[topic] = weights.get(topic, 0.0) + size_bytes
        self._weights = weights

        def rank(topic: str) -> tuple[float, bool, str]:
            is_shown = topic in self._totals
            return -weights.get(topic, 0.0) * (KEEPS_SERIES if is_shown else 1), not is_shown, topic

        known = {*weights, *self._totals, *self._pending()} - {OTHER}
        shown = sorted(known, key=rank)[: self._series_max]
        totals = {topic: self._totals.get(topic, (0, 0)) for topic in sorted(shown)}
        if len(known) > len(shown) or OTHER in self._totals:
            totals[OTHER] = self._totals.get(OTHER, (0, 0))
        for topic, (messages, size_bytes) in more.items():
            name = topic if topic in totals else OTHER
            before = totals[name]
            totals[name] = before[0] + messages, before[1] + size_bytes
        self._totals = totals

    def collect(self) -> Iterable[Metric]:
        """All samples of the last measurement. The registry calls it."""
        self._is_read.set()
        for place, (name, text) in enumerate(_COUNTERS):
            counter = CounterMetricFamily(f"seriatim_topic_stored_{name}", text, labels=["broker", "topic"])
            for topic, counts in self._totals.items():
                counter.add_metric([self._broker, topic], counts[place])
            yield counter
        pending = dict.fromkeys(self._totals, 0)
        for topic, messages in self._pending().items():
            name = topic if topic in pending else OTHER
            pending[name] = pending.get(name, 0) + messages
        gauge = GaugeMetricFamily(
            "seriatim_topic_delayed_pending",
            "Messages that wait to be fired, of segments that this broker serves, by topic",
            labels=["broker", "topic"],
        )
        for topic, messages in pending.items():
            gauge.add_metric([self._broker, topic], messages)
        yield gauge
