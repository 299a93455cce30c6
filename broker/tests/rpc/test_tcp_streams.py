"""Streams over TCP: hellos, limits, garbage, what the last frame says, and that nothing is left behind.

What a stream does with its frames is in `test_producing` and `test_consuming`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seriatim_api import errors
from seriatim_api.network import tls
from seriatim_api.network.tls import TlsFiles, TlsSource
from seriatim_api.network.tls_contexts import TlsContexts
from seriatim_api.protocol import PROTOCOL
from seriatim_api.status import error_from_proto
from seriatim_api.v1 import broker_pb2, common_pb2
from seriatim_api.wire import framed_connection
from seriatim_api.wire.frame_reader import HELLO_SIZE_BYTES_MAX
from seriatim_api.wire.frames import AppendEntry, write_append_frame
from seriatim_api.wire.stream_frames import END, FINISHED, HELLO, MESSAGE, OPENED
from seriatim_broker.rpc.calls.limits import MESSAGE_SIZE_BYTES_MAX
from seriatim_broker.rpc.calls.services import Services
from seriatim_broker.rpc.streams import append, over_tcp
from seriatim_broker.rpc.streams.over_tcp import TcpStreams
from structlog.testing import capture_logs

from broker.tests.headers import header_of

from .certificates import write
from .raw_frames import RawFrames, frame
from .test_producing import BODY, QuietCore, core, make_services, release, services

__all__ = ["core", "services"]

DEADLINE_S = 30.0


class Raw(RawFrames):
    """A client that sends what a test wants."""

    async def opened(self, kind: str = "append") -> None:
        """Begin a stream, and read the credit of an append stream."""
        self.send(HELLO, hello(kind))
        assert await self.read() == (OPENED, b"")
        if kind == "append":
            _, content = await self.read()
            assert broker_pb2.AppendReplies.FromString(content).credit.broker == "g0-0"

    async def replies(self, count: int) -> list[broker_pb2.AppendReply]:
        found: list[broker_pb2.AppendReply] = []
        while len(found) < count:
            kind, content = await self.read()
            assert kind == MESSAGE
            found += broker_pb2.AppendReplies.FromString(content).replies
        return found

    async def end(self) -> errors.SeriatimError | None:
        """Read the last frame, and that the broker has ended the connection when this side does."""
        while True:
            kind, content = await self.read()
            if kind == END:
                break
        self.writer.close()
        await self.writer.wait_closed()
        return error_from_proto(common_pb2.Error.FromString(content)) if content else None

    def close(self) -> None:
        if not self.writer.is_closing():
            self.writer.transport.abort()


def hello(kind: str = "append", broker: str = "g0-0", cluster: str = "c", protocol: int = PROTOCOL) -> bytes:
    whole = broker_pb2.StreamHello(cluster_id=cluster, broker=broker)
    if kind == "append":
        whole.append.protocol = protocol
    elif kind == "consume":
        whole.consume.protocol = protocol
        whole.consume.credit_bytes = 1 << 20
    return whole.SerializeToString()


def batch(partition: int, body: bytes = BODY) -> tuple[AppendEntry, bytes, bytes]:
    header = header_of(body, partition=partition, producer_epoch=1)
    return AppendEntry(1, 5, True, 0), header, body


def batches(*partitions: int) -> bytes:
    return write_append_frame([batch(partition) for partition in partitions])


class Nowhere:
    """Addresses of brokers, of which none is known."""

    def of(self, _member: object) -> str:
        return ""


class Place:
    """A broker's port for streams."""

    def __init__(self, services: Services, contexts: TlsContexts | None = None) -> None:
        self.services = services
        self.streams = TcpStreams(services, cast(Any, Nowhere()), contexts)
        self.port = 0
        self._raws: list[Raw] = []

    async def raw(self, context: ssl.SSLContext | None = None) -> Raw:
        self._raws.append(Raw(*await asyncio.open_connection("127.0.0.1", self.port, ssl=context, limit=64 << 20)))
        return self._raws[-1]

    async def idle(self) -> None:
        """Wait until no connection is left. Nothing of a stream is left then."""
        async with asyncio.timeout(DEADLINE_S):
            while self.streams.listening._tasks:
                await asyncio.wait(self.streams.listening._tasks)
                await asyncio.sleep(0)
        assert (self.services.stream_count, self.services.in_flight_bytes) == (0, 0)
        assert self.streams.listening.waiting_count == 0
        assert not self.streams._connections

    async def is_well(self) -> None:
        """A stream can be made, and ends well."""
        raw = await self.raw()
        await raw.opened("consume")
        raw.send(FINISHED)
        assert await raw.end() is None

    async def close(self) -> None:
        for raw in self._raws:
            raw.close()
        await self.streams.stop(0.0)
        await self.idle()


