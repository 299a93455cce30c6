"""Planning of a streaming read: where a query begins, where the next micro-batch ends, and which task reads which
units.

Spark keeps the offsets and calls this module. This module can recreate all its state after a restart. The caller gives
the clock and the brokers, so tests need no Spark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from seriatim_api.ids import format_offset

from seriatim_spark.errors import DataLossError, OffsetsError, replaced
from seriatim_spark.offsets import Offsets, TopicPlaces, from_json, to_json
from seriatim_spark.options import ReadOptions
from seriatim_spark.reading.admission import Lag, admit
from seriatim_spark.reading.batch_plan import in_the_way, incarnations_of, places_of, resolve
from seriatim_spark.reading.brokers import Brokers, Place, Range, TopicAt, lengths_of
from seriatim_spark.reading.message_counts import UNKNOWN, Lengths
from seriatim_spark.reading.task_plan import Unit
from seriatim_spark.reading.units import Key, Sleep, accept, accept_unsettled, losses_below, tasks_of, when_settled

ENDS_KEPT_S: Final = 0.1
"""The answer about the ends is used for at least this long, because an idle query asks every 10 ms."""

ENDS_KEPT_S_MAX: Final = 2.0
ENDS_SHARE: Final = 20
"""The answer about the ends is used for this multiple of the time that the request took, between these two limits.
Otherwise an idle query with 10,000 partitions would keep brokers busy."""

EARLIEST_KEPT_S: Final = 60.0
"""The first places are used for this long, because brokers run retention only once a minute."""

ROW_BYTES_UNKNOWN: Final = 1024.0

_log = logging.getLogger("seriatim.spark")


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits that Spark sets for a micro-batch.

    Attributes:
        everything: Whether the micro-batch reads all messages that wait. Then the limits of the options do not count.
        max_rows, max_bytes: The most that the micro-batch may read; None: no limit.
    """

    everything: bool = False
    max_rows: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """The messages that wait behind a start.

    The planner keeps them while start and ends stay the same, because Spark asks often.
    """

    start: Mapping[str, Any]
    ends: Mapping[str, TopicAt]
    begun: Offsets
    ranges: dict[Key, Range]
    lags: dict[Key, Lag]
    rows: int


