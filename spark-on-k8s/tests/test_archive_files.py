"""Files of an archive: the same rows are the same files, whichever batches they come in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from seriatim import RangeTable
from seriatim._bodies.arrow import SCHEMA
from seriatim_api.ids import make_offset
from seriatim_spark.columns import BatchBuilder, Origin, Rows
from seriatim_spark.directories import archive_files
from seriatim_spark.directories.archive_files import ArchiveWriter, Checksums, files_of, footer_of
from seriatim_spark.directories.files import ASIDE, DirectoryError, file_system, remove_aside
from seriatim_spark.pipelines.audit import check_file
from seriatim_spark.pipelines.replay import read_pieces

DAY_MS = 86_400_000
MORNING_MS = 20_000 * DAY_MS + 1000


PAIRS = [("n", None), ("", b""), ("n", b"2")]


def range_of(
    partition: int, start: int, count: int, time_ms: int = MORNING_MS, passed: int = 0
) -> list[pa.RecordBatch]:
    """A range of a partition as the source gives it, in batches of ten rows; it begins with repeats passed over."""
    builder = BatchBuilder(archive_files.SOURCE_COLUMNS)
    origin = Origin("id-1", make_offset(1, start - passed), make_offset(1, start + count))
    batches = []
    for first in range(start, start + count, 10):
        rows = pa.table(
            {
                "key": pa.array([None if n % 3 else b"k%d" % (first + n) for n in range(10)], pa.binary()),
                "value": pa.array([b"v%d" % (first + n) if n != 5 else None for n in range(10)], pa.binary()),
                "timestamp": pa.array([time_ms] * 10, pa.int64()),
                "headers": pa.array([PAIRS if n % 2 else None for n in range(10)], SCHEMA.field("headers").type),
                "tag": pa.nulls(10, pa.utf8()),
            },
            schema=SCHEMA,
        )
        table = RangeTable("orders", partition, make_offset(1, first), rows, time_ms, bytes(16), 1, first)
        batches.append(builder.build([Rows(table, passed if first == start else 0)], origin))
    return batches


def write(directory: Path, batches: list[pa.RecordBatch], file_rows: int = 1_000_000) -> list[str]:
    writer = ArchiveWriter(str(directory), file_rows)
    for batch in batches:
        writer.take(batch)
    return [name for name, _ in writer.finish()]


def content(directory: Path) -> dict[str, Any]:
    return {
        path.removeprefix(f"{directory}/"): pq.read_table(path, partitioning=None).to_pylist()
        for path in files_of(str(directory))
    }


def damages(directory: Path) -> set[str]:
    files, root = file_system(str(directory))
    return {one.kind for path in files_of(str(directory)) for one in check_file(files, root, path)[1]}


def test_one_file_for_each_range_and_day_and_as_many_rows_as_wanted(tmp_path: Path) -> None:
    batches = [
        *range_of(0, 0, 40), *range_of(1, 20, 10), *range_of(1, 30, 30, MORNING_MS + DAY_MS)
    ]  # fmt: skip
    base = "topic=orders/incarnation=id-1"
    assert write(tmp_path, batches, 25) == [
        f"{base}/partition=0/date=2024-10-04/000001-000000000000--000001-000000000025.parquet",
        f"{base}/partition=0/date=2024-10-04/000001-000000000025--000001-000000000040.parquet",
        f"{base}/partition=1/date=2024-10-04/000001-000000000020--000001-000000000030.parquet",
        f"{base}/partition=1/date=2024-10-05/000001-000000000030--000001-000000000055.parquet",
        f"{base}/partition=1/date=2024-10-05/000001-000000000055--000001-000000000060.parquet",
    ]
    assert damages(tmp_path) == set()
    assert not list((tmp_path / ASIDE).iterdir())


def test_a_file_covers_also_the_repeats_that_its_range_begins_with(tmp_path: Path) -> None:
    (name,) = write(tmp_path, range_of(0, 30, 10, passed=5))
    assert name.endswith("/000001-000000000025--000001-000000000040.parquet")
    assert damages(tmp_path) == set()


def test_a_file_of_an_earlier_attempt_stays(tmp_path: Path) -> None:
    """Retention may have dropped messages since: what is there holds more."""
    batches = range_of(0, 0, 30)
    write(tmp_path, batches)
    before = content(tmp_path)
    writer = ArchiveWriter(str(tmp_path), 100)
    for batch in batches[1:]:
        writer.take(batch)
    ((_, footer),) = writer.finish()
    assert footer.rows == 30
    assert content(tmp_path) == before
    assert not list((tmp_path / ASIDE).iterdir())


@pytest.mark.parametrize("written", [1, 2, 3, 4])
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_what_was_dropped_since_an_earlier_attempt_does_not_cut_the_rest_otherwise(
    tmp_path: Path, written: int, missing: int
) -> None:
    """The first attempt ended somewhere; the second one does not find the first messages any more."""
    batches = [*range_of(0, 0, 20)[:2], *range_of(0, 0, 50, MORNING_MS + DAY_MS)[2:]]
    batches = [
        batch.set_column(batch.schema.get_field_index("range_end"), "range_end", batches[-1].column("range_end"))
        for batch in batches
    ]
    write(tmp_path / "whole", batches, 15)
    whole = content(tmp_path / "whole")
    assert len(whole) == 4
    again = tmp_path / "again"
    write(again, batches, 15)
    for path in files_of(str(again))[written:]:
        Path(path).unlink()
    kept = content(again)
    write(again, batches[missing:], 15)
    found = content(again)
    assert {name: found[name] for name in kept} == kept
    offsets = [row["offset"] for rows in found.values() for row in rows]
    held = {row["offset"] for rows in kept.values() for row in rows}
    there = {offset for batch in batches[missing:] for offset in batch.column("offset").to_pylist()}
    assert sorted(offsets) == sorted(held | there), "each once"


def test_a_day_that_ends_in_a_range_ends_its_file(tmp_path: Path) -> None:
    early, late = range_of(0, 0, 20), range_of(0, 0, 20, MORNING_MS + DAY_MS)
    names = write(tmp_path, [early[0], late[1]])
    assert [name.rpartition("/")[2][:-8] for name in names] == [
        "000001-000000000000--000001-000000000010",
        "000001-000000000010--000001-000000000020",
    ]
    assert damages(tmp_path) == set()


def test_written_again_in_other_batches_it_is_the_same(tmp_path: Path) -> None:
    batches = range_of(0, 0, 60)
    one, other = tmp_path / "one", tmp_path / "other"
    write(one, batches, 25)
    before = content(one)
    whole = pa.Table.from_batches(batches).combine_chunks().to_batches()
    assert write(other, whole, 25) == sorted(before)
    assert content(other) == before
    write(one, whole, 25)
    assert content(one) == before
    for path in files_of(str(one)):
        twin = path.replace(str(one), str(other))
        assert footer_of(pq.ParquetFile(path), path) == footer_of(pq.ParquetFile(twin), twin)


@pytest.mark.parametrize("cut", [1, 3, 60])
def test_checksums_do_not_depend_on_batches(cut: int) -> None:
    table = pa.Table.from_batches(range_of(0, 0, 60))
    whole, parts = Checksums(), Checksums()
    for batch in table.combine_chunks().to_batches():
        whole.take(batch)
    for batch in table.combine_chunks().to_batches(max_chunksize=cut):
        parts.take(batch)
    assert parts.values == whole.values
    assert parts.size_bytes == whole.size_bytes > 0
    other = Checksums()
    other.take(table.slice(1).combine_chunks().to_batches()[0])
    assert all(other.values[name] != value for name, value in whole.values.items() if name != "key")


def test_a_key_that_is_null_is_not_an_empty_one() -> None:
    def sums(key: bytes | None) -> dict[str, int]:
        found = Checksums()
        found.take(
            pa.RecordBatch.from_pydict(
                {"offset": [1], "key": pa.array([key], pa.binary()), "value": pa.array([b""], pa.binary())}
            )
        )
        return found.values

    assert sums(None) != sums(b"")


def test_damage_is_found(tmp_path: Path) -> None:
    (name,) = write(tmp_path, range_of(0, 0, 30))
    path = tmp_path / name
    table = pq.read_table(path, partitioning=None)
    metadata = {archive_files.FOOTER_KEY: pq.ParquetFile(path).metadata.metadata[archive_files.FOOTER_KEY]}

    def change(changed: pa.Table) -> set[str]:
        pq.write_table(changed.replace_schema_metadata(metadata), path)
        return damages(tmp_path)

    assert change(table) == set()
    assert change(table.slice(0, 29)) == {"hole", "footer", "checksum"}
    values = table.column("value").to_pylist()
    other = table.set_column(table.schema.get_field_index("value"), "value", pa.array([b"x", *values[1:]], pa.binary()))
    assert change(other) == {"checksum"}
    files, root = file_system(str(tmp_path))
    assert check_file(files, root, str(path), whole=False)[1] == [], "only checksums show it"
    change(table)
    path.rename(path.with_name(path.name.replace("000030", "000031")))
    assert damages(tmp_path) == {"footer"}


def test_what_attempts_left_is_removed(tmp_path: Path) -> None:
    directory = str(tmp_path / "archive")
    remove_aside(directory)
    left = tmp_path / "archive" / ASIDE
    left.mkdir(parents=True)
    (left / "half.parquet").write_text("")
    remove_aside(directory)
    assert not list(left.iterdir())
    with pytest.raises(DirectoryError, match="there is no directory"):
        files_of(str(tmp_path / "nowhere"))


def test_a_directory_is_found_under_each_name_that_spark_takes(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    for url in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}"):
        files, root = file_system(url)
        assert files.get_file_info(f"{root}/x").type == pafs.FileType.File, url


def test_files_keep_nulls_and_repeated_headers_for_a_replay(tmp_path: Path) -> None:
    (name,) = write(tmp_path, range_of(1, 0, 20))
    rows = pq.read_table(tmp_path / name, partitioning=None)
    assert pa.types.is_map(rows.schema.field("headers").type), "as in files of the versions before"
    assert rows.column("headers").to_pylist() == [PAIRS if n % 2 else None for n in range(20)]
    assert [n for n, value in enumerate(rows.column("value").to_pylist()) if value is None] == [5, 15]
    piece = pa.RecordBatch.from_pylist([{"path": f"{tmp_path}/{name}", "first": 4, "last": 7}])
    (batch,) = read_pieces(iter([piece]), str(tmp_path))
    assert batch.column("value").to_pylist() == [b"v4", None, b"v6"]
    pairs = [{"key": key, "value": value} for key, value in PAIRS]
    assert batch.column("headers").to_pylist() == [None, pairs, None]
