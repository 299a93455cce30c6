"""`seriatim writer ...`: list writers, show what each has published, and delete one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from seriatim_api.terminal.safe_text import echo

from seriatim.cli._execution.confirmation import confirm_first
from seriatim.cli._execution.connection import call_admin
from seriatim.cli._options.settings import Settings
from seriatim.cli._rendering.output import draw, pick
from seriatim.cli._rendering.times import utc

if TYPE_CHECKING:
    from rich.table import Table

    from seriatim import WriterDescription


@click.group()
def writer() -> None:
    """List writers, show what each has published, delete one. A writer publishes sets of rows, all or nothing."""


@writer.command("list")
@click.argument("topic", required=False)
@click.pass_obj
def list_(settings: Settings, topic: str | None) -> None:
    """List the writers of TOPIC, or of all topics, each with its last publication."""
    rows = call_admin(settings, lambda admin: admin.list_writers(topic))
    if settings.as_json:
        settings.emit(list(map(_fields, rows)))
    elif rows:
        settings.show(render(rows))
    else:
        echo(f"no writer was opened on {'any topic' if topic is None else topic}", err=True)


@writer.command()
@click.argument("topic")
@click.argument("name", metavar="WRITER")
@click.pass_obj
def describe(settings: Settings, topic: str, name: str) -> None:
    """Show the last publication of WRITER to TOPIC.

    NEW: the writer was opened, and has published nothing. DECIDED: brokers are storing the rows, and will finish.
    DONE: all rows are committed.
    """
    row = call_admin(settings, lambda admin: admin.describe_writer(topic, name))
    if settings.as_json:
        settings.emit(_fields(row))
        return
    echo(f"{row.writer} on {row.topic}: {row.state}, epoch {row.epoch}" + (f", of {row.owner}" * bool(row.owner)))
    if row.sequence is not None:
        done = f", done {utc(row.done_at_ms)}" if row.done_at_ms else ""
        echo(f"publication {row.sequence}: {row.rows} rows, decided {utc(row.decided_at_ms)}{done}")
    if row.lost_rows:
        echo(f"up to {row.lost_rows} of these rows are lost: the disks that they were staged on were declared lost")


@writer.command()
@click.argument("topic")
@click.argument("name", metavar="WRITER")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def delete(settings: Settings, topic: str, name: str, yes: bool) -> None:
    """Delete WRITER of TOPIC. Its publications stay. Brokers refuse a program that still publishes under it."""
    if not yes:
        confirm_first(
            f"Forget what {name} has published to {topic}, so that it can publish the same rows again?",
            otherwise=f"{name} on {topic} is not deleted",
        )
    call_admin(settings, lambda admin: admin.delete_writer(topic, name))
    settings.tell({"topic": topic, "deleted": name}, f"deleted {name} on {topic}")


def render(rows: list[WriterDescription]) -> Table:
    """A table with a line for each writer."""
    lines = []
    for row in rows:
        sequence = "-" if row.sequence is None else str(row.sequence)
        lines.append((row.topic, row.writer, row.state, sequence, str(row.rows), str(row.epoch), row.owner))
    return draw(("topic", "writer", "state", ">sequence", ">rows", ">epoch", "owner"), lines)


def _fields(row: WriterDescription) -> dict[str, Any]:
    return pick(
        row, "topic", "writer", "state", "sequence", "rows", "lost_rows", "epoch", "owner", "decided_at_ms",
        "done_at_ms",
    )  # fmt: skip
