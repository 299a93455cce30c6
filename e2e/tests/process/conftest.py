"""One cluster of three groups of two for all tests of this folder, because its start takes longer than any test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog
from seriatim_local import LocalCluster


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Six brokers behind the proxy, and the coordinator."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    directory = tmp_path_factory.mktemp("cluster")
    async with LocalCluster(directory, groups=3, members=2, name="e2e") as cluster:
        yield cluster
    structlog.reset_defaults()


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(running: LocalCluster) -> AsyncIterator[LocalCluster]:
    """Check that the cluster is complete before and after each test. So a test that leaves it broken fails itself."""
    await running.wait_ready()
    yield running
    await running.heal()
    await running.thaw("brokers")
    await running.start_again("brokers")
    await running.wait_ready()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this directory for `make test-faults`, because they break a whole cluster."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.faults)
