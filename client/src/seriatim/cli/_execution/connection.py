"""Connects a command to the cluster that the root command's options name."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import seriatim
from seriatim.cli._execution.coroutines import run, say
from seriatim.cli._options.settings import Settings

if TYPE_CHECKING:
    from seriatim._recorder import Recorder

T = TypeVar("T")

MESSAGE_ID_HEADER: Final = "seriatim-id"
"""The header that carries a message's id for histories."""


@asynccontextmanager
async def client(settings: Settings, recorder: Recorder | None = None) -> AsyncIterator[seriatim.Client]:
    """A client whose warnings are printed on stderr, for example that no broker answers.

    Args:
        settings: The settings of the command.
        recorder: Writes what is consumed into a history; None: nothing does.
    """
    logger, warnings = logging.getLogger("seriatim"), _WarningNotes(settings)
    logger.addHandler(warnings)
    try:
        asked = settings.tls
        tls = None
        if asked is not None and asked.ca is not None:
            tls = seriatim.Tls(asked.ca, asked.cert, asked.key, asked.server_name)
        async with seriatim.Client.connect(settings.bootstrap, name="cli", tls=tls, recorder=recorder) as opened:
            yield opened
    finally:
        logger.removeHandler(warnings)


def call_admin(settings: Settings, call: Callable[[seriatim.Admin], Awaitable[T]]) -> T:
    """Make one call of the administration, and return its answer."""

    async def work() -> T:
        async with client(settings) as opened:
            return await call(opened.admin())

    return run(work())


class _WarningNotes(logging.Handler):
    """Prints the client's warnings in the form of `consume`'s notes."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(logging.WARNING)
        self._as_json = settings.as_json

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        say(json.dumps({"note": "warning", "text": text}) if self._as_json else f"# {text}", err=True)
