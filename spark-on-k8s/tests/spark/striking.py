"""The sink, with a fault at a chosen moment: a process of Spark's is killed there, once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOMENTS = ("task begins", "task has staged", "before publishing", "after publishing")


def register(spark: SparkSession, directory: Path) -> str:
    """A format that is the sink; a file in the directory, called as a moment, asks for a kill, and is gone then.

    The file may hold the number of the first micro-batch in which that is to be. The classes are made here so that
    Spark's workers get them by value.
    """
    from seriatim_spark.sink import StreamSink
    from seriatim_spark.source import SeriatimSource

    asked = str(directory)

    class Struck(StreamSink):
        def write(self, iterator: Any) -> Any:
            from pyspark import TaskContext

            task = TaskContext.get()
            assert task is not None
            batch = int(task.getLocalProperty("streaming.sql.batchId") or 0)
            self._strike("task begins", batch)
            message = super().write(iterator)
            self._strike("task has staged", batch)
            return message

        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
            self._strike("before publishing", batchId)
            super().commit(messages, batchId)
            self._strike("after publishing", batchId)

        def _strike(self, moment: str, batch: int) -> None:
            import os
            import signal

            path = os.path.join(asked, moment)
            try:
                with open(path) as file:
                    if batch < int(file.read() or 0):
                        return
                os.unlink(path)
            except FileNotFoundError:  # none is asked for, or another task was quicker
                return
            os.kill(os.getpid(), signal.SIGKILL)

    class Source(SeriatimSource):
        @classmethod
        def name(cls) -> str:
            return "struck"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return Struck(super().streamWriter(schema, overwrite)._options)

    spark.dataSource.register(Source)
    return "struck"
