"""Broadcast groups for humans: each consumer has a position `group/consumer`. `seriatim group` shows them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from seriatim_api.errors import UnknownGroupError

from seriatim.cli._rendering.output import draw

if TYPE_CHECKING:
    from rich.table import Table

    from seriatim import Admin, GroupDescription

SHOWN_MAX: Final = 100
"""Maximum number of consumers of a broadcast group that are described."""


class Found(NamedTuple):
    """What a name stands for.

    Attributes:
        group: The consumer group of that name; None: there is none.
        consumers: The consumers of the broadcast group of that name, at most `SHOWN_MAX`.
        consumer_count: How many there are.
    """

    group: GroupDescription | None
    consumers: Sequence[GroupDescription] = ()
    consumer_count: int = 0


def lines_of(names: Sequence[str]) -> list[str]:
    """A line for each consumer group, and one for each broadcast group with all its consumers."""
    counts: dict[str, int] = {}
    lines: list[str] = []
    for name in names:
        group, separator, _ = name.partition("/")
        if separator:
            counts[group] = counts.get(group, 0) + 1
        else:
            lines.append(name)
    return sorted([*lines, *(f"{group}/  ({_consumers(count)})" for group, count in counts.items())])


def consumers_of(names: Sequence[str], group: str) -> list[str]:
    """The positions of the consumers of a broadcast group."""
    return [name for name in names if name.startswith(f"{group}/")]


async def find(admin: Admin, topic: str, name: str) -> Found:
    """Describe a consumer group, or the consumers of a broadcast group.

    Raises:
        UnknownGroupError: The topic has neither.
    """
    name = name.removesuffix("/")
    try:
        return Found(await admin.describe_group(topic, name))
    except UnknownGroupError:
        names = consumers_of(await admin.list_groups(topic), name)
        if not names:
            raise
    return Found(None, [await admin.describe_group(topic, one) for one in names[:SHOWN_MAX]], len(names))


async def delete(admin: Admin, topic: str, name: str) -> int:
    """Delete a consumer group, or all positions of a broadcast group.

    Returns:
        Of a broadcast group: how many positions; else 0.

    Raises:
        UnknownGroupError: The topic has neither.
        PreconditionError: A consumer is there. Positions of others may be deleted already.
    """
    name = name.removesuffix("/")
    try:
        await admin.delete_group(topic, name)
    except UnknownGroupError:
        names = consumers_of(await admin.list_groups(topic), name)
        if not names:
            raise
        for one in names:
            await admin.delete_group(topic, one)
        return len(names)
    return 0


def render(found: Found) -> Table:
    """A table of the consumers of a broadcast group."""
    lines = []
    for consumer in found.consumers:
        lags = [row.lag for row in consumer.partitions if row.lag is not None]
        is_at_least = len(lags) < len(consumer.partitions) or any(row.end_is_at_least for row in consumer.partitions)
        is_here = any(row.active_consumer for row in consumer.partitions)
        name = consumer.group.partition("/")[2]
        lines.append((name, f"{sum(lags):,}{'+' * is_at_least}", "yes" if is_here else "no"))
    return draw(("consumer~", ">lag", "connected"), lines)


def last_line(found: Found) -> str:
    """What the table does not say."""
    more = f"; the first {len(found.consumers)} are shown" if found.consumer_count > len(found.consumers) else ""
    return (
        f"mode   broadcast: each consumer gets all messages. {_consumers(found.consumer_count)}{more}. A position goes "
        "when its consumer was away for a week"
    )


def _consumers(count: int) -> str:
    return f"{count:,} consumer{'s' * (count != 1)}"
