"""One partition on one broker: everything that the broker knows of it, and questions that need no decision.

The rules are functions of a broker and a partition, in the other rooms (packages) of the core; `core/__init__` lists
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from seriatim_api.ids import PartitionId, RunId

from ..values.chain import CHANGED_AT_ONCE_MAX, Chain
from ..values.delayed import is_ledger_name
from ..values.effects import ReadChain, RouteInfo, WriteChain
from ..values.events import SurveyPartition, WriteOutcome
from ..values.kinds import TimerKind, WriteOwner
from ..values.log import (
    CursorState,
    HandOverState,
    LedgerChange,
    LedgerVersion,
    Preparation,
    RecoveredPartition,
    SafeCursor,
    TailCopy,
)
from ..values.producers import NO_TABLE, IdleBlock
from ..values.segment import Segment
from ..values.states import State, drop, nothing, put
from .broker import BrokerState
from .consumers import ConsumerGroup, Handing, RangeWait, Right
from .copies import Copying, KnownTables, Repair, Settlement, TableWait
from .delayed import Firing
from .dispatcher import Given
from .segment_log import SegmentLog
from .switching import Asked, Awaiting, FenceTurn, Offer, Probed, Switch, SwitchPhase, Waiter
from .writing import Carrying, Quiescence


class Step(NamedTuple):
    """How the record changed from one chain epoch to a later one, by numbers of segments."""

    before: int
    changed: tuple[int, ...]
    gone: tuple[int, ...]


STEPS_KEPT = 16
"""How many chain epochs an update may reach back. A member that has missed more of them reads the coordinator."""


class Floor(NamedTuple):
    """The lowest chain epoch and open segment that a linearizable read may give.

    A lower number proves that the coordinator lost decisions.

    Attributes:
        epoch: The chain epoch.
        open_no: The number of the open segment.
        asked_again: While the chain is read: a part of the core asked for the record after the read had begun.
    """

    epoch: int
    open_no: int
    asked_again: bool = False

    @classmethod
    def of(cls, chain: Chain) -> Floor:
        """The floor of that record."""
        return cls(chain.epoch, chain.open_segment.no)

    def or_above(self, other: Floor) -> Floor:
        """The higher number of each."""
        return Floor(max(self.epoch, other.epoch), max(self.open_no, other.open_no))


NO_FLOOR: Final = Floor(0, 0)


class Pace(NamedTuple):
    """How soon this broker may change sealed segments again (`Partition.may_amend`), and how many at once.

    Attributes:
        from_us: The next such transaction is not sent before this time.
        pause_us: The last pause after one that failed; 0: the last one was carried out.
        segments_max: The next one changes at most this many segments.
    """

    from_us: int = 0
    pause_us: int = 0
    segments_max: int = CHANGED_AT_ONCE_MAX


FULL_PACE: Final = Pace()


@dataclass(slots=True, eq=False)
class Partition(State):
    """The state of one partition on one broker."""

    id: PartitionId
    chain: Chain | None = None
    revision: int = 0
    awaited: Floor = NO_FLOOR  # another member said that a record as new as this exists
    steps: tuple[Step, ...] = ()  # the newest changes of a long record, oldest first
    logs: dict[int, SegmentLog] = field(default_factory=dict)
    unsealed: tuple[int, ...] = ()  # numbers of logs, among them all that are not sealed
    blocks: Mapping[bytes, IdleBlock] = field(default_factory=nothing)  # on the disk, or in a write of this step
    blocks_found: tuple[bytes, ...] = ()  # found at the start: kept for `block_keep_us` without a name
    offer: Offer | None = None
    awaiting: tuple[Awaiting, ...] = ()
    asked: Asked | None = None
    # of undecided switch attempts
    preparations: Mapping[tuple[int, bytes], Preparation] = field(default_factory=nothing)
    # by segment; copies that touch are joined
    tail_copies: Mapping[int, tuple[TailCopy, ...]] = field(default_factory=nothing)
    # each consumer group's newest place in its newest epoch
    cursors: Mapping[str, CursorState] = field(default_factory=nothing)
    # of consumer groups that this member serves, or has served: what every eligible member has on its disk
    safe_cursors: Mapping[str, SafeCursor] = field(default_factory=nothing)
    # the rows beside each of these control records, by name; none of an exclusive consumer group
    ledger_rows: Mapping[str, dict[bytes, bytes]] = field(default_factory=nothing)
    # the rows that a server sent last, by consumer group
    ledger_versions: Mapping[str, LedgerVersion] = field(default_factory=nothing)
    # the newest revision of the cursors of consumer groups that were forgotten here; 0: none was
    left_revision: int = 0
    handoffs: Mapping[str, HandOverState] = field(default_factory=nothing)  # the newest one of each consumer group
    # handoffs that other members must keep, by consumer group, and the members that have not said so
    handing: Mapping[str, Handing] = field(default_factory=nothing)
    kept: Chain | None = None  # the record as it is on the disk
    read_floor: Floor | None = None  # while the chain is read: the newest record known or reported at the begin
    read_epoch: int | None = None  # of the first record that this member run read in the coordinator
    read_pause_us: int = 0
    probed: Probed | None = None
    probe_wanted: int | None = None  # the segment to probe when the chain is read
    waiters: tuple[Waiter, ...] = ()
    quiescence: Quiescence | None = None
    fenced_at_us: int | None = None
    fence_turn: FenceTurn | None = None
    gaps: Mapping[int, int] = field(default_factory=nothing)  # segment -> the request to declare it lost
    switch: Switch | None = None
    settling: Mapping[int, Settlement] = field(default_factory=nothing)
    copies: Mapping[int, Copying] = field(default_factory=nothing)
    repairs: Mapping[int, Repair] = field(default_factory=nothing)
    before_tables: KnownTables = field(default_factory=nothing)
    table_waits: tuple[TableWait, ...] = ()
    consumer_groups: Mapping[str, ConsumerGroup] = field(default_factory=nothing)
    # of consumer groups that were served here, even if no longer
    given: Mapping[str, Given] = field(default_factory=nothing)
    rights: Mapping[int, Right] = field(default_factory=nothing)
    firing: Mapping[int, Firing] = field(default_factory=nothing)  # segments with delayed messages, served here
    # that this member wants to take -> server epoch of the other
    wanted_rights: Mapping[int, int] = field(default_factory=nothing)
    pace: Pace = FULL_PACE
    range_waits: Mapping[int, RangeWait] = field(default_factory=nothing)  # by request
    surveys: tuple[SurveyPartition, ...] = ()
    carryings: Mapping[tuple[bytes, int], Carrying] = field(default_factory=nothing)  # by producer and sequence
    writes: Mapping[int, tuple[WriteOwner, int, Chain]] = field(default_factory=nothing)

    def recover(self, found: RecoveredPartition, suspect_before_run: int) -> None:
        """Take up everything that the disk has of the partition, at the start.

        Args:
            found: What the disk has.
            suspect_before_run: A number of a member run. Unflushed writes of runs with lower numbers may be missing.
        """
        for block in map(IdleBlock, found.blocks):
            self.blocks = put(self.blocks, block.id, block)
        self.blocks_found = tuple(self.blocks)
        for preparation in found.preparations:
            key = (preparation.segment_no, preparation.switch_attempt)
            self.preparations = put(self.preparations, key, preparation)
        for segment in found.segments:
            chosen = self.preparations.get((segment.record.no, segment.record.switch_attempt))
            table = chosen.table if chosen is not None else NO_TABLE
            suspect = (chosen.member_run if chosen is not None else 0) < suspect_before_run
            self.add_log(SegmentLog.recovered(self.id, segment, table, suspect, self.blocks))
        for tail in found.tail_copies:
            row = self.tail_copies.get(tail.segment_no, ())
            self.tail_copies = put(self.tail_copies, tail.segment_no, (*row, tail))
        for cursor in found.cursors:
            self.keep_cursor(cursor)
        for ledger_row in found.ledger_rows:
            if self.cursor_in(ledger_row.segment_no, ledger_row.consumer_group) is not None:
                rows = self.ledger_rows.get(ledger_row.consumer_group, {})
                rows[ledger_row.name] = ledger_row.value
                self.ledger_rows = put(self.ledger_rows, ledger_row.consumer_group, rows)
        for handoff in found.handoffs:
            self.keep_handoff(handoff)
        self.kept = found.chain

    # ---- what can be said of it ----

    @property
    def name(self) -> str:
        """What the partition is called, for humans; its id if this broker has no record of it."""
        known = self.chain or self.kept
        return known.name if known is not None else f"partition id {self.id}"

    @property
    def needs_chain(self) -> bool:
        """Whether a part of the core waits for the chain record."""
        return bool(
            self.waiters
            or self.consumer_groups
            or self.settling
            or self.copies
            or self.wanted_rights
            or self.range_waits
            or self.surveys
            or self.has_unsealed
            or self.awaits_newer(self.chain)
            or (self.chain is None and (self.logs or self.tail_copies))
        )

    def take_up(self, chain: Chain, revision: int) -> None:
        """From now on this is the newest record, also for what is served here."""
        self.chain, self.revision = chain, revision
        for consumer_group in self.consumer_groups.values():
            served = consumer_group.served
            if served is not None:
                served.segment = chain.segment(served.segment.no) or served.segment

    def awaits_newer(self, chain: Chain | None) -> bool:
        """Whether a newer record than this one is known to exist."""
        return self.awaited.epoch > (chain.epoch if chain is not None else 0)

    def is_told_of_later(self, segment_no: int) -> bool:
        """Whether a later segment than this one was opened, by a record that was reported and is not known here yet."""
        return self.awaited.open_no > segment_no and self.awaits_newer(self.chain)

    @property
    def has_unsealed(self) -> bool:
        """Whether a segment on this member may still be open, as far as this member knows."""
        decided_below = self.chain.open_segment.no if self.chain is not None else 0
        return any(log.no >= decided_below for log in self.unsealed_logs())

    def keep_cursor(self, cursor: CursorState, change: LedgerChange | None = None) -> CursorState | None:
        """Take up a control record and a change of its rows; only the newest one of each consumer group is kept.

        A cursor only moves forward within a group epoch (I11), and a new group epoch begins from the coordinator's
        record. So only the newest place in the newest group epoch is ever read again.

        Returns:
            The record that this one replaces, if it is of another segment; its copy on the disk can go.
        """
        known = self.cursors.get(cursor.consumer_group)
        left = known if known is not None and known.segment_no != cursor.segment_no else None
        if left is not None and (left.group_epoch, left.segment_no) > (cursor.group_epoch, cursor.segment_no):
            return None
        if known is None or (known.segment_no, known.group_epoch) != (cursor.segment_no, cursor.group_epoch):
            self.ledger_rows = drop(self.ledger_rows, cursor.consumer_group)  # they were beside the record before
        if change is not None:
            rows = {} if change.is_full else self.ledger_rows.get(cursor.consumer_group, {})
            rows.update(change.puts)
            for name in change.deletes:
                rows.pop(name, None)
            self.ledger_rows = (
                put(self.ledger_rows, cursor.consumer_group, rows)
                if rows
                else drop(self.ledger_rows, cursor.consumer_group)
            )
        self.cursors = put(self.cursors, cursor.consumer_group, cursor)
        return left

    def forget_cursor(self, name: str) -> None:
        """Forget a control record, and the rows beside it."""
        self.cursors = drop(self.cursors, name)
        self.safe_cursors = drop(self.safe_cursors, name)
        self.ledger_rows = drop(self.ledger_rows, name)
        self.ledger_versions = drop(self.ledger_versions, name)

    @property
    def group_cursors(self) -> tuple[CursorState, ...]:
        """The control records of consumer groups, without delay ledgers."""
        return tuple(cursor for name, cursor in self.cursors.items() if not is_ledger_name(name))

    def keep_handoff(self, handoff: HandOverState) -> bool:
        """Take up a handoff; only the newest one of each consumer group is kept. Returns whether this one is."""
        known = self.handoffs.get(handoff.consumer_group)
        if known is not None and (known.group_epoch, known.segment_no, known.id) > (
            handoff.group_epoch,
            handoff.segment_no,
            handoff.id,
        ):
            return False
        self.handoffs = put(self.handoffs, handoff.consumer_group, handoff)
        return True

    def cursor_in(self, segment_no: int, group: str) -> CursorState | None:
        """The consumer group's control record in that segment, if this disk has one."""
        known = self.cursors.get(group)
        return known if known is not None and known.segment_no == segment_no else None

    def add_log(self, log: SegmentLog) -> None:
        """Add the log of a segment."""
        if log.record.sealed_len is None and not (log.record.lost or log.record.quarantined):
            self.unsealed = _shared((*(known.no for known in self.unsealed_logs()), log.no))
        self.logs[log.no] = log

    def unsealed_logs(self) -> list[SegmentLog]:
        """The logs that this member does not know to be sealed or lost, without quarantined ones.

        They are one or two of perhaps thousands.
        """
        logs = [log for no in self.unsealed if (log := self.logs.get(no)) is not None]
        unsealed = [
            log for log in logs if log.record.sealed_len is None and not (log.record.lost or log.record.quarantined)
        ]
        if len(unsealed) < len(self.unsealed):
            self.unsealed = tuple(log.no for log in unsealed)
        return unsealed

    @property
    def reading(self) -> bool:
        """Whether the record is being read."""
        return self.read_floor is not None

    @property
    def decided(self) -> Chain | None:
        """The newest chain record that this broker knows, from this member run or from its disk."""
        return self.chain if self.chain is not None else self.kept

    def open_log(self) -> SegmentLog | None:
        """The log of the open segment, if this member has it and knows the chain."""
        if self.chain is None:
            return None
        return self.logs.get(self.chain.open_segment.no)

    def chosen_preparation(self, segment: Segment) -> Preparation | None:
        """What this member prepared under the switch attempt that the chain record names; None if it did not."""
        # Rule `attempt-id` (I1): and nothing that it prepared under another one. `preparing.on_prepare` has the story.
        log = self.logs.get(segment.no)
        if log is not None and log.opened_with is not None:
            return log.opened_with
        return self.preparations.get((segment.no, segment.switch_attempt))

    def route(self) -> RouteInfo | None:
        """Where clients append, as far as this broker knows."""
        if self.chain is None:
            return None
        segment = self.chain.open_segment
        return RouteInfo(self.id, self.chain.epoch, segment.no, segment.master.broker, self.chain.send_chain[1:])

    # ---- asking the coordinator (`record` takes the answers) ----

    def write_wait_us(self, broker: BrokerState) -> int:
        """How long the partition must wait before its next write to the coordinator, in microseconds; 0: it may write.

        While the coordinator refuses every write, or has lost decisions, the time is not known. Then this is
        `refused_us_max` (10 s), and the event `WritesRefused`, or the end of `lost_decisions`, ends the wait before.
        """
        # Rule `refused-at-once` (LIMIT): after a refused write the partition waits, twice as long each time.
        # Without it:
        #   1. etcd's quota is used up: it answers reads and refuses writes.
        #   2. A switch fences, prepares, has its transaction refused, and begins again at once.
        #   3. Each partition does that many times a second, and members and coordinator do nothing else (I13).
        if broker.coordinator.refuses or broker.coordinator.behind:
            return broker.config.refused_us_max
        _, until_us = broker.coordinator.refused.get(self.id, (0, 0))
        return max(until_us - broker.now.mono_us, 0)

    def note_write(self, broker: BrokerState, outcome: WriteOutcome) -> None:
        """Note the outcome of a write: each refusal in a row doubles the pause, up to `refused_us_max` (10 s)."""
        if outcome is WriteOutcome.REFUSED:
            config = broker.config
            pause_us, _ = broker.coordinator.refused.get(self.id, (0, 0))
            pause_us = min(max(2 * pause_us, config.refused_us), config.refused_us_max)
            broker.coordinator.refused[self.id] = (pause_us, broker.now.mono_us + pause_us)
        else:
            broker.coordinator.refused.pop(self.id, None)

    def read_chain(self, broker: BrokerState) -> None:
        """Read the chain record in the coordinator, unless a read is under way.

        That one may have begun before the partition was made. So if it finds nothing, the record is read again before
        anything is refused. Without it: 1. A member is prepared for the first segment of a new topic, and reads the
        chain. 2. The topic is made, and a client asks this member for it. 3. The read finds nothing, and the client is
        told that there is no such partition.
        """
        if self.read_floor is not None:
            self.read_floor = self.read_floor._replace(asked_again=True)
        else:
            known = self.decided
            self.read_floor = Floor.of(known).or_above(self.awaited) if known is not None else NO_FLOOR
            is_known = known is not None or self.awaited.epoch > 0 or bool(self.preparations or self.tail_copies)
            broker.out.emit(ReadChain(self.id, is_known))

    def write_chain(
        self,
        broker: BrokerState,
        owner: WriteOwner,
        chain: Chain,
        detail: int = 0,
        certificate: RunId | None = None,
        cursors_revision: int = 0,
    ) -> None:
        """Write the chain record in one transaction, which compares revision and chain epoch of the known record.

        Args:
            broker: This broker.
            owner: The part of the core that the outcome is reported to.
            chain: The new record.
            detail: Of the owner, for example a segment number.
            certificate: A death certificate that the transaction compares.
            cursors_revision: If not 0, the transaction compares that no cursor of the partition changed since then.
        """
        serial = broker.new_serial()
        self.writes = put(self.writes, serial, (owner, detail, chain))
        broker.out.emit(WriteChain(self.id, serial, chain, self.revision, certificate, cursors_revision))

    def is_writing(self, owner: WriteOwner, detail: int = 0) -> bool:
        """Whether a transaction of that owner is under way: of this detail, or of several segments (detail 0)."""
        return any(kind is owner and no in (0, detail) for kind, no, _ in self.writes.values())

    def may_amend(self, broker: BrokerState) -> bool:
        """Whether this broker may change sealed segments now. If not, `record.amend` is called when it may.

        Rule `amends-together` (I13, LIMIT): such a change waits while a write of this broker is under way, or the read
        after a failed one, and the next transaction has all changes that wait. Without it:
          1. A disk with a thousand segments of this partition was replaced. 64 copies become complete here.
          2. Each writes the record as it knows it. One write is carried out, and the other 63 conflict.
          3. All others read the record and write again, and so do the servers of these segments.
          4. A switcher's transaction conflicts with each of them as well, so producers wait.

        Between two such transactions there is a pause, so that a switcher on another broker gets its turn.
        """
        return self.can_amend(broker) and broker.now.mono_us >= self.pace.from_us

    def can_amend(self, broker: BrokerState) -> bool:
        """`may_amend`, but for the pause between two such transactions."""
        # Rule `switch-goes-first` (I13): nor while a switch of this broker is under way. Without it:
        #   1. A broker dies. Its last segment must be sealed, and its rights and copies of old segments are missed.
        #   2. This broker has fenced the last segment, and prepares the next one. It also takes a right.
        #   3. The transaction of the switch conflicts with its own, and the switch begins again: producers wait longer.
        # In a pause of a switch this continues, because a switch may wait for hours for a member.
        is_switching = self.switch is not None and self.switch.phase is not SwitchPhase.PAUSED
        reads_after_failure = self.reading and self.id in broker.coordinator.unanswered
        return not (self.writes or is_switching or reads_after_failure or self.write_wait_us(broker))

    def amend_soon(self, broker: BrokerState) -> None:
        """Have `record.amend` called as soon as nothing that is known now is in its way."""
        if self.copies or self.wanted_rights or self.rights:
            wait_us = max(self.pace.from_us - broker.now.mono_us, self.write_wait_us(broker), 0)
            broker.poll(wait_us, TimerKind.AMEND, self.id)

    def note_amendment(self, broker: BrokerState, outcome: WriteOutcome) -> None:
        """A transaction that changes sealed segments ended: make the pause, longer after each one that failed.

        A refused one may have been too large, so one change alone is tried next. After each success twice as many go.
        """
        config = broker.config
        pause_us, segments_max = 0, min(2 * self.pace.segments_max, CHANGED_AT_ONCE_MAX)
        if outcome is not WriteOutcome.DONE:
            pause_us = min(max(2 * self.pace.pause_us, config.retry_us), config.retry_us_max)
            segments_max = 1 if outcome is WriteOutcome.REFUSED else self.pace.segments_max
        spread_us = broker.checksum(0, broker.new_id()) % (config.amend_spread_us + 1)
        from_us = broker.now.mono_us + (pause_us or config.amend_pause_us) + spread_us
        self.pace = Pace(from_us, pause_us, segments_max)

    def end_write(self, broker: BrokerState, serial: int, outcome: WriteOutcome) -> tuple[WriteOwner, int, Chain]:
        """Forget a transaction that has ended; returns its owner, the owner's detail, and the record."""
        write = self.writes[serial]
        self.writes = drop(self.writes, serial)
        if outcome is WriteOutcome.DONE:
            broker.coordinator.unanswered.pop(self.id, None)
        else:
            broker.coordinator.unanswered[self.id] = write[2]
        return write

    def may_have_written(self, broker: BrokerState, chain: Chain) -> bool:
        """Whether this may be the record of a transaction of this broker whose success was not reported to it."""
        sent = [written for _, _, written in self.writes.values()]
        ended = broker.coordinator.unanswered.get(self.id)
        sent += [ended] if ended is not None else []
        return any(written.epoch == chain.epoch and written.segments == chain.segments for written in sent)


@lru_cache(64)
def _shared(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """One object for all equal ones, to save memory: thousands of partitions have one segment that is not sealed."""
    return numbers


Partitions = dict[PartitionId, Partition]
"""All partitions that a broker knows."""
