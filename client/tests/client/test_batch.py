"""Bodies: the same rows come out that went in, with any field missing, and damage is noticed."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seriatim._bodies.arrow import SCHEMA, conform, decode, encode, encode_record_batch
from seriatim._consuming.inbox import messages_of
from seriatim._producing.pending import split_rows
from seriatim._values.headers import pairs_of
from seriatim_api.errors import BadRequestError, BatchMismatchError, ChecksumMismatchError, IllegalMessageError

ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=5),
        st.integers(-(1 << 62), 1 << 62),
        st.none() | st.lists(st.tuples(st.text(max_size=2), st.none() | st.binary(max_size=3)), max_size=4),
        st.none() | st.text(max_size=4),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(rows=ROWS, compression=st.sampled_from([None, "lz4", "zstd"]))
def test_what_goes_in_comes_out(rows: list, compression: str | None) -> None:
    values, keys, timestamps, headers, tags = map(list, zip(*rows, strict=True))
    body = encode(values, keys, timestamps, headers, tags, compression)
    batch = decode(memoryview(body.data), len(rows), body.crc)
    assert batch.schema == SCHEMA
    batch.validate(full=True)
    assert batch.column(0).to_pylist() == keys
    assert batch.column(1).to_pylist() == values
    assert batch.column(2).to_pylist() == timestamps
    assert batch.column(3).to_pylist() == [row or [] for row in headers]
    assert batch.column(4).to_pylist() == tags
    assert (body.message_count, body.first_timestamp_ms, body.last_timestamp_ms) == (
        len(rows),
        timestamps[0],
        timestamps[-1],
    )
    messages = list(messages_of("t", 0, 0, batch))
    assert [None if message.value_is_null else message.value for message in messages] == values
    assert [message.value for message in messages] == [value or b"" for value in values]
    assert [list(message.header_list) for message in messages] == [row or [] for row in headers]
    assert [message.headers for message in messages] == [
        {name: value or b"" for name, value in row or ()} for row in headers
    ]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda message: pickle.loads(pickle.dumps(message))])
def test_a_copy_of_a_message_has_the_same_headers(copied: Any) -> None:
    pairs = [("n", None), ("a", b"1"), ("n", b"2")]
    body = encode([None], None, [1], [pairs])
    (message,) = messages_of("t", 0, 0, decode(body.data, 1, body.crc))
    assert copied(message) == message
    assert copied(message).header_list == message.header_list == tuple(pairs)
    assert pairs_of(type(message.headers)(message.headers)) == (("n", b"2"), ("a", b"1"))  # as asdict copies it


def test_a_body_without_nulls_is_written_as_before() -> None:
    """A reader of the version before refuses bodies with null values, and reads all others."""
    body = encode([b"a", b""], [b"k", None], [1, 2], [[("n", b"1")], None])
    batch = decode(body.data, 2, body.crc)
    assert batch.column(1).buffers()[0] is None
    assert batch.column(3).items.buffers()[0] is None


@pytest.mark.parametrize("value", [pa.binary(), pa.utf8()])
def test_headers_of_a_table_may_be_lists_of_pairs(value: Any) -> None:
    kind = pa.list_(pa.struct([("name", pa.utf8()), ("content", value)]))
    rows = [None, [("n", "1"), ("", None), ("n", "2")], [], [("a", "x")], [("b", "y"), ("a", None)]]
    lists = pa.array([row and [{"name": name, "content": text} for name, text in row] for row in rows], kind)
    wanted = [row and [(name, text and text.encode()) for name, text in row] for row in rows]
    for begin in range(len(rows)):
        whole = pa.chunked_array([lists.slice(begin, 2), lists.slice(begin)])
        table = conform(pa.table({"value": [b""] * len(whole), "headers": whole}), 5)
        table.validate(full=True)
        assert table.column("headers").to_pylist() == wanted[begin : begin + 2] + wanted[begin:]


@pytest.mark.parametrize("wrong", [[None], [{"name": None, "content": b""}]])
def test_a_header_without_a_name_refuses_its_table(wrong: list[Any]) -> None:
    kind = pa.list_(pa.struct([("name", pa.utf8()), ("content", pa.binary())]))
    with pytest.raises(IllegalMessageError, match="name"):
        conform(pa.table({"value": [b""], "headers": pa.array([wrong], kind)}), 5)


@pytest.mark.parametrize("keys", [None, [b"k"], [None]])
def test_one_message_may_have_no_value(keys: list[bytes | None] | None) -> None:
    body = encode([None], keys, [7])
    (message,) = messages_of("t", 0, 0, decode(body.data, 1, body.crc))
    assert (message.key, message.value, message.value_is_null, message.timestamp_ms) == (keys and keys[0], b"", True, 7)


def test_columns_that_are_missing_are_null() -> None:
    body = encode([b"a", b"b"], None, [1, 2])
    batch = decode(body.data, 2, body.crc)
    assert batch.column(0).null_count == batch.column(3).null_count == batch.column(4).null_count == 2


def test_damage_is_noticed() -> None:
    body = encode([b"a"], None, [1])
    with pytest.raises(ChecksumMismatchError):
        decode(body.data[:-1] + b"x", 1, body.crc)
    with pytest.raises(BatchMismatchError):
        decode(body.data, 2, body.crc)
    with pytest.raises(BadRequestError):
        decode(b"nothing", 1, _crc(b"nothing"))


def _crc(data: bytes) -> int:
    import google_crc32c

    value: int = google_crc32c.value(data)
    return value


@pytest.mark.parametrize("columns", ["[b'k'], [1], [[('h', b'')]], ['t']", "None, [1]", "[b'k'], [1], None, ['t']"])
def test_encoding_does_not_import_pandas(columns: str) -> None:
    code = (
        "import sys; from seriatim._bodies.arrow import encode, decode;"
        f"b = encode([b'a'], {columns}); decode(b.data, 1, b.crc).to_pylist();"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_table_is_completed_and_not_copied() -> None:
    values = pa.array([b"a", b"b"], pa.binary())
    table = conform(pa.table({"value": values, "tag": ["x", None]}), 5)
    assert table.schema == SCHEMA
    assert table.column("timestamp").to_pylist() == [5, 5]
    assert table.column("value").chunk(0).buffers()[2].address == values.buffers()[2].address
    for wrong in ({"key": [b""]}, {"value": [b""], "other": [1]}, {"value": [[1]]}):
        with pytest.raises(TypeError):
            conform(pa.table(wrong), 5)


def test_rows_are_split_without_loss() -> None:
    table = conform(pa.table({"value": [bytes(n * 10) for n in range(100)]}), 1)
    [batch] = table.combine_chunks().to_batches()
    parts = split_rows(batch, 5000)
    assert len(parts) > 5
    assert [v for part, _ in parts for v in part.column(1).to_pylist()] == batch.column(1).to_pylist()
    assert all(part.nbytes < size <= 5000 for part, size in parts)
    assert split_rows(batch.slice(0, 0), 10) == []


def test_a_slice_of_a_long_table_is_no_longer_than_its_rows() -> None:
    """Empty columns cost a slice nothing, however many rows the table has."""
    table = conform(pa.table({"value": [bytes(100)] * 50_000}), 1)
    [batch] = table.combine_chunks().to_batches()
    body = encode_record_batch(batch.slice(20_000, 100), 1, 1, False, None)
    assert len(body.data) < 100 * (100 + 32) + 2_000
    assert decode(body.data, 100, body.crc).to_pylist()[0]["headers"] is None
