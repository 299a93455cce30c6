"""The work queue: what becomes of its workers when a pass fails."""

from __future__ import annotations

import asyncio

import pytest
from seriatim_operator.reconcile import queue as module
from seriatim_operator.reconcile.queue import WORKERS, WorkQueue


async def test_a_worker_outlives_a_pass_that_awaited_something_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)
    passes = 0
    is_over = asyncio.Event()

    async def work(_key: object) -> float | None:
        nonlocal passes
        passes += 1
        if passes > 2 * WORKERS:
            is_over.set()
            return None
        given_up = asyncio.get_running_loop().create_future()
        given_up.cancel()
        await given_up
        raise AssertionError("not reached")

    monkeypatch.setattr(module, "LAST_PAUSE_S", 0.001)
    queue = WorkQueue(work)
    failed: list[BaseException | None] = []
    queue.on_pass(lambda _key, _took_s, error: failed.append(error))
    queue.add("orders")
    running = asyncio.create_task(queue.run())
    async with asyncio.timeout(5):
        await is_over.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [type(error) for error in failed[: 2 * WORKERS]] == [asyncio.CancelledError] * 2 * WORKERS
