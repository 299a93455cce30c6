"""Parts of all pipelines that write directories: where a micro-batch ends, and whether the driver sees its files."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow.fs as pafs

from seriatim_spark.directories.files import DirectoryError, file_system
from seriatim_spark.offsets import from_json, to_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEN_WITHIN_S: Final = 10.0
"""The longest time until a shared file system shows the driver a file that another node has written."""
LOOK_S: Final = 0.5


class BatchLog:
    """Reads the ends of micro-batches from Spark's checkpoint. Spark notes an end before the micro-batch runs.

    Args:
        checkpoint: The directory of the checkpoint, as it was given to Spark.
    """

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint

    def ends(self, spark: SparkSession, batch: int) -> dict[str, Any] | None:
        """Return the end of a micro-batch, in the form of `offsets.to_json`; None if the checkpoint has no such entry.

        Raises:
            OffsetsError: The entry is not of this source.
        """
        context: Any = spark.sparkContext
        java, settings = context._jvm, context._jsc.hadoopConfiguration()  # noqa: SLF001 - PySpark gives no other way
        path = java.org.apache.hadoop.fs.Path(f"{self._checkpoint}/offsets/{batch}")
        files = path.getFileSystem(settings)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            text = java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return to_json(from_json(json.loads(text.splitlines()[-1])))


def query_of(spark: SparkSession) -> str:
    """Return the id of the query whose micro-batch this thread runs. It stays the same over restarts."""
    found = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    if found is None:
        raise RuntimeError("Spark does not say which query this is: another one might own the directory")
    return str(found)


def check_seen(directory: str, names: Sequence[str]) -> None:
    """Check that the driver sees files that tasks have written.

    Args:
        directory: The directory, which driver and executors must share.
        names: Paths below it.

    Raises:
        DirectoryError: The driver does not see a file within `SEEN_WITHIN_S`.
    """
    files, root = file_system(directory)
    until = time.monotonic() + SEEN_WITHIN_S
    missing = list(names)
    while True:
        infos = files.get_file_info([f"{root}/{name}" for name in missing])
        missing = [name for name, info in zip(missing, infos, strict=True) if info.type != pafs.FileType.File]
        if not missing:
            return
        if time.monotonic() >= until:
            raise DirectoryError(
                f"tasks have written {len(missing)} files to {directory} that the driver does not find there, such as "
                f"{missing[0]}. The directory must be the same one for the driver and all executors: a volume that all "
                "of them mount, or a URL. The micro-batch does not count as written"
            )
        time.sleep(LOOK_S)
