"""The network between brokers, over TCP or TLS. A link has two connections (lanes): control and replication.

A link begins with a hello on both connections, which is answered on both, and a confirmation (the hello once more) on
both. Replication has a connection of its own, so a heartbeat never waits behind a megabyte of batches. The frames are
those of `seriatim_api.wire.frame_reader`; `peer_frames` says what the messages in them look like.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from seriatim_api.errors import BadRequestError, SeriatimError
from seriatim_api.network.host_lookup import HostLookup
from seriatim_api.network.tls_contexts import TlsContexts
from seriatim_api.wire.framed_connection import ConnectionEndedError
from seriatim_api.wire.frames import FrameError

from ...core.values.messages import Message
from ...interfaces.link import PeerIdentity, PeerRefusedError, PeerSilentError
from . import peer_frames
from .lane import CONTROL_HELLO, DATA_HELLO, REFUSAL, Lane
from .listening_sockets import Accepted, Bound, Listening
from .peer_hello import read_hello, write_hello
from .peer_names import PeerNames

QUEUE_SIZE_BYTES_MAX: Final = 64 << 20
"""Batches and copies that wait for one peer. A peer that is further behind is cut off, and resumes from its tail."""

CONTROL_QUEUE_SIZE_BYTES_MAX: Final = 256 << 20
"""Control messages that wait for one peer. When a machine goes down, the producer tables of all its partitions travel
at once: 1,000 partitions with 4,000 producers each make 200 MB. The queue refers to the bytes of preparations and
tables, and does not copy them."""

PAIRING_DEADLINE_S: Final = 2.0
"""Time from an accepted connection to the confirmation on both connections of its link."""

UNPAIRED_COUNT_MAX: Final = 256
"""Accepted connections that do not belong to a confirmed link yet. For one more, the oldest is closed: a broker needs
its place for milliseconds, and a stranger that says nothing would keep it for seconds. A cluster has at most some dozen
brokers, and each dials with two connections."""

MIN_SHARE_S: Final = 0.01
"""The least seconds for one of several addresses of a host."""

_OURS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of a dial that say something about this process or machine, and nothing about the peer."""

_log = structlog.get_logger(__name__)


class LinkConnection:
    """Both connections to one process. See `interfaces.link.Connection`."""

    def __init__(
        self, peer: PeerIdentity, control: Lane, data: Lane, *, dialed: bool, confirmation: bytes = b""
    ) -> None:
        self.peer = peer
        self.dialed = dialed
        self._control = control
        self._data = data
        self._confirmation = confirmation
        self._is_ended = False
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def send(self, message: Message) -> None:
        """See `interfaces.link.Connection`."""
        if self._is_ended:
            return
        if peer_frames.is_data(message):
            lane, queued_bytes_max = self._data, QUEUE_SIZE_BYTES_MAX
        else:
            lane, queued_bytes_max = self._control, CONTROL_QUEUE_SIZE_BYTES_MAX
        size_bytes = peer_frames.size_of(message)
        if lane.queued_bytes + size_bytes > queued_bytes_max:
            self.close(f"more than {queued_bytes_max} bytes waited to be sent")
            return
        lane.send(message, size_bytes)

    def close(self, reason: str) -> None:
        """See `interfaces.link.Connection`."""
        if not self._is_ended:
            self._is_ended = True
            self._ended.set_result(reason)
            self._control.abort(reason)
            self._data.abort(reason)

    async def confirm(self) -> None:
        """See `interfaces.link.Connection`.

        Raises:
            PeerSilentError: The connection has ended in the meantime.
        """
        assert self.dialed
        if self._is_ended or self._control.has_ended or self._data.has_ended:
            self.close("the peer ended the connection")
            raise PeerSilentError("the peer ended the connection")
        self._control.write(CONTROL_HELLO, self._confirmation)
        self._data.write(DATA_HELLO, self._confirmation)

    async def abandon(self, reason: str) -> None:
        """See `interfaces.link.Connection`."""
        self.close(reason)

    async def run(self, receive: Callable[[Message], None]) -> str:
        """See `interfaces.link.Connection`."""
        control = peer_frames.ControlReader()

        def take_control(content: memoryview) -> None:
            for message in control.read(bytes(content)):
                receive(message)

        def take_data(content: memoryview) -> None:
            for message in peer_frames.read_data_frame(content):
                receive(message)

        try:
            for lane, encode, take in (
                (self._control, self._control_frames, take_control),
                (self._data, self._data_frames, take_data),
            ):
                lane.begin(encode, take, self.close, self._fail, self.peer.member.broker)
            return await asyncio.shield(self._ended)
        finally:
            self.close("the link is not used any more")

    def _control_frames(self, messages: Sequence[Message]) -> Iterator[Sequence[bytes]]:
        return ((frame,) for frame in peer_frames.write_control_frames(messages))

    def _data_frames(self, messages: Sequence[Message]) -> Iterator[Sequence[bytes | memoryview]]:
        return peer_frames.data_frame_pieces(messages)

    def _fail(self, error: BaseException) -> None:
        """End the connection because of a bug. `run` raises the error."""
        if not self._is_ended:
            self._is_ended = True
            self._ended.set_exception(error)
            self._control.abort("a bug")
            self._data.abort("a bug")


