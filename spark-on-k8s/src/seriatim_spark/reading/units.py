"""Turns ranges of partitions into tasks, for batch and streaming. It asks brokers only if ranges are cut."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from seriatim_api.ids import format_offset

from seriatim_spark.errors import DataLossError, UnsettledError
from seriatim_spark.options import CUT_BYTES_MIN, ReadOptions
from seriatim_spark.reading.brokers import Brokers, Place, Plan, Range
from seriatim_spark.reading.task_plan import Unit, pack

NAMED_MAX: Final = 5
"""The most gaps that one error names."""

SETTLE_PAUSE_S: Final = 0.5
"""Seconds between two checks whether a segment is settled."""

Key = tuple[str, int]
"""Topic and partition."""

T = TypeVar("T")
Clock = Callable[[], float]
Sleep = Callable[[float], None]

_log = logging.getLogger("seriatim.spark")


def tasks_of(ranges: Mapping[Range, int], options: ReadOptions, brokers: Brokers) -> list[tuple[Unit, ...]]:
    """Make tasks for ranges. `ranges` has the number of messages of each range.

    Raises:
        DataLossError: With `ordering=none`, messages of a range are gone.
    """
    asked = [found for found, rows in sorted(ranges.items(), key=_by_place) if rows > 0]
    if options.ordering == "partition":
        units = [Unit(one.topic, one.partition, one.start, one.end, one.incarnation, ranges[one]) for one in asked]
        return pack(units, options.min_partitions)
    plans = brokers.plans(asked, options.cut_bytes)
    size = sum(piece.size_bytes or 0 for plan in plans for piece in plan.pieces)
    wanted = options.min_partitions or 0
    if sum(len(plan.pieces) for plan in plans) < wanted:
        plans = brokers.plans(asked, max(size // wanted, CUT_BYTES_MIN))
    accept([loss for plan in plans for loss in plan.losses], options)
    units = [
        Unit(one.topic, one.partition, piece.start, piece.end, one.incarnation, piece.rows)
        for one, plan in zip(asked, plans, strict=True)
        for piece in plan.pieces
    ]
    return pack(units, options.min_partitions)


def _by_place(item: tuple[Range, int]) -> tuple[str, int, int]:
    return item[0].topic, item[0].partition, item[0].start


def accept(losses: Sequence[str], options: ReadOptions) -> None:
    """Accept messages that are gone, if the options allow it.

    Args:
        losses: The text of each loss.
        options: `fail_on_data_loss` decides.

    Raises:
        DataLossError: There are losses, and the options do not accept them.
    """
    if not losses:
        return
    shown = "; ".join(losses[:NAMED_MAX]) + (f"; and {len(losses) - NAMED_MAX} more" if losses[NAMED_MAX:] else "")
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{len(losses)} ranges that this query needs are gone: {shown}. Set failOnDataLoss=false to continue after "
            "them (each is logged), or keep messages for longer (seriatim topic alter --retention)."
        )
    _log.warning("%d ranges that this query needs are gone, and failOnDataLoss=false: %s", len(losses), shown)


def when_settled(
    look: Callable[[], tuple[T, list[Key]]], wait_s: float, clock: Clock = time.monotonic, sleep: Sleep = time.sleep
) -> tuple[T, list[Key]]:
    """Call `look` until all ends are settled or the time is over. Returns what its last call found.

    Args:
        look: Returns its finding, and the partitions whose ends matter and are not settled.
        wait_s: Seconds for which to look.
        clock: A clock in seconds that never goes back.
        sleep: Waits for a number of seconds.
    """
    until = clock() + wait_s
    while True:
        found, unsettled = look()
        if not unsettled or clock() >= until:
            return found, unsettled
        sleep(SETTLE_PAUSE_S)


def accept_unsettled(unsettled: Iterable[Key], ends: Mapping[Key, Place], options: ReadOptions) -> None:
    """Accept that partitions are read only up to a segment that is not settled, if the options allow it.

    Args:
        unsettled: The partitions whose ends are not settled.
        ends: Where these partitions end for now.
        options: `fail_on_data_loss` decides.

    Raises:
        UnsettledError: There are such partitions, and the options do not accept it.
    """
    found = [f"{key[0]}/{key[1]} at {format_offset(ends[key].offset)}" for key in sorted(unsettled)]
    if not found:
        return
    shown = ", ".join(found[:NAMED_MAX]) + (f" and {len(found) - NAMED_MAX} more" if found[NAMED_MAX:] else "")
    text = (
        f"{len(found)} partitions end for now before a segment of which no member answers: {shown}. Acknowledged "
        "messages may stand there"
    )
    if options.fail_on_data_loss:
        raise UnsettledError(
            f"{text}; no member came back within readTimeout. Start the brokers of that segment (seriatim "
            "chain show shows them) and run this again, or set failOnDataLoss=false to read up to there."
        )
    _log.warning("%s, and failOnDataLoss=false: they are not read now", text)


def losses_below(
    starts: Mapping[tuple[str, int], Range], earliest: Mapping[tuple[str, int], Place], brokers: Brokers
) -> dict[tuple[str, int], str]:
    """Describe the ranges that begin before the first kept message, if messages between are gone.

    Args:
        starts: The ranges, by topic and partition.
        earliest: The first kept message, by topic and partition.
        brokers: The brokers to ask which messages were between.
    """
    below = {
        key: Range(one.topic, one.incarnation, one.partition, one.start, earliest[key].offset)
        for key, one in starts.items()
        if one.start < earliest[key].offset and earliest[key].position > 0
    }
    plans: list[Plan] = brokers.plans(list(below.values()), 0) if below else []
    return {
        key: f"{one.topic}/{one.partition} from {format_offset(one.start)} to {format_offset(one.end)}"
        for (key, one), plan in zip(below.items(), plans, strict=True)
        if plan.losses
    }
