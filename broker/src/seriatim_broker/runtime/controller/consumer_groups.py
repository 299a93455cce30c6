"""Consumer groups that are made before a consumer joins, and deleted when no consumer is left.

A deleted consumer group leaves its cursors, marked as deleted. Its acknowledgements are still on its servers' disks
under its group epoch, and a new consumer group of the same name must not count them as its own. After `deleted_kept_s`
(7 days) the controller removes such cursors (`expiry`). What stays is one floor of group epochs for all consumer groups
(`group_epochs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from seriatim_api.errors import CoordinatorBehindError, NotServingError, PreconditionError
from seriatim_api.ids import PartitionId

from ...core.values.chain import Chain
from ...core.values.events import CursorRecord
from ...core.values.keyed import SETTINGS_DEFAULT, ConsumerGroupSettings, ConsumerMode
from ...interfaces.coordinator import Compare, Coordinator, Get, Operation, Put, mod_revision_is, present
from ..coordinator.group_epochs import NO_FLOOR, EpochFloor
from ..coordinator.keys import Keys
from ..coordinator.operator_lease import Guard, unguarded
from ..coordinator.records import cursor_from_value, cursor_to_value
from ..driver.coordinator_requests import READS_PER_TXN

CURSORS_PER_TXN = 60
"""Each needs two compares, and the coordinator takes at most 128."""

NO_CHAINS: Final[Mapping[PartitionId, Chain]] = {}


def _server_epochs(chain: Chain | None, last_no: int, no: int) -> tuple[int, int]:
    """The highest server epoch that a consumer group may have had in segment `last_no`, and the one of segment `no`."""
    if chain is None:
        return 0, 0
    following = chain.segment(no)
    return chain.last_server_epoch(last_no), following.server_epoch if following is not None else 0


class ConsumerGroupCursors:
    """The cursors of one consumer group on a topic, as they were read. Each is written only if it has not changed."""

    def __init__(self, coordinator: Coordinator, keys: Keys, group: str, guard: Guard = unguarded) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self._group = group
        self._guard = guard
        self._revisions: dict[PartitionId, int] = {}
        self._values: dict[PartitionId, bytes] = {}
        self._floor = NO_FLOOR
        self.records: dict[PartitionId, CursorRecord] = {}

    async def read(self, partitions: Sequence[PartitionId]) -> None:
        """Read the cursors on these partitions."""
        for start in range(0, len(partitions), READS_PER_TXN):
            page = partitions[start : start + READS_PER_TXN]
            gets = [Get(self._keys.cursor(id_, self._group)) for id_ in page]
            result = await self._coordinator.txn((), [*gets, Get(self._keys.group_epoch)])
            self._floor = EpochFloor.of(result.responses[-1].item)
            for partition, response in zip(page, result.responses[:-1], strict=True):
                item = response.item
                self._revisions[partition] = item.mod_revision if item is not None else 0
                self.records.pop(partition, None)
                if item is not None:
                    self._values[partition] = item.value
                    self.records[partition] = cursor_from_value(item.value)

    def has(self, partition: PartitionId) -> bool:
        """Whether the consumer group has a cursor on that partition that is not deleted."""
        return self.standing(partition) is not None

    def standing(self, partition: PartitionId) -> CursorRecord | None:
        """The cursor of the consumer group on that partition; None if there is none, or it is deleted."""
        record = self.records.get(partition)
        return record if record is not None and not record.deleted else None

    def revision(self, partition: PartitionId) -> int:
        """The revision that wrote the cursor on that partition; 0 if there is none."""
        return self._revisions[partition]

    async def create_like(
        self,
        source: CursorRecord,
        topic: str,
        starts: Mapping[PartitionId, tuple[int, int]],
        compares: Sequence[Compare],
    ) -> bool:
        """Have the consumer group begin on new partitions as `create` does, in the state of its cursor on another one.

        Rule `settings-follow-growth` (`consumer_group_growth`): settings, a pause, and what makes it an external group.
        """
        return await self.create(
            topic, starts, source.settings, compares, source.reported_at_ms,
            paused=source.paused, external=source.external, is_given=True,
        )  # fmt: skip

    async def create(
        self,
        topic: str,
        starts: Mapping[PartitionId, tuple[int, int]],
        settings: ConsumerGroupSettings = SETTINGS_DEFAULT,
        compares: Sequence[Compare] = (),
        now_ms: int = 0,
        *,
        paused: bool = False,
        external: bool = False,
        is_given: bool = False,
        chains: Mapping[PartitionId, Chain] = NO_CHAINS,
    ) -> bool:
        """Have the consumer group begin at (segment, index) of each partition, with these settings.

        `chains`: of the partitions, read after the cursors, unless they are new: no token was given on a new one.
        `is_given`: the controller extends the group to new partitions, and need not be notified of its own writes.

        Each transaction writes the cursors of 60 partitions. If the call is cancelled or fails, some may be written.

        Returns:
            False if another writer was faster on a partition, or one of `compares` failed: read again.
        """
        waiting = list(starts.items())
        for first in range(0, len(waiting), CURSORS_PER_TXN):
            records: dict[PartitionId, CursorRecord] = {}
            for partition, (segment_no, index) in waiting[first : first + CURSORS_PER_TXN]:
                before = self.records.get(partition)
                assert before is None or before.deleted
                last = before if before is not None else self._floor.last
                record = CursorRecord(segment_no, last.group_epoch + 1 if last is not None else 1, index, topic)
                base = 0
                if last is not None:
                    base = last.next_term_base(*_server_epochs(chains.get(partition), last.segment_no, segment_no))
                record = replace(record, paused=paused, external=external, term_base=base)
                if external or settings.mode is ConsumerMode.BROADCAST:
                    record = replace(record, reported_at_ms=now_ms)  # it is kept for as long as if it had been here
                records[partition] = record.with_settings(settings)
            if not await self._write(records, compares, is_given=is_given):
                return False
        return True

    async def report(self, topic: str, places: Mapping[PartitionId, tuple[int, int]], now_ms: int) -> bool:
        """Note how far a consumer group without consumers is: at (segment, index) of each partition.

        A place before the last one begins a new group epoch, because within one a cursor moves only forward.

        Returns:
            False if another writer was faster on a partition: read again.

        Raises:
            PreconditionError: The consumer group has consumers on one of the partitions. Nothing was written.
        """
        records: dict[PartitionId, CursorRecord] = {}
        for partition, place in places.items():
            standing, before = self.standing(partition), self.records.get(partition)
            if standing is not None and not standing.external:
                raise PreconditionError(
                    f"consumer group {self._group!r} moves by what its consumers acknowledge: nothing was written; "
                    "report under another name"
                )
            if standing is not None:
                goes_back = place < (standing.segment_no, standing.start_index)
                moved = standing.moved_to(*place, new_epoch=goes_back)
                records[partition] = replace(moved, reported_at_ms=now_ms)
            else:
                last = before if before is not None else self._floor.last
                record = CursorRecord(place[0], last.group_epoch + 1 if last is not None else 1, place[1], topic)
                base = last.next_term_base(0) if last is not None else 0  # it gives no tokens itself
                records[partition] = replace(record, external=True, reported_at_ms=now_ms, term_base=base)
        waiting = list(records.items())
        for first in range(0, len(waiting), CURSORS_PER_TXN):
            if not await self._write(dict(waiting[first : first + CURSORS_PER_TXN])):
                return False
        return True

    async def delete(self, now_ms: int) -> None:
        """Mark all cursors that were read as deleted at that time.

        Raises:
            NotServingError: One was written meanwhile: check again whether the consumer group has consumers.
        """
        waiting = [(partition, record) for partition, record in self.records.items() if not record.deleted]
        for first in range(0, len(waiting), CURSORS_PER_TXN):
            part = {
                id_: replace(record, deleted=True, deleted_at_ms=now_ms)
                for id_, record in waiting[first : first + CURSORS_PER_TXN]
            }
            if not await self._write(part):
                raise NotServingError(f"consumer group {self._group!r} moved at the same time", retry_after_ms=50)

    async def _write(
        self, records: Mapping[PartitionId, CursorRecord], more: Sequence[Compare] = (), *, is_given: bool = False
    ) -> bool:
        """Write all of them or none, and only if their partitions still exist. `is_given`: see `create`."""
        compares: list[Compare] = [*await self._guard(), *more]
        if not all(map(self.has, records)):
            if self._floor.is_rebuilding:  # rule `none-begins-in-a-rebuild` (`group_epochs`)
                raise CoordinatorBehindError(
                    f"{self._group!r} was not made: a rebuild of the coordinator has begun, and until it ends no "
                    "consumer group begins. If it was interrupted, run seriatim coordinator rebuild again"
                )
            compares.append(self._floor.unchanged(self._keys))
        puts: list[Operation] = []
        made = set[str]() if is_given else {record.topic for id_, record in records.items() if not self.has(id_)}
        puts += (Put(self._keys.cursors_made(topic), b"") for topic in made)  # rule `growth-sees-groups`
        for partition, record in records.items():
            key = self._keys.cursor(partition, self._group)
            compares += [mod_revision_is(key, self._revisions[partition]), present(self._keys.chain(partition))]
            puts.append(Put(key, cursor_to_value(record, self._values.get(partition))))
        return (await self._coordinator.txn(compares, puts)).succeeded
