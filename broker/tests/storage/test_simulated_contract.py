"""The contract's cases over the simulator's disk, in real time."""

from __future__ import annotations

import asyncio

import pytest
from seriatim_broker.core.log import RecoveredPartition
from seriatim_broker.testing.memory_disk import MemoryDisk
from seriatim_broker.testing.simulated_storage import SimulatedStorage
from seriatim_broker.testing.virtual_time import LoopTimers

from .contract import CASES

globals().update(CASES)

DEADLINE_S = 5.0


class SimulatedHarness:
    """A storage over a disk that outlives it. A crash keeps nothing that was not reported durable."""

    def __init__(self) -> None:
        self._disk = MemoryDisk()
        self._open()

    def _open(self) -> None:
        self._durable = 0
        self._arrived = asyncio.Event()
        self.storage = SimulatedStorage(self._disk, LoopTimers(), lambda: 100, lambda: 10)
        self.recovered: dict[int, RecoveredPartition] = {found.partition: found for found in self.storage.recover()}
        self.storage.on_durable(self._take)

    def _take(self, ticket: int) -> None:
        assert ticket > self._durable, "tickets are reported in order"
        self._durable = ticket
        self._arrived.set()

    async def durable(self, ticket: int) -> None:
        """Wait until a ticket is reported durable."""
        async with asyncio.timeout(DEADLINE_S):
            while self._durable < ticket:
                self._arrived.clear()
                await self._arrived.wait()

    async def reopen(self, *, crash: bool) -> None:
        """End the storage and open another one over the disk."""
        if crash:
            self.storage.end()
            self._disk.crash(0)
        else:
            await self.storage.close()
        self._open()


@pytest.fixture
async def harness() -> SimulatedHarness:
    """A storage that is open and recovered."""
    return SimulatedHarness()
