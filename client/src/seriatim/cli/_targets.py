"""A place in a topic, as a word of the command line: earliest, latest, an offset, or a time."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from seriatim.cli._places import parse

if TYPE_CHECKING:
    _Base = click.ParamType[Any]
else:
    _Base = click.ParamType  # not generic at run time before click 8.4

FORMS: Final = "earliest, latest, an offset like 3:1500, a time like 2026-01-31T08:00:00Z, or an age like -15m"


class TargetType(_Base):
    """A word that names a place; it becomes a value of `seriatim._settings.Target`."""

    name = "earliest|latest|OFFSET|TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`; a value that is no word was converted before."""
        if not isinstance(value, str) or value in ("earliest", "latest"):
            return value
        try:
            written = parse(value, datetime.now().astimezone())
        except ValueError as exc:
            self.fail(f"{value!r} is no place in a topic: {FORMS} ({exc})", param, ctx)
        if written.zone_is_ours:
            self.fail(f"{value!r} names no time zone: add Z for UTC, or an offset like +02:00", param, ctx)
        return "latest" if written.at == "end" else written.at


TARGET: Final = TargetType()
