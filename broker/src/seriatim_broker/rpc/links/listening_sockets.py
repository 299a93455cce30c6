"""Listening sockets for connections without gRPC: links of other brokers, and streams of clients.

Each accepted connection has a task. Until the task says that the other side has proved what it is (`admit`), the
connection is one of a limited number, and the oldest of them is closed for one more. So connections of strangers do not
keep others out.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
from seriatim_api.errors import PreconditionError
from seriatim_api.network.tls_contexts import TlsContexts
from seriatim_api.wire.framed_connection import FramedConnection

from ..calls.broken_assertions import end_at_bug

ACCEPT_RETRY_S: Final = 0.2
"""Pause after an error of the listening socket, which in most cases means that the process has no descriptor left."""

_BACKLOG: Final = 256

_ANY: Final = ("0.0.0.0", "::", "[::]")  # noqa: S104 - only compared

_log = structlog.get_logger(__name__)


class Accepted:
    """An accepted socket, before it is a connection.

    Attributes:
        caller: The other side's address, for the log.
    """

    def __init__(self, listening: Listening, taken: socket.socket, caller: str) -> None:
        self._listening = listening
        self._socket = taken
        self.caller = caller

    async def take_up(self, connection: FramedConnection, deadline_s: float) -> None:
        """Make the connection, after a TLS handshake if there are certificates.

        Raises:
            OSError: It was not made: the other side has gone, or TLS failed, which is an `ssl.SSLError`.
        """
        try:
            loop = asyncio.get_running_loop()
            contexts = self._listening.tls
            if contexts is None:
                await loop.connect_accepted_socket(lambda: connection, self._socket)
            else:
                await loop.connect_accepted_socket(
                    lambda: connection,
                    self._socket,
                    ssl=contexts.accepting(),
                    ssl_handshake_timeout=deadline_s,
                    ssl_shutdown_timeout=deadline_s,
                )
        except BaseException:
            # The connection's transport closes the socket itself. If it were closed here, the event loop would still
            # know its number, which the next connection gets.
            if not connection.abort("the connection was not made"):
                self._socket.close()
            raise

    def admit(self) -> None:
        """The connection does not count as one of a stranger any more."""
        self._listening.admit(self)

    def close(self) -> None:
        """Close the socket. It was not made a connection."""
        self._socket.close()


class Bound:
    """Sockets that have a port and do not listen yet: who dials it is refused.

    Attributes:
        address: `host:port`, with the port that was taken.
    """

    def __init__(self, address: str, sockets: list[socket.socket]) -> None:
        self.address = address
        self._sockets = sockets

    def take(self) -> list[socket.socket]:
        """The sockets. From now on they belong to the caller."""
        sockets, self._sockets = self._sockets, []
        return sockets

    def close(self) -> None:
        """Give the port back, unless the sockets were taken."""
        for bound in self.take():
            bound.close()


async def bind(address: str, what: str) -> Bound:
    """Take a port.

    Args:
        address: `host:port`. Port 0: the system chooses one.
        what: What the port is for, for humans: `links`.

    Raises:
        PreconditionError: Another process uses the port, or the host is not one of this machine.
    """
    host, _, port = address.rpartition(":")
    sockets: list[socket.socket] = []
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        if host in _ANY and (everywhere := _bound_everywhere(int(port))) is not None:
            sockets.append(everywhere)
            found = []
        for family, _, _, _, where in dict.fromkeys(found):
            sockets.append(_bound(family, where))
    except OSError as exc:
        Bound(address, sockets).close()
        raise PreconditionError(
            f"the broker cannot listen on {address} for {what}: another process uses this port, or it is not an "
            "address of this machine"
        ) from exc
    return Bound(f"{host}:{sockets[0].getsockname()[1]}", sockets)


@dataclass(slots=True, eq=False)
class Listening:
    """Accepts connections, and has a task for each.

    Args:
        what: What the port is for, for humans: `links`.
        serve: Serves an accepted connection until it ends. It is cancelled if it has to make place.
        waiting_count_max: Accepted connections that are not admitted, at most.
        tls: Makes the contexts of TLS; None: plain text.
    """

    _what: str
    _serve: Callable[[Accepted], Awaitable[None]]
    waiting_count_max: int
    tls: TlsContexts | None = None
    _sockets: list[socket.socket] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _waiting: dict[Accepted, asyncio.Task[None]] = field(default_factory=dict)  # in the order in which they came
    _is_crowded: bool = False

    @property
    def waiting_count(self) -> int:
        """Accepted connections that are not admitted."""
        return len(self._waiting)

    async def start(self, where: str | Bound) -> str:
        """Listen. Returns the address, with the port that was taken.

        Args:
            where: `host:port`, or what `bind` took.

        Raises:
            PreconditionError: Another process uses the port, or the host is not one of this machine.
        """
        bound = await bind(where, self._what) if isinstance(where, str) else where
        self._sockets = bound.take()
        for listening in self._sockets:
            listening.listen(_BACKLOG)
            self._watch(listening)
        return bound.address

    def stop_accepting(self) -> None:
        """Take no more connections. Those that were accepted continue."""
        sockets, self._sockets = self._sockets, []
        for listening in sockets:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()

    async def close(self, grace_s: float = 0.0) -> None:
        """Take no more connections, and after `grace_s` cancel all tasks of those that were accepted."""
        self.stop_accepting()
        tasks = list(self._tasks)
        if tasks and grace_s:
            await asyncio.wait(tasks, timeout=grace_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def admit(self, accepted: Accepted) -> None:
        """See `Accepted.admit`."""
        self._waiting.pop(accepted, None)

    def _ended(self, accepted: Accepted, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting.pop(accepted, None) is not None:  # it was cancelled before it had begun
            accepted.close()
        end_at_bug(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("accepted_connection_failed", what=self._what, peer=accepted.caller, error=repr(error))

    def _watch(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """Accept one connection. The event loop calls this once in each of its turns, as long as more of them wait."""
        try:
            taken, caller = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as exc:
            _log.warning("connections_not_accepted", what=self._what, error=str(exc))
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening)
            loop.call_later(ACCEPT_RETRY_S, self._watch, listening)
            return
        taken.setblocking(False)
        self._make_place()
        accepted = Accepted(self, taken, f"{caller[0]}:{caller[1]}")
        task = asyncio.create_task(self._run(accepted), name=f"accepted connection for {self._what}")
        self._tasks.add(task)
        self._waiting[accepted] = task
        task.add_done_callback(lambda task: self._ended(accepted, task))

    async def _run(self, accepted: Accepted) -> None:
        try:
            await self._serve(accepted)
        finally:
            self._waiting.pop(accepted, None)

    def _make_place(self) -> None:
        """Close the oldest connection that is not admitted, if there are too many."""
        is_crowded = len(self._waiting) >= self.waiting_count_max
        if is_crowded and not self._is_crowded:
            _log.warning("too_many_waiting_connections", what=self._what, count=len(self._waiting))
        self._is_crowded = is_crowded
        while len(self._waiting) >= self.waiting_count_max:
            oldest = next(iter(self._waiting))
            self._waiting.pop(oldest).cancel()


def _bound_everywhere(port: int) -> socket.socket | None:
    """All addresses of this machine, of both families, as gRPC takes `0.0.0.0` and `[::]`; None without IPv6."""
    try:
        return _bound(socket.AF_INET6, ("::", port), is_dual=True)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise
        return None


def _bound(family: int, where: object, *, is_dual: bool = False) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_dual)
        bound.bind(where)  # type: ignore[arg-type]
    except BaseException:
        bound.close()
        raise
    return bound
