"""One partition on one broker: all that is known of it, and what can be said of it without a decision.

The rules are in the modules around it, as functions of an outbox and a partition; `core/__init__` says which is where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from seriatim_api.ids import PartitionId, RunId

from .chain import Chain, Segment
from .effects import ReadChain, RouteInfo, WriteChain
from .log import CursorState, Preparation, RecoveredPartition, TailCopy
from .outbox import Outbox
from .replica import SegmentLog
from .state import NOTHING, State, drop, put

if TYPE_CHECKING:  # the parts of the state stand beside their rules, which know the partition
    from .copying import Copying
    from .groups.head import GroupHead
    from .quiescence import Quiescence
    from .repair import Repair
    from .right import Right
    from .routes import Waiter
    from .settle import Settlement
    from .switch import Switch
    from .tables import KnownTables, TableWait


class Partition(State):
    """The state of one partition on one broker."""

    __slots__ = (
        "before_tables",
        "chain",
        "copies",
        "cursors",
        "fenced_at_us",
        "gaps",
        "groups",
        "id",
        "logs",
        "preparations",
        "probe_wanted",
        "probed_at_us",
        "quiescence",
        "read_pause_us",
        "reading",
        "repairs",
        "revision",
        "rights",
        "settling",
        "switch",
        "table_waits",
        "tail_copies",
        "waiters",
        "writes",
    )

    def __init__(self, partition: PartitionId) -> None:
        self.id = partition
        self.chain: Chain | None = None
        self.revision = 0
        self.logs: dict[int, SegmentLog] = {}
        self.preparations: Mapping[tuple[int, bytes], Preparation] = NOTHING  # of attempts that are not decided
        self.tail_copies: Mapping[int, TailCopy] = NOTHING
        self.cursors: Mapping[tuple[int, str], CursorState] = NOTHING
        self.reading = False
        self.read_pause_us = 0
        self.probed_at_us: int | None = None
        self.probe_wanted: int | None = None  # once the chain is read
        self.waiters: tuple[Waiter, ...] = ()
        self.quiescence: Quiescence | None = None
        self.fenced_at_us: int | None = None
        self.gaps: Mapping[int, int] = NOTHING  # segment: the request to declare it lost
        self.switch: Switch | None = None
        self.settling: Mapping[int, Settlement] = NOTHING
        self.copies: Mapping[int, Copying] = NOTHING
        self.repairs: Mapping[int, Repair] = NOTHING
        self.before_tables: KnownTables = NOTHING
        self.table_waits: tuple[TableWait, ...] = ()
        self.groups: Mapping[str, GroupHead] = NOTHING
        self.rights: Mapping[int, Right] = NOTHING
        self.writes: Mapping[int, tuple[str, int, Chain]] = NOTHING

    def recover(self, found: RecoveredPartition, suspect_before_run: int) -> None:
        """Take up what the disk holds; of what runs before that one wrote without a flush, some may be missing."""
        for preparation in found.preparations:
            key = (preparation.segment_no, preparation.attempt)
            self.preparations = put(self.preparations, key, preparation)
        for segment in found.segments:
            chosen = self.preparations.get((segment.record.no, segment.record.attempt))
            table = chosen.table if chosen is not None else ()
            suspect = (chosen.run if chosen is not None else 0) < suspect_before_run
            self.logs[segment.record.no] = SegmentLog.recovered(self.id, segment, table, suspect)
        for tail in found.tail_copies:
            self.tail_copies = put(self.tail_copies, tail.segment_no, tail)
        for cursor in found.cursors:
            self.cursors = put(self.cursors, (cursor.segment_no, cursor.group), cursor)

    # ---- what can be said of it ----

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost by forgetting this object: no data, nothing under way."""
        return not (
            self.logs
            or self.preparations
            or self.tail_copies
            or self.switch
            or self.waiters
            or self.groups
            or self.copies
            or self.table_waits
            or self.gaps
            or self.probed_at_us is not None
            or self.probe_wanted is not None
            or self.reading
            or self.writes
        )

    @property
    def needs_chain(self) -> bool:
        """Whether somebody here waits for the chain."""
        return bool(
            self.waiters
            or self.groups
            or self.settling
            or self.copies
            or self.has_unsealed
            or (self.chain is None and self.logs)
        )

    @property
    def has_unsealed(self) -> bool:
        """Whether a segment here may still be open, as far as this member knows."""
        decided_below = self.chain.open_segment.no if self.chain is not None else 0
        return any(
            log.record.sealed_len is None and not log.record.lost and log.no >= decided_below
            for log in self.logs.values()
        )

    def open_log(self) -> SegmentLog | None:
        """The log of the last segment here."""
        if self.chain is None:
            return None
        return self.logs.get(self.chain.open_segment.no)

    def chosen_preparation(self, segment: Segment) -> Preparation | None:
        """What was prepared here under the attempt that the record names."""
        log = self.logs.get(segment.no)
        if log is not None and log.opened_with is not None:
            return log.opened_with
        return self.preparations.get((segment.no, segment.attempt))

    def route(self) -> RouteInfo | None:
        """Where to append, as far as this broker knows."""
        if self.chain is None:
            return None
        segment = self.chain.open_segment
        return RouteInfo(self.id, self.chain.epoch, segment.no, segment.master.broker, self.chain.send_chain[1:])

    # ---- asking the coordinator (`record` takes the answers) ----

    def read_chain(self, outbox: Outbox) -> None:
        """Ask the coordinator, unless that is under way."""
        if not self.reading:
            self.reading = True
            outbox.emit(ReadChain(self.id))

    def write_chain(
        self, outbox: Outbox, owner: str, chain: Chain, detail: int = 0, certificate: RunId | None = None
    ) -> None:
        """One transaction on the record, compared with the revision that was read last."""
        serial = outbox.new_serial()
        self.writes = put(self.writes, serial, (owner, detail, chain))
        outbox.emit(WriteChain(self.id, serial, chain, self.revision, certificate))

    def is_writing(self, owner: str, detail: int = 0) -> bool:
        """Whether a transaction of that owner is under way."""
        return any((kind, no) == (owner, detail) for kind, no, _ in self.writes.values())

    def end_write(self, serial: int) -> tuple[str, int, Chain]:
        """What a transaction that has ended was: its owner, the owner's detail, and the record."""
        write = self.writes[serial]
        self.writes = drop(self.writes, serial)
        return write


Partitions = dict[PartitionId, Partition]
"""All that a broker knows."""
