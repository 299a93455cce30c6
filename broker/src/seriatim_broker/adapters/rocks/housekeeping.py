"""Giving disk space back: dead extents are emptied whole and are spare again, sparse ones are copied forward first.

An extent is emptied only after the index entries that named it are gone durably. Copying takes a slice of one segment
at a time, as an ordinary write behind everything submitted, and waits whenever as much as a slice is on its way; a
slice whose segment was cut or dropped meanwhile is thrown away. A crash between two slices leaves a run in two pieces,
which is a legal state. A batch whose body stands apart in such an extent is copied with its body.
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
    """What housekeeping asks of the storage."""

    def rotate(self) -> None:
        """Begin another extent; one must be spare."""

    async def empty_extent(self, number: int) -> bool:
        """Empty a dead extent, and drop its record; says whether it could be done."""

    def put_moved(self, partition: int, segment: int, log: ExtentLog, place: int, stored: Sequence[Stored]) -> None:
        """Put the first batches of a run again, in the active extent."""


class Housekeeper:
    """One task while there is something to do; owned by the storage, which awaits it when it closes."""

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
        """Look soon: something was dropped, or an extent was begun."""
        self._again = True
        if not self._is_closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="storage-housekeeping")

    async def settle(self) -> None:
        """Wait until there is nothing left to do."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        if self._task is not None:
            self._task.result()

    async def close(self) -> None:
        """Stop after the slice in hand."""
        self._is_closed = True
        await self.settle()

    async def _run(self) -> None:
        while self._again and not self._is_closed:
            self._again = False
            await self._empty_dead()
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
        for number in dead:  # an extent that takes no more cannot come to life again
            if not self._is_closed and await self._house.empty_extent(number):
                self._unreadable.discard(number)
                self._again = True  # what waited for a spare one need not wait any more

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
            # Readers of that segment will be told the same; the extent stays as it is.
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
                continue  # cut, dropped or moved while it was read
            if (log.cuts, log.moves) == seen:
                self._house.put_moved(partition, segment, log, place, stored)
                self._moving_bytes += sum(one.batch.size_bytes for one in stored)
            if self._moving_bytes >= SLICE_BYTES_MAX:
                await self._writer.drain()
                self._moving_bytes = 0
