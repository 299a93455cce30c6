"""Consumer groups made before anybody joins, and forgotten when nobody is in them any more.

A group that is forgotten leaves its cursors behind, marked so: what it acknowledged is still on its servers' disks
under its epoch, and a group of the same name must not take that for its own. Days later the controller removes such
cursors (`expiry`), and what stays is one floor of epochs for all groups (`group_epochs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from seriatim_api.errors import NotServingError, PreconditionError
from seriatim_api.ids import PartitionId

from ..core.values.events import CursorRecord
from ..interfaces.coordinator import Compare, Coordinator, Get, Operation, Put, mod_revision_is, present
from .coordination import READS_PER_TXN
from .group_epochs import NO_FLOOR, EpochFloor
from .keys import Keys
from .operators import Guard, unguarded
from .records import cursor_from_value, cursor_to_value

CURSORS_PER_TXN = 60
"""Two compares each, below the coordinator's limit of 128."""


class GroupCursors:
    """The cursors of one group on a topic, as they were read; each is written over only as long as it stands so."""

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
        """Whether the group is on that partition."""
        return self.standing(partition) is not None

    def standing(self, partition: PartitionId) -> CursorRecord | None:
        """Where the group is on that partition; None if it is not."""
        record = self.records.get(partition)
        return record if record is not None and not record.deleted else None

    async def create(self, topic: str, starts: Mapping[PartitionId, tuple[int, int]]) -> bool:
        """Let the group begin at (segment, index) of each partition.

        Returns:
            False if somebody was quicker somewhere: read again.
        """
        waiting = list(starts.items())
        for first in range(0, len(waiting), CURSORS_PER_TXN):
            records: dict[PartitionId, CursorRecord] = {}
            for partition, (segment_no, index) in waiting[first : first + CURSORS_PER_TXN]:
                before = self.records.get(partition)
                assert before is None or before.deleted
                last_epoch = before.group_epoch if before is not None else self._floor.floor
                records[partition] = CursorRecord(segment_no, last_epoch + 1, index, topic)
            if not await self._write(records):
                return False
        return True

    async def report(self, topic: str, places: Mapping[PartitionId, tuple[int, int]], now_ms: int) -> bool:
        """Note how far a group without consumers is: at (segment, index) of each partition.

        A place before the one it had begins a new epoch of the group: within one it goes forward only.

        Returns:
            False if somebody was quicker somewhere: read again.

        Raises:
            PreconditionError: The group has consumers somewhere.
        """
        records: dict[PartitionId, CursorRecord] = {}
        for partition, place in places.items():
            standing, before = self.standing(partition), self.records.get(partition)
            if standing is not None and not standing.external:
                raise PreconditionError(
                    f"consumer group {self._group!r} moves by what its consumers acknowledge: report under another name"
                )
            if standing is not None:
                goes_back = place < (standing.segment_no, standing.start_index)
                moved = standing.moved_to(*place, new_epoch=goes_back)
                records[partition] = replace(moved, reported_at_ms=now_ms)
            else:
                last_epoch = before.group_epoch if before is not None else self._floor.floor
                records[partition] = CursorRecord(
                    place[0], last_epoch + 1, place[1], topic, external=True, reported_at_ms=now_ms
                )
        waiting = list(records.items())
        for first in range(0, len(waiting), CURSORS_PER_TXN):
            if not await self._write(dict(waiting[first : first + CURSORS_PER_TXN])):
                return False
        return True

    async def delete(self, now_ms: int) -> None:
        """Mark all cursors that were read, as deleted at that time.

        Raises:
            NotServingError: Somebody wrote one meanwhile: look again who is in the group.
        """
        waiting = [(partition, record) for partition, record in self.records.items() if not record.deleted]
        for first in range(0, len(waiting), CURSORS_PER_TXN):
            part = {
                id_: replace(record, deleted=True, deleted_at_ms=now_ms)
                for id_, record in waiting[first : first + CURSORS_PER_TXN]
            }
            if not await self._write(part):
                raise NotServingError(f"consumer group {self._group!r} moved at the same time", retry_after_ms=50)

    async def _write(self, records: Mapping[PartitionId, CursorRecord]) -> bool:
        """All of them, or none: only where their partitions still are."""
        compares: list[Compare] = list(await self._guard())
        if not all(self._revisions[partition] for partition in records):
            compares.append(self._floor.unchanged(self._keys))
        puts: list[Operation] = []
        for partition, record in records.items():
            key = self._keys.cursor(partition, self._group)
            compares += [mod_revision_is(key, self._revisions[partition]), present(self._keys.chain(partition))]
            puts.append(Put(key, cursor_to_value(record, self._values.get(partition))))
        return (await self._coordinator.txn(compares, puts)).succeeded
