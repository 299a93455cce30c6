"""A TCP connection through the proxy. Each of its two directions can be held, and can be delayed.

To cut a link without root, the local cluster holds its connections. As after a cut cable, nothing arrives any more:
neither bytes nor the end of the connection. Neither side is notified. Bytes that one side keeps writing fill its socket
buffers. After healing, these bytes arrive too, as TCP's retransmissions would send them.

A delayed direction carries bytes as a long cable does. Each chunk arrives later, in the order in which it was sent, and
so do the end and the break of a connection. A new connection first takes a round trip, as TCP's handshake does. TCP's
slow start is not imitated.

All work is done in callbacks of the event loop on non-blocking sockets. There is no task for a connection, and one read
buffer for all. Bytes wait in the proxy only if the receiver is slower, at most `CHUNK_SIZE_BYTES` for a direction, or
while they are under way on a delayed direction. These are what a link of `LINK_BYTES_PER_S` carries in the delay
(`under_way_bytes_max`), so that the proxy is no narrower than a network. (Measured on a machine with 2 cores: 0.46 CPU
seconds for a GB. With splice it was 0.25, but splice needs four more descriptors for each connection.)
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from seriatim_local.layout.plan import Address

CHUNK_SIZE_BYTES: Final = 256 << 10
"""Bytes of one read. For each direction, at most this many wait in the proxy for a slower receiver."""

LINK_BYTES_PER_S: Final = 1_250_000_000
"""What one delayed direction carries at least: 10 Gbit/s. It is more than processes on one machine send through the
proxy, so that a benchmark measures them and not the proxy."""

UNDER_WAY_SIZE_BYTES_MIN: Final = 16 << 20
UNDER_WAY_SIZE_BYTES_MAX: Final = 256 << 20
"""Limits for `under_way_bytes_max`. The upper one protects the proxy's memory. A delay of 200 ms reaches it."""

TICK_S: Final = 0.001
"""The event loop wakes up at whole milliseconds, rounded up. So a chunk leaves up to half of that early or late."""

HALF_CLOSED_S: Final = 1.0
"""If one side has ended a connection, the other side has this long to end it too."""

CONNECT_DEADLINE_S: Final = 5.0
"""For a connection to the target. It takes time only if the target is frozen and its backlog is full."""


def under_way_bytes_max(latency_s: float) -> int:
    """Limit for bytes under way on one direction. At the limit the proxy reads no more of it until some arrive."""
    carried = round(LINK_BYTES_PER_S * latency_s)
    return min(max(carried, UNDER_WAY_SIZE_BYTES_MIN), UNDER_WAY_SIZE_BYTES_MAX)


_BUFFER = bytearray(CHUNK_SIZE_BYTES)
_VIEW = memoryview(_BUFFER)
_LINGER_RESET: Final = struct.pack("ii", 1, 0)


