"""`seriatim balance`: shows the load of each master and the open segments that should move, and moves them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import click
from seriatim_api.errors import SeriatimError
from seriatim_api.terminal.safe_text import echo

from seriatim.cli._execution.connection import call_admin
from seriatim.cli._execution.coroutines import live_line
from seriatim.cli._options.settings import Settings
from seriatim.cli._rendering.output import draw, pick

if TYPE_CHECKING:
    from rich.table import Table

    from seriatim import Admin, Balance, BrokerLoad, HeadMove

LOOK_S: Final = 0.5
PATIENCE_S: Final = 15.0
"""If no open segment moves for this many seconds, the command ends. The controller has left out the rest, because
something changed, and it looks again."""


@click.command()
@click.option("--run", "begin", is_flag=True, help="Begin the moves, and show their progress.")
@click.pass_obj
def balance(settings: Settings, begin: bool) -> None:
    """Show the load of each master, and the open segments ("heads") that should move. With --run, move them.

    The controller also does this by itself, when the difference is twice as large. Each move is a planned switch:
    nothing is lost or repeated, and the partition waits for some milliseconds.
    """

    async def work(admin: Admin) -> int:
        found = await admin.balance(run=begin)
        if settings.as_json:
            settings.emit({**_fields(found), "begun": begin and bool(found.moves)})
        else:
            _show(settings, found)
        if not begin or not found.moves:
            return 0
        left = await _follow(settings, admin, list(found.moves))
        if not settings.as_json:
            done = len(found.moves) - len(left)
            echo(f"{done} of {len(found.moves)} heads have moved" + ("; look again in a while" * bool(left)))
        return 1 if left else 0

    status = call_admin(settings, work)
    if status:
        raise click.exceptions.Exit(status)


def _fields(found: Balance) -> dict[str, Any]:
    return {
        "loads": [
            {
                **pick(now, "broker", "group", "heads", "bytes_per_s"),
                "heads_after": after.heads,
                "bytes_per_s_after": after.bytes_per_s,
            }
            for now, after in _loads(found)
        ],
        "moves": [
            pick(move, "topic", "partition", "source=from_broker", "target=to_broker", "bytes_per_s")
            for move in found.moves
        ],
        "reason": found.reason,
    }


def _loads(found: Balance) -> list[tuple[BrokerLoad, BrokerLoad]]:
    """The load of each broker now and after the moves."""
    after = {load.broker: load for load in found.after}
    return [(load, after[load.broker]) for load in found.before]


def _show(settings: Settings, found: Balance) -> None:
    if found.before:
        settings.show(render_loads(found))
    if found.moves:
        settings.show(render_moves(found))
    else:
        echo(found.reason or "nothing is to be moved")


def render_loads(found: Balance) -> Table:
    """A table with the load of each broker, before and after the moves."""
    lines = ((now.broker, now.group, *_figures(now), *_figures(after)) for now, after in _loads(found))
    return draw(("broker", "group", ">heads", ">load/s", ">heads after", ">load/s after"), lines)


def _figures(load: BrokerLoad) -> tuple[str, str]:
    return f"{load.heads:,}", _rate(load.bytes_per_s)


def render_moves(found: Balance) -> Table:
    """A table with a line for each open segment that should move."""
    lines = (
        (row.topic, str(row.partition), row.from_broker, row.to_broker, _rate(row.bytes_per_s)) for row in found.moves
    )
    return draw(("topic~", ">partition~", "from~", "to~", ">load/s~"), lines)


def _rate(value: float) -> str:
    """A load without a unit, because it is not only bytes: each batch counts as 64 KiB more."""
    for unit in ("", "k", "M"):
        if value < 1000:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}G"


async def _follow(settings: Settings, admin: Admin, left: list[HeadMove]) -> list[HeadMove]:
    """Wait until all open segments have moved, or none has for `PATIENCE_S`. Returns those that have not moved."""
    count = len(left)
    until = time.monotonic() + PATIENCE_S
    async with live_line(settings, lambda: f"{count - len(left)} of {count} heads have moved"):
        while left and time.monotonic() < until:
            await asyncio.sleep(LOOK_S)
            before = len(left)
            for move in list(left):
                if await _has_moved(admin, move):
                    left.remove(move)
            if len(left) < before:
                until = time.monotonic() + PATIENCE_S
    return left


async def _has_moved(admin: Admin, move: HeadMove) -> bool:
    try:
        chain = await admin.describe_chain(move.topic, move.partition)
    except SeriatimError:
        return False  # one broker failed to answer; the next question may go to another one
    return chain.segments[-1].members[0] == move.to_broker
