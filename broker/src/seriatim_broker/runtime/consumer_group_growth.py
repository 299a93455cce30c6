"""The consumer groups of a topic that grows: new partitions get cursors with the settings of each group.

The controller writes them after the partitions are made, and before they belong to the topic (`topics`). So no client
knows of a partition before its cursors are there. If the controller ends between, the next one does the same again:
each cursor is written only if there is none.

Rule `settings-follow-growth`: new partitions get the settings of a group before a consumer can join there. Without it:
  1. Group g is key_ordered, and parks keys after 3 attempts. Its topic grows by one partition.
  2. A consumer of g joins there first, and makes the cursor, with the default policy.
  3. A message fails there: it is tried for ever, and people wait for a parked key that never comes.

A group that is made while the topic grows finds the new partitions itself (rule `group-follows-growth`). A group that
is configured meanwhile has another revision of its cursor, which the transaction compares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog
from seriatim_api.errors import CorruptionError
from seriatim_api.ids import PartitionId

from ..core.values.events import CursorRecord
from ..core.values.keyed import ConsumerMode
from ..interfaces.coordinator import Coordinator, KeyValue, mod_revision_is
from .consumer_groups import ConsumerGroupCursors
from .keys import Keys, group_of
from .records import cursor_from_value

LISTS_AT_ONCE: Final = 32
"""Partitions whose cursors are read from the coordinator at the same time."""

TRIES_MAX: Final = 10
"""Tries for one group. A try fails if the group moves at the same time."""

FIRST_SEGMENT: Final = 1
"""A new partition begins with this segment. If it was folded, a cursor in it is at the beginning of the next one."""

_log = structlog.get_logger(__name__)


async def groups_with_settings(
    coordinator: Coordinator, keys: Keys, partitions: Sequence[PartitionId]
) -> dict[str, CursorRecord]:
    """The consumer groups of these partitions that were made with settings: of each, the cursor with the lowest number.

    Broadcast groups do not count: each of their consumers has a group of its own, and makes it.
    """
    return {group: record for group, (_, record) in (await _sources(coordinator, keys, partitions)).items()}


async def give_settings(
    coordinator: Coordinator, keys: Keys, topic: str, known: Sequence[PartitionId], added: Sequence[PartitionId]
) -> None:
    """Write cursors on the added partitions, at their beginning, for each group with settings that has none there."""
    for group in sorted(await _sources(coordinator, keys, known)):
        for _ in range(TRIES_MAX):
            if await _give(coordinator, keys, topic, group, known, added):
                break
        else:
            _log.warning("settings_not_given", topic=topic, group=group, partitions=len(added))


async def _give(
    coordinator: Coordinator,
    keys: Keys,
    topic: str,
    group: str,
    known: Sequence[PartitionId],
    added: Sequence[PartitionId],
) -> bool:
    found = (await _sources(coordinator, keys, known, group)).get(group)
    if found is None:
        return True  # it was deleted meanwhile
    source, record = found
    cursors = ConsumerGroupCursors(coordinator, keys, group)
    await cursors.read(added)
    starts = {id_: (FIRST_SEGMENT, 0) for id_ in added if not cursors.has(id_)}
    compares = (mod_revision_is(source.key, source.mod_revision),)
    return await cursors.create(topic, starts, record.settings, compares, paused=record.paused)


async def _sources(
    coordinator: Coordinator, keys: Keys, partitions: Sequence[PartitionId], only: str = ""
) -> dict[str, tuple[KeyValue, CursorRecord]]:
    found: dict[str, tuple[KeyValue, CursorRecord]] = {}
    for start in range(0, len(partitions), LISTS_AT_ONCE):
        page = partitions[start : start + LISTS_AT_ONCE]
        for listing in await asyncio.gather(*(coordinator.list(keys.cursors_of(id_)) for id_ in page)):
            for item in listing.items:
                group = group_of(item.key)
                if group in found or only not in ("", group):
                    continue
                try:
                    record = cursor_from_value(item.value)
                except CorruptionError:
                    continue  # a newer version wrote it
                if _has_settings(record):
                    found[group] = (item, record)
        if only and only in found:
            break
    return found


def _has_settings(record: CursorRecord) -> bool:
    if record.deleted or record.external or record.mode is ConsumerMode.BROADCAST:
        return False
    return record.mode is not ConsumerMode.EXCLUSIVE or record.at_most_once
