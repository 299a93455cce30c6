"""The settings with which a consumer group begins on one more partition: those that it has on the others.

A consumer group may have been made on some partitions only (`create_group(partitions=[1])`). When a consumer joins it
on another one, its server makes the cursor there.

Rule `settings-follow-joins`: the new cursor has the settings of the group. Without it:
  1. Group g is made on partition 1: key_ordered, and it parks keys after 3 attempts.
  2. A consumer that reads all partitions joins partition 0. The cursor there has the default policy.
  3. A message fails there: it is tried for ever, and administrators wait for a parked key that never comes.
"""

from __future__ import annotations

from typing import Final

from seriatim_api.ids import PartitionId
from seriatim_api.v1 import records_pb2

from ...core.values.keyed import ConsumerGroupSettings
from ...interfaces.coordinator import Coordinator, Get
from .keys import Keys
from .records import cursor_from_value

READS_PER_TXN: Final = 100

LOOKED_AT_MAX: Final = 1000
"""The most partitions that are looked through. Beyond them, a group that is made on some partitions only keeps its
settings there alone."""


async def settings_elsewhere(
    coordinator: Coordinator, keys: Keys, topic: str, group: str, partition: PartitionId
) -> ConsumerGroupSettings | None:
    """The settings of a consumer group on the first other partition of the topic on which it has a cursor, if any."""
    item = await coordinator.get(keys.topic(topic))
    if item is None:
        return None
    ids = records_pb2.TopicRecord.FromString(item.value).partition_ids
    others = [PartitionId(id_) for id_ in ids if id_ != partition][:LOOKED_AT_MAX]
    for start in range(0, len(others), READS_PER_TXN):
        page = [Get(keys.cursor(id_, group)) for id_ in others[start : start + READS_PER_TXN]]
        for response in (await coordinator.txn((), page)).responses:
            record = cursor_from_value(response.item.value) if response.item is not None else None
            if record is not None and not record.deleted:
                return record.settings
    return None
