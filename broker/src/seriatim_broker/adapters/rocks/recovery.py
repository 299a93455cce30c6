"""Recovery: it finds what is on the disk at a start. It reads all control records once, and each segment's last batch.

The tail of a segment is the end of the last batch of its last run. The commit is the one that the member knew when it
wrote that batch. The batches between commit and tail are uncommitted, and are read with their bodies. Recovery reads
nothing else of the log. (In a sealed segment all batches are committed.)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from seriatim_api.batch import Checksum
from seriatim_api.errors import CorruptionError
from seriatim_api.ids import PartitionId

from ...core.values.log import (
    CursorState,
    HandOverState,
    LedgerRow,
    LocalSegment,
    Preparation,
    RecoveredPartition,
    RecoveredSegment,
    TailCopy,
)
from ...core.values.producers import Window
from . import delayed, keys
from .checks import verify_tail
from .codec import (
    read_block,
    read_chain,
    read_cursor,
    read_extent,
    read_handoff,
    read_preparation,
    read_run,
    read_segment,
    read_tail,
    read_window,
)
from .copies import CopyTable
from .extents import Extent, ExtentLog, ExtentRun, ExtentTable
from .floor import CURSOR, INDEX, META, Database
from .scan import last_of_run, plan, read_all


def recover_extents(engine: Database, table: ExtentTable) -> None:
    """Put the extents into the table. An extent with a record is in use, and the others are spare."""
    end = keys.extent_key(0xFFFFFFFF)
    with engine.cursor(INDEX, end) as cursor:
        opened = {keys.split_extent_key(key): read_extent(value) for key, value in cursor.forward(b"")}
    for number in engine.extents:
        if number in opened:
            extent = table.extents[number] = Extent(number, opened[number])
            extent.size_bytes = engine.extent_size_bytes(number)
        else:
            table.spares.append(number)
    table.active = max(table.extents.values(), key=lambda extent: extent.opened_at_ms, default=None)


class Recovery:
    """One pass over all control records. It fills the tables of the storage."""

    def __init__(self, engine: Database, checksum: Checksum, table: ExtentTable, copies: CopyTable) -> None:
        self._engine = engine
        self._checksum = checksum
        self._table = table
        self._copies = copies
        self._delayed: dict[tuple[int, int], int] = {}  # when the last delayed batch of a log is due

    def partitions(self) -> Iterator[RecoveredPartition]:
        """All partitions, ascending.

        Raises:
            CorruptionError: A record or batch does not match its checksum, or is missing.
        """
        self._delayed = dict(delayed.places(self._engine))
        for partition, rows in _merged(self._rows(META), self._rows(INDEX), self._rows(CURSOR)):
            yield self._partition(PartitionId(partition), rows)
        for partition, segment in self._delayed:
            log = self._table.log(partition, segment)
            assert log is not None, (partition, segment, "rows of delayed batches without a log")
            log.delayed_ticket = 0

    def _rows(self, family: str) -> Iterator[tuple[int, str, bytes, bytes]]:
        begin = keys.partition_range(1)[0]
        with self._engine.cursor(family) as cursor:
            for key, value in cursor.forward(begin):
                yield keys.partition_of(key), family, key, value

    def _partition(self, partition: PartitionId, rows: list[tuple[str, bytes, bytes]]) -> RecoveredPartition:
        records: dict[int, LocalSegment] = {}
        windows: dict[int, list[tuple[bytes, Window]]] = {}
        runs: dict[int, list[ExtentRun]] = {}
        preparations: list[Preparation] = []
        tails: list[TailCopy] = []
        cursors: list[CursorState] = []
        ledger_rows: list[LedgerRow] = []
        handoffs: list[HandOverState] = []
        blocks: list[bytes] = []
        chain: dict[int, bytes] = {}
        for family, key, value in rows:
            if family == INDEX:
                _partition, segment, start = keys.split_batch_key(key)
                runs.setdefault(segment, []).append(read_run(start, value))
                continue
            if family == CURSOR:
                row = keys.split_ledger_key(key)
                if row is None:
                    _partition, segment, group = keys.split_cursor_key(key)
                    cursors.append(read_cursor(segment, group, value))
                elif row[2] is None:
                    handoffs.append(read_handoff(row[0], row[1], value))
                else:
                    ledger_rows.append(LedgerRow(row[0], row[1], row[2], value))
                continue
            _partition, kind, segment, rest = keys.split_meta_key(key)
            if kind == keys.SEGMENT:
                records[segment] = read_segment(segment, value)
            elif kind == keys.WINDOW:
                windows.setdefault(segment, []).append((rest, read_window(value)))
            elif kind == keys.PREPARATION:
                preparation = read_preparation(segment, rest, value)
                self._take_copy(partition, key, preparation.tail)
                preparations.append(preparation)
            elif kind == keys.BLOCK:
                blocks.append(read_block(rest, value))
            elif kind == keys.TAIL:
                tail = read_tail(value)
                self._take_copy(partition, key, tail)
                tails.append(tail)
            elif kind == keys.CHAIN:
                chain[segment] = value
            else:
                raise CorruptionError(f"partition id {partition}: a record of unknown kind {kind!r}")
        segments = tuple(
            self._segment(partition, record, tuple(runs.pop(no, ())), tuple(windows.pop(no, ())))
            for no, record in sorted(records.items())
        )
        for no, orphaned in runs.items():
            self._restore(partition, no, tuple(orphaned))
        kept = read_chain(chain[0], chain) if 0 in chain else None
        return RecoveredPartition(
            partition, segments, tuple(preparations), tuple(tails), tuple(cursors), tuple(blocks), kept,
            tuple(ledger_rows), tuple(handoffs),
        )  # fmt: skip

    def _segment(
        self,
        partition: PartitionId,
        record: LocalSegment,
        runs: tuple[ExtentRun, ...],
        windows: tuple[tuple[bytes, Window], ...],
    ) -> RecoveredSegment:
        begin = record.begin
        if not runs:
            if begin.first:
                self._table.trim(self._table.ensure_log(partition, record.no), begin.first, begin.size_bytes)
            return RecoveredSegment(
                record, begin.first, begin.checksum, begin.first, (), windows, size_bytes=begin.size_bytes
            )
        log, checksum, commit, last_append_ms = self._restore(partition, record.no, runs)
        delayed_until_ms = self._delayed.get((partition, record.no), 0)
        if record.sealed_len is not None:
            return RecoveredSegment(
                record, log.tail, checksum, log.tail, (), windows, last_append_ms, log.position, delayed_until_ms
            )
        commit = max(commit, begin.first)  # every member had flushed the messages that retention dropped
        stretches = plan(log, commit, log.tail)
        stored = read_all(self._engine, self._checksum, partition, record.no, stretches)
        batches = tuple(one.batch for one in stored)
        return RecoveredSegment(
            record, log.tail, checksum, commit, batches, windows, last_append_ms, log.position, delayed_until_ms
        )

    def _restore(self, partition: int, segment: int, runs: tuple[ExtentRun, ...]) -> tuple[ExtentLog, int, int, int]:
        """A segment's log, its checksum at the tail, the commit that was known there, and its last append time."""
        for run in runs:
            for extent in run.extents:
                if extent not in self._table.extents:
                    raise CorruptionError(
                        f"partition id {partition} segment {segment}: its batches from {run.start} on are in extent "
                        f"{extent}, which is missing"
                    )
        last = last_of_run(self._engine, self._checksum, partition, segment, runs[-1])
        header = last.batch.header
        log = self._table.ensure_log(partition, segment)
        self._table.restore(log, runs, header.end_index, last.position + last.batch.size_bytes)
        return log, header.checksum, min(last.commit, header.end_index), header.append_time_ms

    def _take_copy(self, partition: int, key: bytes, tail: TailCopy | None) -> None:
        if tail is not None:
            verify_tail(tail, self._checksum)
        self._copies.put(partition, key, tail, 0)


def _merged(
    *sources: Iterator[tuple[int, str, bytes, bytes]],
) -> Iterator[tuple[int, list[tuple[str, bytes, bytes]]]]:
    """The rows of all sources by partition. Each source must be ascending by partition."""
    grouped = [groupby(source, key=itemgetter(0)) for source in sources]
    firsts = [next(group, None) for group in grouped]
    while any(first is not None for first in firsts):
        partition = min(first[0] for first in firsts if first is not None)
        rows: list[tuple[str, bytes, bytes]] = []
        for place, first in enumerate(firsts):
            if first is not None and first[0] == partition:
                rows.extend(row[1:] for row in first[1])
                firsts[place] = next(grouped[place], None)
        yield partition, rows
