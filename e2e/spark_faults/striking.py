"""The sink of Spark, with a place for a fault at each moment of a micro-batch.

A file with the name of a moment asks for one fault at this moment. It strikes in the first micro-batch whose number is
not below the number in the file. The Python worker of Spark that reaches this moment removes the file. Then it kills
itself, unless the file says `wait`. In that case it writes `reached`, and waits until the suite lets it continue. So
another program can strike at exactly this moment.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOMENTS: Final = ("task begins", "task has staged", "before publishing", "after publishing")
REACHED: Final = "reached"
GO_DEADLINE_S: Final = 60.0
FORMAT: Final = "struck"


def ask(directory: Path, moment: str, batch: int = 0, *, wait: bool = False) -> None:
    """Ask for a fault.

    Args:
        directory: The directory that was given to `register`.
        moment: One of `MOMENTS`.
        batch: The first micro-batch in which the fault may strike.
        wait: Whether the worker waits for `let_go`. If not, it kills itself.
    """
    aside = directory / f".{moment}"
    aside.write_text(f"{batch} {'wait' if wait else 'kill'}")
    aside.rename(directory / moment)


def let_go(directory: Path, worker: int) -> None:
    """Let a waiting worker continue. `worker` is its process id, from the file `reached`."""
    (directory / f"go-{worker}").touch()


def register(spark: SparkSession, directory: Path) -> str:
    """Register a format that is the sink with these places. Return its name.

    The classes are made in this function, so that Spark's workers get their code by value.
    """
    from seriatim_spark.source import SeriatimSource
    from seriatim_spark.writing.sink import StreamSink

    asked, reached, deadline_s = str(directory), REACHED, GO_DEADLINE_S

    class Struck(StreamSink):
        def write(self, iterator: Any) -> Any:
            from pyspark import TaskContext

            task = TaskContext.get()
            assert task is not None
            batch = int(task.getLocalProperty("streaming.sql.batchId") or 0)
            self._come_to("task begins", batch)
            message = super().write(iterator)
            self._come_to("task has staged", batch)
            return message

        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
            self._come_to("before publishing", batchId)
            super().commit(messages, batchId)
            self._come_to("after publishing", batchId)

        def _come_to(self, moment: str, batch: int) -> None:
            import os
            import signal
            import time

            path = os.path.join(asked, moment)
            try:
                with open(path) as file:
                    number, what = file.read().split()
                if batch < int(number):
                    return
                os.unlink(path)
            except FileNotFoundError:  # no fault is asked for, or another task took the file
                return
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            aside, free = os.path.join(asked, f".{reached}"), os.path.join(asked, f"go-{os.getpid()}")
            with open(aside, "w") as file:
                file.write(f"{os.getpid()} {batch}")
            os.rename(aside, os.path.join(asked, reached))
            until = time.monotonic() + deadline_s
            while not os.path.exists(free):
                if time.monotonic() > until:
                    raise TimeoutError(f"{moment} was held for {deadline_s:g} s, and the suite did not let it continue")
                time.sleep(0.003)
            os.unlink(free)

    class Source(SeriatimSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
            return Struck(super().streamWriter(schema, overwrite)._options)  # noqa: SLF001 - it is made of the sink

    spark.dataSource.register(Source)
    return FORMAT