# ---- dialing --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Target:
    """What is dialed: the address as it was given, its host and port, and one of the host's addresses."""

    address: str
    host: str
    where: str
    port: str


class LinkDialer:
    """Dials with two connections.

    Args:
        identity: Of this broker.
        tls: Makes the contexts of TLS; None: plain text.
    """

    def __init__(self, identity: PeerIdentity, tls: TlsContexts | None = None) -> None:
        self._identity = identity
        self._tls = tls
        self._lookup = HostLookup()
        self._trouble: dict[str, str] = {}  # by address, the last TLS failure that was logged

    async def dial(self, address: str, deadline_s: float) -> LinkConnection:
        """Connect and exchange hellos. See `interfaces.link.Dialer`.

        If the host has several addresses, each gets its share of the time that is left.

        Args:
            address: `host:port`.
            deadline_s: Seconds for all of it.

        Raises:
            PeerRefusedError: No process listens at any of the addresses, or one ends a connection before its hello.
            PeerSilentError: No hello came in time, or one that does not fit; or TLS prevented the connection.
        """
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                found = await self._lookup.addresses(host)
        except TimeoutError as exc:
            raise PeerSilentError(f"no address of {host} within {deadline_s} s") from exc
        except (OSError, UnicodeError) as exc:  # also a name that is too long to be asked for
            raise PeerSilentError(f"{host} has no address: {exc}") from exc
        failures: list[PeerRefusedError | PeerSilentError] = []
        for number, where in enumerate(found):
            share_s = (ends_at_s - loop.time()) / (len(found) - number)
            try:
                connection = await self._dial(_Target(address, host, where, port), max(share_s, MIN_SHARE_S))
            except (PeerRefusedError, PeerSilentError) as exc:
                failures.append(exc)
            else:
                self._trouble.pop(address, None)
                return connection
        # Silence of one address says that the process may be there, whatever the others say.
        raise next((exc for exc in failures if isinstance(exc, PeerSilentError)), failures[0])

    async def _dial(self, target: _Target, deadline_s: float) -> LinkConnection:
        """The same, at one of the addresses."""
        lanes = Lane(), Lane()
        hello = write_hello(self._identity, secrets.token_bytes(16))
        greetings = [
            asyncio.ensure_future(self._greet(lane, kind, hello, target, deadline_s))
            for lane, kind in zip(lanes, (CONTROL_HELLO, DATA_HELLO), strict=True)
        ]
        try:
            async with asyncio.timeout(deadline_s):
                peers = await asyncio.gather(*greetings)
            if peers[0] != peers[1]:
                raise PeerSilentError("two processes answered the two connections")
        except BaseException as exc:
            for greeting in greetings:
                greeting.cancel()
            await asyncio.gather(*greetings, return_exceptions=True)
            for lane in lanes:
                lane.abort("the dial failed")
            if isinstance(exc, TimeoutError):
                raise PeerSilentError(f"no hello within {deadline_s:.3g} s") from exc
            raise
        return LinkConnection(peers[0], *lanes, dialed=True, confirmation=hello)

    async def _greet(self, lane: Lane, kind: int, hello: bytes, target: _Target, deadline_s: float) -> PeerIdentity:
        """Connect, send the hello, and await the answer."""
        is_connected = False
        try:
            loop = asyncio.get_running_loop()
            if self._tls is None:
                await loop.create_connection(lambda: lane, target.where, int(target.port))
            else:
                await loop.create_connection(
                    lambda: lane, target.where, int(target.port), ssl=self._tls.dialing(),
                    server_hostname=target.host.rstrip("."), ssl_handshake_timeout=deadline_s,
                )  # fmt: skip
            is_connected = True
            lane.write(kind, hello)
            answered, content = await lane.read()
            if answered == REFUSAL:
                raise PeerSilentError(content.decode(errors="replace"))
            if answered != kind:
                raise BadRequestError("an answer to a hello is a hello")
            return read_hello(content, self._identity.cluster_id)[0]
        except (FrameError, SeriatimError) as exc:
            raise PeerSilentError(str(exc)) from exc
        except TimeoutError as exc:
            raise PeerSilentError(f"{target.address}: {exc}") from exc
        except (OSError, ConnectionEndedError) as exc:
            raise self._failure(target.address, exc, is_connected=is_connected) from exc
        except (ValueError, OverflowError) as exc:  # what another broker registered
            raise PeerSilentError(f"{target.address} is no address: {exc}") from exc

    def _failure(
        self, address: str, exc: OSError | ConnectionEndedError, *, is_connected: bool
    ) -> PeerRefusedError | PeerSilentError:
        """Whether the address refused the dial or was silent.

        With TLS 1.3 an acceptor that does not accept our certificate says so when our handshake has ended. So an end
        before the hello says nothing about the process.
        """
        error = exc.__cause__ if isinstance(exc, ConnectionEndedError) else exc
        if isinstance(error, OSError) and error.errno in _OURS:
            return PeerSilentError(f"this broker has no room for a connection: {error}")
        is_of_tls = isinstance(error, (ssl.SSLError, ConnectionAbortedError))  # the latter: the handshake took too long
        if self._tls is None or not (is_connected or is_of_tls):
            return PeerRefusedError(str(exc))
        trouble = self._tls.explain(error)
        if self._trouble.get(address) != trouble:  # once for each cause, because it lasts until an administrator acts
            self._trouble[address] = trouble
            _log.warning("peer_tls_failed", address=address, reason=trouble)
        return PeerSilentError(trouble)


