"""The Spark session of a pipeline, and the life of its streaming query."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

POLL_S: Final = 0.5


def session(name: str) -> SparkSession:
    """The session that spark-submit configured, or one on this machine.

    Times of all pipelines are in UTC, whatever the machines' zones are.
    """
    from pyspark.sql import SparkSession

    # Pipelines use Arrow only: Spark's doubts about pandas 3 do not matter to them.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take the first python3 of PATH
    return (
        SparkSession.builder.appName(f"seriatim-{name}")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "WARN")
        .getOrCreate()
    )


def wait(spark: SparkSession, writer: DataStreamWriter, source: Mapping[str, str], group: str | None) -> None:
    """Run a query until it ends, or this process is asked to end: by SIGTERM or Ctrl-C.

    A micro-batch that is under way then is run again at the next start.

    Args:
        spark: The session.
        writer: Of the query.
        source: The source's options.
        group: The name under which its progress is reported; None: it is not.
    """
    listener = None
    if group is not None:
        from seriatim_spark.progress import report_progress

        target = {name: value for name, value in source.items() if name == "bootstrap" or name.startswith("tls")}
        listener = report_progress(spark, target, group)
    asked = threading.Event()
    can_listen = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGTERM, signal.SIGINT) if can_listen else ()
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in signals}
    query = None
    try:
        query = writer.start()
        while not asked.is_set() and not query.awaitTermination(POLL_S):
            pass
        if asked.is_set():
            query.stop()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if listener is not None:
            if query is not None:
                listener.flush(str(query.runId))
            spark.streams.removeListener(listener)
            listener.close()


def quoted(text: str) -> str:
    """A string as SQL writes it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
