"""The contract's cases over RocksDB: with room to spare, and with so little that everything happens at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from seriatim_broker.adapters.rocks import RocksSettings

from .contract import CASES
from .harness import RocksHarness

globals().update(CASES)

_CRAMPED = RocksSettings(
    extent_size_bytes_max=600,
    extent_copy_size_bytes_min=1,
    head_cache_size_bytes_max=1,
    group_size_bytes_max=1,
    extents=24,
    reserve_bytes_min=0,
)
"""Extents of two or three batches, nothing read from memory, a flush for each submit."""


@pytest.fixture(params=["roomy", "cramped"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RocksHarness]:
    """A storage that is open and recovered."""
    harness = RocksHarness(tmp_path, RocksSettings() if request.param == "roomy" else _CRAMPED)
    yield harness
    await harness.close()
