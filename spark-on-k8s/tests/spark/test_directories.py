"""Directories that pipelines write: with two drivers, with copies of the past, and with what brokers took as bytes."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from seriatim import sync
from seriatim_spark import applying
from seriatim_spark.applying import read_table
from seriatim_spark.directories.batch_chain import ChainError, OvertakenError
from seriatim_spark.directories.files import DirectoryError
from seriatim_spark.pipelines import micro_batches
from seriatim_spark.pipelines.apply import _Applying

from .conftest import Brokers
from .filling import Filled
from .test_pipelines import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.slow]

Change = tuple[int, bytes, bytes]


class Table:
    """A table, its query's checkpoint, and drivers that apply micro-batches to it."""

    def __init__(self, spark: SparkSession, tmp_path: Path) -> None:
        self._spark = spark
        self.directory = str(tmp_path / "table")
        self._checkpoint = tmp_path / "checkpoint"
        (self._checkpoint / "offsets").mkdir(parents=True)
        for batch in range(10):
            self.note(batch, batch)

    def note(self, batch: int, end: int) -> None:
        """As Spark does before a micro-batch runs."""
        ends = {"v": 1, "t": {"t": {"id": "inc", "p": {"0": f"1:{end}"}}}}
        (self._checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(ends)}")

    def driver(self) -> _Applying:
        """One that begins now."""
        delete = "value is null or octet_length(value) = 0"
        return _Applying(self.directory, str(self._checkpoint), "t", 4, "offset", delete, 1e9)

    def rows(self, *changes: Change) -> DataFrame:
        """Offset, key, value."""
        return self._spark.createDataFrame(
            [(0, offset, datetime(2026, 1, 1, tzinfo=UTC), key, value, "inc") for offset, key, value in changes],
            "partition int, offset bigint, append_time timestamp, key binary, value binary, incarnation string",
        )

    def values(self) -> dict[bytes, bytes]:
        """What a program reads."""
        found = read_table(self.directory).to_pydict()
        return dict(zip(found["key"], found["value"], strict=True))


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Iterator[Table]:
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "q")
    yield Table(spark, tmp_path)
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]


