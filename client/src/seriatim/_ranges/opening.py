"""Asks once where a range begins and ends, and makes its reader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

from seriatim_api.errors import BadRequestError, OffsetOutOfRangeError
from seriatim_api.ids import format_offset

from seriatim._ranges import QUESTION_DEADLINE_S
from seriatim._ranges.questions import At, check_range, offsets
from seriatim._ranges.reader import RangeReader
from seriatim._ranges.records import LostRange, PartitionOffset
from seriatim._transport.channels import Channels
from seriatim._transport.unary import Caller
from seriatim._values.arguments import check_callback
from seriatim._values.settings import Credit

CREDIT_BYTES: Final = 8 << 20
CREDIT_BYTES_MIN: Final = 1 << 16


async def open_range(
    caller: Caller,
    channels: Channels,
    client_name: str,
    topic: str,
    partition: int,
    start: int | At,
    end: int | At,
    incarnation: str,
    *,
    raw: bool,
    on_loss: Callable[[LostRange], None] | None,
    credit_bytes: int | None,
    read_timeout_s: float,
) -> RangeReader:
    """See `Client.read_range`."""
    size_bytes = CREDIT_BYTES if credit_bytes is None else credit_bytes
    credit = Credit(size_bytes, size_bytes, is_fixed=credit_bytes is not None)
    if credit.least_bytes < CREDIT_BYTES_MIN or read_timeout_s <= 0:
        raise BadRequestError("credit_bytes is at least 64 KiB, and read_timeout_s is above 0")
    check_callback("on_loss", on_loss)
    if partition < 0:
        raise BadRequestError("the partitions of a topic are counted from 0")

    async def place(at: At) -> PartitionOffset:
        (found,) = await offsets(caller, topic, at, [partition], incarnation, QUESTION_DEADLINE_S)
        return found

    last = await place("end")
    incarnation = last.incarnation  # all later questions are about this incarnation
    first = await _offset_of(start, last, place)
    behind = await _offset_of(end, last, place)
    if isinstance(start, datetime) and isinstance(end, datetime) and start > end:
        raise BadRequestError("a range begins before its end")
    _check_is_there(max(first, behind), last.offset, f"{topic}/{partition}")
    check_range(first, behind)
    return RangeReader(
        topic, incarnation, partition, last.partition_id, first, behind, epoch=last.epoch, raw=raw, credit=credit,
        read_timeout_s=read_timeout_s, on_loss=on_loss, channels=channels, caller=caller, client_name=client_name,
    )  # fmt: skip


def _check_is_there(offset: int, end: int, where: str) -> None:
    if offset > end:
        text = f"offset {format_offset(offset)} is after the end of {where}, which is {format_offset(end)}"
        raise OffsetOutOfRangeError(text, end=end)


async def _offset_of(at: int | At, last: PartitionOffset, ask: Callable[[At], Awaitable[PartitionOffset]]) -> int:
    if at == "end":
        return last.offset
    if isinstance(at, int) and at:
        check_range(0, at)
        return at
    if isinstance(at, int):
        at = "earliest"  # offset 0 is before all messages, so the range begins at the first one that is kept
    # Messages that came after the question for the end are not read.
    return min((await ask(at)).offset, last.offset)
