"""Planning of a batch read: the range of each partition, and the ranges of each task."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from seriatim_api.ids import INDEX_BITS, format_offset

from seriatim_spark.errors import OffsetsError
from seriatim_spark.offsets import StartOrEnd, UserPlaces
from seriatim_spark.options import ReadOptions
from seriatim_spark.reading.brokers import Brokers, Place, Range, TopicAt
from seriatim_spark.reading.task_plan import Unit
from seriatim_spark.reading.units import (
    Clock,
    Key,
    Sleep,
    accept,
    accept_unsettled,
    losses_below,
    tasks_of,
    when_settled,
)


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a batch read.

    Attributes:
        ranges: The range of each partition. It begins at the first kept message, or later.
        gone: For each partition, a text about messages that the query asked for and that are gone.
        unsettled: Partitions with a segment that is not settled. They are read up to this segment.
        earliest, ends: The first kept message and the end of each partition.
    """

    ranges: dict[Key, Range]
    gone: dict[Key, str]
    unsettled: tuple[Key, ...]
    earliest: dict[Key, Place]
    ends: dict[Key, Place]


def incarnations_of(*wheres: StartOrEnd | None) -> dict[str, str]:
    """Return the incarnations of topics that the offsets of a user name."""
    return {
        topic: found.incarnation
        for where in wheres
        if isinstance(where, dict)
        for topic, found in where.items()
        if found.incarnation
    }


def places_of(found: Mapping[str, TopicAt]) -> dict[Key, Place]:
    """Return the places by topic and partition."""
    return {(topic, number): place for topic, at in found.items() for number, place in at.places.items()}


def resolve(
    where: StartOrEnd | None,
    default: Mapping[Key, Place],
    earliest: Mapping[Key, Place],
    ends: Mapping[Key, Place],
    brokers: Brokers,
    incarnations: Mapping[str, str],
) -> dict[Key, int]:
    """For each partition that is read, find the offset that the user's option means.

    Args:
        where: The value of the option; None: the user gave none.
        default: The places of partitions that the option does not name.
        earliest: The first kept message of each partition.
        ends: The end of each partition.
        brokers: The brokers that turn a time into offsets.
        incarnations: The incarnation of each topic, by name.

    Raises:
        OffsetsError: The option names a partition that the topic does not have, or that the query does not read.
    """
    if where is None:
        return {key: place.offset for key, place in default.items()}
    if isinstance(where, datetime):
        at_time = places_of(brokers.at(where, incarnations))
        # The query does not read messages that were appended after it asked for the ends.
        return {key: min(at_time[key].offset, ends[key].offset) for key in ends if key in at_time}
    named = {"earliest": earliest, "latest": ends}
    if isinstance(where, str):
        return {key: place.offset for key, place in named[where].items()}
    return _of_user(where, default, named)


def _of_user(
    where: Mapping[str, UserPlaces], default: Mapping[Key, Place], named: Mapping[str, Mapping[Key, Place]]
) -> dict[Key, int]:
    found = {key: place.offset for key, place in default.items()}
    for topic, said in where.items():
        for number, at in said.places.items():
            key = (topic, number)
            if key not in found:
                raise OffsetsError(
                    f"the offsets speak of partition {number} of {topic}, which the topic does not have or the option "
                    "partitions leaves out"
                )
            found[key] = at if isinstance(at, int) else named[at][key].offset
    return found


def plan_batch(
    options: ReadOptions, brokers: Brokers, clock: Clock = time.monotonic, sleep: Sleep = time.sleep
) -> list[tuple[Unit, ...]]:
    """Return the tasks of a batch read. Wait up to `readTimeout` for segments that are not settled.

    Raises:
        SourceError: An error of the kinds in `errors`.
    """
    found = ranges_of(options, brokers, clock, sleep)
    accept_unsettled(found.unsettled, found.ends, options)
    accept(list(found.gone.values()), options)
    counted, losses = _counted(found, brokers)
    accept(losses, options)
    return tasks_of(counted, options, brokers)


