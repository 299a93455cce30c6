"""A client whose way to the brokers' stream ports is closed works over gRPC, and no broker group pays for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from seriatim import Client
from seriatim_broker.composition import Broker
from seriatim_broker.metrics.broker import Exposition
from seriatim_broker.process.settings import load
from seriatim_local.embedded import serve

from tools.ports import free_ports

HOST = "127.0.0.1"
DEADLINE_S = 20.0


@contextmanager
def refusing() -> Iterator[int]:
    """A port at which connections are refused."""
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        yield bound.getsockname()[1]


@contextmanager
def dropping() -> Iterator[int]:
    """A port that answers nothing, as behind a firewall: its queue is full, and nothing takes connections out of it."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server((HOST, 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


@asynccontextmanager
async def brokers(data: Path, port: int, stream_port: int) -> AsyncIterator[list[Broker]]:
    """A broker group that sends clients a port for streams at which they do not reach it."""
    coordinator = await serve(data / "coordinator", f"{HOST}:{port + 2}")
    members: list[Broker] = []
    try:
        for slot in range(2):
            given = {
                "cluster": "closed", "group": "g0", "slot": slot, "data": data / f"g0-{slot}",
                "listen": f"{HOST}:{port + slot}", "coordinator": coordinator.address, "stop_deadline_s": 0,
                "stream_listen": f"{HOST}:0", "stream_advertise_port": stream_port,
            }  # fmt: skip
            member = Broker(load(given, None, {}), Exposition())
            await member.start()
            members.append(member)
        yield members
    finally:
        for member in members:
            await member.stop()
        await coordinator.stop()


@pytest.mark.parametrize("closed", [refusing, dropping])
async def test_streams_go_over_grpc_and_no_open_segment_is_lost(tmp_path: Path, closed: object) -> None:
    assert callable(closed)
    port = free_ports(3)[0]
    with closed() as stream_port:
        async with brokers(tmp_path, port, stream_port) as members, Client.connect(f"{HOST}:{port}") as client:
            await client.admin().create_topic("orders", 4)
            async with asyncio.timeout(DEADLINE_S), client.producer("orders") as producer:
                for number in range(4):
                    await (await producer.send(b"one", partition=number))
                async with client.consumer("orders", "billing") as consumer:
                    for _ in range(4):
                        await anext(aiter(consumer))
            gauges = [member.gauges() for member in members]
            assert [each["tcp_streams"]() for each in gauges] == [0, 0]
            switches = [member._services.counters.switches for member in members]
            assert switches == [{}, {}], "a client took a healthy master for dead"
