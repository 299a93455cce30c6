"""Rows of delayed batches: what is due next, and which delayed batch has an index.

Each delayed batch of a log has two rows in the column family `delay` (58 bytes with their keys, 66 if it was moved):

    by due time   due time, first index -> messages, bytes, and where the first message was stored first if it was moved
    by index      first index -> due time

A batch that a broker made of delayed messages has a row, too (50 bytes). So a server whose ledger is lost can learn
which volleys are stored:

    volley           first index -> producer, epoch, whether it is a list, whether it was moved, origins

Rule `rows-with-log` (I12): they are written with the batch, and deleted with it, in the same group. Without it:

1. Am writes the delayed batch d and its row in two groups. It loses power between the two.
2. Am starts again, and has d without a row. d is committed and acknowledged, and never becomes due.

A row by due time counts only if the row by index says the same due time. So a cut reads nothing: it deletes a range of
rows by index, and what stays by due time does not count any more. It goes with the segment. Retention reads nothing
either: no row below the log's first index counts. Housekeeping deletes the rows of what retention dropped later, in
slices (`DelayedRows.sweep`), except those of volleys, which are one range. All of them know whether the log has rows at
all (`ExtentLog.delayed_ticket`), so other logs cost nothing.

Rows are a function of the log, so a start makes none. A directory without this column family was written before brokers
stored delayed batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

import structlog
from seriatim_api.batch import FLAG_CONTROL, FLAG_DELAYED, FLAG_FIRED
from seriatim_api.errors import CorruptionError, SeriatimError

from ...core.values.log import Batch, DueRow, StoredVolley
from . import codec, keys
from .extents import ExtentLog, ExtentTable
from .floor import DELAY, DELETE, DELETE_RANGE, PUT, Database
from .reader import Reader
from .writer import WriteGroup, Writer

_log = structlog.get_logger(__name__)

_DUE_MS_MAX: Final = (1 << 63) - 1

SWEPT_COUNT_MAX: Final = 1_000
"""Batches whose rows housekeeping deletes in one write."""


class DelayedRows:
    """Changes of the rows. It runs on the event loop."""

    def __init__(self, engine: Database, table: ExtentTable, writer: Writer, reader: Reader) -> None:
        self._engine = engine
        self._table = table
        self._writer = writer
        self._reader = reader
        self._trimmed: dict[tuple[int, int], None] = {}

    def put(self, group: WriteGroup, log: ExtentLog, batch: Batch) -> None:
        """Write the rows of a batch, if it is delayed, or made of delayed ones."""
        header = batch.header
        if not header.flags & (FLAG_DELAYED | FLAG_FIRED | FLAG_CONTROL):
            return
        place = (header.partition, header.segment)
        row, volley = DueRow.of(header), StoredVolley.of(batch)
        if row is not None:
            self._put(group, keys.due_key(*place, row.due_ms, row.index), codec.write_sizes(row))
            self._put(group, keys.row_key(keys.DELAYED, *place, row.index), codec.write_due(row.due_ms))
        if volley is not None:
            self._put(group, keys.row_key(keys.VOLLEY, *place, volley.index), codec.write_stored_volley(volley))
        log.delayed_ticket = self._writer.ticket + 1

    def cut(self, group: WriteGroup, partition: int, segment: int, log: ExtentLog, length: int) -> None:
        """Delete the rows of a log from an index on. Call it before the log is cut."""
        if length <= log.first_index:
            self.drop(group, partition, segment, log)
        else:
            for kind in (keys.DELAYED, keys.VOLLEY):
                self._delete(group, log, keys.row_range(kind, partition, segment, length))

    def trim(self, group: WriteGroup, partition: int, segment: int, log: ExtentLog) -> None:
        """Delete the rows of what retention dropped from a log. Call it after the log is trimmed."""
        if log.delayed_ticket is not None:
            volleys = (keys.VOLLEY, partition, segment)
            self._delete(group, log, (keys.row_key(*volleys, 0), keys.row_key(*volleys, log.first_index)))
            self._trimmed[partition, segment] = None

    def drop(self, group: WriteGroup, partition: int, segment: int, log: ExtentLog) -> None:
        """Delete all rows of a log."""
        self._delete(group, log, keys.place_range(partition, segment))

    def _put(self, group: WriteGroup, key: bytes, value: bytes) -> None:
        group.add((PUT, self._engine.family(DELAY), key, value), len(key) + len(value))

    def _delete(self, group: WriteGroup, log: ExtentLog, key_range: tuple[bytes, bytes]) -> None:
        if log.delayed_ticket is not None:
            log.delayed_ticket = self._writer.ticket + 1
            group.add((DELETE_RANGE, self._engine.family(DELAY), *key_range), sum(map(len, key_range)))

    async def sweep(self) -> bool:
        """Delete the rows of a slice of dropped batches. Returns whether there may be more."""
        place = next(iter(self._trimmed), None)
        if place is None:
            return False
        try:
            found = await self._reader.rows(*place, rows_below, SWEPT_COUNT_MAX)
        except SeriatimError as error:
            del self._trimmed[place]  # until retention drops more of this log
            _log.error("rows of delayed batches cannot be deleted", partition=place[0], error=str(error))
            return bool(self._trimmed)
        # Between the end of the read and this line nothing was dropped or written, so the rows are still those.
        if len(found) < SWEPT_COUNT_MAX:
            del self._trimmed[place]
        if found:
            self._writer.submit(lambda group: self._forget(group, place, found))
            await self._writer.drain()
        return bool(self._trimmed)

    def _forget(self, group: WriteGroup, place: tuple[int, int], rows: list[tuple[int, int]]) -> None:
        """Delete the rows of dropped batches, whose due times and indexes these are. They ascend by index.

        By due time they are deleted one by one: a batch that is appended meanwhile may be due between two of them.
        """
        family = self._engine.family(DELAY)
        for row in rows:
            key = keys.due_key(*place, *row)
            group.add((DELETE, family, key, None), len(key))
        below = keys.row_key(keys.DELAYED, *place, rows[-1][1] + 1)
        group.add((DELETE_RANGE, family, keys.row_key(keys.DELAYED, *place, 0), below), 2 * len(below))


# ---- in worker threads ----------------------------------------------------------------------------------


def due_rows(
    engine: Database,
    partition: int,
    segment: int,
    first_index: int,
    after: tuple[int, int],
    until_ms: int,
    count_max: int,
) -> list[DueRow]:
    """The rows that are due until a time, of batches from `first_index` on.

    Raises:
        CorruptionError: A row cannot be read.
    """
    found: list[DueRow] = []
    begin = keys.due_key(partition, segment, *after) + b"\0"
    with engine.cursor(DELAY, keys.due_key(partition, segment, until_ms + 1, 0)) as cursor:
        for key, value in cursor.forward(begin):
            due_ms, index = keys.split_due_key(key)
            if index < first_index:
                continue
            of_index = engine.get(DELAY, keys.row_key(keys.DELAYED, partition, segment, index))
            if of_index is None or codec.read_due(of_index) != due_ms:
                continue
            found.append(codec.read_delayed(due_ms, index, value))
            if len(found) >= count_max:
                break
    return found


def rows_from(
    engine: Database, partition: int, segment: int, first_index: int, from_index: int, count_max: int
) -> list[DueRow]:
    """The rows by index, from the batch on that contains `from_index`, of batches from `first_index` on.

    Raises:
        CorruptionError: A row cannot be read, or is missing.
    """
    begin, end = keys.row_range(keys.DELAYED, partition, segment, max(from_index, first_index))
    found: list[DueRow] = []
    with engine.cursor(DELAY, end) as cursor:
        before = cursor.at_or_before(begin)
        if before is not None and before[0] >= keys.row_key(keys.DELAYED, partition, segment, first_index):
            begin = before[0]
        for key, value in cursor.forward(begin):
            row = _row_at(engine, partition, segment, keys.index_of_row(key), value)
            if row.index + row.message_count > from_index:
                found.append(row)
            if len(found) >= count_max:
                break
    return found


def rows_below(
    engine: Database, partition: int, segment: int, first_index: int, count_max: int
) -> list[tuple[int, int]]:
    """Due times and indexes of batches that retention dropped, ascending by index.

    Raises:
        CorruptionError: A row cannot be read.
    """
    begin, end = (keys.row_key(keys.DELAYED, partition, segment, index) for index in (0, first_index))
    with engine.cursor(DELAY, end) as cursor:
        rows = islice(cursor.forward(begin), count_max)
        return [(codec.read_due(value), keys.index_of_row(key)) for key, value in rows]


def volleys_from(
    engine: Database, partition: int, segment: int, first_index: int, from_index: int, count_max: int
) -> list[StoredVolley]:
    """The volleys that begin at `from_index` or after it, of batches from `first_index` on.

    Raises:
        CorruptionError: A row cannot be read.
    """
    begin, end = keys.row_range(keys.VOLLEY, partition, segment, max(from_index, first_index))
    with engine.cursor(DELAY, end) as cursor:
        rows = islice(cursor.forward(begin), count_max)
        return [codec.read_stored_volley(keys.index_of_row(key), value) for key, value in rows]


def places(engine: Database) -> Iterator[tuple[tuple[int, int], int]]:
    """The partition and segment of each log that has rows, and when its last delayed batch is due; 0: it has none.

    A row by due time that does not count any more may be later than those that do.
    """
    begin = b""
    with engine.cursor(DELAY) as cursor:
        while (row := next(iter(cursor.forward(begin)), None)) is not None:
            place = keys.place_of(row[0])
            last = cursor.at_or_before(keys.due_key(*place, _DUE_MS_MAX, 0))
            is_due = last is not None and keys.is_due_key(last[0], *place)
            yield place, keys.split_due_key(last[0])[0] if last is not None and is_due else 0
            begin = keys.place_range(*place)[1]


def _row_at(engine: Database, partition: int, segment: int, index: int, value: bytes) -> DueRow:
    due_ms = codec.read_due(value)
    sizes = engine.get(DELAY, keys.due_key(partition, segment, due_ms, index))
    if sizes is None:
        raise CorruptionError(f"partition id {partition} batch {segment}:{index}: its row by due time is missing")
    return codec.read_delayed(due_ms, index, sizes)
