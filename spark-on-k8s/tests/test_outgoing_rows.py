"""Rows on their way to a topic: columns, and where each row goes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from seriatim_spark.errors import RowError, SchemaMismatchError
from seriatim_spark.writing import outgoing_rows
from seriatim_spark.writing.outgoing_rows import check_schema, goes_by_task, slices


def batch(count: int, **columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"%d" % n for n in range(count)]), **columns})


def test_columns_that_a_message_has_are_taken() -> None:
    check_schema([("value", "binary")])
    check_schema(
        [
            ("key", "string"), ("value", "string"), ("timestamp", "timestamp"), ("headers", "map<string,binary>"),
            ("tag", "string"), ("partition", "int"),
        ]
    )  # fmt: skip

    check_schema([("value", "binary"), ("headers", "array<struct<key:string,value:binary>>")])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ([("value", "binary"), ("offset", "bigint"), ("key", "binary")], "'offset'.*rows.select.'value', 'key'"),
        ([("key", "binary")], "no column 'value'"),
        ([("Value", "binary")], "column 'Value'"),
        ([("value", "bigint")], "'value' is bigint, and not binary or string: cast it"),
        ([("value", "binary"), ("partition", "double")], "'partition' is double"),
        ([("value", "binary"), ("value", "binary")], "twice"),
    ],
)
def test_other_columns_are_refused(fields: list[tuple[str, str]], told: str) -> None:
    with pytest.raises(SchemaMismatchError, match=told):
        check_schema(fields)


def test_small_batches_go_together_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_rows, "SLICE_ROWS", 5)
    keys = pa.array([b"a", b"b"])
    found = list(slices([batch(2, key=keys)] * 4 + [batch(0, key=keys.slice(0, 0))]))
    assert [one.table.num_rows for one in found] == [6, 2]
    assert found[0].table.column("value").to_pylist() == [b"0", b"1"] * 3
    assert found[0].partitions is None
    assert not goes_by_task(*found[0])
    monkeypatch.setattr(outgoing_rows, "SLICE_BYTES", 1)
    assert len(list(slices([batch(2)] * 3))) == 3


def test_a_column_says_where_rows_go() -> None:
    (found,) = slices([batch(3, partition=pa.array([2, 0, 2], pa.int32()), key=pa.array([None, b"k", None]))])
    assert found.partitions.tolist() == [2, 0, 2]
    assert found.table.column_names == ["value", "key"]
    (found,) = slices([batch(3)])
    assert goes_by_task(*found)


def test_a_row_that_goes_nowhere_is_refused() -> None:
    with pytest.raises(RowError, match="no partition"):
        list(slices([batch(2, partition=pa.array([0, None], pa.int32()))]))
    with pytest.raises(RowError, match="no key"):
        list(slices([batch(2, key=pa.array([b"k", None]))]))
