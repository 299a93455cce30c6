"""`seriatim check`: runs the history checker over recorded files and prints its findings."""

from __future__ import annotations

from pathlib import Path

import click
from seriatim_api.errors import BadRequestError
from seriatim_api.terminal.safe_text import echo

from seriatim import history
from seriatim.cli._options.settings import Settings


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--group", "groups", multiple=True, help="A consumer group that the files must have; may be repeated.")
@click.option("--limit", type=click.IntRange(0), default=10, show_default=True, help="Findings of each kind to show.")
@click.pass_context
def check(ctx: click.Context, files: tuple[Path, ...], groups: tuple[str, ...], limit: int) -> None:
    """Check recorded histories: which messages were lost, repeated, reordered, failed but delivered, or stuck.

    FILES are the files that `produce --history`, `consume --history` and the recorders of programs wrote. Give all
    files of one test together. Exit status 1 if a promise was broken.
    """
    settings: Settings = ctx.obj
    try:
        report = history.check(files, groups=groups, limit=limit)
    except history.HistoryFormatError as error:
        raise BadRequestError(str(error)) from error
    if settings.as_json:
        settings.emit(report.to_dict())
    else:
        echo(history.render(report))
    if not report.ok:
        ctx.exit(1)
