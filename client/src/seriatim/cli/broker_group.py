"""`seriatim broker-group ...`: list, cordon, drain, activate and remove broker groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import click
from seriatim_api.errors import SeriatimError

from seriatim.cli._execution.confirmation import confirm_first
from seriatim.cli._execution.connection import call_admin
from seriatim.cli._execution.coroutines import live_line
from seriatim.cli._options.settings import Settings
from seriatim.cli._rendering.output import disk_line, draw, pick

if TYPE_CHECKING:
    from rich.table import Table

    from seriatim import Admin, BrokerGroup

LOOK_S: Final = 0.5


@click.group("broker-group")
def broker_group() -> None:
    """List, cordon, drain, activate and remove broker groups."""


@broker_group.command("list")
@click.option("--no-counts", is_flag=True, help="Do not count open segments and copies, which reads all chains.")
@click.pass_obj
def list_(settings: Settings, no_counts: bool) -> None:
    """List the broker groups: intents, brokers, and how many open segments ("heads") and segments they have."""
    rows = call_admin(settings, lambda admin: admin.list_broker_groups(with_counts=not no_counts))
    if settings.as_json:
        settings.emit(list(map(_fields, rows)))
    else:
        settings.show(render(rows))
        for row in rows:
            for pair in _unlinked(row):
                settings.say(f"{row.name}: {pair} are live and have no link: no segment is opened on the group")
            if row.waits_for:
                settings.say(f"{row.name}: {row.waits_for}")
            for broker, state in _disk_states(row).items():
                settings.say(disk_line(broker, state))


def _fields(row: BrokerGroup) -> dict[str, Any]:
    return {
        **pick(row, "name", "intent", "weight"),
        "brokers": [member.broker for member in row.members],
        "live": sum(member.live for member in row.members),
        **pick(row, "heads", "segments", "waits_for"),
        "disk_states": _disk_states(row),
        "unlinked": _unlinked(row),
    }


def _disk_states(row: BrokerGroup) -> dict[str, str]:
    """For each broker with a bad disk, what is wrong with it."""
    return {member.broker: member.disk_state for member in row.members if member.disk_state}


def _unlinked(row: BrokerGroup) -> list[str]:
    """The pairs of brokers that are live and have no link."""
    return [f"{member.broker} and {other}" for member in row.members for other in member.unlinked]


def render(rows: list[BrokerGroup]) -> Table:
    """A table with a line for each broker group."""
    lines = []
    for row in rows:
        opened, segments = ("" if count is None else f"{count:,}" for count in (row.heads, row.segments))
        brokers = ", ".join(member.broker for member in row.members)
        live = f"{sum(member.live for member in row.members)} of {len(row.members)}"
        lines.append((row.name, row.intent, f"{row.weight:g}", brokers, live, opened, segments))
    return draw(("group~", "wanted~", ">weight~", "brokers~", ">live~", ">heads~", ">segments~"), lines)


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


def _because(row: BrokerGroup) -> str:
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
        confirm_first(f"Forget the broker group {name} and its brokers?", otherwise=f"{name} is not removed")
    call_admin(settings, lambda admin: admin.remove_broker_group(name))
    settings.tell({"removed": name}, f"{name} is forgotten")


def _set(
    settings: Settings,
    name: str,
    intent: Literal["active", "cordoned", "draining"],
    wait: bool,
    is_done: Callable[[BrokerGroup], bool] = bool,
    left: Callable[[BrokerGroup], str] = str,
    weight: float | None = None,
) -> None:
    async def work(admin: Admin) -> BrokerGroup:
        row = await admin.set_broker_group(name, intent, weight=weight)
        return await _follow(settings, admin, row, is_done, left) if wait else row

    row = call_admin(settings, work)
    settings.tell(_fields(row), f"{name} is {row.intent}" + (", and nothing keeps it" if wait else ""))


async def _follow(
    settings: Settings,
    admin: Admin,
    row: BrokerGroup,
    is_done: Callable[[BrokerGroup], bool],
    left: Callable[[BrokerGroup], str],
) -> BrokerGroup:
    """Look every `LOOK_S` until it is done. If an administrator ends the command before, the cluster still finishes
    it."""
    known: BrokerGroup | None = None
    began = time.monotonic()
    async with live_line(
        settings, lambda: f"{row.name}: {left(known) if known else 'counting'}, {time.monotonic() - began:.0f} s"
    ):
        while True:
            try:
                rows = await admin.list_broker_groups(with_counts=True)
            except SeriatimError:
                rows = []  # one broker failed to answer; the next question may go to another one
            known = next((found for found in rows if found.name == row.name), known)
            if known is not None and rows and is_done(known):
                return known
            await asyncio.sleep(LOOK_S)
