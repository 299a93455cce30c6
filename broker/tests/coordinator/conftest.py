"""The implementations that the contract suite runs over."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from seriatim_broker.interfaces.coordinator import Coordinator

from .harness import ETCD_BINARY, EmbeddedHarness, EtcdHarness, EtcdProcess, Harness
from .memory_harness import MemoryHarness, SimulatedHarness

HARNESSES = ["embedded", "memory", "simulated", pytest.param("etcd", marks=pytest.mark.etcd)]


@pytest.fixture(scope="session")
def etcd_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """A real etcd. Without the binary the test is skipped, unless SERIATIM_REQUIRE_ETCD=1 forbids that."""
    if not ETCD_BINARY.exists():
        why = "no .tools/bin/etcd: `make tools` builds it (needs Go)"
        if os.environ.get("SERIATIM_REQUIRE_ETCD") == "1":
            pytest.fail(why)
        pytest.skip(why)
    etcd = EtcdProcess(tmp_path_factory.mktemp("etcd"))
    yield etcd
    etcd.stop()


@pytest.fixture(params=HARNESSES)
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    """A coordinator of each implementation."""
    made: EmbeddedHarness | EtcdHarness | MemoryHarness | SimulatedHarness
    if request.param == "memory":
        made = MemoryHarness()
    elif request.param == "simulated":
        made = SimulatedHarness()
    elif request.param == "etcd":
        made = EtcdHarness(request.getfixturevalue("etcd_process"))
    else:
        made = EmbeddedHarness(tmp_path / "coordinator")
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
def coordinator(harness: Harness) -> Coordinator:
    """A client of it."""
    return harness.client()


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix that no other test uses: implementations may be shared between tests."""
    return f"/{request.node.name}/"
