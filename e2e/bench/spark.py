"""`make bench-spark` (QUICK=1): how fast Spark reads and writes a topic, beside Spark's own bridge to Python.

The messages have 512 bytes. The topic has four partitions, replicated and flushed on two real broker processes. Spark
has two cores. All of it runs on this machine:

    bridge, bridge_stream   rows a second that Spark takes from a source in Python which gives the same record batch
                            again and again: no source in Python can be faster
    batch, stream           rows a second that Spark reads from the topic and drops; the stream in five micro-batches
    audit                   rows a second of an audit of the topic's archive, without checksums
    sink                    rows a second from memory into another topic, as one publication: staged, decided, carried
                            out. So every row is written to two disks twice.
    kafka_source, in_turns, to_kafka
                            only with KAFKA=1: Spark's source of Kafka reads the same rows from one Kafka broker, in
                            turns with a batch read of the topic (`peers.kafka_source`); Maven gets both (`tools/kafka`)

Counts and the audit check that no row is missing. It prints a table and writes `spark.json` in `bench-out/` (OUT=
another directory). Exit status 1 if a figure was not verified. It runs in the environment of `make test-spark`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from seriatim import Client
from seriatim_local import LocalCluster
from seriatim_spark.columns import DEFAULT_COLUMNS, arrow_schema, ddl

from e2e.bench.load.bulk import pieces, send_while
from e2e.bench.load.setup import MESSAGE_SIZE_BYTES
from e2e.bench.measures.figures import Figure
from e2e.bench.peers import kafka_broker, kafka_source
from e2e.bench.program import Progress, run
from e2e.spark_session import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES: Final = 5_000_000
QUICK_MESSAGES: Final = 500_000
PARTITIONS: Final = 4
PIECE_ROWS: Final = 2_000
STREAM_BATCHES: Final = 5
AIM_OF_BRIDGE: Final = 0.5
AUDIT_AIM: Final = 1_000_000.0
SINK_AIM: Final = 150_000
SINK_SHARE: Final = 5
"""The sink writes the number of rows that are read, divided by this."""

SINK_TOPIC: Final = "spark-sink"
TOPIC: Final = "spark"


def memory_batches(count: int) -> Iterator[Any]:
    """Return the same record batch of a topic's rows again and again, `count` rows in all."""
    import numpy as np
    import pyarrow as pa

    noise = pa.py_buffer(np.random.default_rng(1).bytes(PIECE_ROWS * MESSAGE_SIZE_BYTES))
    begins = pa.py_buffer(np.arange(PIECE_ROWS + 1, dtype=np.int32) * MESSAGE_SIZE_BYTES)
    rows = pa.Array.from_buffers(pa.binary(), PIECE_ROWS, [None, begins, noise])
    schema = arrow_schema(DEFAULT_COLUMNS)
    numbers = pa.array(np.arange(PIECE_ROWS))
    times = numbers.view(schema.field("timestamp").type)
    found = {
        "topic": pa.repeat(TOPIC, PIECE_ROWS), "partition": pa.repeat(pa.scalar(0, pa.int32()), PIECE_ROWS),
        "offset": numbers, "timestamp": times, "append_time": times, "key": pa.nulls(PIECE_ROWS, pa.binary()),
        "value": rows, "tag": pa.nulls(PIECE_ROWS, pa.string()),
    }  # fmt: skip
    batch = pa.RecordBatch.from_arrays([found[name] for name in DEFAULT_COLUMNS], schema=schema)
    for left in range(count, 0, -PIECE_ROWS):
        yield batch.slice(0, left)


