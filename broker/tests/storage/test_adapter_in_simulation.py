"""The contract's cases over the adapter as the simulation runs it: its own code, over a database in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest
from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.core.values.log import PutSegment, RecoveredPartition
from seriatim_broker.testing.adapter_storage import AdapterDisk, AdapterStorage
from seriatim_broker.testing.virtual_time import LoopTimers

from .build import SegmentBuilder, segment_record
from .contract import CASES, put, read_all
from .in_memory import DEADLINE_S, InMemoryHarness

globals().update(CASES)


class AdapterHarness(InMemoryHarness):
    """Over the database in memory; what a start finds is compared with what was durable."""

    disk: AdapterDisk

    def __init__(self) -> None:
        self.has_died = asyncio.Event()
        super().__init__(AdapterDisk(Random(1)))

    def make(self) -> AdapterStorage:
        """A storage over the disk."""
        return AdapterStorage(self.disk, LoopTimers(), crc32c, lambda: 0, lambda: 100, self.has_died.set)

    def open(self) -> None:
        """Open a storage, and take up what is on the disk."""
        super().open()
        found, kept = self.recovered.values(), list(self.disk.recover())
        assert _with_segments(found) == _with_segments(kept)
        assert all(at >= until for at, until in zip(_until(found), _until(kept), strict=True))


def _until(partitions: Iterable[RecoveredPartition]) -> list[int]:
    """Until when segments are delayed. The adapter may count rows of what was cut off."""
    return [segment.delayed_until_ms for found in partitions for segment in found.segments]


def _with_segments(partitions: Iterable[RecoveredPartition]) -> list[RecoveredPartition]:
    """Partitions that have segments, without what the adapter may say too high after a cut."""
    return [
        replace(found, segments=tuple(replace(segment, size_bytes=0, delayed_until_ms=0) for segment in found.segments))
        for found in partitions
        if found.segments
    ]


@pytest.fixture
async def harness() -> AdapterHarness:
    """A storage that is open and recovered."""
    return AdapterHarness()


async def test_a_failed_flush_ends_the_process_and_reports_nothing(harness: AdapterHarness) -> None:
    builder = SegmentBuilder(1, 1)
    await put(harness, [PutSegment(builder.partition, segment_record())])
    harness.disk.database.fails_next_flush = True
    harness.storage.submit([builder.put()])
    async with asyncio.timeout(DEADLINE_S):
        await harness.has_died.wait()
    assert harness.reported == 1
    await harness.reopen(crash=True)
    assert await read_all(harness, builder) == []


async def test_what_was_written_and_not_flushed_may_be_there_after_a_crash(harness: AdapterHarness) -> None:
    builder = SegmentBuilder(1, 1)
    await put(harness, [PutSegment(builder.partition, segment_record())])
    harness.storage.submit([builder.put()])
    await asyncio.sleep(0)  # the turn in which it is written; the flush comes later
    assert harness.disk.database.pending_count == 1
    harness.storage.end()
    harness.disk.crash(1)
    harness.open()
    assert await read_all(harness, builder) == builder.batches


@pytest.mark.parametrize(("kept_count", "kept"), [(0, 0), (1, 1), (2, 2), (3, 3), (9, 3)])
async def test_a_crash_keeps_any_first_part_of_what_was_to_be_flushed_later(
    harness: AdapterHarness, kept_count: int, kept: int
) -> None:
    builder = SegmentBuilder(1, 1)
    await put(harness, [PutSegment(builder.partition, segment_record())])
    for _ in range(3):
        harness.storage.submit([replace(builder.put(), may_wait=True)])
    assert harness.disk.database.pending_count == 3
    harness.storage.end()
    harness.disk.crash(kept_count)
    harness.open()
    assert await read_all(harness, builder) == builder.batches[:kept]
