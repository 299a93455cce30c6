"""The network between brokers over gRPC: for brokers without `link_listen` (ADR 0054).

A link begins with a hello on both streams, which is answered on both, and a confirmation (the hello once more) on both.
Each of the two streams has a connection of its own, so a heartbeat never waits behind a megabyte of batches.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import structlog
from seriatim_api.errors import BadRequestError, SeriatimError
from seriatim_api.status import to_status

from ..core.values.messages import Message
from ..interfaces.link import PeerIdentity, PeerRefusedError, PeerSilentError
from . import peer_frames
from .link import CONTROL_QUEUE_SIZE_BYTES_MAX, PAIRING_DEADLINE_S, QUEUE_SIZE_BYTES_MAX
from .link_lane import MESSAGES_AT_ONCE, URGENT
from .peer_hello import read_hello, write_hello
from .peer_names import PeerNames
from .transport import PLAIN, Transport

CONTROL = "/seriatim.v1.Peer/Control"
REPLICATE = "/seriatim.v1.Peer/Replicate"

_UNRESOLVED: Final = re.compile("DNS|resolving|lookup failed")
"""gRPC's texts, of several of its versions, for a name without an address. Such an error says nothing about the process
behind the name: while a pod is made anew there is no such name, and a broken name server knows no names."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Half:
    """One stream: `read` and `write` of its side of gRPC, and the queue of messages that wait to leave."""

    read: Callable[[], Awaitable[Any]]
    write: Callable[[bytes], Awaitable[None]]
    encode: Callable[[Sequence[Message]], Iterable[bytes]]
    decode: Callable[[bytes], list[Message]]
    queued_bytes_max: int
    queued_bytes: int = 0
    queue: deque[Message] = field(default_factory=deque)
    urgent: deque[Message] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self) -> tuple[list[Message], int]:
        """The messages that leave next, and their bytes: heartbeats first, then as many as are encoded at once."""
        messages, size_bytes = self.take_urgent()
        while self.queue and len(messages) < MESSAGES_AT_ONCE and size_bytes < peer_frames.FRAME_SIZE_BYTES:
            messages.append(self.queue.popleft())
            size_bytes += peer_frames.size_of(messages[-1])
        return messages, size_bytes

    def take_urgent(self) -> tuple[list[Message], int]:
        """The heartbeats, and their bytes."""
        messages = list(self.urgent)
        self.urgent.clear()
        return messages, sum(map(peer_frames.size_of, messages))


