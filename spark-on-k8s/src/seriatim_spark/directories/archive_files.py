"""Files of an archive: where they are, what they hold, how to write and check them. Nothing here needs Spark.

    <directory>/topic=orders/incarnation=<id>/partition=3/date=2026-11-23/
        000001-000000000800--000002-000000000050.parquet

The name is the range of offsets that the file covers. So the same range, read again after a failure, gives the same
file in the same place. A file is written aside, flushed and renamed, so it is there complete or not at all. Its footer
says which range it covers, how many rows it has, and their checksums. `audit` compares the footer with the rows.
"""

from __future__ import annotations

import itertools
import json
import re
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from seriatim_api.ids import make_offset, split_offset

from seriatim_spark.columns import headers_as_map
from seriatim_spark.directories.files import ASIDE, DirectoryError, file_system, flush_path

COLUMNS: Final = (
    "offset", "timestamp", "append_time", "key", "value", "tag", "headers", "producer", "epoch", "sequence", "passed",
)  # fmt: skip
"""The columns of a file. Its path has the other columns. Headers are a map in files of all versions. It may repeat a
name."""

SOURCE_COLUMNS: Final = ("topic", "incarnation", "partition", "range_start", "range_end", *COLUMNS)
"""The columns that the archive reads from the source."""

FOOTER_KEY: Final = b"seriatim.archive"
VERSION: Final = 1
ROW_GROUP_ROWS: Final = 64_000
MICROSECONDS_A_DAY: Final = 86_400_000_000

_FILE_NAME: Final = re.compile(r"(\d+)-(\d+)--(\d+)-(\d+)\.parquet")


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file.

    Attributes:
        start, end: The offsets that the file covers; the next file of the partition begins at `end`.
        rows: The number of its rows.
        passed: The number of messages in its range that readers leave out, because they repeat earlier ones.
        checksums: The CRC-32 of each column in `Checksums`.
    """

    topic: str
    incarnation: str
    partition: int
    start: int
    end: int
    rows: int
    passed: int
    checksums: dict[str, int]
    version: int = VERSION


@dataclass(slots=True, eq=False)
class Checksums:
    """Checksums of the offsets, keys, values and lengths of a file's rows. How the rows are batched does not matter."""

    values: dict[str, int] = field(default_factory=lambda: {"offset": 0, "key": 0, "value": 0})
    size_bytes: int = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Add the next rows."""
        offsets = batch.column("offset").to_numpy(zero_copy_only=False)
        self._add("offset", offsets.astype("<i8", copy=False))
        for name in ("key", "value"):
            self._take_binary(name, batch.column(name))

    def _take_binary(self, name: str, column: Any) -> None:
        _validity, begins, data = column.buffers()
        count = len(column)
        bounds = np.frombuffer(begins, np.int32)[column.offset : column.offset + count + 1].astype(np.int64)
        lengths = np.diff(bounds).astype("<i8")
        if column.null_count:
            lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
        self._add(name, lengths)
        if data is not None and not column.null_count:
            self._add(name, memoryview(data)[bounds[0] : bounds[-1]])
            self.size_bytes += int(bounds[-1] - bounds[0])
        elif data is not None:  # the bytes of a null belong to no row
            taken = pa.concat_arrays([column.drop_null()])
            if len(taken):
                begin = np.frombuffer(taken.buffers()[1], np.int32)[taken.offset : taken.offset + len(taken) + 1]
                self._add(name, memoryview(taken.buffers()[2])[int(begin[0]) : int(begin[-1])])
                self.size_bytes += int(begin[-1]) - int(begin[0])

    def _add(self, name: str, data: Any) -> None:
        # Lengths and bytes have sums of their own, so that it does not matter how rows were cut into batches.
        part = name if not isinstance(data, np.ndarray) or name == "offset" else f"{name}_length"
        self.values[part] = zlib.crc32(data, self.values.get(part, 0))


def path_of(footer_like: Any, day: int) -> str:
    """The path of a file below the archive's directory.

    Args:
        footer_like: A footer, or another object with topic, incarnation, partition, start and end.
        day: Days since 1970, UTC.
    """
    date = datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()
    (first, first_index), (last, last_index) = split_offset(footer_like.start), split_offset(footer_like.end)
    return (
        f"topic={footer_like.topic}/incarnation={footer_like.incarnation}/partition={footer_like.partition}/"
        f"date={date}/"
        f"{first:06}-{first_index:012}--{last:06}-{last_index:012}.parquet"
    )


class FileWriter:
    """Writes one file of an archive aside; `finish` puts it in its place."""

    def __init__(self, files: pafs.FileSystem, root: str, schema: pa.Schema) -> None:
        self._files = files
        self._root = root
        self._aside = f"{root}/{ASIDE}/{uuid.uuid4().hex}.parquet"
        files.create_dir(f"{root}/{ASIDE}", recursive=True)
        self._sink = files.open_output_stream(self._aside)
        self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd", write_statistics=["offset"])
        self.checksums = Checksums()
        self.rows = 0
        self.passed = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Write the next rows, with the columns `COLUMNS`."""
        self.checksums.take(batch)
        self.rows += batch.num_rows
        self.passed += int(batch.column("passed").to_numpy(zero_copy_only=False).sum())
        self._writer.write_batch(batch, row_group_size=ROW_GROUP_ROWS)

    def finish(
        self, topic: str, incarnation: str, partition: int, start: int, end: int, day: int
    ) -> tuple[str, Footer]:
        """Close the file and put it in its place. If an earlier attempt has written the same range, its file stays.

        Returns the path below the directory, and the footer.
        """
        footer = Footer(topic, incarnation, partition, start, end, self.rows, self.passed, dict(self.checksums.values))
        self._writer.add_key_value_metadata({FOOTER_KEY.decode(): json.dumps(asdict(footer), sort_keys=True)})
        self._writer.close()
        self._sink.close()
        path = path_of(footer, day)
        place = f"{self._root}/{path}"
        if self._files.get_file_info(place).type == pafs.FileType.File:
            # The earlier file is complete. It may hold more rows than this one, because retention may have dropped
            # messages since.
            self._files.delete_file(self._aside)
            with self._files.open_input_file(place) as source, pq.ParquetFile(source) as file:
                return path, footer_of(file, path)
        parent = place.rpartition("/")[0]
        self._files.create_dir(parent, recursive=True)
        flush_path(self._files, self._aside)
        self._files.move(self._aside, f"{self._root}/{path}")
        while len(parent) >= len(self._root):  # makes the rename and new directories durable
            flush_path(self._files, parent)
            parent = parent.rpartition("/")[0]
        return path, footer

    def give_up(self) -> None:
        """Remove the unfinished file."""
        self._writer.close()
        self._sink.close()
        if self._files.get_file_info(self._aside).type != pafs.FileType.NotFound:
            self._files.delete_file(self._aside)


