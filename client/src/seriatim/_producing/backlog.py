"""The backlog: the messages that a producer took and that are not settled, and the callers that wait for them.

A sender waits for room. A flush waits until all messages are settled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

from seriatim_api.errors import PreconditionError, SeriatimError

from seriatim._core.producer import Outcome

_CLOSED: Final = "the producer is closed: it takes nothing more"


class FlushResult(NamedTuple):
    """How many messages were settled with each outcome since the last flush."""

    ok: int
    failed: int
    unknown: int


class Backlog:
    """Counts the messages that are not settled, and limits their bytes.

    Args:
        size_bytes_max: Above it, senders wait in line. A message larger than this is taken when no other is there.
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
        self._refusal: SeriatimError | None = None  # the error of later sends; None: messages are taken

    # ---- room ----------------------------------------------------------------------------------------

    def has_room(self, size_bytes: int) -> bool:
        """Whether this many bytes may be taken now: they fit, and no other sender waits in line.

        Raises:
            SeriatimError: The producer is closed or has ended; the error says why.
        """
        if self._refusal is not None:
            self.refuse()
        return not self._in_line and (self.size_bytes + size_bytes <= self._size_bytes_max or not self.size_bytes)

    def _fits(self, size_bytes: int) -> bool:
        return self.size_bytes + size_bytes <= self._size_bytes_max or not self.size_bytes

    def refuse(self) -> None:
        """Raise the error of a producer that takes nothing more; do nothing if it still takes messages.

        Raises:
            SeriatimError: The producer is closed or has ended; the error says why.
        """
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)

    async def wait_for_room(self, size_bytes: int) -> None:
        """Wait in line until this many bytes fit, at least until the next turn of the event loop.

        Raises:
            SeriatimError: The producer was closed, or ended, meanwhile.

        If the call is cancelled, the next sender in line may take its place.
        """
        self.refuse()
        line = self._in_line
        waiter = self._loop.create_future()
        if not line and self._fits(size_bytes):
            self._loop.call_soon(self._offer_room)
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
            self.refuse()
            if self._fits(size_bytes):
                self._loop.call_soon(self._offer_room)  # there may be room for the next sender too
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
        """Count messages that were taken."""
        self.size_bytes += size_bytes
        self.message_count += count

    def settle(self, count: int, size_bytes: int, outcome: Outcome) -> None:
        """Count messages that are settled."""
        self.size_bytes -= size_bytes
        self.message_count -= count
        assert self.size_bytes >= 0
        self._counts[outcome] += count
        if self._in_line:
            self._offer_room()
        if not self.message_count:
            self._release_flushing()

    def _release_flushing(self) -> None:
        for waiter in self._flushing:
            if not waiter.done():
                waiter.set_result(None)
        self._flushing = []

    # ---- the end of it all ---------------------------------------------------------------------------

    @property
    def is_flushing(self) -> bool:
        """Whether a flush waits until all messages are settled."""
        return bool(self._flushing)

    async def until_settled(self) -> None:
        """Wait until all messages are settled."""
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
        """The outcomes since the last call of this method."""
        before, self._counts_told = self._counts_told, dict(self._counts)
        return FlushResult(*(self._counts[outcome] - before[outcome] for outcome in Outcome))

    @property
    def is_closed(self) -> bool:
        """Whether the producer takes nothing more."""
        return self._refusal is not None

    def close(self, refusal: SeriatimError | None = None) -> None:
        """Take nothing more, and refuse the senders that wait for room.

        Args:
            refusal: The error that later sends raise; None: that the producer is closed.
        """
        if refusal is not None or self._refusal is None:
            self._refusal = refusal or PreconditionError(_CLOSED)
        for waiter in self._in_line:
            if not waiter.done():
                waiter.set_result(None)

    def break_off(self) -> None:
        """Count all messages as settled as unknown, because the producer's own code failed."""
        count, self.message_count, self.size_bytes = self.message_count, 0, 0
        self._counts[Outcome.UNKNOWN] += count
        self._release_flushing()
