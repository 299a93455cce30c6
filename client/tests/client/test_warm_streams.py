"""Warm streams: when a partition moves, the client has a stream to its new broker already."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from seriatim import Client, Producer
from seriatim._producing.partition import PartitionSender
from seriatim._transport import append, tcp_carriage, warm_streams
from seriatim._transport.append import AppendLink
from seriatim._transport.carriages import Carriages
from seriatim._transport.channels import StreamPurpose
from seriatim._transport.tcp_carriage import TcpCarriage
from seriatim._transport.warm_streams import WARM_MAX, WarmStreams
from seriatim_api import errors

from ..fake_broker import FakeBroker, FakeCluster, connected, running, until


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_streams, "SPREAD_S", 0.01)


@asynccontextmanager
async def sending() -> AsyncIterator[tuple[FakeCluster, Client, Producer]]:
    """Two brokers, and a producer that has sent a message to the first."""
    async with connected(brokers=2) as (cluster, client), client.producer("t", linger_ms=0) as producer:
        await asyncio.wait_for(await producer.send(b"x"), 10)
        yield cluster, client, producer


def is_warm(client: Client, broker: FakeBroker) -> bool:
    assert client._links is not None
    link = client._links._links.get(broker.address)
    return link is not None and link.is_up and not link.users


def streams_to(broker: FakeBroker) -> int:
    return len(broker.append_streams)


def asked_for_ports(monkeypatch: pytest.MonkeyPatch, *, silent: int = 0) -> list[str]:
    """The brokers that were asked for their ports, because no broker names the ports of others.

    The second one does not answer the first `silent` questions.
    """
    asked: list[str] = []
    answer = FakeBroker.GetStreamPort

    async def noted(broker: FakeBroker, request: Any, context: Any) -> Any:
        asked.append(broker.name)
        if broker.name == "fake-1" and asked.count("fake-1") <= silent:
            await asyncio.Event().wait()
        return await answer(broker, request, context)

    monkeypatch.setattr(FakeBroker, "GetStreamPort", noted)
    monkeypatch.setattr(FakeBroker, "names_ports", False)
    return asked


async def moved(cluster: FakeCluster, producer: Any, to: FakeBroker) -> None:
    """Move the partition, and send a message to it there."""
    cluster.switch(cluster.partition("t"), to)
    await asyncio.wait_for(await producer.send(b"x"), 10)


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_a_partition_that_moves_finds_a_stream_at_its_new_broker(carriage: str) -> None:
    async with running(2) as cluster:
        cluster.create_topic("t")
        first, second = cluster.brokers
        async with Client.connect(first.address) as client, client.producer("t", linger_ms=0) as producer:
            await asyncio.wait_for(await producer.send(b"x"), 10)
            await until(lambda: is_warm(client, second))
            link = client._links._links[second.address]  # type: ignore[union-attr]
            await moved(cluster, producer, second)
            assert client._links._links[second.address] is link  # type: ignore[union-attr]
            assert link.users
            assert streams_to(second) == 1
        await until(lambda: not second.connected)


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_a_warm_stream_that_ends_is_opened_again(carriage: str) -> None:
    async with sending() as (cluster, client, _producer):
        _first, second = cluster.brokers
        for _ in range(2):
            await until(lambda: is_warm(client, second))
            await second.stop()
            await until(lambda: not is_warm(client, second))
            await second.restart()  # its port for streams is another one
        await until(lambda: is_warm(client, second))


@pytest.mark.parametrize("carriage", ["grpc"], indirect=True)
async def test_a_broker_without_a_port_for_streams_gets_none(carriage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_for_ports(monkeypatch)
    async with sending() as (cluster, _client, _producer):
        _first, second = cluster.brokers
        await until(lambda: len(asked) >= 4)
        assert streams_to(second) == 0


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_a_link_without_batches_is_checked_later_for_silence(
    carriage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspected: list[AppendLink] = []
    monkeypatch.setattr(append, "SUSPICIOUS_S", 0.02)
    monkeypatch.setattr(PartitionSender, "link_is_silent", lambda _sender, link: suspected.append(link))
    async with connected() as (cluster, client), client.producer("t", linger_ms=0) as producer:
        address = cluster.brokers[0].address
        await asyncio.wait_for(await producer.send(b"x"), 10)
        link = client._links._links[address]  # type: ignore[union-attr]
        await until(lambda: not link._is_watched.is_set())
        assert not suspected
        cluster.partition("t").hold_commit = True
        await producer.send(b"y")
        await until(lambda: suspected == [link])
        cluster.switch(cluster.partition("t"), cluster.brokers[0])


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_a_warm_stream_ends_when_replaced_or_at_the_clients_end(
    carriage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_streams, "WARM_MAX", 2)
    async with running(4) as cluster:
        cluster.create_topic("t")
        used, *others = cluster.brokers
        async with Client.connect(used.address) as client, client.producer("t", linger_ms=0) as producer:
            await asyncio.wait_for(await producer.send(b"x"), 10)
            assert client._links is not None
            link = client._links._links[used.address]
            client._links.warm(used.address)
            for broker in others:
                client._links.warm(broker.address)
                await until(partial(is_warm, client, broker))
            await until(lambda: not others[0].connected)
            assert client._links._links[used.address] is link, "a partition uses this stream"
            client._links.warm(cluster.brokers[1].address)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("warm stream")]


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_a_broker_that_is_gone_is_not_dialed_between_attempts(
    carriage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[int] = []
    has_port = Carriages.has_port

    async def counted(carriages: Carriages, address: str, purpose: StreamPurpose) -> bool:
        try:
            return await has_port(carriages, address, purpose)
        except errors.UnavailableError:
            failed.append(1)
            raise

    monkeypatch.setattr(Carriages, "has_port", counted)
    async with sending() as (cluster, client, _producer):
        _first, second = cluster.brokers
        await until(lambda: is_warm(client, second))
        await second.stop()
        dialing = client._channels._channels
        await until(lambda: len(failed) >= 3 and (second.address, "append") not in dialing)
        await second.restart()
        await until(lambda: is_warm(client, second))


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_the_kernel_looks_after_streams_to_machines_that_vanish(
    carriage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialed: list[Any] = []
    dial = TcpCarriage._dial

    async def kept(carriage: TcpCarriage) -> Any:
        dialed.append(await dial(carriage))
        return dialed[-1]

    monkeypatch.setattr(TcpCarriage, "_dial", kept)
    async with connected() as (_, client), client.producer("t", linger_ms=0) as producer:
        await asyncio.wait_for(await producer.send(b"x"), 10)
        [connection] = dialed
        dialed_socket = connection.info("socket")
        assert dialed_socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name, value in tcp_carriage.KEEPALIVE:
            if hasattr(socket, name):
                assert dialed_socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_a_broker_is_told_that_a_stream_is_warm(carriage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    begin = TcpCarriage.open

    async def heard(carriage: TcpCarriage, hello: Any) -> None:
        told.append(hello.is_warm)
        await begin(carriage, hello)

    monkeypatch.setattr(TcpCarriage, "open", heard)
    async with sending() as (cluster, client, _producer):
        _first, second = cluster.brokers
        await until(lambda: is_warm(client, second))
        assert sorted(told) == [False, True]


async def test_of_many_brokers_those_named_longest_ago_make_room() -> None:
    kept: dict[str, bool] = {}

    async def stay_open(address: str) -> None:
        kept[address] = True
        try:
            await asyncio.Event().wait()
        finally:
            del kept[address]

    group = WarmStreams(stay_open)
    names = [f"b{number}:1" for number in range(WARM_MAX + 1)]
    for name in names[:-1]:
        group.keep(name)
    await until(lambda: len(kept) == WARM_MAX)
    group.keep(names[0])
    group.keep(names[-1])
    await until(lambda: sorted(kept) == sorted([names[0], *names[2:]]))
    await group.close()
    assert not kept


async def test_a_silent_broker_is_tried_after_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    slept = asyncio.sleep

    async def sleep(pause_s: float) -> None:
        await slept(0)

    def longest(_low: float, high: float) -> float:
        pauses.append(high)
        return high

    async def stay_open(_address: str) -> None:
        raise errors.UnavailableError("nobody answers")

    monkeypatch.setattr(warm_streams, "SPREAD_S", 2.0)
    monkeypatch.setattr(warm_streams.random, "uniform", longest)
    monkeypatch.setattr(warm_streams.asyncio, "sleep", sleep)
    group = WarmStreams(stay_open)
    group.keep("b:1")
    while len(pauses) < 8:
        await slept(0)
    await group.close()
    assert pauses[:8] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_a_partition_does_not_get_a_link_that_is_being_ended(
    carriage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_streams, "WARM_MAX", 1)
    async with running(3) as cluster:
        cluster.create_topic("t")
        first, second, third = cluster.brokers
        async with Client.connect(first.address) as client, client.producer("t", linger_ms=0) as producer:
            await asyncio.wait_for(await producer.send(b"x"), 10)
            await until(lambda: is_warm(client, second))
            links = client._links
            assert links is not None
            link = links._links[second.address]
            ending = links._tasks[link]
            links.warm(third.address)
            while not ending.cancelling():  # noqa: ASYNC110 - each turn of the loop counts
                await asyncio.sleep(0)
            assert second.address not in links._links
            await moved(cluster, producer, second)
            assert not cluster.complaints


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_all_streams_end_if_closing_the_client_is_cancelled(carriage: str) -> None:
    async with running(2) as cluster:
        cluster.create_topic("t")
        first, second = cluster.brokers
        for turns in range(8):
            client = await Client.connect(first.address)
            producer = await client.producer("t", linger_ms=0)
            await asyncio.wait_for(await producer.send(b"x"), 10)
            await until(partial(is_warm, client, second))
            await producer.close()
            closing = asyncio.create_task(client.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            await client.close()  # if it had not begun
            await until(lambda: not first.connected and not second.connected)


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_a_warm_stream_outlives_the_connection_of_its_question(
    carriage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked_for_ports(monkeypatch, silent=1)
    async with sending() as (cluster, client, _producer):
        _first, second = cluster.brokers
        await until(lambda: "fake-1" in asked)
        channel = client._channels.get(second.address, "append")
        client._channels.drop(second.address, "append", channel)  # as a link over gRPC does that gives up
        await until(lambda: is_warm(client, second))


async def test_an_unexpected_error_does_not_end_the_attempts(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    async def stay_open(address: str) -> None:
        calls.append(address)
        if len(calls) == 1:
            raise RuntimeError("a bug")
        await asyncio.Event().wait()

    group = WarmStreams(stay_open)
    group.keep("b:1")
    await until(lambda: len(calls) == 2)
    await group.close()
    assert [record.getMessage() for record in caplog.records] == [
        "the client could not keep a stream to b:1 warm; a failover to it may take longer"
    ]


async def test_the_pause_is_short_again_after_a_stream_that_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    clock = Mock(time=Mock(return_value=0.0))

    def at_once(_low: float, high: float) -> float:
        pauses.append(high)
        return 0.0

    async def stay_open(_address: str) -> None:
        if len(pauses) != 2:
            raise errors.UnavailableError("nobody answers")
        clock.time.return_value += 0.65  # the stream lasts, longer than the pause before it

    monkeypatch.setattr(warm_streams, "SPREAD_S", 0.3)
    monkeypatch.setattr(warm_streams.random, "uniform", at_once)
    monkeypatch.setattr(warm_streams.asyncio, "get_running_loop", lambda: clock)
    group = WarmStreams(stay_open)
    group.keep("b:1")
    await until(lambda: len(pauses) >= 4)
    await group.close()
    assert pauses[:4] == [0.3, 0.6, 0.3, 0.6]


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_a_question_that_close_cancels_does_not_keep_its_channel(
    carriage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC would report the channel's end after the loop was closed, and print an error."""
    asked = asked_for_ports(monkeypatch, silent=1000)
    async with running(2) as cluster:
        cluster.create_topic("t")
        first, second = cluster.brokers
        async with Client.connect(first.address) as client, client.producer("t", linger_ms=0) as producer:
            await asyncio.wait_for(await producer.send(b"x"), 10)
            await until(lambda: "fake-1" in asked)
            assert client._links is not None
            keeper = weakref.ref(client._links._warm_streams._keepers[second.address])
            gc.disable()
        try:
            await until(lambda: keeper() is None)
        finally:
            gc.enable()