class PeerConnection:
    """Both streams to one process. See `interfaces.link.Connection`."""

    def __init__(self, peer: PeerIdentity, control: _Half, data: _Half, *, dialed: bool) -> None:
        self.peer = peer
        self.dialed = dialed
        self._control = control
        self._data = data
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._release: list[Callable[[], Awaitable[Any]]] = []
        self._confirmation = b""

    def on_end(self, release: Callable[[], Awaitable[Any]], *, confirmation: bytes) -> None:
        """At the dialer: `release` gives back the resources, and `confirm` sends `confirmation`."""
        self._release.append(release)
        self._confirmation = confirmation

    async def abandon(self, reason: str) -> None:
        """Close a connection for which `run` was not called, and give back its resources."""
        self.close(reason)
        await self._give_back()

    async def confirm(self) -> None:
        """At the dialer: tell the other end that the connection is used from now on.

        Raises:
            PeerSilentError: A stream broke.
        """
        assert self.dialed
        try:
            for half in (self._control, self._data):
                await half.write(self._confirmation)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as exc:
            self.close(_describe(exc))
            await self._give_back()
            raise PeerSilentError(str(exc)) from exc

    def send(self, message: Message) -> None:
        """Queue a message. Messages that are queued in one turn of the event loop leave together."""
        if self._ended.done():
            return
        half = self._data if peer_frames.is_data(message) else self._control
        half.queued_bytes += peer_frames.size_of(message)
        if half.queued_bytes > half.queued_bytes_max:
            self.close(f"more than {half.queued_bytes_max} bytes waited to be sent")
            return
        (half.urgent if isinstance(message, URGENT) else half.queue).append(message)
        half.wake.set()

    def close(self, reason: str) -> None:
        """Break both streams now."""
        if not self._ended.done():
            self._ended.set_result(reason)

    async def run(self, receive: Callable[[Message], None]) -> str:
        """Carry messages until a stream ends. Returns why it ended."""
        tasks = [
            asyncio.create_task(work, name=f"{name} {self.peer.member.broker}")
            for name, work in (
                ("control from", self._read(self._control, receive)),
                ("data from", self._read(self._data, receive)),
                ("control to", self._write(self._control)),
                ("data to", self._write(self._data)),
            )
        ]
        try:
            waits: list[asyncio.Future[Any]] = [self._ended, *tasks]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and task.exception() is not None:
                    raise task.exception() or AssertionError
            return self._ended.result() if self._ended.done() else "a stream ended"
        finally:
            self.close("a stream ended")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._give_back()

    async def _give_back(self) -> None:
        releases, self._release = self._release, []
        for release in releases:
            await release()

    async def wait_ended(self) -> None:
        """Wait until `close` was called or a stream ended."""
        await asyncio.shield(self._ended)

    async def _read(self, half: _Half, receive: Callable[[Message], None]) -> None:
        while True:
            try:
                frame = await half.read()
            except Exception as exc:  # gRPC has no common base for what a broken stream raises
                self.close(_describe(exc))
                return
            if frame is grpc.aio.EOF:
                self.close("the peer ended the stream")
                return
            try:
                messages = half.decode(frame)
            except BadRequestError as exc:
                _log.error("peer_sent_garbage", peer=self.peer.member.broker, error=str(exc))
                self.close(str(exc))
                return
            for message in messages:
                receive(message)

    async def _write(self, half: _Half) -> None:
        while True:
            await half.wake.wait()
            half.wake.clear()
            while half.urgent or half.queue:
                messages, size_bytes = half.take()
                for frame in half.encode(messages):
                    try:
                        if half.urgent:  # a large message has many frames, and heartbeats go between them
                            urgent, urgent_bytes = half.take_urgent()
                            size_bytes += urgent_bytes
                            for heartbeats in half.encode(urgent):
                                await half.write(heartbeats)
                        await half.write(frame)
                    except Exception as exc:  # as in `_read`
                        self.close(_describe(exc))
                        return
                half.queued_bytes -= size_bytes


def _describe(exc: BaseException) -> str:
    if isinstance(exc, grpc.aio.AioRpcError):
        return f"{exc.code().name}: {exc.details()}"
    return f"{type(exc).__name__}: {exc}"


def _control_half(read: Callable[[], Awaitable[Any]], write: Callable[[bytes], Awaitable[None]]) -> _Half:
    encode = peer_frames.write_control_frames
    return _Half(read, write, encode, peer_frames.ControlReader().read, CONTROL_QUEUE_SIZE_BYTES_MAX)


def _data_half(read: Callable[[], Awaitable[Any]], write: Callable[[bytes], Awaitable[None]]) -> _Half:
    encode = peer_frames.write_data_frames
    return _Half(read, write, encode, peer_frames.read_data_frame, QUEUE_SIZE_BYTES_MAX)


# ---- dialing --------------------------------------------------------------------------------------------


