"""`seriatim member ...`: list brokers, check whether one may be stopped, declare a member run dead, remove a broker."""

from __future__ import annotations

import getpass

import click

from seriatim.cli._execution.confirmation import confirm_first
from seriatim.cli._execution.connection import call_admin
from seriatim.cli._options.settings import Settings
from seriatim.cli._rendering.output import disk_line, draw, pick


@click.group()
def member() -> None:
    """List brokers, check whether one may be stopped, declare a member run dead, remove a broker."""


@member.command("list")
@click.pass_obj
def list_(settings: Settings) -> None:
    """List all brokers with their disks and member runs."""
    cluster = call_admin(settings, lambda admin: admin.describe_cluster())
    brokers = sorted(cluster.brokers, key=lambda broker: broker.name)
    if settings.as_json:
        names = [
            "broker=name",
            "group",
            "incarnation",
            "run",
            "address",
            "external_address",
            "live",
            "admitted",
            "disk_state",
        ]
        settings.emit([pick(broker, *names) for broker in brokers])
        return
    lines = []
    for row in brokers:
        admitted, live = ("yes" if row.admitted else "no"), ("yes" if row.live else "no")
        lines.append((row.name, row.group, row.incarnation[:8], str(row.run), row.address, admitted, live))
    settings.show(draw(("broker~", "group~", "disk~", ">run~", "address~", "admitted~", "live~"), lines))
    for row in brokers:
        if row.external_address:
            settings.say(f"clients outside reach {row.name} at {row.external_address}")
    for row in brokers:
        if row.disk_state:
            settings.say(disk_line(row.name, row.disk_state))


@member.command("declare-dead")
@click.argument("broker")
@click.option("--run", "run_no", type=click.IntRange(1), required=True, help="The member run: see `member list`.")
@click.option("--issuer", default=getpass.getuser, show_default="your user name", help="The administrator who says so.")
@click.option("--incarnation", help="The incarnation of the disk. [default: the one that has the slot]")
@click.option("--evidence", default="", help="How you know it, for users who read the certificate later.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def declare_dead(
    settings: Settings, broker: str, run_no: int, issuer: str, incarnation: str | None, evidence: str, yes: bool
) -> None:
    """Write a death certificate: a member run of BROKER has ended, so the cluster does not wait for it any more.

    Do this only if the process has really ended, or its machine is off. If it still runs, messages that it acknowledges
    can be lost.
    """
    if not yes:
        confirm_first(
            f"Has the process of {broker}, run {run_no}, really ended?",
            otherwise=f"run {run_no} of {broker} is not declared dead",
        )
    call_admin(
        settings,
        lambda admin: admin.declare_dead(broker, run_no, issuer, incarnation=incarnation, evidence=evidence),
    )
    settings.tell({"declared_dead": broker, "run": run_no}, f"run {run_no} of {broker} is declared dead")


@member.command("check-restart")
@click.argument("broker")
@click.pass_obj
def check_restart(settings: Settings, broker: str) -> None:
    """Ask the other brokers whether BROKER may be stopped now without leaving anything on one disk only.

    The exit status is 1 if it must not be stopped.
    """
    found = call_admin(settings, lambda admin: admin.check_restart(broker))
    fields = {"broker": broker, **pick(found, "is_safe", "verdict", "reason", "segments_checked")}
    word = "may be stopped" if found.is_safe else f"must not be stopped ({found.verdict.replace('_', ' ')})"
    settings.tell(fields, f"{broker} {word}: {found.reason}")
    if not found.is_safe:
        raise click.exceptions.Exit(1)


@member.command()
@click.argument("broker")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def remove(settings: Settings, broker: str, yes: bool) -> None:
    """Remove BROKER from the cluster. It must be declared dead, and no segment may need its disk."""
    if not yes:
        confirm_first(f"Forget {broker}?", otherwise=f"{broker} is not removed")
    call_admin(settings, lambda admin: admin.remove_member(broker))
    settings.tell({"removed": broker}, f"{broker} is forgotten")
