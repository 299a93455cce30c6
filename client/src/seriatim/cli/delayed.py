"""`seriatim delayed ...`: list and count messages that are delayed, and cancel them."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import format_offset, parse_offset
from seriatim_api.terminal.safe_text import echo

from seriatim.cli._execution import connection
from seriatim.cli._execution.connection import call_admin
from seriatim.cli._execution.coroutines import run
from seriatim.cli._options.amounts import parse_duration_ms
from seriatim.cli._options.places import parse
from seriatim.cli._options.settings import Settings
from seriatim.cli._options.written import WrittenType
from seriatim.cli._rendering.output import draw, offset_field, pick
from seriatim.cli._rendering.times import utc

if TYPE_CHECKING:
    from seriatim import Admin, DelayedMessages, DelayedStats

LIMIT_DEFAULT: Final = 100

ORIGIN: Final = WrittenType("offset", int, parse_offset)


def _moment(text: str) -> datetime:
    now = datetime.now().astimezone()
    with suppress(ValueError, OverflowError):
        return now + timedelta(milliseconds=parse_duration_ms(text))
    with suppress(ValueError):
        place = parse(text, now)
        if isinstance(place.at, datetime):
            return place.at
    raise ValueError(f"{text!r} is no time: write 2026-12-01T10:00 (with Z or +01:00), or how long from now (15m)")


MOMENT: Final = WrittenType("time", datetime, _moment)


@click.group()
def delayed() -> None:
    """List and count messages that are delayed, and cancel them.

    A message is named by its partition and its origin: the offset where it was stored when it was sent.
    """


@delayed.command("list")
@click.argument("topic")
@click.option("--partition", "-p", type=click.IntRange(0), help="Only of this partition. [default: all]")
@click.option(
    "--until", type=MOMENT, metavar="TIME",
    help="Only messages that are due by then: a time (2026-12-01T10:00, with Z or +01:00), or how long from now (15m). "
    "[default: all]",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(1), default=LIMIT_DEFAULT, show_default=True, help="Maximum number of lines."
)
@click.pass_context
def list_(ctx: click.Context, topic: str, partition: int | None, until: datetime | None, limit: int) -> None:
    """List the messages that are still delayed, by partition, and those that are due first before the others.

    Messages of one batch are in one line, with the origin of the first one.
    """
    settings: Settings = ctx.obj
    unserved: dict[int, tuple[int, ...]] = {}

    async def work(admin: Admin) -> list[DelayedMessages]:
        found: list[DelayedMessages] = []
        async for row in admin.delayed(topic, partition, until, on_unserved=unserved.__setitem__):
            found.append(row)
            if len(found) > limit:
                break
        return found

    found = call_admin(settings, work)
    if settings.as_json:
        settings.emit([_fields(row) for row in found[:limit]])
    elif found:
        lines = (
            (utc(row.due_ms), str(row.partition), format_offset(row.offset), f"{row.message_count:,}",
             f"{row.size_bytes:,}")
            for row in found[:limit]
        )  # fmt: skip
        settings.show(draw(("due", ">partition", ">origin", ">messages", ">bytes"), lines))
    elif not unserved:
        where = f" on partition {partition}" if partition is not None else ""
        echo(f"{topic} has no delayed messages{where}{' until then' if until is not None else ''}", err=True)
    if len(found) > limit:
        echo("there are more: raise --limit", err=True)
    _end(ctx, unserved)


def _fields(row: DelayedMessages) -> dict[str, Any]:
    return {
        **pick(row, "due_ms", "partition"),
        "origin": offset_field(row.offset),
        **pick(row, "message_count", "size_bytes"),
    }


@delayed.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.argument("origins", metavar="ORIGIN...", type=ORIGIN, nargs=-1, required=True)
@click.pass_context
def cancel(ctx: click.Context, topic: str, partition: int, origins: tuple[int, ...]) -> None:
    """Cancel delayed messages, each named by its ORIGIN (SEGMENT:INDEX), and say what became of each.

    A message that is "cancelled" comes to no consumer. The exit status is 1 if another one was too late, or not found.
    """
    settings: Settings = ctx.obj
    outcomes: list[str] = []

    async def work() -> SeriatimError | None:
        async with connection.client(settings) as opened:
            for origin in origins:
                try:
                    outcomes.append(str(await opened.cancel(topic, partition, origin)))
                except SeriatimError as error:
                    return error
        return None

    error = run(work())
    if settings.as_json:
        settings.emit(
            [
                {"partition": partition, "origin": offset_field(origin), "outcome": outcome}
                for origin, outcome in zip(origins, outcomes, strict=False)
            ]
        )
    else:
        for origin, outcome in zip(origins, outcomes, strict=False):
            echo(f"{format_offset(origin)}  {outcome}")
    if error is not None:
        raise error
    if set(outcomes) != {"cancelled"}:
        ctx.exit(1)


@delayed.command()
@click.argument("topic")
@click.pass_context
def stats(ctx: click.Context, topic: str) -> None:
    """Count the messages of each partition that are still delayed, and those that were cancelled.

    All that is delayed is read for it. With millions of messages this takes a while.
    """
    settings: Settings = ctx.obj

    async def work(admin: Admin) -> list[DelayedStats]:
        return await admin.delayed_stats(topic)

    found = call_admin(settings, work)
    if settings.as_json:
        names = ("partition", "message_count", "size_bytes", "oldest_due_ms", "cancelled_count")
        settings.emit([{**pick(row, *names), "unserved": list(row.unserved)} for row in found])
    else:
        lines = (
            (str(row.partition), f"{row.message_count:,}", f"{row.size_bytes:,}",
             utc(row.oldest_due_ms) if row.oldest_due_ms is not None else "-", f"{row.cancelled_count:,}")
            for row in found
        )  # fmt: skip
        settings.show(draw((">partition", ">messages", ">bytes", "next due", ">cancelled"), lines))
    _end(ctx, {row.partition: row.unserved for row in found if row.unserved})


def _end(ctx: click.Context, unserved: dict[int, tuple[int, ...]]) -> None:
    """Say which segments are missing from what was printed. Then the exit status is 1."""
    for partition, segments in sorted(unserved.items()):
        listed = " and ".join(map(str, segments))
        word = "segments" if len(segments) > 1 else "segment"
        echo(
            f"no broker serves {word} {listed} of partition {partition} now: what is delayed there is missing", err=True
        )
    if unserved:
        ctx.exit(1)
