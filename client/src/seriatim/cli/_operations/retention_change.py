"""The options about retention, its description in words, and the messages that a shorter retention would drop.

The command computes these messages from places in the partitions, as of now. This changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click
from seriatim_api.ids import format_offset

from seriatim.cli._options.amounts import DURATION, format_duration, format_size, size_type
from seriatim.cli._options.places import next_offset
from seriatim.cli._rendering.output import draw
from seriatim.cli._rendering.times import utc

if TYPE_CHECKING:
    from rich.table import Table

    from seriatim import Client, GroupPartition, RetainedRange, TopicSettings

SIZE_MIN: Final = 1 << 20
PIECES_ASKED: Final = 64
"""To find the end of the range that a limit of size drops, the command has it cut into this many pieces."""
PIECE_BYTES_MIN: Final = 1 << 16

QUESTIONS_AT_ONCE: Final = 16
"""The most partitions that the command asks about at the same time."""

_SIZE = size_type(SIZE_MIN)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of `create` and `alter` that say how long messages are kept."""
    for option in reversed((
        click.option(
            "--retention", "retention_ms", type=DURATION, metavar="DURATION",
            help="Drop messages older than this: 72h, 7d, 90s, 1d12h, or forever. [default of a new topic: 3d]",
        ),
        click.option(
            "--retention-size", "retention_bytes", type=_SIZE, metavar="SIZE",
            help="Drop the oldest messages of a partition above this size (on one disk): 10GiB, 500MB, or none.",
        ),
        click.option(
            "--retain-unread/--no-retain-unread", default=None,
            help="Keep messages that a consumer group has not read beyond these limits. [default: no]",
        ),
        click.option(
            "--unread-max", "unread_ms_max", type=DURATION, metavar="DURATION",
            help="With --retain-unread: also drop unread messages if they are older than this. [default: forever]",
        ),
        click.option(
            "--unread-size-max", "unread_bytes_max", type=_SIZE, metavar="SIZE",
            help="With --retain-unread: also drop the oldest unread messages above this size of a partition. "
            "[default: none]",
        ),
    )):  # fmt: skip
        command = option(command)
    return command


def change_of(
    retention_ms: int | None, retention_bytes: int | None, retain_unread: bool | None,
    unread_ms_max: int | None, unread_bytes_max: int | None,
) -> dict[str, Any]:  # fmt: skip
    """The settings about retention that the options name, as `TopicSettings` calls them."""
    settings = {
        "retention_ms": retention_ms,
        "retention_bytes": retention_bytes,
        "retain_unread": retain_unread,
        "unread_ms_max": unread_ms_max,
        "unread_bytes_max": unread_bytes_max,
    }
    return {name: value for name, value in settings.items() if value is not None}


# ---- in words -------------------------------------------------------------------------------------------


def kept(settings: TopicSettings) -> str:
    """How long messages are kept, in words."""
    ms = settings.retention_ms
    limits = _limits(ms, settings.retention_bytes)
    if settings.retain_unread and limits != "for ever":
        return f"{limits}, unread {_limits(settings.unread_ms_max, settings.unread_bytes_max)}"
    return limits


def _limits(ms: int | None, size_bytes: int) -> str:
    said = [f"{format_duration(ms)}"] if ms else []
    said += [f"{format_size(size_bytes)} a partition"] if size_bytes else []
    return " or ".join(said) or "for ever"


def draw_retained(rows: Sequence[RetainedRange]) -> Table:
    """A table of the messages that are kept of each partition."""
    lines = (
        (
            str(row.partition),
            format_offset(row.offset),
            _time(row.since_ms),
            f"{row.messages:,}",
            "?" if row.size_bytes is None else format_size(row.size_bytes),
        )
        for row in rows
    )
    return draw((">partition", ">kept from", "since", ">messages", ">bytes"), lines)


def _time(time_ms: int | None) -> str:
    return "-" if time_ms is None else utc(time_ms)


# ---- what a change drops --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loss:
    """The messages of a partition that a shorter retention drops.

    Attributes:
        partition: The partition's number in the topic.
        start: The first offset that is dropped.
        end: The first offset that stays.
        messages: The number of messages. Repeats that readers skip count too.
        since_ms: The append time of the first message, in ms since 1970; None: not known.
        unread_by: The names of the consumer groups that have not read all of them.
    """

    partition: int
    start: int
    end: int
    messages: int
    since_ms: int | None
    unread_by: tuple[str, ...]


def after(before: TopicSettings, change: Mapping[str, Any]) -> TopicSettings:
    """The settings of a topic after a change of its retention."""
    return replace(before, **change)


