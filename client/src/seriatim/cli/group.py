"""`seriatim group ...`: where a consumer group stands, partition by partition; making and forgetting one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from seriatim_api.ids import format_offset

from seriatim.cli import _connect
from seriatim.cli._ports import GroupRow
from seriatim.cli._running import run
from seriatim.cli._settings import Settings

if TYPE_CHECKING:
    from rich.table import Table


@click.group()
def group() -> None:
    """Look at consumer groups, make and forget them."""


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@click.pass_obj
def describe(settings: Settings, topic: str, name: str) -> None:
    """Show where GROUP stands on each partition of TOPIC, who is active and who stands by.

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


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@click.option("--start", type=click.Choice(["earliest", "latest"]), default="earliest", show_default=True)
@click.pass_obj
def create(settings: Settings, topic: str, name: str, start: str) -> None:
    """Let GROUP begin on TOPIC before anybody reads: at the earliest message, or behind the latest one."""

    async def work() -> bool:
        async with _connect.admin(settings) as admin:
            return await admin.create_group(topic, name, "latest" if start == "latest" else "earliest")

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
    """Forget where GROUP stands on TOPIC: who joins it again begins anew. Its consumers must have stopped."""
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


def render(rows: list[GroupRow]) -> Table:
    """The table; the last line sums up."""
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
            row.active or (f"({row.problem})" if row.problem else "-"),
            ", ".join(row.standbys) or "-",
        )
    return table
