"""Streaming reads of real topics on real Spark."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from seriatim import TopicSettings, sync
from seriatim_api.ids import make_offset

from .conftest import Brokers
from .filling import Filled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_S = 60.0


class Stream:
    """A query over a topic, with its checkpoint; what it has given, by micro-batch."""

    def __init__(self, spark: SparkSession, topic: Filled, checkpoint: Path) -> None:
        self._spark = spark
        self._topic = topic
        self._checkpoint = checkpoint
        self.batches: list[dict[int, list[bytes]]] = []

    def run(self, **options: str) -> Any:
        """All that is there now; returns the query, which has ended."""

        def take(rows: DataFrame, _batch: int) -> None:
            found: dict[int, list[bytes]] = {}
            for row in rows.collect():
                found.setdefault(row["partition"], []).append(bytes(row["value"]))
            self.batches.append(found)

        stream = self._spark.readStream.format("seriatim").options(**self._topic.options, **options).load()
        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
        return query

    @property
    def values(self) -> dict[int, list[bytes]]:
        """Of all batches, in their order."""
        found: dict[int, list[bytes]] = {}
        for batch in self.batches:
            for partition, values in batch.items():
                found.setdefault(partition, []).extend(values)
        return found


def test_five_batches_are_the_topic_and_a_restart_goes_on(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    topic = Filled(client, brokers.bootstrap, "stream", 2)
    topic.send([6_000, 4_000])
    stream = Stream(spark, topic, tmp_path)
    query = stream.run(maxRowsPerTrigger="2000")
    assert [sum(map(len, batch.values())) for batch in stream.batches] == [2000] * 5
    assert stream.values == topic.values
    source = query.lastProgress["sources"][0]
    assert json.loads(source["endOffset"])["t"]["stream"]["p"] == {"0": "1:6000", "1": "1:4000"}

    stream.run()
    assert len(stream.batches) == 5, "there is nothing new"
    topic.switch()
    topic.send([500, 0])
    stream.run()
    assert stream.values == topic.values
    assert len(stream.batches) == 6


def test_the_lag_of_a_query_is_seen_by_the_cluster(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    from seriatim_spark import report_progress

    topic = Filled(client, brokers.bootstrap, "lagging")
    topic.send([1_000])
    listener = report_progress(spark, {"bootstrap": brokers.bootstrap}, group="billing", query="lagging")
    try:
        stream = spark.readStream.format("seriatim").options(**topic.options).load()
        writer = stream.writeStream.format("noop").queryName("lagging").option("checkpointLocation", str(tmp_path))
        assert writer.trigger(availableNow=True).start().awaitTermination(WAIT_S)
        topic.send([250])
        until = time.monotonic() + WAIT_S
        while True:
            if "billing" in client.admin().list_groups(topic.name):
                (row,) = client.admin().describe_group(topic.name, "billing").partitions
                if (row.external, row.lag) == (True, 250):
                    break
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        spark.streams.removeListener(listener)
        listener.close()


def test_retention_under_a_checkpoint_is_an_error_or_a_gap(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    topic = Filled(client, brokers.bootstrap, "dropped", settings=TopicSettings(retention_ms=0))
    topic.send([2_000], size=1000)
    stream = Stream(spark, topic, tmp_path)
    stream.run(startingOffsets=json.dumps({"dropped": {"0": "1:1900"}}))
    assert len(stream.values[0]) == 100
    topic.send([4_000], size=1000)
    client.admin().update_topic("dropped", retention_bytes=1 << 20)
    until = time.monotonic() + WAIT_S
    while (kept := client.retained("dropped")[0]).offset <= make_offset(1, 2_000):
        assert time.monotonic() < until
        time.sleep(0.1)
    with pytest.raises(Exception, match="failOnDataLoss=false") as refused:
        stream.run()
    assert "dropped/0 from 1:2000" in str(refused.value)
    stream.run(failOnDataLoss="false")
    assert stream.values[0][100:] == topic.values[0][-len(stream.values[0]) + 100 :]
    assert len(stream.values[0]) - 100 <= kept.messages


def test_a_topic_made_again_under_a_checkpoint_is_an_error(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    topic = Filled(client, brokers.bootstrap, "again")
    topic.send([100])
    stream = Stream(spark, topic, tmp_path)
    stream.run()
    client.admin().delete_topic("again")
    with pytest.raises(Exception, match="there is no topic 'again'"):
        stream.run(readTimeout="5s")
    Filled(client, brokers.bootstrap, "again").send([200])
    with pytest.raises(Exception, match="not the one that this query has read"):
        stream.run()
    assert len(stream.values[0]) == 100


def test_a_new_partition_is_read_from_its_first_message(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    topic = Filled(client, brokers.bootstrap, "growing")
    topic.send([100])
    stream = Stream(spark, topic, tmp_path)
    stream.run()
    client.admin().update_topic("growing", 2)
    topic.send([10, 50])
    stream.run()
    assert stream.values == topic.values
