"""A table of the newest message of each key, kept from a stream of changes. Nothing here needs Spark.

    <directory>/_batches/<number>.json           the newest one says which files are the table now (`batch_chain`)
    <directory>/data/00017-<random>.parquet      the rows of one bucket: keys whose hash is 17

A micro-batch changes some buckets. Tasks read each of them, merge the changes and write a new file. Then the next link
of the chain names the new files, the query and the micro-batch. At this one moment the whole change enters the table. A
driver that was overtaken can make no link, so its files never count. Files that no table of the last `KEPT_S` seconds
names are removed.

A row of the table is the newest message of its key: the one with the highest offset. So a message may be merged several
times, or after newer ones. Deleted keys stay as rows without a value (tombstones). Without a tombstone, an older
message that is merged again would bring the key back.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from seriatim_api.key_names import key_shown

from seriatim_spark.directories import batch_chain
from seriatim_spark.directories.batch_chain import Link
from seriatim_spark.directories.files import file_system, flush_path

KEPT_S: Final = 3600.0
"""Seconds for which replaced files stay: a program that reads the table must be done by then."""

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
"""The columns of the table, and of the changes that are merged."""


class ApplyError(Exception):
    """The changes cannot be merged, or the table is not what it should be."""


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of the table that a link of the chain keeps.

    Attributes:
        topic, incarnation: The topic whose changes the table holds.
        buckets: The number of buckets.
        order_by: What decides which message of a key is the newest.
        files: The path of each bucket's file below the directory; a bucket without rows has no file.
        rows: The rows of each file, tombstones included.
        changed_at: When the link was written, in seconds since 1970.
        before: Files of earlier tables, with the times at which they were replaced.
    """

    topic: str
    incarnation: str
    buckets: int
    order_by: OrderBy = "offset"
    files: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    changed_at: float = 0.0
    before: dict[str, float] = field(default_factory=dict)


def state_of(link: Link) -> TableState:
    """The state of the table that a link keeps.

    Raises:
        ApplyError: The link belongs to another pipeline and keeps no table.
    """
    try:
        return TableState(**link.content)
    except TypeError as exc:
        raise ApplyError(f"the directory does not hold a table, but something else: {exc}") from exc


def read_state(directory: str) -> TableState | None:
    """The table as it is now; None if no table was written yet.

    Raises:
        ApplyError: The directory holds something that is not a table.
        ChainError: The table cannot be read, or a newer version of this package wrote it.
    """
    link = batch_chain.newest(directory)
    return None if link is None else state_of(link)


def with_settings(state: TableState, topic: str, buckets: int | None, order_by: OrderBy | None) -> TableState:
    """The state of the table with the settings of this run.

    Args:
        state: The state of the table.
        topic: The topic whose changes come.
        buckets, order_by: The given settings; None: those that the table has.

    Raises:
        ApplyError: The table is of another topic, or cannot take these settings.
    """
    if state.topic != topic:
        raise ApplyError(f"the table holds changes of the topic {state.topic}, not {topic}: use another directory")
    if buckets not in (None, state.buckets):
        raise ApplyError(
            f"the table has {state.buckets} buckets, and not {buckets}: this number decides where a key is. Give "
            f"--buckets {state.buckets} or leave it out, or use another directory and another checkpoint"
        )
    if order_by == "offset" != state.order_by:
        raise ApplyError(
            "the table is ordered by append_time: keys may have moved to other partitions, whose offsets cannot be "
            "compared. Give --order-by append_time or leave it out, or use another directory and another checkpoint"
        )
    # A change from offset to append_time is safe: within a partition both have the same order.
    return state if order_by is None else replace(state, order_by=order_by)


