"""Asks a broker's admin port why it is not ready. A kubelet reports only that the probe failed."""

from __future__ import annotations

import asyncio
import ssl

import aiohttp

from ..resources.names import ADMIN_PORT
from .brokers import Credentials

ASK_S = 1.5
TEXT_SIZE_MAX = 500


async def why_not_ready(ip: str, credentials: Credentials | None) -> str:
    """What the broker answers, at most 500 bytes. Empty if it is ready or does not answer within 1.5 s."""
    scheme = "https" if credentials is not None else "http"
    options: dict[str, object] = {}
    if credentials is not None:
        context = ssl.create_default_context(cadata=credentials.ca.decode())
        options = {"ssl": context, "server_hostname": credentials.server_name}
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_S)) as session:
            url = f"{scheme}://{ip}:{ADMIN_PORT}/readyz"
            async with session.get(url, **options) as response:  # type: ignore[arg-type]
                if response.status == 200:
                    return ""
                return (await response.content.read(TEXT_SIZE_MAX)).decode(errors="replace").strip()
    except (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError):
        return ""
