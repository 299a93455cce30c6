"""Asks before a command changes something that cannot be taken back."""

from __future__ import annotations

from typing import IO, Any

import click
from seriatim_api.terminal.questions import NoTerminalError, ask
from seriatim_api.terminal.safe_text import echo

from seriatim.cli._execution.coroutines import run


class DeclinedError(click.ClickException):
    """The user answered no. The exit status is 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print what was not done."""
        echo(self.message, file=file, err=True)


async def confirm(question: str, *, otherwise: str) -> None:
    """Ask the user whether to continue. Ctrl-C ends the command at once.

    Args:
        question: The question, with its question mark.
        otherwise: What is not done if the answer is no, as a sentence: "orders is not deleted".

    Raises:
        DeclinedError: The answer is no.
        click.UsageError: stdin is no terminal, so the command cannot ask.
    """
    try:
        is_sure = await ask(question)
    except NoTerminalError:
        raise click.UsageError(f"{otherwise}: stdin is no terminal to ask you on, so add --yes") from None
    if not is_sure:
        raise DeclinedError(f"{otherwise}: the answer was no")


def confirm_first(question: str, *, otherwise: str) -> None:
    """Ask as `confirm` does, before the command has an event loop."""
    run(confirm(question, otherwise=otherwise))
