"""Batches, windows and records for the tests of the storage."""

from __future__ import annotations

import copy
import random

from seriatim_api.batch import FLAG_DELAYED, FLAG_FIRED, FLAG_PUBLISH, FLAG_STAGED, parse_header, place
from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.core.values.log import Batch, LocalSegment, Preparation, PutBatch, TailCopy
from seriatim_broker.core.values.producers import Changes, Entry, ProducerTable, Window, pack_table, pack_window
from seriatim_broker.core.values.segment import Start

from broker.tests.headers import header_of

MEMBERS = (MemberId("g0-0", "a" * 32), MemberId("g0-1", "b" * 32))
ATTEMPT = b"attempt-00000001"


class SegmentBuilder:
    """Makes the batches of a segment one after the other, with places, chain and windows."""

    def __init__(self, partition: int, segment: int = 1, *, seed: int = 0, producer: bytes = b"p" * 16) -> None:
        self.partition = PartitionId(partition)
        self.segment = segment
        self.producer = producer
        self.index = 0
        self.checksum = 0
        self.sequence = 0
        self.time_ms = 3
        self.table = ProducerTable()
        self.batches: list[Batch] = []
        self.gone_bytes = 0
        self._random = random.Random(seed)

    def batch(
        self,
        size_bytes: int = 100,
        count: int = 1,
        *,
        flags: int = 0,
        body: bytes | None = None,
        due_ms: int = 0,
        origin: int = 0,
    ) -> Batch:
        """The next batch; with a due time, it is delayed or fired, and with an origin, a broker made it."""
        flags |= FLAG_DELAYED if due_ms and not flags & FLAG_FIRED else 0
        body = self._random.randbytes(size_bytes) if body is None else body
        stage = b"s" * 16 if flags & FLAG_STAGED else bytes(16)
        raw = header_of(
            body, partition=self.partition, message_count=count, producer=self.producer, producer_epoch=1,
            base_sequence=self.sequence, first_timestamp_ms=1, last_timestamp_ms=2, flags=flags, stage=stage,
            due_time_ms=due_ms, origin=(int(self.partition) if origin else 0, origin),
        )  # fmt: skip
        header = place(
            parse_header(raw), segment=self.segment, base_index=self.index, append_time_ms=self.time_ms,
            previous_checksum=self.checksum, checksum=crc32c,
        )  # fmt: skip
        self.table.record(header)
        self.index, self.checksum, self.sequence = header.end_index, header.checksum, self.sequence + count
        batch = Batch(header, body)
        self.batches.append(batch)
        return batch

    @property
    def window(self) -> Window:
        """The producer's window after its last batch."""
        return self.table.windows[self.producer]

    @property
    def windows(self) -> Changes:
        """What a batch takes to the disk."""
        return ((self.producer, self.window),)

    def put(self, size_bytes: int = 100, count: int = 1, commit: int = 0, **fields: int) -> PutBatch:
        """The write of the next batch; `fields` as of `batch`."""
        return PutBatch(self.partition, self.batch(size_bytes, count, **fields), commit, self.windows)

    def stage(self, size_bytes: int = 100, count: int = 1) -> PutBatch:
        """The write of the next batch, of a stage log."""
        return PutBatch(self.partition, self.batch(size_bytes, count, flags=FLAG_STAGED), 0, self.windows)

    def adopt(self, staged: Batch) -> PutBatch:
        """The write of the next batch, which has the body of a staged one."""
        header, body = staged
        batch = self.batch(count=header.message_count, flags=FLAG_PUBLISH, body=body)
        return PutBatch(self.partition, batch, 0, self.windows, header)

    def twin(self) -> SegmentBuilder:
        """One that continues from here by itself."""
        twin = copy.copy(self)
        twin.batches, twin.table = list(self.batches), self.table.copy()
        return twin

    def trim(self, count: int) -> Start:
        """Retention drops the first batches; returns where the log begins now."""
        self.gone_bytes += sum(batch.size_bytes for batch in self.batches[:count])
        self.batches = self.batches[count:]
        first = self.batches[0].header
        return Start(first.base_index, first.previous_checksum, self.gone_bytes)

    def rewind(self, length: int) -> None:
        """Continue from `length`, as after a truncation."""
        self.batches = [batch for batch in self.batches if batch.header.end_index <= length]
        assert self.index == 0 or not self.batches or self.batches[-1].header.end_index == length
        self.index = length
        self.checksum = self.batches[-1].header.checksum if self.batches else 0


def segment_record(no: int = 1, *, sealed_len: int | None = None, fenced: bool = False) -> LocalSegment:
    """A segment's record."""
    return LocalSegment(
        no=no,
        switch_attempt=ATTEMPT,
        members=MEMBERS,
        flush=True,
        incomplete_table=False,
        opened_member_run=3,
        fenced=fenced,
        sealed_len=sealed_len,
        sealed_checksum=7 if sealed_len is not None else None,
    )


def preparation(
    no: int, *, tail: TailCopy | None = None, attempt: bytes = ATTEMPT, voided: bool = False
) -> Preparation:
    """A preparation of segment `no`."""
    table = pack_table({b"q" * 16: pack_window([Entry(1, 0, 2, 0), Entry(1, 2, 1, 2)], 3)})
    return Preparation(no, attempt, MEMBERS, True, False, table, tail, member_run=4, voided=voided)
