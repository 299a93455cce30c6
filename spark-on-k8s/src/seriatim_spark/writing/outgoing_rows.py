"""Rows on their way to a topic: which columns they may have, and to which partition each goes.

The columns are those of a reader that a sender may choose. Another column is an error, because leaving it out silently
could lose data that a user wants to keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from seriatim_spark.columns import HEADERS
from seriatim_spark.errors import RowError, SchemaMismatchError

if TYPE_CHECKING:
    import pyarrow as pa

WRITTEN: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "timestamp": ("timestamp",),
    "headers": (HEADERS, "map<string,binary>"),
    "tag": ("string",),
    "partition": ("int", "bigint", "smallint", "tinyint"),
}
"""Columns that may be written, and Spark's names of their types."""

SLICE_BYTES: Final = 32 << 20
SLICE_ROWS: Final = 200_000
"""The most rows or bytes that one call stages, with one more record batch.

Fewer calls are better, because each one asks brokers twice for places.
"""


class Slice(NamedTuple):
    """Rows that one call stages. `partitions` has a partition for each row, or is None if keys or the task decide."""

    table: pa.Table
    partitions: Any


def check_schema(fields: Sequence[tuple[str, str]]) -> None:
    """Refuse columns that no message has.

    Args:
        fields: Names of columns, and Spark's names of their types.

    Raises:
        SchemaMismatchError: A column is unknown, there twice or of another type, or `value` is missing.
    """
    columns = ", ".join(f"{name} ({' or '.join(types)})" for name, types in WRITTEN.items())
    rule = f"The columns of a message are {columns}; only value is required."
    names = [name for name, _ in fields]
    unknown = [name for name in names if name not in WRITTEN]
    if unknown:
        kept = ", ".join(repr(name) for name in names if name in WRITTEN)
        raise SchemaMismatchError(
            f"no message has a column {', '.join(map(repr, unknown))}: write rows.select({kept or repr('value')}), or "
            f"name columns so. {rule}"
        )
    if "value" not in names:
        raise SchemaMismatchError(f"the rows have no column 'value'. {rule}")
    if len(set(names)) < len(names):
        raise SchemaMismatchError(f"a column is twice in {', '.join(names)}: leave one out")
    for name, kind in fields:
        if kind not in WRITTEN[name]:
            raise SchemaMismatchError(
                f"column {name!r} is {kind}, and not {' or '.join(WRITTEN[name])}: cast it. {rule}"
            )


def slices(batches: Iterable[pa.RecordBatch]) -> Iterator[Slice]:
    """Put the rows of a task into groups that one call stages, in their order.

    Raises:
        RowError: A row has null in the column that decides its partition.
    """
    gathered: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        gathered.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= SLICE_ROWS or size_bytes >= SLICE_BYTES:
            yield _slice(gathered)
            gathered, rows, size_bytes = [], 0, 0
    if gathered:
        yield _slice(gathered)


def _slice(batches: list[pa.RecordBatch]) -> Slice:
    import pyarrow as pa

    table = pa.Table.from_batches(batches)
    if "partition" in table.column_names:
        column = table.column("partition")
        if column.null_count:
            raise RowError(
                "a row has no partition (null), though there is a column partition: give each row one, or leave the "
                "column out and give each row a key"
            )
        return Slice(table.drop_columns(["partition"]), column.to_numpy())
    if "key" in table.column_names and table.column("key").null_count:
        raise RowError(
            "a row has no key (null), and its key decides its partition. Give each row a key, or add a column "
            "partition. Or write without the column key: then all rows of a task go to one partition, by the number "
            "of the task"
        )
    return Slice(table, None)


def goes_by_task(table: pa.Table, partitions: Any) -> bool:
    """Whether neither keys nor a column decide the partition of a row."""
    return partitions is None and "key" not in table.column_names
