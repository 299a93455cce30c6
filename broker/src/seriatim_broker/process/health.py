"""The admin port: metrics and health over HTTP, or over HTTPS if the broker has certificates.

It serves Prometheus, a kubelet and curl. It never asks a client for a certificate, because a kubelet shows none.

/metrics   the counters, in Prometheus' text format
/healthz   200 while the event loop turns; 503 when the disk has hung for `disk_hang_dead_s`
/readyz    200 if the broker is admitted and serving, with a line for each thing that an administrator must look at;
           otherwise 503 with the reason
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from seriatim_api.errors import PreconditionError

from .settings import check_address

REQUEST_SIZE_BYTES_MAX = 16 << 10
REQUEST_DEADLINE_S = 5.0
CONNECTION_COUNT_MAX = 64

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class AdminPort:
    """The HTTP server of the admin port. It serves from `start` to `close`.

    Args:
        metrics: Makes the metrics page.
        not_ready: Says why the broker is not ready; empty if it is ready.
        not_alive: Says why a supervisor should end the process; empty if the process should continue.
        tls: Context for HTTPS; None: plain HTTP.
        warnings: Says what an administrator should look at although the broker is ready, one line for each thing; empty
            if there is nothing.
    """

    _metrics: Callable[[], bytes]
    _not_ready: Callable[[], str]
    _not_alive: Callable[[], str]
    _tls: ssl.SSLContext | None = None
    _warnings: Callable[[], str] = lambda: ""
    _server: asyncio.Server | None = None
    _connections: int = 0

    async def start(self, address: str) -> None:
        """Open the port and serve in the background.

        Args:
            address: `host:port`.

        Raises:
            PreconditionError: The address is in use, or is not an address of this machine.
        """
        host, port = check_address(address)
        try:
            self._server = await asyncio.start_server(
                self._serve,
                host,
                port,
                limit=REQUEST_SIZE_BYTES_MAX,
                ssl=self._tls,
                ssl_handshake_timeout=REQUEST_DEADLINE_S if self._tls else None,
            )
        except OSError as exc:
            raise PreconditionError(f"the admin port cannot listen on {address}: {exc.strerror}") from exc

    async def close(self) -> None:
        """Stop listening, and wait until the port is closed. Idempotent."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTION_COUNT_MAX:
                async with asyncio.timeout(REQUEST_DEADLINE_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(request))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has gone, or does not speak HTTP
        finally:
            self._connections -= 1
            writer.close()

    def _answer(self, request: bytes) -> bytes:
        words = request.split(b"\r\n", 1)[0].split()
        if len(words) != 3 or words[0] != b"GET":
            return _response(400, b"GET only\n")
        path = words[1].split(b"?")[0]
        if path == b"/metrics":
            return _response(200, self._metrics(), "text/plain; version=0.0.4; charset=utf-8")
        if path == b"/healthz":
            reason = self._not_alive()
            return _response(503, f"{reason}\n".encode()) if reason else _response(200, b"live\n")
        if path == b"/readyz":
            reason = self._not_ready()
            if reason:
                return _response(503, f"{reason}\n".encode())
            warnings = "".join(f"warning: {line}\n" for line in self._warnings().splitlines())
            return _response(200, f"ready\n{warnings}".encode())
        return _response(404, b"/metrics, /healthz, /readyz\n")


_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


def _response(status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> bytes:
    header = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return header.encode() + body
