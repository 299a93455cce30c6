"""Which streams go over TCP, what happens if a port cannot be used, and what one connection does at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from seriatim import Client
from seriatim._transport import stream_ports
from seriatim._transport.carriages import Carriages
from seriatim._transport.channels import Channels
from seriatim._transport.stream_ports import FAILURES_MAX, PORTS_MAX, StreamPort, StreamPorts
from seriatim._transport.tcp_carriage import FRAME_SIZE_BYTES_MAX, TcpCarriage
from seriatim_api import errors
from seriatim_api.protocol import PROTOCOL
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import broker_pb2
from seriatim_api.wire.frame_reader import with_prefix
from seriatim_api.wire.frames import FrameError
from seriatim_api.wire.stream_frames import END, FINISHED, HELLO, MESSAGE, OPENED

from ..fake_broker import FakeBroker, TcpContext, connected, running, until

HELLO_MESSAGE = broker_pb2.ClientHello(protocol=PROTOCOL, client="test")

BUSY = error_to_proto(errors.OverloadedError("busy")).SerializeToString()

Serve = Callable[[TcpContext], Awaitable[None]]


async def send_and_read(client: Client, count: int = 3) -> None:
    async with client.producer("t", linger_ms=0) as producer, client.consumer("t", "g") as consumer:
        for _ in range(count):
            await asyncio.wait_for(await producer.send(b"x", partition=0), 10)
        seen = 0
        while seen < count:
            seen += len(await consumer.fetch(timeout_s=10.0))
        await consumer.ack_all()


def cut_off(client: Client) -> None:
    """The next producer opens a new stream."""
    for task in client._links._tasks.values():
        task.cancel()


class Port:
    """A port at which a test decides what is said."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.number = 0
        self.count = 0
        self.ended = 0
        self.tasks: set[asyncio.Task[Any]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self._serve(TcpContext(reader, writer))
            while await reader.read(1 << 16):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has gone, or the test ends
        finally:
            self.ended += 1
            self.tasks.discard(task)
            writer.close()


@asynccontextmanager
async def port(serve: Serve) -> AsyncIterator[Port]:
    made = Port(serve)
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.number = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in made.tasks.copy():
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)


async def silent(_context: TcpContext) -> None:
    """Reads and says nothing."""


async def hangs_up(context: TcpContext) -> None:
    context._writer.close()


async def babbles(context: TcpContext) -> None:
    context._writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")


async def has_another_name(context: TcpContext) -> None:
    await context.frame()
    context.send(END, error_to_proto(errors.BadRequestError("this is another broker")).SerializeToString())


async def is_about_to_end(context: TcpContext) -> None:
    await context.frame()
    context.send(END, error_to_proto(errors.NotServingError("this broker is stopping")).SerializeToString())


async def opens(context: TcpContext) -> None:
    assert (await context.frame())[0] == HELLO
    context.send(OPENED)


def carriage_to(number: int) -> TcpCarriage:
    return TcpCarriage(Channels(), StreamPort("127.0.0.1:1", number, "b", "c"))


class Stream:
    """A link: what it has to send, and what came."""

    def __init__(self, *frames: bytes, is_finishing: bool = False) -> None:
        self._frames = list(frames)
        self.is_finishing = is_finishing
        self.taken: list[bytes] = []

    def next_frame(self) -> Sequence[bytes] | None:
        return (self._frames.pop(0),) if self._frames else None

    def take(self, frame: bytes | memoryview) -> None:
        self.taken.append(bytes(frame))


