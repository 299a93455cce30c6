"""Delayed links, on a loop whose time passes only when nothing else is to do: when bytes, ends and breaks arrive."""

from __future__ import annotations

import asyncio
import random
import selectors
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest
from seriatim_api.errors import BadRequestError
from seriatim_local.layout.plan import Address
from seriatim_local.links import forwarding
from seriatim_local.links.delays import LATE_SHARE, LinkDelay, parse_delay
from seriatim_local.links.forwarding import Connection, Direction

KERNEL_S: Final = 0.005
"""How long the kernel may take to carry bytes over the loopback interface, on a busy machine."""
PATIENCE_S: Final = 60.0

PATH = ("a", "b")
RESET = struct.pack("ii", 1, 0)


class JumpingSelector(selectors.DefaultSelector):
    """Has its own clock, which jumps to the next timer when no socket has anything."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """The sockets that are ready; if there is none, the time passes."""
        ready = super().select(0 if timeout == 0 else KERNEL_S)
        if not ready and timeout is None:
            raise AssertionError("nothing will ever happen again")
        if not ready:
            self.now += max(timeout or 0.0, 0.0)
            assert self.now < PATIENCE_S
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """Runs with the jumping clock, which begins at 0."""

    def __init__(self) -> None:
        self.clock = JumpingSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run on a loop of its own."""
    loop = JumpingLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