@asynccontextmanager
async def listening(services: Services, contexts: TlsContexts | None = None) -> AsyncIterator[Place]:
    made = Place(services, contexts)
    made.port = int((await made.streams.start("127.0.0.1:0")).rpartition(":")[2])
    try:
        yield made
    finally:
        await made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def place(services: Services) -> AsyncIterator[Place]:
    """It listens, in plain text."""
    async with listening(services) as made:
        yield made


# ---- hellos ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", errors.BadRequestError),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", errors.BadRequestError),
        (frame(HELLO, b"\xff\xff no hello"), errors.BadRequestError),
        (frame(HELLO, bytes(HELLO_SIZE_BYTES_MAX + 1)), errors.BadRequestError),
        (frame(MESSAGE, hello()), errors.BadRequestError),
        (frame(9), errors.BadRequestError),
        (frame(HELLO, hello("something else")), errors.BadRequestError),
        (frame(HELLO, hello(protocol=99)), errors.UnsupportedVersionError),
        (frame(HELLO, hello("consume", protocol=99)), errors.UnsupportedVersionError),
        (frame(HELLO, hello(broker="g0-1")), errors.BadRequestError),
        (frame(HELLO, hello(cluster="other")), errors.BadRequestError),
    ],
)
async def test_what_is_no_hello_for_this_broker_is_refused_with_one_line(
    place: Place, sent: bytes, error: type[errors.SeriatimError]
) -> None:
    with capture_logs() as logs:
        raw = await place.raw()
        raw.writer.write(sent)
        assert type(await raw.end()) is error
        await place.idle()
    [line] = logs
    assert line["event"].endswith("stream_refused")
    await place.is_well()


@pytest.mark.parametrize("sent", [b"", b"\x10", frame(HELLO, hello())[:-1]])
async def test_a_hello_that_does_not_come_in_time_is_not_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(over_tcp, "HELLO_DEADLINE_S", 0.5)
    raw = await place.raw()
    raw.writer.write(sent)
    assert isinstance(await raw.end(), errors.BadRequestError)


async def test_strangers_make_room_for_clients(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.streams.listening, "waiting_count_max", 4)
    client = await place.raw()
    await client.opened()
    strangers = [await place.raw() for _ in range(6)]
    async with asyncio.timeout(DEADLINE_S):
        for gone in strangers[:2]:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await gone.reader.readexactly(1)
    assert place.streams.listening.waiting_count == 4
    await place.is_well()
    client.send(FINISHED)  # its stream is no stranger's
    assert await client.end() is None


async def test_the_limit_of_streams_holds_here_too(place: Place) -> None:
    place.services.stream_count_max = 1
    first = await place.raw()
    await first.opened()
    second = await place.raw()
    second.send(HELLO, hello("consume"))
    refused = await second.end()
    assert isinstance(refused, errors.TooManyStreamsError)
    assert refused.retry_after_ms
    first.send(FINISHED)
    assert await first.end() is None
    await place.idle()
    await place.is_well()


async def test_warm_streams_leave_half_of_the_places_to_others(place: Place) -> None:
    place.services.stream_count_max = 4
    warm = broker_pb2.StreamHello.FromString(hello())
    warm.append.is_warm = True
    for is_taken in (True, True, False):
        raw = await place.raw()
        raw.send(HELLO, warm.SerializeToString())
        if is_taken:
            assert await raw.read() == (OPENED, b"")
        else:
            assert isinstance(await raw.end(), errors.TooManyStreamsError)
    for _ in range(2):
        await (await place.raw()).opened()


# ---- frames that may not come ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["append", "consume"])
@pytest.mark.parametrize(
    "sent",
    [
        frame(HELLO, hello()),
        frame(OPENED),
        frame(END),
        frame(9),
        frame(FINISHED) + frame(MESSAGE),
        frame(FINISHED) + frame(FINISHED),
        frame(MESSAGE, b"\xff\xff no message"),
        (MESSAGE_SIZE_BYTES_MAX + 1).to_bytes(4, "little") + bytes([MESSAGE]),
    ],
)
async def test_a_frame_that_may_not_come_ends_the_stream_and_says_why(place: Place, kind: str, sent: bytes) -> None:
    raw = await place.raw()
    await raw.opened(kind)
    if kind == "append":
        raw.send(MESSAGE, batches(1))  # its answer is owed
    raw.writer.write(sent)
    assert isinstance(await raw.end(), errors.BadRequestError)
    await place.idle()
    await place.is_well()


