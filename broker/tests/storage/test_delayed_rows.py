"""Rows of delayed batches in the database itself: their size, their end, and a directory of a time without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rocksdict import Options, Rdict
from seriatim_api.batch import FLAG_FIRED
from seriatim_broker.adapters.rocks import RocksSettings, delayed
from seriatim_broker.adapters.rocks.floor import DELAY
from seriatim_broker.core.values.log import DropSegment, DueRow, PutSegment, TrimLog, Truncate

from .build import SegmentBuilder, segment_record
from .contract import put
from .harness import RocksHarness

SETTINGS = RocksSettings(extents=2)


def _rows(harness: RocksHarness) -> dict[bytes, bytes]:
    with harness.storage._engine.cursor(DELAY) as cursor:
        return dict(cursor.forward(b""))


async def test_rows_of_dropped_batches_are_deleted_in_slices(tmp_path: Path) -> None:
    harness, builder = RocksHarness(tmp_path, SETTINGS), SegmentBuilder(1)
    at, count = builder.partition, 2 * delayed.SWEPT_COUNT_MAX + 10
    await put(harness, [PutSegment(at, segment_record())])
    await put(harness, [builder.put(1, due_ms=1 + number % 7) for number in range(count)])
    rows = _rows(harness)
    assert len(rows) == 2 * count
    assert sum(len(key) + len(value) for key, value in rows.items()) == 58 * count
    begin = builder.trim(count - 4)
    await put(harness, [PutSegment(at, replace(segment_record(), begin=begin)), TrimLog(at, 1, *begin[::2])])
    await harness.storage.settle()
    left = [DueRow(batch.header.due_time_ms, batch.header.base_index, 1, 193) for batch in builder.batches]
    assert await harness.storage.read_due(at, 1, (0, 0), 9, count) == sorted(left)
    rows = _rows(harness)
    assert len(rows) == 2 * len(left)
    await put(harness, [builder.put(1, flags=FLAG_FIRED, origin=9)])
    (volley,) = _rows(harness).items() - rows.items()
    assert len(volley[0]) + len(volley[1]) == 50
    await put(harness, [builder.put(1)])
    begin = builder.trim(len(builder.batches) - 1)
    await put(harness, [PutSegment(at, replace(segment_record(), begin=begin)), TrimLog(at, 1, *begin[::2])])
    await harness.storage.settle()
    assert _rows(harness) == {}
    await put(harness, [builder.put(1, due_ms=6)])
    await put(harness, [Truncate(at, 1, 0, None)])
    assert _rows(harness) == {}, "a copy that starts over leaves no row, although its log may be cut often"
    await harness.close()


async def test_a_segment_without_delayed_batches_writes_no_rows(tmp_path: Path) -> None:
    harness, builder = RocksHarness(tmp_path, SETTINGS), SegmentBuilder(1)
    ops = harness.storage._engine.write
    written: list[object] = []
    harness.storage._engine.write = lambda group: (written.extend(group := list(group)), ops(group))[1]  # type: ignore[method-assign]
    await put(harness, [PutSegment(builder.partition, segment_record()), *(builder.put() for _ in range(4))])
    begin = builder.trim(2)
    record = PutSegment(builder.partition, replace(segment_record(), begin=begin))
    await put(harness, [record, TrimLog(builder.partition, 1, *begin[::2]), DropSegment(builder.partition, 1)])
    family = harness.storage._engine.family(DELAY)
    assert written
    assert not [op for op in written if op[1] is family]  # type: ignore[index]
    await harness.close()


async def test_a_directory_of_a_time_without_delayed_batches_opens(tmp_path: Path) -> None:
    harness, builder = RocksHarness(tmp_path, SETTINGS), SegmentBuilder(1)
    await put(harness, [PutSegment(builder.partition, segment_record()), builder.put()])
    await harness.close()
    path = str(harness.directory / "log")
    raw = Options(raw_mode=True)
    database = Rdict(path, raw, {name: raw for name in Rdict.list_cf(path, raw) if name != "default"})
    database.drop_column_family(DELAY)
    database.close()
    assert DELAY not in Rdict.list_cf(path, raw)
    harness._open()
    assert await harness.storage.read_due(builder.partition, 1, (0, 0), 9, 9) == []
    await put(harness, [builder.put(due_ms=5)])
    await harness.reopen(crash=True)
    assert await harness.storage.read_due(builder.partition, 1, (0, 0), 9, 9) == [DueRow(5, 1, 1, 292)]
    await harness.close()
