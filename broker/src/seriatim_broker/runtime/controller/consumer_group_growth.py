"""The consumer groups of a topic that grows: each new partition gets their cursors, before it belongs to the topic.

A consumer group that has a cursor on the topic gets one at the first message of each new partition, in its state: mode,
retry policy, paused or not, external or not. This is so for every mode, and for each consumer of a broadcast group. The
controller writes these cursors after the partitions are made, and before they belong to the topic (`topics`). So no
client knows of a partition before its cursors are there. If the controller ends in between, the next one does the same
again: each cursor is written only if there is none.

Rule `cursors-follow-growth` (I1, RETAIN): no partition belongs to the topic without the cursors of its groups. Without
it:
  1. Group g begins at the end of the topic (`start=latest`), reads partition 0, and goes away.
  2. The topic grows by partition 1, and 100 messages are sent there.
  3. A consumer of g comes back, and joins partition 1 for the first time: at the end. It never gets the 100 messages.
  4. In the same way retention drops them, although the topic keeps what groups have not read.

Rule `settings-follow-growth`: the new cursors have the settings of the group. Without it:
  1. Group g is key_ordered, and parks keys after 3 attempts. Its topic grows by one partition.
  2. The cursor there has the default policy.
  3. A message fails there: it is tried for ever, and administrators wait for a parked key that never comes.

Rule `growth-sees-groups`: a group that is made while the controller looks for groups is found too. Without it:
  1. The controller looks through the cursors of partition 0, and finds none of group g.
  2. A consumer of g joins partition 0. Then partition 1 belongs to the topic, without a cursor of g.

So each transaction that makes a cursor also writes one key of the topic (`Keys.cursors_made`). The controller reads
that key before it looks for groups. The transaction by which the partitions belong to the topic compares it. If it
fails, the controller looks again. A group that is configured or deleted meanwhile has another revision of its cursor,
which the transaction that writes its new cursors compares.

Rule `growth-after-rebuild` (I1): no topic grows while a rebuild writes. Without it:
  1. The coordinator is restored as it was before group g was made. The rebuild begins.
  2. The topic grows. The controller finds no cursor of g, and the new partition belongs to the topic without one.
  3. The rebuild writes the cursors of g on the old partitions. A consumer of g joins the new one at the end.

The transaction by which the partitions belong to the topic compares this, too. The controller tries again until the
rebuild has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from seriatim_api.errors import CorruptionError, UnavailableError
from seriatim_api.ids import PartitionId

from ...core.values.events import CursorRecord
from ...interfaces.coordinator import Coordinator, mod_revision_is
from ..coordinator.keys import Keys, group_of
from ..coordinator.records import cursor_from_value
from .consumer_groups import ConsumerGroupCursors

LISTS_AT_ONCE: Final = 32
"""Partitions whose cursors are read from the coordinator at the same time."""

GROUPS_AT_ONCE: Final = 16
"""Consumer groups whose cursors are written at the same time. 10,000 groups take 1,250 round trips, some seconds."""

TRIES_MAX: Final = 10
"""Tries for one group. A try fails if the group moves at the same time."""

FIRST_SEGMENT: Final = 1
"""A new partition begins with this segment. If it was folded, a cursor in it is at the beginning of the next one."""

Source = tuple[PartitionId, int, CursorRecord]
"""A cursor whose state the new ones get: its partition, the revision that wrote it, and the record."""


async def groups_on(
    coordinator: Coordinator, keys: Keys, partitions: Sequence[PartitionId]
) -> Mapping[str, Source]:  # fmt: skip
    """The consumer groups with a cursor on one of these partitions: of each, the cursor on the first of them."""
    found: dict[str, Source] = {}
    for start in range(0, len(partitions), LISTS_AT_ONCE):
        page = partitions[start : start + LISTS_AT_ONCE]
        listings = await asyncio.gather(*(coordinator.list(keys.cursors_of(id_)) for id_ in page))
        for partition, listing in zip(page, listings, strict=True):
            for item in listing.items:
                group = group_of(item.key)
                if group in found:
                    continue
                try:
                    record = cursor_from_value(item.value)
                except CorruptionError:
                    continue  # a newer version wrote it
                if not record.deleted:
                    found[group] = (partition, item.mod_revision, record)
    return found


async def give_cursors(
    coordinator: Coordinator,
    keys: Keys,
    topic: str,
    known: Sequence[PartitionId],
    added: Sequence[PartitionId],
    groups: Mapping[str, Source],
) -> None:
    """Write cursors on the added partitions, at their beginning, for each of these groups that has none there."""
    names = sorted(groups)
    for start in range(0, len(names), GROUPS_AT_ONCE):
        page = names[start : start + GROUPS_AT_ONCE]
        await asyncio.gather(*(_give(coordinator, keys, topic, name, known, added, groups[name]) for name in page))


async def _give(
    coordinator: Coordinator,
    keys: Keys,
    topic: str,
    group: str,
    known: Sequence[PartitionId],
    added: Sequence[PartitionId],
    source: Source | None,
) -> None:
    cursors = ConsumerGroupCursors(coordinator, keys, group)
    for _ in range(TRIES_MAX):
        if source is None:
            return  # it was deleted meanwhile
        partition, revision, record = source
        await cursors.read(added)
        starts = {id_: (FIRST_SEGMENT, 0) for id_ in added if not cursors.has(id_)}
        compares = (mod_revision_is(keys.cursor(partition, group), revision),)
        if await cursors.create_like(record, topic, starts, compares):
            return
        source = await _source_of(coordinator, keys, group, known)
    # Otherwise the partition would belong to the topic without the group: its consumer may begin at the end there.
    raise UnavailableError(
        f"the cursor of consumer group {group!r} is not written on {len(added)} new partitions of topic {topic!r}, "
        "so the topic has not grown: repeat it"
    )


async def _source_of(
    coordinator: Coordinator, keys: Keys, group: str, partitions: Sequence[PartitionId]
) -> Source | None:
    cursors = ConsumerGroupCursors(coordinator, keys, group)
    await cursors.read(partitions)
    for partition in partitions:
        record = cursors.standing(partition)
        if record is not None:
            return partition, cursors.revision(partition), record
    return None
