"""Pipelines on real topics: an archive is complete, an audit says so, and says when it is not."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from seriatim import sync
from seriatim_spark.applying import read_table
from seriatim_spark.pipelines import archive as archive_pipeline
from seriatim_spark.pipelines.commands import FINDINGS_STATUS, main

from .conftest import Brokers
from .filling import Filled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S = 120.0

pytestmark = pytest.mark.usefixtures("spark")


def run(*arguments: str, status: int = 0) -> str:
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == status, found.output
    return found.output


def test_an_archive_holds_every_message_once_and_an_audit_finds_what_is_changed(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    topic = Filled(client, brokers.bootstrap, "_" + "a" * 248, 2)
    topic.send([3_000, 1_000], headers=True)
    topic.switch()
    topic.send([700, 0])
    reading = ("--bootstrap", brokers.bootstrap, "--topic", topic.name)
    archive, checkpoint = str(tmp_path / "archive"), str(tmp_path / "checkpoint")
    writing = ("archive", *reading, "--to", archive, "--checkpoint", checkpoint, "--group", "archive", "--once")
    assert f"{topic.rows:,} rows written" in run(*writing, "--file-rows", "1000")
    partitions = client.admin().describe_group(topic.name, "archive").partitions
    assert [(row.external, row.lag) for row in partitions] == [(True, 0)] * 2, "the last micro-batch is reported too"
    topic.send([0, 55])
    assert "--file-rows 1000" in run(*writing, status=1)
    assert "55 rows written" in run(*writing, "--file-rows", "1000")
    assert "0 rows written" in run(*writing, "--file-rows", "1000")
    rows = spark.read.parquet(archive).orderBy("partition", "offset").collect()
    for partition, sent in topic.values.items():
        assert [bytes(row["value"]) for row in rows if row["partition"] == partition] == sent
    for more in ((), ("--no-checksums",)):
        assert "whole, in order, without repeats" in run("audit", "--archive", archive, *more)
    assert "stands in partitions 0, 1" in run("audit", "--archive", archive, "--per-key", status=FINDINGS_STATUS)
    picture = tmp_path / "audit.svg"
    output = run("audit", *reading, "--output", str(tmp_path / "audits"), "--picture", str(picture))
    assert f"{topic.rows:,} messages in 2 partitions: whole" in output
    assert spark.read.parquet(str(tmp_path / "audits" / "run=latest")).count() == 2
    assert "<svg" in picture.read_text()

    one, other = sorted((tmp_path / "archive").rglob("partition=0/**/*.parquet"))[:2]
    whole = one.read_bytes()
    one.write_bytes(whole[:-100])
    assert "cannot be read" in run("audit", "--archive", archive, status=FINDINGS_STATUS)
    file = pq.ParquetFile(other)
    table, metadata = pq.read_table(other, partitioning=None), file.schema_arrow.metadata
    footer = {b"seriatim.archive": file.metadata.metadata[b"seriatim.archive"], **(metadata or {})}
    pq.write_table(table.slice(0, table.num_rows - 1).replace_schema_metadata(footer), other)
    one.write_bytes(whole)
    told = run("audit", "--archive", archive, status=FINDINGS_STATUS)
    assert "hole" in told
    assert "checksum" in told
    other.unlink()
    assert "nothing covers" in run("audit", "--archive", archive, status=FINDINGS_STATUS)


@pytest.mark.slow
def test_a_segment_that_is_missing_is_found(client: sync.Client, brokers: Brokers, tmp_path: Path) -> None:
    """Rows do not show how long a segment was: a note of the archive does."""
    topic = Filled(client, brokers.bootstrap, "bordered")
    topic.send([100])
    topic.switch()
    topic.send([50])
    archive = tmp_path / "archive"
    reading = ("--bootstrap", brokers.bootstrap, "--topic", "bordered")
    run("archive", *reading, "--to", str(archive), "--checkpoint", str(tmp_path / "checkpoint"), "--once")
    assert "whole" in run("audit", "--archive", str(archive))
    (note,) = archive.rglob("_ranges/*.json")
    note.write_text(note.read_text().replace('"messages": 150', '"messages": 151'))
    told = run("audit", "--archive", str(archive), status=FINDINGS_STATUS)
    assert "brokers had 151 messages from 1:0 to 2:50, and files hold 150" in told
    note.unlink()
    assert "no note of the archive" in run("audit", "--archive", str(archive), status=FINDINGS_STATUS)


@pytest.mark.slow
def test_nothing_is_left_out_unsaid_while_a_segment_is_unsettled(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    """Both members of the first segment are gone: what was acknowledged there and after cannot be read."""
    topic = Filled(client, brokers.bootstrap, "unsettled")
    topic.send([100])
    members = client.admin().describe_chain("unsettled", 0).segments[-1].members
    try:
        brokers.kill(*members)  # at once, or the second one seals the segment before its own end
        topic.send([50])
        reading = ("--bootstrap", brokers.bootstrap, "--topic", "unsettled", "-o", "readTimeout=2s")
        assert "unsettled: unsettled/0" in run("audit", *reading, status=FINDINGS_STATUS)
        rows = spark.read.format("seriatim").options(**topic.options, readTimeout="2s")
        with pytest.raises(Exception, match="UnsettledError"):
            rows.load().count()
        assert rows.option("failOnDataLoss", "false").load().count() == 0
        writing = ("--to", str(tmp_path / "archive"), "--checkpoint", str(tmp_path / "checkpoint"), "--once")
        assert "before a segment of which no member answers" in run("archive", *reading, *writing, status=1)
    finally:
        brokers.whole()
    assert "150 rows written" in run("archive", *reading, *writing)


@pytest.mark.slow
def test_an_archive_is_exact_although_its_driver_is_killed(
    client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    """Killed twice in the middle of its work, with a broker, while messages are sent."""
    topic = Filled(client, brokers.bootstrap, "struck", 2)
    archive = tmp_path / "archive"
    arguments = (
        "archive", "--bootstrap", brokers.bootstrap, "--topic", "struck", "--to", str(archive), "--checkpoint",
        str(tmp_path / "checkpoint"), "-o", "maxRowsPerTrigger=3000",
    )  # fmt: skip
    topic.send([4_000, 4_000], size=300)
    for strike in range(2):
        before = len(list(archive.rglob("*.parquet")))
        driver = subprocess.Popen([sys.executable, "-m", "seriatim_spark", *arguments, "--every", "1 second"])
        try:
            topic.send([2_000, 2_000], size=300)
            until = time.monotonic() + WAIT_S
            while len(list(archive.rglob("topic=*/**/*.parquet"))) < before + 2:
                assert driver.poll() is None
                assert time.monotonic() < until
                time.sleep(0.02)
            if strike:
                brokers.kill(client.admin().describe_chain("struck", 0).segments[-1].members[0])
        finally:
            driver.kill()
            driver.wait()
    brokers.whole()
    run(*arguments, "--once")
    told = run("audit", "--archive", str(archive))
    assert f"{topic.rows:,} messages in 2 partitions: whole, in order, without repeats" in told


def test_a_directory_belongs_to_one_query(client: sync.Client, brokers: Brokers, tmp_path: Path) -> None:
    topic = Filled(client, brokers.bootstrap, "owned")
    topic.send([100])
    writing = (
        "archive",
        "--bootstrap",
        brokers.bootstrap,
        "--topic",
        "owned",
        "--to",
        str(tmp_path / "archive"),
        "--once",
    )
    run(*writing, "--checkpoint", str(tmp_path / "one"))
    assert "belongs to the query" in run(*writing, "--checkpoint", str(tmp_path / "two"), status=1)


def test_a_key_in_two_partitions_and_a_sequence_that_falls_are_found(client: sync.Client, brokers: Brokers) -> None:
    topic = Filled(client, brokers.bootstrap, "keys", 2)
    topic.send([50, 50], headers=True)
    reading = ("audit", "--bootstrap", brokers.bootstrap, "--topic", "keys")
    told = run(*reading, "--per-key", status=FINDINGS_STATUS)
    assert "key key-0 stands in partitions 0, 1" in told
    run(*reading, "--key-sequence", "n")
    topic.send([50, 0], headers=True)
    assert "n of key" in run(*reading, "--key-sequence", "n", status=FINDINGS_STATUS)


def test_a_wrong_command_line_is_told_before_spark_starts() -> None:
    assert "--archive" in run("audit", status=2)
    assert "did you mean" in run("audit", "--bootstrap", "h:1", "--topic", "t", "-o", "partition=3", status=2)


def test_a_table_follows_its_topic(client: sync.Client, brokers: Brokers, tmp_path: Path) -> None:
    topic = Filled(client, brokers.bootstrap, "changes", 2)
    topic.send([100, 0])
    arguments = (
        "apply", "--bootstrap", brokers.bootstrap, "--topic", "changes", "--to", str(tmp_path / "table"),
        "--checkpoint", str(tmp_path / "checkpoint"), "--once", "--buckets", "4",
    )  # fmt: skip
    assert "7 rows in the table" in run(*arguments)
    with client.producer("changes") as producer:
        producer.send_many([b"", b"new"], [b"key-0", b"key-1"], 0).result()
    run(*arguments)
    table = read_table(str(tmp_path / "table")).to_pydict()
    found = dict(zip(table["key"], table["value"], strict=True))
    newest = {b"key-%d" % (n % 7): b"%d" % n for n in range(100)}
    del newest[b"key-0"]
    assert found == {**newest, b"key-1": b"new"}
    assert "0 changes" in run(*arguments)
    topic.send([0, 1])
    assert "stands in partitions" in run(*arguments, status=1)


def test_keys_of_a_part_of_an_archive_are_told_under_their_topic(
    client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    """Also of a topic whose name looks like a number."""
    topic = Filled(client, brokers.bootstrap, "0042", 2)
    topic.send([20, 20])
    reading = ("--bootstrap", brokers.bootstrap, "--topic", "0042")
    archive = str(tmp_path / "archive")
    run("archive", *reading, "--to", archive, "--checkpoint", str(tmp_path / "checkpoint"), "--once")
    for part in (archive, f"{archive}/topic=0042", f"file:{archive}"):
        told = json.loads(run("audit", "--archive", part, "--per-key", "--json", status=FINDINGS_STATUS))
        assert [one["topic"] for one in told["partitions"]] == ["0042", "0042"]
        found = [finding for one in told["partitions"] for finding in one["findings"]]
        assert {finding["topic"] for finding in found} == {"0042"}
        assert len(found) == 7


def test_what_is_there_at_the_start_is_read_without_pauses_in_limited_micro_batches(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    topic = Filled(client, brokers.bootstrap, "backlog")
    topic.send([300])
    archive, source = str(tmp_path / "archive"), {**topic.options, "maxRowsPerTrigger": "100"}
    thread = threading.Thread(
        target=archive_pipeline.run, args=(source, archive, str(tmp_path / "checkpoint")),
        kwargs={"every": "1 hour", "file_rows": 1000, "group": None}, daemon=True,
    )  # fmt: skip
    thread.start()

    until = time.monotonic() + WAIT_S
    while not (tmp_path / "checkpoint" / "commits" / "2").exists():
        assert thread.is_alive()
        assert time.monotonic() < until
        time.sleep(0.02)
    until = time.monotonic() + WAIT_S
    while thread.is_alive():
        assert time.monotonic() < until
        for query in spark.streams.active:
            query.stop()
        thread.join(0.1)
    assert f"{topic.rows:,} messages in 1 partitions: whole" in run("audit", "--archive", archive)


def test_traffic_is_counted(client: sync.Client, brokers: Brokers, tmp_path: Path) -> None:
    topic = Filled(client, brokers.bootstrap, "traffic", 2)
    topic.send([300, 100], size=100)
    with client.producer("traffic") as producer:  # a key without any value
        producer.send_many([None] * 50, keys=[b"gone"] * 50).result()
    client.admin().create_group("traffic", "late")
    picture = tmp_path / "traffic.svg"
    told = run(
        "traffic", "--bootstrap", brokers.bootstrap, "--topic", "traffic", "--last", "10m", "--picture", str(picture)
    )
    assert "traffic: 450 messages" in told
    assert "times the mean" in told
    assert "key-0" in told
    assert "gone" in told
    assert "late" in told
    assert "polyline" in picture.read_text()
