"""Retention of staged data: the floor is raised first, then decided publications are looked for, then data is dropped.

Rule `floor-first` (KEPT-STAGE). Without it:
  1. Retention finds no record that is DECIDED.
  2. A publisher that has found all staged data decides.
  3. Retention drops the data that the record names.

The publisher's transaction compares the floors. So it fails, or this check finds its decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from seriatim_api.errors import CorruptionError, SeriatimError
from seriatim_api.ids import PartitionId, format_offset
from seriatim_api.publications import Manifest
from seriatim_api.v1 import records_pb2

from ...core.values.writers import ManifestPlace, WriterState
from ...interfaces.coordinator import Coordinator, Put, mod_revision_is
from ..coordinator.keys import Keys
from ..coordinator.records import writer_from_value

ReadManifest = Callable[[ManifestPlace], Awaitable[Manifest]]

RECORDS_PER_TURN = 1000
"""Records that are examined before the event loop has its turn: some milliseconds."""

_log = structlog.get_logger(__name__)


class StageFloors:
    """The master of a stage partition calls `may_drop` before it drops anything of the partition."""

    def __init__(self, coordinator: Coordinator, keys: Keys) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self._read_manifest: ReadManifest | None = None

    def on_read(self, read_manifest: ReadManifest) -> None:
        """`read_manifest` reads manifests."""
        self._read_manifest = read_manifest

    async def may_drop(self, partition: PartitionId, offset: int) -> bool:
        """Whether no publication needs the data below that offset of a stage partition, now or later."""
        return await self._raise(partition, offset) and not await self._is_needed(partition, offset)

    async def _raise(self, partition: PartitionId, offset: int) -> bool:
        """Raise the floor, so that nothing below it can be decided any more (rule `floor-first`).

        Returns:
            False if another writer was faster: nothing may be dropped, and the next scan tries again.
        """
        key = self._keys.stage_floor(partition)
        item = await self._coordinator.get(key)
        floor = records_pb2.StageFloorRecord.FromString(item.value).offset if item is not None else 0
        if floor < offset:
            put = Put(key, records_pb2.StageFloorRecord(offset=offset).SerializeToString())
            revision = item.mod_revision if item is not None else 0
            return (await self._coordinator.txn([mod_revision_is(key, revision)], [put])).succeeded
        return True

    async def _is_needed(self, partition: PartitionId, offset: int) -> bool:
        """Whether a publication that is decided and not done needs data below that offset, or may need it.

        Rule `waits-for-decided` (KEPT-STAGE). Without it: 1. A publication is decided, and a broker group is down. 2.
        Retention drops its staged data. 3. The broker group is back, and no disk has the rows that its masters need.
        """
        for number, written in enumerate((await self._coordinator.list(self._keys.writers)).items, 1):
            if not number % RECORDS_PER_TURN:
                await asyncio.sleep(0)  # requests to this broker have their turn
            try:
                record = writer_from_value(written.value)
            except CorruptionError as exc:
                _log.error("staged_data_stays", key=written.key, error=str(exc))
                return True
            if record.state is WriterState.DECIDED and await self._reaches_below(record.manifest, partition, offset):
                _log.info("staged_data_waits", writer=written.key, partition=partition, offset=format_offset(offset))
                return True
        return False

    async def _reaches_below(self, place: ManifestPlace, partition: PartitionId, offset: int) -> bool:
        """Whether a publication needs data below that offset. If its manifest cannot be read, it may."""
        if place.partition == partition and min(place.offsets, default=0) < offset:
            return True
        try:
            if self._read_manifest is None:
                return True
            manifest = await self._read_manifest(place)
        except (SeriatimError, TimeoutError):
            return True
        return manifest.reaches_below(partition, offset)