@pytest.mark.parametrize("is_opened", [False, True])
async def test_the_last_frame_reaches_a_client_that_is_still_sending(place: Place, is_opened: bool) -> None:
    """If the broker ended the connection with bytes unread, the client's kernel would drop the last frame."""
    raw = await place.raw()
    if is_opened:
        await raw.opened()
    raw.send(9)
    for _ in range(200):
        raw.writer.write(bytes(100_000))
        await raw.writer.drain()
    assert isinstance(await raw.end(), errors.BadRequestError)


async def test_a_client_that_does_not_go_is_left_after_a_while(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_tcp, "LINGER_S", 0.05)
    raw = await place.raw()
    await raw.opened()
    raw.send(9)
    await place.idle()


# ---- order, room and work -------------------------------------------------------------------------------


async def taken_one_in_each_turn(core: QuietCore) -> None:
    """60 batches reach the core in their order, at most one in each turn of the event loop."""
    async with asyncio.timeout(DEADLINE_S):
        while len(core.appends) < 60:
            before = len(core.appends)
            await asyncio.sleep(0)
            assert len(core.appends) <= before + 1
    assert [append.partition for append in core.appends] == list(range(60))


async def test_a_frame_of_much_work_lets_others_have_their_turn_and_keeps_the_order(
    place: Place, core: QuietCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "SLICE_S", -1.0)  # a slice is one batch
    raw = await place.raw()
    await raw.opened()
    small = bytes(500)
    for n in range(0, 60, 20):
        raw.send(MESSAGE, write_append_frame([batch(n + m, small) for m in range(20)]))
    raw.send(FINISHED)
    await taken_one_in_each_turn(core)
    replies = await raw.replies(60)  # each is refused: these bytes are no batch
    assert [reply.partition_id for reply in replies] == list(range(60))
    assert await raw.end() is None


async def test_a_client_that_goes_while_its_frame_is_worked_on_leaves_nothing(
    place: Place, core: QuietCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "SLICE_S", -1.0)
    raw = await place.raw()
    await raw.opened()
    raw.send(MESSAGE, batches(*range(8)))
    await core.until_count(1)
    [connection] = place.streams._connections
    connection.connection_lost(None)
    await place.idle()
    assert len(core.appends) < 8
    release(place.services)  # answers to what has ended


async def test_nothing_is_taken_from_a_client_that_does_not_read_until_it_reads(
    place: Place, core: QuietCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_tcp, "BEHIND_COUNT_MAX", 5)
    raw = await place.raw()
    await raw.opened()
    [connection] = place.streams._connections
    connection.pause_writing()  # as the event loop does when the socket is full
    for n in range(20):
        raw.send(MESSAGE, write_append_frame([batch(n, bytes(100))]))  # each is refused at once
    raw.send(FINISHED)
    await core.until_count(5)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(core.appends) == 5
    connection.resume_writing()
    assert [reply.partition_id for reply in await raw.replies(20)] == list(range(20))
    assert await raw.end() is None


