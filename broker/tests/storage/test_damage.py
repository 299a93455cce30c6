"""A damaged disk is a typed error at the start or at the read, never silence."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from seriatim_api.errors import CorruptionError
from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.adapters.rocks import RocksSettings, RocksStorage
from seriatim_broker.adapters.rocks.watermark import Watermark
from seriatim_broker.core.values.log import Batch, PutSegment, Rewrite

from .build import SegmentBuilder, segment_record
from .contract import put, read_all
from .harness import MIB, RocksHarness

_SETTINGS = RocksSettings(extents=2, head_cache_size_bytes_max=1)
_BODY_BYTES = 40_000
_BATCHES = 50


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[RocksHarness]:
    """A storage with one segment of fifty batches, each flushed."""
    harness = RocksHarness(tmp_path, _SETTINGS)
    yield harness
    await harness.close()


async def _fill(harness: RocksHarness) -> SegmentBuilder:
    builder = SegmentBuilder(1)
    await put(harness, [PutSegment(builder.partition, segment_record())])
    for _ in range(_BATCHES):
        await put(harness, [builder.put(_BODY_BYTES, commit=builder.index)])
    return builder


def _flip(file: Path, at: int) -> None:
    with file.open("r+b") as handle:
        handle.seek(at)
        byte = handle.read(1)[0]
        handle.seek(at)
        handle.write(bytes([byte ^ 1]))


def _start(directory: Path) -> RocksStorage:
    storage = RocksStorage.open(directory, _SETTINGS, crc32c)
    list(storage.recover())
    return storage


def _log_of(directory: Path) -> Path:
    return max((directory / "log").glob("*.log"), key=lambda file: file.stat().st_size)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.999])
async def test_a_flipped_bit_in_the_log_refuses_the_start(harness: RocksHarness, part: float) -> None:
    await _fill(harness)
    copy = harness.copy()
    log = _log_of(copy)
    _flip(log, int(log.stat().st_size * part))
    with pytest.raises(CorruptionError, match="Remedy: give the slot a new, empty disk"):
        _start(copy)


async def test_a_log_cut_below_what_was_durable_refuses_the_start(harness: RocksHarness) -> None:
    builder = await _fill(harness)
    await put(harness, [builder.put(10)])  # a flush is noted after it is reported, and before the next one begins
    copy = harness.copy()
    log = _log_of(copy)
    os.truncate(log, log.stat().st_size - _BODY_BYTES)
    with pytest.raises(CorruptionError, match="durable"):
        _start(copy)


async def test_a_record_cut_off_above_what_was_durable_is_dropped(harness: RocksHarness) -> None:
    builder = await _fill(harness)
    mark = (harness.directory / "watermark").read_bytes()
    await put(harness, [builder.put(_BODY_BYTES)])
    copy = harness.copy()
    (copy / "watermark").write_bytes(mark)  # as if the process had ended inside the last flush
    log = _log_of(copy)
    os.truncate(log, log.stat().st_size - 1000)
    storage = RocksStorage.open(copy, _SETTINGS, crc32c)
    (found,) = storage.recover()
    assert found.segments[0].tail == _BATCHES
    await storage.close()


async def test_a_flipped_bit_in_a_table_is_an_error_for_the_reader(harness: RocksHarness) -> None:
    builder = await _fill(harness)
    await harness.storage.close()
    table = max((harness.directory / "log").glob("*.sst"), key=lambda file: file.stat().st_size)
    _flip(table, table.stat().st_size // 2)
    harness.storage = _start(harness.directory)
    with pytest.raises(CorruptionError):
        await read_all(harness, builder)


async def test_a_flipped_bit_in_any_table_is_an_error_somewhere(harness: RocksHarness) -> None:
    builder = await _fill(harness)
    await harness.storage.close()
    tables = sorted(file.name for file in (harness.directory / "log").glob("*.sst"))
    assert len(tables) >= 3, "of the batches, of meta and of the index"
    whole = harness.directory
    for table in tables:
        copy = whole.with_name(table)
        shutil.copytree(whole, copy)
        _flip(copy / "log" / table, 40)
        with pytest.raises(CorruptionError):
            await _start_and_read(harness, copy, builder)


async def _start_and_read(harness: RocksHarness, directory: Path, builder: SegmentBuilder) -> None:
    harness.storage = _start(directory)
    try:
        await read_all(harness, builder)
    finally:
        await harness.storage.close()


async def test_a_body_that_is_not_its_own_is_an_error_for_the_reader(harness: RocksHarness) -> None:
    builder = SegmentBuilder(1)
    write = builder.put()
    wrong = write.batch.body[:-1] + bytes([write.batch.body[-1] ^ 1])
    spoiled = write.__class__(write.partition, Batch(write.batch.header, wrong), 0, write.windows)
    await put(harness, [PutSegment(builder.partition, segment_record()), spoiled])
    with pytest.raises(CorruptionError, match="body"):
        await harness.storage.read(builder.partition, 1, 0, 1, MIB)


async def test_a_broken_chain_is_an_error_for_the_reader(harness: RocksHarness) -> None:
    builder = SegmentBuilder(1)
    first = builder.put()
    builder.checksum ^= 1
    await put(harness, [PutSegment(builder.partition, segment_record()), first, builder.put()])
    assert len(await harness.storage.read(builder.partition, 1, 0, 1, MIB)) == 1
    with pytest.raises(CorruptionError, match="chain"):
        await harness.storage.read(builder.partition, 1, 0, 2, MIB)


async def test_a_missing_table_refuses_the_start_or_the_read(harness: RocksHarness) -> None:
    builder = await _fill(harness)
    await harness.storage.close()
    max((harness.directory / "log").glob("*.sst"), key=lambda file: file.stat().st_size).unlink()
    with pytest.raises(CorruptionError):
        harness.storage = _start(harness.directory)
    assert builder.batches


async def test_a_damaged_watermark_refuses_the_start(harness: RocksHarness) -> None:
    await harness.storage.close()
    _flip(harness.directory / "watermark", 9)
    with pytest.raises(CorruptionError):
        _start(harness.directory)


@pytest.mark.parametrize("per_piece", [1, 7, _BATCHES])
async def test_what_is_damaged_can_be_written_again_and_is_whole_then(harness: RocksHarness, per_piece: int) -> None:
    builder = await _fill(harness)
    await harness.storage.close()
    table = max((harness.directory / "log").glob("*.sst"), key=lambda file: file.stat().st_size)
    _flip(table, table.stat().st_size // 2)
    harness.storage = _start(harness.directory)
    for at in range(0, _BATCHES, per_piece):
        await put(harness, [Rewrite(builder.partition, builder.segment, tuple(builder.batches[at : at + per_piece]))])
    assert await read_all(harness, builder) == builder.batches
    await harness.storage.settle()
    await harness.reopen(crash=False)
    assert await read_all(harness, builder) == builder.batches
    assert not table.exists(), "the damaged file is gone with its extent"


# ---- the watermark is missing or empty ------------------------------------------------------------------


@pytest.mark.parametrize("what", ["missing", "empty"])
async def test_a_watermark_that_is_gone_from_a_directory_with_data_refuses_the_start(
    harness: RocksHarness, what: str
) -> None:
    await _fill(harness)
    await harness.storage.close()
    mark = harness.directory / "watermark"
    if what == "missing":
        mark.unlink()
    else:
        mark.write_bytes(b"")
    with pytest.raises(CorruptionError, match="missing or empty"):
        _start(harness.directory)


def test_a_start_that_was_killed_before_its_first_note_refuses_nothing(tmp_path: Path) -> None:
    (tmp_path / "watermark").touch()  # what a version left that made the file first and wrote the note then
    Watermark(tmp_path, crc32c).check(0)


def test_a_storage_that_an_earlier_start_made_is_not_made_anew(tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match="missing or empty"):
        Watermark(tmp_path, crc32c, is_expected=True).check(0)


def test_the_watermark_is_never_seen_without_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(self: Watermark, sequence: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Watermark, "note", killed)
    with pytest.raises(KeyboardInterrupt):
        Watermark(tmp_path, crc32c).open(0)
    assert not (tmp_path / "watermark").exists()
