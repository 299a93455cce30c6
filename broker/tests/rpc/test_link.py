"""What links over TCP do beside `link_contract`: pairing, limits, garbage, and when messages leave."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import trustme
from seriatim_api.ids import PartitionId
from seriatim_api.network import host_lookup
from seriatim_api.network.host_lookup import HostLookup
from seriatim_api.network.tls import TlsSource
from seriatim_api.network.tls_contexts import TlsContexts
from seriatim_broker.core.values import messages as m
from seriatim_broker.interfaces.link import PeerRefusedError, PeerSilentError
from seriatim_broker.rpc.calls.limits import MESSAGE_SIZE_BYTES_MAX
from seriatim_broker.rpc.links import link, listening_sockets, peer_frames
from seriatim_broker.rpc.links.lane import CONTROL_HELLO, DATA_HELLO, MESSAGES, REFUSAL, Lane
from seriatim_broker.rpc.links.link import LinkConnection, LinkDialer, LinkListener
from seriatim_broker.rpc.links.peer_hello import write_hello
from structlog.testing import capture_logs

from tools.ports import free_port

from .certificates import write
from .link_contract import Peer, identity, make_batch
from .raw_frames import RawFrames, frame

DEADLINE_S = 30.0
SESSION = bytes(range(16))
HOSTS = ("127.0.0.2", "127.0.0.1")
"""The addresses of a host that has two."""


class Acceptor:
    """Broker b: its address, and the connections that were confirmed."""

    def __init__(self) -> None:
        self.carried: asyncio.Queue[LinkConnection] = asyncio.Queue()
        self.received: asyncio.Queue[m.Message] = asyncio.Queue()
        self.reasons: asyncio.Queue[str] = asyncio.Queue()
        self.listener = LinkListener(identity("b", 4), self._carry)
        self.port = 0
        self._raws: list[Raw] = []

    async def start(self) -> None:
        self.port = int((await self.listener.start("127.0.0.1:0")).rpartition(":")[2])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _carry(self, connection: LinkConnection) -> str:
        self.carried.put_nowait(connection)
        reason = await connection.run(self.received.put_nowait)
        self.reasons.put_nowait(reason)
        return reason

    async def raw(self) -> Raw:
        self._raws.append(Raw(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self._raws[-1]

    async def close(self) -> None:
        for raw in self._raws:
            raw.close()
        await self.listener.close()


class Raw(RawFrames):
    """A dialer that sends what a test wants."""

    def hello(self, kind: int, name: str = "a") -> None:
        self.send(kind, write_hello(identity(name, 1), SESSION))

    async def ends(self) -> None:
        """Read what comes until the other side ends the connection, and end it here."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while await self.reader.read(1 << 16):
                    pass
            except ConnectionError:
                pass
        self.close()

    def close(self) -> None:
        self.writer.close()


@pytest_asyncio.fixture(loop_scope="session")
async def acceptor() -> AsyncIterator[Acceptor]:
    """It listens."""
    made = Acceptor()
    await made.start()
    yield made
    await made.close()


async def dialed(acceptor: Acceptor) -> LinkConnection:
    connection = await LinkDialer(identity("a", 1)).dial(acceptor.address, DEADLINE_S)
    await connection.confirm()
    return connection


async def is_well(acceptor: Acceptor) -> None:
    """A link can still be made, and carries messages."""
    connection = await dialed(acceptor)
    connection.send(m.Heartbeat(99))
    running = asyncio.create_task(connection.run(lambda _message: None))
    async with asyncio.timeout(DEADLINE_S):
        while await acceptor.received.get() != m.Heartbeat(99):
            pass
    connection.close("enough")
    assert await running == "enough"


