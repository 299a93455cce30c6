"""Options with the limits of a topic for delayed messages, and their description in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from seriatim_api.delay_limits import DELAY_MAX_MS_DEFAULT, DELAYED_PENDING_MAX_DEFAULT, DelayLimits

from seriatim.cli._options.amounts import DELAY_MAX, format_duration

if TYPE_CHECKING:
    from seriatim import TopicSettings


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of `create` and `alter` about delayed messages."""
    for option in (
        click.option(
            "--delayed-pending-max", "delayed_pending_max", type=click.IntRange(1), metavar="COUNT",
            help="How many delayed messages of a partition may wait. [default of a new topic: 10,000,000]",
        ),
        click.option(
            "--delay-max", "delay_max_ms", type=DELAY_MAX, metavar="DURATION",
            help="The longest delay of a message: 90s, 12h, 40d, at most 366d. 0: the topic takes no delayed messages. "
            "[default of a new topic: 40d]",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def taken_from(given: dict[str, Any]) -> dict[str, Any]:
    """Take the limits out of the values of a command's options. Returns those that are given."""
    taken = {name: given.pop(name) for name in DelayLimits._fields}
    return {name: value for name, value in taken.items() if value is not None}


def in_words(settings: TopicSettings) -> str:
    """The limits in words; empty if the topic has those that topics have unless said otherwise."""
    if (settings.delay_max_ms, settings.delayed_pending_max) == (DELAY_MAX_MS_DEFAULT, DELAYED_PENDING_MAX_DEFAULT):
        return ""
    if not settings.delay_max_ms:
        return "delayed messages: none"
    most = format_duration(settings.delay_max_ms)
    return f"delayed messages: for at most {most}, at most {settings.delayed_pending_max:,} a partition"
