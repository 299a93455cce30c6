"""Housekeeping: it gives disk space back.

A dead extent, which has nothing in use, is emptied as a whole and is spare again. A sparse extent is *copied forward*
first: its batches that are in use are written again, to the active extent.

An extent is emptied only when the index entries that named it are durably gone. Copying takes a slice of one segment at
a time, at most 2 MiB. A slice is an ordinary write, after all submitted ones. Housekeeping waits until each 2 MiB are
durable. If a segment was cut or dropped while its slice was read, the slice is thrown away. A crash between two slices
leaves a run in two pieces, which is a legal state. A batch whose body is stored apart in such an extent is copied with
its body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import structlog
from seriatim_api.errors import SeriatimError

from .extents import Extent, ExtentLog, ExtentTable
from .reader import Reader
from .scan import Stored, Stretch
from .settings import RocksSettings
from .writer import Writer

_log = structlog.get_logger(__name__)

SLICE_BYTES_MAX: Final = 2 << 20


class House(Protocol):
    """The part of the storage that housekeeping uses."""

    def rotate(self) -> None:
        """Begin another extent. At least one must be spare."""

    async def empty_extent(self, number: int) -> bool:
        """Empty a dead extent, and drop its record. Returns whether the extent is empty."""

    async def sweep_rows(self) -> bool:
        """Delete some rows of delayed batches that retention dropped. Returns whether there may be more."""

    def put_moved(self, partition: int, segment: int, log: ExtentLog, place: int, stored: Sequence[Stored]) -> None:
        """Write the first batches of a run again, in the active extent."""


class Housekeeper:
    """A task that exists only while there is work. The storage owns it, and waits for it at its own close."""

    def __init__(
        self, house: House, table: ExtentTable, writer: Writer, reader: Reader, settings: RocksSettings
    ) -> None:
        self._house = house
        self._table = table
        self._writer = writer
        self._reader = reader
        self._settings = settings
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._is_closed = False
        self._unreadable: set[int] = set()
        self._moving_bytes = 0

    def wake(self) -> None:
        """Have the task look for work, because batches were dropped or an extent was begun."""
        self._again = True
        if not self._is_closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="storage-housekeeping")

    async def settle(self) -> None:
        """Wait until the task has no work left."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        if self._task is not None:
            self._task.result()

    async def close(self) -> None:
        """Stop after the present slice, and wait for it."""
        self._is_closed = True
        await self.settle()

    async def _run(self) -> None:
        while self._again and not self._is_closed:
            self._again = False
            await self._empty_dead()
            has_more = await self._house.sweep_rows()
            self._again |= has_more  # it may have been set meanwhile
            extent = self._sparse()
            if extent is not None:
                await self._copy_forward(extent)
                self._again = True

    async def _empty_dead(self) -> None:
        active, size_min = self._table.active, self._settings.extent_copy_size_bytes_min
        if active is not None and active.runs == 0 and active.size_bytes >= size_min and self._table.spares:
            self._house.rotate()
        dead = self._table.dead()
        if dead:
            await self._writer.drain()
        for number in dead:  # they take no batches, so none of them can be in use again
            if not self._is_closed and await self._house.empty_extent(number):
                self._unreadable.discard(number)
                self._again = True  # there may be work that waited for a spare extent

    def _sparse(self) -> Extent | None:
        settings = self._settings
        for extent in self._table.extents.values():
            if extent.runs == 0 or extent.number in self._unreadable:
                continue
            if extent.size_bytes < settings.extent_copy_size_bytes_min:
                continue
            if extent is self._table.active and not self._table.spares:
                continue
            if extent.is_sparse(settings.extent_live_percent_min):
                return extent
        return None

    async def _copy_forward(self, extent: Extent) -> None:
        if extent is self._table.active:
            self._house.rotate()
        _log.info("extent is copied forward", extent=extent.number, size=extent.size_bytes, live=extent.live_bytes)
        await self._writer.drain()  # its last batches may not be written yet
        try:
            for partition, segment, log, _place in list(self._table.runs_in(extent.number)):
                await self._copy_segment(partition, segment, log, extent.number)
        except SeriatimError as error:
            # Readers of this segment get the same error. The extent stays as it is.
            self._unreadable.add(extent.number)
            _log.error("extent cannot be copied forward", extent=extent.number, error=str(error))

    async def _copy_segment(self, partition: int, segment: int, log: ExtentLog, extent: int) -> None:
        while not self._is_closed:
            place = next((at for at, run in enumerate(log.runs) if extent in run.extents), None)
            if place is None:
                return
            seen = log.cuts, log.moves
            stretch = Stretch(log.runs[place].extent, log.runs[place].start, log.end_of(place)[0])
            try:
                stored = await self._reader.read_disk(partition, segment, [stretch], SLICE_BYTES_MAX)
            except SeriatimError:
                if (log.cuts, log.moves) == seen:
                    raise
                continue  # the segment was cut, dropped or moved while it was read
            if (log.cuts, log.moves) == seen:
                self._house.put_moved(partition, segment, log, place, stored)
                self._moving_bytes += sum(one.batch.size_bytes for one in stored)
            if self._moving_bytes >= SLICE_BYTES_MAX:
                await self._writer.drain()
                self._moving_bytes = 0
