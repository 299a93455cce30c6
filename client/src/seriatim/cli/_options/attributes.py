"""Options that set and remove attributes of a topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import click

from seriatim.cli._options.written import WrittenType


def _pair(text: str) -> tuple[str, ...]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"write NAME=VALUE, such as owner=payments, not {text!r}")
    return name, value


_PAIR: Final = WrittenType("NAME=VALUE", tuple, _pair)

SETS: Final = click.option(
    "--attribute",
    "attributes",
    type=_PAIR,
    multiple=True,
    help="Set this attribute, a text for your tools, such as owner=payments. May be repeated.",
)

REMOVES: Final = click.option(
    "--no-attribute",
    "removed",
    metavar="NAME",
    multiple=True,
    help="Remove this attribute. May be repeated.",
)


def changes_of(attributes: Iterable[tuple[str, str]], removed: Iterable[str] = ()) -> dict[str, str | None]:
    """The attributes that the options name, with their new values. None: it is removed.

    Raises:
        click.UsageError: An attribute is named twice.
    """
    pairs = [*attributes, *((name, None) for name in removed)]
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise click.UsageError(f"the attribute {name} is named {count} times: name it once")
    return dict(pairs)
