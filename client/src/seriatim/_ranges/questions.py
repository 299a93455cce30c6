"""Questions about ranges that any broker answers: where partitions begin and end, and the pieces of a range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

from seriatim_api.errors import BadRequestError, PositionUnknownError, SeriatimError
from seriatim_api.ids import INDEX_BITS, SEGMENT_BITS, check_name, make_offset
from seriatim_api.status import error_from_proto
from seriatim_api.v1 import ranges_pb2

from seriatim._ranges.records import LostRange, PartitionOffset, RangePiece, RangePlan, RetainedRange
from seriatim._transport.unary import Caller
from seriatim._values.arguments import check_partitions
from seriatim._values.conversion import value_of

At = Literal["earliest", "end"] | datetime
"""A place that exists in each partition: the first message kept, the end, or the first message at or after a time."""

_NAMED: Final = {"earliest": ranges_pb2.OFFSET_AT_EARLIEST, "end": ranges_pb2.OFFSET_AT_END}


async def offsets(
    caller: Caller, topic: str, at: At, partitions: Sequence[int] | None, incarnation: str, timeout_s: float
) -> tuple[PartitionOffset, ...]:
    """See `Client.offsets`."""
    check_name(topic, "topic")
    check_partitions(partitions)
    request = ranges_pb2.GetOffsetsRequest(topic=topic, incarnation=incarnation, partitions=partitions)
    if isinstance(at, datetime):
        request.at, request.time_ms = ranges_pb2.OFFSET_AT_TIME, milliseconds(at)
    elif at in _NAMED:
        request.at = _NAMED[at]
    else:
        raise BadRequestError(f"a place is 'earliest', 'end' or a time, not {at!r}")
    answer: ranges_pb2.GetOffsetsResponse = await caller.ranges("GetOffsets", request, timeout_s)
    return tuple(_offset(row, topic, answer.incarnation) for row in answer.partitions)


async def retained(caller: Caller, topic: str, incarnation: str, timeout_s: float) -> tuple[RetainedRange, ...]:
    """See `Client.retained`."""
    check_name(topic, "topic")
    request = ranges_pb2.GetOffsetsRequest(
        topic=topic, incarnation=incarnation, at=ranges_pb2.OFFSET_AT_EARLIEST, with_kept=True
    )
    answer: ranges_pb2.GetOffsetsResponse = await caller.ranges("GetOffsets", request, timeout_s)
    return tuple(_retained(row, topic) for row in answer.partitions)


def _retained(row: ranges_pb2.PartitionOffset, topic: str) -> RetainedRange:
    _check_answer(row, topic)
    kept = row.kept
    return RetainedRange(
        topic=topic,
        partition=row.partition,
        offset=row.offset,
        messages=kept.messages,
        size_bytes=kept.bytes if kept.HasField("bytes") else None,
        since_ms=kept.append_time_ms if kept.HasField("append_time_ms") else None,
    )


def _check_answer(row: ranges_pb2.PartitionOffset, topic: str) -> None:
    if row.HasField("error"):
        error: SeriatimError = error_from_proto(row.error)
        raise PositionUnknownError(f"partition {row.partition} of {topic!r}: {error.message}") from error


def _offset(row: ranges_pb2.PartitionOffset, topic: str, incarnation: str) -> PartitionOffset:
    _check_answer(row, topic)
    return value_of(PartitionOffset, row, topic=topic, incarnation=incarnation)


def milliseconds(time: datetime) -> int:
    """The time in milliseconds since 1970.

    Raises:
        BadRequestError: The time has no zone, or is before 1970.
    """
    if time.tzinfo is None:
        raise BadRequestError(f"{time.isoformat()} has no time zone: give it one, as with .astimezone()")
    value = int(time.timestamp() * 1000)
    if value < 0:
        raise BadRequestError(f"{time.isoformat()} is before 1970: there was no message then")
    return value


async def plan_range(
    caller: Caller,
    topic: str,
    partition: int,
    start: int,
    end: int,
    cut_bytes: int,
    incarnation: str,
    timeout_s: float,
) -> RangePlan:
    """See `Client.plan_range`."""
    check_range(start, end)
    if partition < 0 or cut_bytes < 0:
        raise BadRequestError("partition and cut_bytes are 0 or more")
    request = ranges_pb2.PlanRangeRequest(
        topic=topic, incarnation=incarnation, partition=partition, to_offset=end, cut_bytes=cut_bytes
    )
    pieces: list[RangePiece] = []
    losses: list[LostRange] = []
    next_offset: int | None = start
    while next_offset is not None:
        request.from_offset = next_offset
        page: ranges_pb2.PlanRangeResponse = await caller.ranges("PlanRange", request, timeout_s)
        request.incarnation = page.incarnation  # all pages are about one incarnation
        pieces += map(_piece, page.pieces)
        losses += (
            LostRange(topic, partition, loss.from_offset, loss.to_offset, "lost" if loss.is_gap else "dropped")
            for loss in page.losses
        )
        next_offset = page.next_offset if page.HasField("next_offset") else None
    return RangePlan(topic, request.incarnation, partition, start, end, tuple(pieces), tuple(losses))


async def report_progress(
    caller: Caller, topic: str, group: str, offsets: Mapping[int, int], incarnation: str, timeout_s: float
) -> None:
    """See `Client.report_progress`."""
    for name in (topic, group):
        check_name(name, "topic or a consumer group")
    if any(partition < 0 for partition in offsets):
        raise BadRequestError("the partitions of a topic are counted from 0")
    for offset in offsets.values():
        check_range(offset, offset)
    request = ranges_pb2.ReportProgressRequest(topic=topic, incarnation=incarnation, group=group)
    for partition, offset in sorted(offsets.items()):
        request.partitions.add(partition=partition, offset=offset)
    await caller.ranges("ReportProgress", request, timeout_s)


def check_range(start: int, end: int) -> None:
    """Refuse two numbers that are not a range.

    Raises:
        BadRequestError: The range ends before it begins, or a number is not an offset.
    """
    if not 0 <= start <= end < 1 << (SEGMENT_BITS + INDEX_BITS):
        raise BadRequestError(f"a range is from one offset to a higher one, not from {start} to {end}")


def _piece(piece: ranges_pb2.RangePiece) -> RangePiece:
    return value_of(
        RangePiece,
        piece,
        start=make_offset(piece.segment, piece.from_index),
        end=make_offset(piece.segment, piece.to_index),
        size_bytes=piece.bytes if piece.HasField("bytes") else None,
    )