async def test_messages_before_both_confirmations_wait_for_the_link(acceptor: Acceptor) -> None:
    control, data = await acceptor.raw(), await acceptor.raw()
    for raw, kind in ((control, CONTROL_HELLO), (data, DATA_HELLO)):
        raw.hello(kind)
        assert (await raw.read())[0] == kind
    content = next(iter(peer_frames.write_control_frames([m.Heartbeat(1), m.Heartbeat(2)])))
    control.writer.write(frame(CONTROL_HELLO) + frame(MESSAGES, content))
    await asyncio.sleep(0)
    assert acceptor.carried.empty()
    data.send(DATA_HELLO, b"")
    async with asyncio.timeout(DEADLINE_S):
        assert [await acceptor.received.get() for _ in range(2)] == [m.Heartbeat(1), m.Heartbeat(2)]


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        ((CONTROL_HELLO, "a"), (CONTROL_HELLO, "a"), b"belong to one process"),
        ((CONTROL_HELLO, "a"), (DATA_HELLO, "c"), b"belong to one process"),
    ],
)
async def test_only_two_different_connections_of_one_process_make_a_link(
    acceptor: Acceptor, monkeypatch: pytest.MonkeyPatch, first: Any, second: Any, cause: bytes
) -> None:
    monkeypatch.setattr(link, "PAIRING_DEADLINE_S", 0.5)
    raws = []
    for kind, name in (first, second):
        raw = await acceptor.raw()
        raw.hello(kind, name)
        assert (await raw.read())[0] == kind
        raw.send(kind, b"")
        raws.append(raw)
    answers = [await raw.read() for raw in raws]
    assert {kind for kind, _ in answers} == {REFUSAL}
    assert any(cause in text for _, text in answers)
    for raw in raws:
        await raw.ends()
    await is_well(acceptor)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        frame(CONTROL_HELLO, b"\xff\xff not a hello"),
        frame(MESSAGES),
        frame(9),
    ],
)
async def test_garbage_in_place_of_a_hello_closes_the_connection_with_one_line(acceptor: Acceptor, sent: bytes) -> None:
    with capture_logs() as logs:
        raw = await acceptor.raw()
        raw.writer.write(sent)
        kind, text = await raw.read()
        await raw.ends()
    assert (kind, bool(text)) == (REFUSAL, True)
    assert [line["event"] for line in logs] == ["peer_refused"]
    await is_well(acceptor)


