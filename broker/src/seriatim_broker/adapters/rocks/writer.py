"""From submitted writes to durable ones: groups, one write and one flush at a time, in order.

    event loop:  submit → group … → turn: engine.write(group), in memory → hand to the flusher
    flusher:                                                    flush_wal (no interpreter lock) → note → report
    event loop:  … meanwhile submits fill the next groups …     flushed: tell the owner, next turn

A group is written whole and flushed before the next one is written: so a write never waits for the disk (see
`engine`), and what arrives during a flush shares the next one. A refusal leaves the group at the head of the queue
and tries again a little later: nothing overtakes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import itemgetter

from ...core.values.producers import Window
from .codec import WINDOW_BYTES_MAX, write_window
from .floor import PUT, Family, Floor, FlushFailedError, Op, WriteRefusedError
from .settings import RocksSettings

_OP_OVERHEAD_BYTES = 64


class Group:
    """Writes that become durable together. Producer windows are kept aside: only the last of each is written."""

    __slots__ = ("ops", "size_bytes", "ticket", "windows")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.windows: dict[bytes, tuple[Family, Window]] = {}
        self.size_bytes = 0
        self.ticket = 0

    def add(self, op: Op, size_bytes: int) -> None:
        """Append one operation."""
        self.ops.append(op)
        self.size_bytes += size_bytes + _OP_OVERHEAD_BYTES

    def set_window(self, family: Family, key: bytes, window: Window) -> None:
        """Put a window, in place of an earlier one of this group."""
        if key not in self.windows:
            self.size_bytes += WINDOW_BYTES_MAX + _OP_OVERHEAD_BYTES
        self.windows[key] = (family, window)

    def settle(self) -> None:
        """Put the windows among the operations, before one that takes windows away."""
        for key, (family, window) in self.windows.items():
            self.ops.append((PUT, family, key, write_window(window)))
        self.windows.clear()


class Writer:
    """The queue of groups. Everything here runs on the event loop, but `_flush`."""

    def __init__(self, floor: Floor, settings: RocksSettings) -> None:
        self._floor = floor
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._groups: deque[Group] = deque()
        self._turn_is_due = False
        self._is_flushing = False
        self._flushing_bytes = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []  # by ticket
        self.queued_bytes = 0
        self.ticket = 0
        self.written_ticket = 0
        self.durable_ticket = 0
        self.refusals = 0
        self.on_flushed: Callable[[int], None] = lambda _ticket: None

    @property
    def is_saturated(self) -> bool:
        """Whether more than the limit of bytes is not durable yet."""
        return self.queued_bytes > self._settings.queued_size_bytes_max

    def submit(self, fill: Callable[[Group], object]) -> int:
        """Have operations added to a group, as one ticket; returns the ticket."""
        if not self._groups or self._groups[-1].size_bytes >= self._settings.group_size_bytes_max:
            self._groups.append(Group())
        group = self._groups[-1]
        size_bytes = group.size_bytes
        fill(group)
        self.ticket += 1
        group.ticket = self.ticket
        self.queued_bytes += group.size_bytes - size_bytes
        self._schedule()
        return self.ticket

    async def drain(self) -> None:
        """Wait until everything submitted so far is durable. Ends with the process if the disk does not."""
        await self.wait(self.ticket)

    async def wait(self, ticket: int) -> None:
        """Wait until that ticket is durable."""
        if self.durable_ticket < ticket:
            done = asyncio.get_running_loop().create_future()
            insort(self._waiters, (ticket, done), key=itemgetter(0))
            await done

    async def close(self) -> None:
        """Drain, then end the flusher."""
        await self.drain()
        await self._floor.flusher.close()

    # ---- turns ------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if self._turn_is_due or self._is_flushing:
            return
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._floor.flusher.start(self._flush)
        self._turn_is_due = True
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        try:
            self._write_group()
        except Exception as error:
            # The loop would log it and go on, and nothing would ever be written again.
            self._floor.die("a turn of the writer failed", error)

    def _write_group(self) -> None:
        self._turn_is_due = False
        assert not self._is_flushing
        assert self._loop is not None
        group = self._groups[0]
        group.settle()
        try:
            sequence = self._floor.database.write(group.ops)
        except WriteRefusedError:
            self.refusals += 1
            self._turn_is_due = True
            self._loop.call_later(self._settings.retry_ms / 1000, self._turn)
            return
        self._groups.popleft()
        self._is_flushing = True
        self._flushing_bytes = group.size_bytes
        self.written_ticket = group.ticket
        self._floor.flusher.put(group.ticket, sequence)

    def _flushed(self, ticket: int) -> None:
        try:
            self._report(ticket)
        except Exception as error:
            self._floor.die("a flush could not be reported", error)

    def _report(self, ticket: int) -> None:
        self._is_flushing = False
        self.queued_bytes -= self._flushing_bytes
        self.durable_ticket = ticket
        assert ticket == self.written_ticket, (ticket, self.written_ticket)
        if self._groups:
            self._schedule()
        else:
            assert self.queued_bytes == 0, self.queued_bytes
        while self._waiters and self._waiters[0][0] <= ticket:
            done = self._waiters.pop(0)[1]
            if not done.done():
                done.set_result(None)
        self.on_flushed(ticket)

    # ---- in the flusher ---------------------------------------------------------------------------------

    def _flush(self, ticket: int, sequence: int) -> None:
        floor, loop = self._floor, self._loop
        assert loop is not None
        try:
            floor.database.flush_wal()
        except FlushFailedError as error:
            floor.die("the write-ahead log cannot be flushed", error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            loop.call_soon_threadsafe(self._flushed, ticket)
        try:
            floor.mark.note(sequence)
        except OSError as error:
            floor.die("the watermark cannot be written", error)
