"""Asking a broker's admin port whether it is ready: one HTTP request, no library."""

from __future__ import annotations

import asyncio
import ssl

from seriatim_broker.local.plan import Address

_ANSWER_SIZE_BYTES_MAX = 64 << 10


async def is_ready(admin: Address, *, deadline_s: float, tls: ssl.SSLContext | None = None) -> bool:
    """Whether `GET /readyz` is answered with 200 within `deadline_s` seconds: admitted, and serving."""
    try:
        async with asyncio.timeout(deadline_s):
            reader, writer = await asyncio.open_connection(
                admin.host, admin.port, limit=_ANSWER_SIZE_BYTES_MAX, ssl=tls
            )
            try:
                writer.write(f"GET /readyz HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n".encode())
                await writer.drain()
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False
    return status.split()[1:2] == [b"200"]