@pytest.mark.parametrize("sent", [b"", b"\x10", b"\x10\x00\x00\x00\x01half"])
async def test_a_connection_without_a_whole_hello_is_closed_in_time(
    acceptor: Acceptor, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(link, "PAIRING_DEADLINE_S", 0.1)
    raw = await acceptor.raw()
    raw.writer.write(sent)
    assert (await raw.read())[0] == REFUSAL
    await raw.ends()


async def test_connections_that_make_no_link_are_bounded_and_the_oldest_make_room(
    acceptor: Acceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker needs its place for milliseconds. If the newest were closed, strangers would keep brokers out."""
    monkeypatch.setattr(acceptor.listener.listening, "waiting_count_max", 4)
    with capture_logs() as logs:
        idle = [await acceptor.raw() for _ in range(4)]
        for raw in idle:  # each is accepted
            raw.hello(CONTROL_HELLO)
            await raw.read()
        more = [await acceptor.raw() for _ in range(3)]
        for raw in idle[:3]:
            await raw.ends()
        assert acceptor.listener.listening.waiting_count == 4
        await is_well(acceptor)
    assert [line["event"] for line in logs] == ["too_many_waiting_connections"]
    for raw in [*idle[3:], *more]:
        raw.writer.write(b"\xff" * 64)
        await raw.ends()


async def test_a_crowd_that_connects_at_once_does_not_keep_the_loop(acceptor: Acceptor) -> None:
    turns = 0
    callers = [socket.create_connection(("127.0.0.1", acceptor.port)) for _ in range(100)]
    async with asyncio.timeout(DEADLINE_S):
        while acceptor.listener.listening.waiting_count < len(callers):
            turns += 1
            await asyncio.sleep(0)
    for caller in callers:
        caller.close()
    assert turns >= len(callers), "one is accepted in each turn"


async def test_a_connection_that_finds_the_other_one_given_up_waits_for_another(acceptor: Acceptor) -> None:
    """Both happen in one turn of the event loop: the time of the first one is over, and the second one is confirmed."""
    listener, peer = acceptor.listener, identity("a", 1)
    first = asyncio.create_task(listener._pair(CONTROL_HELLO, Lane(), peer, SESSION))
    await asyncio.sleep(0)
    second = asyncio.create_task(listener._pair(DATA_HELLO, Lane(), peer, SESSION))
    first.cancel()  # its task notices when the second one has looked for it
    await asyncio.gather(first, return_exceptions=True)
    assert first.cancelled()
    third = await asyncio.wait_for(listener._pair(CONTROL_HELLO, Lane(), peer, SESSION), DEADLINE_S)
    assert third is not None
    assert await second is None


async def test_a_connection_that_was_taken_is_not_given_up_in_the_same_turn(acceptor: Acceptor) -> None:
    listener, peer = acceptor.listener, identity("a", 1)
    first = asyncio.create_task(listener._pair(CONTROL_HELLO, Lane(), peer, SESSION))
    await asyncio.sleep(0)
    assert await listener._pair(DATA_HELLO, Lane(), peer, SESSION) is not None
    first.cancel()  # as its deadline does
    assert await first is None


async def test_a_stranger_with_the_number_of_a_link_does_not_part_its_connections(acceptor: Acceptor) -> None:
    control, stranger, data = [await acceptor.raw() for _ in range(3)]
    for raw, kind, name in ((control, CONTROL_HELLO, "a"), (stranger, DATA_HELLO, "c"), (data, DATA_HELLO, "a")):
        raw.hello(kind, name)
        assert (await raw.read())[0] == kind
        raw.send(kind, b"")
        if raw is stranger:
            assert (await raw.read())[0] == REFUSAL
    connection = await asyncio.wait_for(acceptor.carried.get(), DEADLINE_S)
    assert connection.peer == identity("a", 1)


async def test_random_bytes_and_broken_frames_end_one_link_and_nothing_else(acceptor: Acceptor) -> None:
    """Each seed breaks the bytes of a link at another place: in a hello, a head, or a message."""
    chance = random.Random(19)
    messages = [m.Heartbeat(1), m.TableRequest(PartitionId(7), 9)]
    data = m.Replicate(PartitionId(7), 1, bytes(16), 3, (make_batch(b"body" * 50),))
    frames = {
        CONTROL_HELLO: frame(MESSAGES, next(iter(peer_frames.write_control_frames(messages)))),
        DATA_HELLO: frame(MESSAGES, next(iter(peer_frames.write_data_frames([data])))),
    }
    for turn in range(150):
        raws = []
        for kind in (CONTROL_HELLO, DATA_HELLO):
            hello = frame(kind, write_hello(identity("a", 1), turn.to_bytes(16, "big")))
            sent = bytearray(hello + hello + frames[kind] * 2)
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(len(sent) if chance.random() < 0.3 else len(hello) * 2, len(sent) + 1) - 1
                how = chance.random()
                if how < 0.6:
                    sent[at] = chance.randrange(256)
                elif how < 0.8:
                    del sent[at : at + chance.randint(1, 8)]
                else:
                    sent[at:at] = chance.randbytes(chance.randint(1, 8))
            raw = await acceptor.raw()
            raw.writer.write(bytes(sent))
            raws.append(raw)
        if turn % 10 == 0:
            await is_well(acceptor)
        for raw in raws:
            raw.close()
    await is_well(acceptor)


async def test_a_frame_above_the_limit_ends_the_link_before_memory_is_taken(acceptor: Acceptor) -> None:
    control, data = await acceptor.raw(), await acceptor.raw()
    for raw, kind in ((control, CONTROL_HELLO), (data, DATA_HELLO)):
        raw.hello(kind)
        raw.send(kind, b"")
    with capture_logs() as logs:
        data.writer.write((MESSAGE_SIZE_BYTES_MAX + 1).to_bytes(4, "little") + bytes([MESSAGES]))
        async with asyncio.timeout(DEADLINE_S):
            assert "at most" in await acceptor.reasons.get()
    assert [(line["event"], line["peer"]) for line in logs] == [("peer_sent_garbage", "a")]
    await control.ends()
    await is_well(acceptor)


async def test_no_small_frame_waits_for_an_acknowledgement(acceptor: Acceptor) -> None:
    for connection in (await dialed(acceptor), await asyncio.wait_for(acceptor.carried.get(), DEADLINE_S)):
        for lane in (connection._control, connection._data):
            assert lane._transport is not None
            made = lane._transport.get_extra_info("socket")
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.close("enough")


async def test_an_error_of_the_receiver_comes_out_of_run(acceptor: Acceptor) -> None:
    """`Links` ends the process for an `AssertionError`: a link that only ended would hide the bug."""
    connection = await dialed(acceptor)

    def receive(_message: m.Message) -> None:
        raise AssertionError("a bug")

    other = await acceptor.carried.get()
    running = asyncio.create_task(connection.run(receive))
    other.send(m.Heartbeat(1))
    with pytest.raises(AssertionError, match="a bug"):
        await asyncio.wait_for(running, DEADLINE_S)


async def test_a_peer_that_does_not_read_is_cut_off(acceptor: Acceptor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "QUEUE_SIZE_BYTES_MAX", 16 << 20)
    connection = await LinkDialer(identity("a", 1)).dial(acceptor.address, DEADLINE_S)
    other: asyncio.Task[str] = asyncio.create_task(connection.run(lambda _message: None))  # never confirmed: not read
    await asyncio.sleep(0)
    batch = make_batch(bytes(1 << 20))
    for at in range(60):
        connection.send(m.Replicate(PartitionId(7), 1, bytes(16), at, (batch,)))
    assert await asyncio.wait_for(other, DEADLINE_S) == f"more than {16 << 20} bytes waited to be sent"


class Written(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[bytes] = []

    def write(self, data: Any) -> None:
        self.frames.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def setsockopt(self, *_option: int) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def begun() -> tuple[Lane, Written]:
    """A lane whose frames are the names of its messages."""
    lane, written = Lane(), Written()
    lane.connection_made(written)

    def encode(messages: Sequence[Any]) -> Any:
        for message in messages:
            if isinstance(message, m.TableRequest):  # stands for a large one, of three frames
                yield from ((f"part {number}".encode(),) for number in range(3))
        small = [repr(getattr(message, "sent_us", message)) for message in messages if not _is_large(message)]
        if small:
            yield (",".join(small).encode(),)

    lane.begin(encode, lambda _content: None, lambda _reason: None, lambda _error: None, "b")
    return lane, written


def _is_large(message: object) -> bool:
    return isinstance(message, m.TableRequest)


def texts(written: Written) -> list[str]:
    return [told[5:].decode() for told in written.frames]


async def test_the_first_message_of_a_turn_leaves_at_once_and_the_others_leave_together() -> None:
    lane, written = begun()
    for number in range(4):
        lane.send(m.HeartbeatAnswer(number, ()), 64)
        assert texts(written) == ["0"]
    await asyncio.sleep(0)
    assert texts(written) == ["0", "1,2,3"]
    lane.send(m.HeartbeatAnswer(4, ()), 64)
    assert texts(written)[2:] == ["4"], "a new turn"
    assert lane.queued_bytes == 0


async def test_what_waits_outside_a_full_connection_is_overtaken_by_heartbeats() -> None:
    lane, written = begun()
    lane.send(m.LaneProbe(), 64)
    lane.pause_writing()
    large = m.TableRequest(PartitionId(7), 1)
    lane.send(large, 1_000)
    lane.send(m.Heartbeat(1), 64)
    await asyncio.sleep(0)
    assert len(written.frames) == 1
    assert lane.queued_bytes == 1_064

    def write_once(data: Any) -> None:
        written.frames.append(bytes(data))
        lane.pause_writing()

    written.write = write_once  # type: ignore[method-assign]
    lane.resume_writing()
    lane.resume_writing()
    lane.send(m.Heartbeat(2), 64)
    for _ in range(6):
        lane.resume_writing()
    assert texts(written)[1:] == ["1", "part 0", "2", "part 1", "part 2"]
    assert lane.queued_bytes == 0


async def test_who_does_not_listen_refuses_and_who_does_not_answer_is_silent() -> None:
    dialer = LinkDialer(identity("a", 1))
    with pytest.raises(PeerRefusedError):
        await dialer.dial(f"127.0.0.1:{free_port()}", DEADLINE_S)
    closing = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as deaf, pytest.raises(PeerSilentError, match="no hello within"):
        await dialer.dial(f"127.0.0.1:{deaf.getsockname()[1]}", 0.1)
    async with closing:
        with pytest.raises(PeerRefusedError):
            await dialer.dial(f"127.0.0.1:{closing.sockets[0].getsockname()[1]}", DEADLINE_S)


async def test_a_port_that_is_taken_and_not_listening_refuses() -> None:
    """A broker takes its port before it joins, which may take long. Until then it refuses, as if it did not run."""
    listener = LinkListener(identity("b", 4), lambda connection: connection.run(lambda _message: None))
    bound = await listening_sockets.bind("127.0.0.1:0", "links")
    with pytest.raises(PeerRefusedError):
        await LinkDialer(identity("a", 1)).dial(bound.address, DEADLINE_S)
    assert await listener.start(bound) == bound.address
    bound.close()  # as after a start that failed later: the port is the listener's
    connection = await LinkDialer(identity("a", 1)).dial(bound.address, DEADLINE_S)
    await connection.abandon("enough")
    await listener.close()


class Slow:
    """Name servers that answer nothing about `.example` before the end of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = threading.Event()
        self._resolve = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._wait)

    def _wait(self, host: str, *args: Any, **options: Any) -> Any:
        if str(host).endswith(".example"):
            self.answers.wait(DEADLINE_S)
        return self._resolve("127.0.0.1" if str(host).endswith(".example") else host, *args, **options)


async def test_names_that_are_not_answered_take_no_thread_from_the_rest_of_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = Slow(monkeypatch)
    dialer = LinkDialer(identity("a", 1))
    dials = [asyncio.create_task(dialer.dial(f"g{at}-0.example:7103", 0.2)) for at in range(40)]
    try:
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 7), 2.0) == 7
        for dial in dials:
            with pytest.raises(PeerSilentError):
                await dial
    finally:
        names.answers.set()
        await asyncio.gather(*dials, return_exceptions=True)


