"""The event loop of benchmarks whose handlers sleep, and their garbage collections."""

from __future__ import annotations

import asyncio
import gc
import selectors
import weakref
from pathlib import Path
from typing import Any

import pytest

from e2e.bench.measures.figures import Figure
from e2e.bench.program import Progress, exact_loop, run, settle_objects


def test_a_benchmark_may_sleep_for_less_than_a_millisecond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    waits_s: list[float | None] = []
    real = selectors.SelectSelector.select

    def select(selector: selectors.SelectSelector, timeout: float | None = None) -> Any:
        waits_s.append(timeout)
        return real(selector, timeout)

    monkeypatch.setattr(selectors.SelectSelector, "select", select)

    async def measure(_directory: Path, _progress: Progress) -> list[Figure]:
        waits_s.clear()
        await asyncio.sleep(0.0002)
        return [Figure("sleep", "a sleep", 0.2, "ms")]

    assert run("exact", measure, "a title", loop_factory=exact_loop) == 0
    assert any(wait is not None and 0 < wait < 0.001 for wait in waits_s), "no wait is rounded up to a millisecond"
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