def _memory_source(called: str, count: int) -> Any:
    """Make a data source that gives rows from memory.

    The class is made in a function, so that Spark's workers get its code by value.
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

    columns = ddl(DEFAULT_COLUMNS)

    class Batch(DataSourceReader):
        def partitions(self) -> list[Any]:
            return [InputPartition(number) for number in range(PARTITIONS)]

        def read(self, partition: Any) -> Iterator[Any]:
            return memory_batches(count // PARTITIONS)

    class Stream(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"at": 0}

        def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
            return {"at": min(start["at"] + 1, STREAM_BATCHES)}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Any]:
            return [InputPartition(number) for number in range(PARTITIONS)]

        def read(self, partition: Any) -> Iterator[Any]:
            return memory_batches(count // PARTITIONS // STREAM_BATCHES)

    class Memory(DataSource):
        @classmethod
        def name(cls) -> str:
            return called

        def schema(self) -> str:
            return columns

        def reader(self, schema: Any) -> Any:
            return Batch()

        def streamReader(self, schema: Any) -> Any:  # noqa: N802
            return Stream()

    return Memory


class _Runs:
    """Runs the measurements in their order. All methods block."""

    def __init__(self, spark: SparkSession, bootstrap: str, count: int, directory: Path) -> None:
        self._spark = spark
        self._options = {"bootstrap": bootstrap, "topic": TOPIC}
        self._count = count
        self._directory = directory
        spark.dataSource.register(_memory_source("memory", count))
        spark.dataSource.register(_memory_source("memory_sink", count // SINK_SHARE))

    def all(self, progress: Progress, kafka_address: str | None) -> list[Figure]:
        """Measure one figure after the other. The first run of each kind only warms up.

        Args:
            progress: Called with a text for each step.
            kafka_address: The Kafka broker to compare with; None: do not compare.
        """
        rates: dict[str, float] = {}
        kinds: dict[str, Callable[[], None]] = {
            "bridge": lambda: self._batch(self._spark.read.format("memory").load()),
            "batch": lambda: self._batch(self._topic().load()),
            "bridge_stream": lambda: self._stream("memory", {}),
            "stream": lambda: self._stream(
                "seriatim", self._options | {"maxRowsPerTrigger": str(-(-self._count // STREAM_BATCHES))}
            ),
        }
        for name, kind in kinds.items():
            progress(name)
            kind()
            begin = time.monotonic()
            kind()
            rates[name] = self._count / (time.monotonic() - begin)
        read = self._topic().option("columns", "offset").load().count()
        problem = "" if read == self._count else f"{read} rows were read, and {self._count} were sent"
        progress("audit")
        return [
            Figure("bridge", "from memory, a batch read", rates["bridge"], "msg/s", higher_is_better=True),
            Figure(
                "batch", "a batch read of the topic", rates["batch"], "msg/s", AIM_OF_BRIDGE * rates["bridge"], True,
                problem=problem,
            ),
            Figure("bridge_stream", "from memory, as a stream", rates["bridge_stream"], "msg/s", higher_is_better=True),
            Figure(
                "stream", f"the topic as a stream, {STREAM_BATCHES} micro-batches", rates["stream"], "msg/s",
                AIM_OF_BRIDGE * rates["bridge_stream"], True, problem=problem,
            ),
            self._audit(),
            self._sink(progress),
            *([] if kafka_address is None else self._beside_kafka(kafka_address, progress)),
        ]  # fmt: skip

    def _beside_kafka(self, address: str, progress: Progress) -> list[Figure]:
        return kafka_source.compare(self._spark, lambda: self._topic().load(), address, self._count, progress)

    def _topic(self) -> Any:
        return self._spark.read.format("seriatim").options(**self._options)

    def _batch(self, rows: DataFrame) -> None:
        rows.write.format("noop").mode("overwrite").save()

    def _stream(self, source: str, options: dict[str, str]) -> None:
        checkpoint = self._directory / f"checkpoint-{time.monotonic_ns()}"
        rows = self._spark.readStream.format(source).options(**options).load()
        if source == "memory":  # its query does not end by itself
            query = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
            while len(query.recentProgress) < STREAM_BATCHES:
                time.sleep(0.005)
            query.stop()
        else:
            writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
            writer.trigger(availableNow=True).start().awaitTermination()

    def _sink(self, progress: Progress) -> Figure:
        progress("writing")
        rows = self._spark.read.format("memory_sink").load().select("value")
        count, runs, took = self._count // SINK_SHARE, 2, 0.0
        for _ in range(runs):
            begin = time.monotonic()
            rows.write.format("seriatim").mode("append").options(**self._options | {"topic": SINK_TOPIC}).save()
            took = time.monotonic() - begin
        written = self._topic().options(topic=SINK_TOPIC, columns="offset").load().count()
        problem = "" if written == runs * count else f"{written} rows are in the topic, and {runs * count} were written"
        text = f"{count:,} rows written as one publication"
        return Figure("sink", text, count / took, "msg/s", SINK_AIM, higher_is_better=True, problem=problem)

    def _audit(self) -> Figure:
        from seriatim_spark.pipelines import archive, audit

        directory = str(self._directory / "archive")
        archive.run(
            self._options, directory, str(self._directory / "checkpoint"), every=None, file_rows=500_000, group=None
        )
        took, problem = 0.0, ""
        for _ in range(2):
            begin = time.monotonic()
            report = audit.run(
                {}, directory, whole=False, per_key=False, key_sequence=None, output=None, run_name="bench"
            )
            took = time.monotonic() - begin
            rows = sum(one.rows for one in report)
            if audit.findings_of(report) or rows != self._count:
                problem = f"{len(audit.findings_of(report))} findings in {rows} rows"
        text = "an audit of its archive, without checksums"
        return Figure("audit", text, self._count / took, "msg/s", AUDIT_AIM, higher_is_better=True, problem=problem)


async def _measure(directory: Path, progress: Progress, count: int, *, beside_kafka: bool) -> list[Figure]:
    progress("starting Spark")
    jars = kafka_broker.connector_jars() if beside_kafka else ""
    # First: it forks, which a process that uses gRPC should not do.
    spark = await asyncio.to_thread(
        start_session, "bench", "local[2]", driver__memory="2g", sql__shuffle__partitions="2",
        **({"jars": jars} if jars else {}),
    )  # fmt: skip
    try:
        async with AsyncExitStack() as stack:
            address = None
            if beside_kafka:
                progress("starting Kafka")
                address = await stack.enter_async_context(kafka_broker.broker(directory / "kafka", PARTITIONS))
            cluster = await stack.enter_async_context(
                LocalCluster(directory / "cluster", groups=1, members=2, proxy=False, name="bench")
            )
            progress("sending")
            async with Client.connect(cluster.bootstrap) as client:
                await client.admin().create_topic(TOPIC, PARTITIONS)
                await client.admin().create_topic(SINK_TOPIC, PARTITIONS)
                async with client.producer(TOPIC) as producer:
                    sent = await send_while(producer, pieces(PIECE_ROWS), PARTITIONS, lambda done: done < count)
            assert sent.ok == count, sent.ok
            runs = _Runs(spark, ",".join(cluster.bootstrap), count, directory)
            return await asyncio.to_thread(runs.all, progress, address)
    finally:
        await asyncio.to_thread(spark.stop)


def main() -> int:
    parser = argparse.ArgumentParser(description="how fast Spark reads and writes a topic")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MESSAGES:,} messages instead of {MESSAGES:,}")
    parser.add_argument("--kafka", action="store_true", help="compare with Spark's source of Kafka (Maven gets it)")
    given = parser.parse_args()
    count = QUICK_MESSAGES if given.quick else MESSAGES
    if given.kafka and not kafka_broker.fits_spark():
        print(
            f"Spark's source of Kafka is there for Spark {kafka_broker.SPARK} only: KAFKA=1 SPARK={kafka_broker.SPARK}",
            file=sys.stderr,
        )
        return 2
    title = f"{count:,} messages of {MESSAGE_SIZE_BYTES} B of {PARTITIONS} partitions, read and written by Spark"
    return run(
        "spark", lambda directory, progress: _measure(directory, progress, count, beside_kafka=given.kafka), title
    )


if __name__ == "__main__":
    sys.exit(main())
