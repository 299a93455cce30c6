"""What tasks stage is published once and in their order; what goes wrong is reported, and tried again where that
helps."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Self

import pyarrow as pa
import pytest
from seriatim import Chunk, Published, SendUnknownError
from seriatim_api.errors import (
    BadRequestError,
    DeadlineExceededError,
    IllegalMessageError,
    PartitionOutOfRangeError,
    PublicationDiffersError,
    PublishedWithLossError,
    SequencePassedError,
    SeriatimError,
    StagedDataGoneError,
    TlsHandshakeError,
    UnavailableError,
    UnknownTopicError,
    UnknownWriterError,
    WriterFencedError,
    WriterOwnedError,
)
from seriatim_api.publications import ManifestPart, StagedBatch, StagedBatches
from seriatim_spark.errors import (
    ClusterError,
    DataLossError,
    ReplayDiffersError,
    RowError,
    SinkError,
    SourceError,
    TopicReplacedError,
    WriterConflictError,
)
from seriatim_spark.options import Target
from seriatim_spark.writing import outgoing_rows, publishing
from seriatim_spark.writing.publishing import Identity, identity_of, publish, stage
from seriatim_spark.writing.sink_options import SinkOptions

OPTIONS = SinkOptions(Target("h:1"), "orders", "nightly", writer_epoch=3, write_timeout_s=5.0)
IDENTITY = Identity("nightly", "query", 7)


class FakeCluster:
    """A client and its connection: keeps what is staged and published, and fails as it is told to."""

    def __init__(self) -> None:
        self.client = self
        self.staged: list[tuple[list[bytes], Any]] = []
        self.published: list[tuple[int, list[str], dict[str, Any]]] = []
        self.opened: list[dict[str, Any]] = []
        self.failures: list[SeriatimError] = []
        self.delays: list[float] = []

    # ---- the connection ----

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout_s: float | None) -> Any:
        return self.wait(self.begin(coroutine), timeout_s)

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(asyncio.run(coroutine))
        except Exception as exc:
            future.set_exception(exc)
        return future

    def wait(self, future: Future[Any], timeout_s: float | None) -> Any:
        return future.result(0)

    # ---- the client ----

    def writer(self, topic: str, name: str, **given: Any) -> Self:
        self.opened.append({"topic": topic, "name": name, **given})
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def stage_table(self, table: pa.Table, partition: Any) -> Chunk:
        if self.failures:
            raise self.failures.pop(0)
        self.staged.append((table.column("value").to_pylist(), partition))
        number = len(self.staged)
        batch = StagedBatch(9, table.num_rows, number, bytes(16))
        return Chunk("orders", "ab" * 16, 4, bytes([number]) * 16, (ManifestPart(3, 10, StagedBatches([batch])),))

    async def publish(self, sequence: int, chunks: list[Chunk], **given: Any) -> Published:
        if self.failures:
            raise self.failures.pop(0)
        self.published.append((sequence, [chunk.id.hex()[:2] for chunk in chunks], given))
        return Published(sequence, sum(chunk.rows for chunk in chunks), False, ())


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    found = FakeCluster()
    monkeypatch.setattr(publishing, "connected", lambda target: found)
    monkeypatch.setattr(publishing, "RETRY_PAUSE_S", 0.0)
    return found


def rows(*values: bytes, **columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values), **columns})


def test_rows_of_a_task_are_staged_in_their_order(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_rows, "SLICE_ROWS", 1)
    keys = pa.array([b"k"])
    chunks = stage([rows(b"%d" % n, key=keys) for n in range(5)], OPTIONS, "nightly", 0)
    assert [values for values, _ in cluster.staged] == [[b"0"], [b"1"], [b"2"], [b"3"], [b"4"]]
    assert [chunk.id[0] for chunk in chunks] == [1, 2, 3, 4, 5]
    assert {partition for _, partition in cluster.staged} == {None}


def test_rows_without_key_and_partition_go_by_their_task(cluster: FakeCluster) -> None:
    stage([rows(b"a")], OPTIONS, "nightly", 6)
    stage([rows(b"a", partition=pa.array([1], pa.int32()))], OPTIONS, "nightly", 6)
    by_count = cluster.staged[0][1]
    assert [by_count(count) for count in (2, 4)] == [0, 2], "a repeat may be laid out for fewer partitions"
    assert cluster.staged[1][1].tolist() == [1]
    assert stage([], OPTIONS, "nightly", 6) == ()


def test_what_was_not_staged_is_staged_again(cluster: FakeCluster) -> None:
    cluster.failures = [SendUnknownError("who knows"), UnavailableError("no broker answers")]
    (chunk,) = stage([rows(b"a")], OPTIONS, "nightly", 0)
    assert chunk.rows == 1
    assert len(cluster.staged) == 1
    cluster.failures = [SendUnknownError("who knows")] * 2
    with pytest.raises(SinkError, match="who knows"):
        stage([rows(b"a")], replace(OPTIONS, write_timeout_s=-1.0), "nightly", 0)
    assert len(cluster.failures) == 1


def test_chunks_are_published_in_the_order_of_their_tasks(cluster: FakeCluster) -> None:
    chunks = [chunk for task in range(3) for chunk in stage([rows(b"a")], OPTIONS, "nightly", task)]
    cluster.failures = [SendUnknownError("the manifest")]
    published = publish(OPTIONS, IDENTITY, chunks)
    assert published is not None
    assert published.rows == 3
    ((sequence, ids, given),) = cluster.published
    assert (sequence, ids) == (7, ["01", "02", "03"])
    assert given["ephemeral"] is False
    assert cluster.opened[-1] == {"topic": "orders", "name": "nightly", "epoch": 3, "owner": "query"}


def test_what_no_broker_gives_right_now_is_looked_for_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.failures = [StagedDataGoneError("a broker died just now")]
    assert publish(OPTIONS, IDENTITY, []) is not None
    assert len(cluster.published) == 1
    monkeypatch.setattr(publishing, "GONE_S", 0.0)
    cluster.failures = [StagedDataGoneError("gone"), StagedDataGoneError("asked again")]
    with pytest.raises(SinkError, match="gone"):
        publish(OPTIONS, IDENTITY, [])
    assert len(cluster.failures) == 1


def test_messages_are_of_one_publication() -> None:
    assert identity_of([]) is None
    assert identity_of([IDENTITY, replace(IDENTITY)]) == IDENTITY
    with pytest.raises(SinkError, match="have not ended"):
        identity_of([IDENTITY, None])
    with pytest.raises(SinkError, match="different micro-batches"):
        identity_of([IDENTITY, replace(IDENTITY, sequence=8)])


def test_other_rows_under_the_same_sequence_fail_or_are_let_go(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.failures = [PublicationDiffersError("stands")]
    with pytest.raises(ReplayDiffersError, match="not deterministic"):
        publish(OPTIONS, IDENTITY, [])
    cluster.failures = [PublicationDiffersError("stands")]
    assert publish(replace(OPTIONS, on_mismatch="accept"), IDENTITY, []) is None
    assert "the topic keeps the rows that were published before" in caplog.text


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (WriterFencedError("opened again"), WriterConflictError, "call open_writer and start the query again"),
        (UnknownWriterError("deleted"), WriterConflictError, "open_writer"),
        (WriterOwnedError("owned"), WriterConflictError, "two queries use one writer"),
        (SequencePassedError("passed"), WriterConflictError, "new writer and a new checkpoint"),
        (PublishedWithLossError("lost"), DataLossError, "All other rows are published"),
        (StagedDataGoneError("gone"), SinkError, "Nothing was published"),
        (DeadlineExceededError("late"), ClusterError, "brokers finish it in any case"),
        (UnavailableError("nobody"), ClusterError, "does the cluster run"),
        (TlsHandshakeError("no"), ClusterError, "tlsCa"),
        (UnknownTopicError("none"), TopicReplacedError, "Create it"),
        (PartitionOutOfRangeError("9"), RowError, "cannot be a message"),
        (IllegalMessageError("null"), RowError, "Nothing was published"),
        (BadRequestError("grew"), SinkError, "grew"),
    ],
)
def test_what_goes_wrong_is_told(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, error: SeriatimError, kind: type[SourceError], told: str
) -> None:
    monkeypatch.setattr(publishing, "GONE_S", 0.0)
    cluster.failures = [error]
    with pytest.raises(kind, match=told):
        publish(OPTIONS, IDENTITY, [])
    assert not cluster.published


@pytest.mark.parametrize("error", [TlsHandshakeError("no"), UnknownTopicError("none"), IllegalMessageError("null")])
def test_what_no_second_try_helps_is_told_at_once(cluster: FakeCluster, error: SeriatimError) -> None:
    cluster.failures = [error, SendUnknownError("tried again")]
    with pytest.raises(SourceError):
        stage([rows(b"a")], OPTIONS, "nightly", 0)
    assert len(cluster.failures) == 1


def test_a_message_of_a_large_task_is_small(cluster: FakeCluster) -> None:
    """16 GiB in half mebibytes: what goes to the driver is about 1 MiB."""
    batches = StagedBatches(StagedBatch(9, 1_000, 1_000 * n, b"c" * 16) for n in range(32_768))
    chunk = Chunk("orders", "ab" * 16, 4, b"c" * 16, (ManifestPart(3, 1 << 34, batches),))
    assert len(pickle.dumps(chunk)) < 2 << 20
