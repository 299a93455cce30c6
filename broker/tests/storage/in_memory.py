"""What the harnesses of storages in memory share: a storage over a disk that outlives it, and what it reported."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from seriatim_broker.core.values.log import RecoveredPartition
from seriatim_broker.testing.memory_disk import MemoryDisk

DEADLINE_S = 30.0


class InMemoryHarness(ABC):
    """A crash keeps nothing that was not durable."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.open()

    @abstractmethod
    def make(self) -> Any:
        """A storage over the disk."""

    def open(self) -> None:
        """Open a storage, and take up what is on the disk."""
        self.reported = 0
        self._arrived = asyncio.Event()
        self.storage = self.make()
        self.recovered: dict[int, RecoveredPartition] = {found.partition: found for found in self.storage.recover()}
        self.storage.on_durable(self._take)

    def _take(self, ticket: int) -> None:
        assert ticket > self.reported, "tickets are reported in order"
        self.reported = ticket
        self._arrived.set()

    async def durable(self, ticket: int) -> None:
        """Wait until a ticket is reported durable."""
        async with asyncio.timeout(DEADLINE_S):
            while self.reported < ticket:
                self._arrived.clear()
                await self._arrived.wait()

    async def reopen(self, *, crash: bool) -> None:
        """End the storage and open another one over the disk."""
        if crash:
            self.storage.end()
            self.disk.crash(0)
        else:
            await self.storage.close()
        self.open()
