"""The contract's cases over the simulator's disk, in real time."""

from __future__ import annotations

import pytest
from seriatim_broker.testing.memory_disk import MemoryDisk
from seriatim_broker.testing.simulated_storage import SimulatedStorage
from seriatim_broker.testing.virtual_time import LoopTimers

from .contract import CASES
from .in_memory import InMemoryHarness

globals().update(CASES)


class SimulatedHarness(InMemoryHarness):
    """Over the simulator's disk."""

    def make(self) -> SimulatedStorage:
        """A storage over the disk."""
        return SimulatedStorage(self.disk, LoopTimers(), lambda: 100, lambda: 10)


@pytest.fixture
async def harness() -> SimulatedHarness:
    """A storage that is open and recovered."""
    return SimulatedHarness(MemoryDisk())
