"""The runner's handle on the proxy, which is a process of its own (`proxy_main`). It sends requests over a socket.

The proxy is a process so that forwarding takes no time from the program that runs the cluster. The demo and the
benchmark run a cluster in their own event loop, beside their clients.
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

from seriatim_local import json_lines
from seriatim_local.layout.plan import Link
from seriatim_local.links.delays import LinkDelay
from seriatim_local.links.proxy import CutMode, Path
from seriatim_local.processes.process import ManagedProcess

NAME: Final = "proxy"
_START_DEADLINE_S: Final = 20.0
_CALL_DEADLINE_S: Final = 20.0
"""Long, because a call that is given up closes the control connection, and then no cut can be healed any more."""
_END_GRACE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ProxyFigures:
    """The proxy's open connections, and the bytes that it has forwarded."""

    connection_count: int
    forwarded_bytes: int


class ProxyProcess:
    """The runner's handle on the proxy. Make it with `start`, and `close` it at the end."""

    def __init__(self, process: ManagedProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()  # so that there is one request at a time

    @classmethod
    async def start(
        cls,
        links: Sequence[Link],
        *,
        log_path: FilePath,
        environment: Mapping[str, str],
        on_end: Callable[[ManagedProcess], None],
    ) -> ProxyProcess:
        """Start the process, and have it listen for all links.

        Raises:
            PreconditionError: An address is in use, or is not of this machine.
            UnavailableError: The process has ended; its log says why.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-m", "seriatim_local.links.proxy_main", str(theirs.fileno())]
            try:
                process = ManagedProcess(
                    NAME, argv, log_path=log_path, environment=environment, on_end=on_end, pass_fds=(theirs.fileno(),)
                )
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours, limit=json_lines.LINE_SIZE_BYTES_MAX)
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

    async def delay(self, paths: Iterable[Path], delay: LinkDelay) -> None:
        """`Proxy.delay`."""
        arguments = {"paths": [list(path) for path in paths], "delay_s": delay.delay_s, "jitter_s": delay.jitter_s}
        await self._call("delay", arguments)

    async def figures(self) -> ProxyFigures:
        """The present figures of the proxy."""
        return ProxyFigures(**await self._call("figures", {}))

    async def close(self) -> None:
        """End the process. All connections through it break."""
        self._writer.close()
        await self.process.end(grace_s=_END_GRACE_S)

    async def _call(
        self, command: str, arguments: json_lines.Arguments, *, deadline_s: float = _CALL_DEADLINE_S
    ) -> Any:
        async with self._lock:
            try:
                return await json_lines.call(self._reader, self._writer, command, arguments, deadline_s=deadline_s)
            except (asyncio.CancelledError, UnavailableError):
                self._writer.close()  # because a late answer would look like the answer to the next request
                raise


def _link_out(link: Link) -> list[str]:
    return [link.source, link.destination, str(link.listen), str(link.target)]
