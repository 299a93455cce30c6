"""The Spark session of a pipeline, and the life of its streaming query."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from seriatim_spark.errors import UnsettledError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from seriatim_spark.pipelines.metrics import PipelineMetrics

POLL_S: Final = 0.5

_log = logging.getLogger("seriatim.spark")
LIMITS: Final = {"maxRowsPerTrigger": "10000000", "maxBytesPerTrigger": "1GiB"}
"""The limits of a micro-batch of a pipeline, unless the user gives limits."""


def session(name: str) -> SparkSession:
    """Return the session that spark-submit configured, or a new one on this machine.

    All pipelines use times in UTC, whatever the time zone of a machine is.
    """
    from pyspark.sql import SparkSession

    # Pipelines use only Arrow, so Spark's warning about pandas 3 does not concern them.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers use the first python3 of PATH
    return (
        SparkSession.builder.appName(f"seriatim-{name}")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "WARN")
        .getOrCreate()
    )


def limited(source: Mapping[str, str]) -> dict[str, str]:
    """Return the source's options with limits for a micro-batch, unless the user gave limits.

    Without limits, the first micro-batch would be the whole topic, and after a failure Spark would repeat all of it.
    """
    given = {name.lower() for name in source}
    if given & {name.lower() for name in LIMITS}:
        return dict(source)
    limits = dict(LIMITS)
    if "minrowspertrigger" in given:
        del limits["maxRowsPerTrigger"]  # the given minRowsPerTrigger may be above this limit
    return {**source, **limits}


def wait(
    spark: SparkSession, writer: DataStreamWriter, source: Mapping[str, str], group: str | None,
    every: str | None = None, metrics: PipelineMetrics | None = None,
) -> None:  # fmt: skip
    """Run a query until it ends, or until this process gets SIGTERM or Ctrl-C.

    If a micro-batch is under way at that moment, the next start runs it again. The messages that are there at the start
    are read in micro-batches without a pause. After them the query waits `every` between two micro-batches.

    Args:
        spark: The session.
        writer: The writer of the query.
        source: The source's options.
        group: The consumer group as which the query's progress is reported; None: it is not reported.
        every: The time between micro-batches, such as `30 seconds`; None: end when the messages of now are read.
        metrics: The numbers for Prometheus; None: nothing serves them.
    """
    started: list[StreamingQuery] = []
    with _counting(spark, source, metrics), _reporting(spark, source, group, started), _asked_by_signals() as asked:
        started.append(writer.trigger(availableNow=True).start())
        try:
            _follow(started[-1], asked)
        except Exception as exc:
            # Only a query that is to end must know where the topic ends. This one reads the rest later.
            if every is None or UnsettledError.__name__ not in str(exc):
                raise
            _log.warning(
                "some messages cannot be read yet; the query continues, and reads them later: %s",
                str(exc).splitlines()[0],
            )
        if every is not None and not asked.is_set():
            started.append(writer.trigger(processingTime=every).start())
            _follow(started[-1], asked)


@contextmanager
def _counting(spark: SparkSession, source: Mapping[str, str], metrics: PipelineMetrics | None) -> Iterator[None]:
    """Keep the numbers for Prometheus, if there are any."""
    if metrics is None:
        yield
        return
    from seriatim_spark.pipelines.metrics_listener import MetricsListener

    listener = MetricsListener(metrics, source)
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        spark.streams.removeListener(listener)
        listener.close()


@contextmanager
def _reporting(
    spark: SparkSession, source: Mapping[str, str], group: str | None, started: Sequence[StreamingQuery]
) -> Iterator[None]:
    """Report the progress of the queries in `started` as a consumer group's, if one is given."""
    if group is None:
        yield
        return
    from seriatim_spark.progress import report_progress

    target = {name: value for name, value in source.items() if name == "bootstrap" or name.startswith("tls")}
    listener = report_progress(spark, target, group)
    try:
        yield
    finally:
        if started:
            listener.flush(str(started[-1].runId))
        spark.streams.removeListener(listener)
        listener.close()


@contextmanager
def _asked_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set, if this is the main thread: no other one may take signals."""
    asked = threading.Event()
    can_listen = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGTERM, signal.SIGINT) if can_listen else ()
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in signals}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _follow(query: StreamingQuery, asked: threading.Event) -> None:
    """Wait until a query has ended. If this process is asked to end, stop the query."""
    while not asked.is_set() and not query.awaitTermination(POLL_S):
        pass
    if asked.is_set():
        query.stop()


def quoted(text: str) -> str:
    """Write a string in the form of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