# ---- which way ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carriage", ["grpc", "tcp"], indirect=True)
async def test_streams_go_over_tcp_if_there_is_a_port(carriage: str) -> None:
    async with connected() as (cluster, client):
        await send_and_read(client)
    assert cluster.brokers[0].has_streams_over_tcp == (carriage == "tcp")


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
@pytest.mark.parametrize(("is_named", "is_stale"), [(True, False), (True, True), (False, False)])
async def test_a_named_port_is_dialed_unasked(carriage: str, is_named: bool, is_stale: bool) -> None:
    async with running() as cluster, port(hangs_up) as earlier:
        cluster.create_topic("t")
        broker = cluster.brokers[0]
        broker.names_ports = is_named
        right = broker.stream_port
        async with Client.connect(broker.address) as client:
            broker.stream_port = earlier.number if is_stale else right
            producer = await client.producer("t", linger_ms=0)
            broker.stream_port = right
            await asyncio.wait_for(await producer.send(b"x"), 10)
        assert broker.has_streams_over_tcp
        assert broker.asked_for_port == (is_stale or not is_named)


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_a_broker_without_the_question_gets_streams_over_grpc(
    carriage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There its hello says which protocol it speaks (rule `refused-is-told`)."""

    async def unknown(_broker: FakeBroker, _request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    monkeypatch.setattr(FakeBroker, "GetStreamPort", unknown)
    monkeypatch.setattr(FakeBroker, "names_ports", False)
    async with connected(2, brokers=2) as (cluster, client):
        await send_and_read(client)
    assert not cluster.brokers[0].has_streams_over_tcp


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
@pytest.mark.parametrize("serve", [None, silent, hangs_up, babbles, has_another_name])
async def test_a_port_that_cannot_be_used_is_avoided_for_a_time(
    carriage: str, serve: Serve | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as cluster, port(serve or silent) as wrong:
        cluster.create_topic("t")
        broker = cluster.brokers[0]
        right, broker.stream_port = broker.stream_port, wrong.number if serve else 1
        async with Client.connect(broker.address) as client:
            for _ in range(FAILURES_MAX):
                await send_and_read(client)
                cut_off(client)
            assert not broker.has_streams_over_tcp
            count = wrong.count
            assert count <= 4 * FAILURES_MAX
            await send_and_read(client)
            cut_off(client)
            assert (wrong.count, broker.has_streams_over_tcp) == (count, False)
            broker.stream_port = right
            avoided = client._carriages._ports._avoided_until_s
            assert 0 < avoided[broker.address] - asyncio.get_running_loop().time() <= stream_ports.AVOIDED_S
            avoided[broker.address] = 0.0  # its time is over
            await send_and_read(client)
            assert broker.has_streams_over_tcp


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_a_restarted_broker_gets_its_streams_over_tcp_again(carriage: str) -> None:
    async with (
        connected() as (cluster, client),
        client.producer("t", linger_ms=0) as producer,
        client.consumer("t", "g") as consumer,
    ):
        broker = cluster.brokers[0]
        for turn in range(3):
            broker.connections.clear()
            await asyncio.wait_for(await producer.send(b"x"), 10)
            while not await consumer.fetch(timeout_s=1.0):
                pass
            await consumer.ack_all()
            if turn:
                await until(lambda: len(broker.connections) >= 2)
                assert not any(peer.startswith("ipv") for peer in broker.connections)
            await broker.stop()
            await broker.restart()  # its port for streams is another one


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_the_end_of_a_broker_counts_once_for_all_its_streams(carriage: str) -> None:
    async with running() as cluster:
        channels = Channels()
        ports, address = StreamPorts(channels), cluster.brokers[0].address
        first, second = await asyncio.gather(ports.find(address, "append"), ports.find(address, "consume"))
        assert first is second is not None
        for _ in range(5):
            ports.failed(first)
        again = await ports.find(address, "append")
        assert again is not None
        ports.works(again)
        ports.failed(again)
        again = await ports.find(address, "append")
        assert again is not None
        ports.failed(again)
        assert await ports.find(address, "append") is None
        await channels.close()


@pytest.mark.parametrize("carriage", ["tcp"], indirect=True)
async def test_a_broker_that_is_about_to_end_is_not_avoided_afterwards(carriage: str) -> None:
    async with running() as cluster:
        broker = cluster.brokers[0]
        right, channels = broker.stream_port, Channels()
        carriages = Carriages(channels)
        async with port(is_about_to_end) as ending:
            broker.stream_port = ending.number
            for _ in range(2 * FAILURES_MAX):
                chosen = await carriages.choose(broker.address, "append")
                with pytest.raises(errors.NotServingError):
                    await chosen.open(HELLO_MESSAGE)
                chosen.close()
            assert (ending.count, broker.connections) == (2 * FAILURES_MAX, set())
        broker.stream_port = right
        chosen = await carriages.choose(broker.address, "append")
        await chosen.open(HELLO_MESSAGE)
        await chosen.read()
        assert broker.has_streams_over_tcp
        chosen.close()
        await channels.close()


async def test_ports_are_kept_up_to_a_limit() -> None:
    channels = Channels()
    ports = StreamPorts(channels)

    async def ask(address: str, _purpose: str) -> Any:
        return broker_pb2.GetStreamPortResponse(port=5, broker=address, cluster_id="c")

    ports._ask = ask  # type: ignore[method-assign]
    for n in range(2 * PORTS_MAX + 10):
        for _ in range(3):
            found = await ports.find(f"h:{n}", "append")
            if found is not None and n % 2:
                ports.failed(found)
    assert len(ports._known) <= PORTS_MAX
    for n in range(4 * PORTS_MAX):
        for _ in range(1 + n % 2):
            found = await ports.find(f"i:{n}", "append")
            assert found is not None
            ports.failed(found)
    assert len(ports._failures) <= PORTS_MAX
    assert len(ports._avoided_until_s) <= PORTS_MAX
    await channels.close()


async def test_a_silent_broker_is_asked_on_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_broker: FakeBroker, _request: Any, _context: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(FakeBroker, "GetStreamPort", never)
    async with running() as cluster:
        channels, address = Channels(), cluster.brokers[0].address
        before = channels.get(address, "append")
        with pytest.raises(errors.DeadlineExceededError):
            await StreamPorts(channels).find(address, "append")
        assert channels.get(address, "append") is not before
        await channels.close()


async def test_a_connection_that_is_slow_to_be_made_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a broker far away, with more round trips for TLS than fit into the time, could never be reached."""
    monkeypatch.setattr(stream_ports, "ASK_DEADLINE_S", 0.1)
    async with port(silent) as mute:
        channels = Channels()
        address = f"127.0.0.1:{mute.number}"
        before = channels.get(address, "append")
        with pytest.raises(errors.DeadlineExceededError):
            await StreamPorts(channels).find(address, "append")
        assert channels.get(address, "append") is before
        await channels.close()


# ---- one connection -------------------------------------------------------------------------------------


@pytest.mark.parametrize("serve", [silent, opens])
@pytest.mark.parametrize("phase", ["open", "read", "carry"])
async def test_a_stream_that_is_given_up_at_any_time_leaves_nothing(serve: Serve, phase: str) -> None:
    if serve is silent and phase != "open":
        return
    before = asyncio.all_tasks()
    async with port(serve) as server:
        carriage = carriage_to(server.number)

        opened: list[bool] = []

        async def use() -> None:
            await carriage.open(HELLO_MESSAGE)
            opened.append(True)
            if phase == "read":
                await carriage.read()
            await carriage.carry(Stream())

        using = asyncio.create_task(use())
        if serve is silent or phase != "open":
            await until(lambda: server.count == 1)
            if serve is opens:
                await until(lambda: bool(opened))
        else:
            await asyncio.sleep(0)
        using.cancel()
        await asyncio.gather(using, return_exceptions=True)
        assert using.cancelled()
        carriage.close()
        await until(lambda: server.ended == server.count)
        await until(lambda: asyncio.all_tasks() <= before | server.tasks)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (
            with_prefix(END, [error_to_proto(errors.OverloadedError("busy")).SerializeToString()]),
            errors.OverloadedError,
        ),
        (with_prefix(END, [b"\xff\xff no error"]), errors.UnavailableError),
        (with_prefix(OPENED, [b""]), FrameError),
        (with_prefix(9, [b""]), FrameError),
        ([(FRAME_SIZE_BYTES_MAX + 1).to_bytes(4, "little"), bytes([MESSAGE]), bytes(300_000)], FrameError),
        ([b""], errors.UnavailableError),
    ],
)
async def test_the_end_of_a_stream_has_its_reason(said: list[bytes], error: type[Exception]) -> None:
    async def serve(context: TcpContext) -> None:
        await opens(context)
        context.send(MESSAGE, b"first")
        context._writer.write(b"".join(said))
        if not any(said):
            context._writer.close()

    async with port(serve) as server:
        carriage = carriage_to(server.number)
        await carriage.open(HELLO_MESSAGE)
        stream = Stream()
        with pytest.raises(error) as caught:
            await asyncio.wait_for(carriage.carry(stream), 60)
        assert type(caught.value) is error
        assert stream.taken == [b"first"]
        carriage.close()


async def test_all_that_waits_is_sent_before_the_client_finishes() -> None:
    got: list[tuple[int, bytes]] = []

    async def serve(context: TcpContext) -> None:
        await opens(context)
        while not got or got[-1][0] != FINISHED:
            got.append(await context.frame())
        context.send(END)

    async with port(serve) as server:
        carriage = carriage_to(server.number)
        await carriage.open(HELLO_MESSAGE)
        frames = [n.to_bytes(4, "big") * 25_000 for n in range(200)]  # much more than a socket takes at once
        await asyncio.wait_for(carriage.carry(Stream(*frames, is_finishing=True)), 10)
        assert [content for kind, content in got if kind == MESSAGE] == frames
        assert got[-1] == (FINISHED, b"")
        carriage.close()
