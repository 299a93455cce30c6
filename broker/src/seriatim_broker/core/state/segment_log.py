"""A segment's log on one member: which messages it has, what is durable, what is committed, and whether it is fenced.

The log keeps the uncertain tail in memory: the batches that not every member is known to have flushed. A switch copies
them, a resumed connection sends them again, and their bytes have a limit (`unflushed_bytes_max`, 18 MiB). The rules
about logs of several members are in `writing.appending`, `writing.replication` and `switching.fencing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from seriatim_api.batch import FLAG_DELAYED, BatchHeader, chain_is_intact, place
from seriatim_api.ids import MemberId, PartitionId, make_offset

from ..values.delayed import NONE_WAIT, Amount
from ..values.delays import due_time_at
from ..values.kinds import TimerKind
from ..values.log import (
    Batch,
    DueRow,
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
from ..values.owners import OwnerRecord
from ..values.producers import NO_TABLE, IdleBlock, ProducerTable, Rows, Table, newest_of
from ..values.segment import Segment, Start
from ..values.states import NOTHING, State, add, drop
from .broker import BrokerState
from .outbox import LogDurable

COUNT_US = 1_000_000
"""The memory of a producer table is counted once in this time, if batches are committed."""


FRESH_MS = 1_000
"""Rows of delayed batches are in `Delayed.fresh` for at most this long."""


class Waiting(NamedTuple):
    """A reply that waits until the log is safe below `end`, as its ack level demands."""

    end: int
    level: int
    request: int
    offset: int
    append_time_ms: int
    is_final: bool = False  # readers surely find the batch at this offset
    due_time_ms: int | None = 0  # see `AppendAccepted`


@dataclass(slots=True, eq=False)
class Follower(State):
    """What the master knows of another member of its segment."""

    member: MemberId
    received: int = 0
    durable: int = 0
    in_step: bool = False  # its tail on this connection is known, so frames may be sent to it
    out_of_step_us: int | None = None  # since when it is not in step
    looks_from_us: int = 0  # it did not find a staged batch: until this time the master sends it all bodies


class Held(NamedTuple):
    """A message of the master that waits. `serial` is that of the read of its staged body; 0 if it needs none."""

    message: Replicate | ReplicateStaged
    serial: int
    fetched: Batch | None = None


class OwnerLook(NamedTuple):
    """A read of the record of an exclusive producer's owner. `serial` is that of a read under way.

    `epoch`: that of the batch for which it is read.
    """

    serial: int
    is_read: bool = False
    record: OwnerRecord | None = None
    epoch: int = 0


class Heard(State):
    """When the master of an open segment heard its producers, by its monotonic clock in us, and owners that it read."""

    __slots__ = ("asked", "crowded_us", "marks", "owners")

    def __init__(self, led_from_us: int) -> None:
        self.marks = [(led_from_us, 0)]  # at that time the log had that tail; the first one is the opening
        self.asked: Mapping[bytes, int] = NOTHING  # producers that it was asked for, and when; in the order of time
        self.crowded_us: int | None = None  # when it let in a writer that was one too many
        self.owners: Mapping[bytes, OwnerLook] = NOTHING  # of exclusive producers that the table does not know


class Answered(NamedTuple):
    """The producer table of a fence answer, with the length, tail and generation of the log for which it is true."""

    place: tuple[int, int, int]
    table: Table


class Delayed(State):
    """What a log knows of its delayed batches. Perhaps all of them are fired.

    Attributes:
        until_ms: None of them is due later, also of those that were cut off.
        fresh: What was appended since the server of the segment looked; None: this member does not serve it.
        appended: What was appended since the log is in memory, also what was cut off.
        pending: What waits in all segments of the partition, as far as this member, the master, knows.
    """

    __slots__ = ("appended", "fresh", "pending", "until_ms")

    def __init__(self, until_ms: int) -> None:
        self.until_ms = until_ms
        self.fresh: list[DueRow] | None = None
        self.appended = NONE_WAIT
        self.pending = NONE_WAIT


class SegmentLog(State):
    """One segment on one member."""

    __slots__ = (
        "active",
        "answered",
        "commit",
        "content_no",
        "delayed",
        "durable",
        "flushed",
        "flushed_append_ms",
        "followers",
        "heard",
        "held",
        "is_from_disk",
        "last_append_ms",
        "led_from_us",
        "opened_with",
        "partition",
        "record",
        "runs",
        "size_bytes",
        "suspect",
        "table",
        "tail",
        "tail_checksum",
        "unbroken",
        "uncertain",
        "uncertain_bytes",
        "untold_since_us",
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
        self.flushed = self.tail  # every member is known to have flushed all below; never above the commit
        self.table: ProducerTable | None = ProducerTable(
            table, newer, blocks, record.producers_max
        )  # None: it is not needed any more
        self.answered: Answered | None = None  # set when the log is fenced
        self.uncertain: Sequence[Batch] = ()  # the batches at and above `flushed`
        self.uncertain_bytes = 0
        self.active = False  # this member run opened it, and it is not fenced: it takes batches
        self.unbroken = False  # this member opened it as master, in this member run
        self.followers: tuple[Follower, ...] = ()
        self.waiting: Sequence[Waiting] = ()
        self.runs: Mapping[bytes, tuple[int, bool]] = NOTHING  # producer -> (producer run, refused)
        self.opened_with: Preparation | None = None  # the preparation that the chain record chose
        self.held: Sequence[Held] = ()  # from the master, in its order, while a staged body is looked for
        self.untold_since_us: int | None = None  # since when the slaves lack the newest `flushed`
        self.last_append_ms = 0
        self.flushed_append_ms = 0  # of the last batch below `flushed`, if this member run opened the segment
        self.led_from_us = 0  # when this member opened it as master
        self.heard: Heard | None = None  # of a master, from its first batch on
        self.content_no = 0
        self.suspect = False
        self.delayed: Delayed | None = None  # None: there is no batch that was delayed when it was stored
        self.is_from_disk = False  # this member run did not open it, so the disk may be an older copy

    @classmethod
    def recovered(
        cls,
        partition: PartitionId,
        found: RecoveredSegment,
        table: Table,
        suspect: bool,
        blocks: Mapping[bytes, IdleBlock] = NOTHING,
    ) -> SegmentLog:
        """The log as a start found it.

        Args:
            partition: Its partition.
            found: What the disk has of the segment.
            table: The producer table with which the segment was opened.
            suspect: An earlier member run ended badly. So messages that were committed without a flush may be missing.
            blocks: The idle blocks that the table names.
        """
        log = cls(partition, found.record, table, blocks, found.windows)
        # Rule `start-fence` (I6): the log stays inactive, because no member run continues a segment that an earlier one
        # opened. Without it:
        #   1. Am takes a into segment 1. As has it. Am restarts, and a is not on Am's disk.
        #   2. Am reads "segment 1 is open, and yours", and continues with tail 0. It takes b at index 0.
        #   3. As says that its log is durable below 1, and means a. Am takes that for b (I5).
        #   4. Am acknowledges b, which is on one disk only (I12).
        log.is_from_disk = True
        log.suspect = suspect and not found.record.flush and found.record.sealed_len is None
        log.tail = log.durable = found.tail
        log.tail_checksum = found.tail_checksum
        log.size_bytes = found.size_bytes
        log.commit = log.flushed = found.commit
        log.uncertain = list(found.uncommitted) or ()
        # Rule `append-time-restart` (TIME): a restarted member knows the append time of its last batch. Without it:
        #   1. a is appended at 12:00:20, by Am's clock. Both members restart.
        #   2. As answers the fence with tail 1 and no append time.
        #   3. The next master's clock says 12:00:05, and b is appended then: append time goes back.
        log.last_append_ms = found.last_append_ms
        log.delayed = Delayed(found.delayed_until_ms) if found.delayed_until_ms else None
        log.uncertain_bytes = sum(batch.size_bytes for batch in log.uncertain)
        # Rule `start-folds` (I9): a start takes up the batches that the table on the disk does not have yet. Without
        # it:
        #   1. a of P is on both disks. It is committed, and its window goes to the disk with the next batch.
        #   2. Both members restart. As answers a fence with tail 1, and with a table without a.
        #   3. P had no answer, and resends a. The next master stores it again.
        known = max((newest_of(window).offset for _, window in found.windows), default=-1)
        for batch in log.uncertain:
            if make_offset(log.no, batch.header.base_index) > known:
                log.live_table.add(batch.header)
        return log

    # ---- what it is ----

    @property
    def no(self) -> int:
        """The segment's number."""
        return self.record.no

    @property
    def start(self) -> int:
        """The first index that is kept: retention dropped all messages below it."""
        return self.record.begin.first

    @property
    def live_table(self) -> ProducerTable:
        """The producer table; only of a log that still has one. Every log that is not sealed has one."""
        assert self.table is not None, f"segment {self.no} has forgotten its producer table already"
        return self.table

    @property
    def is_in_sync(self) -> bool:
        """Whether it is sealed, and this member has all of it, with the sealed checksum."""
        record = self.record
        return (
            record.sealed_len is not None
            and self.tail == record.sealed_len
            and self.tail_checksum == record.sealed_checksum
        )

    @property
    def readable_below(self) -> int:
        """The index below which consumers may read."""
        record = self.record
        if record.quarantined:
            return 0
        if record.sealed_len is None:
            # Rule `above-commit` (I6): consumers are served only below the commit. Without it:
            #   1. A consumer is given 3:41, which only the master has.
            #   2. The master dies, and a switch seals the slave's shorter log at 41.
            #   3. One consumer group has had a message that no other one ever gets (I2).
            return self.commit
        return min(self.tail, record.sealed_len)

    def size_at(self, length: int) -> int:
        """Bytes of all batches below a batch boundary of the uncertain tail."""
        above = (batch.size_bytes for batch in self.uncertain if batch.header.base_index >= length)
        return self.size_bytes - sum(above)

    def follower(self, member: MemberId) -> Follower | None:
        """What this master knows of that member; None if the member is not one of its followers."""
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
        """The value of the checksum chain at a batch boundary of the uncertain tail."""
        if length == self.tail:
            return self.tail_checksum
        for batch in self.uncertain:
            if batch.header.base_index == length:
                return batch.header.previous_checksum
        raise AssertionError(f"{length} is no boundary in [{self.flushed}, {self.tail}] of segment {self.no}")

    def tail_copy(self, length: int) -> TailCopy:
        """The uncertain tail: the batches in [flushed, length)."""
        # Rule `tail-from-commit` (I12): it begins at `flushed`, not at the commit. Without it, on a topic that does not
        # flush before it commits:
        #   1. Every member has a in memory, so the commit passes a. Only the master's disk has a.
        #   2. A switch seals above a, and copies nothing.
        #   3. The reply at level `replicated_flushed`, or the answer to a resend, says that two disks have a.
        #   4. The master's disk is lost, and a with it.
        batches = tuple(batch for batch in self.uncertain if batch.header.end_index <= length)
        return TailCopy(self.no, self.flushed, length, batches)

    def table_as_of(self, length: int) -> Table:
        """The producer table without the batches at or above `length`, which is not below the commit.

        After a fence the table does not change, so it is kept: several switchers may ask for it.
        """
        assert length >= self.commit, (length, self.commit)
        if not self.record.fenced:
            return self.live_table.as_of(make_offset(self.no, length))
        place = (length, self.tail, self.content_no)
        if self.answered is None or self.answered.place != place:
            self.answered = Answered(place, self.live_table.as_of(make_offset(self.no, length)))
        return self.answered.table

    @property
    def has_delayed(self) -> bool:
        """Whether there is a batch that was delayed when it was stored. Perhaps all of them are fired."""
        return self.delayed is not None

    @property
    def delayed_until_ms(self) -> int:
        """No delayed batch is due later, perhaps of those that were cut off; 0: there is none."""
        return self.delayed.until_ms if self.delayed is not None else 0

    def take_fresh(self) -> Sequence[DueRow]:
        """What was appended with a due time since the last call. From now on, this member serves the segment."""
        if self.delayed is None:
            return ()
        fresh, self.delayed.fresh = self.delayed.fresh, []
        return fresh or ()

    # ---- growing ----

    def append(
        self,
        broker: BrokerState,
        header: BatchHeader,
        body: bytes,
        adopts: BatchHeader | None = None,
        *,
        may_wait: bool = False,
        spared: int = 0,
    ) -> Batch:
        """The master gives a batch its place, and takes it into the log.

        For `adopts` and `may_wait` see `PutBatch`, for `spared` see `BatchHeader`.
        """
        assert self.active
        assert self.unbroken
        append_time_ms = self._append_time_ms(broker)
        placed = place(
            header,
            segment=self.no,
            base_index=self.tail,
            append_time_ms=append_time_ms,
            previous_checksum=self.tail_checksum,
            checksum=broker.checksum,
            spared=spared,
            due_time_ms=due_time_at(header, broker.now.wall_ms),
        )
        batch = Batch(placed, body)
        self._take(broker, batch, adopts, may_wait)
        return batch

    def _append_time_ms(self, broker: BrokerState) -> int:
        """The append time of the next batch: the wall clock, but not below the last append time."""
        wall_ms = broker.now.wall_ms
        ahead_ms = self.last_append_ms - wall_ms
        # Rule `append-time-believed` (TIME): a last append time that is more than `append_time_ahead_ms_max` (2 h)
        # ahead of the clock does not count. Without it:
        #   1. One master's clock is years ahead for a moment.
        #   2. Each later segment begins at the append time of the one before.
        #   3. Append time stands still for years, and retention by age drops nothing.
        if ahead_ms > broker.config.append_time_ahead_ms_max:
            broker.out.note("append_time_set_back", self.partition, segment=self.no, ahead_ms=ahead_ms)
            return wall_ms
        # Rule `append-time-back` (TIME). Without it:
        #   1. a is appended at 12:00:20. The master's clock is set back by 15 s.
        #   2. b is appended at 12:00:06, after a.
        #   3. A search for the first message since 12:00:10 does not know on which side of a and b to continue.
        return max(self.last_append_ms, wall_ms)

    def follow(
        self, broker: BrokerState, batch: Batch, adopts: BatchHeader | None = None, *, may_wait: bool = False
    ) -> bool:
        """Take a batch that another member has. For `adopts` and `may_wait` see `PutBatch`.

        Returns:
            False if it is not the next batch here, or its checksums do not continue the log.
        """
        header = batch.header
        if header.base_index != self.tail or header.previous_checksum != self.tail_checksum:
            return False
        if header.segment != self.no or not chain_is_intact(header, broker.checksum):
            return False
        self._take(broker, batch, adopts, may_wait)
        return True

    def _take(self, broker: BrokerState, batch: Batch, adopts: BatchHeader | None, may_wait: bool) -> None:
        header = batch.header
        if self.table is not None and not self.record.copied_from:
            self.table.add(header)
            if self.record.sealed_len is not None:
                self._fold(broker, header.end_index)
        windows = self.table.take_unwritten() if self.table is not None else ()
        row = DueRow.of(header) if header.flags & FLAG_DELAYED else None
        if row is not None:
            self._note_delayed(broker, row)
        self.tail = header.end_index
        self.tail_checksum = header.checksum
        self.size_bytes += batch.size_bytes
        self.last_append_ms = header.append_time_ms
        if self.record.sealed_len is None:
            self.uncertain = add(self.uncertain, batch)
            self.uncertain_bytes += batch.size_bytes
        broker.out.write(PutBatch(self.partition, batch, self.flushed, windows, adopts, may_wait))
        broker.out.when_durable(LogDurable(self.partition, self.no, self.tail, self.content_no))

    def _note_delayed(self, broker: BrokerState, row: DueRow) -> None:
        """A delayed batch is taken: have the server of the segment look when it is due, if that is this member."""
        if self.delayed is None:
            self.delayed = Delayed(row.due_ms)
            broker.has_delayed = True
            broker.poll(0, TimerKind.DELAYED, self.partition, self.no)
        elif self.delayed.fresh is not None:
            self.delayed.fresh.append(row)
            wait_ms = min(max(row.due_ms - broker.now.wall_ms, 0), FRESH_MS)
            broker.poll(wait_ms * 1000, TimerKind.DELAYED, self.partition, self.no)
        self.delayed.until_ms = max(self.delayed.until_ms, row.due_ms)
        self.delayed.appended = self.delayed.appended.plus(Amount(row.message_count, row.size_bytes))

    def _fold(self, broker: BrokerState, committed: int) -> None:
        """All below the index is committed: the producer table may forget. Producer runs of who went are forgotten too.

        The next batch takes the changed windows to the disk (rule `start-folds`), or the seal.
        """
        if self.table is None:
            return
        for producer in self.table.fold(make_offset(self.no, committed)):
            if self.runs and self.table.last(producer) is None:  # it may be back already, above the commit
                self.runs = drop(self.runs, producer)
        if self.record.sealed_len is not None:
            return
        if self.keep_small(broker):
            broker.poll(broker.config.block_pause_us, TimerKind.BLOCKS, self.partition)

    def keep_small(self, broker: BrokerState) -> bool:
        """Make blocks of a large producer table, and count its memory; returns whether there is a new block."""
        is_new = self.live_table.make_blocks(broker.config.idle_block_rows)
        counted = broker.producer_bytes_of.get(self.partition)
        if counted is None or broker.now.mono_us - counted[1] >= COUNT_US:
            broker.count_producers(self.partition, self.live_table.memory_bytes)
        return is_new

    def _write_windows(self, broker: BrokerState, *, is_cut: bool = False) -> None:
        windows = self.table.take_unwritten() if self.table is not None else ()
        if windows or is_cut:
            broker.out.write(Truncate(self.partition, self.no, self.tail, windows))

    def advance_commit(self, broker: BrokerState, commit: int) -> bool:
        """Move the commit forward; returns whether it moved."""
        # Rule `fence-freezes-commit` (I6): not after a fence. Without it:
        #   1. Am answers the fence with commit 0.
        #   2. The slave's acknowledgement of a was already on its way, and arrives.
        #   3. Am sets commit 1 and acknowledges a.
        #   4. The switcher seals at 0. a is lost (I1).
        if self.record.fenced or commit <= self.commit:
            return False
        assert commit <= self.tail
        self.commit = commit
        self._fold(broker, commit)
        return True

    def advance_flushed(self, flushed: int) -> None:
        """Every member has flushed all messages below this index. After a fence, it does not move any more."""
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
        """Take and commit nothing more, for ever.

        The fence is written after all batches below the tail. So these are durable when the fence is.
        """
        # Rule `fence-freezes-commit` (I6), with `advance_commit`.
        #
        # Rule `fence-durable` (I6): the fence is written to the disk. Without it:
        #   1. As is fenced, restarts, and has forgotten the fence.
        #   2. As accepts a from Am.
        #   3. Am acknowledges a, above the length that the switcher seals (I1).
        self.active = False
        self.held = ()
        if not self.record.fenced:
            self.update(broker, fenced=True)

    def seal(self, broker: BrokerState, length: int, checksum: int) -> None:
        """The chain record says that the segment is sealed: truncate durably to its length, and keep the length."""
        # Rule `own-commit` (I6): a member truncates only here, to the `sealed_len` of the record. Without it:
        #   1. As restarts and truncates to the commit that it remembers, which is below the newest one.
        #   2. As is the only member that comes back, and a switcher fences it at that length.
        #   3. The messages that Am had acknowledged since are lost (I1).
        assert length >= self.commit, f"segment {self.no} sealed at {length}, below its commit {self.commit}"
        self.active = False
        self.held = ()
        is_cut = self.tail > length
        if is_cut:
            self.tail_checksum = self.checksum_at(length)
            self.size_bytes = self.size_at(length)
            self.tail = length
            self.durable = min(self.durable, length)
            if self.table is not None:
                self.table.cut(make_offset(self.no, length))
        self._fold(broker, self.tail)
        self._write_windows(broker, is_cut=is_cut)
        self.uncertain = ()
        self.uncertain_bytes = 0
        self.answered = None
        self.followers = ()
        self.runs = NOTHING
        self.commit = self.flushed = self.tail
        self.heard = None
        broker.count_producers(self.partition, 0)
        self.update(broker, fenced=True, sealed_len=length, sealed_checksum=checksum)

    def quarantine(self, broker: BrokerState) -> None:
        """Keep everything as it is, durably: this member takes, truncates and serves nothing of it any more."""
        self.active = False
        self.held = ()
        self.followers = ()
        self.runs = NOTHING
        broker.count_producers(self.partition, 0)
        self.update(broker, fenced=True, quarantined=True)

    def let_table_go(self, broker: BrokerState) -> None:
        """Forget the producer table, in memory and on the disk: no reader and no switch asks for it any more."""
        assert self.record.sealed_len is not None
        if self.table is not None and self.table.window_count:
            broker.out.write(Truncate(self.partition, self.no, self.tail, None))
        self.table = None

    def share(self, segment: Segment) -> None:
        """Keep the chain record's objects in place of equal ones, to save memory: a partition may have 10,000 logs."""
        record = self.record
        length, checksum = segment.sealed_len, segment.sealed_checksum
        if (record.switch_attempt, record.sealed_len, record.sealed_checksum) != (
            segment.switch_attempt,
            length,
            checksum,
        ):
            return
        if record.switch_attempt is not segment.switch_attempt:
            self.record = replace(
                record, switch_attempt=segment.switch_attempt, sealed_len=length, sealed_checksum=checksum
            )
        if self.is_in_sync and length is not None and checksum is not None:
            self.tail_checksum = checksum
            self.tail = length
            if self.size_bytes == segment.sealed_bytes:
                self.size_bytes = segment.sealed_bytes
            self.durable, self.commit, self.flushed = (
                length if place == length else place for place in (self.durable, self.commit, self.flushed)
            )

    def take_up(self, table: Table) -> None:
        """Take up the producer table with which the segment was opened, if it arrives later than the batches."""
        self.live_table.take_up(table)
        self.answered = None

    def trim(self, broker: BrokerState, start: Start) -> None:
        """The chain record says that retention dropped all below `start`: drop it from this disk too.

        A sealed log that ends below `start` begins at `start` from now on, like a copy that has no batches yet. The
        table with which it was opened is of no use then, and the caller forgets it (`copying.forget_table`).
        """
        assert start.first > self.start
        copied_from = self.record.copied_from
        self._fold(broker, min(start.first, self.tail))  # retention drops only what is committed
        self._write_windows(broker)
        if self.tail < start.first:
            assert self.record.sealed_len is not None, f"segment {self.no} is open, and ends below its start"
            self._begin_at(broker, start)
            copied_from = start.first
            broker.out.write(Truncate(self.partition, self.no, 0, None))
        self.update(broker, begin=start, copied_from=copied_from)
        broker.out.write(TrimLog(self.partition, self.no, start.first, start.size_bytes))

    def _begin_at(self, broker: BrokerState, start: Start) -> None:
        if self.table is not None:
            self.table = ProducerTable(limit=self.record.producers_max)
        self.tail, self.tail_checksum, self.size_bytes = start
        # Rule `begun-is-durable` (COPY): the log counts as durable only when its new beginning is on the disk.
        # Without it:
        #   1. Bm begins a copy of a stub. A stub has no message, so the copy is in sync at once, in memory.
        #   2. The server lists Bm. Bm restarts, and its disk knows nothing of the segment.
        #   3. The record names a copy that is not there (I14).
        self.durable = 0
        self.commit = self.flushed = self.tail
        self.answered = None
        self.content_no += 1
        broker.out.when_durable(LogDurable(self.partition, self.no, self.tail, self.content_no))

    def start_over(self, broker: BrokerState, table: Table, blocks: Mapping[bytes, IdleBlock] = NOTHING) -> None:
        """This copy differs from what was sealed: forget it, and begin to copy it again from an in-sync member."""
        broker.out.write(Truncate(self.partition, self.no, self.start, None))
        self._begin_at(broker, self.record.begin)
        if self.start:
            self.update(broker, copied_from=self.start)
        elif self.table is not None:
            self.table = ProducerTable(table, (), blocks, self.record.producers_max)
