"""`seriatim topic ...`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, cast

import click
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import format_offset
from seriatim_api.key_names import escaped
from seriatim_api.terminal.safe_text import echo

import seriatim
from seriatim.cli._execution import connection
from seriatim.cli._execution.confirmation import confirm, confirm_first
from seriatim.cli._execution.connection import call_admin
from seriatim.cli._execution.coroutines import run
from seriatim.cli._operations import broadcast_consumers, retention_change
from seriatim.cli._options import attributes as attribute_options
from seriatim.cli._options import delays as delay_options
from seriatim.cli._options.places import TIME, Written
from seriatim.cli._options.settings import Settings
from seriatim.cli._rendering.output import chain_fields, draw, pick
from seriatim.cli._rendering.times import utc

if TYPE_CHECKING:
    from seriatim import Client, PartitionOffset, RetainedRange, Topic, TopicDescription

LOOK_DEADLINE_S = 3.0
"""`describe` waits this many seconds for the brokers to say which messages are kept. Then it shows the rest."""


_EXCLUSIVE: Final = click.option(
    "--exclusive-only/--no-exclusive-only",
    default=None,
    help="Refuse messages of ordinary producers. No topic can have it before brokers announce exclusive producers. "
    "[default of a new topic: no]",
)


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
    "--flush/--no-flush",
    default=True,
    show_default=True,
    help="Flush messages to disk before they are committed. Without it, producers at level REPLICATED wait for memory.",
)
@click.option("--message-size-max", type=click.IntRange(1), help="Largest message, in bytes. [default: the cluster's]")
@retention_change.options
@click.option(
    "--chain-width", type=click.IntRange(1), help="Number of broker groups in a send chain. [default: the cluster's]"
)
@delay_options.options
@_EXCLUSIVE
@attribute_options.SETS
@click.pass_obj
def create(
    settings: Settings,
    /,
    name: str,
    partitions: int,
    flush: bool,
    message_size_max: int | None,
    chain_width: int | None,
    attributes: Sequence[tuple[str, str]],
    exclusive_only: bool | None,
    **limits: Any,
) -> None:
    """Create the topic NAME, and wait until it can be used.

    Messages are kept for three days unless you say otherwise. With --retention-size and without --retention only the
    size counts. Retention drops messages for every consumer group. If a group has not read them, its consumers are
    notified.
    """
    delays = delay_options.taken_from(limits)
    change = retention_change.change_of(**limits)
    if (change.get("unread_ms_max") or change.get("unread_bytes_max")) and not change.get("retain_unread"):
        raise click.UsageError("--unread-max and --unread-size-max limit what --retain-unread keeps: give it too")
    wanted = seriatim.TopicSettings(
        flush=flush,
        message_size_bytes_max=0 if message_size_max is None else message_size_max,
        chain_width=0 if chain_width is None else chain_width,
        attributes=cast("dict[str, str]", attribute_options.changes_of(attributes)),
        exclusive_only=bool(exclusive_only),
        **change,
        **delays,
    )
    made = call_admin(settings, lambda admin: admin.create_topic(name, partitions, wanted))
    settings.tell(_fields(made), f"created {made.name} with {_count(made.partition_count, 'partition')}")


def _fields(topic: Topic) -> dict[str, Any]:
    settings = topic.settings
    return {
        **pick(topic, "name", "state", "partitions=partition_count"),
        **pick(settings, "flush", "message_size_max=message_size_bytes_max"),
        "retention": {
            "ms": settings.retention_ms or 0,
            **pick(settings, "size_bytes=retention_bytes", "keeps_unread=retain_unread"),
            **pick(settings, "unread_ms_max", "unread_bytes_max"),
        },
        **pick(settings, "chain_width", "delay_max_ms", "delayed_pending_max", "exclusive_only"),
        "attributes": dict(sorted(settings.attributes.items())),
        "created_at_ms": topic.created_at_ms,
    }


@topic.command()
@click.argument("name")
@click.option("--at", type=TIME, help="Also show the place of a time: 2026-11-22T10:00 (Z or +01:00), or -15m.")
@click.pass_obj
def offsets(settings: Settings, name: str, at: Written | None) -> None:
    """Show where each partition of the topic NAME begins and ends, and how many messages it has.

    Times are append times: when the broker took a message. The place of a time is the first message at or after it. A
    `*` after an end means that a segment is not settled yet. Messages after it cannot be read until it is.
    """
    if at is not None and not settings.as_json:
        echo(f"# {at.explain()}", err=True)

    async def work() -> tuple[tuple[PartitionOffset, ...], ...]:
        async with connection.client(settings) as client:
            found = () if at is None else await client.offsets(name, cast(datetime, at.at))
            return await client.offsets(name, "earliest"), await client.offsets(name, "end"), found

    firsts, ends, found = run(work())
    if settings.as_json:
        settings.emit([_offsets(*row) for row in zip_longest(firsts, ends, found)])
        return
    lines = []
    for first, end, row in zip_longest(firsts, ends, found):
        told = [] if row is None else [format_offset(row.offset) if row.found else "-"]
        begins, ends_at = format_offset(first.offset), f"{format_offset(end.offset)}{'*' * end.blocked}"
        lines.append((str(end.partition), begins, ends_at, f"{end.position - first.position:,}", *told))
    place = [] if at is None else [">at"]
    settings.show(draw((">partition", ">earliest", ">end", ">messages", *place), lines))


def _offsets(first: PartitionOffset, end: PartitionOffset, at: PartitionOffset | None) -> dict[str, object]:
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
    found = call_admin(settings, lambda admin: admin.list_topics())
    if settings.as_json:
        settings.emit(list(map(_fields, found)))
        return
    if not found:
        echo("there are no topics: `seriatim topic create NAME --partitions N` makes one", err=True)
        return
    lines = (
        (
            row.name,
            str(row.partition_count),
            row.state,
            _flush(row),
            retention_change.kept(row.settings),
            utc(row.created_at_ms),
        )
        for row in found
    )
    settings.show(draw(("topic~", ">partitions~", "state~", "flush~", "kept~", "created~"), lines))


@topic.command()
@click.argument("name")
@click.pass_obj
def describe(settings: Settings, name: str) -> None:
    """Show the settings of the topic NAME, its consumer groups, and for each partition what is kept and the chain."""

    async def work() -> tuple[TopicDescription, list[str], tuple[RetainedRange, ...] | None, str]:
        async with connection.client(settings) as client:
            admin = client.admin()
            described = await admin.describe_topic(name)
            return described, await admin.list_groups(name), *await _retained(client, name)

    described, groups, retained, reason = run(work())
    found, chains = described.topic, described.chains
    if settings.as_json:
        names = ("partition", "offset", "messages", "size_bytes", "since_ms")
        rows = retained and [{**pick(row, *names), "offset": format_offset(row.offset)} for row in retained]
        settings.emit({**_fields(found), "groups": groups, "chains": list(map(chain_fields, chains)), "retained": rows})
        return
    echo(
        f"{found.name}: {_count(found.partition_count, 'partition')}, {found.state}, flush: {_flush(found)}, "
        f"kept: {retention_change.kept(found.settings)}, created {utc(found.created_at_ms)}"
    )
    size, width = found.settings.message_size_bytes_max, found.settings.chain_width
    sizes = f"message size at most: {size:,} bytes" if size else ""
    widths = f"broker groups in a chain: {width}" if width else ""
    senders = "exclusive producers only" if found.settings.exclusive_only else ""
    if limits := "; ".join(part for part in (sizes, widths, delay_options.in_words(found.settings), senders) if part):
        echo(limits)
    for attribute, value in sorted(found.settings.attributes.items()):
        echo(f"attribute {attribute}={escaped(value.encode())}")
    echo(f"consumer groups: {', '.join(broadcast_consumers.lines_of(groups)) or 'none'}")
    from seriatim.cli._rendering.chain_view import draw_ribbons

    if retained is None:
        echo(f"# which messages are kept is not known now: {reason}", err=True)
    else:
        settings.show(retention_change.draw_retained(retained))
    settings.show(draw_ribbons(chains, width=settings.console.width))


@topic.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), help="The new number of partitions. It can only grow.")
@click.option("--message-size-max", type=click.IntRange(0), help="Largest message, in bytes; 0: the cluster's limit.")
@retention_change.options
@click.option(
    "--chain-width", type=click.IntRange(0), help="Number of broker groups in a send chain; 0: the cluster's."
)
@delay_options.options
@_EXCLUSIVE
@attribute_options.SETS
@attribute_options.REMOVES
@click.option("--yes", is_flag=True, help="Do not ask before partitions are added or messages are dropped.")
@click.pass_obj
def alter(
    settings: Settings,
    /,
    name: str,
    partitions: int | None,
    message_size_max: int | None,
    chain_width: int | None,
    attributes: Sequence[tuple[str, str]],
    removed: Sequence[str],
    yes: bool,
    exclusive_only: bool | None,
    **limits: Any,
) -> None:
    """Add partitions to the topic NAME, or change its settings.

    Producers use new partitions within seconds. Messages of a key may then go to another partition than before, and
    order is kept only within a partition. Partitions cannot be taken away again. So the command asks first.

    A shorter retention drops messages. The command first shows which messages are dropped, and which consumer groups
    have not read them. Then it asks.

    Attributes that you do not name stay as they are, also if another command changes them at the same time.
    """
    delays = delay_options.taken_from(limits)
    change = retention_change.change_of(**limits)
    attribute_changes = attribute_options.changes_of(attributes, removed)
    numbers = (partitions, message_size_max, chain_width, exclusive_only)
    if numbers.count(None) == len(numbers) and not change and not delays and not attribute_changes:
        raise click.UsageError("name a change: --partitions N, --retention 7d, ...")

    async def work() -> Topic:
        async with connection.client(settings) as client:
            if partitions is not None and not yes:
                await _ask_to_grow(client, name, partitions)
            if change:
                await _tell_losses(settings, client, name, change, yes=yes)
            return await client.admin().update_topic(
                name,
                partitions,
                message_size_bytes_max=message_size_max,
                chain_width=chain_width,
                attribute_changes=attribute_changes or None,
                exclusive_only=exclusive_only,
                **change,
                **delays,
            )

    altered = run(work())
    kept = retention_change.kept(altered.settings)
    text = f"{altered.name} has {_count(altered.partition_count, 'partition')}, kept: {kept}"
    if altered.settings.attributes:
        text += f", {_count(len(altered.settings.attributes), 'attribute')}"
    if delays:
        text += f", {delay_options.in_words(altered.settings)}"
    settings.tell(_fields(altered), text)


async def _ask_to_grow(client: Client, name: str, wanted: int) -> None:
    """Ask before partitions are added, because it moves keys for good.

    Raises:
        DeclinedError: The answer is no.
        click.UsageError: stdin is not a terminal, so the command cannot ask.
    """
    count = (await client.admin().describe_topic(name)).topic.partition_count
    if wanted <= count:  # the broker refuses fewer
        return
    # Of each run of lcm(count, wanted) hashes, `count` ones have the same remainder by both numbers.
    moved = 1 - count / math.lcm(count, wanted)
    echo(
        f"# {moved:.0%} of the keys move to another partition for good (with the default partitioner): new messages of "
        "such a key may be read before its old ones",
        err=True,
    )
    await confirm(f"Add {_count(wanted - count, 'partition')} to {name}?", otherwise="nothing was changed")


async def _retained(client: Client, name: str) -> tuple[tuple[RetainedRange, ...] | None, str]:
    """The messages that are kept of each partition. None and the reason if no broker could report in time."""
    try:
        return await client.retained(name, timeout_s=LOOK_DEADLINE_S), ""
    except SeriatimError as error:
        return None, error.message


async def _tell_losses(
    settings: Settings, client: Client, name: str, change: Mapping[str, Any], *, yes: bool
) -> None:  # fmt: skip
    """Show the messages that a shorter retention drops, and ask whether to continue.

    Raises:
        DeclinedError: The answer is no.
        click.UsageError: stdin is not a terminal, so the command cannot ask, and `--yes` was not given.
    """
    before = (await client.admin().describe_topic(name)).topic.settings
    wanted = retention_change.after(before, change)
    if not retention_change.is_shorter(before, wanted):
        return
    try:
        found = await retention_change.losses(client, name, wanted, datetime.now(UTC))
    except SeriatimError as error:
        echo(f"# which messages are dropped is not known now: {error.message}", err=True)
    else:
        if not found:
            return
        if settings.as_json:
            rows = [{**asdict(f), "start": format_offset(f.start), "end": format_offset(f.end)} for f in found]
            echo(json.dumps({"note": "dropped", "partitions": rows}), err=True)
        else:
            settings.show(retention_change.draw_losses(found))
            echo(retention_change.summary(found))
    if yes:
        return
    await confirm(f"Shorten the retention of {name}?", otherwise="nothing was changed")


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def delete(settings: Settings, name: str, yes: bool) -> None:
    """Delete the topic NAME with all its messages."""
    if not yes:
        confirm_first(f"Delete the topic {name} and all its messages?", otherwise=f"{name} is not deleted")
    call_admin(settings, lambda admin: admin.delete_topic(name))
    settings.tell({"deleted": name}, f"deleted {name}")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _flush(topic: Topic) -> str:
    return "yes" if topic.settings.flush else "no"