class Arrivals:
    """Reads a socket, and keeps what came and when."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.found: list[tuple[float, bytes]] = []
        sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._loop.add_reader(sock, self._read)

    def _read(self) -> None:
        try:
            data = self.sock.recv(1 << 20)
        except ConnectionResetError:
            data = b"reset"
        if data in (b"", b"reset"):
            self._loop.remove_reader(self.sock)
        self.found.append((self._loop.time(), data))
        self._news.set()

    @property
    def data(self) -> bytes:
        return b"".join(data for _, data in self.found)

    async def until(self, size: int) -> None:
        """Wait until this many bytes are here."""
        await self._until(lambda: len(self.data) >= size)

    async def end(self) -> float:
        """Wait for the end of the connection. Returns when it came."""
        await self._until(lambda: bool(self.found) and self.found[-1][1] in (b"", b"reset"))
        return self.found[-1][0]

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._news.clear()
            await self._news.wait()


class Way:
    """A direction between two pairs of sockets of this process."""

    def __init__(self, *latencies: float) -> None:
        self.latencies = list(latencies)
        self.sender, reader = socket.socketpair()
        writer, receiver = socket.socketpair()
        self.sockets = (self.sender, reader, writer, receiver)
        for sock in self.sockets:
            sock.setblocking(False)
        self.ends: list[object] = []
        self.direction = Direction(
            PATH, reader, writer, self._latency, lambda: self.ends.append("done"), self.ends.append
        )
        self.arrivals = Arrivals(receiver)
        self.direction.go()

    def _latency(self, path: tuple[str, str]) -> float:
        assert path == PATH
        return self.latencies.pop(0) if len(self.latencies) > 1 else self.latencies[0]

    async def read_so_far(self) -> None:
        """Let the proxy read what was sent."""
        for _ in range(3):
            await asyncio.sleep(0)

    def close(self) -> None:
        self.direction.stop()
        asyncio.get_running_loop().remove_reader(self.arrivals.sock)
        for sock in self.sockets:
            sock.close()


def at(seconds: float) -> Any:
    return pytest.approx(seconds, abs=forwarding.TICK_S)


def test_a_chunk_arrives_after_the_delay() -> None:
    async def main() -> None:
        way = Way(0.025)
        way.sender.send(b"one")
        await way.arrivals.until(3)
        await asyncio.sleep(0.005)
        way.sender.send(b"two")
        await way.arrivals.until(6)
        assert way.arrivals.found == [(at(0.025), b"one"), (at(0.055), b"two")]
        assert way.direction.forwarded_bytes == 6
        way.close()

    run(main)


def test_a_chunk_does_not_overtake_a_late_one() -> None:
    async def main() -> None:
        way = Way(0.125, 0.025)
        way.sender.send(b"late")
        await way.read_so_far()
        way.sender.send(b"next")
        await way.arrivals.until(8)
        assert way.arrivals.data == b"latenext"
        assert way.arrivals.found[0][0] == way.arrivals.found[-1][0] == at(0.125)
        way.close()

    run(main)


def test_bytes_after_a_delay_wait_for_those_under_way() -> None:
    async def main() -> None:
        way = Way(0.1, 0.0)
        way.sender.send(b"delayed")
        await way.read_so_far()
        way.sender.send(b"prompt")
        await way.arrivals.until(13)
        assert way.arrivals.data == b"delayedprompt"
        way.sender.send(b"now")
        await way.arrivals.until(16)
        assert way.arrivals.found[-1] == (at(0.1), b"now")
        way.close()

    run(main)


def test_bytes_read_late_do_not_overtake_a_ripe_chunk() -> None:
    async def main() -> None:
        way, loop = Way(0.1, 0.0), asyncio.get_running_loop()
        way.sender.send(b"ripe")
        await way.read_so_far()
        way.sender.send(b"prompt")
        assert isinstance(loop, JumpingLoop)
        loop.clock.now += 0.2  # the process had no processor: at its next turn, the socket comes before the timer
        await way.arrivals.until(10)
        assert way.arrivals.data == b"ripeprompt"
        way.close()

    run(main)


def test_bytes_under_way_stay_within_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "LINK_BYTES_PER_S", 10_000)
    monkeypatch.setattr(forwarding, "UNDER_WAY_SIZE_BYTES_MIN", 1)
    monkeypatch.setattr(forwarding, "CHUNK_SIZE_BYTES", 500)

    async def main() -> None:
        way = Way(0.1)
        way.sender.send(b"x" * 3000)
        await way.arrivals.until(3000)
        arrived = {round(moment, 1): 0 for moment, _ in way.arrivals.found}
        for moment, data in way.arrivals.found:
            arrived[round(moment, 1)] += len(data)
        assert arrived == {0.1: 1000, 0.2: 1000, 0.3: 1000}
        way.close()

    run(main)


def test_a_longer_way_has_more_bytes_under_way() -> None:
    limits = [forwarding.under_way_bytes_max(latency_s) for latency_s in (0.0, 0.001, 0.025, 0.1, 10.0)]
    assert limits[:2] == [forwarding.UNDER_WAY_SIZE_BYTES_MIN] * 2
    assert [limit / latency_s for limit, latency_s in zip(limits[2:4], (0.025, 0.1), strict=True)] == [1.25e9] * 2
    assert limits[4] == forwarding.UNDER_WAY_SIZE_BYTES_MAX


def test_an_end_arrives_behind_the_bytes_before_it() -> None:
    async def main() -> None:
        way = Way(0.1, 0.025)
        way.sender.send(b"last")
        await way.read_so_far()
        way.sender.shutdown(socket.SHUT_WR)
        await asyncio.sleep(0.09)
        assert (way.ends, way.arrivals.found) == ([], [])
        assert await way.arrivals.end() == at(0.1)
        assert way.arrivals.data == b"last"
        assert way.ends == ["done"]
        assert way.direction.finished
        way.close()

    run(main)


def test_a_cut_keeps_what_is_under_way_until_it_is_healed() -> None:
    async def main() -> None:
        way = Way(0.025)
        way.sender.send(b"under way")
        await asyncio.sleep(0.01)
        way.direction.hold()
        way.sender.send(b", unread")
        await asyncio.sleep(5.0)
        assert way.arrivals.found == []
        way.direction.go()
        await way.arrivals.until(17)
        assert way.arrivals.data == b"under way, unread"
        assert [moment for moment, _ in way.arrivals.found] == [at(5.01), at(5.035)]
        way.close()

    run(main)


def test_a_receiver_slower_than_the_delay_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "UNDER_WAY_SIZE_BYTES_MAX", 1 << 20)
    content = random.Random(1).randbytes(3 << 20)

    async def main() -> None:
        way = Way(0.001, 0.2, 0.02)
        loop, left = asyncio.get_running_loop(), memoryview(content)
        loop.remove_reader(way.arrivals.sock)  # it reads nothing for a second

        def send() -> None:
            nonlocal left
            left = left[way.sender.send(left) :]
            if not left:
                loop.remove_writer(way.sender)
                way.sender.shutdown(socket.SHUT_WR)

        loop.add_writer(way.sender, send)
        await asyncio.sleep(1.0)
        assert len(left) > 0
        loop.add_reader(way.arrivals.sock, way.arrivals._read)
        await way.arrivals.end()
        assert way.arrivals.data == content
        way.close()

    run(main)


class Line:
    """A connection of the proxy over the loopback interface, with a caller and a target of this process."""

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.target = socket.create_server(("127.0.0.1", 0))
        entry = socket.create_server(("127.0.0.1", 0))
        self.caller = socket.create_connection(entry.getsockname())
        accepted, _ = entry.accept()
        entry.close()
        self.closed: list[Connection] = []
        self.connection = Connection(
            accepted,
            Address(*self.target.getsockname()),
            PATH,
            lambda path: False,
            lambda path: self.latency,
            self.closed.append,
        )
        self.connection.apply()

    async def answered(self) -> socket.socket:
        """Wait for the connection at the target."""
        self.target.setblocking(False)
        sock, _ = await asyncio.get_running_loop().sock_accept(self.target)
        return sock

    def close(self, *socks: socket.socket) -> None:
        for sock in (*socks, self.caller, self.target):
            if sock.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(sock)
                sock.close()


def test_a_new_connection_first_takes_a_round_trip() -> None:
    async def main() -> None:
        line, loop = Line(0.1), asyncio.get_running_loop()
        line.caller.send(b"hello")
        there = await line.answered()
        assert loop.time() == at(0.2)
        arrivals = Arrivals(there)
        await arrivals.until(5)
        assert loop.time() >= 0.3 - forwarding.TICK_S
        line.connection.reset()
        line.close(there)

    run(main)


def test_a_break_is_heard_after_the_bytes_before_it() -> None:
    async def main() -> None:
        line, loop = Line(0.1), asyncio.get_running_loop()
        there = await line.answered()
        arrivals, begun = Arrivals(there), loop.time()
        line.caller.send(b"last")
        await asyncio.sleep(0.01)
        line.latency = 0.02
        line.caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        line.caller.close()
        assert await arrivals.end() >= begun + 0.1 - forwarding.TICK_S
        assert arrivals.data == b"lastreset"
        assert line.closed == [line.connection]
        line.close(there)

    run(main)


def test_a_receiver_that_breaks_is_heard_after_the_delay() -> None:
    async def main() -> None:
        line, loop = Line(0.1), asyncio.get_running_loop()
        there = await line.answered()
        arrivals, begun = Arrivals(line.caller), loop.time()
        line.caller.send(b"x")
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        there.close()
        assert await arrivals.end() >= begun + 0.1 - forwarding.TICK_S
        assert line.closed == [line.connection]
        line.close(there)

    run(main)


def test_an_answer_after_the_end_arrives_over_a_long_way() -> None:
    async def main() -> None:
        line = Line(3 * forwarding.HALF_CLOSED_S)
        there = await line.answered()
        arrivals = Arrivals(line.caller)
        line.caller.shutdown(socket.SHUT_WR)
        await Arrivals(there).end()
        there.send(b"answer")
        there.shutdown(socket.SHUT_WR)
        await arrivals.end()
        assert arrivals.data == b"answer"
        line.close(there)

    run(main)


def test_the_jitter_makes_its_share_of_the_chunks_later() -> None:
    source = random.Random(7)
    drawn = [LinkDelay(0.025, 0.1).draw(source) for _ in range(10_000)]
    late = [each for each in drawn if each > 0.025]
    assert len(late) / len(drawn) == pytest.approx(LATE_SHARE, rel=0.2)
    assert 0.12 < max(late) <= 0.125
    assert min(drawn) == 0.025


@pytest.mark.parametrize(("text", "seconds"), [("25ms", 0.025), ("0ms", 0.0), (" 0.2 S", 0.2), ("10s", 10.0)])
def test_a_delay_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert parse_delay(text) == seconds


@pytest.mark.parametrize("text", ["25", "-1ms", "11s", "ms", "1m", "nans", "1e3ms", ""])
def test_another_delay_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 25ms"):
        parse_delay(text)


def test_a_delay_over_the_limit_is_refused_by_the_proxy_too() -> None:
    for delay, jitter in ((10.1, 0.0), (0.0, 10.1), (-0.1, 0.0), (float("nan"), 0.0)):
        with pytest.raises(BadRequestError, match="from 0 to 10 s"):
            LinkDelay(delay, jitter)
