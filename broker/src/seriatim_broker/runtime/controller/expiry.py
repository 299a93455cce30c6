"""Expiry: some time after a deletion its records leave the coordinator, and something of bounded size replaces them.

- The cursor of a deleted consumer group goes. What stays is one floor of group epochs (`group_epochs`). In the same way
  the cursor of an external group goes when the group has reported nothing for the same time. Then it no longer holds up
  retention. And the cursor of a consumer of a broadcast group goes when that consumer was away for as long.
- The tombstone of a deleted partition goes. What stays is its id in the ranges of deleted partitions
  (`core.values.deleted`).

The transaction that removes a record also writes what replaces it, and brokers learn from the replacement all that they
need. So no rule depends on how long a record was kept, or on clocks. Records stay for a time only so that
administrators can look at them. Two controllers at once do no harm, because each transaction compares the election, the
records that it removes, and the record that it raises.

"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

import structlog
from google.protobuf.message import DecodeError
from seriatim_api.errors import CorruptionError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import records_pb2

from ...core.consumers.groups.cursor_notes import KEEP_MS
from ...core.values.events import CursorRecord
from ...core.values.keyed import ConsumerMode
from ...interfaces.clock import Clock
from ...interfaces.coordinator import Coordinator, Delete, KeyValue, mod_revision_is
from ..coordinator.group_epochs import EpochFloor
from ..coordinator.keys import Keys, partition_of
from ..coordinator.records import cursor_from_value, deleted_partitions_from, put_deleted_partitions
from ..membership.election import Election
from ..membership.wall_clocks import WallClocks

REMOVED_PER_TXN = 100
"""Cursors or tombstones. With what else is compared and written it is below the coordinator's limit of 128."""

REMOVED_PER_PASS = 2000
"""Cursors, and as many tombstones, that one pass removes: 20 transactions for each kind."""

PARTITIONS_PER_PASS = 200
"""Partitions whose cursors are listed in one pass; the next pass continues with the next ones. 10,000 take 50
passes."""

ITEMS_AT_ONCE = 1000
"""Cursors that are examined before the event loop has its turn: some milliseconds."""

RANGES_MAX = 50_000
"""Ranges of deleted partitions, of 10 bytes at most: a third of the largest request. If there are more, tombstones
stay."""

_log = structlog.get_logger(__name__)