async def test_lookups_without_an_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_lookup, "LOOKUP_COUNT_MAX", 2)
    names, lookup = Slow(monkeypatch), HostLookup()
    waiting = [asyncio.create_task(lookup.addresses(f"g{at}-0.example")) for at in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(socket.gaierror, match="2 lookups of names"):
        await lookup.addresses("g2-0.example")
    assert await lookup.addresses("::1") == ["::1"], "an address is not looked up"
    names.answers.set()
    assert await asyncio.gather(*waiting) == [["127.0.0.1"]] * 2
    assert await lookup.addresses("g2-0.example") == ["127.0.0.1"]


async def test_an_address_that_answers_nothing_leaves_time_for_the_next_one(
    acceptor: Acceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.2", acceptor.port)):  # it accepts nothing
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, acceptor.port)) for host in HOSTS]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)
        connection = await LinkDialer(identity("a", 1)).dial(f"b.example:{acceptor.port}", 0.5)
        connection.close("enough")


async def test_a_host_is_silent_unless_all_of_its_addresses_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.2", 0)) as deaf:
        port = deaf.getsockname()[1]
        for hosts, error in ((HOSTS, PeerSilentError), (("127.0.0.3", "127.0.0.1"), PeerRefusedError)):
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, found=found, **_options: found)
            with pytest.raises(error):
                await LinkDialer(identity("a", 1)).dial(f"b.example:{port}", 0.2)


