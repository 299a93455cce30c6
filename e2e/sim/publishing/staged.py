"""What is staged in a world, and the coordinator's keys about publications."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from seriatim_api.batch import FLAG_STAGED, make_header, parse_header
from seriatim_api.ids import PartitionId, make_offset
from seriatim_api.publications import Manifest, StagedBatch
from seriatim_broker.core.log import Batch
from seriatim_broker.core.publications.writers import WriterRecord, WriterState

from ..brokers import checksum

if TYPE_CHECKING:
    from ..world import World

STAGE_PARTITIONS = (PartitionId(901), PartitionId(902))


class Stage:
    """Staged batches by place, and what became of them.

    Attributes:
        gone: Places that cannot be had any more, and since when.
        dropped: Of these, by retention.
        lost: The others, with their disks.
    """

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._next = dict.fromkeys(STAGE_PARTITIONS, 0)
        self.batches: dict[tuple[int, int], Batch] = {}
        self.gone: dict[tuple[int, int], int] = {}
        self.dropped: set[tuple[int, int]] = set()
        self.lost: set[tuple[int, int]] = set()
        self.away_until_us = dict.fromkeys(STAGE_PARTITIONS, 0)

    def place(self) -> PartitionId:
        """Where a task stages what is for one partition."""
        return self._rng.choice(STAGE_PARTITIONS)

    def put(self, partition: PartitionId, chunk: bytes, first_message: int, rows: int) -> StagedBatch:
        """A task stages a batch."""
        index = self._next[partition]
        self._next[partition] += rows
        body = first_message.to_bytes(8, "big")
        raw = make_header(
            partition=partition,
            message_count=rows,
            producer=chunk,
            producer_epoch=0,
            base_sequence=index,
            first_timestamp_ms=0,
            last_timestamp_ms=0,
            body_length=len(body),
            body_crc=checksum(0, body),
            flags=FLAG_STAGED,
            stage=chunk,
        )
        header = parse_header(raw)._replace(segment=1, base_index=index)
        offset = make_offset(1, index)
        self.batches[partition, offset] = Batch(header, body)
        return StagedBatch(partition, rows, offset, chunk)

    def end(self, partition: PartitionId) -> int:
        """The offset behind all that is staged."""
        return make_offset(1, self._next[partition])

    def is_away(self, partition: int) -> bool:
        """Whether no member that has it answers now."""
        return self.away_until_us[PartitionId(partition)] > self._world.schedule.now_us

    def lose(self, partition: PartitionId) -> None:
        """All that is staged there now is declared lost."""
        for place in self.batches:
            if place[0] == partition and place not in self.gone:
                self.gone[place] = self._world.schedule.now_us
                self.lost.add(place)

    def drop_below(self, partition: PartitionId, offset: int) -> None:
        """Retention drops it."""
        for place in self.batches:
            if place[0] == partition and place[1] < offset and place not in self.gone:
                self.gone[place] = self._world.schedule.now_us
                self.dropped.add(place)

    def fetch(self, staged: StagedBatch) -> tuple[Batch | None, bool]:
        """The batch, and whether it is gone for good."""
        place = (staged.partition, staged.offset)
        if place in self.gone:
            return None, True
        if self.is_away(staged.partition):
            return None, False
        return self.batches[place], False


@dataclass
class Records:
    """The coordinator's keys about publications."""

    revision: int = 0
    writers: dict[str, tuple[WriterRecord, int]] = field(default_factory=dict)
    floors: dict[int, tuple[int, int]] = field(default_factory=dict)

    def floors_now(self) -> dict[int, int]:
        """Offsets by partition."""
        return {partition: offset for partition, (offset, _) in self.floors.items()}

    def get(self, writer: str) -> tuple[WriterRecord | None, int]:
        """A record and its revision; None and 0: there is none."""
        return self.writers.get(writer, (None, 0))

    def put(self, writer: str, record: WriterRecord) -> None:
        """Write a record."""
        self.revision += 1
        self.writers[writer] = record, self.revision

    def delete(self, writer: str) -> None:
        """Delete a record."""
        self.revision += 1
        del self.writers[writer]

    def raise_floor(self, partition: int, offset: int) -> None:
        """Write a floor."""
        self.revision += 1
        self.floors[partition] = offset, self.revision


# What a publisher, retention and the controller do at one point, by the name of its rule, so that a planted bug can
# leave it out.


def record_is(records: Records, writer: str, revision: int) -> bool:
    """Rule `compares-record`."""
    return records.get(writer)[1] == revision


def floors_are(records: Records, revision: int) -> bool:
    """Rule `compares-floors`."""
    return all(written <= revision for _, written in records.floors.values())


def floor_first(records: Records, partition: int, offset: int) -> None:
    """Rule `floor-first`."""
    records.raise_floor(partition, offset)


def is_waited_for(record: WriterRecord, manifest: Manifest, partition: int, offset: int) -> bool:
    """Whether retention waits for this record before it drops what lies below."""
    return record.state is WriterState.DECIDED and manifest.reaches_below(partition, offset)


def is_taken_up(_record: WriterRecord) -> bool:
    """Rule `taken-up`."""
    return True


def is_there(stage: Stage, staged: StagedBatch) -> bool:
    """Rule `asks-members`."""
    return stage.fetch(staged)[0] is not None


def is_read_again() -> bool:
    """Rule `decided-first`: whether a publisher reads what its transaction wrote before it asks any master."""
    return True


def may_be_done(waiting: set[PartitionId]) -> bool:
    """Rule `each-answers`: whether all masters have answered."""
    return not waiting
