"""What users import, the synchronous form, administration, and histories."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import seriatim
from seriatim import Client, sync
from seriatim.history import MemoryHistory, check_events
from seriatim_api import errors

from ..fake_broker import FakeCluster, running

PUBLIC = (
    "AckLevel Admin Assignment Balance Broker BrokerGroup BrokerGroupMember BrokerLoad CancelOutcome Chain Chunk "
    "Client Cluster Consumer ConsumerSettings Damage DeadLetter DelayedMessages DelayedStats Deliveries Delivery "
    "HeadMove FetchedTable FlushResult Gap GiveUp GroupChange "
    "GroupDescription GroupKey GroupPartition GroupSettings KeyResult KeyedBatch KeyedConsumer "
    "KeyedMessage "
    "LostRange Message MovePlan NameOwner Opening "
    "OperatedPartition OwnerDescription Part PartitionOffset Partitioner PlannedMove Producer ProducerSettings "
    "Published PublishedPart QuarantinedMessage RangePiece RangePlan RangeReader RangeTable Receipt RetainedRange "
    "ReplayedDeadLetter RestartCheck Retry RetryPolicy Route ScrubProgress Segment SendError SendFailedError "
    "SendUnknownError Tls Topic "
    "TopicDescription TopicSettings Writer WriterDescription partition_of_key"
)


def test_public_names_are_these() -> None:
    assert sorted(seriatim.__all__) == sorted(PUBLIC.split())
    assert set(seriatim.__all__) <= set(dir(seriatim))
    with pytest.raises(AttributeError):
        seriatim.nothing_of_the_kind  # noqa: B018
    for name in seriatim.__all__:
        assert name == "Partitioner" or getattr(seriatim, name).__doc__, name


def test_sync_has_the_same_methods() -> None:
    for name in ("Client", "Producer", "Consumer", "RangeReader", "Writer", "Admin"):
        mine, theirs = getattr(sync, name), getattr(seriatim, name)
        for method, function in inspect.getmembers(mine, inspect.isfunction):
            if not method.startswith("_"):
                wanted = list(inspect.signature(getattr(theirs, method)).parameters)
                assert list(inspect.signature(function).parameters) == wanted, f"{name}.{method}"


def test_help_on_synchronous_methods_says_what_they_return() -> None:
    shown = pydoc.plain(pydoc.render_doc(sync.Client.read_range))
    assert "-> RangeReader\n" in shown.replace("'", "")
    assert (seriatim.Client.read_range.__doc__ or "")[:60] in shown
    assert "__iter__(self) -> Iterator\n" in pydoc.plain(pydoc.render_doc(sync.Consumer)).replace("'", "")


@contextmanager
def fake_in_a_thread() -> Iterator[FakeCluster]:
    """A fake cluster with a loop of its own, for the synchronous client.

    The loop ends what a server still does for a call. Left behind, it would end in a later test, and print there.
    """
    found: list[tuple[FakeCluster, asyncio.AbstractEventLoop, asyncio.Event]] = []
    ready = threading.Event()

    async def serve() -> None:
        end = asyncio.Event()
        async with running(2) as cluster:
            found.append((cluster, asyncio.get_running_loop(), end))
            ready.set()
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    cluster, loop, end = found[0]
    try:
        yield cluster
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(10)


def test_the_synchronous_client_sends_and_reads() -> None:
    with fake_in_a_thread() as cluster, sync.Client.connect(cluster.brokers[0].address) as client:
        admin = client.admin()
        assert admin.create_topic("t", 2).partition_count == 2
        with pytest.raises(errors.TopicExistsError):
            admin.create_topic("t")
        assert [topic.name for topic in admin.list_topics()] == ["t"]
        with client.producer("t", linger_ms=1) as producer:
            assert producer.send(b"0", partition=1).result(5).partition == 1
            parts = producer.send_many([b"%d" % n for n in range(1, 50)], partition=1).result(5)
            assert sum(len(part.positions) for part in parts) == 49
            with pytest.raises(errors.PartitionOutOfRangeError):
                producer.send(b"", partition=2)
            assert producer.flush().ok == 50
        with client.consumer("t", "g") as consumer:
            values = []
            for message in consumer:
                values.append(message.value)
                assert consumer.ack(message)
                if len(values) == 50:
                    break
        assert values == [b"%d" % n for n in range(50)]


def test_an_error_in_the_block_leaves_the_synchronous_client() -> None:
    with pytest.raises(KeyError), sync.Client.connect("127.0.0.1:1"):
        raise KeyError("x")


async def test_illegal_bootstrap_is_refused() -> None:
    for wrong in ("", "localhost", "host:0", "host:99999", []):
        with pytest.raises(errors.BadRequestError):
            await Client.connect(wrong).__aenter__()


async def test_a_history_of_it_all_checks_out() -> None:
    history = MemoryHistory("test")
    async with running(3) as cluster:
        cluster.create_topic("t", 2)
        partition = cluster.partition("t")
        address = cluster.brokers[0].address
        async with (
            Client.connect(address, recorder=history, message_id=lambda value: value.decode()) as client,
            client.producer("t", linger_ms=0) as producer,
            client.consumer("t", "g") as consumer,
        ):
            for n in range(300):
                await producer.send(b"m%d" % n, partition=n % 2)
                if n % 100 == 50:
                    await asyncio.sleep(0.002)
                    cluster.switch(partition, cluster.brokers[n // 100])
            await producer.flush()
            seen = 0
            while seen < 300:
                seen += len(await consumer.fetch(50, 1.0))
                await consumer.ack_all()
    history.end("g", topic="t")
    history._line("close", None)
    report = check_events(history.events)
    assert report.ok, report
    kinds = {event["k"] for event in history.events}
    assert {"send", "outcome", "deliver", "ack"} <= kinds
