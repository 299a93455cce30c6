"""The event loop of benchmarks whose handlers sleep, and their garbage collections."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from pathlib import Path

import pytest

from e2e.bench.figures import Figure
from e2e.bench.program import Progress, exact_loop, run, settle_objects


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


def test_collections_pass_over_what_was_there_and_find_garbage_of_an_earlier_row() -> None:
    class Loop:
        def __init__(self) -> None:
            self.me = self

    threshold = gc.get_threshold()
    try:
        kept = Loop()
        settle_objects()
        assert gc.get_freeze_count() > 0
        assert not any(found is kept for found in gc.get_objects())
        gone = weakref.ref(kept)
        del kept
        gc.collect()
        assert gone() is not None, "it is not looked at"
        settle_objects()
        assert gone() is None
        assert gc.get_threshold() == (50_000, 20, 20)
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
