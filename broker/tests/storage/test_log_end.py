"""Where the log on a disk ends: what a start compares with the disk's watermark."""

from __future__ import annotations

from pathlib import Path

import pytest
from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.adapters.rocks import RocksSettings
from seriatim_broker.adapters.rocks.storage import log_end
from seriatim_broker.core.values.log import PutSegment

from .build import SegmentBuilder, segment_record
from .harness import RocksHarness

SETTINGS = RocksSettings(extents=2, reserve_bytes_min=0)


def end_of(directory: Path, enough: int) -> int:
    return log_end(directory, SETTINGS, crc32c, enough)


@pytest.mark.asyncio
async def test_a_copy_of_a_running_storage_ends_where_it_was_durable(tmp_path: Path) -> None:
    harness = RocksHarness(tmp_path, SETTINGS)
    builder = SegmentBuilder(1)
    await harness.durable(harness.storage.submit([PutSegment(builder.partition, segment_record()), builder.put()]))
    copied_at = harness.storage.durable_sequence
    copy = harness.copy()
    await harness.durable(harness.storage.submit([builder.put()]))
    end = harness.storage.durable_sequence
    assert end > copied_at > 0
    assert end_of(copy, enough=end) == copied_at
    await harness.close()
    assert end_of(harness.directory, enough=end) >= end


@pytest.mark.asyncio
async def test_a_watermark_that_a_power_cut_left_behind_decides_nothing(tmp_path: Path) -> None:
    harness = RocksHarness(tmp_path, SETTINGS)
    builder = SegmentBuilder(1)
    note = (harness.directory / "watermark").read_bytes()
    await harness.durable(harness.storage.submit([PutSegment(builder.partition, segment_record()), builder.put()]))
    end = harness.storage.durable_sequence
    copy = harness.copy()
    (copy / "watermark").write_bytes(note)
    assert end_of(copy, enough=end) == end, "the database is asked"
    assert end_of(copy, enough=0) < end, "the watermark is enough"
    await harness.close()


def test_an_empty_directory_ends_at_zero_and_stays_empty(tmp_path: Path) -> None:
    assert end_of(tmp_path, enough=9) == 0
    assert not list(tmp_path.iterdir())
