"""The columns of a row: their names, their types for Spark and Arrow, and how tables of the client become columns.

All columns are nullable. Their Arrow types are those that Spark expects of a data source (times in UTC, microseconds):
if the first batch has other types, Spark refuses it. Values, keys and headers are copied only if small batches are put
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from seriatim_api.ids import INDEX_BITS

if TYPE_CHECKING:
    import pyarrow as pa
    from seriatim import RangeTable


class Column(NamedTuple):
    """A column: its type in Spark's DDL, and whether rows have it by default."""

    sql_type: str
    default: bool


HEADERS: Final = "array<struct<key:string,value:binary>>"
"""The type of headers, which is that of Spark's Kafka source. A map of Spark would have each name once."""

COLUMNS: Final = {
    "topic": Column("string", True),
    "partition": Column("int", True),
    "offset": Column("bigint", True),
    "timestamp": Column("timestamp", True),
    "append_time": Column("timestamp", True),
    "key": Column("binary", True),
    "value": Column("binary", True),
    "tag": Column("string", True),
    "headers": Column(HEADERS, False),
    "value_size": Column("int", False),
    "segment": Column("int", False),
    "producer": Column("binary", False),
    "epoch": Column("bigint", False),
    "sequence": Column("bigint", False),
    "passed": Column("bigint", False),
    "incarnation": Column("string", False),
    "range_start": Column("bigint", False),
    "range_end": Column("bigint", False),
}
DEFAULT_COLUMNS: Final = tuple(name for name, column in COLUMNS.items() if column.default)

ROWS_WANTED: Final = 8_192
"""Small batches are put together until they have this many rows, because each batch costs as much time as some hundred
rows.
"""

BYTES_WANTED: Final = 1 << 20
"""Or until they have this many bytes. Only batches that are put together are copied. The copy costs less than it saves:
with messages of 512 B, tasks take 1.40 processor seconds for a million messages. With groups of 128 KiB they take 1.63.
"""

_MS_MAX: Final = (1 << 63) // 1000 - 1
"""Times beyond this are cut to it, because a sender may give any number."""


def chosen(text: str) -> tuple[str, ...]:
    """Read the option `columns`: names with commas between them. `*` means the default columns.

    Raises:
        ValueError: A name is unknown or comes twice.
    """
    names: list[str] = []
    for name in (part.strip().lower() for part in text.split(",")):
        names += DEFAULT_COLUMNS if name == "*" else (name,)
    unknown = sorted(set(names) - set(COLUMNS))
    if unknown or len(set(names)) < len(names):
        what = f"unknown: {', '.join(unknown)}" if unknown else "each once"
        raise ValueError(f"names out of {', '.join(COLUMNS)}, or * for the first {len(DEFAULT_COLUMNS)} ({what})")
    return tuple(names)


def ddl(columns: Sequence[str]) -> str:
    """Return the columns as a schema for Spark."""
    return ", ".join(f"`{name}` {COLUMNS[name].sql_type}" for name in columns)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of the record batches."""
    import pyarrow as pa

    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    types = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "binary": pa.binary(),
        HEADERS: pa.list_(pair),
    }
    return pa.schema([pa.field(name, types[COLUMNS[name].sql_type]) for name in columns])


def last_header(name: str) -> str:
    """Return an SQL expression: the value of the last header with this name, which is an SQL text. Null: none."""
    return f"try_element_at(filter(headers, header -> header.key = {name}), -1).value"


def headers_as_map(headers: Any) -> Any:
    """Return the column of headers as Arrow's map, which repeats a name as the column does."""
    import pyarrow as pa

    kind = pa.map_(pa.string(), pa.binary())
    pairs = headers.values
    pair = pa.struct([kind.key_field, kind.item_field])
    children = [pa.Array.from_buffers(pair, len(pairs), [None], children=[pairs.field(at) for at in (0, 1)])]
    return pa.Array.from_buffers(kind, len(headers), headers.buffers()[:2], offset=headers.offset, children=children)


def size_bytes(table: RangeTable) -> int:
    """Return the bytes that a table of the client has in memory."""
    return int(table.table.get_total_buffer_size())


class Rows(NamedTuple):
    """A table of the client, and the number of messages before it that were left out as repeats."""

    table: RangeTable
    passed: int


