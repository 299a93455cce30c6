"""Asking a broker's admin port whether it is ready, and what it says: one HTTP request, no library."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

from seriatim_broker.local.plan import Address

_ANSWER_SIZE_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class Health:
    """What `/readyz` said.

    Attributes:
        ready: Admitted, and serving.
        page: Why it is not ready, or what needs a person though it is; empty if there was no answer.
    """

    ready: bool
    page: str


async def ask(admin: Address, *, deadline_s: float, tls: ssl.SSLContext | None = None) -> Health:
    """What `GET /readyz` is answered with within `deadline_s` seconds."""
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
    head, _, page = answer.partition(b"\r\n\r\n")
    return Health(head.split()[1:2] == [b"200"], page.decode(errors="replace"))


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other side closes the connection, or the first `_ANSWER_SIZE_BYTES_MAX` bytes of it."""
    try:
        return await reader.readexactly(_ANSWER_SIZE_BYTES_MAX)
    except asyncio.IncompleteReadError as exc:
        return exc.partial
