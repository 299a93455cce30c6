"""A disk in memory. It shows what the writes of `core.values.log` mean, and which of them a crash may lose.

A `submit` is visible at once, and becomes durable later, in order. A crash keeps any prefix of the writes that were not
durable. This is the worst that an ordered log with group commit may do. The simulator uses a `MemoryDisk` directly and
decides when writes become durable. `SimulatedStorage` puts the broker's asynchronous interface over one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from seriatim_api.batch import BatchHeader
from seriatim_api.ids import PartitionId

from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.log import (
    Batch,
    CursorState,
    DropBlock,
    DropCursor,
    DropPartition,
    DropPreparation,
    DropSegment,
    DueRow,
    HandOverState,
    LedgerRow,
    LocalSegment,
    Preparation,
    PutBatch,
    PutBlock,
    PutChain,
    PutCursor,
    PutHandOver,
    PutLedger,
    PutPreparation,
    PutSegment,
    PutTailCopy,
    RecoveredPartition,
    RecoveredSegment,
    Rewrite,
    StoredVolley,
    TailCopy,
    TrimLog,
    Truncate,
    Write,
)
from seriatim_broker.core.values.positions import BatchPlace, Measure
from seriatim_broker.core.values.producers import Changes, Window


@dataclass(slots=True, eq=False)
class SegmentImage:
    """One segment on a disk: its record, its batches, and the producer windows that were written with them."""

    record: LocalSegment
    batches: list[Batch] = field(default_factory=list)
    base: tuple[int, int] = (0, 0)  # the index at which the batches begin, and the bytes below
    commit: int = 0
    windows: dict[bytes, Window] = field(default_factory=dict)

    @property
    def tail(self) -> int:
        """The index after the last message."""
        return self.batches[-1].header.end_index if self.batches else self.base[0]

    @property
    def tail_checksum(self) -> int:
        """The checksum chain's value at the tail."""
        return self.batches[-1].header.checksum if self.batches else self.record.begin.checksum

    @property
    def known_commit(self) -> int:
        """The commit that a start finds. In a sealed segment, all its messages on the disk below its length count."""
        sealed_len = self.record.sealed_len
        commit = max(self.commit, self.record.begin.first)
        return commit if sealed_len is None else max(commit, min(self.tail, sealed_len))

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches below the tail, including those that retention dropped."""
        return self.base[1] + sum(batch.size_bytes for batch in self.batches)

    def set_windows(self, windows: Changes) -> None:
        """Take changed windows of producers."""
        for producer, window in windows:
            self.windows.pop(producer, None)
            if window is not None:
                self.windows[producer] = window

    def twin(self) -> SegmentImage:
        """An independent copy."""
        twin = SegmentImage(self.record)
        twin.batches = list(self.batches)
        twin.base = self.base
        twin.commit = self.commit
        twin.windows = dict(self.windows)
        return twin


@dataclass(slots=True, eq=False)
class PartitionImage:
    """One partition on a disk."""

    segments: dict[int, SegmentImage] = field(default_factory=dict)
    preparations: dict[tuple[int, bytes], Preparation] = field(default_factory=dict)
    tails: dict[tuple[int, int], TailCopy] = field(default_factory=dict)  # by segment and place
    cursors: dict[tuple[int, str], CursorState] = field(default_factory=dict)
    rows: dict[tuple[int, str], dict[bytes, bytes]] = field(default_factory=dict)
    handoffs: dict[tuple[int, str], HandOverState] = field(default_factory=dict)
    blocks: dict[bytes, bytes] = field(default_factory=dict)
    chain: Chain | None = None

    def twin(self) -> PartitionImage:
        """An independent copy."""
        twin = PartitionImage()
        twin.segments = {no: segment.twin() for no, segment in self.segments.items()}
        twin.preparations = dict(self.preparations)
        twin.tails = dict(self.tails)
        twin.cursors = dict(self.cursors)
        twin.rows = {place: dict(rows) for place, rows in self.rows.items()}
        twin.handoffs = dict(self.handoffs)
        twin.blocks = dict(self.blocks)
        twin.chain = self.chain
        return twin


@dataclass(slots=True, eq=False)
class DiskImage:
    """The content of a disk after a sequence of writes."""

    partitions: dict[PartitionId, PartitionImage] = field(default_factory=dict)

    def twin(self) -> DiskImage:
        """An independent copy."""
        twin = DiskImage()
        twin.partitions = {name: partition.twin() for name, partition in self.partitions.items()}
        return twin

    def apply(self, write: Write) -> None:
        """Carry out one write. Asserts all that a storage may assume of its caller."""
        if isinstance(write, PutBatch):
            self._put_batch(write)
            return
        if isinstance(write, DropPartition):
            self.partitions.pop(write.partition, None)
            return
        partition = self.partitions.get(write.partition)
        if partition is None:
            partition = self.partitions[write.partition] = PartitionImage()
        if isinstance(write, PutSegment):
            image = partition.segments.get(write.segment.no)
            if image is None:
                partition.segments[write.segment.no] = SegmentImage(write.segment)
            else:
                assert not image.record.fenced or write.segment.fenced, f"a fence was lifted: {write.segment}"
                image.record = write.segment
        elif isinstance(write, PutPreparation):
            named = {name.id for name in write.preparation.table.blocks}
            assert named <= set(partition.blocks), "a preparation names blocks that are not on the disk"
            key = (write.preparation.segment_no, write.preparation.switch_attempt)
            partition.preparations[key] = write.preparation
        elif isinstance(write, PutBlock):
            partition.blocks[write.block] = write.data
        elif isinstance(write, DropBlock):
            named = {name.id for kept in partition.preparations.values() for name in kept.table.blocks}
            assert write.block not in named, "a block is dropped that a preparation names"
            partition.blocks.pop(write.block, None)
        elif isinstance(write, DropPreparation):
            partition.preparations.pop((write.segment_no, write.switch_attempt), None)
        elif isinstance(write, PutTailCopy):
            partition.tails[write.tail.segment_no, write.place] = write.tail
        elif isinstance(write, Truncate):
            self._truncate(partition, write)
        elif isinstance(write, TrimLog):
            _trim(partition, write)
        elif isinstance(write, Rewrite):
            _rewrite(partition, write)
        elif isinstance(write, PutCursor):
            partition.cursors[write.cursor.segment_no, write.cursor.consumer_group] = write.cursor
        elif isinstance(write, PutLedger):
            _put_ledger(partition, write)
        elif isinstance(write, PutHandOver):
            handoff = write.handoff
            partition.handoffs[handoff.segment_no, handoff.consumer_group] = handoff
        elif isinstance(write, DropCursor):
            for held in (partition.cursors, partition.rows, partition.handoffs):
                held.pop((write.segment_no, write.consumer_group), None)
        elif isinstance(write, PutChain):
            changes = write.chain.changes_since(partition.chain)
            written = tuple(segment for segment in write.chain.segments if segment.no in write.changed)
            assert changes.changed == written, f"what changed is not what is written: {write.changed}"
            assert changes.gone == write.gone, f"what is gone is not what is dropped: {write.gone}"
            partition.chain = write.chain
        elif isinstance(write, DropSegment):
            partition.segments.pop(write.segment_no, None)
            for tail in [key for key in partition.tails if key[0] == write.segment_no]:
                del partition.tails[tail]
            for held in (partition.cursors, partition.rows, partition.handoffs):
                for place in [key for key in held if key[0] == write.segment_no]:
                    del held[place]
        else:
            raise AssertionError(f"an unknown write: {write}")

    def _put_batch(self, write: PutBatch) -> None:
        header = write.batch.header
        partition = self.partitions.get(write.partition)
        assert partition is not None, f"a batch of an unknown partition {write.partition}"
        image = partition.segments.get(header.segment)
        assert image is not None, f"a batch of segment {header.segment}, whose record is not on the disk"
        place = f"{header.segment}:{header.base_index}"
        assert header.base_index == image.tail, f"a hole: {place} after {image.tail}"
        assert header.previous_checksum == image.tail_checksum, f"a broken chain at {place}"
        image.batches.append(write.batch)
        image.commit = max(image.commit, write.commit)
        image.set_windows(write.windows)

    def _truncate(self, partition: PartitionImage, write: Truncate) -> None:
        image = partition.segments.get(write.segment_no)
        assert image is not None, f"truncating segment {write.segment_no}, which is not on the disk"
        if write.length <= image.base[0]:
            image.batches.clear()
        while image.batches and image.batches[-1].header.end_index > write.length:
            cut = image.batches.pop()
            assert cut.header.base_index >= write.length, "a truncation inside a batch"
        if write.windows is None:
            image.windows.clear()
        image.set_windows(write.windows or ())
        image.commit = min(image.commit, write.length)


class MemoryDisk:
    """A disk with a durable image and a visible one. They differ by the submits that are not durable yet.

    Attributes:
        durable_count: How many submits became durable.
    """

    def __init__(self) -> None:
        self.durable = DiskImage()
        self.visible = DiskImage()
        self._pending: deque[tuple[int, tuple[Write, ...]]] = deque()
        self._ticket = 0
        self.durable_count = 0
        self._flipped: set[tuple[PartitionId, int, int]] = set()

    @property
    def pending_count(self) -> int:
        """The number of submits that are not durable yet."""
        return len(self._pending)

    def submit(self, writes: Sequence[Write]) -> int:
        """Take writes, which are visible at once. Returns their ticket."""
        self._ticket += 1
        kept = tuple(writes)
        for write in kept:
            self.visible.apply(write)
            if self._flipped:
                self._written_again(write)
        self._pending.append((self._ticket, kept))
        return self._ticket

    def flush(self, ticket: int) -> None:
        """Make all submits up to and including `ticket` durable."""
        while self._pending and self._pending[0][0] <= ticket:
            self._flush_next()

    def crash(self, kept_count: int) -> None:
        """Lose all but the first `kept_count` of the submits that are not durable."""
        for _ in range(min(kept_count, len(self._pending))):
            self._flush_next()
        self._pending.clear()
        self.visible = self.durable.twin()

    def _flush_next(self) -> None:
        for write in self._pending.popleft()[1]:
            self.durable.apply(write)
        self.durable_count += 1

    def flip(self, partition: PartitionId, segment_no: int, base_index: int) -> None:
        """Damage a stored batch. Until it is written again, a reader finds that its checksum is wrong."""
        self._flipped.add((partition, segment_no, base_index))

    def is_flipped(self, partition: PartitionId, batch: Batch) -> bool:
        """Whether this copy of a batch is damaged."""
        return (partition, batch.header.segment, batch.header.base_index) in self._flipped

    def _written_again(self, write: Write) -> None:
        if isinstance(write, PutBatch | Rewrite):
            for batch in write.batches if isinstance(write, Rewrite) else (write.batch,):
                self._flipped.discard((write.partition, batch.header.segment, batch.header.base_index))

    def twin(self) -> MemoryDisk:
        """A copy of the durable content, as in a backup."""
        twin = MemoryDisk()
        twin.durable, twin.visible = self.durable.twin(), self.durable.twin()
        twin._ticket = self._ticket
        twin.durable_count = self.durable_count
        return twin

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.durable_count = 0
        self.durable = DiskImage()
        self.visible = DiskImage()
        self._pending.clear()
        self._flipped.clear()

    def recover(self) -> list[RecoveredPartition]:
        """The durable image in the form in which the storage adapter gives it to a start."""
        return [_recovered(name, image) for name, image in sorted(self.durable.partitions.items())]

    def read(
        self, partition: PartitionId, segment_no: int, from_index: int, until_index: int, max_bytes: int
    ) -> list[Batch]:
        """Batches with indexes of [from_index, until_index), beginning with the one that contains `from_index`.

        After the end of the log, it gives batches of the segment's tail copies, also of those that came with a
        preparation of the next segment.
        """
        image = self.visible.partitions.get(partition)
        if image is None:
            return []
        segment = image.segments.get(segment_no)
        own = segment.batches if segment is not None else []
        found: list[Batch] = []
        size = 0
        next_index = from_index
        if segment is not None and from_index < segment.base[0]:
            return []
        for batch in [*own, *_tail_batches(image, segment_no)]:
            header = batch.header
            if header.end_index <= next_index:
                continue
            if header.base_index >= until_index or (header.base_index > next_index):
                break
            if found and size + batch.size_bytes > max_bytes:
                break
            found.append(batch)
            size += batch.size_bytes
            next_index = header.end_index
        return found

    def find(
        self, partition: PartitionId, segment_no: int, until_index: int, measure: Measure, value: int
    ) -> BatchPlace | None:
        """The first batch that reaches `value`, of those that begin below `until_index`."""
        image = self.visible.partitions.get(partition)
        segment = image.segments.get(segment_no) if image is not None else None
        bytes_before = segment.base[1] if segment is not None else 0
        for batch in segment.batches if segment is not None else ():
            header = batch.header
            place = BatchPlace(
                header.base_index,
                header.end_index,
                bytes_before,
                batch.size_bytes,
                header.append_time_ms,
                header.previous_checksum,
            )
            if place.index >= until_index:
                break
            if place.reaches(measure, value):
                return place
            bytes_before += batch.size_bytes
        return None

    def read_due(
        self, partition: PartitionId, segment_no: int, after: tuple[int, int], until_ms: int, count_max: int
    ) -> list[DueRow]:
        """Delayed batches of a segment's log, by due time and then by first index."""
        rows = sorted(filter(None, map(DueRow.of, self._headers(partition, segment_no))))
        return [row for row in rows if row[:2] > after and row.due_ms <= until_ms][:count_max]

    def read_delayed(self, partition: PartitionId, segment_no: int, from_index: int, count_max: int) -> list[DueRow]:
        """Delayed batches of a segment's log by index, beginning with the one that contains `from_index`."""
        rows = filter(None, map(DueRow.of, self._headers(partition, segment_no)))
        return [row for row in rows if row.index + row.message_count > from_index][:count_max]

    def read_volleys(
        self, partition: PartitionId, segment_no: int, from_index: int, count_max: int
    ) -> list[StoredVolley]:
        """Batches of a segment's log that a broker made of delayed messages, by index."""
        volleys = filter(None, map(StoredVolley.of, self._batches(partition, segment_no)))
        return [volley for volley in volleys if volley.index >= from_index][:count_max]

    def _headers(self, partition: PartitionId, segment_no: int) -> list[BatchHeader]:
        return [batch.header for batch in self._batches(partition, segment_no)]

    def _batches(self, partition: PartitionId, segment_no: int) -> Sequence[Batch]:
        image = self.visible.partitions.get(partition)
        segment = image.segments.get(segment_no) if image is not None else None
        return segment.batches if segment is not None else ()


