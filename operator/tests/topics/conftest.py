"""The world of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from seriatim_operator.reconcile import topics

from .world import World


@pytest_asyncio.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Brokers, an API and the topic side of the operator."""
    monkeypatch.setattr(topics, "STREAM_PAUSE_S", 0)  # time passes when the world says so
    world = World()
    yield world
    await world.reconciler.close()