# ---- accepting ------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Waiting:
    """The first connection of a link, until the other one comes."""

    kind: int
    lane: Lane
    peer: PeerIdentity
    paired: asyncio.Future[None]


class LinkListener:
    """Accepts connections, pairs them, and gives each confirmed link to `carry`.

    Args:
        identity: Of this broker.
        carry: Uses a connection until it ends. Returns why it ended.
        names: Checks the certificate of the dialing peer; None: certificates are not checked.
        tls: Makes the contexts of TLS; None: plain text.

    Attributes:
        listening: The port. Connections that do not belong to a confirmed link yet are not admitted.
    """

    def __init__(
        self,
        identity: PeerIdentity,
        carry: Callable[[LinkConnection], Awaitable[str]],
        names: PeerNames | None = None,
        tls: TlsContexts | None = None,
    ) -> None:
        self._identity = identity
        self._carry = carry
        self._names = names
        self._waiting: dict[bytes, _Waiting] = {}
        self.listening = Listening("links", self._serve, UNPAIRED_COUNT_MAX, tls)

    async def start(self, where: str | Bound) -> str:
        """Listen. Returns the address, with the port that was taken; see `Listening.start`."""
        return await self.listening.start(where)

    async def close(self) -> None:
        """Stop listening, and break all links that were accepted."""
        await self.listening.close()

    async def _serve(self, accepted: Accepted) -> None:
        """Handle one accepted connection. The task of the one that completes a link owns the link."""
        lane = Lane()
        connection: LinkConnection | None = None
        is_mine = True
        try:
            async with asyncio.timeout(PAIRING_DEADLINE_S):
                await accepted.take_up(lane, PAIRING_DEADLINE_S)
                kind, peer, session = await self._greet(lane)
                connection = await self._pair(kind, lane, peer, session)
                is_mine = connection is not None
        except TimeoutError:
            self._refuse(
                lane, accepted.caller, BadRequestError("a link begins with hellos and their confirmation, at once")
            )
        except (SeriatimError, FrameError) as exc:
            self._refuse(lane, accepted.caller, exc)
        except (OSError, ConnectionEndedError) as exc:
            _log.debug("link_not_begun", peer=accepted.caller, error=str(exc))
        except asyncio.CancelledError:
            lane.abort("this broker closed the connection")
            raise
        finally:
            accepted.admit()
            if connection is None and is_mine:
                lane.close()
        if connection is not None:
            try:
                await self._carry(connection)
            finally:
                connection.close("the link is not used any more")

    async def _greet(self, lane: Lane) -> tuple[int, PeerIdentity, bytes]:
        """Exchange hellos, and await the confirmation."""
        kind, content = await lane.read()
        if kind not in (CONTROL_HELLO, DATA_HELLO):
            raise BadRequestError("a link begins with a hello")
        peer, session = read_hello(content, self._identity.cluster_id)
        if self._names is not None:
            await self._names.check_names(peer.member.broker, lane.shown_names())
        lane.write(kind, write_hello(self._identity, session))
        confirmed, _ = await lane.read()
        if confirmed != kind:
            raise BadRequestError("a hello is followed by its confirmation")
        return kind, peer, session

    async def _pair(self, kind: int, lane: Lane, peer: PeerIdentity, session: bytes) -> LinkConnection | None:
        """The link, if its other connection has come before; otherwise None when that one has come."""
        other = self._waiting.get(session)
        if other is None or other.paired.cancelled():
            waiting = _Waiting(kind, lane, peer, asyncio.get_running_loop().create_future())
            self._waiting[session] = waiting
            try:
                await waiting.paired
            except asyncio.CancelledError:
                if waiting.paired.cancelled():
                    raise  # otherwise the other one has taken this connection just before
            finally:
                if self._waiting.get(session) is waiting:
                    del self._waiting[session]
            return None
        if other.peer != peer or other.kind == kind:
            raise BadRequestError("the two connections of a link belong to one process")
        del self._waiting[session]
        other.paired.set_result(None)
        control, data = (lane, other.lane) if kind == CONTROL_HELLO else (other.lane, lane)
        return LinkConnection(peer, control, data, dialed=False)

    def _refuse(self, lane: Lane, caller: str, error: Exception) -> None:
        _log.warning("peer_refused", peer=caller, error=str(error))
        lane.refuse(str(error))