async def test_a_client_that_has_finished_gets_its_answers_before_the_end(place: Place, core: QuietCore) -> None:
    raw = await place.raw()
    await raw.opened()
    raw.send(MESSAGE, batches(1, 2))
    raw.send(FINISHED)
    await core.until_count(2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert place.services.stream_count == 1, "answers are owed"
    release(place.services)
    assert [reply.partition_id for reply in await raw.replies(2)] == [1, 2]
    assert await raw.end() is None
    await place.idle()


async def test_a_client_that_breaks_off_leaves_nothing(place: Place, core: QuietCore) -> None:
    raw = await place.raw()
    await raw.opened()
    raw.send(MESSAGE, batches(1, 2))
    await core.until_count(2)
    assert place.services.in_flight_bytes > 0
    raw.close()
    await place.idle()
    release(place.services)


async def test_a_broker_that_stops_says_so(place: Place, core: QuietCore) -> None:
    streams = [await place.raw() for _ in range(2)]
    stranger = await place.raw()
    for raw, kind in zip(streams, ("append", "consume"), strict=True):
        await raw.opened(kind)
    streams[0].send(MESSAGE, batches(1))
    await core.until_count(1)
    place.services.is_stopping = True
    stranger.send(HELLO, hello())
    assert isinstance(await stranger.end(), errors.NotServingError)
    stopping = asyncio.create_task(place.streams.stop(DEADLINE_S))
    for raw in streams:
        assert isinstance(await raw.end(), errors.NotServingError)
    await asyncio.wait_for(stopping, DEADLINE_S)
    await place.idle()
    with pytest.raises(ConnectionRefusedError):
        await place.raw()


async def test_a_stop_does_not_wait_for_clients_that_do_not_go(place: Place) -> None:
    raw, _silent = await place.raw(), await place.raw()
    await raw.opened()
    await asyncio.wait_for(place.streams.stop(0.05), 0.9)
    await place.idle()


@pytest.mark.parametrize("where", ["in the first slice", "later", "when sending"])
async def test_a_broken_assertion_reaches_the_event_loop(
    place: Place, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """There it ends the broker's process."""

    def take(_stream: Any, _frame: Any) -> Iterator[None]:
        if where == "later":
            yield
        raise AssertionError("planted")

    def next_frame(_stream: Any) -> Sequence[bytes]:
        raise AssertionError("planted")

    raw = await place.raw()
    await raw.opened()
    if where == "when sending":
        monkeypatch.setattr(append.AppendStream, "next_frame", next_frame)
    else:
        monkeypatch.setattr(append.AppendStream, "take", take)
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _loop, context: told.append(context))
    try:
        with capture_logs():
            raw.send(MESSAGE, b"")
            raw.send(FINISHED)
            await place.idle()
    finally:
        loop.set_exception_handler(before)
    assert [str(context["exception"]) for context in told] == ["planted"]


async def test_the_kernel_looks_after_clients_whose_machine_vanishes(place: Place) -> None:
    raw = await place.raw()
    await raw.opened()
    [connection] = place.streams._connections
    connected = connection.info("socket")
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    for name, value in over_tcp.KEEPALIVE:
        assert not hasattr(socket, name) or connected.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
    assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# ---- anything -------------------------------------------------------------------------------------------

PROGRAM = frame(HELLO, hello()) + b"".join(frame(MESSAGE, batches(n)) for n in (1, 2, 3)) + frame(FINISHED)

_HYPOTHESIS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


async def _play(place: Place, pieces: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Send the pieces, each in a turn of its own, and end this side. What the broker sent until it ended."""
    raw = await place.raw()
    raw.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found: list[tuple[int, bytes]] = []
    try:
        for piece in pieces:
            raw.writer.write(piece)
            await asyncio.sleep(0)
        raw.writer.write_eof()
        while True:
            found.append(await raw.read())
            release(place.services)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    raw.close()
    return found


@_HYPOTHESIS
@given(cuts=st.lists(st.integers(1, len(PROGRAM) - 1), max_size=12))
def test_it_does_not_matter_where_the_bytes_are_cut(cuts: list[int]) -> None:
    async def play() -> None:
        core = QuietCore()
        async with listening(await make_services(core)) as place:
            raw = await place.raw()
            ends = sorted({0, *cuts, len(PROGRAM)})
            for start, end in pairwise(ends):
                raw.writer.write(PROGRAM[start:end])
                await asyncio.sleep(0)
            await core.until_count(3)
            assert [append.partition for append in core.appends] == [1, 2, 3]
            release(place.services)
            assert await raw.end() is None

    asyncio.run(play())


@_HYPOTHESIS
@given(data=st.data())
def test_random_bytes_end_one_stream_and_nothing_else(data: st.DataObject) -> None:
    head = data.draw(st.sampled_from([b"", frame(HELLO, hello()), frame(HELLO, hello("consume"))]))
    kinds = st.integers(0, 6)
    parts = data.draw(
        st.lists(st.one_of(st.binary(max_size=40), st.builds(frame, kinds, st.binary(max_size=60))), max_size=8)
    )

    async def play() -> None:
        with capture_logs():
            async with listening(await make_services(QuietCore())) as place:
                asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
                found = await _play(place, [head, *parts])
                assert all(kind in (OPENED, MESSAGE, END) for kind, _ in found)
                assert [kind for kind, _ in found].count(END) <= 1
                await place.is_well()

    told: list[dict[str, Any]] = []
    asyncio.run(play())
    assert not told


async def test_memory_is_not_taken_for_a_frame_that_is_only_announced_and_refused(place: Place) -> None:
    raw = await place.raw()
    await raw.opened()
    [connection] = place.streams._connections
    raw.writer.write(b"\xff\xff\xff\xff" + bytes([MESSAGE]))
    assert isinstance(await raw.end(), errors.BadRequestError)
    assert connection._reader.size_bytes <= 1 << 20


# ---- TLS ------------------------------------------------------------------------------------------------


@pytest.fixture
def _always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "CHECK_INTERVAL_S", 0.0)


def contexts_of(files: TlsFiles) -> TlsContexts:
    return TlsContexts(TlsSource(files))


async def test_with_tls_a_stream_is_a_stream(services: Services, core: QuietCore, tmp_path: Path) -> None:
    contexts = contexts_of(write(tmp_path, trustme.CA(), "127.0.0.1"))
    async with listening(services, contexts) as place:
        raw = await place.raw(contexts.dialing())
        await raw.opened()
        raw.send(MESSAGE, batches(1))
        raw.send(FINISHED)
        await core.until_count(1)
        release(services)
        assert len(await raw.replies(1)) == 1
        assert await raw.end() is None


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff\x03", frame(9) * 3])
async def test_with_tls_garbage_before_much_more_ends_one_stream(
    services: Services, tmp_path: Path, sent: bytes
) -> None:
    """With TLS, the event loop asks for room again before the stream's task has its turn."""
    contexts = contexts_of(write(tmp_path, trustme.CA(), "127.0.0.1"))
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _loop, context: told.append(context))
    try:
        async with listening(services, contexts) as place:
            for _ in range(5):
                raw = await place.raw(contexts.dialing())
                await raw.opened("consume")
                raw.writer.write(sent + frame(MESSAGE) * 100_000)
                assert isinstance(await raw.end(), errors.BadRequestError)
            await place.idle()
    finally:
        loop.set_exception_handler(before)
    assert not told


@pytest.mark.usefixtures("_always_look")
@pytest.mark.parametrize("who", ["none", "of another authority", "expired"])
async def test_a_certificate_that_is_not_accepted_begins_nothing(services: Services, tmp_path: Path, who: str) -> None:
    authority = trustme.CA()
    ours = write(tmp_path / "b", authority, "127.0.0.1")
    theirs = write(tmp_path / "a", trustme.CA() if "another" in who else authority, "client", expired=who == "expired")
    authority.cert_pem.write_to_path(str(theirs.ca))
    dialing = contexts_of(TlsFiles(theirs.ca) if who == "none" else theirs).dialing()
    async with listening(services, contexts_of(ours)) as place:

        async def begin() -> None:
            await (await place.raw(dialing)).opened()

        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await begin()
        await place.idle()
        raw = await place.raw(contexts_of(ours).dialing())
        await raw.opened()


@pytest.mark.usefixtures("_always_look")
async def test_new_streams_follow_a_change_of_the_authority_and_old_ones_go_on(
    services: Services, tmp_path: Path
) -> None:
    ours = write(tmp_path / "b", trustme.CA(), "127.0.0.1")
    old = contexts_of(ours).dialing()
    async with listening(services, contexts_of(ours)) as place:
        standing = await place.raw(old)
        await standing.opened("consume")
        write(tmp_path / "b", trustme.CA(), "127.0.0.1")
        with pytest.raises(ssl.SSLError):
            await place.raw(old)
        new = await place.raw(contexts_of(ours).dialing())
        await new.opened()
        standing.send(FINISHED)
        assert await standing.end() is None


async def test_many_small_frames_let_others_have_their_turn_and_keep_their_order(
    place: Place, core: QuietCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read of a socket brings thousands of them."""
    monkeypatch.setattr(framed_connection, "SLICE_S", -1.0)  # a slice is one frame
    raw = await place.raw()
    await raw.opened()
    raw.writer.write(b"".join(frame(MESSAGE, batches(n)) for n in range(60)) + frame(FINISHED))
    await taken_one_in_each_turn(core)
    release(place.services)
    assert len(await raw.replies(60)) == 60
    assert await raw.end() is None


async def test_a_consumer_that_has_finished_gets_nothing_more(place: Place) -> None:
    """Else a consumer on a slow line would end only when all that its credit allows has come."""
    connection = over_tcp._StreamConnection()
    written: list[int] = []

    class Waiting:
        drains = owes = False
        waiting_count = 1
        frame_size_bytes_max = 1 << 20

        def next_frame(self) -> Sequence[bytes]:
            written.append(1)
            return (b"delivery",)

    connection._stream = cast(Any, Waiting())
    connection.is_full = True
    connection.frame_arrived(FINISHED, memoryview(b""))
    connection.pump()
    assert connection._over.done()
    assert not written