@dataclass(slots=True, eq=False)
class Direction:
    """Bytes of one connection on their way from `reader` to `writer`.

    Args:
        path: The names of the link's ends: the sender, then the receiver.
        reader: The sender's socket.
        writer: The receiver's socket.
        latency: Draws for how long a chunk on this path is under way, in seconds; 0 if the path is not delayed.
        done: Called when the receiver was told that the sender has closed.
        broken: Called with the socket that has broken.

    Attributes:
        held: Whether this direction is held, so that nothing moves.
        finished: Whether the sender has closed and the receiver was notified.
        forwarded_bytes: Bytes that the receiver's socket took, or that wait in `_rest`.
    """

    path: tuple[str, str]
    reader: socket.socket
    writer: socket.socket
    _latency: Callable[[tuple[str, str]], float]
    _done: Callable[[], None]
    _broken: Callable[[socket.socket], None]
    held: bool = True
    finished: bool = False
    forwarded_bytes: int = 0
    _rest: bytes = b""
    # with the time of arrival; no bytes: the sender's end
    _under_way: deque[tuple[float, bytes]] = field(default_factory=deque)
    _under_way_bytes: int = 0
    _under_way_bytes_max: int = UNDER_WAY_SIZE_BYTES_MIN
    _due_last: float = 0.0
    _shut: bool = False  # nothing more is read
    _reading: bool = False
    _writing: bool = False
    _timer: asyncio.TimerHandle | None = None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    @property
    def is_under_way(self) -> bool:
        """Whether something has not arrived yet because of the delay, and not because the receiver is slow."""
        return bool(self._under_way) and self._under_way[0][0] > self._loop.time()

    def hold(self) -> None:
        """Stop moving bytes, and stop looking at the sockets. What is under way waits in its place."""
        self.held = True
        self._look()

    def go(self) -> None:
        """Move bytes again from now on."""
        self.held = False
        self._look()

    def shut(self) -> float:
        """Read no more. Returns when the news of it reaches the receiver, after all that is under way."""
        self._shut = True
        self._look()
        return self._due()

    def stop(self) -> None:
        """Read no more, and drop what has not arrived."""
        self._shut = True
        self._rest = b""
        self._under_way.clear()
        self._look()

    def _due(self) -> float:
        """When something that is sent now arrives: never before what was sent earlier."""
        latency_s = self._latency(self.path)
        self._under_way_bytes_max = under_way_bytes_max(latency_s)
        self._due_last = max(self._due_last, self._loop.time() + latency_s)
        return self._due_last

    def _look(self) -> None:
        """Wait for what can happen next: bytes to read, room to write, or the time of the first chunk under way."""
        reads = not (self.held or self._shut or self._rest or self._under_way_bytes >= self._under_way_bytes_max)
        writes = bool(self._rest) and not self.held
        ripens = bool(self._under_way) and not self.held and not self._rest
        if reads and not self._reading:
            self._loop.add_reader(self.reader, self._readable)
        elif self._reading and not reads:
            self._loop.remove_reader(self.reader)
        if writes and not self._writing:
            self._loop.add_writer(self.writer, self._writable)
        elif self._writing and not writes:
            self._loop.remove_writer(self.writer)
        self._reading, self._writing = reads, writes
        if ripens and self._timer is None:
            self._timer = self._loop.call_at(self._under_way[0][0] - TICK_S / 2, self._ripen)
        elif self._timer is not None and not ripens:
            self._timer.cancel()
            self._timer = None

    def _readable(self) -> None:
        due = self._due()
        if self._under_way or due > self._loop.time():
            self._read_ahead(due)
            return
        try:
            count = self.reader.recv_into(_BUFFER)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._broken(self.reader)
            return
        if count == 0:
            self._finish()
            return
        self.forwarded_bytes += count
        sent = self._send(_VIEW[:count])
        if 0 <= sent < count:
            self._rest = bytes(_VIEW[sent:count])
            self._look()

    def _read_ahead(self, due: float) -> None:
        """Read a chunk that arrives later."""
        try:
            data = self.reader.recv(CHUNK_SIZE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._broken(self.reader)
            return
        self._shut = not data
        self._under_way.append((due, data))
        self._under_way_bytes += len(data)
        self._look()

    def _ripen(self) -> None:
        """Hand on the chunks whose time has come."""
        self._timer = None
        while self._under_way and not self._rest and self._under_way[0][0] <= self._loop.time() + TICK_S / 2:
            _, data = self._under_way.popleft()
            if not data:
                self._finish()
                return
            self._under_way_bytes -= len(data)
            self.forwarded_bytes += len(data)
            sent = self._send(data)
            if sent < 0:
                return
            self._rest = data[sent:]
        self._look()

    def _writable(self) -> None:
        sent = self._send(self._rest)
        if sent < 0:
            return
        self._rest = self._rest[sent:]
        if not self._rest:
            self._look()

    def _send(self, data: bytes | memoryview) -> int:
        """The number of bytes that the socket took; -1 if the connection is broken. Then it has been given up."""
        try:
            return self.writer.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self._broken(self.writer)
            return -1

    def _finish(self) -> None:
        self.finished = True
        self.stop()
        try:
            self.writer.shutdown(socket.SHUT_WR)
        except OSError:
            self._broken(self.writer)
            return
        self._done()


@dataclass(slots=True, eq=False)
class Connection:
    """One accepted connection, and its continuation to the target.

    Args:
        accepted: The socket of the caller.
        target: The address to connect to.
        there: The path from the caller to the target. The other direction is its reverse.
        held: Says whether a path is cut now.
        latency: Draws for how long bytes that are sent now on a path are under way, in seconds; 0: not delayed.
        closed: Called once, when both sockets are closed.

    Attributes:
        stalled: The paths on which it carries nothing any more, as if the machines between its ends had forgotten it.
    """

    _accepted: socket.socket
    _target: Address
    there: tuple[str, str]
    _held: Callable[[tuple[str, str]], bool]
    _latency: Callable[[tuple[str, str]], float]
    _closed: Callable[[Connection], None]
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _upstream: socket.socket | None = None
    _connecting: asyncio.TimerHandle | None = None
    _lingering: asyncio.TimerHandle | None = None
    _breaking: asyncio.TimerHandle | None = None
    _lost: bool = False
    stalled: tuple[tuple[str, str], ...] = ()
    directions: tuple[Direction, ...] = ()

    def __post_init__(self) -> None:
        _prepare(self._accepted)

    @property
    def forwarded_bytes(self) -> int:
        """Bytes of both directions together."""
        return sum(direction.forwarded_bytes for direction in self.directions)

    def apply(self) -> None:
        """Hold each direction that is cut now, and let the others continue.

        While one of its directions is cut, the proxy neither connects to the target nor gives up the connection.
        """
        free = not self._held(self.there) and not self._held(self.there[::-1])
        if self._lost:
            if free:
                self.reset()
            return
        if self._upstream is None:
            if free and self._connecting is None:
                self._shake_hands()
            return
        for direction in self.directions:  # none yet while connecting; `_join` comes here again
            if direction.path in self.stalled or self._held(direction.path):
                direction.hold()
            else:
                direction.go()

    def reset(self) -> None:
        """End the connection at once, with a reset to both sides."""
        for sock in (self._accepted, self._upstream):
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        self._close()

    def _shake_hands(self) -> None:
        """Connect to the target when a round trip has passed: at once if the link is not delayed."""
        round_trip_s = self._latency(self.there) + self._latency(self.there[::-1])
        if round_trip_s > 0:
            self._connecting = self._loop.call_later(round_trip_s, self._shaken)
        else:
            self._connect()

    def _shaken(self) -> None:
        self._connecting = None
        if not self._held(self.there) and not self._held(self.there[::-1]):
            self._connect()  # otherwise `apply` begins again after the cut

    def _connect(self) -> None:
        upstream = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        _prepare(upstream)
        self._upstream = upstream
        try:
            upstream.connect((self._target.host, self._target.port))
        except BlockingIOError:
            self._loop.add_writer(upstream, self._connected)
            self._connecting = self._loop.call_later(CONNECT_DEADLINE_S, self.reset)
        except OSError:
            self.reset()
        else:
            self._join()

    def _connected(self) -> None:
        assert self._upstream is not None
        assert self._connecting is not None
        self._loop.remove_writer(self._upstream)
        self._connecting.cancel()
        self._connecting = None
        if self._upstream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.reset()
        else:
            self._join()

    def _join(self) -> None:
        assert self._upstream is not None
        ends = (self._accepted, self._upstream)
        self.directions = tuple(
            Direction(path, *sockets, self._latency, self._one_done, self._broke)
            for path, sockets in ((self.there, ends), (self.there[::-1], ends[::-1]))
        )
        self.apply()

    def _one_done(self) -> None:
        """One side has ended. The other has `HALF_CLOSED_S` (1 s) to end too.

        gRPC never uses a half-closed connection, and a frozen target must not keep the other half open.
        """
        if all(direction.finished for direction in self.directions):
            self._close()
        elif self._lingering is None:
            self._lingering = self._loop.call_later(HALF_CLOSED_S, self._linger_over)

    def _linger_over(self) -> None:
        if any(direction.held or direction.is_under_way for direction in self.directions):
            self._lingering = self._loop.call_later(HALF_CLOSED_S, self._linger_over)  # the end may not be here yet
        else:
            self.reset()

    def _broke(self, gone: socket.socket) -> None:
        """One side is gone. The other hears it as late as it hears bytes; see `_give_up`."""
        if self._breaking is not None:  # now the other side is gone too
            self._give_up()
            return
        due = 0.0
        for direction in self.directions:
            if direction.reader is gone:
                due = direction.shut()
            else:
                direction.stop()
        if due > self._loop.time():
            self._breaking = self._loop.call_at(due, self._give_up)
        else:
            self._give_up()

    def _give_up(self) -> None:
        """Tell the side that is left that the other is gone: at once; if a cut is between them, after the cut."""
        if any(direction.held for direction in self.directions):
            for direction in self.directions:
                direction.hold()
            self._lost = True
        else:
            self.reset()

    def _close(self) -> None:
        for timer in (self._connecting, self._lingering, self._breaking):
            if timer is not None:
                timer.cancel()
        for direction in self.directions:
            direction.stop()
        for sock in (self._accepted, self._upstream):
            if sock is not None and sock.fileno() >= 0:
                self._loop.remove_writer(sock)  # that of a connection which is not made yet
                sock.close()
        self._closed(self)


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
