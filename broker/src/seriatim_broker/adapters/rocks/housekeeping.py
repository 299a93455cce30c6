"""Giving disk space back: dead extents are dropped whole, sparse ones are copied forward first.

An extent goes only after the index entries that named it are gone durably. Copying takes one slice at a time, as an
ordinary write behind everything submitted, and waits for it; a slice whose segment was cut or dropped meanwhile is
thrown away. A crash between two slices leaves a run in two pieces, which is a legal state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import structlog
from seriatim_api.errors import SeriatimError

from .extents import Extent, ExtentTable, SegmentLog
from .reader import Stored, Stretch
from .settings import RocksSettings
from .writer import Writer

_log = structlog.get_logger(__name__)

SLICE_BYTES_MAX: Final = 2 << 20


class House(Protocol):
    """What housekeeping asks of the storage."""

    def rotate(self) -> None:
        """End the active extent."""

    def make_spare(self) -> None:
        """Make one empty extent ahead."""

    def drop_extent(self, number: int) -> None:
        """Drop a dead extent and its record."""

    async def read_disk(
        self, partition: int, segment: int, stretches: Sequence[Stretch], max_bytes: int
    ) -> list[Stored]:
        """Read from the engine, in a worker thread."""

    def put_moved(self, partition: int, segment: int, log: SegmentLog, place: int, stored: Sequence[Stored]) -> None:
        """Put the first batches of a run again, in the active extent."""


class Housekeeper:
    """One task while there is something to do; owned by the storage, which awaits it when it closes."""

    def __init__(self, house: House, table: ExtentTable, writer: Writer, settings: RocksSettings) -> None:
        self._house = house
        self._table = table
        self._writer = writer
        self._settings = settings
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._is_closed = False
        self._unreadable: set[int] = set()

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
            await self._drop_dead()
            if not self._table.spares and self._settings.spare_extents:
                self._house.make_spare()
                self._again = True
            extent = self._sparse()
            if extent is not None:
                await self._copy_forward(extent)
                self._again = True

    async def _drop_dead(self) -> None:
        active = self._table.active
        if active is not None and active.runs == 0 and active.size_bytes >= self._settings.extent_copy_size_bytes_min:
            self._house.rotate()
        dead = self._table.dead()
        if not dead:
            return
        await self._writer.drain()
        for number in dead:  # an extent that takes no more cannot come to life again
            self._house.drop_extent(number)

    def _sparse(self) -> Extent | None:
        settings = self._settings
        for extent in self._table.extents.values():
            if extent.runs == 0 or extent.number in self._unreadable:
                continue
            if extent.size_bytes < settings.extent_copy_size_bytes_min:
                continue
            if extent.is_sparse(settings.extent_live_percent_min):
                return extent
        return None

    async def _copy_forward(self, extent: Extent) -> None:
        if extent is self._table.active:
            self._house.rotate()
        _log.info("extent is copied forward", extent=extent.number, size=extent.size_bytes, live=extent.live_bytes)
        try:
            for partition, segment, log, _place in list(self._table.runs_in(extent.number)):
                await self._copy_segment(partition, segment, log, extent.number)
        except SeriatimError as error:
            # Readers of that segment will be told the same; the extent stays as it is.
            self._unreadable.add(extent.number)
            _log.error("extent cannot be copied forward", extent=extent.number, error=str(error))

    async def _copy_segment(self, partition: int, segment: int, log: SegmentLog, extent: int) -> None:
        while not self._is_closed:
            place = next((at for at, run in enumerate(log.runs) if run.extent == extent), None)
            if place is None:
                return
            version = log.version
            stretch = Stretch(extent, log.runs[place].start, log.end_of(place)[0])
            try:
                stored = await self._house.read_disk(partition, segment, [stretch], SLICE_BYTES_MAX)
            except SeriatimError:
                if log.version == version:
                    raise
                continue  # cut or dropped while it was read
            if log.version == version:
                self._house.put_moved(partition, segment, log, place, stored)
                await self._writer.drain()
