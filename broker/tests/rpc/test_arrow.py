"""The row count of a record batch, against pyarrow, and on bytes that are no record batch."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seriatim_broker.rpc.arrow import row_count


@pytest.mark.parametrize("rows", [0, 1, 7, 100_000])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_rows_of_what_pyarrow_writes(rows: int, compression: str | None) -> None:
    columns = {
        "key": pa.array([b"k"] * rows, pa.binary()),
        "value": pa.array([b"v" * 9] * rows, pa.binary()),
        "timestamp": pa.array([5] * rows, pa.int64()),
        "headers": pa.array([None] * rows, pa.map_(pa.string(), pa.binary())),
    }
    options = pa.ipc.IpcWriteOptions(compression=compression)
    sink = pa.BufferOutputStream()
    batch = pa.record_batch(columns)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue().to_pybytes()
    schema = batch.schema.serialize().to_pybytes()
    assert stream.startswith(schema)
    assert row_count(stream[len(schema) :]) == rows
    assert row_count(schema) is None  # a message, but no record batch


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 199))
def test_any_bytes_are_survived(garbage: bytes, cut: int) -> None:
    row_count(garbage)
    real = bytes(pa.record_batch({"value": pa.array([b"x"], pa.binary())}).serialize())
    assert row_count(real[:cut]) in (None, 1)
    row_count(real[:cut] + garbage)
