"""`seriatim broker-group ...`: list, cordon, drain, activate and remove broker groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click
from seriatim_api.errors import SeriatimError

from seriatim.cli import _connect
from seriatim.cli._ports import AdminPort, BrokerGroupRow, IntentName
from seriatim.cli._running import live_line, run
from seriatim.cli._settings import Settings
from seriatim.cli.member import disk_line

if TYPE_CHECKING:
    from rich.table import Table

LOOK_S: Final = 0.5


@click.group("broker-group")
def broker_group() -> None:
    """List, cordon, drain, activate and remove broker groups."""


@broker_group.command("list")
@click.option("--no-counts", is_flag=True, help="Do not count open segments and copies, which reads all chains.")
@click.pass_obj
def list_(settings: Settings, no_counts: bool) -> None:
    """List the broker groups: intents, brokers, and how many open segments ("heads") and segments they have."""

    async def work() -> list[BrokerGroupRow]:
        async with _connect.admin(settings) as admin:
            return await admin.broker_groups(with_counts=not no_counts)

    rows = run(work())
    if settings.as_json:
        settings.emit([asdict(row) for row in rows])
    else:
        settings.console.print(render(rows))
        for row in rows:
            for pair in row.unlinked:
                settings.console.print(
                    f"{row.name}: {pair} are live and have no link: no segment is opened on the group",
                    markup=False, highlight=False, soft_wrap=True,
                )  # fmt: skip
            if row.waits_for:
                settings.console.print(f"{row.name}: {row.waits_for}", markup=False, highlight=False, soft_wrap=True)
            for broker, state in row.disk_states.items():
                settings.console.print(disk_line(broker, state), markup=False, highlight=False, soft_wrap=True)


def render(rows: list[BrokerGroupRow]) -> Table:
    """A table with a line for each broker group."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("group", "wanted", "weight", "brokers", "live", "heads", "segments"):
        table.add_column(
            column, justify="left" if column in ("group", "wanted", "brokers") else "right", overflow="fold"
        )
    for row in rows:
        heads, segments = ("" if count is None else f"{count:,}" for count in (row.heads, row.segments))
        live = f"{row.live} of {len(row.brokers)}"
        table.add_row(row.name, row.intent, f"{row.weight:g}", ", ".join(row.brokers), live, heads, segments)
    return table


@broker_group.command()
@click.argument("name")
@click.option("--wait", is_flag=True, help="Wait until it has no open segment.")
@click.pass_obj
def cordon(settings: Settings, name: str, wait: bool) -> None:
    """Have the open segments leave the broker group NAME. Its copies of sealed segments stay."""
    _set(settings, name, "cordoned", wait, lambda row: not row.heads, lambda row: f"{row.heads:,} heads left")


@broker_group.command()
@click.argument("name")
@click.option("--wait", is_flag=True, help="Wait until it holds nothing any more.")
@click.pass_obj
def drain(settings: Settings, name: str, wait: bool) -> None:
    """Have everything leave the broker group NAME: open segments, and copies of sealed ones. Then it can be removed."""
    _set(
        settings, name, "draining", wait, lambda row: not row.segments,
        lambda row: f"{row.heads:,} heads and {row.segments:,} segments left" + _because(row),
    )  # fmt: skip


def _because(row: BrokerGroupRow) -> str:
    return f" ({row.waits_for})" if row.waits_for else ""


@broker_group.command()
@click.argument("name")
@click.option("--weight", type=click.FloatRange(0, min_open=True), help="Its share of new partitions.")
@click.pass_obj
def activate(settings: Settings, name: str, weight: float | None) -> None:
    """End a cordon or a drain: the broker group NAME may take open segments and copies again."""
    _set(settings, name, "active", wait=False, weight=weight)


@broker_group.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def remove(settings: Settings, name: str, yes: bool) -> None:
    """Remove the broker group NAME. It must be drained, and its brokers must have ended."""
    if not yes:
        click.confirm(f"Forget the broker group {name} and its brokers?", abort=True)

    async def work() -> None:
        async with _connect.admin(settings) as admin:
            await admin.remove_broker_group(name)

    run(work())
    if settings.as_json:
        settings.emit({"removed": name})
    else:
        click.echo(f"{name} is forgotten")


def _set(
    settings: Settings,
    name: str,
    intent: IntentName,
    wait: bool,
    is_done: Callable[[BrokerGroupRow], bool] = bool,
    left: Callable[[BrokerGroupRow], str] = str,
    weight: float | None = None,
) -> None:
    async def work() -> BrokerGroupRow:
        async with _connect.admin(settings) as admin:
            row = await admin.set_broker_group(name, intent, weight)
            return await _follow(settings, admin, row, is_done, left) if wait else row

    row = run(work())
    if settings.as_json:
        settings.emit(asdict(row))
    else:
        click.echo(f"{name} is {row.intent}" + (", and nothing keeps it" if wait else ""))


async def _follow(
    settings: Settings,
    admin: AdminPort,
    row: BrokerGroupRow,
    is_done: Callable[[BrokerGroupRow], bool],
    left: Callable[[BrokerGroupRow], str],
) -> BrokerGroupRow:
    """Look every `LOOK_S` until it is done. If a person ends the command before, the cluster still finishes it."""
    known: BrokerGroupRow | None = None
    began = time.monotonic()
    async with live_line(
        settings, lambda: f"{row.name}: {left(known) if known else 'counting'}, {time.monotonic() - began:.0f} s"
    ):
        while True:
            try:
                rows = await admin.broker_groups(with_counts=True)
            except SeriatimError:
                rows = []  # one broker failed to answer; the next question may go to another one
            known = next((found for found in rows if found.name == row.name), known)
            if known is not None and rows and is_done(known):
                return known
            await asyncio.sleep(LOOK_S)
