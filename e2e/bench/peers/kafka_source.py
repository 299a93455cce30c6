"""Measures Spark's source of Kafka and ours on the same rows, in turns. `KAFKA=1 make bench-spark` adds this.

Spark reads the rows from the topic and writes them into Kafka, so each partition has the same rows in both. Before
anything is timed, the benchmark compares counts and sums of checksums of each partition. Then each source reads all
rows once to warm up. At last both are timed in turns, `ROUNDS` times, because the speed of the machine changes within
minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from e2e.bench.measures.figures import Figure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from e2e.bench.program import Progress

ROUNDS: Final = 5
TOPIC: Final = "spark"
PRODUCER: Final = {"kafka.batch.size": "131072", "kafka.linger.ms": "5"}
"""A program that wants throughput makes batches of this size.

Kafka's default is an eighth of it, and such batches are slower to read.
"""


def compare(
    spark: SparkSession, ours: Callable[[], DataFrame], address: str, count: int, progress: Progress
) -> list[Figure]:
    """Copy the rows into Kafka, and measure both sources.

    Args:
        spark: A session with the jars of Spark's source of Kafka.
        ours: Returns all rows of the topic, with the columns that the source gives by default.
        address: The address of the Kafka broker. It must have no topic `TOPIC`.
        count: The number of rows of the topic.
        progress: Called with a text for each step.
    """

    def kafkas() -> DataFrame:
        options = {"kafka.bootstrap.servers": address, "subscribe": TOPIC, "startingOffsets": "earliest"}
        return spark.read.format("kafka").options(**options).load()

    progress("writing the rows into Kafka")
    rows = ours().select("key", "value", "partition")
    rows.write.format("kafka").options(**{"kafka.bootstrap.servers": address, "topic": TOPIC} | PRODUCER).save()
    progress("comparing the rows")
    here, there = _summary(ours()), _summary(kafkas())
    problem = "" if here == there and sum(row[1] for row in here) == count else "Kafka's topic has other rows"
    rates: dict[str, list[float]] = {"ours": [], "kafka": []}
    for number in range(ROUNDS + 1):
        for name, source in (("ours", ours), ("kafka", kafkas)):
            progress(f"reading {name}, {f'round {number} of {ROUNDS}' if number else 'to warm up'}")
            begin = time.monotonic()
            source().write.format("noop").mode("overwrite").save()
            if number:
                rates[name].append(count / (time.monotonic() - begin))
    ratios = [mine / other for mine, other in zip(rates["ours"], rates["kafka"], strict=True)]
    return [
        _figure("kafka_source", "Spark's source of Kafka reads them from one broker", rates["kafka"], "msg/s", problem),
        _figure("in_turns", "a batch read of the topic, in turns with it", rates["ours"], "msg/s", problem),
        _figure("to_kafka", "this read to that one", ratios, "x", problem, aim=3.0),
    ]


def _figure(
    name: str, text: str, values: list[float], unit: str, problem: str, aim: float | None = None
) -> Figure:  # fmt: skip
    details = {"least": min(values), "most": max(values)}
    return Figure(name, text, median(values), unit, aim, higher_is_better=True, details=details, problem=problem)


def _summary(rows: DataFrame) -> list[tuple[Any, ...]]:
    """Return for each partition: its number, its row count, and the sum of its values' checksums."""
    digests = rows.selectExpr("partition", "crc32(value) as digest")
    found = digests.groupBy("partition").agg({"*": "count", "digest": "sum"}).collect()
    return sorted((row["partition"], row["count(1)"], row["sum(digest)"]) for row in found)
