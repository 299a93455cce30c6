"""The runner's handle on the proxy, which is a process of its own (`proxy_main`), told what to do over a socket.

A process, so that forwarding takes no time from whoever runs the cluster: the demo and the benchmark run one inside
their own event loop, next to their clients.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Final

from seriatim_api.errors import UnavailableError

from seriatim_broker.local import lines
from seriatim_broker.local.plan import Link
from seriatim_broker.local.process import ManagedProcess
from seriatim_broker.local.proxy import CutMode, Path

NAME: Final = "proxy"
_START_DEADLINE_S: Final = 20.0
_CALL_DEADLINE_S: Final = 20.0
"""A call that is given up takes the control connection along, and with it every heal to come: rather wait."""
_END_GRACE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ProxyFigures:
    """What the proxy has done."""

    connection_count: int
    forwarded_bytes: int


class ProxyProcess:
    """The runner's handle. `start` first, `close` at the end."""

    def __init__(self, process: ManagedProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()  # one request at a time; held over nothing else

    @classmethod
    async def start(
        cls,
        links: Sequence[Link],
        *,
        log_path: FilePath,
        environment: Mapping[str, str],
        on_end: Callable[[ManagedProcess], None],
    ) -> ProxyProcess:
        """Start the process, and have it listen for every link.

        Raises:
            PreconditionError: An address is taken.
            UnavailableError: The process ended; its log says why.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-m", "seriatim_broker.local.proxy_main", str(theirs.fileno())]
            try:
                process = ManagedProcess(
                    NAME, argv, log_path=log_path, environment=environment, on_end=on_end, pass_fds=(theirs.fileno(),)
                )
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours, limit=lines.LINE_SIZE_BYTES_MAX)
        proxy = cls(process, reader, writer)
        try:
            await proxy._call("start", {"links": [_link_out(link) for link in links]}, deadline_s=_START_DEADLINE_S)
        except BaseException:
            await proxy.close()
            raise
        return proxy

    async def add(self, links: Iterable[Link]) -> None:
        """`Proxy.add`."""
        await self._call("add", {"links": [_link_out(link) for link in links]})

    async def cut(self, paths: Iterable[Path], mode: CutMode) -> None:
        """`Proxy.cut`."""
        await self._call("cut", {"paths": [list(path) for path in paths], "mode": mode})

    async def heal(self, paths: Iterable[Path]) -> None:
        """`Proxy.heal`."""
        await self._call("heal", {"paths": [list(path) for path in paths]})

    async def figures(self) -> ProxyFigures:
        """Counts, as of now."""
        return ProxyFigures(**await self._call("figures", {}))

    async def close(self) -> None:
        """End the process; every connection through it breaks."""
        self._writer.close()
        await self.process.end(grace_s=_END_GRACE_S)

    async def _call(self, command: str, arguments: lines.Arguments, *, deadline_s: float = _CALL_DEADLINE_S) -> Any:
        async with self._lock:
            try:
                return await lines.call(self._reader, self._writer, command, arguments, deadline_s=deadline_s)
            except (asyncio.CancelledError, UnavailableError):
                self._writer.close()  # an answer that comes after all must not be taken for the next one's
                raise


def _link_out(link: Link) -> list[str]:
    return [link.source, link.destination, str(link.listen), str(link.target)]
