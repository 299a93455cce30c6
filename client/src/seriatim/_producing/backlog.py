"""The backlog: messages that a producer took and that are not settled. Who waits for room, or for the end of it all."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

from seriatim_api.errors import PreconditionError

from seriatim._core.producer import Outcome

_CLOSED: Final = "the producer is closed"


class FlushResult(NamedTuple):
    """How many messages ended how since the last flush."""

    ok: int
    failed: int
    unknown: int


class Backlog:
    """Counts what is on its way, and bounds it.

    Args:
        size_bytes_max: Over it, senders wait in line; a message larger than this goes alone.
    """

    def __init__(self, size_bytes_max: int) -> None:
        self._size_bytes_max = size_bytes_max
        self.size_bytes = 0
        self.message_count = 0
        self._loop = asyncio.get_running_loop()
        self._in_line: deque[asyncio.Future[None]] = deque()
        self._flushing: list[asyncio.Future[None]] = []
        self._counts = dict.fromkeys(Outcome, 0)
        self._counts_told = dict(self._counts)
        self.is_closed = False

    # ---- room ----------------------------------------------------------------------------------------

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much may be taken now: it fits, and nobody came before.

        Raises:
            PreconditionError: The producer is closed.
        """
        if self.is_closed:
            raise PreconditionError(_CLOSED)
        if self._in_line:
            return False
        return self.size_bytes + size_bytes <= self._size_bytes_max or not self.size_bytes

    async def wait_for_room(self, size_bytes: int) -> None:
        """Wait in line until it fits.

        Raises:
            PreconditionError: The producer was closed meanwhile.
        """
        line = self._in_line
        waiter = self._loop.create_future()
        line.append(waiter)
        while True:
            try:
                await waiter
            except asyncio.CancelledError:
                self._offer_room()
                raise
            finally:
                if waiter in line:
                    line.remove(waiter)
            if self.is_closed:
                raise PreconditionError(_CLOSED)
            if self.size_bytes + size_bytes <= self._size_bytes_max or not self.size_bytes:
                self._loop.call_soon(self._offer_room)  # there may be room for the next one as well
                return
            waiter = self._loop.create_future()
            line.appendleft(waiter)  # it keeps its place

    def _offer_room(self) -> None:
        for waiter in self._in_line:
            if not waiter.done():
                waiter.set_result(None)
                return

    # ---- what comes and goes -------------------------------------------------------------------------

    def take(self, count: int, size_bytes: int) -> None:
        """Messages were taken."""
        self.size_bytes += size_bytes
        self.message_count += count

    def settle(self, count: int, size_bytes: int, outcome: Outcome) -> None:
        """Messages are settled."""
        self.size_bytes -= size_bytes
        self.message_count -= count
        assert self.size_bytes >= 0
        self._counts[outcome] += count
        if self._in_line:
            self._offer_room()
        if not self.message_count:
            for waiter in self._flushing:
                if not waiter.done():
                    waiter.set_result(None)
            self._flushing = []

    # ---- the end of it all ---------------------------------------------------------------------------

    @property
    def is_flushing(self) -> bool:
        """Whether somebody waits for all to be settled."""
        return bool(self._flushing)

    async def until_settled(self) -> None:
        """Wait until nothing is on its way."""
        if not self.message_count:
            return
        waiter = self._loop.create_future()
        self._flushing.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._flushing:
                self._flushing.remove(waiter)

    def result(self) -> FlushResult:
        """What was settled since the last time that this was asked."""
        before, self._counts_told = self._counts_told, dict(self._counts)
        return FlushResult(*(self._counts[outcome] - before[outcome] for outcome in Outcome))

    def close(self) -> None:
        """Take nothing more, and send those away who wait for room."""
        self.is_closed = True
        for waiter in self._in_line:
            if not waiter.done():
                waiter.set_result(None)
