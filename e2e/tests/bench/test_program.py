"""The event loop of benchmarks whose handlers sleep."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from e2e.bench.figures import Figure
from e2e.bench.program import Progress, exact_loop, run


def test_a_benchmark_may_sleep_for_less_than_a_millisecond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    taken_s: list[float] = []

    async def measure(_directory: Path, _progress: Progress) -> list[Figure]:
        for _ in range(100):
            begin = time.monotonic()
            await asyncio.sleep(0.0002)
            taken_s.append(time.monotonic() - begin)
        return [Figure("sleep", "the shortest sleep", min(taken_s) * 1000, "ms")]

    assert run("exact", measure, "a title", loop_factory=exact_loop) == 0
    assert 0.0002 <= min(taken_s) < 0.001, "the usual event loop rounds up to a millisecond"
    assert (tmp_path / "exact.json").exists()
