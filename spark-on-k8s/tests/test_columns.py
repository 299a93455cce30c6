"""Rows of the client become record batches, without a loop over rows and without losing one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from seriatim import RangeTable
from seriatim._bodies.arrow import HEADERS_TYPE, SCHEMA
from seriatim_api.ids import make_offset
from seriatim_spark.columns import (
    COLUMNS,
    DEFAULT_COLUMNS,
    BatchBuilder,
    Origin,
    Rows,
    arrow_schema,
    chosen,
    ddl,
    headers_as_map,
)

ORIGIN = Origin("id-1", make_offset(2, 0), make_offset(2, 50))
PRODUCER, OTHER = bytes(15) + b"\x01", bytes(15) + b"\x02"


def rows_of(
    index: int,
    count: int,
    producer: bytes = PRODUCER,
    timestamp: int | None = 1_700_000_000_123,
    partition: int = 3,
    passed: int = 0,
) -> Rows:
    rows = pa.table(
        {
            "key": pa.array([b"k%d" % (index + n) if n % 2 else None for n in range(count)], pa.binary()),
            "value": pa.array([b"v%d" % (index + n) for n in range(count)], pa.binary()),
            "timestamp": pa.array([timestamp] * count, pa.int64()),
            "headers": pa.array([[("h", b"x")]] * count, HEADERS_TYPE),
            "tag": pa.array(["tag"] * count, pa.utf8()),
        },
        schema=SCHEMA,
    )
    table = RangeTable("orders", partition, make_offset(2, index), rows, 1_700_000_000_500, producer, 4, 100 + index)
    return Rows(table, passed)


def test_all_columns_of_two_small_batches_in_one() -> None:
    builder = BatchBuilder(tuple(COLUMNS))
    batch = builder.build([rows_of(5, 2), rows_of(9, 3, OTHER, passed=2)], ORIGIN)
    assert batch.schema.equals(arrow_schema(tuple(COLUMNS)))
    batch.validate(full=True)
    found = batch.to_pydict()
    assert found["topic"] == ["orders"] * 5
    assert found["partition"] == [3] * 5
    assert found["offset"] == [make_offset(2, index) for index in (5, 6, 9, 10, 11)]
    assert found["value"] == [b"v5", b"v6", b"v9", b"v10", b"v11"]
    assert found["key"] == [None, b"k6", None, b"k10", None]
    assert found["sequence"] == [105, 106, 109, 110, 111]
    assert found["producer"] == [PRODUCER] * 2 + [OTHER] * 3
    assert found["value_size"] == [2, 2, 2, 3, 3]
    assert found["passed"] == [0, 0, 2, 0, 0]
    assert found["epoch"] == [4] * 5
    assert found["segment"] == [2] * 5
    assert (found["incarnation"][0], found["range_start"][0], found["range_end"][4]) == ORIGIN
    assert found["headers"] == [[{"key": "h", "value": b"x"}]] * 5
    assert {time.timestamp() for time in found["timestamp"]} == {1_700_000_000.123}
    assert {time.timestamp() for time in found["append_time"]} == {1_700_000_000.5}


def test_values_of_a_large_batch_are_not_copied() -> None:
    rows = rows_of(0, 1000)
    batch = BatchBuilder(DEFAULT_COLUMNS).build([rows], ORIGIN)
    ours = batch.column(DEFAULT_COLUMNS.index("value")).buffers()[2]
    assert ours.address == rows.table.table.column("value").chunk(0).buffers()[2].address


def test_constants_are_those_of_the_batch() -> None:
    builder = BatchBuilder(("topic", "partition", "value"))
    first = builder.build([rows_of(0, 10)], ORIGIN)
    second = builder.build([rows_of(0, 5000, partition=4)], ORIGIN)
    third = builder.build([rows_of(0, 10)], ORIGIN)
    assert set(first.column(1).to_pylist()) == {3}
    assert set(second.column(1).to_pylist()) == {4}
    assert second.num_rows == 5000
    assert set(third.column(1).to_pylist()) == {3}


@pytest.mark.parametrize("wild", [2**63 - 1, -(2**63), 0, None])
def test_any_time_that_a_sender_gives_can_be_read(wild: int | None) -> None:
    batch = BatchBuilder(("timestamp",)).build([rows_of(0, 1, timestamp=wild)], ORIGIN)
    (time,) = batch.column(0).cast(pa.int64()).to_pylist()
    assert (time is None) == (wild is None)
    assert wild is None or (time > 0) == (wild > 0)


def test_columns_are_chosen_by_name() -> None:
    assert chosen("value, key") == ("value", "key")
    assert chosen("*,segment") == (*DEFAULT_COLUMNS, "segment")
    assert ddl(("offset", "headers")) == "`offset` bigint, `headers` array<struct<key:string,value:binary>>"


PAIRS = [("n", None), ("", b""), ("n", b"2"), ("a", None)]


def test_nulls_and_repeated_headers_are_those_of_the_messages() -> None:
    rows = rows_of(5, 2)
    table = rows.table.table.set_column(1, SCHEMA.field(1), pa.array([None, b""], pa.binary()))
    table = table.set_column(3, SCHEMA.field(3), pa.array([PAIRS, None], HEADERS_TYPE))
    rows = rows._replace(table=rows.table._replace(table=pa.concat_tables([table, table.slice(1)])))
    batch = BatchBuilder(("value", "headers", "value_size")).build([rows], ORIGIN)
    found = batch.to_pydict()
    assert found["value"] == [None, b"", b""]
    assert found["value_size"] == [None, 0, 0]
    assert found["headers"] == [[{"key": name, "value": value} for name, value in PAIRS], None, None]
    for begin in (0, 1):
        assert headers_as_map(batch.column(1).slice(begin)).to_pylist() == [PAIRS, None, None][begin:]
