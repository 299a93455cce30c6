"""The sink as Spark sees it: tasks stage, and the driver publishes. The work is in `publishing`.

Spark makes these objects in Python workers of the driver, pickles them to tasks, and makes another one to commit a
micro-batch. So a commit needs only the options and the messages of tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from seriatim_spark.errors import OptionError, SinkError
from seriatim_spark.writing.publishing import Identity, identity_of, publish, stage
from seriatim_spark.writing.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from seriatim import Chunk


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """A task's message to the driver: the identity to publish its rows under, and the chunks that hold them.

    It has about 32 bytes for each half mebibyte of rows. Spark carries messages over 1 MiB through its block manager,
    so no other place is needed.
    """

    identity: Identity
    chunks: tuple[Chunk, ...]


class BatchSink(DataSourceArrowWriter):
    """Writes the rows of a job, once.

    Args:
        options: The options, checked for a batch write.
        once: The writer's name if the options name no writer: random, and made once for the job.
    """

    def __init__(self, options: SinkOptions, once: str) -> None:
        self._options = options
        self._once = once

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """A task: stage its rows.

        Raises:
            SourceError: The rows could not be staged. Or the task is part of `foreachBatch`, and no writer is named.
        """
        options = self._options
        task = _task()
        query = task.getLocalProperty("sql.streaming.queryId") or ""
        if options.writer is None and query:
            raise OptionError(
                "in foreachBatch a micro-batch may run again, and its rows would be written twice: give the options "
                "writer (another one for each write) and sequence, which is the number of the micro-batch"
            )
        identity = Identity(options.writer or self._once, query, options.sequence or 0, options.writer is None)
        return StagedRows(identity, stage(iterator, options, identity.writer, task.partitionId()))

    def commit(self, messages: Sequence[Any]) -> None:
        """The driver: publish the rows that all tasks have staged.

        Raises:
            SourceError: The rows are not published, or the outcome is unknown.
        """
        _commit(self._options, messages)

    def abort(self, messages: Sequence[Any]) -> None:
        """Do nothing: brokers drop the staged rows after 24 hours. Spark also calls this if a commit has failed after
        the rows were published.
        """


class StreamSink(DataSourceStreamArrowWriter):
    """Writes each micro-batch once.

    Args:
        options: The options, checked for a stream.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """A task: stage its rows.

        Raises:
            SourceError: The rows could not be staged.
        """
        task = _task()
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if not query or batch is None:
            raise SinkError("Spark does not say which query and micro-batch this is: rows could be written twice")
        identity = Identity(self._options.writer or query, query, int(batch))
        return StagedRows(identity, stage(iterator, self._options, identity.writer, task.partitionId()))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """The driver: publish the rows that all tasks of the micro-batch have staged.

        Raises:
            SourceError: The rows are not published, or the outcome is unknown. Start the query again: Spark repeats the
                micro-batch, and its rows are published once.
        """
        _commit(self._options, messages, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing, as `BatchSink.abort`."""


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "rows are written by tasks"
    return task


def _commit(options: SinkOptions, messages: Sequence[StagedRows | None], batch: int | None = None) -> None:
    identity = identity_of([message.identity if message is not None else None for message in messages])
    if identity is None:
        return
    if batch is not None and identity.sequence != batch:
        raise SinkError(f"tasks have staged rows of micro-batch {identity.sequence}, and Spark ends {batch}")
    chunks = [chunk for message in messages if message is not None for chunk in message.chunks]
    publish(options, identity, chunks)
