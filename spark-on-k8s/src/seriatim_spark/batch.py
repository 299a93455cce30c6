"""Planning of a batch read: from where to where in each partition, and which task reads what."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from seriatim_api.ids import INDEX_BITS, format_offset

from seriatim_spark.brokers import Brokers, Place, Range, TopicAt
from seriatim_spark.errors import OffsetsError
from seriatim_spark.offsets import StartOrEnd, UserPlaces
from seriatim_spark.options import ReadOptions
from seriatim_spark.planning import Unit
from seriatim_spark.units import accept, losses_below, tasks_of

Key = tuple[str, int]
"""Topic and partition."""


def incarnations_of(*wheres: StartOrEnd | None) -> dict[str, str]:
    """The topics that are meant, as far as offsets of a user say that."""
    return {
        topic: found.incarnation
        for where in wheres
        if isinstance(where, dict)
        for topic, found in where.items()
        if found.incarnation
    }


def places_of(found: Mapping[str, TopicAt]) -> dict[Key, Place]:
    """By topic and partition."""
    return {(topic, number): place for topic, at in found.items() for number, place in at.places.items()}


def resolve(
    where: StartOrEnd | None,
    default: Mapping[Key, Place],
    earliest: Mapping[Key, Place],
    ends: Mapping[Key, Place],
    brokers: Brokers,
    incarnations: Mapping[str, str],
) -> dict[Key, int]:
    """The offsets that a user means, for each partition that is read.

    Args:
        where: What the user said.
        default: For what was not said.
        earliest: The first messages that are kept.
        ends: The ends of the partitions.
        brokers: Asked about times.
        incarnations: Of the topics.

    Raises:
        OffsetsError: Places in partitions that are not there, or not read.
    """
    if where is None:
        return {key: place.offset for key, place in default.items()}
    if isinstance(where, datetime):
        at_time = places_of(brokers.at(where, incarnations))
        # What was appended since the ends were asked for is not read.
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


def plan_batch(options: ReadOptions, brokers: Brokers) -> list[tuple[Unit, ...]]:
    """The tasks of a batch read.

    Raises:
        SourceError: Of the kinds in `errors`.
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
    ranges = {key: Range(key[0], topics[key[0]], key[1], starts[key], stops[key]) for key in ends}
    _check(ranges, ends)
    gone = losses_below({key: one for key, one in ranges.items() if one.start < one.end}, earliest, brokers)
    accept(list(gone.values()), options)
    ranges = {
        key: Range(one.topic, one.incarnation, one.partition, max(one.start, earliest[key].offset), one.end)
        for key, one in ranges.items()
    }
    return tasks_of(_counted(ranges, earliest, ends, brokers), options, brokers)


def _check(ranges: Mapping[Key, Range], ends: Mapping[Key, Place]) -> None:
    for key, one in ranges.items():
        where = f"{one.topic}/{one.partition}"
        behind = max(one.start, one.end)
        if behind > ends[key].offset:
            raise OffsetsError(
                f"{format_offset(behind)} lies behind the end of {where}, which is {format_offset(ends[key].offset)}"
            )
        if one.start > one.end:
            raise OffsetsError(
                f"{where} would be read from {format_offset(one.start)} to {format_offset(one.end)}, which lies before"
            )


def _counted(
    ranges: Mapping[Key, Range], earliest: Mapping[Key, Place], ends: Mapping[Key, Place], brokers: Brokers
) -> dict[Range, int]:
    """Ranges with their number of messages: from positions where these are known, else from the segments between."""
    counted: dict[Range, int] = {}
    unknown: list[Range] = []
    for key, one in ranges.items():
        if one.start >= one.end:
            continue
        if (one.start, one.end) == (earliest[key].offset, ends[key].offset):
            counted[one] = ends[key].position - earliest[key].position
        elif one.start >> INDEX_BITS == one.end >> INDEX_BITS:
            counted[one] = one.end - one.start
        else:
            unknown.append(one)
    for one, plan in zip(unknown, brokers.plans(unknown, 0) if unknown else (), strict=True):
        counted[one] = sum(piece.rows for piece in plan.pieces)
    return counted
