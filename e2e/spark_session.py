"""Starts a Spark session on this machine: for the demo, for the faults of the sink, and for the benchmark."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_session(name: str, master: str, **settings: str) -> SparkSession:
    """Start a quiet session.

    Args:
        name: The application's name.
        master: The number of threads and of tries of a task, such as `local[2,4]`.
        settings: More of Spark's settings, without `spark.` and with `__` for a dot.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(name)
    quiet = {"ui__enabled": "false", "ui__showConsoleProgress": "false", "log__level": "ERROR"}
    for key, value in {**quiet, "sql__session__timeZone": "UTC", **settings}.items():
        builder = builder.config(f"spark.{key.replace('__', '.')}", value)
    return builder.getOrCreate()
