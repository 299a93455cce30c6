"""A segment's log on one member: what it has, what is durable, what is committed, and whether it is fenced.

Facts only; the rules are in `appending`, `replication` and `fencing`. The log keeps the uncertain tail in memory: the
batches that not every member is known to have flushed. A switch copies them, a resumed connection sends them again, and
their bytes have a limit (`unflushed_bytes_max`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from seriatim_api.batch import BatchHeader, chain_is_intact, place
from seriatim_api.ids import MemberId, PartitionId, make_offset

from ..values.chain import Segment, Start
from ..values.config import BrokerConfig
from ..values.kinds import TimerKind
from ..values.log import (
    Batch,
    LocalSegment,
    Preparation,
    PutBatch,
    PutSegment,
    RecoveredSegment,
    TailCopy,
    TrimLog,
    Truncate,
)
from ..values.messages import Replicate, ReplicateStaged
from ..values.producers import NO_TABLE, IdleBlock, ProducerTable, Rows, Table, Window, append_time_of
from ..values.states import NOTHING, State, add, drop
from .broker import BrokerState
from .outbox import LogDurable


class Waiting(NamedTuple):
    """A reply that waits for the log to be safe up to `end`."""

    end: int
    level: int
    request: int
    offset: int
    append_time_ms: int
    is_final: bool = False  # the offset is the place at which readers find it


class Follower(State):
    """What the master knows of another member of its segment."""

    __slots__ = ("durable", "in_step", "looks_from_us", "member", "out_of_step_us", "received")

    def __init__(self, member: MemberId) -> None:
        self.member = member
        self.received = 0
        self.durable = 0
        self.in_step = False  # its tail on this connection is known: frames may flow
        self.out_of_step_us: int | None = None  # since when not
        self.looks_from_us = 0  # it did not find a staged batch: until then it gets all bodies from here


class Held(NamedTuple):
    """A message of the master that waits; `serial` of the question for its staged body, 0 if it has all it needs."""

    message: Replicate | ReplicateStaged
    serial: int
    fetched: Batch | None = None


class Answered(NamedTuple):
    """The producer table as a fence answer tells it, and the length, tail and generation of the log that it is of."""

    place: tuple[int, int, int]
    table: Table


class SegmentLog(State):
    """One segment on one member."""

    __slots__ = (
        "active",
        "answered",
        "commit",
        "durable",
        "flushed",
        "flushed_append_ms",
        "followers",
        "generation",
        "held",
        "is_from_disk",
        "last_append_ms",
        "opened_with",
        "partition",
        "record",
        "runs",
        "size_bytes",
        "suspect",
        "table",
        "tail",
        "tail_checksum",
        "tidied_ms",
        "told_flushed",
        "unbroken",
        "uncertain",
        "uncertain_bytes",
        "waiting",
    )

    def __init__(
        self,
        partition: PartitionId,
        record: LocalSegment,
        table: Table = NO_TABLE,
        blocks: Mapping[bytes, IdleBlock] = NOTHING,
        newer: Rows = (),
    ) -> None:
        self.partition = partition
        self.record = record
        self.tail, self.tail_checksum, self.size_bytes = record.begin  # the size is of all batches, with dropped ones
        self.durable = 0
        self.commit = self.tail
        self.flushed = self.tail  # every member is known to have flushed what lies below; never above the commit
        self.table: ProducerTable | None = ProducerTable(table, newer, blocks)  # None: nothing needs it any more
        self.answered: Answered | None = None  # once it is fenced
        self.uncertain: Sequence[Batch] = ()  # the batches at and above `flushed`
        self.uncertain_bytes = 0
        self.active = False  # opened in this run and not fenced: takes batches
        self.unbroken = False  # the master, since it opened the segment in this run
        self.followers: tuple[Follower, ...] = ()
        self.waiting: Sequence[Waiting] = ()
        self.runs: Mapping[bytes, tuple[int, bool]] = NOTHING  # producer -> (run, refused)
        self.opened_with: Preparation | None = None  # what the chain record chose of what was prepared here
        self.held: Sequence[Held] = ()  # from the master, in its order, while a staged body is looked for
        self.told_flushed = 0
        self.last_append_ms = 0
        self.flushed_append_ms = 0  # of the last batch below `flushed`, if this run opened the segment
        self.tidied_ms = 0  # up to when the table was tidied although nothing was appended
        self.generation = 0
        self.suspect = False
        self.is_from_disk = False  # this run did not open it: the disk may be an older copy

    @classmethod
    def recovered(
        cls,
        partition: PartitionId,
        found: RecoveredSegment,
        table: Table,
        suspect: bool,
        blocks: Mapping[bytes, IdleBlock] = NOTHING,
    ) -> SegmentLog:
        """The log as a start found it; `table` is the one that the segment was opened with.

        `suspect`: an earlier run ended badly, so what was not flushed before it was committed may be missing here.
        """
        log = cls(partition, found.record, table, blocks, found.windows)
        log.is_from_disk = True
        log.suspect = suspect and not found.record.flush and found.record.sealed_len is None
        log.tail = log.durable = found.tail
        log.tail_checksum = found.tail_checksum
        log.size_bytes = found.size_bytes
        log.commit = log.flushed = found.commit
        log.uncertain = list(found.uncommitted) or ()
        log.last_append_ms = found.last_append_ms
        log.uncertain_bytes = sum(batch.size_bytes for batch in log.uncertain)
        return log

    # ---- what it is ----

    @property
    def no(self) -> int:
        """The segment's number."""
        return self.record.no

    @property
    def start(self) -> int:
        """What lies below was dropped by retention."""
        return self.record.begin.first

    @property
    def live_table(self) -> ProducerTable:
        """The producer table of a log that still needs one: every log that is not sealed, and the kept ones."""
        assert self.table is not None, f"segment {self.no} let go of its producer table"
        return self.table

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
        if record.quarantined:
            return 0
        if record.sealed_len is None:
            return self.commit
        return min(self.tail, record.sealed_len)

    def size_at(self, length: int) -> int:
        """Bytes of all batches below a batch boundary of the uncertain tail."""
        above = (batch.size_bytes for batch in self.uncertain if batch.header.base_index >= length)
        return self.size_bytes - sum(above)

    def follower(self, member: MemberId) -> Follower | None:
        """What this master knows of that member; None if it is none of its followers."""
        for follower in self.followers:
            if follower.member == member:
                return follower
        return None

    def append_time_at(self, length: int) -> int:
        """The append time of the last batch below a batch boundary of the uncertain tail, in ms."""
        if length == self.tail:
            return self.last_append_ms
        times = [batch.header.append_time_ms for batch in self.uncertain if batch.header.end_index <= length]
        return times[-1] if times else self.flushed_append_ms

    def checksum_at(self, length: int) -> int:
        """The chain's value at a batch boundary of the uncertain tail."""
        if length == self.tail:
            return self.tail_checksum
        for batch in self.uncertain:
            if batch.header.base_index == length:
                return batch.header.previous_checksum
        raise AssertionError(f"{length} is no boundary in [{self.flushed}, {self.tail}] of segment {self.no}")

    def tail_copy(self, length: int) -> TailCopy:
        """The uncertain tail: the batches in [flushed, length).

        It begins at `flushed` and not at the commit. Where the topic does not flush before it commits, it would go
        like this otherwise (I12): (1) every member has a batch in memory, the commit passes it, only the master's disk
        has it; (2) a switch seals above the batch and copies nothing; (3) the reply at `replicated_flushed`, or the
        answer to a resend, says that two disks have it; (4) the master's disk is lost, and the batch with it.
        """
        batches = tuple(batch for batch in self.uncertain if batch.header.end_index <= length)
        return TailCopy(self.no, self.flushed, length, batches)

    def table_as_of(self, length: int) -> Table:
        """The producer table without what stands in the log at or above `length`, which is not below the commit.

        A fence freezes it. Several switchers may ask, and the table of 100,000 producers takes 25 ms each time.
        """
        if not self.record.fenced:
            return self.live_table.without(self._windows_as_of(length))
        place = (length, self.tail, self.generation)
        if self.answered is None or self.answered.place != place:
            self.answered = Answered(place, self.live_table.without(self._windows_as_of(length)))
        return self.answered.table

    def _windows_as_of(self, length: int) -> dict[bytes, Window | None]:
        """The windows that change if the log ends at `length`: those of producers with batches above it."""
        assert length >= self.commit, (length, self.commit)
        headers = (batch.header for batch in self.uncertain)
        above = dict.fromkeys(header.producer for header in headers if header.end_index > length)
        return self.live_table.cut(self.no, length, above)

    # ---- growing ----

    def append(self, broker: BrokerState, header: BatchHeader, body: bytes, adopts: BatchHeader | None = None) -> Batch:
        """The master gives a batch its place and takes it. `adopts`: see `PutBatch`."""
        assert self.active
        assert self.unbroken
        placed = place(
            header,
            segment=self.no,
            base_index=self.tail,
            append_time_ms=self._append_time_ms(broker),
            previous_checksum=self.tail_checksum,
            checksum=broker.checksum,
        )
        batch = Batch(placed, body)
        self._take(broker, batch, adopts)
        return batch

    def _append_time_ms(self, broker: BrokerState) -> int:
        """Now, and not before the message before; unless that one's time cannot be true."""
        wall_ms = broker.now.wall_ms
        ahead_ms = self.last_append_ms - wall_ms
        if ahead_ms > broker.config.append_time_ahead_ms_max:
            # Without it: (1) one clock is years ahead for a moment; (2) each later segment takes its time up from the
            # one before; (3) append time stands still for years, and retention by time drops nothing.
            broker.out.note("append_time_set_back", self.partition, segment=self.no, ahead_ms=ahead_ms)
            return wall_ms
        return max(self.last_append_ms, wall_ms)

    def follow(self, broker: BrokerState, batch: Batch, adopts: BatchHeader | None = None) -> bool:
        """Take a batch that another member has; False if it is not the next one, or its chain is broken.

        `adopts`: see `PutBatch`.
        """
        header = batch.header
        if header.base_index != self.tail or header.previous_checksum != self.tail_checksum:
            return False
        if header.segment != self.no or not chain_is_intact(header, broker.checksum):
            return False
        self._take(broker, batch, adopts)
        return True

    def _take(self, broker: BrokerState, batch: Batch, adopts: BatchHeader | None) -> None:
        header = batch.header
        window = self.table.record(header) if self.table is not None and not self.record.copied_from else b""
        if self.record.sealed_len is None:
            self._tidy(broker, header.append_time_ms)
        self.tail = header.end_index
        self.tail_checksum = header.checksum
        self.size_bytes += batch.size_bytes
        self.last_append_ms = header.append_time_ms
        if self.record.sealed_len is None:
            self.uncertain = add(self.uncertain, batch)
            self.uncertain_bytes += batch.size_bytes
        broker.out.write(PutBatch(self.partition, batch, self.flushed, window, adopts))
        broker.out.when_durable(LogDurable(self.partition, self.no, self.tail, self.generation))

    def _tidy(self, broker: BrokerState, now_ms: int) -> None:
        """Forget what need not be known any more of producers that are idle.

        Of a producer without a window the run is forgotten too: as after a switch, it begins another one.
        """
        before_ms = max(self.last_append_ms, min(self.tidied_ms, now_ms))
        committed = make_offset(self.no, self.commit)
        blocks = self.live_table.blocks
        for producer in self.live_table.tidy(broker.config, before_ms, now_ms, committed):
            self.runs = drop(self.runs, producer)
        if self.live_table.blocks is not blocks:
            broker.poll(broker.config.block_pause_us, TimerKind.BLOCKS, self.partition)

    def fold(self, config: BrokerConfig, on_disk: Iterable[IdleBlock]) -> None:
        """Have the producers that were idle when this member was stopped in blocks: its disk has windows of them.

        `on_disk`: the blocks that it had of them. The members of the next group were given these, by their names.
        """
        committed = make_offset(self.no, self.commit)
        self.live_table.take_back(on_disk, committed)
        self.live_table.fold(config, self.last_append_ms, committed)

    def keep_producer(self, broker: BrokerState, producer: bytes, now_ms: int) -> bool:
        """Have a producer count as one that sent at that time, on this disk too; False if nothing had to be done."""
        window = self.live_table.window(producer)
        if window is None or now_ms - append_time_of(window) < broker.config.producer_idle_ms // 2:
            return False
        self.live_table.touch(producer, now_ms)
        windows = ((producer, self.live_table.window(producer)),)
        broker.out.write(Truncate(self.partition, self.no, self.tail, windows))  # nothing is cut: the window is written
        return True

    def makes_room(self, broker: BrokerState) -> bool:
        """Whether the table may take up one more producer, after those that may be forgotten are.

        Only here time goes on without a batch: else a table full of producers that have all gone would stay full.
        """
        table = self.live_table
        if table.producer_count >= broker.config.producer_count_max:
            table.read_on(table.unread_count)
            now_ms = self._append_time_ms(broker)
            self._tidy(broker, now_ms)
            self.tidied_ms = now_ms
        return table.producer_count < broker.config.producer_count_max

    def advance_commit(self, commit: int) -> bool:
        """Move the commit forward; a fence has frozen it for ever."""
        if self.record.fenced or commit <= self.commit:
            return False
        assert commit <= self.tail
        self.commit = commit
        return True

    def advance_flushed(self, flushed: int) -> None:
        """Every member has flushed what lies below; after a fence nothing moves any more."""
        if self.record.fenced or flushed <= self.flushed:
            return
        assert flushed <= self.commit
        self.flushed = flushed
        gone = 0
        for batch in self.uncertain:
            if batch.header.end_index > flushed:
                break
            self.uncertain_bytes -= batch.size_bytes
            self.flushed_append_ms = batch.header.append_time_ms
            gone += 1
        self.uncertain = self.uncertain[gone:] or ()

    # ---- ending ----

    def update(self, broker: BrokerState, **changes: object) -> None:
        """Change the durable record."""
        self.record = replace(self.record, **changes)  # type: ignore[arg-type]
        broker.out.write(PutSegment(self.partition, self.record))

    def fence(self, broker: BrokerState) -> None:
        """Take nothing more, commit nothing more. Durable with everything below the tail, by the order of writes."""
        self.active = False
        self.held = ()
        if not self.record.fenced:
            self.update(broker, fenced=True)

    def seal(self, broker: BrokerState, length: int, checksum: int) -> None:
        """The chain says so: cut what lies above, durably, and remember the length."""
        assert length >= self.commit, f"segment {self.no} sealed at {length}, below its commit {self.commit}"
        self.active = False
        self.held = ()
        if self.tail > length:
            self.tail_checksum = self.checksum_at(length)
            windows = self._windows_as_of(length)
            self.live_table.change(windows)
            broker.out.write(Truncate(self.partition, self.no, length, tuple(windows.items())))
            self.size_bytes = self.size_at(length)
            self.tail = length
            self.durable = min(self.durable, length)
        self.uncertain = ()
        self.uncertain_bytes = 0
        self.answered = None
        self.followers = ()
        self.runs = NOTHING
        self.commit = self.flushed = self.tail
        self.update(broker, fenced=True, sealed_len=length, sealed_checksum=checksum)

    def quarantine(self, broker: BrokerState) -> None:
        """Keep everything as it is, durably: nothing is taken, cut or served any more."""
        self.active = False
        self.held = ()
        self.followers = ()
        self.runs = NOTHING
        self.update(broker, fenced=True, quarantined=True)

    def let_table_go(self, broker: BrokerState) -> None:
        """Forget the producer table, here and on the disk: no reader and no switch asks for it any more."""
        assert self.record.sealed_len is not None
        if self.table is not None and self.table.window_count:
            broker.out.write(Truncate(self.partition, self.no, self.tail, None))
        self.table = None

    def share(self, segment: Segment) -> None:
        """Keep the chain's objects in place of equal ones: there may be ten thousand logs like this in a partition."""
        record = self.record
        length, checksum = segment.sealed_len, segment.sealed_checksum
        if (record.attempt, record.sealed_len, record.sealed_checksum) != (segment.attempt, length, checksum):
            return
        if record.attempt is not segment.attempt:
            self.record = replace(record, attempt=segment.attempt, sealed_len=length, sealed_checksum=checksum)
        if self.is_whole and length is not None and checksum is not None:
            self.tail_checksum = checksum
            self.tail = length
            if self.size_bytes == segment.sealed_bytes:
                self.size_bytes = segment.sealed_bytes
            self.durable, self.commit, self.flushed = (
                length if place == length else place for place in (self.durable, self.commit, self.flushed)
            )

    def take_up(self, table: Table) -> None:
        """Take up the table that the segment was opened with, which comes later than the batches."""
        self.live_table.take_up(table)
        self.answered = None

    def trim(self, broker: BrokerState, start: Start) -> None:
        """Retention dropped what lies below `start`: it may go from this disk too.

        A sealed log that ends below begins there from now on, as a copy that has none of its batches yet. What it was
        opened with says nothing about it any more: the caller forgets that (`copying.begin_behind`).
        """
        assert start.first > self.start
        copied_from = self.record.copied_from
        if self.tail < start.first:
            assert self.record.sealed_len is not None, f"segment {self.no} is open, and ends below its start"
            self._begin_at(broker, start)
            copied_from = start.first
            broker.out.write(Truncate(self.partition, self.no, 0, None))
        self.update(broker, begin=start, copied_from=copied_from)
        broker.out.write(TrimLog(self.partition, self.no, start.first, start.size_bytes))

    def _begin_at(self, broker: BrokerState, start: Start) -> None:
        if self.table is not None:
            self.table = ProducerTable()
        self.tail, self.tail_checksum, self.size_bytes = start
        self.durable = 0
        self.commit = self.flushed = self.tail
        self.answered = None
        self.generation += 1
        broker.out.when_durable(LogDurable(self.partition, self.no, self.tail, self.generation))

    def start_over(self, broker: BrokerState, table: Table, blocks: Mapping[bytes, IdleBlock] = NOTHING) -> None:
        """What is here is not what was sealed: forget it, to copy it anew from a whole member."""
        broker.out.write(Truncate(self.partition, self.no, self.start, None))
        self._begin_at(broker, self.record.begin)
        if self.start:
            self.update(broker, copied_from=self.start)
        elif self.table is not None:
            self.table = ProducerTable(table, (), blocks)
