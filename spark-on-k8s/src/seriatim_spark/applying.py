"""A table of the newest message of each key, kept from a stream of changes. Nothing here needs Spark.

    <directory>/_table.json                      which files are the table now; written last, aside and renamed
    <directory>/data/00017-<random>.parquet      the rows of one bucket: keys whose hash is 17

A micro-batch changes some buckets. Each of them is read, merged and written as a new file. Then `_table.json` names the
new files, together with the query and the micro-batch: at this one moment the change is there, all of it or nothing.
Files that no table of the last `KEPT_S` names are removed.

A row of the table is the newest message of its key: the one with the highest offset. So it does not matter how
often, or how late, a message is merged. Deleted keys stay as rows without a value (tombstones): without these, an older
message that is merged again would bring the key back.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from seriatim_spark.archiving import file_system, flush_path, write_json

NAME: Final = "_table.json"
VERSION: Final = 1
KEPT_S: Final = 3600.0
"""A program that reads the table has so long for it."""

OrderBy = Literal["offset", "append_time"]

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("deleted", pa.bool_()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("append_time", pa.timestamp("us", tz="UTC")),
    ]
)
"""Of the table, and of the changes that are merged."""


class ApplyError(Exception):
    """The changes cannot be merged, or the table is not what it should be."""


@dataclass(frozen=True, slots=True)
class TableState:
    """What `_table.json` says.

    Attributes:
        query: The query that keeps the table.
        batch: Its last micro-batch that is in it.
        topic, incarnation: Whose changes it holds.
        buckets: How many buckets there are.
        files: Below the directory, by bucket; buckets without rows have none.
        rows: Of all files, tombstones too.
        changed_at: When it was written, in seconds since 1970.
        before: Files of tables before this one, with the time at which they were replaced.
    """

    query: str
    batch: int
    topic: str
    incarnation: str
    buckets: int
    files: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    changed_at: float = 0.0
    before: dict[str, float] = field(default_factory=dict)
    version: int = VERSION


def read_state(directory: str) -> TableState | None:
    """The table as it is now; None: there is none yet.

    Raises:
        ApplyError: It cannot be read, or is of a newer version.
    """
    files, root = file_system(directory)
    path = f"{root}/{NAME}"
    if files.get_file_info(path).type == pafs.FileType.NotFound:
        return None
    try:
        with files.open_input_stream(path) as source:
            state = TableState(**json.loads(source.read()))
    except (TypeError, ValueError) as exc:
        raise ApplyError(f"{path} cannot be read: {exc}") from exc
    if state.version != VERSION:
        raise ApplyError(f"{path} is of version {state.version}, which is newer than this one")
    return state


def write_state(directory: str, state: TableState) -> None:
    """Put a new table in the place of the one before, at one moment."""
    write_json(directory, NAME, asdict(state))


def newest(rows: pa.Table, order_by: OrderBy) -> pa.Table:
    """Of each key the newest row, in the order of keys.

    Raises:
        ApplyError: A key stands in two partitions, whose offsets cannot be compared, and `order_by` is `offset`.
    """
    if not rows.num_rows:
        return rows
    codes = rows.column("key").combine_chunks().dictionary_encode()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    keys = codes.indices.to_numpy(zero_copy_only=False)
    partitions = rows.column("partition").to_numpy()
    offsets = rows.column("offset").to_numpy()
    if order_by == "offset":
        order = np.lexsort((offsets, keys))
        same = keys[order][1:] == keys[order][:-1]
        moved = np.flatnonzero(same & (partitions[order][1:] != partitions[order][:-1]))
        if len(moved):
            at = int(order[moved[0] + 1])
            raise ApplyError(
                f"key {_shown(rows.column('key')[at].as_py())} stands in partitions {partitions[order[moved[0]]]} and "
                f"{partitions[at]}: did the topic get more partitions? Offsets of two partitions cannot be compared. "
                "Start again with --order-by append_time if the times at which brokers took the messages are good "
                "enough"
            )
    else:
        times = rows.column("append_time").cast(pa.timestamp("us", "UTC")).combine_chunks().view(pa.int64()).to_numpy()
        order = np.lexsort((offsets, partitions, times, keys))
    last = np.concatenate([keys[order][1:] != keys[order][:-1], [True]])
    return rows.take(pa.array(order[last]))


def merge(table: pa.Table | None, changes: pa.Table, order_by: OrderBy, tombstones_from_us: int) -> pa.Table:
    """The table of a bucket with changes merged into it.

    Args:
        table: As it is now; None: no rows yet.
        changes: Messages, in any order, some maybe for the second time.
        order_by: Which message of a key is the newest.
        tombstones_from_us: Deleted keys whose message is older (append time, microseconds since 1970) are left out.
    """
    rows = changes.select(SCHEMA.names).cast(SCHEMA)
    if table is not None:
        rows = pa.concat_tables([table.select(SCHEMA.names).cast(SCHEMA), rows])
    merged = newest(rows, order_by)
    times = merged.column("append_time").cast(pa.timestamp("us", "UTC")).combine_chunks().view(pa.int64())
    old = pc.and_(merged.column("deleted"), pc.less(times, pa.scalar(tombstones_from_us, pa.int64())))
    return merged.filter(pc.invert(old)).combine_chunks()


def write_bucket(directory: str, bucket: int, rows: pa.Table) -> str:
    """Write a new file of a bucket; returns its path below the directory. No table names it yet."""
    files, root = file_system(directory)
    files.create_dir(f"{root}/data", recursive=True)
    name = f"data/{bucket:05}-{uuid.uuid4().hex}.parquet"
    with files.open_output_stream(f"{root}/{name}") as sink:
        pq.write_table(rows, sink, compression="zstd")
    flush_path(files, f"{root}/{name}")
    flush_path(files, f"{root}/data")
    return name


def read_bucket(directory: str, name: str | None) -> pa.Table | None:
    """The rows of a bucket."""
    if name is None:
        return None
    files, root = file_system(directory)
    with files.open_input_file(f"{root}/{name}") as source:
        return pq.read_table(source, partitioning=None)


def read_table(directory: str) -> pa.Table:
    """The whole table, without tombstones.

    Raises:
        ApplyError: There is none.
    """
    state = read_state(directory)
    if state is None:
        raise ApplyError(f"there is no table in {directory}")
    parts = [read_bucket(directory, name) for name in state.files.values()]
    rows = pa.concat_tables([SCHEMA.empty_table(), *(part for part in parts if part is not None)])
    return rows.filter(pc.invert(rows.column("deleted"))).drop_columns("deleted")


def paths_of(directory: str) -> list[str]:
    """The files of the table now, for a program that reads Parquet; rows with `deleted` are tombstones."""
    state = read_state(directory)
    _, root = file_system(directory)
    return [] if state is None else [f"{root}/{name}" for name in sorted(state.files.values())]


def next_state(
    state: TableState, batch: int, changed: Mapping[int, tuple[str, int]], now_s: float
) -> tuple[TableState, list[str]]:
    """The table after a micro-batch, and files that no reader can need any more.

    Args:
        state: Before it.
        batch: Its number.
        changed: New file and number of rows, by bucket.
        now_s: Seconds since 1970.
    """
    before = {name: at for name, at in state.before.items() if at > now_s - KEPT_S}
    gone = [name for name in state.before if name not in before]
    files, rows = dict(state.files), dict(state.rows)
    for bucket, (name, count) in changed.items():
        if str(bucket) in files:
            before[files[str(bucket)]] = now_s
        files[str(bucket)], rows[str(bucket)] = name, count
    found = TableState(
        state.query, batch, state.topic, state.incarnation, state.buckets, files, rows, now_s, before
    )  # fmt: skip
    return found, gone


def remove(directory: str, names: list[str]) -> None:
    """Delete files below the directory; those that are gone already are passed over."""
    files, root = file_system(directory)
    for name in names:
        if files.get_file_info(f"{root}/{name}").type == pafs.FileType.File:
            files.delete_file(f"{root}/{name}")


def remove_unnamed(directory: str, state: TableState | None) -> int:
    """Delete files that no table names: attempts that failed. Only for the one query that writes here, between batches.

    Returns how many.
    """
    files, root = file_system(directory)
    named = set() if state is None else {*state.files.values(), *state.before}
    if files.get_file_info(f"{root}/data").type != pafs.FileType.Directory:
        return 0
    infos = files.get_file_info(pafs.FileSelector(f"{root}/data"))
    unnamed = [name for info in infos if (name := f"data/{info.base_name}") not in named]
    remove(directory, unnamed)
    return len(unnamed)


def _shown(key: bytes | None) -> str:
    return repr((key or b"")[:60])[1:]
