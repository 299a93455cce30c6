"""A topic that is deleted under a producer: everything settles at once and truthfully, and later sends are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from seriatim import Client, SendError, SendFailedError, SendUnknownError
from seriatim_api import errors

from ..fake_broker import FakeCluster, connected, running, until

pytestmark = pytest.mark.usefixtures("carriage")


def _answer(cluster: FakeCluster, number: int, error: errors.SeriatimError) -> None:
    """What waits is answered, as by a broker that learns of the tombstone."""
    partition = cluster.partition("t", number)
    held, partition.held = partition.held, []
    for stream, entry, header, offset in held:
        stream.reply(partition, entry, header, offset, error)


async def test_what_is_under_way_ends_as_what_is_known_of_it() -> None:
    async with connected(2, brokers=2) as (cluster, client), client.producer("t", window_batches=1) as producer:
        ok = await (await producer.send(b"stored", partition=0))
        cluster.partition("t", 0).hold_commit = True
        refuse = cluster.partition("t", 1).refuse
        refuse.append(errors.OverloadedError("full", retry_after_ms=60_000))
        sent = [await producer.send(b"in the log", partition=0), await producer.send(b"refused", partition=1)]
        await until(lambda: cluster.partition("t").open_segment.length == 2)
        # The refusal has come back. Before that, the send attempt has no known end, and its outcome is "unknown".
        run = producer._partitions[1].core._queue.producer_run
        await until(lambda: not refuse and not run.in_flight_count)
        sent.append(await producer.send(b"after it", partition=0))
        _answer(cluster, 0, errors.OutcomeUnknownError("the topic was deleted while segment 1 held this batch"))
        cluster.delete_topic("t")
        found = await asyncio.wait_for(asyncio.gather(*map(_settled, sent)), 5)
        assert [type(error) for error in found] == [SendUnknownError, SendFailedError, SendFailedError]
        for error in found:
            assert error.cause_number == 120
            assert isinstance(error.__cause__, errors.UnknownTopicError)
        for send in (producer.send(b"later"), producer.send_many([b"later"])):
            with pytest.raises(errors.UnknownTopicError, match="was deleted"):
                await send
        assert ok.partition == 0
        assert await asyncio.wait_for(producer.flush(), 60) == (1, 2, 1)


async def _settled(delivery: Any) -> SendError:
    try:
        await delivery
    except SendError as exc:
        return exc
    raise AssertionError("it is ok")


async def test_a_producer_ends_when_its_topic_was_made_again_and_a_new_one_sends() -> None:
    async with connected(2) as (cluster, client), client.producer("t") as old:
        await (await old.send(b"old", partition=1))
        cluster.delete_topic("t")
        cluster.create_topic("t", 2).incarnation = "another"
        lost = await old.send(b"lost", partition=1)
        error = await asyncio.wait_for(_settled(lost), 60)
        assert isinstance(error, SendFailedError)
        assert "made again" in error.message
        with pytest.raises(errors.UnknownTopicError, match="made again"):
            await old.send(b"later")
        async with client.producer("t") as new:
            await (await new.send(b"new", partition=1))
    assert cluster.values("t", 1) == [b"new"]


@pytest.mark.parametrize(
    ("looks", "partitions"),
    [*(("seriatim._producing.routes.EXISTS_S", count) for count in range(4)), ("seriatim._topic_changes.LOOK_S", 0)],
)
async def test_a_producer_that_sends_nothing_hears_of_it_too(
    monkeypatch: pytest.MonkeyPatch, looks: str, partitions: int
) -> None:
    monkeypatch.setattr(looks, 0.02)
    async with running(1) as cluster:
        cluster.is_old = True
        cluster.create_topic("t", 2)
        async with Client.connect(cluster.brokers[0].address) as client, client.producer("t") as producer:
            cluster.delete_topic("t")
            if partitions:
                cluster.create_topic("t", partitions).incarnation = "another"
            await until(lambda: producer._backlog.is_closed)
            with pytest.raises(errors.UnknownTopicError, match="made again" if partitions else "was deleted:"):
                await producer.send(b"later")


@pytest.mark.parametrize("partitions", range(4))
async def test_a_producer_whose_broker_waits_for_news_asks_for_nothing_and_hears_of_it_too(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr("seriatim._topic_changes.LOOK_S", 0.0)
    monkeypatch.setattr("seriatim._producing.routes.EXISTS_S", 0.0)
    async with connected(2) as (cluster, client), client.producer("t") as producer:
        await until(lambda: cluster.waiting == 1)
        asked: list[str] = []
        monkeypatch.setattr(client._caller, "routing", lambda method, *_, **_named: asked.append(method))
        await turns(20)
        assert not asked
        monkeypatch.undo()
        cluster.delete_topic("t")
        if partitions:
            cluster.create_topic("t", partitions).incarnation = "another"
        await until(lambda: producer._backlog.is_closed)
        with pytest.raises(errors.UnknownTopicError, match="made again" if partitions else "was deleted:"):
            await producer.send(b"later")


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_broker_that_alone_knows_no_such_partition_is_not_believed() -> None:
    async with connected() as (cluster, client), client.producer("t") as producer:
        await (await producer.send(b"a"))
        cluster.deleted.add(cluster.partition("t").id)  # the topic's record is there, and names it
        delivery = await producer.send(b"b")
        await until(lambda: producer._partitions[0].core.producer_run > 1)
        assert not delivery.done
        cluster.deleted.clear()
        await asyncio.wait_for(delivery, 60)
    assert cluster.values("t") == [b"a", b"b"]
