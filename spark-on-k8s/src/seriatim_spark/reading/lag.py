"""How many messages a query has not read yet, for the metrics of its driver."""

from __future__ import annotations

from seriatim_spark.offsets import Offsets
from seriatim_spark.reading.batch_plan import places_of
from seriatim_spark.reading.brokers import Brokers, Range, lengths_of
from seriatim_spark.reading.message_counts import UNKNOWN, Lengths
from seriatim_spark.reading.units import Key


class LagCounter:
    """Compares the offsets that a query has read with the present ends of its partitions.

    Args:
        brokers: The brokers to ask: once for all ends, and once more for each partition with a new segment.
    """

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._lengths: dict[Key, Lengths] = {}

    def lags(self, read: Offsets) -> dict[Key, int]:
        """Messages that each partition has and the query has not read.

        Messages that were dropped or declared lost do not count. If no member of a segment answers, its messages and
        those after it do not count either.

        Args:
            read: Where the query's last micro-batch ended.

        Raises:
            SourceError: The brokers do not answer in time, or the topic was deleted.
        """
        incarnations = {topic: found.incarnation for topic, found in read.items()}
        ends = self._brokers.at("end", incarnations)
        by_key = places_of(ends)
        places = {(topic, number): at for topic, found in read.items() for number, at in found.places.items()}
        ranges = {
            key: Range(key[0], ends[key[0]].incarnation, key[1], places[key], end.offset)
            for key, end in by_key.items()
            if key in places
        }
        self._learn_lengths(ranges)
        lags = {key: self._lengths.get(key, UNKNOWN).count(one.start, one.end) for key, one in ranges.items()}
        new = by_key.keys() - ranges.keys()
        if new:  # the query has not read these partitions, because they are new
            first = places_of(self._brokers.at("earliest", incarnations))
            lags |= {key: by_key[key].position - first[key].position for key in new if key in first}
        return lags

    def _learn_lengths(self, ranges: dict[Key, Range]) -> None:
        asked = {
            key: one for key, one in ranges.items() if not self._lengths.get(key, UNKNOWN).suffice(one.start, one.end)
        }
        for (key, one), plan in zip(asked.items(), self._brokers.plans(list(asked.values()), 0), strict=True):
            self._lengths[key] = lengths_of(one, plan.pieces)