class Expiry:
    """A duty of the elected broker, one pass at a time.

    Args:
        kept_s: How long a deleted cursor and a tombstone stay. The clocks of the deleting broker and of this one count.
    """

    def __init__(self, coordinator: Coordinator, keys: Keys, election: Election, clock: Clock, kept_s: float) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self._election = election
        self._clock = clock
        self._clocks = WallClocks(coordinator, keys, clock)
        self._kept_s = kept_s
        self._after = PartitionId(0)  # the last partition whose cursors were looked at

    # ---- deleted cursors ----

    async def remove_cursors(self) -> int:
        """One pass over the cursors of 200 partitions. Returns how many it removed."""
        removed = 0
        earliest_ms = await self._clocks.earliest_ms()
        partitions = await self._partitions()
        later = [partition for partition in partitions if partition > self._after]
        for partition in later[:PARTITIONS_PER_PASS]:
            removed += await self._remove_cursors_of(partition, earliest_ms, REMOVED_PER_PASS - removed)
            if removed >= REMOVED_PER_PASS:
                break  # the rest of this partition is for the next pass
            self._after = partition
        else:
            if len(later) <= PARTITIONS_PER_PASS:
                self._after = PartitionId(0)
        if removed:
            _log.info("deleted_cursors_removed", count=removed)
        return removed

    async def _partitions(self) -> list[PartitionId]:
        listing = await self._coordinator.list(self._keys.topics)
        records = [records_pb2.TopicRecord.FromString(item.value) for item in listing.items]
        return sorted(PartitionId(id_) for record in records for id_ in record.partition_ids)

    async def _remove_cursors_of(self, partition: PartitionId, earliest_ms: int | None, count_max: int) -> int:
        """Remove the cursors of one partition that are due. Stop when another writer has changed one of them."""
        listing = await self._coordinator.list(self._keys.cursors_of(partition))
        until_ms = self._until_ms()
        away_ms = earliest_ms - self._kept_s * 1000 if earliest_ms is not None else None
        due: list[tuple[KeyValue, CursorRecord]] = []
        for number, item in enumerate(listing.items):
            if len(due) >= count_max:
                break
            if number % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                await asyncio.sleep(0)
            try:
                record = cursor_from_value(item.value)
            except CorruptionError:
                continue
            if _is_due(record, until_ms, away_ms):
                due.append((item, record))
        removed = 0
        for first in range(0, len(due), REMOVED_PER_TXN):
            part = due[first : first + REMOVED_PER_TXN]
            if not await self._remove_some_cursors(part):
                break  # a consumer group was made again, or the floor was raised: the next pass reads again
            removed += len(part)
        return removed

    async def _remove_some_cursors(self, part: Sequence[tuple[KeyValue, CursorRecord]]) -> bool:
        """Remove these cursors and raise the floor to the highest of their group epochs, in one transaction.

        Rule `expires-without-floor` (EPOCH, I1). Without it:
          1. Consumer group g has acknowledged 100 messages in group epoch 1, and is deleted. Its cursor is removed.
          2. g is made again, and begins in group epoch 1.
          3. Its server finds 100 acknowledged messages of g in group epoch 1 on its disk. The new g never gets them.
        """
        floor = EpochFloor.of(await self._coordinator.get(self._keys.group_epoch))
        if floor.is_rebuilding:
            return False  # the last write of a rebuild compares the floor
        raised = floor.above([record for _, record in part])
        compares = [mod_revision_is(item.key, item.mod_revision) for item, _ in part]
        result = await self._election.txn(
            [floor.unchanged(self._keys), *compares],
            [raised.put(self._keys), *(Delete(item.key) for item, _ in part)],
        )
        return result.succeeded

    # ---- tombstones ----

    async def remove_tombstones(self) -> int:
        """One pass over the tombstones. Returns how many it removed."""
        listing = await self._coordinator.list(self._keys.tombstones)
        until_ms = self._until_ms()
        is_due = (item for item in listing.items if _deleted_at_ms(item) <= until_ms)
        due = list(islice(is_due, REMOVED_PER_PASS))
        removed = 0
        for first in range(0, len(due), REMOVED_PER_TXN):
            part = due[first : first + REMOVED_PER_TXN]
            if not await self._remove_some_tombstones(part):
                break
            removed += len(part)
        if removed:
            _log.info("tombstones_removed", count=removed)
        return removed

    async def _remove_some_tombstones(self, part: Sequence[KeyValue]) -> bool:
        """Remove these tombstones and add their partitions to the ranges, in one transaction.

        Rule `expires-without-range` (GONE, I13). Without it:
          1. A broker is away while a topic is deleted, and its tombstones are removed.
          2. The broker comes back, and finds neither a chain nor a tombstone.
          3. It keeps the deleted data for ever, and its requests about the topic stay unanswered.
        """
        found = await self._coordinator.get(self._keys.deleted_partitions)
        known = deleted_partitions_from(found.value if found is not None else None)
        deleted = known.with_ids(partition_of(item.key) for item in part)
        if len(deleted.ranges) > max(RANGES_MAX, len(known.ranges)):
            _log.warning("tombstones_stay", range_count=len(known.ranges), limit=RANGES_MAX)
            return False
        result = await self._election.txn(
            [
                mod_revision_is(self._keys.deleted_partitions, found.mod_revision if found is not None else 0),
                *(mod_revision_is(item.key, item.mod_revision) for item in part),
            ],
            [put_deleted_partitions(self._keys, deleted), *(Delete(item.key) for item in part)],
        )
        return result.succeeded

    # ---- both ----

    def _until_ms(self) -> float:
        return self._clock.wall_ms() - self._kept_s * 1000


def _is_due(record: CursorRecord, until_ms: float, away_ms: float | None) -> bool:
    """Whether a cursor is of no use any more: deleted before `until_ms`, or nothing has happened to it since `away_ms`.

    Nothing depends on when a deleted cursor goes, so the clock of this broker counts. One that is in use must stay
    (rule `earliest-clock`); `away_ms` is None if that cannot be reported. Of a broadcast group, the server notes once a
    day that the consumer is there (`core.consumers.groups.cursor_notes`).
    """
    if record.deleted:
        return record.deleted_at_ms <= until_ms
    if away_ms is None:
        return False
    if record.mode is ConsumerMode.BROADCAST:
        return record.reported_at_ms <= away_ms - KEEP_MS
    return record.external and record.reported_at_ms <= away_ms


def _deleted_at_ms(item: KeyValue) -> int:
    try:
        return records_pb2.PartitionTombstone.FromString(item.value).deleted_at_ms
    except DecodeError:
        return 0
