"""Links over real sockets: up, in order, down at once, made again, one for each pair."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random

import grpc
import pytest
from seriatim_api.batch import make_header, parse_header
from seriatim_api.ids import MemberId
from seriatim_broker.adapters.system_clock import SystemClock
from seriatim_broker.core import messages as m
from seriatim_broker.core.events import Event, LinkDown, LinkUp, Received
from seriatim_broker.core.log import Batch
from seriatim_broker.interfaces.link import Connection, PeerIdentity, PeerRefusedError, PeerSilentError
from seriatim_broker.rpc.limits import SERVER_OPTIONS
from seriatim_broker.rpc.peer import GrpcDialer, PeerServicer
from seriatim_broker.runtime.links import DIAL_DEADLINE_S, Links


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Node:
    """One end: a server, its links, and the events they gave."""

    def __init__(self, name: str, run: int, port: int, addresses: dict[str, str], cluster: str = "c1") -> None:
        self.identity = PeerIdentity(cluster, MemberId(name, f"{name}-disk"), run)
        self.events: list[Event] = []
        self.arrived = asyncio.Event()
        self.links = Links(
            name, GrpcDialer(self.identity), addresses.get, self._take, self._take, SystemClock(), Random(1)
        )
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        self.server.add_generic_rpc_handlers((PeerServicer(self.identity, self.links.carry_accepted).handler(),))
        self.server.add_insecure_port(f"127.0.0.1:{port}")

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self.arrived.set()

    async def until(self, condition: Callable[[], bool], deadline_s: float = 5.0) -> None:
        async with asyncio.timeout(deadline_s):
            while not condition():
                self.arrived.clear()
                await self.arrived.wait()

    def ups(self) -> list[LinkUp]:
        return [event for event in self.events if isinstance(event, LinkUp)]

    def downs(self, *, refused: bool) -> list[LinkDown]:
        return [event for event in self.events if isinstance(event, LinkDown) and event.refused == refused]

    def messages(self) -> list[m.Message]:
        return [event.message for event in self.events if isinstance(event, Received)]

    async def stop(self) -> None:
        await self.links.close()
        await self.server.stop(None)


@contextlib.asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    for node in nodes:
        await node.server.start()
    try:
        yield
    finally:
        for node in nodes:
            await node.stop()


def pair() -> tuple[Node, Node, dict[str, str]]:
    ports = free_port(), free_port()
    addresses = {"a": f"127.0.0.1:{ports[0]}", "b": f"127.0.0.1:{ports[1]}"}
    return Node("a", 1, ports[0], addresses), Node("b", 4, ports[1], addresses), addresses


def _ignore(_: Event) -> None:
    pass


def make_batch(body: bytes) -> Batch:
    raw = make_header(
        partition=7, message_count=1, producer=bytes(16), producer_epoch=1, base_sequence=0,
        first_timestamp_ms=1, last_timestamp_ms=2, body_length=len(body), body_crc=5,
    )  # fmt: skip
    return Batch(parse_header(raw), body)


async def test_messages_arrive_in_order_on_both_streams() -> None:
    a, b, _ = pair()
    async with running(a, b):
        a.links.connect("b")
        await a.until(lambda: bool(a.ups()))
        await b.until(lambda: bool(b.ups()))
        assert a.ups() == [LinkUp("b", b.identity.member, 4, 1)]
        assert b.ups() == [LinkUp("a", a.identity.member, 1, 1)]
        data = [m.Replicate(7, 1, bytes(16), at, (make_batch(bytes(100_000)),)) for at in range(50)]
        beats = [m.Heartbeat(at) for at in range(50)]
        for datum, beat in zip(data, beats, strict=True):
            a.links.send("b", datum)
            b.links.send("a", beat)
        await b.until(lambda: len(b.messages()) == 50)
        await a.until(lambda: len(a.messages()) == 50)
        assert b.messages() == data
        assert a.messages() == beats


async def test_a_peer_that_ends_is_noticed_at_once_and_found_again() -> None:
    a, b, addresses = pair()
    async with running(a, b):
        a.links.connect("b")
        await a.until(lambda: bool(a.ups()))
        began = time.monotonic()
        await b.stop()
        await a.until(lambda: bool(a.downs(refused=True)))
        assert time.monotonic() - began < 1
        assert [down.session for down in a.downs(refused=False)] == [1]
        again = Node("b", 5, int(addresses["b"].rpartition(":")[2]), addresses)
        async with running(again):
            began = time.monotonic()
            await a.until(lambda: len(a.ups()) == 2)
            assert time.monotonic() - began < 1
            assert a.ups()[1] == LinkUp("b", b.identity.member, 5, 2)


async def test_dials_that_cross_end_in_one_link() -> None:
    a, b, _ = pair()
    async with running(a, b):
        for _ in range(5):
            a.links.connect("b")
            b.links.connect("a")
            await a.until(lambda: a.links.is_up("b"))
            await b.until(lambda: b.links.is_up("a"))
            marker = m.Heartbeat(len(a.events) + len(b.events) * 1000)
            async with asyncio.timeout(5):  # a crossing may break one link before both settle on the other
                while marker not in b.messages():
                    a.links.send("b", marker)
                    await asyncio.wait([asyncio.ensure_future(b.arrived.wait())], timeout=0.05)
                    b.arrived.clear()
            a.links.disconnect("b", a.ups()[-1].session)
            await b.until(lambda: bool(b.downs(refused=False)))


async def test_a_peer_of_another_cluster_is_refused() -> None:
    ports = free_port(), free_port()
    addresses = {"a": f"127.0.0.1:{ports[0]}", "b": f"127.0.0.1:{ports[1]}"}
    a, stranger = Node("a", 1, ports[0], addresses), Node("b", 4, ports[1], addresses, cluster="c2")
    async with running(a, stranger):
        with pytest.raises(PeerSilentError, match="another cluster"):
            await GrpcDialer(a.identity).dial(addresses["b"], 2.0)
        assert not stranger.ups()


async def test_a_name_without_an_address_says_nothing_of_the_process_behind_it() -> None:
    dialer = GrpcDialer(PeerIdentity("c1", MemberId("a", "a-disk"), 1))
    name = "a" * 64 + ".invalid"  # too long for a label: no name server is asked
    with pytest.raises(PeerSilentError, match=r"\.invalid"):
        await dialer.dial(f"{name}:7100", 5.0)


@pytest.fixture
def uncollected() -> Iterator[Callable[[], int]]:
    """How many calls of gRPC there are, while nothing collects garbage."""
    gc.collect()
    gc.disable()
    yield lambda: sum(isinstance(thing, grpc.aio.StreamStreamCall) for thing in gc.get_objects())
    gc.enable()


@pytest.mark.parametrize("how", ["refused", "silent", "cancelled", "used"])
async def test_a_dial_that_is_over_leaves_no_call_behind(uncollected: Callable[[], int], how: str) -> None:
    """What is left goes on connecting: a peer that was away for minutes was dialled hundreds of times a second."""
    a, b, _ = pair()
    dialer = GrpcDialer(a.identity)
    if how == "refused":
        with pytest.raises(PeerRefusedError):
            await dialer.dial(f"127.0.0.1:{free_port()}", 5.0)
    elif how == "used":
        async with running(b):
            a.links.connect("b")
            await a.until(lambda: a.links.is_up("b"))
            assert uncollected() == 2
        await a.until(lambda: bool(a.downs(refused=True)))
        await a.links.close()
    else:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            dial = asyncio.create_task(dialer.dial(f"127.0.0.1:{deaf.getsockname()[1]}", 0.1))
            if how == "cancelled":
                await asyncio.sleep(0)
                dial.cancel()
            await asyncio.wait([dial])
            assert dial.cancelled() or isinstance(dial.exception(), PeerSilentError)
            del dial
    for _ in range(100):
        if uncollected() == 0:
            break
        await asyncio.sleep(0.01)  # a thread of gRPC's ends what was cancelled
    assert uncollected() == 0


async def test_a_peer_that_is_known_anew_is_tried_as_if_for_the_first_time() -> None:
    deadlines: list[float] = []
    tried = asyncio.Event()

    class Silence:
        async def dial(self, address: str, deadline_s: float) -> Connection:
            deadlines.append(deadline_s)
            tried.set()
            raise PeerSilentError(address)

    links = Links("a", Silence(), lambda _: "nowhere:1", _ignore, _ignore, SystemClock(), Random(1))
    links.connect("b")
    async with asyncio.timeout(10):
        while len(deadlines) < 3:
            tried.clear()
            await tried.wait()
            if len(deadlines) == 2:
                links.hasten("b")
    await links.close()
    assert deadlines == [DIAL_DEADLINE_S, DIAL_DEADLINE_S * 2, DIAL_DEADLINE_S]


async def test_garbage_breaks_the_link_and_nothing_else() -> None:
    a, b, addresses = pair()
    async with running(a, b):
        a.links.connect("b")
        await a.until(lambda: bool(a.ups()))
        async with grpc.aio.insecure_channel(addresses["b"]) as channel:
            call = channel.stream_stream("/seriatim.v1.Peer/Control")()
            await call.write(b"\xff\xff not a hello")
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        reader, writer = await asyncio.open_connection("127.0.0.1", int(addresses["b"].rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        await reader.read()
        writer.close()
        a.links.send("b", m.Heartbeat(9))
        await b.until(lambda: b.messages() == [m.Heartbeat(9)])
        assert not a.downs(refused=False)


async def test_a_dialer_that_ends_is_noticed_at_once_by_the_acceptor() -> None:
    a, b, _ = pair()
    async with running(b):
        await a.server.start()
        a.links.connect("b")
        await b.until(lambda: bool(b.ups()))
        began = time.monotonic()
        await a.stop()
        await b.until(lambda: bool(b.downs(refused=False)))
        assert time.monotonic() - began < 1
        assert not b.links.is_up("a")


async def test_a_newer_connection_of_the_same_dialer_is_used() -> None:
    """The acceptor cannot see that a cut connection is dead; whoever dials anew knows better."""
    a, b, addresses = pair()
    async with running(a, b):
        dialer = GrpcDialer(a.identity)
        carried: list[asyncio.Task[str]] = []
        for count in (1, 2):
            connection = await dialer.dial(addresses["b"], 5.0)
            await connection.confirm()
            carried.append(asyncio.create_task(connection.run(lambda _message: None)))
            await b.until(lambda count=count: len(b.ups()) == count)  # type: ignore[misc]
        assert [down.session for down in b.downs(refused=False)] == [1]
        b.links.send("a", m.Heartbeat(1))
        assert not carried[1].done()
        await asyncio.wait_for(carried[0], 5)  # the older one was ended
        carried[1].cancel()
        await asyncio.gather(carried[1], return_exceptions=True)


async def test_a_connection_that_is_not_confirmed_is_never_used() -> None:
    a, b, addresses = pair()
    async with running(a, b):
        connection = await GrpcDialer(a.identity).dial(addresses["b"], 5.0)
        await connection.abandon("changed our mind")
        a.links.connect("b")
        await b.until(lambda: bool(b.ups()))
        assert len(b.ups()) == 1
