"""`archive`: a stream of all messages into Parquet files.

Semantics: every message once, in files whose rows stand in the order of the partition. A micro-batch whose files were
written and whose end Spark had not noted is written again after a failure: the same ranges give files of the same
names with the same rows. So at every moment the files, taken together, hold no message twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from seriatim_spark.archiving import SOURCE_COLUMNS, ArchiveWriter, take_over
from seriatim_spark.pipelines.session import session, wait

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_log = logging.getLogger("seriatim.spark")


def write_rows(batches: Iterator[pa.RecordBatch], directory: str, file_rows: int) -> Iterator[pa.RecordBatch]:
    """What a task does: write its rows, and give the names of its files."""
    import pyarrow as pa

    writer = ArchiveWriter(directory, file_rows)
    try:
        for batch in batches:
            writer.take(batch)
        done = writer.finish()
    finally:
        writer.give_up()
    yield pa.RecordBatch.from_pydict(
        {"file": [name for name, _ in done], "rows": [footer.rows for _, footer in done]},
        schema=pa.schema([("file", pa.string()), ("rows", pa.int64())]),
    )


class _Writing:
    """Writes micro-batches; owns the directory from the first one on."""

    def __init__(self, directory: str, file_rows: int) -> None:
        self._directory = directory
        self._file_rows = file_rows
        self._owner: str | None = None
        self.rows = 0

    def __call__(self, rows: DataFrame, batch: int) -> None:
        owner = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if owner is None:
            raise RuntimeError("Spark does not say which query this is: another one might own the directory")
        if self._owner is None:
            take_over(self._directory, owner, self._file_rows)
            self._owner = owner
        task: Callable[..., Any] = partial(write_rows, directory=self._directory, file_rows=self._file_rows)
        files = rows.mapInArrow(task, "file string, rows bigint").collect()
        written = sum(file["rows"] for file in files)
        self.rows += written
        _log.info("batch %d: %d rows in %d files", batch, written, len(files))


def run(
    source: Mapping[str, str], directory: str, checkpoint: str, *, every: str | None, file_rows: int, group: str | None
) -> int:
    """Archive until the query ends: with `every` None when all is written that is there now, else at SIGTERM or Ctrl-C.

    Returns the rows written by this run.
    """
    spark = session("archive")
    writing = _Writing(directory, file_rows)
    stream = spark.readStream.format("seriatim").options(**source).option("columns", ",".join(SOURCE_COLUMNS)).load()
    writer = stream.writeStream.queryName("archive").foreachBatch(writing).option("checkpointLocation", checkpoint)
    writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
    wait(spark, writer, source, group)
    return writing.rows