class Origin(NamedTuple):
    """The facts that all rows of a range share: the incarnation of the topic, and start and end of the range."""

    incarnation: str
    start: int
    end: int


class BatchBuilder:
    """Makes record batches of the chosen columns, for one topic and partition after another."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._schema = arrow_schema(columns)
        self._columns = tuple(columns)
        self._constants: dict[str, tuple[Any, Any]] = {}  # for each column, the last value and an array of it

    def build(self, group: Sequence[Rows], origin: Origin) -> pa.RecordBatch:
        """Make one batch of tables of one range, in their order."""
        import pyarrow as pa

        assert group
        tables = [rows.table for rows in group]
        assert len({(table.topic, table.partition) for table in tables}) == 1
        whole = tables[0].table if len(tables) == 1 else pa.concat_tables([one.table for one in tables])
        counts = [table.table.num_rows for table in tables]
        arrays = [
            _passed([rows.passed for rows in group], counts)
            if name == "passed"
            else self._array(name, tables, counts, whole, origin)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)  # casts the map of headers to lists

    def _array(self, name: str, tables: Sequence[RangeTable], counts: list[int], rows: pa.Table, origin: Origin) -> Any:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        constants = {
            "topic": tables[0].topic,
            "partition": tables[0].partition,
            "incarnation": origin.incarnation,
            "range_start": origin.start,
            "range_end": origin.end,
        }
        if len({table.producer for table in tables}) == 1:
            constants["producer"] = tables[0].producer
        if name in constants:
            return self._constant(name, constants[name], rows.num_rows)
        match name:
            case "offset":
                return _counted([table.offset for table in tables], counts)
            case "sequence":
                return _counted([table.sequence for table in tables], counts)
            case "segment":
                segments = np.repeat(np.array([table.offset >> INDEX_BITS for table in tables], np.int32), counts)
                return pa.array(segments)
            case "epoch":
                return pa.array(np.repeat(np.array([table.producer_epoch for table in tables], np.int64), counts))
            case "append_time":
                times = np.array([min(table.append_time_ms, _MS_MAX) for table in tables], np.int64)
                return pa.array(np.repeat(times * 1000, counts)).view(self._schema.field(name).type)
            case "producer":
                return pa.array(
                    [table.producer for table, count in zip(tables, counts, strict=True) for _ in range(count)],
                    pa.binary(),
                )
            case "value_size":
                return pc.binary_length(_one_chunk(rows.column("value")))
            case "timestamp":
                return _microseconds(_one_chunk(rows.column(name))).view(self._schema.field(name).type)
            case _:
                return _one_chunk(rows.column(name))

    def _constant(self, name: str, value: Any, count: int) -> Any:
        import pyarrow as pa

        kept, found = self._constants.get(name, (None, None))
        if kept != value or len(found) < count:
            found = pa.repeat(pa.scalar(value, self._schema.field(name).type), max(count, ROWS_WANTED))
            self._constants[name] = (value, found)
        return found.slice(0, count)


def _counted(starts: list[int], counts: list[int]) -> Any:
    """Return for each start and its count the numbers from start on, one after another."""
    import numpy as np
    import pyarrow as pa

    runs = [np.arange(start, start + count, dtype=np.int64) for start, count in zip(starts, counts, strict=True)]
    return pa.array(runs[0] if len(runs) == 1 else np.concatenate(runs))


def _passed(passed: list[int], counts: list[int]) -> Any:
    """Return, at the first row of each table, the number of messages passed over before the table; 0 at other rows."""
    import numpy as np
    import pyarrow as pa

    found = np.zeros(sum(counts), np.int64)
    found[np.cumsum([0, *counts[:-1]])] = passed
    return pa.array(found)


def _one_chunk(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _microseconds(column: Any) -> Any:
    """Convert milliseconds to microseconds, cut to `_MS_MAX`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    limit = pa.scalar(_MS_MAX, pa.int64())
    inside = pc.max_element_wise(
        pc.min_element_wise(column, limit, skip_nulls=False), pc.negate(limit), skip_nulls=False
    )
    return pc.multiply(inside, pa.scalar(1000, pa.int64()))
