"""Batch reads of real topics on real Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from seriatim import sync
from seriatim_api.ids import split_offset
from seriatim_spark.columns import COLUMNS, arrow_schema, ddl

from .conftest import Brokers
from .filling import Filled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S = 60.0


def load(spark: SparkSession, topic: Filled, **options: str) -> Any:
    return spark.read.format("seriatim").options(**topic.options, **options).load()


def test_the_types_of_all_columns_are_those_that_spark_expects(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    columns = tuple(COLUMNS)
    assert to_arrow_schema(StructType.fromDDL(ddl(columns)), timezone="UTC").equals(arrow_schema(columns))


def test_what_was_sent_is_read_in_its_order(spark: SparkSession, client: sync.Client, brokers: Brokers) -> None:
    topic = Filled(client, brokers.bootstrap, "batch", 3)
    topic.send([3_000, 2_000, 0], headers=True)
    topic.switch(0)
    topic.send([1_500, 0, 0])
    rows = load(spark, topic, columns="*,headers,segment,producer,epoch,sequence,passed", minPartitions="2").collect()
    for partition, sent in topic.values.items():
        found = [row for row in rows if row["partition"] == partition]
        assert [bytes(row["value"]) for row in found] == sent
        offsets = [row["offset"] for row in found]
        assert offsets == sorted(offsets)
        assert [row["segment"] for row in found] == [split_offset(offset)[0] for offset in offsets]
        assert all(row["topic"] == "batch" and len(row["producer"]) == 16 for row in found)
    first = next(row for row in rows if row["partition"] == 0)
    assert (bytes(first["key"]), [tuple(pair) for pair in first["headers"]]) == (b"key-0", [("n", b"0")])
    assert abs(first["append_time"].timestamp() - time.time()) < 3600
    assert {row["passed"] for row in rows} == {0}


def test_columns_and_places_are_chosen(spark: SparkSession, client: sync.Client, brokers: Brokers) -> None:
    topic = Filled(client, brokers.bootstrap, "chosen", 2)
    topic.send([500, 300])
    table = load(spark, topic, columns="offset,value", partitions="1", startingOffsets='{"chosen": {"1": "1:250"}}')
    assert table.columns == ["offset", "value"]
    assert [bytes(row["value"]) for row in table.collect()] == topic.values[1][250:]
    assert load(spark, topic).count() == 800
    assert load(spark, topic, startingOffsets="latest").count() == 0


def test_without_order_ranges_are_cut(spark: SparkSession, client: sync.Client, brokers: Brokers) -> None:
    topic = Filled(client, brokers.bootstrap, "cut", 1)
    topic.send([4_000], size=200)
    table = load(spark, topic, ordering="none", maxBytesPerPartition="64KiB", minPartitions="4")
    assert table.rdd.getNumPartitions() >= 4
    assert [bytes(row["value"]) for row in table.collect()] == topic.values[0], "tasks in their order are the order"
    assert load(spark, topic).rdd.getNumPartitions() == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topik": "x"}, "did you mean topic?"),
        ({"startingOffsets": '{"wrong": {"0": "9:0"}}'}, "lies after the end of wrong/0"),
        ({"topic": "nowhere"}, "there is no topic 'nowhere'"),
        ({"tlsCa": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
    ],
)
def test_wrong_options_are_one_clear_error(
    spark: SparkSession, client: sync.Client, brokers: Brokers, options: dict[str, str], told: str
) -> None:
    if "wrong" not in [topic.name for topic in client.admin().list_topics()]:
        Filled(client, brokers.bootstrap, "wrong").send([10])
    given = {"bootstrap": brokers.bootstrap, "topic": "wrong"} | options
    with pytest.raises(Exception, match=r"seriatim|PYTHON") as refused:
        spark.read.format("seriatim").options(**given).load().count()
    assert told in str(refused.value)


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_cluster_that_does_not_answer_is_one_clear_error(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    given = {"bootstrap": "127.0.0.1:9", "topic": "orders", "readTimeout": "1s"}

    def read() -> None:
        if kind == "batch":
            spark.read.format("seriatim").options(**given).load().count()
        else:
            stream = spark.readStream.format("seriatim").options(**given).load().writeStream.format("noop")
            stream.option("checkpointLocation", str(tmp_path)).start().awaitTermination(WAIT_S)

    begun = time.monotonic()
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9") as refused:
        read()
    assert "ClusterError" in str(refused.value)
    assert time.monotonic() - begun < WAIT_S / 2, "it is not tried for ever"


def test_another_schema_is_refused(spark: SparkSession, client: sync.Client, brokers: Brokers) -> None:
    given = {"bootstrap": brokers.bootstrap, "topic": "orders"}
    with pytest.raises(Exception, match="leave schema\\(\\) out"):
        spark.read.format("seriatim").schema("value string").options(**given).load().count()


def test_a_broker_killed_while_a_task_reads_costs_nothing(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    """The task is held in the middle of its range until the master of what it reads is killed."""
    topic = Filled(client, brokers.bootstrap, "killed")
    topic.send([60_000], size=500)
    topic.switch()
    topic.send([1_000])
    begun, struck = tmp_path / "begun", tmp_path / "struck"

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 1:
                begun.touch()
                until = time.monotonic() + WAIT_S
                while not struck.exists() and time.monotonic() < until:
                    time.sleep(0.05)
            yield batch.select(["offset", "value"])

    import threading

    def strike() -> None:
        until = time.monotonic() + WAIT_S
        while not begun.exists() and time.monotonic() < until:
            time.sleep(0.05)
        chain = client.admin().describe_chain(topic.name, 0)
        brokers.kill(chain.segments[0].members[0])
        struck.touch()

    striker = threading.Thread(target=strike)
    striker.start()
    try:
        rows = load(spark, topic).mapInArrow(hold, "offset bigint, value binary").collect()
    finally:
        striker.join()
        brokers.whole()
    assert struck.exists()
    assert [bytes(row["value"]) for row in rows] == topic.values[0]
