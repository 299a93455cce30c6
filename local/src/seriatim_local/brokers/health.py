"""The readiness of a broker, from its admin port: one HTTP request, without a library."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

from seriatim_local.layout.plan import Address

_ANSWER_SIZE_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class Health:
    """The answer of `/readyz`.

    Attributes:
        ready: Whether the broker is admitted and serving.
        page: Why the broker is not ready, or its warnings if it is ready; empty if there was no answer.
    """

    ready: bool
    page: str


async def ask(admin: Address, *, deadline_s: float, tls: ssl.SSLContext | None = None) -> Health:
    """Send `GET /readyz`. Without an answer within `deadline_s` seconds, the broker counts as not ready."""
    try:
        async with asyncio.timeout(deadline_s):
            reader, writer = await asyncio.open_connection(
                admin.host, admin.port, limit=_ANSWER_SIZE_BYTES_MAX, ssl=tls
            )
            try:
                writer.write(f"GET /readyz HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n".encode())
                await writer.drain()
                answer = await _read_all(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return Health(ready=False, page="")
    header, _, page = answer.partition(b"\r\n\r\n")
    return Health(header.split()[1:2] == [b"200"], page.decode(errors="replace"))


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    """All bytes until the other side closes the connection, but at most `_ANSWER_SIZE_BYTES_MAX` (64 KiB)."""
    try:
        return await reader.readexactly(_ANSWER_SIZE_BYTES_MAX)
    except asyncio.IncompleteReadError as exc:
        return exc.partial
