"""The Spark session of a pipeline."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(name: str) -> SparkSession:
    """The session that spark-submit configured, or one on this machine.

    Times of all pipelines are in UTC, whatever the machines' zones are.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take the first python3 of PATH
    return (
        SparkSession.builder.appName(f"seriatim-{name}")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "WARN")
        .getOrCreate()
    )
