"""Writing to real topics with real Spark: once and in order, through kills of tasks, commits, brokers and drivers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from seriatim import partition_of_key, sync
from seriatim_spark import open_writer

from e2e.spark_faults.striking import MOMENTS, ask, register

from .conftest import Brokers
from .filling import Filled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_S = 60.0
ROWS = ("key", "value", "timestamp", "headers", "tag", "partition")


def content(client: sync.Client, topic: str) -> dict[int, list[bytes]]:
    """The values of each partition, as a reader gets them."""
    found: dict[int, list[bytes]] = {}
    for number in range(client.admin().describe_topic(topic).topic.partition_count):
        with client.read_range(topic, number) as reader:
            found[number] = [message.value for message in reader]
    return found


def target(client: sync.Client, brokers: Brokers, name: str, partitions: int = 2) -> dict[str, str]:
    """A new topic, and the sink's options for it."""
    client.admin().create_topic(name, partitions)
    return {"bootstrap": brokers.bootstrap, "topic": name}


def rows_of(spark: SparkSession, topic: Filled, **options: str) -> Any:
    reader = spark.readStream.format("seriatim").options(**topic.options, **options)
    return reader.option("columns", "*,headers").load().select(*ROWS)


def write(rows: Any, options: dict[str, str], checkpoint: Path, kind: str = "seriatim") -> Any:
    """A stream of all that is there; raises what ended it."""
    writer = rows.writeStream.format(kind).options(**options).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_S)
    return query


def numbered(spark: SparkSession, count: int, **columns: str) -> DataFrame:
    chosen = ["cast(id as string) as value", *(f"{text} as {name}" for name, text in columns.items())]
    return spark.range(0, count, 1, 2).selectExpr(*chosen)


def save(rows: Any, options: dict[str, str], mode: str = "append") -> None:
    rows.write.format("seriatim").mode(mode).options(**options).save()


# ---- what is written ----


def test_a_job_writes_its_rows_where_they_belong(spark: SparkSession, client: sync.Client, brokers: Brokers) -> None:
    by_key = target(client, brokers, "by-key", 3)
    save(numbered(spark, 3_000, key="concat('k', id % 10)"), by_key)
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for number in range(3_000):
        expected[partition_of_key(b"k%d" % (number % 10), 3)].append(b"%d" % number)
    assert content(client, "by-key") == expected

    told = target(client, brokers, "told")
    save(numbered(spark, 500, partition="cast(id % 2 as int)"), told)
    assert content(client, "told") == {half: [b"%d" % n for n in range(half, 500, 2)] for half in (0, 1)}

    by_task = target(client, brokers, "by-task")
    save(numbered(spark, 500), by_task)
    assert content(client, "by-task") == {0: [b"%d" % n for n in range(250)], 1: [b"%d" % n for n in range(250, 500)]}
    assert all(writer.ephemeral for writer in client.admin().list_writers("by-task"))


def test_a_named_job_that_runs_again_writes_nothing_more(
    spark: SparkSession, client: sync.Client, brokers: Brokers
) -> None:
    options = target(client, brokers, "nightly")
    opened = open_writer(options, "report")
    assert opened.sequence is None
    rows = numbered(spark, 1_000, key="concat('k', id)")
    save(rows, opened.options | {"sequence": "5"})
    before = content(client, "nightly")
    assert sum(map(len, before.values())) == 1_000
    opened = open_writer(options, "report")
    assert opened.sequence == 5
    save(rows, opened.options | {"sequence": "5"})
    assert content(client, "nightly") == before
    fewer = rows.where("value <> '7'")
    with pytest.raises(Exception, match=r"ReplayDiffersError.*onReplayMismatch"):
        save(fewer, opened.options | {"sequence": "5"})
    save(fewer, opened.options | {"sequence": "5", "onReplayMismatch": "accept"})
    with pytest.raises(Exception, match="WriterConflictError"):
        save(rows, opened.options | {"sequence": "4"})
    assert content(client, "nightly") == before
    save(spark.range(0).selectExpr("'x' as value", "'k' as key"), opened.options | {"sequence": "9"})
    save(rows, opened.options | {"sequence": "6"})
    assert sum(map(len, content(client, "nightly").values())) == 2_000


