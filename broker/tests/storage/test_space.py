"""Disk space comes back: extents are dropped as a whole, and copied forward where little of them is left."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from seriatim_api.ids import PartitionId
from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.adapters.rocks import RocksSettings, RocksStorage
from seriatim_broker.adapters.rocks import storage as storage_module
from seriatim_broker.adapters.rocks.extents import ExtentLog
from seriatim_broker.adapters.rocks.floor import Op, WriteRefusedError
from seriatim_broker.adapters.rocks.room import reserve_bytes
from seriatim_broker.adapters.rocks.scan import Stored, Stretch
from seriatim_broker.adapters.rocks.settings import EXTENTS_MAX, EXTENTS_MIN
from seriatim_broker.core.values.log import (
    Batch,
    DropPartition,
    DropSegment,
    PutSegment,
    Rewrite,
    TrimLog,
    Truncate,
    Write,
)
from seriatim_broker.core.values.producers import ProducerTable
from seriatim_broker.core.values.segment import Start

from .build import SegmentBuilder, segment_record
from .contract import put, read_all
from .harness import MIB, RocksHarness

_SETTINGS = RocksSettings(
    extents=16,
    extent_size_bytes_max=8 * MIB,
    extent_memtable_size_bytes=2 * MIB,
    extent_copy_size_bytes_min=MIB,
    head_cache_size_bytes_max=MIB,
    wal_size_bytes_max=4 * MIB,
    memtables_size_bytes_max=8 * MIB,
    reserve_bytes_min=0,
)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[RocksHarness]:
    """A storage with small extents."""
    harness = RocksHarness(tmp_path, _SETTINGS)
    yield harness
    await harness.close()


def _used_bytes(directory: Path) -> int:
    sizes = []
    for file in (directory / "log").glob("*.sst"):
        with suppress(FileNotFoundError):  # taken away since it was listed
            sizes.append(file.stat().st_size)
    return sum(sizes)


async def _fill(harness: RocksHarness, partitions: int, size_bytes: int, body_bytes: int) -> list[SegmentBuilder]:
    builders = [SegmentBuilder(number, seed=number) for number in range(1, partitions + 1)]
    await put(harness, [PutSegment(builder.partition, segment_record()) for builder in builders])
    left = size_bytes
    while left > 0:
        ticket = harness.storage.submit([builder.put(body_bytes) for builder in builders])
        left -= body_bytes * partitions
        if harness.storage.is_saturated or left <= 0:
            await harness.durable(ticket)
        await asyncio.sleep(0)
    return builders


async def test_what_is_trimmed_gives_its_space_back_while_the_log_grows(harness: RocksHarness) -> None:
    builder = SegmentBuilder(1)
    await put(harness, [PutSegment(builder.partition, segment_record())])
    kept, begin = 8 * MIB, Start(0, 0, 0)
    for _ in range(20):
        await put(harness, [builder.put(50_000) for _ in range(40)])
        below, size = [], begin.size_bytes
        for batch in builder.batches:
            if sum(one.size_bytes for one in builder.batches) - sum(one.size_bytes for one in below) > kept:
                below.append(batch)
        if below:
            size += sum(batch.size_bytes for batch in below)
            begin = Start(below[-1].header.end_index, below[-1].header.checksum, size)
            del builder.batches[: len(below)]
            record = replace(segment_record(), begin=begin)
            await put(
                harness, [PutSegment(builder.partition, record), TrimLog(builder.partition, 1, begin.first, size)]
            )
    await harness.storage.settle()
    assert begin.first > 500
    assert harness.storage.extent_count <= 9
    in_use = sum(extent.size_bytes for extent in harness.storage._table.extents.values())
    assert in_use <= 2 * kept
    assert await harness.storage.read(builder.partition, 1, begin.first, begin.first + 1, 1) == builder.batches[:1]


async def test_segments_that_are_dropped_whole_give_their_space_back_while_others_come(tmp_path: Path) -> None:
    """Two segments of 4 MiB are kept, where an extent could hold sixteen; no log is trimmed."""
    harness = RocksHarness(tmp_path, replace(_SETTINGS, extent_size_bytes_max=64 * MIB))
    kept: list[SegmentBuilder] = []
    most = 0
    for number in range(1, 17):
        builder = SegmentBuilder(number)
        kept.append(builder)
        await put(harness, [PutSegment(builder.partition, segment_record())])
        for _ in range(8):
            await put(harness, [builder.put(50_000) for _ in range(10)])
        if len(kept) > 2:
            await put(harness, [DropSegment(kept.pop(0).partition, 1)])
        await harness.storage.settle()
        if number > 6:
            most = max(most, sum(extent.size_bytes for extent in harness.storage._table.extents.values()))
    assert most <= 3 * 4 * MIB
    for builder in kept:
        assert await harness.storage.read(builder.partition, 1, 0, 1, 1) == builder.batches[:1]
    await harness.close()


async def test_extents_of_dropped_segments_go_at_once(harness: RocksHarness) -> None:
    builders = await _fill(harness, 4, 40 * MIB, 50_000)
    writes: list[Write] = [DropSegment(builder.partition, 1) for builder in builders]
    await put(harness, writes)
    await harness.storage.settle()
    assert harness.storage.extent_count <= 1
    await harness.reopen(crash=False)
    assert _used_bytes(harness.directory) < 8 * MIB
    assert harness.recovered == {}


@pytest.mark.parametrize("crash", [False, True])
async def test_the_little_that_stays_is_copied_forward(harness: RocksHarness, crash: bool) -> None:
    builders = await _fill(harness, 8, 60 * MIB, 50_000)
    before = harness.storage.extent_count
    await put(harness, [DropPartition(builder.partition) for builder in builders[2:]])
    await harness.storage.settle()
    assert harness.storage.extent_count < before / 2
    for builder in builders[:2]:
        assert await read_all(harness, builder) == builder.batches
    await harness.reopen(crash=crash)
    assert sorted(harness.recovered) == [1, 2]
    for builder in builders[:2]:
        assert await read_all(harness, builder) == builder.batches


async def test_segments_may_be_cut_and_dropped_while_they_are_copied(harness: RocksHarness) -> None:
    builders = await _fill(harness, 8, 60 * MIB, 50_000)
    await put(harness, [DropPartition(builder.partition) for builder in builders[3:]])
    kept, dropped, extended = builders[:3]
    for _ in range(30):
        await asyncio.sleep(0)
    harness.storage.submit([DropPartition(dropped.partition)])
    harness.storage.submit([extended.put(count=3)])
    await harness.storage.settle()
    assert await read_all(harness, dropped) == []
    await harness.reopen(crash=True)
    for builder in (kept, extended):
        assert await read_all(harness, builder) == builder.batches


def _after_the_next_read(
    harness: RocksHarness, monkeypatch: pytest.MonkeyPatch, partition: int, writes: Sequence[Write]
) -> None:
    """Submit writes between the moment when a partition was read from the disk and the use of what was read."""
    read_disk = harness.storage.reader.read_disk
    left = [writes]

    async def read_then_write(of: int, segment: int, stretches: Sequence[Stretch], max_bytes: int) -> list[Stored]:
        stored = await read_disk(of, segment, stretches, max_bytes)
        if of == partition and left:
            harness.storage.submit(left.pop())
        return stored

    monkeypatch.setattr(harness.storage.reader, "read_disk", read_then_write)


async def test_what_is_dropped_between_reading_and_copying_stays_dropped(
    harness: RocksHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders = await _fill(harness, 8, 24 * MIB, 50_000)
    _after_the_next_read(harness, monkeypatch, 2, [DropPartition(builders[1].partition)])
    await put(harness, [DropPartition(builder.partition) for builder in builders[2:]])
    await harness.storage.settle()
    assert await read_all(harness, builders[1]) == []
    await harness.reopen(crash=True)
    assert sorted(harness.recovered) == [1]
    assert await read_all(harness, builders[0]) == builders[0].batches


async def test_what_is_copied_can_be_read_before_the_copy_is_written(
    harness: RocksHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders = await _fill(harness, 8, 24 * MIB, 50_000)
    put_moved, write = harness.storage.put_moved, harness.storage._engine.write
    refusals = 0
    reads: list[asyncio.Task[list[Batch]]] = []

    def refuse_at_first(ops: Iterable[Op]) -> int:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise WriteRefusedError("for this test")
        return write(ops)

    def move_and_read(of: int, segment: int, log: ExtentLog, place: int, stored: Sequence[Stored]) -> None:
        nonlocal refusals
        put_moved(of, segment, log, place, stored)
        refusals = 5
        first = stored[0].batch.header.base_index
        reads.append(asyncio.create_task(harness.storage.read(PartitionId(of), segment, first, first + 3, MIB)))

    monkeypatch.setattr(harness.storage, "put_moved", move_and_read)
    monkeypatch.setattr(harness.storage._engine, "write", refuse_at_first)
    await put(harness, [DropPartition(builder.partition) for builder in builders[2:]])
    await harness.storage.settle()
    assert reads
    for found in await asyncio.gather(*reads):
        assert len(found) == 3


async def test_extents_are_used_again(tmp_path: Path) -> None:
    harness = RocksHarness(tmp_path, replace(_SETTINGS, extents=4, extent_size_bytes_max=2 * MIB))
    kept = SegmentBuilder(100)
    await put(harness, [PutSegment(kept.partition, segment_record())])
    begun = []
    for turn in range(8):
        builders = [SegmentBuilder(number, turn + 1, seed=number) for number in range(1, 5)]
        for _ in range(12):
            await put(harness, [builder.put(100_000) for builder in builders])
        await put(harness, [kept.put(count=turn + 1)])
        active = harness.storage._table.active
        assert active is not None
        begun.append(active.number)
        await harness.reopen(crash=bool(turn % 2))
        assert harness.storage._table.active is not None
        assert harness.storage._table.active.number == active.number, "what comes next goes to the extent begun last"
        await put(harness, [DropSegment(builder.partition, turn + 1) for builder in builders])
        await harness.storage.settle()
    assert max(begun) <= 4
    assert begun != sorted(begun), "none was used twice"
    assert harness.storage._engine.extents == [1, 2, 3, 4]
    assert await read_all(harness, kept) == kept.batches
    await harness.reopen(crash=True)
    assert await read_all(harness, kept) == kept.batches
    await harness.storage.settle()
    assert _used_bytes(harness.directory) < 10 * MIB
    await harness.close()


async def test_an_extent_goes_on_while_none_is_spare(tmp_path: Path) -> None:
    harness = RocksHarness(tmp_path, replace(_SETTINGS, extents=2))
    (kept,) = await _fill(harness, 1, 9 * MIB, 50_000)
    assert harness.storage.extent_count == 2
    other = SegmentBuilder(2)
    await put(harness, [PutSegment(other.partition, segment_record())])
    for _ in range(20):
        await put(harness, [other.put(MIB)])
    await put(harness, [DropPartition(other.partition)])  # now the last extent is sparse, but there is no other
    await harness.storage.settle()
    log = harness.storage._table.log(kept.partition, 1)
    assert log is not None
    in_the_last = [batch for batch in kept.batches if batch.header.base_index >= log.runs[-1].start]
    await put(harness, [Rewrite(kept.partition, 1, tuple(in_the_last[:5])), kept.put()])
    assert await read_all(harness, kept) == kept.batches
    for crash in (True, False):
        await harness.reopen(crash=crash)
        assert await read_all(harness, kept) == kept.batches
    await put(harness, [DropPartition(kept.partition)])
    await harness.storage.settle()
    assert _used_bytes(harness.directory) < 8 * MIB
    await harness.close()


async def test_the_extent_begun_last_is_known_when_the_clock_goes_back(
    harness: RocksHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1_000_000, 0, -1000))
    monkeypatch.setattr(storage_module, "_now_ms", lambda: next(clock))
    await harness.reopen(crash=False)
    builders = await _fill(harness, 1, 36 * MIB, 500_000)
    active = harness.storage._table.active
    assert active is not None
    assert active.number == 5
    await harness.reopen(crash=True)
    assert harness.storage._table.active is not None
    assert harness.storage._table.active.number == 5
    assert await read_all(harness, builders[0]) == builders[0].batches


@pytest.mark.parametrize("size_gib", [1, 20, 100, 1000, 16_000])
def test_there_are_extents_for_the_whole_disk(size_gib: int) -> None:
    size_bytes = size_gib << 30
    settings = RocksSettings().for_disk(size_bytes)
    assert settings.extents is not None
    assert EXTENTS_MIN <= settings.extents <= EXTENTS_MAX
    assert size_bytes < settings.extents * settings.extent_size_bytes_max < 1.3 * size_bytes
    assert RocksSettings(extents=3).for_disk(size_bytes) == RocksSettings(extents=3)
    assert RocksSettings().for_disk(0) == RocksSettings().for_disk(1 << 30)


async def test_what_is_cut_between_reading_and_returning_is_not_returned(
    harness: RocksHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    (builder,) = await _fill(harness, 1, 4 * MIB, 50_000)
    old = builder.batches[5:]
    builder.rewind(5)
    builder.table = ProducerTable()
    writes: list[Write] = [Truncate(builder.partition, 1, 5, ()), builder.put(count=7)]
    _after_the_next_read(harness, monkeypatch, 1, writes)
    found = await harness.storage.read(builder.partition, 1, 0, 12, 4 * MIB)
    assert found == builder.batches
    assert old[0] not in found


async def test_copying_goes_on_after_a_crash_in_the_middle(harness: RocksHarness) -> None:
    builders = await _fill(harness, 8, 60 * MIB, 50_000)
    await put(harness, [DropPartition(builder.partition) for builder in builders[2:]])
    await harness.reopen(crash=True)
    await put(harness, [DropPartition(builders[1].partition)])
    await harness.storage.settle()
    assert await read_all(harness, builders[0]) == builders[0].batches
    await harness.reopen(crash=True)
    assert await read_all(harness, builders[0]) == builders[0].batches


def test_the_reserve_is_kept(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path)
    wanted = RocksSettings(reserve_bytes_min=free.free * 2, reserve_percent_max=100)
    storage = RocksStorage.open(tmp_path, wanted, crc32c)
    assert storage.is_disk_full()
    asyncio.run(storage.close())
    small = RocksSettings(reserve_percent=0, reserve_bytes_min=1)
    storage = RocksStorage.open(tmp_path, small, crc32c)
    assert not storage.is_disk_full()
    asyncio.run(storage.close())


@pytest.mark.parametrize(
    ("disk_mib", "reserve_mib"), [(1 << 20, 52_428), (20_000, 2048), (5_000, 1000), (1024, 204), (100, 20)]
)
def test_the_reserve_fits_disks_of_every_size(disk_mib: int, reserve_mib: int) -> None:
    assert reserve_bytes(disk_mib * MIB, RocksSettings()) // MIB == reserve_mib


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_three_quarters_of_two_gigabytes_come_back(tmp_path: Path) -> None:
    harness = RocksHarness(tmp_path, RocksSettings(reserve_bytes_min=0))
    builders = await _fill_without_keeping(harness, 50, 2 * 1024 * MIB, 40_000)
    full = _disk_bytes(harness.directory)
    begin = time.monotonic()
    await put(harness, [DropPartition(builder.partition) for builder in builders if builder.partition % 4])
    async with asyncio.timeout(10):
        while _disk_bytes(harness.directory) > full * 0.35:  # noqa: ASYNC110 # files do not tell the loop that they go
            await asyncio.sleep(0.1)
    seconds = time.monotonic() - begin
    await harness.storage.settle()
    left = _disk_bytes(harness.directory)
    print(f"{full / MIB:.0f} MiB before, {left / MIB:.0f} MiB after; under 35 % in {seconds:.1f} s")  # noqa: T201 # shown with -s
    for builder in builders:
        if builder.partition % 4 == 0:
            found = await harness.storage.read(builder.partition, 1, builder.index - 10, builder.index, MIB)
            assert found[-1].header.end_index == builder.index
    await harness.close()


async def _fill_without_keeping(
    harness: RocksHarness, partitions: int, size_bytes: int, body_bytes: int
) -> list[SegmentBuilder]:
    builders = [SegmentBuilder(number, seed=number) for number in range(1, partitions + 1)]
    await put(harness, [PutSegment(builder.partition, segment_record()) for builder in builders])
    for turn in range(size_bytes // body_bytes):
        builder = builders[turn % partitions]
        ticket = harness.storage.submit([builder.put(body_bytes)])
        builder.batches.clear()
        if harness.storage.is_saturated:
            await harness.durable(ticket)
    await harness.durable(ticket)
    return builders


def _disk_bytes(directory: Path) -> int:
    total = 0
    for file in directory.rglob("*"):
        try:
            total += file.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total
