"""`seriatim owner ...`: names that one program at a time has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from seriatim_api.terminal.safe_text import echo

from seriatim.cli._execution.connection import call_admin
from seriatim.cli._options.settings import Settings
from seriatim.cli._rendering.output import draw, pick
from seriatim.cli._rendering.times import utc

if TYPE_CHECKING:
    from seriatim import Admin, NameOwner, OwnerDescription


@click.group()
def owner() -> None:
    """List and show the owners of names, and take a name away.

    A program that sends with an owner's name has it alone. Others wait until it ends, or brokers hear nothing of it.
    """


@owner.command("list")
@click.argument("topic", required=False)
@click.pass_obj
def list_(settings: Settings, topic: str | None) -> None:
    """List the owners of the names in TOPIC, or in all topics."""

    async def work(admin: Admin) -> list[NameOwner]:
        return sorted([one async for one in admin.owners(topic)], key=lambda one: (one.topic, one.name))

    found = call_admin(settings, work)
    if settings.as_json:
        settings.emit([_fields(one) for one in found])
    elif found:
        lines = (
            (one.topic, one.name, str(one.epoch), one.owner, utc(one.acquired_at_ms), _state(one)) for one in found
        )
        settings.show(draw(("topic", "name", ">epoch", "owner", "since", "state"), lines))
    else:
        echo(f"{'the cluster' if topic is None else topic} has no names with owners", err=True)


@owner.command()
@click.argument("topic")
@click.argument("name")
@click.pass_obj
def show(settings: Settings, topic: str, name: str) -> None:
    """Show the owner of a name, the programs that wait, and partitions that hold the next owner up."""

    async def work(admin: Admin) -> OwnerDescription:
        return await admin.describe_owner(topic, name)

    found = call_admin(settings, work)
    if settings.as_json:
        shown = _fields(found.owner) if found.owner is not None else None
        more = {"waiting": list(found.waiting), "partitions": list(found.partitions)}
        settings.emit({"owner": shown, **pick(found, "is_here", "reason"), **more})
        return
    if found.owner is None:
        echo(f"{name} never had an owner in {topic}")
    else:
        one = found.owner
        where = "" if found.is_here or one.is_released else "; the broker that elects has no call of it"
        echo(f"{one.owner}  epoch {one.epoch}, since {utc(one.acquired_at_ms)}, {_state(one)}{where}")
    for position, text in enumerate(found.waiting, 1):
        echo(f"waits ({position}): {text}")
    if found.partitions:
        reason = f": {found.reason}" if found.reason else ""
        echo(f"the next owner waits for partitions {', '.join(map(str, found.partitions))}{reason}")


@owner.command()
@click.argument("topic")
@click.argument("name")
@click.option("--epoch", type=click.IntRange(1), help="Only if the owner has this epoch. [default: any]")
@click.pass_obj
def release(settings: Settings, topic: str, name: str, epoch: int | None) -> None:
    """Take a name away from its owner. Its producer ends, and the next program that waits gets the name."""

    async def work(admin: Admin) -> NameOwner:
        return await admin.release_owner(topic, name, 0 if epoch is None else epoch)

    one = call_admin(settings, work)
    if settings.as_json:
        settings.emit(_fields(one))
    elif one.is_released:
        echo(f"{name} is free; the last owner was {one.owner}, in epoch {one.epoch}")
    else:
        echo(f"{one.owner} is the owner of {name} now, in epoch {one.epoch}")


def _state(one: NameOwner) -> str:
    return "released" if one.is_released else "owned"


def _fields(one: NameOwner) -> dict[str, Any]:
    return pick(one, "topic", "name", "epoch", "owner", "acquired_at_ms", "is_released", "session_ms")
