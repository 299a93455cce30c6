"""The forwarding proxy of a local cluster: a listening port for each directed pair, so that any can be cut or delayed.

Without root there is no other way to cut off brokers on one machine from each other. One port for each destination
would not be enough: gRPC cannot choose its source address, so the proxy could not see which broker called. `forwarding`
has the behaviour of one connection. `proxy_process` runs the proxy in a process.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from seriatim_api.errors import PreconditionError

from seriatim_local.layout.plan import Link
from seriatim_local.links.delays import LinkDelay
from seriatim_local.links.forwarding import Connection

CONNECTION_COUNT_MAX: Final = 4096
"""Limit for open connections. The proxy resets one more. Each takes two descriptors."""

_BACKLOG: Final = 128
_ACCEPT_COUNT_MAX: Final = 64  # in one turn of the loop

CutMode = Literal["silent", "reset"]
Path = tuple[str, str]


class Proxy:
    """Forwards all links, except in the directions that are cut.

    Args:
        links: The ports to listen on, and their targets.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = tuple(links)
        self._cuts: dict[Path, CutMode] = {}
        self._delays: dict[Path, LinkDelay] = {}
        self._random = random.Random()  # noqa: S311 - draws delays
        self._listeners: list[socket.socket] = []
        self._connections: dict[Connection, None] = {}
        self._forwarded_bytes = 0
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Bind and listen.

        Raises:
            PreconditionError: An address is in use, or is not of this machine. Then nothing stays bound.
        """
        assert not self._listeners, "started twice"
        try:
            self.add(self._links)
        except PreconditionError:
            self.close()
            raise

    def add(self, links: Iterable[Link]) -> None:
        """Listen for more links.

        Raises:
            PreconditionError: An address is in use, or is not of this machine. The links before it are bound.
        """
        for link in links:
            try:
                self._listen(link)
            except OSError as error:
                raise PreconditionError(f"the proxy cannot listen on {link.listen}: {error.strerror}") from error

    def cut(self, paths: Iterable[Path], mode: CutMode) -> None:
        """Let nothing through in these directions.

        Args:
            paths: The directions, (from, to).
            mode: `silent`: connections stay open and carry nothing; new ones are accepted and carry nothing.
                `reset`: connections are reset, and new ones too.
        """
        for path in paths:
            self._cuts[path] = mode
        self._apply()

    def heal(self, paths: Iterable[Path]) -> None:
        """Let everything through again in these directions. Bytes that were held back arrive first."""
        for path in paths:
            self._cuts.pop(path, None)
        self._apply()

    def delay(self, paths: Iterable[Path], delay: LinkDelay) -> None:
        """Let what is sent from now on in these directions arrive so much later; with no delay at once again.

        Bytes keep their order, so those that are sent after the end of a delay wait for those that are under way.
        """
        for path in paths:
            if delay:
                self._delays[path] = delay
            else:
                self._delays.pop(path, None)

    def stall(self, path: Path, number: int) -> bool:
        """Let nothing more through, in both directions, on one connection of a link. New connections work.

        Args:
            path: The link, (caller, target).
            number: The place of the connection among the open ones that are not stalled; 0 is the oldest.

        Returns:
            Whether there was such a connection.
        """
        found = [each for each in self._connections if each.there == path and not each.stalled]
        if number >= len(found):
            return False
        found[number].stalled = (path, path[::-1])
        found[number].apply()
        return True

    def forget(self, paths: Iterable[Path]) -> int:
        """Let nothing more through in these directions on all connections that are open now. New connections work.

        This is what a firewall or a NAT does that forgets its connections.

        Returns:
            The number of connections.
        """
        wanted = tuple(paths)
        found = [each for each in self._connections if each.there in wanted or each.there[::-1] in wanted]
        for connection in found:
            connection.stalled = tuple(dict.fromkeys((*connection.stalled, *wanted)))
            connection.apply()
        return len(found)

    @property
    def cuts(self) -> dict[Path, CutMode]:
        """The directions that are cut now."""
        return dict(self._cuts)

    @property
    def connection_count(self) -> int:
        """The number of open connections, including those that are accepted but have no target yet."""
        return len(self._connections)

    @property
    def forwarded_bytes(self) -> int:
        """All bytes that were forwarded since the start."""
        return self._forwarded_bytes + sum(connection.forwarded_bytes for connection in self._connections)

    def close(self) -> None:
        """Stop listening, and reset all open connections."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        for connection in list(self._connections):
            connection.reset()

    def _listen(self, link: Link) -> None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listeners.append(listener)
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((link.listen.host, link.listen.port))
        listener.listen(_BACKLOG)
        self._loop.add_reader(listener, self._accept, listener, link)

    def _accept(self, listener: socket.socket, link: Link) -> None:
        for _ in range(_ACCEPT_COUNT_MAX):
            try:
                accepted, _caller = listener.accept()
            except OSError:  # no caller waits any more, or it has gone again
                return
            there = (link.source, link.destination)
            connection = Connection(accepted, link.target, there, self._is_cut, self._latency, self._closed)
            self._connections[connection] = None
            if len(self._connections) > CONNECTION_COUNT_MAX or self._is_reset(connection):
                connection.reset()
            else:
                connection.apply()

    def _apply(self) -> None:
        for connection in list(self._connections):
            if self._is_reset(connection):
                connection.reset()
            else:
                connection.apply()

    def _is_cut(self, path: Path) -> bool:
        return path in self._cuts

    def _latency(self, path: Path) -> float:
        delay = self._delays.get(path)
        return 0.0 if delay is None else delay.draw(self._random)

    def _is_reset(self, connection: Connection) -> bool:
        there = connection.there
        return "reset" in (self._cuts.get(there), self._cuts.get((there[1], there[0])))

    def _closed(self, connection: Connection) -> None:
        self._forwarded_bytes += connection.forwarded_bytes
        del self._connections[connection]
