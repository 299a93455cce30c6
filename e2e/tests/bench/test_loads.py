"""The loads of the benchmark, with a producer that is not one and a clock that only moves when it is told to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from seriatim import AckLevel

from e2e.bench.load import measurement
from e2e.bench.load.setup import MESSAGE_SIZE_BYTES
from e2e.bench.measures import usage
from e2e.bench.workloads import OneAtATime, Paced, Workload

RATE = 10
TURN = asyncio.sleep
STALLED = 15
"""The message at which the producer waits a second. It is due half a second after the warm-up."""


class Stalling:
    """A client and a producer that acknowledges each message at once, but keeps one waiting."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent_at: list[float] = []
        self.levels: list[AckLevel] = []

    @asynccontextmanager
    async def producer(self, _topic: str, *, ack_level: AckLevel) -> AsyncIterator[Stalling]:
        self.levels.append(ack_level)
        yield self
        self.now += 1000.0  # to close is no part of what is measured

    async def send(self, value: bytes, *, partition: int = 0) -> asyncio.Future[None]:
        assert len(value) == MESSAGE_SIZE_BYTES
        assert partition == 0
        if len(self.sent_at) == STALLED:
            self.now += 1.0
        self.sent_at.append(self.now)
        await TURN(0)
        acknowledged = asyncio.get_running_loop().create_future()
        acknowledged.set_result(None)
        return acknowledged


async def test_a_pause_counts_for_each_message_that_was_due_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = Stalling()

    async def sleep(seconds: float) -> None:
        for _ in range(5):  # what was acknowledged is noted before the clock moves
            await TURN(0)
        client.now += seconds

    for module in (measurement, usage):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: client.now))
    monkeypatch.setattr(asyncio, "sleep", sleep)
    run = measurement._Run("topic", 1, client, {"client": [os.getpid()]})
    found = await run.paced(Paced(kind="paced", rate=RATE, seconds=2.0))
    latency = found.latencies["published"]
    assert latency.count == 2 * RATE, "the warm-up is not counted"
    assert latency.max_ms == pytest.approx(1000, rel=0.01)
    late = [latency.ms(100 - 5 * number) for number in range(RATE)]
    assert late == pytest.approx([1000 - 100 * number for number in range(RATE)], rel=0.01)
    assert found.values["published_p50_ms"] < 100
    assert found.messages == 2 * RATE + round(measurement.USAGE_FIRST_S * RATE)
    assert found.seconds == pytest.approx(2.0 + measurement.USAGE_FIRST_S, abs=0.2), "closing is not counted"
    assert found.problem == ""


@pytest.mark.parametrize(("flush", "level"), [(True, AckLevel.REPLICATED_FLUSHED), (False, AckLevel.REPLICATED)])
async def test_a_load_that_does_not_flush_does_not_wait_for_a_disk_either(
    monkeypatch: pytest.MonkeyPatch, flush: bool, level: AckLevel
) -> None:
    client: Any = Stalling()

    async def roles(*_: object) -> dict[str, list[int]]:
        return {"client": [os.getpid()]}

    monkeypatch.setattr(measurement, "_roles", roles)
    monkeypatch.setattr(measurement, "WARM_UP_S", 0.0)
    load = OneAtATime(kind="one_at_a_time", seconds=0.01)
    workload = Workload(name="one", text="one", load=load, flush=flush, measures={"p50_ms": None})
    cluster: Any = None
    await measurement.run_load(workload, "topic", client, cluster)
    assert client.levels == [level]