def test_a_driver_that_was_replaced_changes_nothing_in_a_table(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is frozen while its tasks run; the one that replaces it writes that micro-batch and others."""
    zombie, new = table.driver(), table.driver()
    zombie(table.rows((1, b"a", b"a0"), (2, b"b", b"b0")), 0)
    merged = _Applying._merged
    others = iter([True])

    def stands_still(self: _Applying, *given: Any) -> Any:
        done = merged(self, *given)
        if self is zombie and next(others, False):
            new(table.rows((3, b"a", b"a1")), 1)
            new(table.rows((4, b"b", b"b2"), (5, b"a", b"a2"), (6, b"n", b"n2")), 2)
        return done

    monkeypatch.setattr(_Applying, "_merged", stands_still)
    # The new driver has removed what the zombie's tasks had written: so it does not see that, or cannot make its link.
    monkeypatch.setattr(micro_batches, "SEEN_WITHIN_S", 0)
    with pytest.raises((OvertakenError, DirectoryError)):
        zombie(table.rows((3, b"a", b"a1")), 1)
    with pytest.raises(OvertakenError, match="another driver has taken"):
        zombie(table.rows(), 1)
    assert table.values() == {b"a": b"a2", b"b": b"b2", b"n": b"n2"}
    new(table.rows((7, b"c", b"c3")), 3)
    assert table.values() == {b"a": b"a2", b"b": b"b2", b"n": b"n2", b"c": b"c3"}
    state = applying.read_state(table.directory)
    assert state is not None
    assert set(state.files.values()) <= {f"data/{path.name}" for path in Path(table.directory, "data").iterdir()}


def test_a_table_that_was_restored_from_an_older_copy_is_refused(table: Table, tmp_path: Path) -> None:
    table.driver()(table.rows((1, b"a", b"a0")), 0)
    shutil.copytree(table.directory, tmp_path / "backup")
    driver = table.driver()
    driver(table.rows((2, b"a", b"a1")), 1)
    driver(table.rows(), 2)
    driver(table.rows((4, b"a", b"a3")), 3)
    table.driver()(table.rows((4, b"a", b"never")), 3)
    assert table.values() == {b"a": b"a3"}, "what is run again is in the table"
    table.note(3, 77)
    with pytest.raises(ChainError, match="the checkpoint is an older copy"):
        table.driver()(table.rows((4, b"a", b"a4")), 3)
    shutil.rmtree(table.directory)
    shutil.copytree(tmp_path / "backup", table.directory)
    with pytest.raises(ChainError, match="the directory is an older copy"):
        table.driver()(table.rows((5, b"b", b"b4")), 4)
    assert table.values() == {b"a": b"a0"}


def test_an_archive_refuses_a_checkpoint_of_the_past(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path
) -> None:
    topic = Filled(client, brokers.bootstrap, "restored", 2)
    checkpoint, archive = tmp_path / "checkpoint", str(tmp_path / "archive")
    writing = (
        "archive", "--bootstrap", brokers.bootstrap, "--topic", "restored", "--to", archive,
        "--checkpoint", f"file:{checkpoint}", "--once",
    )  # fmt: skip
    topic.send([100, 100])
    run(*writing)
    shutil.copytree(checkpoint, tmp_path / "backup")
    topic.send([50])
    run(*writing)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "backup", checkpoint)
    topic.send([50])
    told = run(*writing, status=1)
    assert "the checkpoint is an older copy" in told
    assert "begin a new directory with a new checkpoint" in told
    assert spark.read.parquet(archive).count() == 250
    assert "whole, in order, without repeats" in run("audit", "--archive", archive)
    shutil.rmtree(archive)
    assert "has no micro-batch" in run(*writing, status=1), "a directory that was changed is not taken for a new one"


def test_files_that_lie_elsewhere_are_no_success(
    client: sync.Client, brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks name their files; the driver looks for them where it sees the directory."""
    monkeypatch.setattr(micro_batches, "SEEN_WITHIN_S", 0)
    real = micro_batches.file_system
    monkeypatch.setattr(micro_batches, "file_system", lambda _: real(str(tmp_path / "the driver's own disk")))
    topic = Filled(client, brokers.bootstrap, "elsewhere")
    topic.send([10])
    reading = ("--bootstrap", brokers.bootstrap, "--topic", "elsewhere")
    for pipeline in ("archive", "apply"):
        told = run(
            pipeline, *reading, "--to", str(tmp_path / pipeline), "--checkpoint", str(tmp_path / f"{pipeline}-c"),
            "--once", status=1,
        )  # fmt: skip
        assert "a volume that all of them mount" in told
        assert not list((tmp_path / f"{pipeline}-c" / "commits").glob("0"))


def test_headers_that_are_no_text_stop_nothing(client: sync.Client, brokers: Brokers, tmp_path: Path) -> None:
    client.admin().create_topic("bytes", 1)
    headers: list[Any] = [
        {"op": b"\xff\xfe", "n": b"\xff"}, {"op": b"u", "n": b"1"},
        [("op", b"u"), ("op", b"d"), ("n", b"0"), ("n", b"2")], {}, [("op", b"d"), ("op", b"u"), ("n", None)],
    ]  # fmt: skip
    with client.producer("bytes") as producer:
        producer.send_many([b"v", b"v", b"v", b"v", None], [b"a", b"b", b"b", b"c", b"d"], 0, headers=headers).result()
    reading = ("--bootstrap", brokers.bootstrap, "--topic", "bytes")
    directory = str(tmp_path / "table")
    run("apply", *reading, "--to", directory, "--checkpoint", str(tmp_path / "c"), "--once", "--delete-header", "op")
    rows = {row["key"]: row["value"] for row in read_table(directory).to_pylist()}
    assert rows == {b"a": b"v", b"c": b"v", b"d": None}, "the last header of a name counts; null is a value here"
    nulls = str(tmp_path / "nulls")
    run("apply", *reading, "--to", nulls, "--checkpoint", str(tmp_path / "n"), "--once")
    assert sorted(read_table(nulls).column("key").to_pylist()) == [b"a", b"b", b"c"], "a null value deletes"
    run("audit", *reading, "--key-sequence", "n")


def test_settings_of_a_table_are_kept_or_refused(client: sync.Client, brokers: Brokers, tmp_path: Path) -> None:
    topic = Filled(client, brokers.bootstrap, "settings", 2)
    arguments = (
        "apply", "--bootstrap", brokers.bootstrap, "--topic", "settings", "--to", str(tmp_path / "table"),
        "--checkpoint", str(tmp_path / "c"), "--once",
    )  # fmt: skip
    topic.send([10, 0])
    run(*arguments, "--buckets", "4")
    topic.send([1, 0])
    assert "--buckets 4" in run(*arguments, "--buckets", "8", status=1)
    run(*arguments)
    topic.send([0, 7])
    assert "stands in partitions" in run(*arguments, status=1)
    run(*arguments, "--order-by", "append_time")
    topic.send([1, 0])
    assert "ordered by append_time" in run(*arguments, "--order-by", "offset", status=1)
    run(*arguments)
