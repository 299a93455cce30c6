"""Looks up the addresses of hosts, in threads of its own.

A lookup that no name server answers keeps its thread for up to a minute. asyncio looks names up in the few threads that
the rest of the program uses too. Dials to some brokers would keep all of them, and the program could not end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from ipaddress import ip_address
from typing import Final

LOOKUP_COUNT_MAX: Final = 64
"""Lookups that have no answer yet. One more fails at once. Each takes a thread. A program dials some dozen brokers."""


class HostLookup:
    """Looks up addresses."""

    def __init__(self) -> None:
        self._unanswered_count = 0

    async def addresses(self, host: str) -> list[str]:
        """The addresses of a host, in the order in which they are tried. An address stands for itself.

        If the call is cancelled, the lookup continues in its thread, and its answer is not used.

        Raises:
            OSError: The host has no address (`socket.gaierror`), or too many lookups have no answer.
            UnicodeError: The text cannot be the name of a host.
        """
        with contextlib.suppress(ValueError):
            return [str(ip_address(host))]
        if self._unanswered_count >= LOOKUP_COUNT_MAX:
            raise socket.gaierror(socket.EAI_AGAIN, f"{LOOKUP_COUNT_MAX} lookups of names have no answer yet")
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[str]] = loop.create_future()
        self._unanswered_count += 1

        def take(answer: list[str] | Exception) -> None:
            self._unanswered_count -= 1
            if found.done():  # cancelled
                return
            if isinstance(answer, Exception):
                found.set_exception(answer)
            else:
                found.set_result(answer)

        def look() -> None:
            answer: list[str] | Exception
            try:
                answer = list(
                    dict.fromkeys(str(where[0]) for *_, where in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM))
                )
            except Exception as exc:
                answer = exc
            with contextlib.suppress(RuntimeError):  # the loop has ended in the meantime
                loop.call_soon_threadsafe(take, answer)

        threading.Thread(target=look, name=f"look up {host}", daemon=True).start()
        return await found
