"""`archive`: writes all messages of a stream into Parquet files.

Semantics: files have every message once, in the order of the partition. If a driver fails after it wrote the files of a
micro-batch and before Spark noted its end, the micro-batch is written again. The same ranges give files with the same
names and rows. Before its tasks begin, the directory notes the number and the end of the micro-batch (`batch_chain`).
So a query with another checkpoint, or with an older copy of it, writes nothing. At every moment, all files together
hold no message twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from seriatim_spark.directories import batch_chain
from seriatim_spark.directories.archive_files import SOURCE_COLUMNS, ArchiveWriter, Reach
from seriatim_spark.directories.archive_notes import note_ranges
from seriatim_spark.directories.batch_chain import Link, OvertakenError
from seriatim_spark.directories.files import DirectoryError, remove_aside
from seriatim_spark.offsets import from_json
from seriatim_spark.options import parse
from seriatim_spark.pipelines.micro_batches import BatchLog, check_seen, query_of
from seriatim_spark.pipelines.session import limited, session, wait
from seriatim_spark.reading.brokers import RealBrokers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from seriatim_spark.pipelines.metrics import PipelineMetrics

_log = logging.getLogger("seriatim.spark")


def write_rows(batches: Iterator[pa.RecordBatch], directory: str, file_rows: int) -> Iterator[pa.RecordBatch]:
    """Do the work of a task: write its rows. Give the names of the files, and how far the rows of each range went."""
    import pyarrow as pa

    writer = ArchiveWriter(directory, file_rows)
    try:
        for batch in batches:
            writer.take(batch)
        done = writer.finish()
    finally:
        writer.give_up()
    told: list[dict[str, Any]] = [{"file": name, "rows": footer.rows} for name, footer in done]
    told += [reach._asdict() for reach in writer.reached]
    whole, number = pa.int64(), pa.int32()
    yield pa.RecordBatch.from_pylist(
        told,
        schema=pa.schema(
            [
                ("file", pa.string()), ("rows", whole), ("topic", pa.string()), ("incarnation", pa.string()),
                ("partition", number), ("start", whole), ("end", whole), ("reached", whole),
            ]
        ),
    )  # fmt: skip


TOLD: Final = (
    "file string, rows bigint, topic string, incarnation string, partition int, start bigint, end bigint, "
    "reached bigint"
)


TRIES: Final = 5
"""How often a link is tried if another driver of the same query makes links too."""


def begin_batch(
    directory: str, query: str, batch: int, start: dict[str, Any] | None, ends: dict[str, Any], file_rows: int
) -> None:
    """Note in the directory that a micro-batch is being written, before its first file is there.

    Args:
        directory: The directory of the archive.
        query, batch, start, ends: As in `batch_chain.is_repeat`.
        file_rows: The most rows of a file.

    Raises:
        ChainError: The micro-batch does not follow those of the directory, or another query owns it.
        DirectoryError: The files of the directory were begun with another number of rows.
    """
    for tried in range(1, TRIES + 1):
        last = batch_chain.newest(directory)
        repeated = batch_chain.is_repeat(directory, last, query, batch, start, ends)
        if last is not None and (rows := last.content["file_rows"]) != file_rows:
            raise DirectoryError(
                f"{directory} was begun with files of at most {rows} rows, and not {file_rows}: a micro-batch that is "
                f"run again would be cut into other files. Keep to --file-rows {rows}, or use another directory"
            )
        if repeated:
            return
        serial = 0 if last is None else last.serial + 1
        try:
            batch_chain.append(directory, Link(serial, query, batch, ends, {"file_rows": file_rows}))
            return
        except OvertakenError:  # if a driver of the same query did it, the next look shows a repeat
            if tried == TRIES:
                raise


class _Writing:
    """Writes micro-batches. Its query owns the directory from the first micro-batch on."""

    def __init__(
        self,
        source: Mapping[str, str],
        directory: str,
        checkpoint: str,
        file_rows: int,
        metrics: PipelineMetrics | None,
    ) -> None:
        self._options = parse(source)
        self._directory = directory
        self._log = BatchLog(checkpoint)
        self._file_rows = file_rows
        self._metrics = metrics
        self._begun = False
        self.rows = 0

    def __call__(self, rows: DataFrame, batch: int) -> None:
        spark = rows.sparkSession
        ends = self._log.ends(spark, batch)
        assert ends is not None, "Spark notes the end of a micro-batch before it runs"
        start = self._log.ends(spark, batch - 1) if batch else None
        begin_batch(self._directory, query_of(spark), batch, start, ends, self._file_rows)
        if not self._begun:
            remove_aside(self._directory)
            self._begun = True
        task: Callable[..., Any] = partial(write_rows, directory=self._directory, file_rows=self._file_rows)
        told = rows.mapInArrow(task, TOLD).collect()
        files = [row for row in told if row["file"] is not None]
        check_seen(self._directory, [file["file"] for file in files])
        reached = [Reach(*(row[name] for name in Reach._fields)) for row in told if row["file"] is None]
        begun = from_json(start) if start is not None else {}
        note_ranges(
            self._directory, begun, from_json(ends), reached, self._options, RealBrokers(self._options)
        )  # fmt: skip
        written = sum(file["rows"] for file in files)
        self.rows += written
        if self._metrics is not None:
            self._metrics.wrote(written)
        _log.info("batch %d: %d rows in %d files", batch, written, len(files))


def run(
    source: Mapping[str, str], directory: str, checkpoint: str, *, every: str | None, file_rows: int,
    group: str | None, metrics: PipelineMetrics | None = None,
) -> int:  # fmt: skip
    """Archive until the query ends. If `every` is None, it ends when all present messages are written. Otherwise it
    ends at SIGTERM or Ctrl-C.

    Returns the rows written by this run.
    """
    spark = session("archive")
    writing = _Writing(source, directory, checkpoint, file_rows, metrics)
    stream = (
        spark.readStream.format("seriatim")
        .options(**limited(source))
        .option("columns", ",".join(SOURCE_COLUMNS))
        .load()
    )
    writer = stream.writeStream.queryName("archive").foreachBatch(writing).option("checkpointLocation", checkpoint)
    wait(spark, writer, source, group, every, metrics)
    return writing.rows
