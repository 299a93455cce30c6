"""A segment's log on one member: what it has, what is durable, what is committed, and whether it is fenced.

Facts only; the rules are in `appending`, `replication` and `fencing`. The log keeps the batches at and above the commit
in memory: they are what a switch may need (the uncertain tail), what a resumed connection sends again, and never many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from seriatim_api.batch import BatchHeader, chain_is_intact, place
from seriatim_api.ids import MemberId, PartitionId

from .log import Batch, LocalSegment, Preparation, PutBatch, PutSegment, RecoveredSegment, TailCopy, Truncate
from .outbox import LogDurable, Outbox
from .producers import ProducerTable, Table
from .state import NOTHING, State


class Waiting(NamedTuple):
    """A reply that waits for the log to be safe up to `end`."""

    end: int
    level: int
    request: int
    offset: int
    append_time_ms: int


class Follower(State):
    """What the master knows of another member of its segment."""

    __slots__ = ("durable", "in_step", "member", "out_of_step_us", "received")

    def __init__(self, member: MemberId) -> None:
        self.member = member
        self.received = 0
        self.durable = 0
        self.in_step = False  # its tail on this connection is known: frames may flow
        self.out_of_step_us: int | None = None  # since when not


class SegmentLog(State):
    """One segment on one member."""

    __slots__ = (
        "active",
        "commit",
        "durable",
        "followers",
        "generation",
        "last_append_ms",
        "opened_with",
        "partition",
        "record",
        "runs",
        "suspect",
        "table",
        "tail",
        "tail_checksum",
        "told_commit",
        "unbroken",
        "uncommitted",
        "waiting",
    )

    def __init__(self, partition: PartitionId, record: LocalSegment, table: Table) -> None:
        self.partition = partition
        self.record = record
        self.tail = 0
        self.tail_checksum = 0
        self.durable = 0
        self.commit = 0
        self.table = ProducerTable(table)
        self.uncommitted: list[Batch] = []
        self.active = False  # opened in this run and not fenced: takes batches
        self.unbroken = False  # the master, since it opened the segment in this run
        self.followers: tuple[Follower, ...] = ()
        self.waiting: list[Waiting] = []
        self.runs: Mapping[bytes, tuple[int, bool]] = NOTHING  # producer -> (run, refused)
        self.opened_with: Preparation | None = None  # what the chain record chose of what was prepared here
        self.told_commit = 0
        self.last_append_ms = 0
        self.generation = 0
        self.suspect = False

    @classmethod
    def recovered(cls, partition: PartitionId, found: RecoveredSegment, table: Table, suspect: bool) -> SegmentLog:
        """The log as a start found it; `table` is the one that the segment was opened with.

        `suspect`: an earlier run ended badly, so what was not flushed before it was committed may be missing here.
        """
        log = cls(partition, found.record, (*table, *found.windows))  # written with its batches: the newer windows
        log.suspect = suspect and not found.record.flush and found.record.sealed_len is None
        log.tail = log.durable = found.tail
        log.tail_checksum = found.tail_checksum
        log.commit = found.commit
        log.uncommitted = list(found.uncommitted)
        return log

    # ---- what it is ----

    @property
    def no(self) -> int:
        """The segment's number."""
        return self.record.no

    @property
    def is_whole(self) -> bool:
        """Whether it is sealed and all of it is here, as the seal's checksum says."""
        record = self.record
        return (
            record.sealed_len is not None
            and self.tail == record.sealed_len
            and self.tail_checksum == record.sealed_checksum
        )

    @property
    def readable_below(self) -> int:
        """Consumers may see what lies below."""
        record = self.record
        if record.sealed_len is None:
            return self.commit
        return min(self.tail, record.sealed_len)

    def follower(self, member: MemberId) -> Follower | None:
        """What this master knows of that member; None if it is none of its followers."""
        for follower in self.followers:
            if follower.member == member:
                return follower
        return None

    def checksum_at(self, length: int) -> int:
        """The chain's value at a batch boundary at or above the commit."""
        if length == self.tail:
            return self.tail_checksum
        for batch in self.uncommitted:
            if batch.header.base_index == length:
                return batch.header.previous_checksum
        raise AssertionError(f"{length} is no boundary in [{self.commit}, {self.tail}] of segment {self.no}")

    def tail_copy(self, length: int) -> TailCopy:
        """The uncertain tail: the batches in [commit, length)."""
        batches = tuple(batch for batch in self.uncommitted if batch.header.end_index <= length)
        return TailCopy(self.no, self.commit, length, batches)

    # ---- growing ----

    def append(self, outbox: Outbox, header: BatchHeader, body: bytes) -> Batch:
        """The master gives a batch its place and takes it."""
        assert self.active
        assert self.unbroken
        self.last_append_ms = max(self.last_append_ms, outbox.now.wall_ms)
        placed = place(
            header,
            segment=self.no,
            base_index=self.tail,
            append_time_ms=self.last_append_ms,
            previous_checksum=self.tail_checksum,
            checksum=outbox.checksum,
        )
        batch = Batch(placed, body)
        self._take(outbox, batch)
        return batch

    def follow(self, outbox: Outbox, batch: Batch) -> bool:
        """Take a batch that another member has; False if it is not the next one, or its chain is broken."""
        header = batch.header
        if header.base_index != self.tail or header.previous_checksum != self.tail_checksum:
            return False
        if header.segment != self.no or not chain_is_intact(header, outbox.checksum):
            return False
        self._take(outbox, batch)
        return True

    def _take(self, outbox: Outbox, batch: Batch) -> None:
        header = batch.header
        window = self.table.record(header)
        self.tail = header.end_index
        self.tail_checksum = header.checksum
        self.last_append_ms = header.append_time_ms
        if self.record.sealed_len is None:
            self.uncommitted.append(batch)
        outbox.write(PutBatch(self.partition, batch, self.commit, window))
        outbox.when_durable(LogDurable(self.partition, self.no, self.tail, self.generation))

    def advance_commit(self, commit: int) -> bool:
        """Move the commit forward; a fence has frozen it for ever."""
        if self.record.fenced or commit <= self.commit:
            return False
        assert commit <= self.tail
        self.commit = commit
        gone = 0
        for batch in self.uncommitted:
            if batch.header.end_index > commit:
                break
            gone += 1
        del self.uncommitted[:gone]
        return True

    # ---- ending ----

    def update(self, outbox: Outbox, **changes: object) -> None:
        """Change the durable record."""
        self.record = replace(self.record, **changes)  # type: ignore[arg-type]
        outbox.write(PutSegment(self.partition, self.record))

    def fence(self, outbox: Outbox) -> None:
        """Take nothing more, commit nothing more. Durable with everything below the tail, by the order of writes."""
        self.active = False
        if not self.record.fenced:
            self.update(outbox, fenced=True)

    def seal(self, outbox: Outbox, length: int, checksum: int) -> None:
        """The chain says so: cut what lies above, durably, and remember the length."""
        assert length >= self.commit, f"segment {self.no} sealed at {length}, below its commit {self.commit}"
        self.active = False
        if self.tail > length:
            self.tail_checksum = self.checksum_at(length)
            table = self.table.as_of(self.no, length)
            self.table = ProducerTable(table)
            outbox.write(Truncate(self.partition, self.no, length, table))
            self.tail = length
            self.durable = min(self.durable, length)
        self.uncommitted = []
        self.followers = ()
        self.runs = NOTHING
        self.commit = self.tail
        self.update(outbox, fenced=True, sealed_len=length, sealed_checksum=checksum)

    def start_over(self, outbox: Outbox, table: Table) -> None:
        """What is here is not what was sealed: forget it, to copy it anew from a whole member."""
        outbox.write(Truncate(self.partition, self.no, 0, table))
        self.table = ProducerTable(table)
        self.tail = self.durable = self.commit = self.tail_checksum = 0
        self.generation += 1