class Reach(NamedTuple):
    """How far the rows of a range went: the range [start, end) of a partition, and the offset after its last row."""

    topic: str
    incarnation: str
    partition: int
    start: int
    end: int
    reached: int


class ArchiveWriter:
    """Writes rows of the source, in its order, into files: one for each range and day.

    If an earlier attempt has written a range, the range is cut into the same files again. If retention has dropped
    messages of the range since then, the rest would be cut in other places. Then the earlier files stay, and only rows
    after them are written.

    Args:
        directory: A path, or a URL that pyarrow knows.
        file_rows: The most rows of a file.
    """

    def __init__(self, directory: str, file_rows: int) -> None:
        self._files, self._root = file_system(directory)
        self._file_rows = file_rows
        self._open: FileWriter | None = None
        self._range: tuple[str, str, int, int, int] | None = None  # topic, incarnation, partition, start, end
        self._day: int | None = None  # the day of the open file
        self._start = 0  # the first offset of the open or next file
        self._next = 0  # the offset of the next row, if none is missing
        self._done: list[tuple[str, Footer]] = []
        self.reached: list[Reach] = []
        """How far the rows of each range went. It is complete after `finish`."""

    def take(self, batch: pa.RecordBatch) -> None:
        """Write the next rows, with the columns `SOURCE_COLUMNS`."""
        at = 0
        for upto in [*_borders(batch), batch.num_rows]:
            if upto > at:
                self._take_part(batch.slice(at, upto - at))
                at = upto

    def _take_part(self, part: pa.RecordBatch) -> None:
        """Write rows of one range and one day."""
        names = ("topic", "incarnation", "partition", "range_start", "range_end")
        place: Any = tuple(part.column(name)[0].as_py() for name in names)
        if place != self._range:
            self._end_range()
            self._range, self._start, self._next = place, place[3], place[3]
        day = int(_days(part)[0])
        offsets = part.column("offset").to_numpy(zero_copy_only=False)
        expected = np.concatenate([[self._next], offsets[:-1] + 1])
        follows = offsets - part.column("passed").to_numpy(zero_copy_only=False) == expected
        rows = part.select(list(COLUMNS))
        headers = headers_as_map(rows.column("headers"))
        rows = rows.set_column(COLUMNS.index("headers"), "headers", headers)
        bounds = [*np.flatnonzero(~follows).tolist(), len(offsets)]
        if bounds[0]:
            self._take_rows(rows.slice(0, bounds[0]), day)
        for at, upto in itertools.pairwise(bounds):
            self._keep_written()
            self._take_rows(rows.slice(at, upto - at), day)
        self._next = int(offsets[-1]) + 1

    def _take_rows(self, rows: pa.RecordBatch, day: int) -> None:
        offsets = rows.column("offset").to_numpy(zero_copy_only=False)
        if offsets[0] < self._start:  # earlier files have the rows before
            rows = rows.slice(int(np.count_nonzero(offsets < self._start)))
        while rows.num_rows:
            first = rows.column("offset")[0].as_py()
            if self._open is not None and (self._day != day or self._open.rows >= self._file_rows):
                self._close(first)
            if self._open is None:
                self._open, self._day = FileWriter(self._files, self._root, rows.schema), day
            room = self._file_rows - self._open.rows
            self._open.take(rows.slice(0, room))
            rows = rows.slice(room)

    def _keep_written(self) -> None:
        """Continue after the files of an earlier attempt.

        Called if messages are missing at this place, or a segment ends here.
        """
        assert self._range is not None
        for start, end, path in chain_of(self._files, self._root, *self._range):
            if start < self._start:
                continue
            if self._open is not None:
                self._open.give_up()
                self._open = None
            with self._files.open_input_file(f"{self._root}/{path}") as source, pq.ParquetFile(source) as file:
                self._done.append((path, footer_of(file, path)))
            self._start = end

    def _close(self, end: int) -> None:
        """Finish the open file. It covers the range up to `end`."""
        if self._open is None:
            return
        assert self._range is not None
        assert self._day is not None
        writer, self._open = self._open, None
        self._done.append(writer.finish(*self._range[:3], self._start, end, self._day))
        self._start = end

    def _end_range(self) -> None:
        if self._range is None:
            return
        self._close(self._range[4])
        self.reached.append(Reach(*self._range, self._next))
        self._range = None

    def finish(self) -> list[tuple[str, Footer]]:
        """Finish the last file. Return paths below the directory and footers of all files."""
        self._end_range()
        return self._done

    def give_up(self) -> None:
        """Remove the unfinished file."""
        if self._open is not None:
            self._open.give_up()
            self._open = None


