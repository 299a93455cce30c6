"""The places that RocksDB's storage keeps for sequential readers: their limits, what they pin, what makes them void."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from seriatim_api.errors import CorruptionError
from seriatim_broker.adapters.rocks import RocksSettings
from seriatim_broker.adapters.rocks.scan import Scan
from seriatim_broker.core.values.log import Batch, DropPartition, PutSegment, Rewrite, TrimLog, Truncate
from seriatim_broker.core.values.producers import ProducerTable

from .build import SegmentBuilder, segment_record
from .contract import SequentialReader, put
from .harness import DEADLINE_S, MIB, RocksHarness

_BODY_BYTES = 50_000
_READ_BYTES = 4 * (_BODY_BYTES + 192)

_SETTINGS = RocksSettings(
    extents=16,
    extent_size_bytes_max=4 * MIB,
    extent_copy_size_bytes_min=MIB,
    head_cache_size_bytes_max=1,
    reserve_bytes_min=0,
    read_ahead_bytes=_READ_BYTES,
)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[RocksHarness]:
    """A storage that reads everything from the disk."""
    harness = RocksHarness(tmp_path, _SETTINGS)
    yield harness
    await harness.close()


async def _fill(harness: RocksHarness, partition: int = 1, count: int = 100) -> SegmentBuilder:
    builder = SegmentBuilder(partition, seed=partition)
    await put(harness, [PutSegment(builder.partition, segment_record())])
    await put(harness, [builder.put(_BODY_BYTES) for _ in range(count)])
    return builder


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110 - threads do not tell the loop that they are done
            await asyncio.sleep(0.01)


def _without_threads(harness: RocksHarness) -> None:
    """All reads are done at once, so that what is read ahead is there before its future's callbacks are called."""

    def work(function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        done = asyncio.get_running_loop().create_future()
        try:
            done.set_result(function(*arguments))
        except CorruptionError as error:
            done.set_exception(error)
        return done

    harness.storage.reader._work = work  # type: ignore[method-assign]
    harness.storage.reader._scans._work = work


async def test_the_iterator_is_opened_once_and_the_next_piece_is_read_ahead(
    harness: RocksHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = await _fill(harness, count=60)
    opened = []
    real_open = Scan._open

    def count_open(self: Scan, extent: int, index: int) -> Any:
        opened.append(extent)
        return real_open(self, extent, index)

    monkeypatch.setattr(Scan, "_open", count_open)
    reader = SequentialReader(harness, builder)
    found = [*await reader.read(_READ_BYTES), *await reader.read(_READ_BYTES)]
    await _until(lambda: harness.storage.reader._scans.is_ready(1, 1, reader.index))
    assert harness.storage.read_at_once(builder.partition, 1, reader.index, 1 << 40, 1) == [builder.batches[8]]
    assert found == builder.batches[:8]
    reader.index += 1
    found += [builder.batches[8], *await reader.read_to_end(_READ_BYTES)]
    assert found == builder.batches
    log = harness.storage._table.log(1, 1)
    assert log is not None
    assert opened == [run.extent for run in log.runs], "once for each extent"


async def test_what_was_read_ahead_is_not_passed_over_when_the_reader_is_quicker_than_the_loop(
    harness: RocksHarness,
) -> None:
    builder = await _fill(harness)
    _without_threads(harness)
    storage, index = harness.storage, 0
    found: list[Batch] = []
    while index < builder.index:
        found += await storage.read(builder.partition, 1, index, builder.index, _READ_BYTES, sequential=True)
        index = found[-1].header.end_index
    assert found == builder.batches


@pytest.mark.parametrize("change", ["cut", "drop", "rewrite"])
async def test_what_was_read_ahead_is_void_when_the_log_changes(harness: RocksHarness, change: str) -> None:
    builder = await _fill(harness)
    reader = SequentialReader(harness, builder)
    found = [*await reader.read(_READ_BYTES), *await reader.read(_READ_BYTES)]
    await _until(lambda: harness.storage.reader._scans.is_ready(1, 1, reader.index))
    if change == "cut":
        builder.rewind(reader.index)
        builder.table = ProducerTable()
        await put(harness, [Truncate(builder.partition, 1, reader.index, ()), *(builder.put(70) for _ in range(9))])
    elif change == "drop":
        await put(harness, [DropPartition(builder.partition)])
        builder.batches = found
    else:
        await put(harness, [Rewrite(builder.partition, 1, tuple(builder.batches))])
    assert found + await reader.read_to_end(_READ_BYTES) == builder.batches


async def test_damage_in_what_was_read_ahead_is_an_error_for_its_reader_only(harness: RocksHarness) -> None:
    builder = await _fill(harness, count=7)
    write = builder.put(_BODY_BYTES)
    spoiled = Batch(write.batch.header, bytes([write.batch.body[0] ^ 1]) + write.batch.body[1:])
    await put(harness, [replace(write, batch=spoiled), *(builder.put(_BODY_BYTES) for _ in range(8))])
    reader = SequentialReader(harness, builder)
    assert await reader.read(2 * _BODY_BYTES + 1000) == builder.batches[:2]
    assert await reader.read(2 * _BODY_BYTES + 1000) == builder.batches[2:4]  # and reads the damage ahead
    assert await reader.read(_READ_BYTES) == builder.batches[4:7]
    for _ in range(2):
        with pytest.raises(CorruptionError, match="body"):
            await reader.read(_READ_BYTES)
    assert await harness.storage.read(builder.partition, 1, 8, 16, MIB) == builder.batches[8:]


async def test_a_place_that_is_not_taken_up_goes(tmp_path: Path) -> None:
    harness = RocksHarness(tmp_path, replace(_SETTINGS, scan_idle_ms_max=20))
    builder = await _fill(harness)
    reader = SequentialReader(harness, builder)
    found = [*await reader.read(), *await reader.read()]
    await _until(lambda: harness.storage.reader.scan_count == 0)
    assert harness.storage.reader.bytes_ahead == 0
    assert found + await reader.read_to_end() == builder.batches
    await harness.close()


async def test_an_old_iterator_is_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RocksHarness(tmp_path, replace(_SETTINGS, scan_age_ms_max=0))
    let_go = []
    real = Scan.let_go
    monkeypatch.setattr(Scan, "let_go", lambda self: (let_go.append(self), real(self)))
    builder = await _fill(harness)
    assert await SequentialReader(harness, builder).read_to_end(_READ_BYTES) == builder.batches
    assert let_go
    await harness.close()


async def test_places_and_bytes_are_bounded_for_all_readers_together(tmp_path: Path) -> None:
    harness = RocksHarness(tmp_path, replace(_SETTINGS, scans_max=8, read_ahead_bytes_max=3 * _READ_BYTES))
    builders = [await _fill(harness, number, 30) for number in range(1, 21)]
    readers = [SequentialReader(harness, builder) for builder in builders]
    found: list[list[Batch]] = [[] for _ in readers]
    scans = harness.storage.reader._scans
    most = 0
    for _ in range(30):
        for number, reader in enumerate(readers):
            found[number] += await reader.read(_READ_BYTES)
            assert scans.count <= 8
            assert scans.bytes_ahead <= 3 * _READ_BYTES
            most = max(most, scans.bytes_ahead)
    assert [some == builder.batches for some, builder in zip(found, builders, strict=True)] == [True] * 20
    assert most > _READ_BYTES, "some were read ahead for"
    await harness.close()


async def test_nothing_is_kept_of_an_extent_that_is_emptied(harness: RocksHarness) -> None:
    kept, gone = await _fill(harness, 1), await _fill(harness, 2)
    readers = [SequentialReader(harness, builder) for builder in (kept, gone)]
    found = [[*await reader.read(_READ_BYTES), *await reader.read(_READ_BYTES)] for reader in readers]
    assert harness.storage.reader.scan_count == 2
    await put(harness, [DropPartition(gone.partition)])
    await harness.storage.settle()
    assert harness.storage.reader.scan_count == 0
    assert await readers[1].read() == []
    assert found[0] + await readers[0].read_to_end(_READ_BYTES) == kept.batches


async def test_a_reader_that_stands_below_what_retention_dropped_gets_nothing_and_no_error(
    harness: RocksHarness,
) -> None:
    builder = await _fill(harness)
    below, above = SequentialReader(harness, builder), SequentialReader(harness, builder)
    for reader in (below, above):
        assert len([*await reader.read(_READ_BYTES), *await reader.read(_READ_BYTES)]) == 8
    found = [*await above.read(_READ_BYTES), *await above.read(_READ_BYTES)]
    await _until(lambda: harness.storage.reader._scans.is_ready(1, 1, above.index))
    size_bytes = sum(batch.size_bytes for batch in builder.batches[:10])
    await put(harness, [TrimLog(builder.partition, 1, builder.batches[10].header.base_index, size_bytes)])
    await harness.storage.settle()
    assert await below.read() == []
    assert found + await above.read_to_end(_READ_BYTES) == builder.batches[8:]
