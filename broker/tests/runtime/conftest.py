"""A coordinator for tests: the embedded one, in this process, under the adapter that production uses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from seriatim_broker.adapters.etcd import EtcdConfig, EtcdCoordinator
from seriatim_broker.interfaces.coordinator import Coordinator
from seriatim_local.embedded import serve


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[Coordinator]:
    """An empty coordinator."""
    server = await serve(tmp_path / "coordinator", "127.0.0.1:0")
    client = EtcdCoordinator(EtcdConfig((server.address,)))
    yield client
    await client.close()
    await server.stop(0)
