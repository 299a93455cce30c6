"""The forwarding proxy, with real sockets on loopback addresses: what a cut holds back, what healing lets through."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from seriatim_api.errors import PreconditionError
from seriatim_local.layout.plan import Address, Link
from seriatim_local.layout.ports import PortRange
from seriatim_local.links import forwarding
from seriatim_local.links.proxy import Proxy

DEADLINE_S = 10.0
QUIET_S = 0.05
"""How long silence must last to count as silence."""


class Peer:
    """A server that keeps its connections, and what it read from each."""

    def __init__(self) -> None:
        self.connections: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.accepted: list[asyncio.StreamWriter] = []

    async def arrive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted.append(writer)
        self.connections.put_nowait((reader, writer))

    async def next(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.wait_for(self.connections.get(), DEADLINE_S)


@asynccontextmanager
async def peer_at(address: Address) -> AsyncIterator[Peer]:
    peer = Peer()
    server = await asyncio.start_server(peer.arrive, address.host, address.port)
    async with server:
        yield peer
        for writer in peer.accepted:
            writer.close()


@pytest.fixture
def ports() -> Iterator[PortRange]:
    with PortRange.reserve() as found:
        yield found


@asynccontextmanager
async def linked(ports: PortRange) -> AsyncIterator[tuple[Proxy, Peer, Address]]:
    """`a` reaches `b` through the proxy at the address."""
    target, listen = Address("127.0.0.3", ports.base), Address("127.0.0.3", ports.base + 10)
    proxy = Proxy([Link("a", "b", listen, target)])
    async with peer_at(target) as peer:
        proxy.start()
        try:
            yield proxy, peer, listen
        finally:
            proxy.close()


_dialled: list[asyncio.StreamWriter] = []


@pytest.fixture(autouse=True)
async def _hang_up() -> AsyncIterator[None]:
    yield
    for writer in _dialled:
        writer.close()
    _dialled.clear()


async def dial(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    _dialled.append(writer)
    return reader, writer


async def dial_and_read(address: Address) -> bytes:
    reader, _ = await dial(address)
    return await asyncio.wait_for(reader.read(1), DEADLINE_S)


async def read(reader: asyncio.StreamReader, count: int) -> bytes:
    return await asyncio.wait_for(reader.readexactly(count), DEADLINE_S)


async def silent(reader: asyncio.StreamReader) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), QUIET_S)
    except TimeoutError:
        return True
    return False


async def test_forwards_both_ways_and_passes_on_the_end(ports: PortRange) -> None:
    async with linked(ports) as (proxy, peer, address):
        reader, writer = await dial(address)
        there_reader, there_writer = await peer.next()
        writer.write(b"ping")
        assert await read(there_reader, 4) == b"ping"
        there_writer.write(b"pong")
        assert await read(reader, 4) == b"pong"
        writer.write_eof()
        assert await asyncio.wait_for(there_reader.read(), DEADLINE_S) == b""
        there_writer.write(b"late")
        there_writer.close()
        assert await read(reader, 4) == b"late"
        assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
        writer.close()
        assert proxy.forwarded_bytes == 12


async def test_a_cut_holds_both_directions_and_healing_lets_them_through_in_order(ports: PortRange) -> None:
    async with linked(ports) as (proxy, peer, address):
        reader, writer = await dial(address)
        there_reader, there_writer = await peer.next()
        writer.write(b"before")
        assert await read(there_reader, 6) == b"before"
        proxy.cut([("a", "b"), ("b", "a")], "silent")
        writer.write(b"during")
        there_writer.write(b"answer")
        assert await silent(there_reader)
        assert await silent(reader)
        writer.write(b"more")
        proxy.heal([("a", "b"), ("b", "a")])
        assert await read(there_reader, 10) == b"duringmore"
        assert await read(reader, 6) == b"answer"
        writer.close()


async def test_a_one_way_cut_lets_the_other_way_through(ports: PortRange) -> None:
    async with linked(ports) as (proxy, peer, address):
        reader, writer = await dial(address)
        there_reader, there_writer = await peer.next()
        proxy.cut([("a", "b")], "silent")
        writer.write(b"lost?")
        there_writer.write(b"heard")
        assert await read(reader, 5) == b"heard"
        assert await silent(there_reader)
        proxy.heal([("a", "b")])
        assert await read(there_reader, 5) == b"lost?"
        writer.close()


async def test_nobody_learns_of_a_death_behind_a_cut(ports: PortRange) -> None:
    async with linked(ports) as (proxy, peer, address):
        _reader, writer = await dial(address)
        there_reader, there_writer = await peer.next()
        proxy.cut([("a", "b")], "silent")
        writer.transport.abort()  # as the kernel does for a killed process with unread bytes
        there_writer.write(b"x" * 100_000)
        assert await silent(there_reader)
        assert proxy.connection_count == 1
        proxy.heal([("a", "b")])
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(there_reader.read(1), DEADLINE_S) == b""
        there_writer.close()
        async with asyncio.timeout(DEADLINE_S):
            while proxy.connection_count:  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0)


async def test_a_new_connection_behind_a_cut_waits_at_the_door(ports: PortRange) -> None:
    async with linked(ports) as (proxy, peer, address):
        proxy.cut([("b", "a")], "silent")
        reader, writer = await dial(address)
        writer.write(b"hello")
        assert await silent(reader)
        assert peer.connections.empty()
        proxy.heal([("b", "a")])
        there_reader, _ = await peer.next()
        assert await read(there_reader, 5) == b"hello"
        writer.close()


async def test_a_reset_cut_breaks_what_is_open_and_what_comes(ports: PortRange) -> None:
    async with linked(ports) as (proxy, peer, address):
        reader, _writer = await dial(address)
        there_reader, _ = await peer.next()
        proxy.cut([("a", "b"), ("b", "a")], "reset")
        for end in (reader, there_reader):
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(end.read(1), DEADLINE_S)
        with pytest.raises(ConnectionResetError):  # at once, or with the first read
            await dial_and_read(address)


async def test_a_dead_target_breaks_the_connection(ports: PortRange) -> None:
    listen = Address("127.0.0.3", ports.base + 10)
    proxy = Proxy([Link("a", "b", listen, Address("127.0.0.3", ports.base))])
    proxy.start()
    try:
        reader, _writer = await dial(listen)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(1), DEADLINE_S)
    finally:
        proxy.close()


async def test_a_taken_port_is_refused_with_its_address(ports: PortRange) -> None:
    address = Address("127.0.0.3", ports.base)
    async with peer_at(address):
        proxy = Proxy([Link("a", "b", Address("127.0.0.2", ports.base), address), Link("c", "d", address, address)])
        with pytest.raises(PreconditionError, match=str(address)):
            proxy.start()


async def test_a_slow_reader_is_waited_for_and_nothing_is_lost(ports: PortRange) -> None:
    size, chunk = 64 << 20, b"0123456789abcdef" * (1 << 14)
    async with linked(ports) as (proxy, peer, address):
        _reader, writer = await dial(address)
        there_reader, _ = await peer.next()

        async def send() -> None:
            for _ in range(size // len(chunk)):
                writer.write(chunk)
                await writer.drain()
            writer.write_eof()

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(send(), name="send")
            received = bytearray()
            while part := await there_reader.read(1 << 20):
                received += part
        assert bytes(received) == chunk * (size // len(chunk))
        assert proxy.forwarded_bytes == size
        writer.close()


async def test_a_target_that_never_hangs_up_keeps_nothing_open(
    ports: PortRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen broker is dialled again and again: each attempt must leave nothing behind."""
    monkeypatch.setattr(forwarding, "HALF_CLOSED_S", 0.02)
    async with linked(ports) as (proxy, peer, address):
        _reader, writer = await dial(address)
        _there_reader, there_writer = await peer.next()
        writer.close()
        async with asyncio.timeout(DEADLINE_S):
            while proxy.connection_count:  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0)
        there_writer.close()
