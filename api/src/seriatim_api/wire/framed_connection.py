"""A TCP or TLS connection that carries frames, on the event loop and without tasks.

It begins with frames that are awaited (the hellos). After `begin_frames` each frame is handled in the turn of the event
loop in which it arrives. Links between brokers and streams of clients are such connections.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import Any, Final

from seriatim_api.wire.frame_reader import FrameReader, with_prefix
from seriatim_api.wire.frames import FrameError

WRITE_BUFFER_SIZE_BYTES_MAX: Final = 64 << 10
"""Bytes that wait in the connection, besides those of one frame, before frames wait outside: there others can still
overtake them, and they are not in memory twice."""

SLICE_S: Final = 0.004
"""Frames that have arrived, or parts of a large one, are handled for this many seconds, and then everything else in the
event loop has its turn. One read of the socket can bring thousands of small frames."""


class ConnectionEndedError(Exception):
    """The connection has ended before the frame that was awaited."""


class FramedConnection(asyncio.BufferedProtocol, abc.ABC):
    """One connection. Its owner gives it to asyncio, which makes it. Subclasses say what happens with frames.

    Attributes:
        is_full: Whether so much waits in the connection that frames should wait outside, until `pump`.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._arrived: asyncio.Future[None] | None = None
        self._end_reason = ""
        self._end_error: BaseException | None = None
        self._has_begun = False
        self._is_held = False
        self._is_resting = False  # other work has its turn
        self._turn_is_open = False  # what this turn of the event loop has to send leaves at its end
        self._discarded: memoryview | None = None  # the place for what is not read any more
        self.is_full = False

    # ---- what subclasses say ----

    @abc.abstractmethod
    def frame_arrived(self, kind: int, content: memoryview) -> None:
        """A frame has arrived. The content is valid until this returns, or, after `hold`, until `go_on`.

        Raises:
            FrameError: The frame, or its content, is not what may come now.
        """

    @abc.abstractmethod
    def garbage_arrived(self, error: FrameError) -> None:
        """The other side sent what is no frame, or `frame_arrived` refused one. Nothing more is read."""

    @abc.abstractmethod
    def failed(self, error: Exception) -> None:
        """`frame_arrived` or `pump` raised an error that is a bug."""

    @abc.abstractmethod
    def ended(self, reason: str) -> None:
        """The connection has ended. This is called once, and only after `begin_frames`."""

    @abc.abstractmethod
    def pump(self) -> None:
        """Write frames that wait, until `is_full`."""

    def keep_alive(self, times: Sequence[tuple[str, int]]) -> None:
        """Let the kernel look after the connection while it is idle: the other side may vanish without a word.

        Args:
            times: Names of TCP's options, with their values. Systems without one of them have their own times.
        """
        connected = self.info("socket")
        if connected is None:
            return
        with contextlib.suppress(OSError):  # the other side has gone again
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in times:
                if hasattr(socket, name):
                    connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    # ---- frames that are awaited ----

    def write(self, kind: int, *pieces: bytes | memoryview) -> None:
        """Send a frame. Its content is what the pieces are together."""
        assert self._transport is not None
        self._transport.write(b"".join(with_prefix(kind, pieces)))

    async def read(self) -> tuple[int, bytes]:
        """Await the next frame: its kind and content. Use it only before `begin_frames`.

        Raises:
            FrameError: The frame is larger than a hello.
            ConnectionEndedError: The connection has ended. The cause is an error of TLS or of the socket, if there was
                one.
        """
        while True:
            frame = self._reader.read()
            if frame is not None:
                return frame[0], bytes(frame[1])
            if self._end_reason:
                raise ConnectionEndedError(self._end_reason) from self._end_error
            assert self._transport is not None
            self._arrived = self._loop.create_future()
            self._transport.resume_reading()
            await self._arrived

    @property
    def is_made(self) -> bool:
        """Whether there is, or was, a connection."""
        return self._transport is not None

    @property
    def has_ended(self) -> bool:
        """Whether the connection has ended."""
        return bool(self._end_reason)

    def info(self, name: str) -> Any:
        """What asyncio knows about the connection; see `asyncio.BaseTransport.get_extra_info`. None without one."""
        return self._transport.get_extra_info(name) if self._transport is not None else None

    # ---- frames that are handled as they arrive ----

    def begin_frames(self, content_size_bytes_max: int) -> bool:
        """Handle each frame from now on. Returns False if the connection has ended.

        Args:
            content_size_bytes_max: The largest content that is accepted.
        """
        self._reader.content_size_bytes_max = content_size_bytes_max
        self._has_begun = True
        if self._end_reason:
            self.ended(self._end_reason)
            return False
        assert self._transport is not None
        self._deliver_and_read()
        self._pump()
        return True

    def wake(self) -> None:
        """Frames wait: they leave at the end of this turn of the event loop, see `pump`."""
        if not self._turn_is_open:
            self._turn_is_open = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_is_open = False
        self._pump()

    def hold(self) -> None:
        """Handle no more frames until `go_on`. Nothing more is received meanwhile."""
        self._is_held = True
        if self._transport is not None:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Handle frames again, those first that have arrived."""
        if not self._is_held or self._end_reason:
            return
        self._is_held = False
        if not self._is_resting:
            self._deliver_and_read()

    def _rest(self) -> None:
        assert self._transport is not None
        if self._end_reason or self._discarded is not None:
            return
        self._is_resting = True
        self._transport.pause_reading()
        self._loop.call_soon(self._end_rest)

    def _end_rest(self) -> None:
        self._is_resting = False
        if not self._is_held:
            self._deliver_and_read()

    def _deliver_and_read(self) -> None:
        self._deliver()
        if not (self._is_held or self._is_resting or self._end_reason) and self._transport is not None:
            self._transport.resume_reading()

    def _deliver(self) -> None:
        """Handle the frames that have arrived.

        After an error nothing more is read, not even in this turn of the event loop:

        1. Garbage arrives over TLS, with many bytes after it. Its owner will end the connection in its next turn.
        2. asyncio has decrypted as much as there was room for, and asks for room again before that turn.
        3. The reader has no room: it has not read what it has. Its assertion would end a broker.
        """
        until_s = self._loop.time() + SLICE_S
        try:
            while not self._end_reason and not self._is_held and self._discarded is None:
                frame = self._reader.read()
                if frame is None:
                    return
                self.frame_arrived(*frame)
                if self._loop.time() > until_s:
                    self._rest()
                    return
        except FrameError as exc:
            self.discard()
            self.garbage_arrived(exc)
        except Exception as exc:
            self.discard()
            self.failed(exc)

    def _pump(self) -> None:
        if self._has_begun and not self._end_reason:
            try:
                self.pump()
            except Exception as exc:
                self.failed(exc)

    # ---- the end ----

    def discard(self) -> None:
        """Receive, and drop, what comes from now on, so that the other side can read the last frame that was written.

        A socket that is closed before all was received tells the other side to forget what it has not read.
        """
        self._discarded = memoryview(bytearray(4096))
        if self._transport is not None and not self._end_reason:
            self._transport.resume_reading()

    def close(self) -> None:
        """End the connection when what was written has left."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> bool:
        """End the connection now. Returns whether there was one."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)
        return self._transport is not None

    def _end(self, reason: str) -> None:
        if self._end_reason:
            return
        self._end_reason = reason
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
        if self._has_begun:
            self.ended(reason)

    # ---- asyncio's calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # asyncio does it only for sockets that were made with the number of the protocol. Without it, the second of two
        # small frames waits for the other side's delayed acknowledgement: 40 ms.
        with contextlib.suppress(OSError):  # the other side has gone again
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_SIZE_BYTES_MAX)
        transport.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._reader.room() if self._discarded is None else self._discarded

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self._discarded is not None:
            return
        self._reader.received(nbytes)
        if self._has_begun:
            self._deliver()
            return
        assert self._transport is not None
        self._transport.pause_reading()  # one read at a time, until `begin_frames`
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def eof_received(self) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._end("the peer ended the stream")

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._end_error = exc
        self._end(f"{type(exc).__name__}: {exc}" if exc is not None else "the connection ended")

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self.is_full = True

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self.is_full = False
        self._pump()
