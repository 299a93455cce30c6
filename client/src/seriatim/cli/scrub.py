"""`seriatim scrub`: brokers read their disks. The command shows damaged copies, and brokers begin their repair."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from seriatim_api.terminal.safe_text import echo

from seriatim.cli._execution.connection import call_admin
from seriatim.cli._options.settings import Settings

if TYPE_CHECKING:
    from seriatim import Admin, Damage

EXIT_DAMAGED = 1


@click.command()
@click.argument("brokers", nargs=-1, metavar="[BROKER]...")
@click.pass_obj
def scrub(settings: Settings, brokers: tuple[str, ...]) -> None:
    """Have each BROKER (default: all live ones) read its disk and compare it with the checksums.

    The broker rewrites a damaged copy from the other members of the segment, in the background. Scrub again to see
    whether everything is repaired. Exit status 1 if anything was damaged.
    """

    async def work(admin: Admin) -> list[Damage]:
        names = brokers or sorted(row.name for row in (await admin.describe_cluster()).brokers if row.live)
        return [damage for name in names for damage in await _scrub_one(settings, admin, name)]

    found = call_admin(settings, work)
    if settings.as_json:
        settings.emit([asdict(row) for row in found])
    else:
        for row in found:
            echo(f"{row.broker}: partition id {row.partition_id}, segment {row.segment}: {row.reason}")
    if found:
        sys.exit(EXIT_DAMAGED)


async def _scrub_one(settings: Settings, admin: Admin, broker: str) -> list[Damage]:
    found: list[Damage] = []
    read_bytes = read_segments = 0
    with settings.notes.status(f"{broker}: reading") as status:
        async for step in admin.scrub(broker):
            read_bytes += step.read_bytes
            read_segments += step.read_segments
            found.extend(step.damages)
            status.update(f"{broker}: {read_segments:,} segments, {read_bytes / 1e6:,.0f} MB")
    if not settings.as_json:
        damaged = f", {len(found)} damaged: they are being repaired" if found else ", all well"
        echo(f"{broker}: {read_segments:,} segments, {read_bytes / 1e6:,.0f} MB read{damaged}")
    return found
