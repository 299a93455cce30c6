"""Apache Spark reads topics of Seriatim in their order, and writes them, each row once: the format "seriatim".

    spark.read.format("seriatim").option("bootstrap", "host:port").option("topic", "orders").load()
    rows.writeStream.format("seriatim").options(**open_writer({...}, "billing").options).start()

Spark finds the format by itself if this package is installed on the driver and on each executor. `report_progress`
makes the lag of streaming queries visible to the cluster. Each name is loaded at its first use, so that the parts that
decide (options, offsets, plans) can be used and tested without Spark. Rooms:

    reading      from ranges of offsets to the rows of a task
    writing      tasks stage rows, the driver publishes them
    directories  what pipelines keep in a directory: archives, notes, maps
    audits       are rows complete, in order and without repeats?
    pipelines    the applications

Outside the rooms:

    source      the data source as Spark sees it
    progress    reports to the cluster how far queries are
    applying    the table that `apply` keeps; programs read it with `applying.read_table`
    connection  one client for each process and cluster
    options     the options of the reader
    offsets     offsets, in the form of Spark's checkpoint and in the form that users write
    columns     the columns of a row, and tables of the client as columns
    errors      the errors that a user of the data source sees
    container   the entry point of a container of the image `spark`
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from seriatim_spark.errors import (
        ClusterError,
        DataLossError,
        OffsetsError,
        OptionError,
        ReadOrderError,
        ReplayDiffersError,
        RowError,
        SchemaMismatchError,
        SinkError,
        SourceError,
        TopicReplacedError,
        WriterConflictError,
    )
    from seriatim_spark.progress import ProgressListener, report_progress
    from seriatim_spark.source import SeriatimSource
    from seriatim_spark.writing.writers import OpenedWriter, open_writer

__all__ = [
    "ClusterError",
    "DataLossError",
    "OffsetsError",
    "OpenedWriter",
    "OptionError",
    "ProgressListener",
    "ReadOrderError",
    "ReplayDiffersError",
    "RowError",
    "SchemaMismatchError",
    "SeriatimSource",
    "SinkError",
    "SourceError",
    "TopicReplacedError",
    "WriterConflictError",
    "open_writer",
    "report_progress",
]

_HOMES: Final = {
    "ProgressListener": "seriatim_spark.progress",
    "report_progress": "seriatim_spark.progress",
    "SeriatimSource": "seriatim_spark.source",
    "OpenedWriter": "seriatim_spark.writing.writers",
    "open_writer": "seriatim_spark.writing.writers",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES.get(name, "seriatim_spark.errors")), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
