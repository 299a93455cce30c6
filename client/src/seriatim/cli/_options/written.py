"""The type of options that take something written in a form of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

T = TypeVar("T")

if TYPE_CHECKING:
    _ParamType = click.ParamType
else:

    class _ParamType(click.ParamType, Generic[T]):
        """In click 8.1 it takes no argument."""


class WrittenType(_ParamType[T]):
    """The type of such options.

    Args:
        name: What help calls the value.
        kind: The class of the values.
        read: Reads a text. It raises a `ValueError` that says how to write one.
    """

    def __init__(self, name: str, kind: type[T], read: Callable[[str], T]) -> None:
        self.name = name
        self._kind = kind
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Read the text, or fail with the text of the error."""
        if isinstance(value, self._kind):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
