"""`seriatim member ...`: the brokers of the cluster, whether one may be stopped, a person's word that one has ended."""

from __future__ import annotations

import getpass
from dataclasses import asdict

import click

from seriatim.cli import _connect
from seriatim.cli._ports import MemberRow, RestartView
from seriatim.cli._running import run
from seriatim.cli._settings import Settings


@click.group()
def member() -> None:
    """Brokers: list them, may one be stopped, declare one's run dead."""


@member.command("list")
@click.pass_obj
def list_(settings: Settings) -> None:
    """List all brokers with their disks and runs."""

    async def work() -> list[MemberRow]:
        async with _connect.admin(settings) as admin:
            return await admin.members()

    rows = run(work())
    if settings.as_json:
        settings.emit([asdict(row) for row in rows])
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("broker", "group", "disk", "run", "address", "admitted", "live"):
        table.add_column(column, justify="right" if column == "run" else "left", overflow="fold")
    for row in rows:
        admitted, live = ("yes" if row.admitted else "no"), ("yes" if row.live else "no")
        table.add_row(row.broker, row.group, row.incarnation[:8], str(row.run), row.address, admitted, live)
    settings.console.print(table)
    for row in rows:
        if row.disk_state:
            settings.console.print(disk_line(row.broker, row.disk_state), markup=False, highlight=False, soft_wrap=True)


def disk_line(broker: str, state: str) -> str:
    """What is wrong with a broker's disk, and what that means."""
    told = {
        "full": (
            "has reached its reserve: it takes no new messages. Add disks or broker groups, or delete topics that are "
            "not needed"
        ),
        "hangs": "completes no write: the other members go on without it. Look at the disk",
    }
    return f"the disk of {broker} {told.get(state, state)}"


@member.command("declare-dead")
@click.argument("broker")
@click.option("--run", "run_no", type=click.IntRange(1), required=True, help="Which run of it: see `member list`.")
@click.option("--issuer", default=getpass.getuser, show_default="your user name", help="Who says so.")
@click.option("--incarnation", default="", help="The disk that is meant. [default: the one that has the slot]")
@click.option("--evidence", default="", help="How you know, for those who read it later.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def declare_dead(
    settings: Settings, broker: str, run_no: int, issuer: str, incarnation: str, evidence: str, yes: bool
) -> None:
    """Certify that a run of BROKER has ended for good, so that the cluster need not wait for it.

    Only say so if its process has really ended, or its machine is off: if it still runs, messages that it
    acknowledges can be lost.
    """
    if not yes:
        click.confirm(f"Has the process of {broker}, run {run_no}, really ended?", abort=True)

    async def work() -> None:
        async with _connect.admin(settings) as admin:
            await admin.declare_dead(broker, run_no, issuer, incarnation, evidence)

    run(work())
    if settings.as_json:
        settings.emit({"declared_dead": broker, "run": run_no})
    else:
        click.echo(f"run {run_no} of {broker} is declared dead")


@member.command("check-restart")
@click.argument("broker")
@click.pass_obj
def check_restart(settings: Settings, broker: str) -> None:
    """Ask the other brokers whether BROKER may be stopped now without leaving anything on one disk only.

    The exit status is 1 if it may not.
    """

    async def work() -> RestartView:
        async with _connect.admin(settings) as admin:
            return await admin.check_restart(broker)

    found = run(work())
    if settings.as_json:
        settings.emit(asdict(found))
    else:
        word = "may be stopped" if found.is_safe else f"must not be stopped ({found.verdict.replace('_', ' ')})"
        click.echo(f"{broker} {word}: {found.reason}")
    if not found.is_safe:
        raise click.exceptions.Exit(1)


@member.command()
@click.argument("broker")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def remove(settings: Settings, broker: str, yes: bool) -> None:
    """Forget BROKER, which is declared dead and whose disk nobody needs."""
    if not yes:
        click.confirm(f"Forget {broker}?", abort=True)

    async def work() -> None:
        async with _connect.admin(settings) as admin:
            await admin.remove_member(broker)

    run(work())
    if settings.as_json:
        settings.emit({"removed": broker})
    else:
        click.echo(f"{broker} is forgotten")