def _put_ledger(partition: PartitionImage, write: PutLedger) -> None:
    place = write.cursor.segment_no, write.cursor.consumer_group
    partition.cursors[place] = write.cursor
    if write.change.is_full:
        partition.rows.pop(place, None)
        partition.handoffs.pop(place, None)
    rows = partition.rows.setdefault(place, {})
    rows.update(write.change.puts)
    for name in write.change.deletes:
        rows.pop(name, None)
    if not rows:
        del partition.rows[place]


def _trim(partition: PartitionImage, write: TrimLog) -> None:
    """Drop all messages below at once. The real disk drops some of them later, but no caller may rely on them."""
    image = partition.segments[write.segment_no]
    assert image.record.begin.first == write.below, "the disk drops what the record does not say"
    if image.tail < write.below:
        assert not image.batches, "a log that ends below is cut first"
        image.base = (write.below, write.size_bytes)
    size_bytes = image.base[1]
    while image.batches and image.batches[0].header.end_index <= write.below:
        size_bytes += image.batches.pop(0).size_bytes
    image.base = (write.below, size_bytes)
    assert size_bytes == write.size_bytes, f"{size_bytes} bytes lay below {write.below}, not {write.size_bytes}"
    assert not image.batches or image.batches[0].header.base_index == write.below, "a start inside a batch"


