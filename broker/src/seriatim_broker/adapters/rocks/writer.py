"""The way of a submitted write until it is durable: in groups, with one write and one flush at a time, in order.

    event loop:  submit → group … → engine.write(group), in memory → hand to the flusher
    flusher:                                                    flush_wal (no interpreter lock) → report → note
    event loop:  … meanwhile submits fill the next groups …     flushed: notify the owner, next turn

The writer writes one group and flushes it before it writes the next. So a write never waits for the disk (see
`engine`), and all submits that come during a flush share the next one. A submit that finds nothing under way is written
at once: its owner joins what belongs together. If the engine refuses a group, the group stays the first of the queue,
and the writer tries again after `retry_ms` (5 ms). Nothing overtakes it.

A group of which nothing is waited for (`may_wait`) is written, and flushed late: with the next group of which something
is waited for, or `flush_late_ms` (10 ms) after it was written.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter

from ...core.values.producers import Window
from .codec import WINDOW_BYTES_MAX, write_window
from .floor import DELETE, PUT, Family, Floor, FlushFailedError, Op, WriteRefusedError
from .settings import RocksSettings

_OP_OVERHEAD_BYTES = 64


@dataclass(slots=True, eq=False)
class WriteGroup:
    """Writes that become durable together. It keeps producer windows apart, because it writes only the last of each."""

    ops: list[Op] = field(default_factory=list)
    windows: dict[bytes, tuple[Family, Window | None]] = field(default_factory=dict)
    size_bytes: int = 0
    ticket: int = 0
    may_wait: bool = True

    def add(self, op: Op, size_bytes: int) -> None:
        """Append one operation."""
        self.ops.append(op)
        self.size_bytes += size_bytes + _OP_OVERHEAD_BYTES

    def set_window(self, family: Family, key: bytes, window: Window | None) -> None:
        """Put a window, or delete it. It replaces an earlier one of the same producer in this group."""
        if key not in self.windows:
            self.size_bytes += WINDOW_BYTES_MAX + _OP_OVERHEAD_BYTES
        self.windows[key] = (family, window)

    def settle(self) -> None:
        """Move the windows to the operations. This is needed before the write, and before windows are deleted."""
        for key, (family, window) in self.windows.items():
            if window is not None:
                self.ops.append((PUT, family, key, write_window(window)))
            else:
                self.ops.append((DELETE, family, key, None))
        self.windows.clear()


class Writer:
    """The queue of groups. All of it runs on the event loop, except `_flush`."""

    def __init__(self, floor: Floor, settings: RocksSettings) -> None:
        self._floor = floor
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._groups: deque[WriteGroup] = deque()
        self._turn_is_due = False
        self._is_flushing = False
        self._flushing_bytes = 0
        self._late_bytes = 0  # written, and not handed to the flusher yet
        self._late: asyncio.TimerHandle | None = None
        self._sequence = self.durable_sequence = floor.database.sequence()  # of what was written last, and flushed last
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []  # by ticket
        self.queued_bytes = 0
        self.ticket = 0
        self.written_ticket = 0
        self.durable_ticket = 0
        self.refusals = 0
        self.on_flushed: Callable[[int], None] = lambda _ticket: None

    @property
    def is_saturated(self) -> bool:
        """Whether more bytes than `queued_size_bytes_max` are not durable yet."""
        return self.queued_bytes > self._settings.queued_size_bytes_max

    def submit(self, fill: Callable[[WriteGroup], object], *, may_wait: bool = False) -> int:
        """Have `fill` add operations to the newest group, and write it if nothing is under way.

        Args:
            fill: It adds the operations.
            may_wait: Nothing waits until they are durable, so they may be flushed `flush_late_ms` later.

        Returns:
            The ticket for them.
        """
        if not self._groups or self._groups[-1].size_bytes >= self._settings.group_size_bytes_max:
            self._groups.append(WriteGroup())
        group = self._groups[-1]
        size_bytes = group.size_bytes
        fill(group)
        group.may_wait = group.may_wait and may_wait
        self.ticket += 1
        group.ticket = self.ticket
        self.queued_bytes += group.size_bytes - size_bytes
        ticket = self.ticket
        if not self._turn_is_due and not self._is_flushing:
            self._start()
            self._turn()
        return ticket

    async def drain(self) -> None:
        """Wait until all writes that were submitted so far are durable. There is no time-out."""
        await self.wait(self.ticket)

    async def wait(self, ticket: int) -> None:
        """Wait until this ticket is durable."""
        if self.durable_ticket < ticket:
            done = asyncio.get_running_loop().create_future()
            insort(self._waiters, (ticket, done), key=itemgetter(0))
            if self._late is not None:
                self._flush_written()
            await done

    async def close(self) -> None:
        """Wait until all writes are durable, then end the flusher."""
        await self.drain()
        await self._floor.flusher.close()

    # ---- turns ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._floor.flusher.start(self._flush)

    def _turn(self) -> None:
        try:
            self._write_group()
        except Exception as error:
            # Without this the event loop would log the error and continue, and the writer would never write again.
            self._floor.die("a turn of the writer failed", error)

    def _write_group(self) -> None:
        self._turn_is_due = False
        if self._is_flushing or not self._groups:
            return  # a flush of earlier groups has begun meanwhile; its end begins the next turn
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
        self.written_ticket, self._sequence = group.ticket, sequence
        self._late_bytes += group.size_bytes
        if not group.may_wait or self._waiters or self._late_bytes >= self._settings.late_size_bytes_max:
            self._flush_written()
            return
        if self._late is None:
            self._late = self._loop.call_later(self._settings.flush_late_ms / 1000, self._flush_late)
        if self._groups:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _flush_late(self) -> None:
        try:
            self._flush_written()
        except Exception as error:
            self._floor.die("a late flush could not begin", error)  # as in `_turn`

    def _flush_written(self) -> None:
        """Hand all that was written to the flusher."""
        assert not self._is_flushing
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self._is_flushing = True
        self._flushing_bytes, self._late_bytes = self._late_bytes, 0
        self._floor.flusher.put(self.written_ticket, self._sequence)

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
        self.durable_sequence = self._sequence
        self._turn_is_due = bool(self._groups)
        if not self._groups:
            assert self.queued_bytes == 0, self.queued_bytes
        while self._waiters and self._waiters[0][0] <= ticket:
            done = self._waiters.pop(0)[1]
            if not done.done():
                done.set_result(None)
        writes_next = self._turn_is_due
        self.on_flushed(ticket)
        if writes_next:  # in the next turn, after what could leave has left
            assert self._loop is not None
            self._loop.call_soon(self._turn)

    # ---- in the flusher ---------------------------------------------------------------------------------

    def _flush(self, ticket: int, sequence: int) -> None:
        floor, loop = self._floor, self._loop
        assert loop is not None
        # Rule `storage-reports-early` (I12): a write is reported only when it is flushed. Without it:
        # 1. As reports batch a before the flush. The master counts As's copy, and acknowledges a.
        # 2. As's machine loses power, and Am's disk fails. No disk has a.
        try:
            floor.database.flush_wal()
        # Rule `storage-flushes-again` (I12): a flush that failed ends the process. Without it:
        # 1. The flush of batch a fails. The kernel marks a's pages as clean, although they are not on the disk.
        # 2. The second flush has nothing to write, and succeeds. As reports a, and a is acknowledged.
        # 3. As's machine loses power, and Am's disk fails. No disk has a.
        except FlushFailedError as error:
            floor.die("the write-ahead log cannot be flushed", error)
        with contextlib.suppress(RuntimeError):  # the loop is closed, so that no task waits for the report
            loop.call_soon_threadsafe(self._flushed, ticket)
        try:
            floor.mark.note(sequence)
        except OSError as error:
            floor.die("the watermark cannot be written", error)
