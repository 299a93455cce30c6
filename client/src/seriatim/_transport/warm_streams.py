"""Warm streams: streams for appends to the brokers that may take over next, opened before they are needed.

When a partition moves to another broker, the client has a stream there. It asks for no port, dials nothing and makes no
TLS handshake in the gap. And the broker that takes over does not get the connections of all clients at the same moment.

Only streams over TCP are kept. Streams over gRPC share a connection, and `Channels.warm` keeps that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from seriatim_api.errors import SeriatimError

from seriatim._runtime.logs import guarded
from seriatim._transport.channels import WARM_MAX

SPREAD_S: Final = 2.0
"""A warm stream is opened within this many seconds, at random. When a broker ends, all its clients learn at the same
moment which broker is the next one, and a TLS handshake takes the broker some 4 ms of its event loop."""

PAUSE_S_MAX: Final = 60.0
"""The longest pause before a stream that cannot be kept is tried again, in seconds. The pause doubles each time."""

_log = guarded()


class WarmStreams:
    """Keeps streams to some brokers open, until `close` is called.

    Args:
        stay_open: Opens the stream to an address unless it is open, and returns when it has ended. Returns at once if
            there is nothing to keep. If it is cancelled, it ends the stream unless partitions use it.
    """

    def __init__(self, stay_open: Callable[[str], Awaitable[None]]) -> None:
        self._stay_open = stay_open
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def keep(self, address: str) -> None:
        """Keep a stream to a broker open; see `WARM_MAX`."""
        keeper = self._keepers.pop(address, None)
        if keeper is None:
            keeper = asyncio.create_task(self._keep(address), name=f"warm stream {address}")
        self._keepers[address] = keeper
        if len(self._keepers) > WARM_MAX:
            self._end(self._keepers.pop(next(iter(self._keepers))))

    async def _keep(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        pause_s = SPREAD_S
        while True:
            await asyncio.sleep(random.uniform(0, pause_s))  # noqa: S311 - nothing is secret
            began_s = loop.time()
            try:
                await self._stay_open(address)
            except SeriatimError:
                pass  # the broker does not answer
            except Exception:
                _log.warning(
                    "the client could not keep a stream to %s warm; a failover to it may take longer",
                    address,
                    exc_info=True,
                )
            has_lasted = loop.time() - began_s > pause_s
            pause_s = SPREAD_S if has_lasted else min(2 * pause_s, PAUSE_S_MAX)

    def _end(self, keeper: asyncio.Task[None]) -> None:
        keeper.cancel()
        self._ending.add(keeper)
        keeper.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End all warm streams, and wait until they have ended."""
        for keeper in self._keepers.values():
            self._end(keeper)
        self._keepers.clear()
        await asyncio.gather(*self._ending, return_exceptions=True)
