"""The power cut can fail: a topic that does not flush before it acknowledges loses messages, and the suite sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import structlog

from e2e.faults.case import run_case
from e2e.faults.kinds.disks import PowerCut
from e2e.faults.report import CaseResult
from e2e.faults.schedule import Planned, case
from e2e.faults.systems import clusters
from e2e.faults.systems.clusters import Running
from e2e.faults.systems.shims import find_compiler
from e2e.faults.traffic import load
from e2e.faults.traffic.load import Clients

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_compiler() is None, reason="no C compiler: the shims cannot be built"),
]


@pytest_asyncio.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    started = await clusters.start(tmp_path / "cluster", "embedded")
    yield started
    await started.stop(keep=True)
    structlog.reset_defaults()


async def power_cut(running: Running, clients: Clients, directory: Path, number: int, *, flush: bool) -> CaseResult:
    directory.mkdir()  # noqa: ASYNC240 - a moment
    planned = case(1, Planned("power cut of both", ("late",)), 0, number)
    made = replace(planned, workload=replace(planned.workload, flush=flush))
    return (await run_case(made, PowerCut(), running, clients, directory, seed=1, quick=True)).result


async def test_only_what_was_flushed_survives_a_power_cut(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Clients(tmp_path / "clients.log") as clients:
        flushed = await power_cut(running, clients, tmp_path / "flushed", 1, flush=True)
        assert flushed.problems == ()
        assert flushed.acknowledged > 300
        monkeypatch.setattr(load, "DRAIN_DEADLINE_S", 30.0)  # a consumer waits for what is lost until then
        careless = await power_cut(running, clients, tmp_path / "careless", 2, flush=False)
        # The judge counts the messages as lost. If a consumer still waits for them, it calls the consumer stuck.
        assert careless.lost > 0 or any("stuck" in problem for problem in careless.problems), careless
        assert not careless.ok
