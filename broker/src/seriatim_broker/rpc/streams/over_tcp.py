"""Streams of clients over TCP or TLS, without gRPC: a connection carries one (`seriatim_api.wire.stream_frames`).

A frame is handled in the turn of the event loop in which it arrives, and what a turn has to send leaves at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

import structlog
from google.protobuf.message import DecodeError
from seriatim_api.errors import BadRequestError, NotServingError, SeriatimError
from seriatim_api.network.tls_contexts import TlsContexts
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import broker_pb2
from seriatim_api.wire.framed_connection import ConnectionEndedError, FramedConnection
from seriatim_api.wire.frames import FrameError
from seriatim_api.wire.stream_frames import END, FINISHED, HELLO, MESSAGE, OPENED

from ..calls.addresses import Addresses
from ..calls.limits import MESSAGE_SIZE_BYTES_MAX
from ..calls.services import Services
from ..links.listening_sockets import Accepted, Listening
from .append import AppendStream
from .consume import ConsumeStream
from .served import ServedStream, counted, log_refusal

HELLO_DEADLINE_S: Final = 5.0
"""Time from an accepted connection to the hello, with the TLS handshake."""

WAITING_COUNT_MAX: Final = 1024
"""Accepted connections that have sent no hello. When a broker group is lost, all its clients come at once."""

BEHIND_COUNT_MAX: Final = 100_000
"""If this many answers and events wait because the client does not read, nothing more is taken from it. The batches of
deliveries have a limit of their own, the client's credit."""

LINGER_S: Final = 1.0
"""After the last frame the broker waits this long for the client to end the connection, and then ends it."""

KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000))
"""A client whose machine has vanished holds its stream for a minute: seconds until the first probe and between probes,
the number of probes, and milliseconds for what was sent and is not acknowledged. Systems without one of these options
have their own times."""

_log = structlog.get_logger(__name__)


