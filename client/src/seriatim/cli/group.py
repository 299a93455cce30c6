"""`seriatim group ...`: list and describe consumer groups; create, rewind, skip, pause, resume and delete them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import click
from seriatim_api.errors import PositionUnknownError, StaleGroupEpochError, make_error
from seriatim_api.ids import format_offset

from seriatim.cli import _connect
from seriatim.cli._places import HELP, PlaceType, Written
from seriatim.cli._ports import GroupMoveRow, GroupRow, HoldName, MoveName, OperatedRow
from seriatim.cli._running import run
from seriatim.cli._settings import Settings

if TYPE_CHECKING:
    from rich.table import Table


@click.group()
def group() -> None:
    """List, describe, create, rewind, skip, pause and delete consumer groups."""


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@click.pass_obj
def describe(settings: Settings, topic: str, name: str) -> None:
    """Show the place of GROUP in each partition of TOPIC, its active consumer and its standbys.

    A `+` after a number means that the true number may be higher. A `?` means that no broker knows the number; the
    reason is in brackets.
    """

    async def work() -> list[GroupRow]:
        async with _connect.admin(settings) as admin:
            return await admin.describe_group(topic, name)

    rows = run(work())
    if settings.as_json:
        settings.emit([asdict(row) for row in rows])
    else:
        settings.console.print(render(rows))


@group.command("list")
@click.argument("topic")
@click.pass_obj
def list_(settings: Settings, topic: str) -> None:
    """List the consumer groups that have a cursor on TOPIC."""

    async def work() -> list[str]:
        async with _connect.admin(settings) as admin:
            return await admin.list_groups(topic)

    found = run(work())
    if settings.as_json:
        settings.emit(found)
    elif found:
        click.echo("\n".join(found))
    else:
        click.echo(f"no consumer group has a position on {topic}", err=True)


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@click.option(
    "--start", type=PlaceType(), default="earliest", show_default=True, help=f"Where the group begins: {HELP}."
)
@click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Only on this partition. May be repeated. [default: all]",
)
@click.pass_obj
def create(settings: Settings, topic: str, name: str, start: Written, partitions: tuple[int, ...]) -> None:
    """Create GROUP on TOPIC before a consumer joins it.

    The broker looks up the start once, now. An offset needs exactly one --partition. On partitions where the group
    exists already, nothing changes.
    """
    _check_target(start, partitions)

    async def work() -> bool:
        async with _connect.admin(settings) as admin:
            return await admin.create_group(topic, name, start.target, partitions)

    created = run(work())
    if settings.as_json:
        settings.emit({"topic": topic, "group": name, "created": created})
    else:
        click.echo(f"{'created' if created else 'there was already'} {name} on {topic}")


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def delete(settings: Settings, topic: str, name: str, yes: bool) -> None:
    """Delete GROUP on TOPIC. A consumer that joins it later begins anew. Stop its consumers first."""
    if not yes:
        click.confirm(f"Forget what {name} has acknowledged on {topic}?", abort=True)

    async def work() -> None:
        async with _connect.admin(settings) as admin:
            await admin.delete_group(topic, name)

    run(work())
    if settings.as_json:
        settings.emit({"topic": topic, "deleted": name})
    else:
        click.echo(f"deleted {name} on {topic}")


_PARTITIONS = click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Only this partition. May be repeated. [default: all]",
)
_TO = click.option(
    "--to", required=True, type=PlaceType(), help=f"The new place: {HELP}. An offset needs exactly one --partition."
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would happen, and change nothing.")
_YES = click.option("--yes", is_flag=True, help="Do not ask.")
_EPOCH = click.option(
    "--expected-epoch",
    type=click.IntRange(1),
    help="Move the group only if it has this group epoch (see --dry-run) on each partition, so was not moved since.",
)
_REQUEST_ID = click.option(
    "--request-id",
    help="32 hexadecimal digits. If you repeat a command with the same id, it is carried out once. [default: random]",
)


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@_TO
@_PARTITIONS
@_DRY_RUN
@_YES
@_EPOCH
@_REQUEST_ID
@click.pass_obj
def rewind(settings: Settings, /, topic: str, name: str, **options: Any) -> None:
    """Have GROUP read TOPIC again from an earlier place.

    The command first shows the old and the new place in each partition, and how many messages come again. Then it asks.
    Running consumers go on from the new place. Their acknowledgements behind it do not count any more.
    """
    _move(settings, topic, name, "rewind", MoveOptions(**options))


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@_TO
@_PARTITIONS
@_DRY_RUN
@_YES
@_EPOCH
@_REQUEST_ID
@click.pass_obj
def skip(settings: Settings, /, topic: str, name: str, **options: Any) -> None:
    """Have GROUP skip messages of TOPIC: it goes on at a later place.

    The command first shows the old and the new place in each partition, and how many messages the group never gets.
    Then it asks.
    """
    _move(settings, topic, name, "skip", MoveOptions(**options))


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@_PARTITIONS
@click.pass_obj
def pause(settings: Settings, topic: str, name: str, partitions: tuple[int, ...]) -> None:
    """Deliver nothing more of TOPIC to GROUP until it is resumed.

    Its consumers can still acknowledge the messages that they have. The pause stays when consumers or brokers restart.
    """
    _hold(settings, topic, name, "pause", partitions)


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@_PARTITIONS
@click.pass_obj
def resume(settings: Settings, topic: str, name: str, partitions: tuple[int, ...]) -> None:
    """Let GROUP go on with the messages of TOPIC after a pause."""
    _hold(settings, topic, name, "resume", partitions)


@dataclass(frozen=True, slots=True)
class MoveOptions:
    """The options of a rewind or a skip."""

    to: Written
    partitions: tuple[int, ...]
    dry_run: bool
    yes: bool
    expected_epoch: int | None
    request_id: str | None


def _move(settings: Settings, topic: str, name: str, operation: MoveName, options: MoveOptions) -> None:
    _check_target(options.to, options.partitions)
    request_id = _request_id(options.request_id)

    async def work() -> list[OperatedRow]:
        async with _connect.admin(settings) as admin:
            plan = await admin.plan_move(topic, name, options.to.target, options.partitions, operation)
            if options.dry_run and settings.as_json:
                settings.emit([asdict(row) for row in plan.rows])
            elif not settings.as_json:
                if (meaning := options.to.explain()) is not None:
                    click.echo(f"# {meaning}", err=True)
                settings.console.print(render_plan(plan.rows, operation))
            _check(plan.rows, options.expected_epoch)
            if not settings.as_json:
                click.echo(_summary(plan.rows, operation))
            if options.dry_run:
                return []
            if not options.yes:
                if not sys.stdin.isatty():
                    raise click.UsageError("nothing was changed: stdin is no terminal to ask you on, so add --yes")
                await asyncio.to_thread(click.confirm, f"{operation.capitalize()} {name} on {topic}?", abort=True)
            return await plan.carry_out(request_id)

    done = run(work())
    if not options.dry_run:
        _report(settings, topic, name, operation, done, request_id.hex())


def _check_target(to: Written, partitions: tuple[int, ...]) -> None:
    if to.is_offset and len(set(partitions)) != 1:
        raise click.UsageError("an offset is of one partition: say which with --partition")


def _request_id(text: str | None) -> bytes:
    if text is None:
        return os.urandom(16)
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise click.UsageError(f"--request-id is 32 hexadecimal digits, not {text!r}")
    return found


def _check(rows: Sequence[GroupMoveRow], expected_epoch: int | None) -> None:
    """Refuse a plan that cannot be carried out.

    Raises:
        SeriatimError: On at least one partition the group cannot go there.
        StaleGroupEpochError: The group has another group epoch than the expected one.
    """
    for row in rows:
        if row.problem:
            raise make_error(row.problem_number, f"nothing was changed: partition {row.partition}: {row.problem}")
        if expected_epoch is not None and row.epoch != expected_epoch:
            text = f"the group is in epoch {row.epoch} on partition {row.partition}, not {expected_epoch}"
            raise StaleGroupEpochError(f"nothing was changed: {text}: it was moved since you looked")


def _hold(settings: Settings, topic: str, name: str, operation: HoldName, partitions: tuple[int, ...]) -> None:
    async def work() -> list[OperatedRow]:
        async with _connect.admin(settings) as admin:
            return await admin.hold_group(topic, name, operation, partitions)

    _report(settings, topic, name, operation, run(work()), None)


_DONE: Final = {"rewind": "rewound", "skip": "skipped", "pause": "paused", "resume": "resumed"}


def _report(
    settings: Settings, topic: str, name: str, operation: str, rows: Sequence[OperatedRow], request_id: str | None
) -> None:
    """Print the results.

    Raises:
        PositionUnknownError: On at least one partition the operation was not carried out, or the outcome is not known.
    """
    failed = [row for row in rows if row.problem]
    if settings.as_json:
        settings.emit([asdict(row) for row in rows])
    else:
        count = len(rows) - len(failed)
        before = sum(row.was_done for row in rows)
        note = f" ({before} before)" if before and operation in ("rewind", "skip") else ""
        note = f" ({before} already were)" if before and operation == "pause" else note
        note = f" ({before} were not paused)" if before and operation == "resume" else note
        click.echo(f"{_DONE[operation]} {name} on {topic}: {count} partition{'s' * (count != 1)}{note}")
    if failed:
        texts = "; ".join(f"partition {row.partition}: {row.problem}" for row in failed[:5])
        again = "" if request_id is None else f". To repeat it safely, add --request-id {request_id}"
        raise PositionUnknownError(
            f"the group may not be {_DONE[operation]} on {len(failed)} of {len(rows)} partitions: {texts}{again}"
        )


def render_plan(rows: Sequence[GroupMoveRow], operation: MoveName) -> Table:
    """A table of what would happen on each partition."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("partition", justify="right")
    table.add_column("from", justify="right")
    table.add_column("to", justify="right")
    table.add_column("come again" if operation == "rewind" else "passed over", justify="right")
    table.add_column("epoch", justify="right")
    table.add_column("active", overflow="fold")
    for row in rows:
        table.add_row(
            str(row.partition),
            "-" if row.from_offset is None else format_offset(row.from_offset),
            "-" if row.to_offset is None else format_offset(row.to_offset),
            "?" if row.messages is None else f"{row.messages:,}",
            str(row.epoch) if row.epoch else "-",
            f"({row.problem})" if row.problem else row.active or "-",
        )
    return table


