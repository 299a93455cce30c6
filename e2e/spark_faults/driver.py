"""A driver of Spark that copies one topic after another, as its parent says: `python -m e2e.spark_faults.driver
DIRECTORY`.

The suite can kill or freeze this process. Each line of its input is a job in JSON. Each line of its output is an
answer: first `ready`, then `{"error": null}` or the error that ended the query.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from seriatim_spark import open_writer
from seriatim_spark.pipelines.command_line import last_line

from e2e.spark_faults.striking import register
from e2e.spark_session import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READY: Final = "ready"
_KIND: Final = re.compile(r"seriatim_spark\.errors\.(\w+): ")
COLUMNS: Final = ("key", "value", "timestamp", "partition")


def copy(spark: SparkSession, kind: str, job: dict[str, Any]) -> None:
    """Copy a topic in micro-batches, as the writer that the job names. Open the writer first, as a user does."""
    opened = open_writer({"bootstrap": job["bootstrap"], "topic": job["target"]}, job["writer"])
    rows = (
        spark.readStream.format("seriatim")
        .options(bootstrap=job["bootstrap"], topic=job["source"], maxRowsPerTrigger=str(job["batch_rows"]))
        .load()
        .select(*COLUMNS)
    )
    writer = rows.writeStream.format(kind).options(**opened.options).option("checkpointLocation", job["checkpoint"])
    writer.trigger(availableNow=True).start().awaitTermination()


def main() -> int:
    """Copy topics until the input ends."""
    spark = start_session(
        "faults", "local[2,4]", driver__memory="512m", python__authenticate__socketTimeout="60s",
        driver__extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )  # fmt: skip
    kind = register(spark, Path(sys.argv[1]))
    print(READY, flush=True)
    for line in sys.stdin:
        error = None
        try:
            copy(spark, kind, json.loads(line))
        except Exception as exc:  # the answer is the error that ended the query
            kinds = _KIND.findall(str(exc)) or [type(exc).__name__]
            error = f"{kinds[-1]}: {last_line(exc)}"
        print(json.dumps({"error": error}), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
