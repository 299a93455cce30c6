"""What is staged in a world, and the coordinator's keys about publications."""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING

from seriatim_api.batch import FLAG_STAGED
from seriatim_api.ids import PartitionId, TopicIncarnation, make_offset
from seriatim_api.publications import StagedBatch
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.values.log import Batch
from seriatim_broker.core.values.writers import WriterRecord
from seriatim_broker.interfaces.coordinator import Compare, Delete, KeyValue, Listing, Operation, Put, TxnResult
from seriatim_broker.runtime.coordinator.keys import Keys, partition_of
from seriatim_broker.runtime.coordinator.records import writer_from_value, writer_to_record
from seriatim_broker.testing.memory_coordinator import MemoryStore

from ..basics.batches import header_of

if TYPE_CHECKING:
    from ..basics.schedule import Schedule

KEYS = Keys("world")
INCARNATION = TopicIncarnation("ab" * 16)

STAGE_PARTITIONS = (PartitionId(901), PartitionId(902))


class Stage:
    """Staged batches by place, and their fates.

    Attributes:
        gone: Places that cannot be read any more, and since when.
        dropped: The places of these that retention dropped.
        lost: The others, whose disks were lost.
    """

    def __init__(self, schedule: Schedule, rng: random.Random) -> None:
        self._schedule = schedule
        self._rng = rng
        self._next = dict.fromkeys(STAGE_PARTITIONS, 0)
        self.batches: dict[tuple[int, int], Batch] = {}
        self.gone: dict[tuple[int, int], int] = {}
        self.dropped: set[tuple[int, int]] = set()
        self.lost: set[tuple[int, int]] = set()
        self.away_until_us = dict.fromkeys(STAGE_PARTITIONS, 0)

    def place(self) -> PartitionId:
        """The place at which a task stages the rows for one partition."""
        return self._rng.choice(STAGE_PARTITIONS)

    def put(self, partition: PartitionId, chunk: bytes, first_message: int, rows: int) -> StagedBatch:
        """A task stages a batch."""
        index = self._next[partition]
        self._next[partition] += rows
        body = first_message.to_bytes(8, "big")
        header = header_of(partition, chunk, body, count=rows, sequence=index, flags=FLAG_STAGED, stage=chunk)
        header = header._replace(segment=1, base_index=index)
        offset = make_offset(1, index)
        self.batches[partition, offset] = Batch(header, body)
        return StagedBatch(partition, rows, offset, chunk)

    def end(self, partition: PartitionId) -> int:
        """The offset after all that is staged."""
        return make_offset(1, self._next[partition])

    def is_away(self, partition: int) -> bool:
        """Whether no member that has it answers now."""
        return self.away_until_us[PartitionId(partition)] > self._schedule.now_us

    def lose(self, partition: PartitionId) -> None:
        """All that is staged there now is declared lost."""
        for place in self.batches:
            if place[0] == partition and place not in self.gone:
                self.gone[place] = self._schedule.now_us
                self.lost.add(place)

    def drop_below(self, partition: PartitionId, offset: int) -> None:
        """Retention drops it."""
        for place in self.batches:
            if place[0] == partition and place[1] < offset and place not in self.gone:
                self.gone[place] = self._schedule.now_us
                self.dropped.add(place)

    def fetch(self, staged: StagedBatch) -> tuple[Batch | None, bool]:
        """The batch, and whether it is gone for good."""
        place = (staged.partition, staged.offset)
        if place in self.gone:
            return None, True
        if self.is_away(staged.partition):
            return None, False
        return self.batches[place], False


class Records:
    """The coordinator's keys about publications, as brokers write and compare them."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    @property
    def revision(self) -> int:
        """The newest."""
        return self.store.revision

    @property
    def writers(self) -> dict[str, tuple[WriterRecord, int]]:
        """By name: each record and its revision."""
        prefix = KEYS.writers_of(INCARNATION)
        return {
            item.key.removeprefix(prefix): (writer_from_value(item.value), item.mod_revision)
            for item in self.store.under(prefix)
        }

    def floors_now(self) -> dict[int, int]:
        """Offsets by partition."""
        return {
            partition_of(item.key): records_pb2.StageFloorRecord.FromString(item.value).offset
            for item in self.store.under(KEYS.stage_floors)
        }

    def get(self, writer: str) -> tuple[WriterRecord | None, int]:
        """A record and its revision, or (None, 0) if there is no record."""
        return self.writers.get(writer, (None, 0))

    def put(self, writer: str, record: WriterRecord, compares: Sequence[Compare] = ()) -> bool:
        """Write a record, if it may be written."""
        value = writer_to_record(record).SerializeToString()
        return self.store.txn(compares, [Put(KEYS.writer(INCARNATION, writer), value)], ()).succeeded

    def delete(self, writer: str) -> None:
        """Delete a record."""
        self.store.txn((), [Delete(KEYS.writer(INCARNATION, writer))], ())


class Unhurried:
    """The coordinator as retention sees it, which has time: each listing waits for `pause_us`. See `go`."""

    def __init__(self, records: Records, pause_us: Callable[[], int]) -> None:
        self._store = records.store
        self._pause_us = pause_us

    async def get(self, key: str) -> KeyValue | None:
        """See `Coordinator.get`."""
        return self._store.items.get(key)

    async def list(self, prefix: str) -> Listing:
        """See `Coordinator.list`."""
        await _pause(self._pause_us())
        return Listing(tuple(self._store.under(prefix)), self._store.revision)

    async def txn(self, compares: Sequence[Compare], then: Sequence[Operation]) -> TxnResult:
        """See `Coordinator.txn`."""
        return self._store.txn(compares, then, ())


@types.coroutine
def _pause(for_us: int) -> Generator[int, None, None]:
    yield for_us


def go(schedule: Schedule, work: Coroutine[int, None, bool], then: Callable[[bool], None]) -> None:
    """Do work of a broker that waits for nothing but `Unhurried`, in the world's time; then say what it returned."""
    try:
        for_us = work.send(None)
    except StopIteration as end:
        then(end.value)
    else:
        schedule.after(for_us, go, schedule, work, then)


# What a publisher does at one point, by the name of its rule, so that a planted bug can leave it out.


def is_there(stage: Stage, staged: StagedBatch) -> bool:
    """Rule `asks-members`."""
    return stage.fetch(staged)[0] is not None


def is_read_again() -> bool:
    """Rule `decided-first`: whether a publisher reads what its transaction wrote before it asks any master."""
    return True


def may_be_done(waiting: set[PartitionId]) -> bool:
    """Rule `each-answers`: whether all masters have answered."""
    return not waiting
