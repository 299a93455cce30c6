"""`seriatim topic ...`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, cast

import click
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import format_offset

from seriatim.cli import _connect, _retention
from seriatim.cli._places import PlaceType, Written
from seriatim.cli._ports import AdminPort, OffsetRow, RetainedRow, RetentionChange, TopicView
from seriatim.cli._printing import chain_fields
from seriatim.cli._running import run
from seriatim.cli._settings import Settings

LOOK_DEADLINE_S = 3.0
"""`describe` waits this many seconds for the brokers to say which messages are kept. Then it shows the rest."""


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


@topic.command()
@click.argument("name")
@click.option(
    "--partitions",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of partitions. Order is kept within a partition.",
)
@click.option(
    "--flush/--no-flush", default=True, show_default=True, help="Flush messages to disk before they are acknowledged."
)
@click.option("--message-size-max", type=click.IntRange(1), help="Largest message, in bytes. [default: the cluster's]")
@_retention.options
@click.option(
    "--chain-width", type=click.IntRange(1), help="Number of broker groups in a send chain. [default: the cluster's]"
)
@click.pass_obj
def create(
    settings: Settings,
    /,
    name: str,
    partitions: int,
    flush: bool,
    message_size_max: int | None,
    chain_width: int | None,
    **retention: Any,
) -> None:
    """Create the topic NAME, and wait until it can be used.

    Messages are kept for three days unless you say otherwise. With --retention-size and without --retention only the
    size counts. Retention drops messages for every consumer group. If a group has not read them, its consumers are
    told.
    """
    change = _retention.change_of(**retention)
    if (change.unread_ms_max or change.unread_bytes_max) and not change.retain_unread:
        raise click.UsageError("--unread-max and --unread-size-max limit what --retain-unread keeps: give it too")

    async def work() -> TopicView:
        async with _connect.admin(settings) as admin:
            return await admin.create_topic(
                name,
                partitions,
                flush=flush,
                message_size_max=message_size_max,
                chain_width=chain_width,
                retention=change,
            )

    made = run(work())
    if settings.as_json:
        settings.emit(asdict(made))
    else:
        click.echo(f"created {made.name} with {_count(made.partitions, 'partition')}")


@topic.command()
@click.argument("name")
@click.option("--at", type=PlaceType(), help="Also show the place of a time: 2026-11-22T10:00 (Z or +01:00), or -15m.")
@click.pass_obj
def offsets(settings: Settings, name: str, at: Written | None) -> None:
    """Show where each partition of the topic NAME begins and ends, and how many messages it has.

    Times are append times: when the broker took a message. The place of a time is the first message at or after it. A
    `*` behind an end means that a segment is not settled yet. Messages behind it cannot be read until it is.
    """
    if at is not None and not isinstance(at.at, datetime):
        raise click.UsageError(f"--at takes a time, not {at.text!r}")
    if at is not None and not settings.as_json:
        click.echo(f"# {at.explain()}", err=True)

    async def work() -> tuple[list[OffsetRow], list[OffsetRow], list[OffsetRow]]:
        async with _connect.ranges(settings) as port:
            found = [] if at is None else await port.offsets(name, cast(datetime, at.at))
            return await port.offsets(name, "earliest"), await port.offsets(name, "end"), found

    firsts, ends, found = run(work())
    if settings.as_json:
        settings.emit([_offsets(*row) for row in zip_longest(firsts, ends, found)])
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("partition", "earliest", "end", "messages", *(["at"] if at is not None else [])):
        table.add_column(column, justify="right")
    for first, end, row in zip_longest(firsts, ends, found):
        told = [] if row is None else [format_offset(row.offset) if row.found else "-"]
        count = end.position - first.position
        table.add_row(
            str(end.partition),
            format_offset(first.offset),
            f"{format_offset(end.offset)}{'*' * end.blocked}",
            f"{count:,}",
            *told,
        )
    settings.console.print(table)


def _offsets(first: OffsetRow, end: OffsetRow, at: OffsetRow | None) -> dict[str, object]:
    told: dict[str, object] = {
        "partition": end.partition,
        "earliest": format_offset(first.offset),
        "end": format_offset(end.offset),
        "messages": end.position - first.position,
        "blocked": end.blocked,
    }
    if at is not None:
        told["at"] = format_offset(at.offset) if at.found else None
    return told


@topic.command("list")
@click.pass_obj
def list_(settings: Settings) -> None:
    """List all topics."""

    async def work() -> list[TopicView]:
        async with _connect.admin(settings) as admin:
            return await admin.list_topics()

    found = run(work())
    if settings.as_json:
        settings.emit([asdict(topic) for topic in found])
        return
    if not found:
        click.echo("there are no topics: `seriatim topic create NAME --partitions N` makes one", err=True)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("topic", "partitions", "state", "flush", "kept", "created"):
        table.add_column(column, justify="right" if column == "partitions" else "left", overflow="fold")
    for view in found:
        table.add_row(view.name, str(view.partitions), view.state, _flush(view), _retention.kept(view), _created(view))
    settings.console.print(table)


@topic.command()
@click.argument("name")
@click.pass_obj
def describe(settings: Settings, name: str) -> None:
    """Show the settings of the topic NAME, and for each partition the messages that are kept and the chain."""

    async def work() -> None:
        async with _connect.admin(settings) as admin:
            view, chains = await admin.describe_topic(name)
        retained, reason = await _retained(settings, name)
        if settings.as_json:
            rows = None if retained is None else [{**asdict(r), "offset": format_offset(r.offset)} for r in retained]
            settings.emit({**asdict(view), "chains": list(map(chain_fields, chains)), "retained": rows})
            return
        click.echo(
            f"{view.name}: {_count(view.partitions, 'partition')}, {view.state}, flush: {_flush(view)}, "
            f"kept: {_retention.kept(view)}, created {_created(view)}"
        )
        sizes = f"message size at most: {view.message_size_max:,} bytes" if view.message_size_max else ""
        width = f"broker groups in a chain: {view.chain_width}" if view.chain_width else ""
        if sizes or width:
            click.echo("; ".join(part for part in (sizes, width) if part))
        from seriatim.cli._chain_view import draw_ribbons

        console = settings.console
        if retained is None:
            click.echo(f"# which messages are kept is not known now: {reason}", err=True)
        else:
            console.print(_retention.draw_retained(retained))
        console.print(draw_ribbons(chains, width=console.width))

    run(work())


@topic.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), help="The new number of partitions. It can only grow.")
@click.option("--message-size-max", type=click.IntRange(0), help="Largest message, in bytes; 0: the cluster's limit.")
@_retention.options
@click.option(
    "--chain-width", type=click.IntRange(0), help="Number of broker groups in a send chain; 0: the cluster's."
)
@click.option("--yes", is_flag=True, help="Do not ask before messages are dropped.")
@click.pass_obj
def alter(
    settings: Settings,
    /,
    name: str,
    partitions: int | None,
    message_size_max: int | None,
    chain_width: int | None,
    yes: bool,
    **retention: Any,
) -> None:
    """Add partitions to the topic NAME, or change its settings.

    Producers use new partitions within seconds. Messages of a key may then go to another partition than before, and
    order is kept only within a partition.

    A shorter retention drops messages. The command first shows which messages are dropped, and which consumer groups
    have not read them. Then it asks.
    """
    change = _retention.change_of(**retention)
    if partitions is message_size_max is chain_width is None and change == RetentionChange():
        raise click.UsageError("name a change: --partitions N, --retention 7d, ...")

    async def work() -> TopicView:
        async with _connect.admin(settings) as admin:
            if change != RetentionChange():
                await _tell_losses(settings, admin, name, change, yes=yes)
            return await admin.alter_topic(
                name, partitions, message_size_max=message_size_max, chain_width=chain_width, retention=change
            )

    altered = run(work())
    if settings.as_json:
        settings.emit(asdict(altered))
    else:
        click.echo(f"{altered.name} has {_count(altered.partitions, 'partition')}, kept: {_retention.kept(altered)}")


async def _retained(settings: Settings, name: str) -> tuple[list[RetainedRow] | None, str]:
    """The messages that are kept of each partition. None and the reason if no broker could tell in time."""
    try:
        async with _connect.ranges(settings) as port:
            return await port.retained(name, LOOK_DEADLINE_S), ""
    except SeriatimError as error:
        return None, error.message


async def _tell_losses(
    settings: Settings, admin: AdminPort, name: str, change: RetentionChange, *, yes: bool
) -> None:  # fmt: skip
    """Show the messages that a shorter retention drops, and ask whether to go on.

    Raises:
        click.Abort: The answer is no.
        click.UsageError: stdin is not a terminal, so the command cannot ask, and `--yes` was not given.
    """
    view, _ = await admin.describe_topic(name)
    wanted = _retention.after(view.retention, change)
    if not _retention.is_shorter(view.retention, wanted):
        return
    try:
        async with _connect.ranges(settings) as port:
            found = await _retention.losses(admin, port, name, wanted, datetime.now(UTC))
    except SeriatimError as error:
        click.echo(f"# which messages are dropped is not known now: {error.message}", err=True)
    else:
        if not found:
            return
        if settings.as_json:
            rows = [{**asdict(f), "start": format_offset(f.start), "end": format_offset(f.end)} for f in found]
            click.echo(json.dumps({"note": "dropped", "partitions": rows}), err=True)
        else:
            settings.console.print(_retention.draw_losses(found))
            click.echo(_retention.summary(found))
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nothing was changed: stdin is no terminal to ask you on, so add --yes")
    await asyncio.to_thread(click.confirm, f"Shorten the retention of {name}?", abort=True)


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def delete(settings: Settings, name: str, yes: bool) -> None:
    """Delete the topic NAME with all its messages."""
    if not yes:
        click.confirm(f"Delete the topic {name} and all its messages?", abort=True)

    async def work() -> None:
        async with _connect.admin(settings) as admin:
            await admin.delete_topic(name)

    run(work())
    if settings.as_json:
        settings.emit({"deleted": name})
    else:
        click.echo(f"deleted {name}")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _flush(view: TopicView) -> str:
    return "yes" if view.flush else "no"


def _created(view: TopicView) -> str:
    return datetime.fromtimestamp(view.created_at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