def ranges_of(
    options: ReadOptions, brokers: Brokers, clock: Clock = time.monotonic, sleep: Sleep = time.sleep
) -> Planned:
    """Plan the range of each partition, and say which messages cannot be read. Wait as `plan_batch` does.

    Raises:
        SourceError: An error of the kinds in `errors`. Messages that are gone or not settled raise no error.
    """
    found, unsettled = when_settled(lambda: _look(options, brokers), options.read_timeout_s, clock, sleep)
    earliest, ends, starts, stops, topics = found
    for key in unsettled:
        stops[key] = min(stops[key], ends[key].offset)
        starts[key] = min(starts[key], stops[key])
    ranges = {key: Range(key[0], topics[key[0]], key[1], starts[key], stops[key]) for key in ends}
    _check(ranges, ends)
    gone = losses_below({key: one for key, one in ranges.items() if one.start < one.end}, earliest, brokers)
    ranges = {
        key: Range(one.topic, one.incarnation, one.partition, max(one.start, earliest[key].offset), one.end)
        for key, one in ranges.items()
    }
    return Planned(ranges, gone, tuple(unsettled), earliest, ends)


_Looked = tuple[dict[Key, Place], dict[Key, Place], dict[Key, int], dict[Key, int], dict[str, str]]


def _look(options: ReadOptions, brokers: Brokers) -> tuple[_Looked, list[Key]]:
    """Ask for first places, ends, the start and stop of each partition, and incarnations.

    Also return the unsettled ends that matter for the read.
    """
    said = incarnations_of(options.start, options.end)
    at_end = brokers.at("end", said)
    topics = {topic: at.incarnation for topic, at in at_end.items()}
    at_start = brokers.at("earliest", topics)
    ends = places_of(at_end)
    earliest = {key: place for key, place in places_of(at_start).items() if key in ends}
    ends = {key: place for key, place in ends.items() if key in earliest}
    starts = resolve(options.start, earliest, earliest, ends, brokers, topics)
    stops = resolve(options.end, ends, earliest, ends, brokers, topics)
    unsettled = [
        key for key, place in ends.items() if place.blocked and in_the_way(key, place, stops[key], options.end)
    ]
    return (earliest, ends, starts, stops, topics), unsettled


def in_the_way(key: Key, end: Place, stop: int, where: StartOrEnd | None) -> bool:
    """Whether an unsettled end matters for a read up to `stop`. `where` is the option that gave `stop`."""
    if isinstance(where, dict) and key[0] in where and isinstance(where[key[0]].places.get(key[1]), int):
        return stop > end.offset
    return stop >= end.offset


def _check(ranges: Mapping[Key, Range], ends: Mapping[Key, Place]) -> None:
    for key, one in ranges.items():
        where = f"{one.topic}/{one.partition}"
        behind = max(one.start, one.end)
        if behind > ends[key].offset:
            raise OffsetsError(
                f"{format_offset(behind)} lies after the end of {where}, which is {format_offset(ends[key].offset)}"
            )
        if one.start > one.end:
            raise OffsetsError(
                f"{where} would be read from {format_offset(one.start)} to {format_offset(one.end)}, which lies before"
            )


def _counted(found: Planned, brokers: Brokers) -> tuple[dict[Range, int], list[str]]:
    """Count the messages of each range: by positions if they are known, otherwise by the segments between.

    Also return the messages that were declared lost in the ranges that brokers counted. Such a range may have no
    messages left, so no task would notice the loss.
    """
    counted: dict[Range, int] = {}
    unknown: list[Range] = []
    for key, one in found.ranges.items():
        earliest, end = found.earliest[key], found.ends[key]
        if one.start >= one.end:
            continue
        if (one.start, one.end) == (earliest.offset, end.offset) and end.position > earliest.position:
            counted[one] = end.position - earliest.position
        elif one.start >> INDEX_BITS == one.end >> INDEX_BITS:
            counted[one] = one.end - one.start
        else:
            unknown.append(one)
    plans = brokers.plans(unknown, 0) if unknown else []
    for one, plan in zip(unknown, plans, strict=True):
        counted[one] = sum(piece.rows for piece in plan.pieces)
    losses = [
        f"{one.topic}/{one.partition}: {loss}" for one, plan in zip(unknown, plans, strict=True) for loss in plan.losses
    ]
    return counted, losses
