"""The work of a task: it reads its units one after another, checks that no row is missing, and gives rows to Spark."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from seriatim_api.errors import OffsetOutOfRangeError, SeriatimError
from seriatim_api.ids import format_offset

from seriatim_spark.columns import BYTES_WANTED, ROWS_WANTED, BatchBuilder, Origin, Rows, size_bytes
from seriatim_spark.connection import connected
from seriatim_spark.errors import translated
from seriatim_spark.options import ReadOptions
from seriatim_spark.reading.contiguity import Contiguity
from seriatim_spark.reading.task_plan import Unit

if TYPE_CHECKING:
    import pyarrow as pa
    from seriatim import Client, LostRange, RangeReader

GROUPS_AHEAD: Final = 8
"""The most groups of batches that wait for Spark.

Each has up to `BYTES_WANTED` and one batch more. The client reads ahead as well.
"""

RETRY_PAUSE_S: Final = 0.2
SLACK_S: Final = 30.0
"""Seconds beyond the client's own deadlines. Then a call is given up that should have ended before."""

_log = logging.getLogger("seriatim.spark")


def read_units(units: Sequence[Unit], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Read all rows of the units, in their order.

    Raises:
        SourceError: A unit could not be read in full. The caller must not use the rows that it got before.
    """
    connection = connected(options.target)
    builder = BatchBuilder(options.columns)
    for unit in units:
        origin = Origin(unit.incarnation, unit.start, unit.end)
        groups = connection.iterate(
            _groups(connection.client, unit, options), GROUPS_AHEAD, 2 * options.read_timeout_s + SLACK_S
        )
        for group in groups:
            yield builder.build(group, origin)


async def _groups(client: Client, unit: Unit, options: ReadOptions) -> AsyncIterator[list[Rows]]:
    """Read the tables of a unit.

    Gather small ones into groups, because each group costs Spark as much as some hundred rows.
    """
    group: list[Rows] = []
    rows = size = 0
    async for found in _tables(client, unit, options):
        group.append(found)
        rows += found.table.table.num_rows
        size += size_bytes(found.table)
        if rows >= ROWS_WANTED or size >= BYTES_WANTED:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


async def _tables(client: Client, unit: Unit, options: ReadOptions) -> AsyncIterator[Rows]:
    """Read the tables of a unit, and check their order."""
    where = f"{unit.topic}/{unit.partition}"
    check = Contiguity(where, unit.start, unit.end)
    losses: list[LostRange] = []

    def told() -> None:
        for loss in losses:
            check.lose(loss.start, loss.end)
            _log.warning("%s: %s; failOnDataLoss=false: the query continues after them", where, loss)
        losses.clear()

    with translated(unit.topic, options.target.bootstrap):
        reader = await _opened(client, unit, options, losses)
        passed = 0
        async with reader:
            while (table := await reader.fetch_table()) is not None:
                told()
                check.take(table.offset, table.table.num_rows, reader.skipped)
                yield Rows(table, reader.skipped - passed)
                passed = reader.skipped
            told()
            check.finish(reader.offset, reader.skipped)


async def _opened(client: Client, unit: Unit, options: ReadOptions, losses: list[LostRange]) -> RangeReader:
    """Open a reader of the unit.

    The end of the unit was committed when it was planned. If a segment before it became UNSETTLED since then (all its
    members are gone), brokers say that the partition ends there. The reader waits until a member is back.
    """
    until = asyncio.get_running_loop().time() + options.read_timeout_s
    while True:
        try:
            return await client.read_range(
                unit.topic, unit.partition, unit.start, unit.end, incarnation=unit.incarnation,
                on_loss=None if options.fail_on_data_loss else losses.append, read_timeout_s=options.read_timeout_s,
            )  # fmt: skip
        except OffsetOutOfRangeError as exc:
            if asyncio.get_running_loop().time() > until:
                raise _ended_before(unit, exc) from exc
        await asyncio.sleep(RETRY_PAUSE_S)


def _ended_before(unit: Unit, error: SeriatimError) -> SeriatimError:
    end = error.details.get("end")
    return OffsetOutOfRangeError(
        f"{unit.topic}/{unit.partition} was to be read to {format_offset(unit.end)}, and brokers say that it ends at "
        f"{format_offset(int(end)) if end and str(end).isdecimal() else 'an earlier offset'}: wrong offsets, or all "
        "members of an older segment are gone"
    )