class _StreamConnection(FramedConnection):
    """The connection of one stream."""

    def __init__(self) -> None:
        super().__init__()
        self._stream: ServedStream | None = None
        self._steps: Iterator[None] | None = None  # of the frame that is being taken
        self._is_behind = False
        self._is_finished = False
        self._over: asyncio.Future[SeriatimError | None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()

    async def carry(self, stream: ServedStream) -> None:
        """Carry the stream to its end. Returns when both sides know of it, or when the client has gone."""
        self._stream = stream
        self.write(OPENED)
        if not self.begin_frames(stream.frame_size_bytes_max):
            return
        self.wake()
        error = await self._over
        if not self.has_ended:
            if stream.drains and (pieces := stream.next_frame()) is not None:
                self.write(MESSAGE, *pieces)  # the answers of this turn
            await self._say_end(error)

    def stop(self, error: SeriatimError) -> None:
        """End the stream: the client is told why."""
        if not self._over.done():
            self._over.set_result(error)

    async def refuse(self, error: SeriatimError) -> None:
        """Say why the stream was not begun. Returns when the client has gone, or after `LINGER_S`."""
        if not self._over.done():
            self._over.set_result(None)
        if self.begin_frames(MESSAGE_SIZE_BYTES_MAX):
            await self._say_end(error)

    async def _say_end(self, error: SeriatimError | None) -> None:
        """Write the last frame, and wait until the client has gone, at most `LINGER_S`."""
        self.write(END, error_to_proto(error).SerializeToString() if error is not None else b"")
        self.discard()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._gone

    # ---- see `FramedConnection` ----

    def pump(self) -> None:
        """See `FramedConnection`."""
        stream = self._stream
        if stream is None or self._over.done():
            return
        while not self.is_full and not self._is_done(stream):
            pieces = stream.next_frame()
            if pieces is None:
                break
            self.write(MESSAGE, *pieces)
        if self._is_done(stream):
            self._over.set_result(None)
            return
        if self._is_behind and stream.waiting_count < BEHIND_COUNT_MAX:
            self._is_behind = False
            self._go_on()

    def _is_done(self, stream: ServedStream) -> bool:
        """Whether the client has finished, and waits for nothing more."""
        return self._is_finished and self._steps is None and not (stream.drains and stream.owes)

    def frame_arrived(self, kind: int, content: memoryview) -> None:
        """See `FramedConnection`."""
        if self._over.done():
            return
        assert self._stream is not None
        if kind == MESSAGE and not self._is_finished:
            try:
                self._steps = self._stream.take(content)
                self._step()
            except SeriatimError as exc:
                self.stop(exc)
        elif kind == FINISHED and not self._is_finished:
            self._is_finished = True
            self.wake()
        else:
            raise FrameError(f"a frame of kind {kind} does not come here")

    def _step(self) -> None:
        """Take a part of the frame. If it is not all, nothing else is received until the rest has been taken."""
        assert self._steps is not None
        for _ in self._steps:
            self.hold()
            self._loop.call_soon(self._step_later)
            return
        self._steps = None
        assert self._stream is not None
        if self._stream.waiting_count >= BEHIND_COUNT_MAX:
            self._is_behind = True
            self.hold()

    def _step_later(self) -> None:
        if self._steps is None or self.has_ended or self._over.done():
            return
        try:
            self._step()
        except SeriatimError as exc:
            self.stop(exc)
        except Exception as exc:
            self.failed(exc)
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._steps is None and not self._is_behind:
            self.go_on()
            if self._is_finished:
                self.wake()

    def garbage_arrived(self, error: FrameError) -> None:
        """See `FramedConnection`."""
        self.stop(BadRequestError(str(error)))

    def failed(self, error: Exception) -> None:
        """See `FramedConnection`."""
        if not self._over.done():
            self._over.set_exception(error)

    def ended(self, reason: str) -> None:
        """See `FramedConnection`."""
        if not self._over.done():
            self._over.set_result(None)
        if not self._gone.done():
            self._gone.set_result(None)


class TcpStreams:
    """Serves streams on a port.

    Args:
        services: The broker.
        addresses: What clients of this port learn about where brokers are.
        tls: Makes the contexts of TLS; None: plain text.
    """

    def __init__(self, services: Services, addresses: Addresses, tls: TlsContexts | None = None) -> None:
        self._services = services
        self._addresses = addresses
        self._connections: set[_StreamConnection] = set()
        self.listening = Listening("streams", self._serve, WAITING_COUNT_MAX, tls)

    @property
    def count(self) -> int:
        """Streams that are open."""
        return len(self._connections)

    async def start(self, address: str) -> str:
        """Listen. Returns the address, with the port that was taken; see `Listening.start`."""
        return await self.listening.start(address)

    async def stop(self, grace_s: float) -> None:
        """Take no more streams, and end all: their clients are notified. After `grace_s` all connections are closed."""
        self.listening.stop_accepting()
        for connection in list(self._connections):
            connection.stop(NotServingError("this broker is stopping: ask another one"))
        await self.listening.close(grace_s)

    async def _serve(self, accepted: Accepted) -> None:
        connection = _StreamConnection()
        what = "stream"
        try:
            hello = await self._begin(connection, accepted)
            if hello is not None:
                what = hello.WhichOneof("stream") or what
                with counted(self._services, is_warm=hello.append.is_warm):
                    accepted.admit()
                    await self._carry(connection, hello)
        except SeriatimError as exc:
            log_refusal(what, accepted.caller, exc)
            if connection.is_made:
                await connection.refuse(exc)
        finally:
            connection.abort("the stream has ended")

    async def _begin(self, connection: _StreamConnection, accepted: Accepted) -> broker_pb2.StreamHello | None:
        """The hello of an accepted connection; None if the other side has gone."""
        identity = self._services.identity
        try:
            async with asyncio.timeout(HELLO_DEADLINE_S):
                await accepted.take_up(connection, HELLO_DEADLINE_S)
                hello = _parse(*await connection.read())
        except TimeoutError as exc:
            raise BadRequestError("a stream begins with a hello") from exc
        except FrameError as exc:
            raise BadRequestError(str(exc)) from exc
        except (OSError, ConnectionEndedError) as exc:
            _log.debug("stream_not_begun", peer=accepted.caller, error=str(exc))
            return None
        if (hello.cluster_id, hello.broker) != (identity.cluster_id, identity.member.broker):
            raise BadRequestError(f"this is broker {identity.member.broker} of cluster {identity.cluster_id}")
        connection.keep_alive(KEEPALIVE)
        return hello

    async def _carry(self, connection: _StreamConnection, hello: broker_pb2.StreamHello) -> None:
        stream: ServedStream
        match hello.WhichOneof("stream"):
            case "append":
                stream = AppendStream(self._services, self._addresses, hello.append, connection.wake)
            case "consume":
                stream = ConsumeStream(self._services, self._addresses, hello.consume, connection.wake)
            case _:
                raise BadRequestError("a hello says which stream it begins")
        self._connections.add(connection)
        try:
            await connection.carry(stream)
        finally:
            self._connections.discard(connection)
            stream.end()


def _parse(kind: int, content: bytes) -> broker_pb2.StreamHello:
    if kind != HELLO:
        raise BadRequestError("a stream begins with a hello")
    try:
        return broker_pb2.StreamHello.FromString(content)
    except DecodeError as exc:
        raise BadRequestError("the hello of the stream cannot be read") from exc