class StreamPlanner:
    """Answers Spark's calls for one query.

    Args:
        options: The options of the query.
        brokers: The brokers to ask.
        clock: A clock in seconds that never goes back.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self, options: ReadOptions, brokers: Brokers, clock: Callable[[], float], sleep: Sleep = time.sleep
    ) -> None:
        self._options = options
        self._brokers = brokers
        self._clock = clock
        self._sleep = sleep
        self._incarnations: dict[str, str] = {}
        self._ends: tuple[float, dict[str, TopicAt]] | None = None  # the ends, and until when they are used
        self._seen: _Seen | None = None
        self._earliest: tuple[float, dict[Key, Place]] | None = None
        self._target: dict[str, TopicAt] | None = None
        self._stop: dict[Key, int] = {}  # places of endingTimestamp or endingOffsets, once they are fixed
        self._lengths: dict[Key, Lengths] = {}
        self._told: set[str] = set()
        self._batch_at = clock()

    # ---- Spark's questions ----

    def initial(self) -> dict[str, Any]:
        """Return where the query begins, if it has no checkpoint.

        Raises:
            SourceError: An error of the kinds in `errors`.
        """
        self._know(incarnations_of(self._options.start, self._options.end))
        ends = self._current_ends()
        earliest = self._first_places()
        by_key = places_of(ends)
        default = {key: place for key, place in earliest.items() if key in by_key}
        found = resolve(self._options.start, default, earliest, by_key, self._brokers, self._incarnations)
        offsets = {topic: TopicPlaces(at.incarnation, {}) for topic, at in ends.items()}
        for (topic, number), offset in found.items():
            end = by_key[topic, number].offset
            if offset > end:
                raise OffsetsError(
                    f"{format_offset(offset)} lies after the end of {topic}/{number}, which is {format_offset(end)}"
                )
            offsets[topic].places[number] = offset
        return to_json(offsets)

    def freeze(self) -> None:
        """Fix the end of the query at the present ends of the partitions. Wait up to `readTimeout` for unsettled
        segments.

        Raises:
            UnsettledError: A segment did not become settled, and `failOnDataLoss` is set.
            SourceError: Another error of the kinds in `errors`.
        """

        def look() -> tuple[dict[str, TopicAt], list[Key]]:
            self._ends, self._stop = None, {}
            found = self._current_ends()
            blocked = {key: place for key, place in places_of(found).items() if place.blocked}
            if blocked:
                self._bounded(found)  # fixes self._stop
            stops = {key: self._stop.get(key, place.offset) for key, place in blocked.items()}
            end = self._options.end
            return found, [key for key, place in blocked.items() if in_the_way(key, place, stops[key], end)]

        target, unsettled = when_settled(look, self._options.read_timeout_s, self._clock, self._sleep)
        accept_unsettled(unsettled, places_of(target), self._options)
        self._target = target

    def latest(self, start: Mapping[str, Any], limit: Limit) -> dict[str, Any]:
        """Return where the next micro-batch ends. If there is nothing to do, the result is the same text as `start`.

        Args:
            start: Where the micro-batch begins.
            limit: The limits that Spark sets.

        Raises:
            SourceError: An error of the kinds in `errors`.
        """
        ends = self._target or self._current_ends()
        seen = self._seen
        if seen is None or seen.ends is not ends or seen.start != start:
            seen = self._seen = self._look(start, ends)
        if not seen.rows or self._waits_for_more(seen.rows, limit):
            return dict(start)
        shares = self._shares(seen.lags, limit)
        result = {topic: TopicPlaces(at.incarnation, dict(seen.begun[topic].places)) for topic, at in ends.items()}
        for key, one in seen.ranges.items():
            topic, number = key
            rows = shares.get(key, 0)
            if rows:
                whole = rows >= seen.lags[key].rows
                end = one.end if whole else self._lengths.get(key, UNKNOWN).advance(one.start, one.end, rows)
                result[topic].places[number] = end
            else:  # the same place has two forms: keep the old one
                result[topic].places.setdefault(number, one.start)
        if shares:
            self._batch_at = self._clock()
        return to_json(result)

    def _look(self, start: Mapping[str, Any], ends: dict[str, TopicAt]) -> _Seen:
        begun = self._checked(start)
        for topic, at in ends.items():
            known = begun.setdefault(topic, TopicPlaces(at.incarnation, {}))
            assert known.incarnation == at.incarnation, "both were compared with what is known of the topic"
        ranges = self._ranges(begun, self._bounded(ends))
        self._learn_lengths(ranges)
        by_key, earliest = places_of(ends), self._first_of(list(ranges))
        lags = {key: Lag(self._count(one), _row_bytes(earliest[key], by_key[key])) for key, one in ranges.items()}
        return _Seen(start, ends, begun, ranges, lags, sum(lag.rows for lag in lags.values()))

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[Unit, ...]]:
        """Return the units of each task of a micro-batch. Each call gives the same tasks.

        Raises:
            SourceError: An error of the kinds in `errors`.
        """
        begun, ended = self._checked(start), self._checked(end)
        for topic in begun:
            if topic in ended and begun[topic].incarnation != ended[topic].incarnation:
                raise replaced(topic, "the checkpoint names two of them")
        stops = {
            (topic, number): at
            for topic, found in ended.items()
            for number, at in found.places.items()
            if topic not in begun or begun[topic].places.get(number) != at
        }
        ranges = self._ranges(begun, stops, ended)
        self._learn_lengths(ranges)
        # A range begins where the checkpoint says, although messages at its beginning may be gone. So the results of
        # tasks, such as names of files, are the same each time.
        counted = {
            replace(one, start=begun[key[0]].places.get(key[1], one.start) if key[0] in begun else one.start): (
                self._count(one)
            )
            for key, one in ranges.items()
        }
        return tasks_of(counted, self._options, self._brokers)

    def latest_reported(self) -> dict[str, Any]:
        """Return where the partitions end, for Spark's report of progress."""
        ends = self._target or self._current_ends()
        return to_json(
            {
                topic: TopicPlaces(at.incarnation, {number: place.offset for number, place in at.places.items()})
                for topic, at in ends.items()
            }
        )

    # ---- what brokers know ----

    def _know(self, incarnations: Mapping[str, str]) -> None:
        for topic, incarnation in incarnations.items():
            known = self._incarnations.setdefault(topic, incarnation)
            if known != incarnation:
                raise replaced(topic, "another topic of that name was made")

    def _checked(self, offsets: Mapping[str, Any]) -> Offsets:
        found = from_json(offsets)
        others = sorted(set(found) - set(self._options.topics))
        if others:
            raise OffsetsError(
                f"the checkpoint has read {', '.join(others)}, which the option topic does not name. Name all of its "
                "topics, or use a new checkpoint."
            )
        self._know({topic: at.incarnation for topic, at in found.items()})
        for topic in self._options.topics:
            if topic not in found and topic in self._incarnations:
                found[topic] = TopicPlaces(self._incarnations[topic], {})
        return found

    def _current_ends(self) -> dict[str, TopicAt]:
        asked_at = self._clock()
        if self._ends is None or asked_at >= self._ends[0]:
            found = self._brokers.at("end", self._incarnations)
            self._know({topic: at.incarnation for topic, at in found.items()})
            if self._ends is not None and self._ends[1] == found:
                found = self._ends[1]
            now = self._clock()
            kept_s = min(max(ENDS_KEPT_S, (now - asked_at) * ENDS_SHARE), ENDS_KEPT_S_MAX)
            self._ends = (now + kept_s, found)
        return self._ends[1]

    def _first_places(self) -> dict[Key, Place]:
        now = self._clock()
        if self._earliest is None or now - self._earliest[0] >= EARLIEST_KEPT_S:
            self._earliest = (now, places_of(self._brokers.at("earliest", self._incarnations)))
        return self._earliest[1]

    def _first_of(self, keys: Sequence[Key]) -> dict[Key, Place]:
        """Return the first places. If a partition is new, ask brokers again."""
        found = self._first_places()
        if any(key not in found for key in keys):
            self._earliest = None
            found = self._first_places()
        return found

    def _bounded(self, ends: Mapping[str, TopicAt]) -> dict[Key, int]:
        """Return the ends, or the end of the query by the options if that is before."""
        found = {key: place.offset for key, place in places_of(ends).items()}
        if self._options.end is None:
            return found
        if isinstance(self._options.end, datetime):
            if any(key not in self._stop for key in found):
                asked = places_of(self._brokers.at(self._options.end, self._incarnations))
                # If a partition has no message of that time or later, all its messages were appended before, so it has
                # no stop yet.
                self._stop |= {key: place.offset for key, place in asked.items() if place.found}
        elif not self._stop:
            by_key = places_of(ends)
            self._stop = resolve(
                self._options.end, by_key, self._first_of(list(by_key)), by_key, self._brokers, self._incarnations
            )
        return {key: min(offset, self._stop.get(key, offset)) for key, offset in found.items()}

    # ---- ranges ----

    def _ranges(self, begun: Offsets, stops: Mapping[Key, int], ended: Offsets | None = None) -> dict[Key, Range]:
        """Return the range of each partition.

        It begins after messages that are gone, if the options accept the loss.
        """
        earliest = self._first_of(list(stops))
        for topic, number in stops:
            if (topic, number) not in earliest:
                raise OffsetsError(f"the checkpoint has read partition {number} of {topic}, which is not read any more")
        ranges: dict[Key, Range] = {}
        new_and_dropped: list[str] = []
        for key, stop in stops.items():
            topic, number = key
            incarnation = (ended or begun)[topic].incarnation
            first = earliest[key]
            start = begun[topic].places.get(number) if topic in begun else None
            if start is None:  # the partition is newer than the query: read all of it
                start = first.offset
                if first.position and begun.get(topic, TopicPlaces("")).places:
                    new_and_dropped.append(f"{topic}/{number} up to {format_offset(first.offset)}, since it was made")
            ranges[key] = Range(topic, incarnation, number, start, max(start, stop))
        gone = losses_below({key: one for key, one in ranges.items() if one.start < one.end}, earliest, self._brokers)
        self._accept([*gone.values(), *new_and_dropped])
        return {
            key: Range(
                one.topic, one.incarnation, one.partition,
                min(max(one.start, earliest[key].offset), one.end) if key in gone else one.start, one.end,
            )
            for key, one in ranges.items()
        }  # fmt: skip

    def _accept(self, losses: Sequence[str]) -> None:
        newly = [loss for loss in losses if loss not in self._told]
        try:
            accept(newly, self._options)
        except DataLossError as exc:
            raise DataLossError(f"after the checkpoint, {exc}") from exc
        self._told.update(newly)
        if len(self._told) > 10_000:  # its only use is that no gap is logged twice
            self._told.clear()

    def _learn_lengths(self, ranges: Mapping[Key, Range]) -> None:
        asked = {
            key: one for key, one in ranges.items() if not self._lengths.get(key, UNKNOWN).suffice(one.start, one.end)
        }
        if asked:
            for (key, one), plan in zip(asked.items(), self._brokers.plans(list(asked.values()), 0), strict=True):
                # If all messages of a range are lost, the range has no rows, so no task would notice the loss.
                self._accept([f"{one.topic}/{one.partition}: {loss}" for loss in plan.losses])
                self._lengths[key] = lengths_of(one, plan.pieces)

    def _count(self, one: Range) -> int:
        return self._lengths.get((one.topic, one.partition), UNKNOWN).count(one.start, one.end)

    # ---- how much ----

    def _waits_for_more(self, rows: int, limit: Limit) -> bool:
        """Whether the micro-batch would have fewer rows than `minRowsPerTrigger`, and may still wait."""
        if limit.everything or self._target is not None or rows >= self._options.min_rows:
            return False
        return self._clock() - self._batch_at < self._options.trigger_delay_s

    def _shares(self, lags: Mapping[Key, Lag], limit: Limit) -> dict[Key, int]:
        if limit.everything:
            return {key: lag.rows for key, lag in lags.items() if lag.rows}
        rows = [most for most in (self._options.max_rows, limit.max_rows) if most is not None]
        size = [most for most in (self._options.max_bytes, limit.max_bytes) if most is not None]
        return admit(lags, min(rows, default=None), min(size, default=None))


def _row_bytes(first: Place, end: Place) -> float:
    """Return the average size of a partition's kept messages."""
    if end.bytes_before is None or first.bytes_before is None or end.position <= first.position:
        return ROW_BYTES_UNKNOWN
    return (end.bytes_before - first.bytes_before) / (end.position - first.position)