@pytest.mark.parametrize("address", ["nowhere", "h:port", "127.0.0.1:99999", f"{'x' * 70}:1", "a\0b:1", "a..b:1"])
async def test_what_is_no_address_is_silence_and_no_bug(address: str) -> None:
    """Another broker registered it. For any other error of a dial `Links` ends the process."""
    with pytest.raises(PeerSilentError):
        await LinkDialer(identity("a", 1)).dial(address, DEADLINE_S)


async def test_a_broker_without_descriptors_does_not_say_that_its_peer_is_dead(acceptor: Acceptor) -> None:
    with socket.socket() as lowest:
        free = lowest.fileno()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(PeerSilentError, match="has no room for a connection"):
            await LinkDialer(identity("a", 1)).dial(acceptor.address, DEADLINE_S)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_handshake_that_ends_when_its_time_is_over_leaves_nothing_behind(
    acceptor: Acceptor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both happen in one turn of the event loop. The next connections get the number of the socket that was closed."""
    tls = TlsContexts(TlsSource(write(tmp_path, trustme.CA(), "127.0.0.1")))
    listener = LinkListener(identity("b", 4), acceptor._carry, None, tls)
    where = await listener.start("127.0.0.1:0")
    made, cancelled = Lane.connection_made, []

    def made_too_late(lane: Lane, transport: asyncio.BaseTransport) -> None:
        made(lane, transport)
        if transport.get_extra_info("sockname")[1] == int(where.rpartition(":")[2]):
            [task] = listener.listening._tasks
            task.cancel()
            cancelled.append(task)

    try:
        with monkeypatch.context() as patching:
            patching.setattr(Lane, "connection_made", made_too_late)
            for _ in range(3):  # it says nothing after its handshake
                raw = Raw(*await asyncio.open_connection(*where.split(":"), ssl=tls.dialing()))
                await raw.ends()
        assert len(cancelled) == 3
        for _ in range(4):
            connection = await LinkDialer(identity("a", 1), tls).dial(where, DEADLINE_S)
            connection.close("enough")
    finally:
        await listener.close()


async def test_a_dot_behind_a_host_is_not_part_of_its_name(
    acceptor: Acceptor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = TlsContexts(TlsSource(write(tmp_path, trustme.CA(), "b.example")))
    listener = LinkListener(identity("b", 4), acceptor._carry, None, tls)
    port = (await listener.start("127.0.0.1:0")).rpartition(":")[2]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: [(2, 1, 6, "", ("127.0.0.1", 0))])
    try:
        connection = await LinkDialer(identity("a", 1), tls).dial(f"b.example.:{port}", DEADLINE_S)
        connection.close("enough")
    finally:
        await listener.close()


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "[::]"])
async def test_a_port_on_all_addresses_is_open_to_both_families(acceptor: Acceptor, everywhere: str) -> None:
    """As gRPC has it for `listen`."""
    listener = LinkListener(identity("b", 4), acceptor._carry)
    port = (await listener.start(f"{everywhere}:0")).rpartition(":")[2]
    try:
        for host in ("127.0.0.1", "[::1]", "localhost"):
            connection = await LinkDialer(identity("a", 1)).dial(f"{host}:{port}", DEADLINE_S)
            connection.close("enough")
    finally:
        await listener.close()


async def test_a_listener_that_ends_leaves_no_socket_behind(acceptor: Acceptor) -> None:
    """At whichever turn of the event loop it ends while a link is made."""

    async def use(address: str) -> None:
        connection = await LinkDialer(identity("a", 1)).dial(address, DEADLINE_S)
        await connection.confirm()
        await connection.run(lambda _message: None)

    async def ends_after(turns: int) -> None:
        listener = LinkListener(identity("b", 4), acceptor._carry)
        dialing = asyncio.create_task(use(await listener.start("127.0.0.1:0")))
        for _ in range(turns):
            await asyncio.sleep(0)
        await listener.close()
        await asyncio.gather(dialing, return_exceptions=True)

    before = len(os.listdir("/proc/self/fd"))
    for turns in range(40):
        await ends_after(turns)
    for _ in range(10):  # connections end in the next turns
        await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) == before


class _Closing:
    """A dialer. Its broker stops in the turn of the event loop in which a dial ends."""

    def __init__(self, dialer: LinkDialer) -> None:
        self._dialer = dialer
        self.made: list[LinkConnection] = []
        self.stopping: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        self.stop: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def dial(self, address: str, deadline_s: float) -> LinkConnection:
        self.made.append(await self._dialer.dial(address, deadline_s))
        assert self.stop is not None
        self.stopping.put_nowait(asyncio.create_task(self.stop()))
        return self.made[-1]


async def test_a_broker_that_stops_when_its_dial_ends_leaves_no_connection_behind(acceptor: Acceptor) -> None:
    dialer = _Closing(LinkDialer(identity("a", 1)))
    peer = Peer(identity("a", 1), dialer, lambda _broker: acceptor.address)
    dialer.stop = peer.links.close
    peer.links.connect("b")
    async with asyncio.timeout(DEADLINE_S):
        await (await dialer.stopping.get())
    [connection] = dialer.made
    with pytest.raises(PeerSilentError, match="ended the connection"):
        await connection.confirm()


async def test_without_descriptors_connections_wait_until_there_are_some(
    acceptor: Acceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening_sockets, "ACCEPT_RETRY_S", 0.01)
    raw = socket.create_connection(("127.0.0.1", acceptor.port))
    with socket.socket() as lowest:
        free = lowest.fileno()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with capture_logs() as logs:
            async with asyncio.timeout(DEADLINE_S):
                while len(logs) < 2:  # noqa: ASYNC110 - it tries again, and a log has no event
                    await asyncio.sleep(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {line["event"] for line in logs} == {"connections_not_accepted"}
    raw.close()
    await is_well(acceptor)


async def test_a_port_that_is_taken_is_said(acceptor: Acceptor) -> None:
    other = LinkListener(identity("c", 1), acceptor._carry)
    with pytest.raises(Exception, match="cannot listen on"):
        await other.start(f"127.0.0.1:{acceptor.port}")
