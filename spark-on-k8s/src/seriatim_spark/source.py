"""The data source as Spark sees it: format "seriatim". It checks options and calls other modules; it decides nothing.

    spark.read.format("seriatim").option("bootstrap", "host:port").option("topic", "orders").load()

The sink is in `writing.sink`.

Spark pickles objects of these classes, runs planners in processes of their own, and runs tasks in forked workers. So
nothing here connects before Spark calls a planner or a task. Options are checked in `schema`, because Spark hides an
error of `streamReader` after its own.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from seriatim_spark import columns, options
from seriatim_spark.errors import OptionError, SchemaMismatchError
from seriatim_spark.options import ReadOptions
from seriatim_spark.reading.task_plan import Unit
from seriatim_spark.writing.outgoing_rows import check_schema
from seriatim_spark.writing.sink_options import parse_sink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from seriatim_spark.reading.stream_plan import StreamPlanner
    from seriatim_spark.writing.sink import BatchSink, StreamSink


@dataclass
class Task(InputPartition):
    """The units that one task reads, in this order."""

    units: tuple[Unit, ...]


class SeriatimSource(DataSource):
    """Topics of Seriatim."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "seriatim"

    def schema(self) -> str:
        """Return the chosen columns.

        Raises:
            OptionError: An option of the reader is wrong.
        """
        return columns.ddl(options.parse(self.options).columns)

    def reader(self, schema: StructType) -> BatchReader:
        """Return a reader of the present messages."""
        return BatchReader(self._checked(schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Return a reader of micro-batches."""
        return StreamReader(self._checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """Return a sink for the rows of a job.

        Raises:
            OptionError: An option is wrong, or the mode would remove messages.
            SchemaMismatchError: The rows have a column that no message has.
        """
        from seriatim_spark.writing.sink import BatchSink

        parsed = parse_sink(self.options, streaming=False)
        _check_written(schema, overwrite)
        return BatchSink(parsed, f"once-{uuid.uuid4().hex}")

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        """Return a sink for micro-batches. It raises the same errors as `writer`."""
        from seriatim_spark.writing.sink import StreamSink

        parsed = parse_sink(self.options, streaming=True)
        _check_written(schema, overwrite)
        return StreamSink(parsed)

    def _checked(self, schema: StructType) -> ReadOptions:
        parsed = options.parse(self.options)
        given = {field.name: field.dataType.simpleString() for field in schema}
        ours = {name: columns.COLUMNS[name].sql_type for name in parsed.columns}
        if list(given.items()) != list(ours.items()):
            raise SchemaMismatchError(
                f"the source gives {columns.ddl(parsed.columns)}, and not {schema.simpleString()}: leave schema() out, "
                "and choose columns with the option columns"
            )
        return parsed


def _check_written(schema: StructType, overwrite: bool) -> None:
    if overwrite:
        raise OptionError("the sink adds rows to a topic, and cannot remove any: use mode append (outputMode append)")
    check_schema([(field.name, field.dataType.simpleString()) for field in schema])


class _TaskReader:
    """The part that executors run, the same for batch and streaming."""

    def __init__(self, parsed: ReadOptions) -> None:
        self._options = parsed

    def read(self, partition: Task) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task, in their order.

        Raises:
            SourceError: The range could not be read in full. Spark uses none of its rows.
        """
        from seriatim_spark.reading.task import read_units

        return read_units(partition.units, self._options)


class BatchReader(_TaskReader, DataSourceReader):
    """Reads ranges that are fixed when the query is planned."""

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks."""
        from seriatim_spark.reading.batch_plan import plan_batch
        from seriatim_spark.reading.brokers import RealBrokers

        return [Task(units) for units in plan_batch(self._options, RealBrokers(self._options))] or [Task(())]


class StreamReader(_TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one micro-batch after another."""

    def __init__(self, parsed: ReadOptions) -> None:
        super().__init__(parsed)
        self._made: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_made": None}  # executors need no planner

    @property
    def _planner(self) -> StreamPlanner:
        if self._made is None:
            from seriatim_spark.reading.brokers import RealBrokers
            from seriatim_spark.reading.stream_plan import StreamPlanner

            self._made = StreamPlanner(self._options, RealBrokers(self._options), time.monotonic)
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint begins."""
        return self._planner.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one limit of the options, because Spark takes only one. `latestOffset` applies both limits."""
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        # It must not be ReadAllAvailable, because then `latestOffset` would ignore minRowsPerTrigger too.
        return ReadMaxRows((1 << 63) - 1) if self._options.min_rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next micro-batch ends."""
        from seriatim_spark.reading.stream_plan import Limit

        return self._planner.latest(
            start,
            Limit(
                everything=isinstance(limit, ReadAllAvailable),
                max_rows=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
                max_bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
            ),
        )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query."""
        self._planner.freeze()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where the topics end, for Spark's report of progress."""
        return self._planner.latest_reported()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks of a micro-batch."""
        return [Task(units) for units in self._planner.tasks(start, end)] or [Task(())]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark keeps the offsets, and a listener reports them (`seriatim_spark.report_progress`)."""

    def stop(self) -> None:
        """Do nothing: the process ends with the query."""
