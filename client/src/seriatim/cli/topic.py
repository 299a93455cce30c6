"""`seriatim topic ...`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from itertools import zip_longest
from typing import cast

import click
from seriatim_api.ids import format_offset

from seriatim.cli import _connect
from seriatim.cli._places import PlaceType, Written
from seriatim.cli._ports import OffsetRow, TopicView
from seriatim.cli._running import run
from seriatim.cli._settings import Settings

RETENTION_HELP = "How long messages are to be kept. This version stores it and deletes no message by its age."


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


@topic.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True, help="Order is kept within one.")
@click.option("--flush/--no-flush", default=True, show_default=True, help="Acknowledge only what is flushed to disk.")
@click.option("--message-size-max", type=click.IntRange(1), help="Bytes. [default: the cluster's]")
@click.option("--retention-hours", type=click.FloatRange(0, min_open=True), help=RETENTION_HELP)
@click.option("--chain-width", type=click.IntRange(1), help="Broker groups that take turns. [default: the cluster's]")
@click.pass_obj
def create(
    settings: Settings,
    name: str,
    partitions: int,
    flush: bool,
    message_size_max: int | None,
    retention_hours: float | None,
    chain_width: int | None,
) -> None:
    """Create the topic NAME, and wait until it can be used."""

    async def work() -> TopicView:
        async with _connect.admin(settings) as admin:
            return await admin.create_topic(
                name,
                partitions,
                flush=flush,
                message_size_max=message_size_max,
                retention_ms=None if retention_hours is None else int(retention_hours * 3_600_000),
                chain_width=chain_width,
            )

    made = run(work())
    if settings.as_json:
        settings.emit(asdict(made))
    else:
        click.echo(f"created {made.name} with {_count(made.partitions, 'partition')}")


@topic.command()
@click.argument("name")
@click.option("--at", type=PlaceType(), help="Also where this time is: 2026-11-22T10:00 (with Z or +01:00), or -15m.")
@click.pass_obj
def offsets(settings: Settings, name: str, at: Written | None) -> None:
    """Show where each partition of the topic NAME begins and ends, and how many messages it holds.

    A time is that at which the broker took a message; its place is the first message at or after it. A `*` behind an
    end: a segment is not settled yet, and what lies behind it cannot be read before it is.
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
        table.add_row(view.name, str(view.partitions), view.state, _flush(view), _kept(view), _created(view))
    settings.console.print(table)


@topic.command()
@click.argument("name")
@click.pass_obj
def describe(settings: Settings, name: str) -> None:
    """Show the settings of the topic NAME, and the chain of each partition."""

    async def work() -> None:
        async with _connect.admin(settings) as admin:
            view, chains = await admin.describe_topic(name)
        if settings.as_json:
            settings.emit({**asdict(view), "chains": [asdict(chain) for chain in chains]})
            return
        click.echo(
            f"{view.name}: {_count(view.partitions, 'partition')}, {view.state}, flush: {_flush(view)}, "
            f"kept: {_kept(view)}, created {_created(view)}"
        )
        sizes = f"message size at most: {view.message_size_max:,} bytes" if view.message_size_max else ""
        width = f"broker groups in a chain: {view.chain_width}" if view.chain_width else ""
        if sizes or width:
            click.echo("; ".join(part for part in (sizes, width) if part))
        from seriatim.cli._chain_view import draw_ribbons

        console = settings.console
        console.print(draw_ribbons(chains, width=console.width))

    run(work())


@topic.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), help="How many there are to be; never fewer than there are.")
@click.option("--message-size-max", type=click.IntRange(0), help="Bytes; 0: the cluster's.")
@click.option("--retention-hours", type=click.FloatRange(0), help=f"{RETENTION_HELP} 0: for ever.")
@click.option("--chain-width", type=click.IntRange(0), help="Broker groups that take turns; 0: the cluster's.")
@click.pass_obj
def alter(
    settings: Settings,
    name: str,
    partitions: int | None,
    message_size_max: int | None,
    retention_hours: float | None,
    chain_width: int | None,
) -> None:
    """Add partitions to the topic NAME, or change its settings.

    Producers spread keys over new partitions within seconds: the messages of a key may then go to another partition
    than before, and order is kept within a partition only.
    """
    if partitions is message_size_max is retention_hours is chain_width is None:
        raise click.UsageError("say what is to change: --partitions N, --retention-hours H, ...")

    async def work() -> TopicView:
        async with _connect.admin(settings) as admin:
            return await admin.alter_topic(
                name,
                partitions,
                message_size_max=message_size_max,
                retention_ms=None if retention_hours is None else int(retention_hours * 3_600_000),
                chain_width=chain_width,
            )

    altered = run(work())
    if settings.as_json:
        settings.emit(asdict(altered))
    else:
        click.echo(f"{altered.name} has {_count(altered.partitions, 'partition')}, kept: {_kept(altered)}")


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


def _kept(view: TopicView) -> str:
    return f"{view.retention_ms / 3_600_000:g} h" if view.retention_ms else "for ever"


def _created(view: TopicView) -> str:
    return datetime.fromtimestamp(view.created_at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