class _Streams:
    """The two calls of one dial, each on a channel of its own.

    As long as anything refers to a call, its channel goes on connecting, although the call was cancelled and the
    channel was closed. So `release` drops the references to the calls. No error may stay that refers to them by its
    traceback: an error in a reference cycle stays until the garbage collector runs.
    """

    def __init__(self, transport: Transport, address: str) -> None:
        self._channels = [transport.channel(address) for _ in range(2)]
        paths = (CONTROL, REPLICATE)
        self._calls: list[Any] = [
            channel.stream_stream(path)() for channel, path in zip(self._channels, paths, strict=True)
        ]

    async def exchange(self, frame: bytes) -> list[Any]:
        """Write a frame on both calls, and read one from both: bytes, or the end of the stream."""
        for call in self._calls:
            await call.write(frame)
        return [await call.read() for call in self._calls]

    async def statuses(self) -> list[tuple[grpc.StatusCode, str]]:
        """Status code and details of the calls that have ended."""
        return [(await call.code(), str(await call.details())) for call in self._calls if call.done()]

    def connection(self, peer: PeerIdentity, *, confirmation: bytes) -> PeerConnection:
        """Use the calls as a connection, which gives them back when it ends."""
        control, data = self._calls
        halves = (
            _control_half(control.read, control.write),
            _data_half(data.read, data.write),
        )
        connection = PeerConnection(peer, *halves, dialed=True)
        connection.on_end(self.release, confirmation=confirmation)
        return connection

    async def release(self) -> None:
        """End the calls, close the channels, and drop the references to both."""
        calls, self._calls = self._calls, []
        channels, self._channels = self._channels, []
        for call in calls:
            call.cancel()
        for channel in channels:
            await channel.close()


class GrpcDialer:
    """Dials with two channels. They belong to the connection, and are closed with it."""

    def __init__(self, identity: PeerIdentity, transport: Transport = PLAIN) -> None:
        self._identity = identity
        self._transport = transport
        self._trouble: dict[str, str] = {}  # by address, the last TLS failure that was logged

    async def dial(self, address: str, deadline_s: float) -> PeerConnection:
        """Connect and exchange hellos. See `interfaces.link.Dialer`."""
        streams = _Streams(self._transport, address)
        try:
            connection = await self._greet(streams, address, deadline_s)
        except BaseException:
            await streams.release()
            raise
        self._trouble.pop(address, None)
        return connection

    async def _greet(self, streams: _Streams, address: str, deadline_s: float) -> PeerConnection:
        """Exchange hellos. Its errors do not refer to errors of gRPC, because those refer to calls (see `_Streams`)."""
        session = secrets.token_bytes(16)
        frame = write_hello(self._identity, session)
        replies: list[Any] | None
        try:
            async with asyncio.timeout(deadline_s):
                replies = await streams.exchange(frame)
        except TimeoutError:
            replies = None
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            replies = []
        if replies is None:
            raise PeerSilentError(f"no hello within {deadline_s} s")
        if not replies or grpc.aio.EOF in replies:
            raise await self._failure(address, streams)
        try:
            peers = [read_hello(reply, self._identity.cluster_id) for reply in replies]
        except SeriatimError as exc:
            raise PeerSilentError(str(exc)) from exc
        if peers[0] != peers[1]:
            raise PeerSilentError("two processes answered the two streams")
        return streams.connection(peers[0][0], confirmation=frame)

    async def _failure(self, address: str, streams: _Streams) -> PeerRefusedError | PeerSilentError:
        """Whether the address refused the dial or was silent, by the status of the calls."""
        statuses = await streams.statuses()
        codes, texts = [code for code, _ in statuses], [details for _, details in statuses]
        text = "; ".join(texts) or "a stream broke"
        trouble = next(filter(None, map(self._transport.tls_failure, texts)), None)
        if trouble is not None:
            self._tell_trouble(address, trouble)
            return PeerSilentError(trouble)
        if grpc.StatusCode.UNAVAILABLE in codes and not any(map(_UNRESOLVED.search, texts)):
            return PeerRefusedError(text)
        return PeerSilentError(text)

    def _tell_trouble(self, address: str, text: str) -> None:
        """Log a TLS failure once for each cause, because it lasts until a person acts."""
        if self._trouble.get(address) != text:
            self._trouble[address] = text
            _log.warning("peer_tls_failed", address=address, reason=text)


# ---- accepting ------------------------------------------------------------------------------------------