def chain_of(
    files: pafs.FileSystem, root: str, topic: str, incarnation: str, partition: int, start: int, end: int
) -> list[tuple[int, int, str]]:
    """Return the files of a range, one after another from its start: start, end, and path below `root` of each."""
    base = f"{root}/topic={topic}/incarnation={incarnation}/partition={partition}"
    if files.get_file_info(base).type != pafs.FileType.Directory:
        return []
    by_start: dict[int, tuple[int, str]] = {}
    for info in files.get_file_info(pafs.FileSelector(base, recursive=True)):
        found = _FILE_NAME.fullmatch(info.path.rpartition("/")[2])
        if found is not None:
            first, first_index, last, last_index = map(int, found.groups())
            by_start[make_offset(first, first_index)] = (
                make_offset(last, last_index),
                info.path.removeprefix(f"{root}/"),
            )
    chain: list[tuple[int, int, str]] = []
    while start < end and start in by_start and by_start[start][0] <= end:
        chain.append((start, *by_start[start]))
        start = by_start[start][0]
    return chain


def _days(batch: pa.RecordBatch) -> Any:
    times = batch.column("append_time").cast(pa.timestamp("us", "UTC")).view(pa.int64()).to_numpy(zero_copy_only=False)
    return times // MICROSECONDS_A_DAY


def _borders(batch: pa.RecordBatch) -> list[int]:
    """Return the rows at which another range or another day begins."""
    if batch.num_rows < 2:
        return []
    changes = np.diff(_days(batch)) != 0
    for name in ("partition", "range_start"):
        changes |= np.diff(batch.column(name).to_numpy(zero_copy_only=False)) != 0
    for name in ("topic", "incarnation"):
        codes = batch.column(name).dictionary_encode().indices.to_numpy(zero_copy_only=False)
        changes |= np.diff(codes) != 0
    found: list[int] = (np.flatnonzero(changes) + 1).tolist()
    return found


# ---- reading ----


def files_of(directory: str) -> list[str]:
    """All files of an archive, as paths in its file system, sorted.

    Raises:
        DirectoryError: There is no such directory.
    """
    files, root = file_system(directory)
    if files.get_file_info(root).type != pafs.FileType.Directory:
        raise DirectoryError(f"there is no directory {directory}")
    infos = files.get_file_info(pafs.FileSelector(root, recursive=True))
    aside = f"{root}/{ASIDE}/"
    return sorted(
        info.path for info in infos if info.path.endswith(".parquet") and not info.path.startswith(aside)
    )  # fmt: skip


def footer_of(file: pq.ParquetFile, path: str) -> Footer:
    """Read the footer of a file.

    Raises:
        DirectoryError: The file has no footer of an archive, or a newer version of this package wrote it.
    """
    text = (file.metadata.metadata or {}).get(FOOTER_KEY)
    try:
        footer = Footer(**json.loads(text or "null"))
    except (TypeError, ValueError) as exc:
        raise DirectoryError(f"{path} has no footer of an archive") from exc
    if footer.version != VERSION:
        raise DirectoryError(f"{path} is of version {footer.version} of archives, which is newer than this one")
    return footer


def batches_of(file: pq.ParquetFile, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Read the rows of a file, in their order."""
    yield from file.iter_batches(ROW_GROUP_ROWS, columns=list(columns))
