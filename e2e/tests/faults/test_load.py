"""A load counts what its producer's process reports."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.faults.schedule import Workload
from e2e.faults.traffic.load import GROUP, LATE_GROUP, Clients, Load


@pytest.fixture
async def load(tmp_path: Path) -> Load:
    maker: Any = None  # it makes no topic here
    return Load(Clients(tmp_path / "log"), maker, ("nowhere:1",), 1, Workload("test", partitions=2), tmp_path)


def told(load: Load, *acks: tuple[int, float, int]) -> None:
    """Let the producer report acknowledgements: (partition, time, segment)."""
    load._take("producer", {"k": "progress", "case": 1, "acks": acks, "clock_shift_ms": 0, "ok": 0, "failed": 0,
                            "unknown": 0})  # fmt: skip


async def test_a_hand_over_is_the_gap_between_segments(load: Load) -> None:
    told(load, (0, 1.0, 1), (1, 1.0, 1), (0, 3.0, 1), (0, 3.5, 2), (1, 4.0, 1))
    assert load.hand_over_s(0.0) == 0.5, "the pause of two seconds was in one segment"
    told(load, (1, 4.25, 2))
    assert load.hand_over_s(4.0) == 0.25
    assert load.hand_over_s(5.0) == 0.0


async def test_lateness_counts_from_the_heal(load: Load) -> None:
    for at, late_ms, group in ((10.0, 700, GROUP), (12.5, 501, GROUP), (13.0, 400, GROUP), (20.0, 900, LATE_GROUP)):
        line = {"k": "read", "case": 1, "group": group, "delivered": 1, "at": at, "late": [(1, late_ms)]}
        load._take("reader", line)
    assert load.late_s(0.0) == 0.7
    assert load.late_s(11.0, 1) == 0.501
    assert load.late_s(11.0, 0) == 0.0
    assert load.has_fired(12.0, 1)
    assert not load.has_fired(12.0, 0)
    assert not load.has_fired(14.0, 1), "another group"
    assert load.lateness_ended_s(11.0) == 1.5
    assert load.lateness_ended_s(12.5) == 0.0


async def test_a_gap_waits_for_what_the_producer_has_not_told_yet(load: Load) -> None:
    now = time.monotonic()
    told(load, (0, now - 3.0, 1), (1, now - 3.0, 1))
    asked = asyncio.create_task(load.gap_s(now - 3.5))
    await asyncio.sleep(0)
    told(load, (0, now - 2.0, 1), (1, now - 2.9, 1), (0, now + 60.0, 1))
    await asyncio.sleep(0)
    assert not asked.done(), "partition 1 has not been notified of since"
    told(load, (1, now - 1.9, 1), (0, now + 60.5, 1), (1, now + 60.0, 1))
    assert await asked == pytest.approx(62.0), "of partition 0, from two seconds before to a minute after"
