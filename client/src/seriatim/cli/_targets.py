"""A place in a topic, as a word of the command line: earliest, latest, an offset, or a time."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click
from seriatim_api.ids import parse_offset

if TYPE_CHECKING:
    _Base = click.ParamType[Any]
else:
    _Base = click.ParamType  # not generic at run time before click 8.4

FORMS: Final = "earliest, latest, an offset like 3:1500, or a time like 2026-01-31T08:00:00Z"


class TargetType(_Base):
    """A word that names a place; it becomes a value of `seriatim._settings.Target`."""

    name = "earliest|latest|OFFSET|TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`; a value that is no word was converted before."""
        if not isinstance(value, str) or value in ("earliest", "latest"):
            return value
        segment, _, index = value.partition(":")
        if segment.isdecimal() and (index.isdecimal() or ":" not in value):
            try:
                return parse_offset(value)
            except ValueError as exc:
                self.fail(f"{exc}", param, ctx)
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no place in a topic: {FORMS}", param, ctx)
        if time.tzinfo is None:
            self.fail(f"{value!r} names no time zone: add Z for UTC, or an offset like +02:00", param, ctx)
        return time


TARGET: Final = TargetType()