def newest(rows: pa.Table, order_by: OrderBy) -> pa.Table:
    """Return the newest row of each key, in the order of keys.

    Raises:
        ApplyError: A key has rows in two partitions, whose offsets cannot be compared, and `order_by` is `offset`.
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
                f"key {key_shown(rows.column('key')[at].as_py())} stands in partitions {partitions[order[moved[0]]]} "
                f"and {partitions[at]}: did the topic get more partitions? Offsets of two partitions cannot be "
                "compared. Start again with --order-by append_time if the times at which brokers took the messages are "
                "good enough"
            )
    else:
        times = rows.column("append_time").cast(pa.timestamp("us", "UTC")).combine_chunks().view(pa.int64()).to_numpy()
        order = np.lexsort((offsets, partitions, times, keys))
    last = np.concatenate([keys[order][1:] != keys[order][:-1], [True]])
    return rows.take(pa.array(order[last]))


def merge(table: pa.Table | None, changes: pa.Table, order_by: OrderBy, tombstones_from_us: int) -> pa.Table:
    """Merge changes into the rows of a bucket. Return its new rows.

    Args:
        table: The rows of the bucket now; None: no rows yet.
        changes: Messages in any order. Some may be merged already.
        order_by: What decides which message of a key is the newest.
        tombstones_from_us: Tombstones with an older append time (microseconds since 1970) are left out.
    """
    rows = changes.select(SCHEMA.names).cast(SCHEMA)
    if table is not None:
        rows = pa.concat_tables([table.select(SCHEMA.names).cast(SCHEMA), rows])
    merged = newest(rows, order_by)
    times = merged.column("append_time").cast(pa.timestamp("us", "UTC")).combine_chunks().view(pa.int64())
    old = pc.and_(merged.column("deleted"), pc.less(times, pa.scalar(tombstones_from_us, pa.int64())))
    return merged.filter(pc.invert(old)).combine_chunks()


def write_bucket(directory: str, bucket: int, rows: pa.Table) -> str:
    """Write a new file of a bucket. Return its path below the directory. No table names the file yet."""
    files, root = file_system(directory)
    files.create_dir(f"{root}/data", recursive=True)
    name = f"data/{bucket:05}-{uuid.uuid4().hex}.parquet"
    with files.open_output_stream(f"{root}/{name}") as sink:
        pq.write_table(rows, sink, compression="zstd")
    flush_path(files, f"{root}/{name}")
    flush_path(files, f"{root}/data")
    return name


def read_bucket(directory: str, name: str | None) -> pa.Table | None:
    """Read the rows of a bucket; None if it has no file."""
    if name is None:
        return None
    files, root = file_system(directory)
    with files.open_input_file(f"{root}/{name}") as source:
        return pq.read_table(source, partitioning=None)


def read_table(directory: str) -> pa.Table:
    """Read the whole table, without tombstones.

    Raises:
        ApplyError: The directory has no table.
    """
    state = read_state(directory)
    if state is None:
        raise ApplyError(f"there is no table in {directory}")
    parts = [read_bucket(directory, name) for name in state.files.values()]
    rows = pa.concat_tables([SCHEMA.empty_table(), *(part for part in parts if part is not None)])
    return rows.filter(pc.invert(rows.column("deleted"))).drop_columns("deleted")


def paths_of(directory: str) -> list[str]:
    """Return the files of the table now, for a program that reads Parquet. Rows with `deleted` are tombstones."""
    state = read_state(directory)
    _, root = file_system(directory)
    return [] if state is None else [f"{root}/{name}" for name in sorted(state.files.values())]


def next_state(state: TableState, changed: Mapping[int, tuple[str, int]], now_s: float) -> tuple[TableState, list[str]]:
    """Return the state of the table after a micro-batch, and the files that no reader needs any more.

    Args:
        state: The state before the micro-batch.
        changed: The new file of each changed bucket, and its rows.
        now_s: The time now, in seconds since 1970.
    """
    before = {name: at for name, at in state.before.items() if at > now_s - KEPT_S}
    gone = [name for name in state.before if name not in before]
    files, rows = dict(state.files), dict(state.rows)
    for bucket, (name, count) in changed.items():
        if str(bucket) in files:
            before[files[str(bucket)]] = now_s
        files[str(bucket)], rows[str(bucket)] = name, count
    return replace(state, files=files, rows=rows, changed_at=now_s, before=before), gone


def remove(directory: str, names: list[str]) -> None:
    """Delete files below the directory. A file that does not exist is no error."""
    files, root = file_system(directory)
    for name in names:
        if files.get_file_info(f"{root}/{name}").type == pafs.FileType.File:
            files.delete_file(f"{root}/{name}")


def remove_unnamed(directory: str, state: TableState | None) -> int:
    """Delete files that no table names. Failed tasks have left them. Return their number.

    Only the driver that made the newest link may call it, and only between micro-batches. Earlier drivers can make no
    link any more, so these files cannot enter the table.
    """
    files, root = file_system(directory)
    named = set() if state is None else {*state.files.values(), *state.before}
    if files.get_file_info(f"{root}/data").type != pafs.FileType.Directory:
        return 0
    infos = files.get_file_info(pafs.FileSelector(f"{root}/data"))
    unnamed = [name for info in infos if (name := f"data/{info.base_name}") not in named]
    remove(directory, unnamed)
    return len(unnamed)