def _summary(rows: Sequence[GroupMoveRow], operation: MoveName) -> str:
    """The plan in one sentence."""
    known = sum(row.messages or 0 for row in rows)
    more = " or more" * any(row.messages is None for row in rows)
    what = "are delivered again" if operation == "rewind" else "are never delivered to this group"
    active = sum(bool(row.active) for row in rows)
    reads = f"; consumers read {active} of the partitions now, and go on from there" if active else ""
    return f"{known:,}{more} message{'s' * (known != 1)} {what}{reads}"


def render(rows: list[GroupRow]) -> Table:
    """A table of the group's places. The last line has the sum of the lags."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_footer=True)
    lags = [row.lag for row in rows if row.lag is not None]
    is_at_least = len(lags) < len(rows) or any(row.lag_is_at_least for row in rows)
    footer = f"{sum(lags):,}{'+' * is_at_least}"
    table.add_column("partition", justify="right", footer="all")
    table.add_column("next", justify="right")
    table.add_column("lag", justify="right", footer=footer)
    table.add_column("server")
    table.add_column("active", overflow="fold")
    table.add_column("standing by", overflow="fold")
    for row in rows:
        table.add_row(
            str(row.partition),
            "-" if row.next_offset is None else f"{format_offset(row.next_offset)}{'+' * row.next_is_at_least}",
            "?" if row.lag is None else f"{row.lag:,}{'+' * row.lag_is_at_least}",
            row.server or "-",
            (row.active or (f"({row.problem})" if row.problem else "-")) + " (paused)" * row.paused,
            ", ".join(row.standbys) or "-",
        )
    return table