def test_a_stream_copies_a_topic_and_goes_on_after_a_restart(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    topic = Filled(client, brokers.bootstrap, "copied", 2)
    topic.send([3_000, 2_000], headers=True)
    options = target(client, brokers, "copy")
    write(rows_of(spark, topic, maxRowsPerTrigger="1500"), options, tmp_path)
    assert content(client, "copy") == topic.values
    (writer,) = client.admin().list_writers("copy")
    assert (writer.state, writer.sequence) == ("DONE", 3)
    topic.send([10, 700], headers=True)
    write(rows_of(spark, topic), options, tmp_path)
    assert content(client, "copy") == topic.values
    with client.read_range("copied", 0) as source, client.read_range("copy", 0) as copy:
        for one, other in zip(source, copy, strict=True):
            assert (one.key, one.value, one.headers, one.timestamp_ms) == (
                other.key, other.value, other.headers, other.timestamp_ms,
            )  # fmt: skip


def sent_with_nulls(client: sync.Client, name: str) -> list[tuple[bytes | None, list[tuple[str, bytes | None]]]]:
    """A new topic with one partition, whose messages have null values and repeated headers."""
    client.admin().create_topic(name, 1)
    pairs = [("n", None), ("", b""), ("n", b"2"), ("a", None), ("n", b"1")]
    rows = [(None, pairs), (b"", []), (b"v", pairs[::-1]), (None, [])]
    with client.producer(name) as producer:
        headers = [row for _, row in rows]
        producer.send_many([value for value, _ in rows], [b"k"] * 4, 0, headers=headers).result()
    return rows


def found_with_nulls(client: sync.Client, name: str) -> list[tuple[bytes | None, list[tuple[str, bytes | None]]]]:
    with client.read_range(name, 0) as reader:
        return [(None if one.value_is_null else one.value, list(one.header_list)) for one in reader]


def test_nulls_and_repeated_headers_are_read_and_written(
    spark: SparkSession, client: sync.Client, brokers: Brokers
) -> None:
    sent = sent_with_nulls(client, "nulls")
    reader = spark.read.format("seriatim").options(bootstrap=brokers.bootstrap, topic="nulls")
    rows = reader.option("columns", "key,value,headers,partition").load().coalesce(1)
    assert [(row["value"], [tuple(pair) for pair in row["headers"]]) for row in rows.collect()] == sent
    save(rows, target(client, brokers, "nulls-copy", 1))
    assert found_with_nulls(client, "nulls-copy") == sent
    last = rows.selectExpr("key", "value", "map_from_entries(slice(headers, 1, 2)) as headers", "partition")
    save(last.where("size(headers) > 0"), target(client, brokers, "maps", 1))
    assert found_with_nulls(client, "maps") == [(value, pairs[:2]) for value, pairs in sent if pairs]


def test_in_foreach_batch_a_writer_is_named(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    topic = Filled(client, brokers.bootstrap, "each", 2)
    topic.send([300, 200])
    options = target(client, brokers, "each-copy")
    opened = open_writer(options, "each")
    failures = [RuntimeError("after the write")]

    def named(rows: DataFrame, batch: int) -> None:
        save(rows, opened.options | {"sequence": str(batch)})
        if failures:
            raise failures.pop()

    def run(into: Any, checkpoint: Path) -> None:
        stream = rows_of(spark, topic, maxRowsPerTrigger="250")
        writer = stream.writeStream.foreachBatch(into).option("checkpointLocation", str(checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(WAIT_S)

    with pytest.raises(Exception, match="after the write"):
        run(named, tmp_path / "named")
    run(named, tmp_path / "named")
    assert content(client, "each-copy") == topic.values
    with pytest.raises(Exception, match="would be written twice"):
        run(lambda rows, _batch: save(rows, options), tmp_path / "unnamed")
    assert content(client, "each-copy") == topic.values


# ---- faults ----


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_at_any_moment_writes_nothing_twice(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path, moment: str
) -> None:
    name = moment.replace(" ", "-")
    topic = Filled(client, brokers.bootstrap, f"from-{name}", 2)
    topic.send([900, 600], size=200)
    options = target(client, brokers, f"to-{name}")
    kind = register(spark, tmp_path)
    asked = tmp_path / moment
    rows = rows_of(spark, topic, maxRowsPerTrigger="500")
    for batch in (0, 0, 2):
        ask(tmp_path, moment, batch)
        try:
            write(rows, options, tmp_path / "checkpoint", kind)
        except Exception as exc:  # a task is tried again by Spark itself, a commit is not
            assert "publishing" in moment, exc  # noqa: PT017
        else:
            assert "task" in moment
        assert not asked.exists()
        topic.send([300, 200], size=200)
    write(rows, options, tmp_path / "checkpoint", kind)
    assert content(client, options["topic"]) == topic.values


def test_brokers_killed_while_a_stream_writes_cost_nothing(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    topic = Filled(client, brokers.bootstrap, "from-brokers", 2)
    topic.send([4_000, 4_000], size=500)
    options = target(client, brokers, "to-brokers")
    killed: list[str] = []

    def each(rows: DataFrame, batch: int) -> None:
        if batch in (1, 3):
            brokers.whole()
            member = client.admin().describe_chain("to-brokers", batch % 2).segments[-1].members[0]
            brokers.kill(member)
            killed.append(member)
        save(rows, opened.options | {"sequence": str(batch)})

    opened = open_writer(options, "struck")
    try:
        stream = rows_of(spark, topic, maxRowsPerTrigger="1600")
        writer = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path))
        assert writer.trigger(availableNow=True).start().awaitTermination(2 * WAIT_S)
    finally:
        brokers.whole()
    assert len(killed) == 2
    assert content(client, "to-brokers") == topic.values


def test_a_zombie_driver_publishes_nothing(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    """Two drivers of one checkpoint: the one that opened the writer last continues, the other one ends."""
    topic = Filled(client, brokers.bootstrap, "from-zombie", 1)
    topic.send([400])
    options = target(client, brokers, "to-zombie", 1)
    zombie = open_writer(options, "copier")
    writer = rows_of(spark, topic).writeStream.format("seriatim").options(**zombie.options)
    query = writer.option("checkpointLocation", str(tmp_path / "zombie")).start()
    try:
        query.processAllAvailable()
        assert content(client, "to-zombie") == topic.values
        open_writer(options, "copier")
        topic.send([300])
        with pytest.raises(Exception, match=r"WriterConflictError.*was opened again"):
            query.awaitTermination(WAIT_S)
        assert not query.isActive
        assert [len(values) for values in content(client, "to-zombie").values()] == [400]
    finally:
        query.stop()
    restarted = open_writer(options, "copier")
    assert restarted.sequence == 0
    write(rows_of(spark, topic), restarted.options, tmp_path / "zombie")
    assert content(client, "to-zombie") == topic.values


# ---- bad input ----


def test_two_queries_with_one_writer_are_refused(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    """Also a query with a new checkpoint, and one with an older copy of its checkpoint."""
    import shutil

    topic = Filled(client, brokers.bootstrap, "from-two", 1)
    topic.send([100])
    options = target(client, brokers, "to-two", 1) | {"writer": "same"}
    write(rows_of(spark, topic), options, tmp_path / "one")
    with pytest.raises(Exception, match=r"WriterConflictError.*two queries use one writer"):
        write(rows_of(spark, topic), options, tmp_path / "two")
    shutil.copytree(tmp_path / "one", tmp_path / "older")
    for _ in range(2):
        topic.send([50])
        write(rows_of(spark, topic), options, tmp_path / "one")
    with pytest.raises(Exception, match=r"WriterConflictError.*than the checkpoint knows"):
        write(rows_of(spark, topic), options, tmp_path / "older")
    assert content(client, "to-two") == topic.values


def test_a_plan_that_is_not_deterministic_is_told(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    topic = Filled(client, brokers.bootstrap, "from-random", 1)
    topic.send([400])
    options = target(client, brokers, "to-random", 1)
    kind = register(spark, tmp_path)

    def half() -> Any:
        return rows_of(spark, topic).where("rand() < 0.5")  # Spark takes another seed each time

    ask(tmp_path, "after publishing")
    with pytest.raises(Exception, match="worker"):
        write(half(), options, tmp_path / "checkpoint", kind)
    first = content(client, "to-random")
    with pytest.raises(Exception, match=r"ReplayDiffersError.*not deterministic"):
        write(half(), options, tmp_path / "checkpoint")
    assert content(client, "to-random") == first
    write(half(), options | {"onReplayMismatch": "accept"}, tmp_path / "checkpoint")
    assert content(client, "to-random") == first


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ({}, {"writter": "x"}, "did you mean writer"),
        ({}, {"startingOffsets": "latest"}, "is for reading a topic"),
        ({}, {"writer": "x"}, "only one of writer and sequence"),
        ({}, {"topic": "nowhere"}, "there is no topic 'nowhere'"),
        ({}, {"bootstrap": "127.0.0.1:9", "writeTimeout": "1s"}, "ClusterError.*127.0.0.1:9"),
        ({"offset": "id"}, {}, "no message has a column 'offset'"),
        ({"partition": "cast(id as double)"}, {}, "'partition' is double"),
        ({"key": "case when id <> 77 then 'k' end"}, {}, "RowError.*no key"),
        ({"partition": "case when id <> 77 then 0 end"}, {}, "RowError.*no partition"),
        ({"partition": "cast(id as int)"}, {}, "RowError.*partitions 0 to 1"),
        ({"key": "repeat('x', 2000000)"}, {}, "RowError"),
    ],
)
def test_bad_input_of_a_job_is_one_clear_error(
    spark: SparkSession,
    client: sync.Client,
    brokers: Brokers,
    columns: dict[str, str],
    options: dict[str, str],
    told: str,
) -> None:
    if "bad" not in [topic.name for topic in client.admin().list_topics()]:
        target(client, brokers, "bad")
    given = {"bootstrap": brokers.bootstrap, "topic": "bad"} | options
    begun = time.monotonic()
    with pytest.raises(Exception, match=f"(?s){told}"):
        save(numbered(spark, 100, **columns), given)
    assert time.monotonic() - begun < WAIT_S / 2
    assert content(client, "bad") == {0: [], 1: []}


def test_wrong_modes_and_options_take_nothing_away(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    options = target(client, brokers, "kept")
    with pytest.raises(Exception, match="use mode append"):
        save(numbered(spark, 10, key="'k'"), options, "overwrite")
    stream = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value", "'k' as key")
    with pytest.raises(Exception, match="leave sequence out"):
        write(stream, options | {"sequence": "1", "writer": "w"}, tmp_path)
