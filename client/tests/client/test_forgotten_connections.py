"""A firewall forgets the client's connections: each way to a broker notices it by itself and continues over a new one.

The packets of a forgotten connection vanish without a word, in one direction or in both. New connections work. In these
tests the limits of silence are a tenth or less of the real ones, and their sums are checked without a clock.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from seriatim import Client
from seriatim._consuming import streams
from seriatim._transport import append, channels, ranges, tcp_carriage
from seriatim_api.network import grpc_options
from seriatim_local.layout.plan import Address, Link
from seriatim_local.links.proxy import Proxy

from ..fake_broker import FakeBroker, FakeCluster, until
from .test_range_reader import TOPIC, RangeScript

PATHS = (("client", "broker"), ("broker", "client"))
DIRECTIONS = {"there": PATHS[:1], "back": PATHS[1:], "both": PATHS}
QUICK = {"grpc.keepalive_time_ms": 150, "grpc.keepalive_timeout_ms": 150, "grpc.http2.ping_timeout_ms": 150}
IN_TIME_S = 8.0
"""Far more than the limits of these tests together, for a busy machine. Without the limits nothing would ever come."""

NOTICED_S_MAX = 15.0


class Firewall:
    """What is between a client and its broker."""

    def __init__(self, cluster: FakeCluster, paths: tuple[tuple[str, str], ...]) -> None:
        self.cluster = cluster
        self.paths = paths
        self.direct = ""
        self.proxy = Proxy(())

    def pass_through(self, port: int) -> int:
        """The port at which `port` is reached."""
        self.proxy.add([Link(*PATHS[0], Address("127.0.0.1", 0), Address("127.0.0.1", port))])
        return int(self.proxy._listeners[-1].getsockname()[1])

    def forget(self) -> None:
        assert self.proxy.forget(self.paths) > 0


@asynccontextmanager
async def behind_firewall(direction: str) -> AsyncIterator[tuple[Firewall, Client]]:
    cluster = FakeCluster()
    broker = FakeBroker(cluster, "fake-0")
    broker.ranges = RangeScript(cluster).handler()
    await broker.start()
    firewall = Firewall(cluster, DIRECTIONS[direction])
    firewall.direct = broker.address
    broker.address = f"127.0.0.1:{firewall.pass_through(int(broker.address.rpartition(':')[2]))}"
    if broker.stream_port:
        broker.stream_port = firewall.pass_through(broker.stream_port)
    cluster.create_topic(TOPIC)
    try:
        async with Client.connect(broker.address) as client:
            yield firewall, client
    finally:
        firewall.proxy.close()
        await broker.stop()


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**dict(channels._OPTIONS), **QUICK}
    monkeypatch.setattr(channels, "_OPTIONS", tuple(options.items()))
    monkeypatch.setattr(append, "SILENCE_S", 0.4)
    monkeypatch.setattr(ranges, "SILENCE_S", 0.4)
    monkeypatch.setattr(streams, "PING_S", 0.1)
    monkeypatch.setattr(streams, "SILENCE_S", 0.3)


async def in_all_ways(scenario: Callable[[Firewall, Client, bool], Awaitable[None]]) -> None:
    """All scenarios at the same time: each direction, with something under way at that moment, and without."""

    async def one(direction: str, *, is_busy: bool) -> None:
        try:
            async with behind_firewall(direction) as (firewall, client), asyncio.timeout(IN_TIME_S):
                await scenario(firewall, client, is_busy)
        except TimeoutError as exc:
            raise AssertionError(f"nothing came: {direction}, {'busy' if is_busy else 'idle'}") from exc

    await asyncio.gather(*(one(way, is_busy=is_busy) for way, is_busy in itertools.product(DIRECTIONS, (False, True))))


@asynccontextmanager
async def going_on(act: Callable[[], Awaitable[Any]], *, if_so: bool) -> AsyncIterator[None]:
    """Something is under way all the time."""

    async def again() -> None:
        while True:
            await act()
            await asyncio.sleep(0.1)  # the fake brokers know a producer's last 64 batches

    task = asyncio.create_task(again()) if if_so else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_questions_go_on() -> None:
    async def scenario(firewall: Firewall, client: Client, is_busy: bool) -> None:
        async def ask() -> None:
            await client.admin().list_topics()

        await ask()
        async with going_on(ask, if_so=is_busy):
            await asyncio.sleep(0)
            firewall.forget()
            await ask()

    await in_all_ways(scenario)


async def test_a_call_that_waits_long_ends() -> None:
    async def scenario(firewall: Firewall, client: Client, _is_busy: bool) -> None:
        firewall.cluster.brokers[0].is_frozen = True
        channel = client._channels.get(firewall.cluster.brokers[0].address, "ask")
        call = asyncio.ensure_future(channel.unary_unary("/seriatim.v1.Admin/ListTopics")(b""))
        await until(lambda: bool(firewall.cluster.frozen_calls))
        firewall.forget()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    await in_all_ways(scenario)


@pytest.mark.usefixtures("carriage")
async def test_producers_go_on() -> None:
    async def scenario(firewall: Firewall, client: Client, is_busy: bool) -> None:
        async with client.producer(TOPIC) as producer:

            async def send() -> None:
                await (await producer.send(b"x"))

            await send()
            async with going_on(send, if_so=is_busy):
                firewall.forget()
                await send()
        values = firewall.cluster.values(TOPIC)
        assert len(values) >= 2

    await in_all_ways(scenario)


@pytest.mark.usefixtures("carriage")
async def test_consumers_go_on() -> None:
    async def scenario(firewall: Firewall, client: Client, is_busy: bool) -> None:
        async with (
            Client.connect(firewall.direct) as other,
            other.producer(TOPIC) as producer,
            client.consumer(TOPIC, "g", session_ms=2000) as consumer,
        ):
            await (await producer.send(b"before"))
            got: list[bytes] = []

            async def send() -> None:
                await (await producer.send(b"under way"))

            async with going_on(send, if_so=is_busy):
                async for message in consumer:
                    await consumer.ack(message)
                    if message.value == b"before" and not got:
                        got.append(message.value)
                        firewall.forget()
                        for stream in firewall.cluster.brokers[0].consume_streams:
                            stream.leave(None)  # as a broker does that gets no heartbeats
                        await (await producer.send(b"after"))
                    if message.value == b"after":
                        break

    await in_all_ways(scenario)


async def test_ranges_go_on() -> None:
    async def scenario(firewall: Firewall, client: Client, is_busy: bool) -> None:
        async with client.producer(TOPIC) as producer:
            for number in range(20):
                await (await producer.send(b"%d" % number))
        if not is_busy:
            await client.offsets(TOPIC)
            firewall.forget()
        async with client.read_range(TOPIC, 0) as reader:
            found = [await anext(reader)] if is_busy else []
            if is_busy:
                firewall.forget()
            found += [message async for message in reader]
        assert [message.value for message in found] == [b"%d" % number for number in range(20)]

    await in_all_ways(scenario)


def test_the_real_limits_are_noticed_in_time() -> None:
    assert (grpc_options.PING_AFTER_MS + grpc_options.PONG_WITHIN_MS) / 1000 < NOTICED_S_MAX
    assert dict(channels._OPTIONS)["grpc.keepalive_permit_without_calls"] == 1
    tcp = dict(tcp_carriage.KEEPALIVE)
    assert tcp["TCP_KEEPIDLE"] + tcp["TCP_KEEPINTVL"] * tcp["TCP_KEEPCNT"] < NOTICED_S_MAX
    assert tcp["TCP_USER_TIMEOUT"] / 1000 < NOTICED_S_MAX