def _rewrite(partition: PartitionImage, write: Rewrite) -> None:
    image = partition.segments[write.segment_no]
    places = {batch.header.base_index: place for place, batch in enumerate(image.batches)}
    for batch in write.batches:
        if batch.header.base_index < image.record.begin.first:
            continue  # retention dropped it while it was repaired
        place = places[batch.header.base_index]
        assert image.batches[place].header == batch.header, f"another batch at {batch.header.base_index}"
        image.batches[place] = batch


def _tail_batches(image: PartitionImage, segment_no: int) -> list[Batch]:
    batches: list[Batch] = []
    for (no, _), tail in sorted(image.tails.items()):
        if no == segment_no:
            batches.extend(tail.batches)
    for preparation in image.preparations.values():
        if preparation.tail is not None and preparation.tail.segment_no == segment_no:
            batches.extend(preparation.tail.batches)
    return sorted(batches, key=lambda batch: batch.header.base_index)


def _recovered(name: PartitionId, image: PartitionImage) -> RecoveredPartition:
    segments = tuple(
        RecoveredSegment(
            record=segment.record,
            tail=segment.tail,
            tail_checksum=segment.tail_checksum,
            commit=segment.known_commit,
            uncommitted=tuple(batch for batch in segment.batches if batch.header.end_index > segment.known_commit),
            windows=tuple(sorted(segment.windows.items())),
            last_append_ms=segment.batches[-1].header.append_time_ms if segment.batches else 0,
            size_bytes=segment.size_bytes,
            delayed_until_ms=max(
                (row.due_ms for batch in segment.batches if (row := DueRow.of(batch.header)) is not None), default=0
            ),
        )
        for _, segment in sorted(image.segments.items())
    )
    return RecoveredPartition(
        partition=name,
        segments=segments,
        preparations=tuple(preparation for _, preparation in sorted(image.preparations.items())),
        tail_copies=tuple(tail for _, tail in sorted(image.tails.items())),
        chain=image.chain,
        cursors=tuple(cursor for _, cursor in sorted(image.cursors.items())),
        ledger_rows=tuple(
            LedgerRow(*place, name, value)
            for place, rows in sorted(image.rows.items())
            for name, value in sorted(rows.items())
        ),
        handoffs=tuple(handoff for _, handoff in sorted(image.handoffs.items())),
        blocks=tuple(data for _, data in sorted(image.blocks.items())),
    )
