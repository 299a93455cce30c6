"""The world of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from seriatim_operator.reconcile import topics
from seriatim_operator.status.reasons import (
    CLUSTER_TOPIC_EVENTS,
    CONSUMER_GROUP,
    CONSUMER_GROUP_EVENTS,
    TOPIC,
    TOPIC_EVENTS,
)

from .world import World


@pytest_asyncio.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Brokers, an API and the topic side of the operator."""
    async for world in _running(World(), monkeypatch):
        yield world


@pytest_asyncio.fixture
async def home(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """The same, where the operator lives in the namespace of the objects."""
    async for world in _running(World(home="default"), monkeypatch):
        yield world


async def _running(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(topics, "STREAM_PAUSE_S", 0)  # time passes when the world says so
    yield world
    await world.reconciler.close()
    assert set(world.api.calls) <= {"get", "apply_status", "merge"}
    # Whatever a test brought about, its words are of the closed lists.
    assert set(world.told()) <= TOPIC_EVENTS.keys() | CONSUMER_GROUP_EVENTS.keys() | CLUSTER_TOPIC_EVENTS.keys()
    for manifest in world.api.statuses:
        for condition in manifest["status"]["conditions"]:
            tables = [table[condition["type"]] for table in (TOPIC, CONSUMER_GROUP) if condition["type"] in table]
            assert any(condition["reason"] in table for table in tables), condition