def is_shorter(before: TopicSettings, wanted: TopicSettings) -> bool:
    """Whether the wanted retention may drop messages that the present one keeps."""
    limits = ((before.retention_ms, wanted.retention_ms), (before.retention_bytes, wanted.retention_bytes))
    if any(_is_less(*pair) for pair in limits):
        return True
    if not before.retain_unread:
        return False
    caps = ((before.unread_ms_max, wanted.unread_ms_max), (before.unread_bytes_max, wanted.unread_bytes_max))
    return not wanted.retain_unread or any(_is_less(*pair) for pair in caps)


def _is_less(before: int | None, wanted: int | None) -> bool:
    return bool(wanted and (not before or wanted < before))


async def losses(client: Client, topic: str, wanted: TopicSettings, now: datetime) -> list[Loss]:
    """The messages that would be dropped if the topic had the wanted retention now, without partitions that lose none.

    Raises:
        SeriatimError: The brokers could not tell.
    """
    kept_rows = await client.retained(topic)
    admin = client.admin()
    groups = {name: (await admin.describe_group(topic, name)).partitions for name in await admin.list_groups(topic)}
    aged = await _at_age(client, topic, wanted.retention_ms, now)
    capped = await _at_age(client, topic, wanted.unread_ms_max, now) if wanted.retain_unread else {}
    turns = asyncio.Semaphore(QUESTIONS_AT_ONCE)

    async def look(row: RetainedRange) -> Loss | None:
        rows = [(name, one) for name, of in groups.items() for one in of if one.partition == row.partition]
        async with turns:
            end = await _cut(client, topic, row, aged.get(row.partition, 0), wanted.retention_bytes)
            unread = min((place for _, one in rows if (place := next_offset(one)) is not None), default=end)
            if wanted.retain_unread and unread < end:
                cap = await _cut(client, topic, row, capped.get(row.partition, 0), wanted.unread_bytes_max)
                end = max(unread, cap)
            if end <= row.offset:
                return None
            plan = await client.plan_range(topic, row.partition, row.offset, end)
        names = tuple(name for name, one in rows if _has_not_read(one, end))
        return Loss(row.partition, row.offset, end, sum(piece.rows for piece in plan.pieces), row.since_ms, names)

    found = await asyncio.gather(*map(look, kept_rows))
    return [loss for loss in found if loss is not None and loss.messages]


def _has_not_read(row: GroupPartition, end: int) -> bool:
    offset = next_offset(row)
    return offset is not None and offset < end


async def _at_age(client: Client, topic: str, age_ms: int | None, now: datetime) -> dict[int, int]:
    """For each partition, the offset of the first message that is not older than `age_ms`."""
    if not age_ms:
        return {}
    try:
        oldest = now - timedelta(milliseconds=age_ms)
    except OverflowError:
        return {}
    if oldest.timestamp() <= 0:
        return {}
    return {row.partition: row.offset for row in await client.offsets(topic, oldest)}


async def _cut(client: Client, topic: str, row: RetainedRange, aged: int, size_bytes: int) -> int:
    """The first offset of a partition that stays, by age and by size."""
    cut = max(row.offset, aged)
    if not size_bytes or row.size_bytes is None or row.size_bytes <= size_bytes:
        return cut
    (end,) = await client.offsets(topic, "end", partitions=[row.partition])
    excess = row.size_bytes - size_bytes
    at_once = max(excess // PIECES_ASKED, PIECE_BYTES_MIN)
    plan = await client.plan_range(topic, row.partition, row.offset, end.offset, cut_bytes=at_once)
    for piece in plan.pieces:
        if piece.size_bytes is None or piece.size_bytes > excess:
            break
        excess -= piece.size_bytes
        cut = max(cut, piece.end)
    return cut


def draw_losses(found: Sequence[Loss]) -> Table:
    """A table of the messages that are dropped."""
    lines = (
        (
            str(loss.partition), format_offset(loss.start), format_offset(loss.end), f"{loss.messages:,}",
            _time(loss.since_ms), ", ".join(loss.unread_by) or "-",
        )
        for loss in found
    )  # fmt: skip
    return draw((">partition~", ">from~", ">up to~", ">messages~", "oldest of~", "not read by~"), lines)


def summary(found: Sequence[Loss]) -> str:
    """The messages that are dropped, in one sentence."""
    count = sum(loss.messages for loss in found)
    messages = f"{count:,} message{'s are' if count != 1 else ' is'} dropped within minutes, and cannot be brought back"
    readers = sorted({name for loss in found for name in loss.unread_by})
    if not readers:
        return f"{messages}; every consumer group has read them"
    return f"{messages}; not read yet by {', '.join(readers)}"
