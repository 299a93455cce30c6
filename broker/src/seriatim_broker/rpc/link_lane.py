"""One connection of a link between two brokers: control, or replication.

A lane begins with frames that are awaited (the hellos). Then `begin` gives each later frame to a function, in the turn
of the event loop in which it arrives, without a task.

Messages leave in the turn in which they are sent. The first one leaves at once. Those that follow it in this turn leave
together at its end. So a single message waits for nothing, and many messages make few frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import structlog
from seriatim_api.errors import BadRequestError
from seriatim_api.frames import FrameError

from ..core.values.messages import Heartbeat, HeartbeatAnswer, Message
from . import peer_frames
from .limits import MESSAGE_SIZE_BYTES_MAX
from .link_frames import HELLO_SIZE_BYTES_MAX, MESSAGES, REFUSAL, FrameReader, with_prefix

MESSAGES_AT_ONCE: Final = 256
"""Messages that are encoded before heartbeats have their turn: a few milliseconds."""

URGENT: Final = (Heartbeat, HeartbeatAnswer)
"""They overtake the other control messages, because what they say does not depend on any of them."""

WRITE_BUFFER_SIZE_BYTES_MAX: Final = 64 << 10
"""Bytes that wait in the connection, besides those of one frame, before frames wait outside. Heartbeats can overtake
only frames that wait outside."""

_log = structlog.get_logger(__name__)


class LaneEndedError(Exception):
    """The connection has ended before the frame that was awaited."""


class Lane(asyncio.BufferedProtocol):
    """One connection. Its owner gives it to asyncio, which makes it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._arrived: asyncio.Future[None] | None = None
        self._end_reason = ""
        self._end_error: BaseException | None = None
        self._peer = ""
        self._take: Callable[[memoryview], None] = _nothing_taken
        self._failed: Callable[[BaseException], None] = lambda _error: None
        self._ended: Callable[[str], None] | None = None
        self._encode: Callable[[Sequence[Message]], Iterator[Sequence[bytes | memoryview]]] = lambda _messages: iter(())
        self._queue: deque[tuple[Message, int]] = deque()
        self._urgent: list[tuple[Message, int]] = []
        self._frames: Iterator[Sequence[bytes | memoryview]] | None = None  # of the messages that leave now
        self._frames_bytes = 0  # of these messages
        self._is_full = False
        self._turn_is_open = False
        self.queued_bytes = 0

    # ---- hellos ----

    def write(self, kind: int, content: bytes) -> None:
        """Send a frame that is not of messages."""
        assert self._transport is not None
        self._transport.write(b"".join(with_prefix(kind, (content,))))

    async def read(self) -> tuple[int, bytes]:
        """Await the next frame: its kind and content. Use it only before `begin`.

        Raises:
            FrameError: The frame is larger than a hello.
            LaneEndedError: The connection has ended. The cause is an error of TLS or of the socket, if there was one.
        """
        while True:
            frame = self._reader.read()
            if frame is not None:
                return frame[0], bytes(frame[1])
            if self._end_reason:
                raise LaneEndedError(self._end_reason) from self._end_error
            assert self._transport is not None
            self._arrived = self._loop.create_future()
            self._transport.resume_reading()
            await self._arrived

    @property
    def has_ended(self) -> bool:
        """Whether the connection has ended."""
        return bool(self._end_reason)

    def refuse(self, reason: str) -> None:
        """Say why no link is made, if there is a connection. Close it afterwards."""
        if self._transport is not None and not self._end_reason:
            self.write(REFUSAL, reason.encode()[:HELLO_SIZE_BYTES_MAX])

    def shown_names(self) -> list[str]:
        """The hosts in the certificate that the other side has shown: names and IP addresses."""
        assert self._transport is not None
        certificate: dict[str, Any] = self._transport.get_extra_info("peercert") or {}
        names = certificate.get("subjectAltName", ())
        return [value for kind, value in names if kind in ("DNS", "IP Address")]

    # ---- messages ----

    def begin(
        self,
        encode: Callable[[Sequence[Message]], Iterator[Sequence[bytes | memoryview]]],
        take: Callable[[memoryview], None],
        ended: Callable[[str], None],
        failed: Callable[[BaseException], None],
        peer: str,
    ) -> None:
        """Carry messages from now on.

        Args:
            encode: Makes the contents of frames, each in pieces.
            take: Called with the content of each frame that arrives.
            ended: Called with the reason when the connection ends.
            failed: Called with an error of `take` or `encode`, which is a bug.
            peer: The name of the broker at the other end, for the log.
        """
        self._encode, self._take, self._ended, self._failed = encode, take, ended, failed
        self._peer = peer
        self._reader.content_size_bytes_max = MESSAGE_SIZE_BYTES_MAX
        if self._end_reason:
            ended(self._end_reason)
            return
        assert self._transport is not None
        self._deliver()
        self._transport.resume_reading()
        self._pump()

    def send(self, message: Message, size_bytes: int) -> None:
        """Send a message, at once or at the end of this turn of the event loop, or when there is room."""
        self.queued_bytes += size_bytes
        if isinstance(message, URGENT):
            self._urgent.append((message, size_bytes))
        else:
            self._queue.append((message, size_bytes))
        if not self._turn_is_open:
            self._turn_is_open = True
            self._loop.call_soon(self._end_turn)
            self._pump()

    def _end_turn(self) -> None:
        self._turn_is_open = False
        self._pump()

    def _pump(self) -> None:
        """Write frames until no message waits, or the connection is full."""
        if self._ended is None or self._end_reason:
            return
        try:
            while not self._is_full:
                if self._urgent:  # a large message has many frames, and heartbeats go between them
                    urgent, self._urgent = self._urgent, []
                    for frame in self._encode([message for message, _ in urgent]):
                        self._write(frame)
                    self.queued_bytes -= sum(size_bytes for _, size_bytes in urgent)
                elif self._frames is not None:
                    content = next(self._frames, None)
                    if content is not None:
                        self._write(content)
                    else:
                        self._frames = None
                        self.queued_bytes -= self._frames_bytes
                elif self._queue:
                    self._frames = self._encode(self._next_messages())
                else:
                    return
        except Exception as exc:
            self._failed(exc)

    def _next_messages(self) -> list[Message]:
        """As many of the messages that wait as are encoded at once."""
        messages: list[Message] = []
        taken_bytes = 0
        while self._queue and len(messages) < MESSAGES_AT_ONCE and taken_bytes < peer_frames.FRAME_SIZE_BYTES:
            message, size_bytes = self._queue.popleft()
            messages.append(message)
            taken_bytes += size_bytes
        self._frames_bytes = taken_bytes
        return messages

    def _write(self, content: Sequence[bytes | memoryview]) -> None:
        assert self._transport is not None
        self._transport.write(b"".join(with_prefix(MESSAGES, content)))

    def _deliver(self) -> None:
        try:
            while not self._end_reason:
                frame = self._reader.read()
                if frame is None:
                    return
                if frame[0] != MESSAGES:
                    raise FrameError(f"a frame of kind {frame[0]} does not come after the hellos")
                self._take(frame[1])
        except (FrameError, BadRequestError) as exc:
            _log.error("peer_sent_garbage", peer=self._peer, error=str(exc))
            self.abort(str(exc))
        except Exception as exc:
            self._failed(exc)

    # ---- the end ----

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
        self._queue.clear()
        self._urgent.clear()
        self._frames = None
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
        if self._ended is not None:
            self._ended(reason)

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
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._reader.received(nbytes)
        if self._ended is not None:
            self._deliver()
            return
        assert self._transport is not None
        self._transport.pause_reading()  # one read at a time, until `begin`
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
        self._is_full = True

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._is_full = False
        self._pump()


def _nothing_taken(_content: memoryview) -> None:
    raise AssertionError("no frame is taken before `begin`")