class PeerServicer:
    """Pairs the two streams of a dialing peer, and gives the confirmed connection to `carry`.

    Args:
        identity: Of this broker.
        carry: Uses a connection until it ends. Returns why it ended.
        names: Checks the certificate of the dialing peer; None without TLS.
    """

    def __init__(
        self,
        identity: PeerIdentity,
        carry: Callable[[PeerConnection], Awaitable[str]],
        names: PeerNames | None = None,
    ) -> None:
        self._identity = identity
        self._carry = carry
        self._names = names
        self._waiting: dict[bytes, asyncio.Future[tuple[PeerIdentity, _Half]]] = {}
        self._connections: dict[bytes, asyncio.Future[PeerConnection]] = {}

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler to register with a server."""
        return grpc.method_handlers_generic_handler(
            "seriatim.v1.Peer",
            {
                "Control": grpc.stream_stream_rpc_method_handler(self._control),
                "Replicate": grpc.stream_stream_rpc_method_handler(self._replicate),
            },
        )

    async def _control(self, _requests: object, context: Any) -> None:
        """Handle the control stream. This task owns the connection."""
        peer, session = await self._greet(context)
        arrival = self._arrival(session)
        try:
            async with asyncio.timeout(PAIRING_DEADLINE_S):
                data_peer, data = await asyncio.shield(arrival)
                if data_peer != peer:
                    raise BadRequestError("the two streams of a link belong to one process")
                await _expect_confirmation(context)
        except (TimeoutError, SeriatimError) as exc:
            self._give_up(session)
            await context.abort(*to_status(exc if isinstance(exc, SeriatimError) else _no_pair()))
        except asyncio.CancelledError:
            self._give_up(session)
            raise
        control = _control_half(context.read, context.write)
        connection = PeerConnection(peer, control, data, dialed=False)
        self._connections.setdefault(session, asyncio.get_running_loop().create_future()).set_result(connection)
        try:
            await self._carry(connection)
        finally:
            connection.close("the control stream ended")
            self._forget(session)

    async def _replicate(self, _requests: object, context: Any) -> None:
        peer, session = await self._greet(context)
        found = self._connections.setdefault(session, asyncio.get_running_loop().create_future())
        connection: PeerConnection | None = None
        try:
            async with asyncio.timeout(PAIRING_DEADLINE_S):
                await _expect_confirmation(context)
                self._arrival(session).set_result((peer, _data_half(context.read, context.write)))
                connection = await asyncio.shield(found)
            await connection.wait_ended()
        except (TimeoutError, SeriatimError) as exc:
            await context.abort(*to_status(exc if isinstance(exc, SeriatimError) else _no_pair()))
        finally:
            if connection is not None:
                connection.close("the replication stream ended")
            self._forget(session)

    def _arrival(self, session: bytes) -> asyncio.Future[tuple[PeerIdentity, _Half]]:
        return self._waiting.setdefault(session, asyncio.get_running_loop().create_future())

    def _give_up(self, session: bytes) -> None:
        found = self._connections.get(session)
        if found is not None and not found.done():
            found.cancel()
        self._forget(session)

    def _forget(self, session: bytes) -> None:
        self._waiting.pop(session, None)
        self._connections.pop(session, None)

    async def _greet(self, context: Any) -> tuple[PeerIdentity, bytes]:
        """Exchange hellos. If the peer's hello does not fit, the call ends here."""
        try:
            async with asyncio.timeout(PAIRING_DEADLINE_S):
                frame = await context.read()
                if frame is grpc.aio.EOF:
                    raise BadRequestError("a link begins with a hello")
                peer, session = read_hello(frame, self._identity.cluster_id)
                if self._names is not None:
                    await self._names.check(peer.member.broker, context)
                await context.write(write_hello(self._identity, session))
                return peer, session
        except TimeoutError:
            error: SeriatimError = BadRequestError("a link begins with a hello, at once")
        except SeriatimError as exc:
            error = exc
        _log.warning("peer_refused", peer=context.peer(), error=str(error))
        await context.abort(*to_status(error))
        raise AssertionError("abort raises")


def _no_pair() -> SeriatimError:
    return BadRequestError("the other stream of the link, or its confirmation, did not come")


async def _expect_confirmation(context: Any) -> None:
    frame = await context.read()
    if frame is grpc.aio.EOF:
        raise BadRequestError("the peer used another connection")
