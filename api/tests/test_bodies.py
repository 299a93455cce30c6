"""Bodies that other processes wrote: whatever their bytes say, they are read in full or refused."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seriatim_api.batch import FLAG_LZ4, FLAG_ZSTD
from seriatim_api.bodies import SCHEMA, read_body, read_keys
from seriatim_api.errors import BatchMismatchError, UnreadableBodyError
from seriatim_api.record_batches import UNPACKED_SIZE_BYTES_MAX, read_layout

MAGIC = {"lz4": b"\x04\x22\x4d\x18", "zstd": b"\x28\xb5\x2f\xfd"}
FLAGS = {None: 0, "lz4": FLAG_LZ4, "zstd": FLAG_ZSTD}
ROWS: list[dict[str, Any]] = [
    {"key": b"AAAAAAAA", "value": b"v1", "timestamp": 1, "headers": [("n", b"h"), ("\N{EURO SIGN}", b"")], "tag": "t"},
    {"key": None, "value": b"", "timestamp": -1, "headers": [], "tag": None},
    {"key": b"BBBBBBBB", "value": b"v3" * 9, "timestamp": 3, "headers": None, "tag": "\N{EURO SIGN}"},
]


def written(rows: Any, schema: Any = SCHEMA, compression: str | None = None) -> bytes:
    """The message of a record batch, without its schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(rows)
    source = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(source)
    return bytes(pa.ipc.read_message(source).serialize().to_pybytes())


def body_of(rows: list[dict[str, Any]], compression: str | None = None) -> bytes:
    return written(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), SCHEMA, compression)


def replaced(body: bytes, old: bytes, new: bytes) -> bytes:
    assert body.count(old) == 1
    return body.replace(old, new)


def begins_with(stated: int, compression: str) -> bytes:
    """The begin of a compressed buffer that says that it unpacks to this many bytes."""
    return struct.pack("<q", stated) + MAGIC[compression]


PLAIN = body_of([{"key": b"A" * 8, "value": b"v", "timestamp": 1}] * 3)
KEY_ENDS = struct.pack("<4i", 0, 8, 16, 24)


@pytest.mark.parametrize("compression", FLAGS)
def test_rows_are_those_that_were_written(compression: str | None) -> None:
    body = body_of(ROWS, compression)
    assert read_body(body, 3, FLAGS[compression]).to_pylist() == ROWS
    assert read_keys(body, 3).to_pylist() == [row["key"] for row in ROWS]


@pytest.mark.parametrize("compression", FLAGS)
def test_nulls_repeated_names_and_order_are_kept(compression: str | None) -> None:
    pairs = [("n", None), ("", b""), ("n", b"2"), ("\N{EURO SIGN}", None), ("a", b"1"), ("n", b"2")]
    rows = [
        {"key": b"k", "value": None, "timestamp": 1, "headers": pairs, "tag": None},
        {"key": b"k", "value": b"", "timestamp": 2, "headers": pairs[::-1], "tag": None},
        {"key": None, "value": None, "timestamp": 3, "headers": [], "tag": "t"},
    ]
    body = body_of(rows, compression)
    assert read_body(body, 3, FLAGS[compression]).to_pylist() == rows
    assert read_keys(body, 3).to_pylist() == [b"k", b"k", None]


@pytest.mark.parametrize("compression", FLAGS)
@pytest.mark.parametrize("count", [1, 30_000])
def test_what_a_body_unpacks_to_is_known_before(compression: str | None, count: int) -> None:
    body = body_of([{"key": b"k", "value": b"v" * 9, "timestamp": 5}] * count, compression)
    layout = read_layout(body, count)
    assert layout.compression == FLAGS[compression]
    assert 22 * count <= layout.unpacked_bytes <= 60 * count + 600


FAR = (0, 0x70000000, 0x70000008, 0x70000010)


@pytest.mark.parametrize(
    ("ends", "compression"),
    [
        (FAR, None),
        ((0, 8, 16, 4000), None),
        ((0, 16, 8, 24), None),
        ((-8, 0, 8, 24), None),
        (FAR, "lz4"),
        (FAR, "zstd"),
    ],
)
def test_ends_that_lie_are_refused(ends: tuple[int, ...], compression: str | None) -> None:
    body = replaced(PLAIN, KEY_ENDS, struct.pack("<4i", *ends))
    if compression:  # the same buffers, compressed
        body = written(pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA), SCHEMA, compression)
    with pytest.raises(UnreadableBodyError):
        read_body(body, 3)
    with pytest.raises(UnreadableBodyError):
        read_keys(body, 3)


def test_text_that_is_none_is_refused() -> None:
    for name in ("tag", "headers"):
        row = {"value": b"", "timestamp": 0, "tag": "ttt", "headers": [("ttt", b"")]}
        body = body_of([{**row, "headers" if name == "tag" else "tag": None}])
        with pytest.raises(UnreadableBodyError, match="UTF8"):
            read_body(replaced(body, b"ttt", b"t\xfft"), 1)


def test_a_time_that_is_null_is_refused() -> None:
    with pytest.raises(UnreadableBodyError, match="a time"):
        read_body(body_of([{"value": b"v", "timestamp": time} for time in (1, None)]), 2)


def test_the_name_of_a_header_that_is_null_is_refused() -> None:
    """Lists of pairs have the nodes and buffers of maps. In a map, Arrow does not let us write such a name."""
    pairs = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
    others = SCHEMA.set(3, pa.field("headers", pairs))
    for row in ([{"key": "n", "value": b"c"}, {"key": None, "value": b"c"}], [None]):
        rows = pa.RecordBatch.from_pylist([{"value": b"", "timestamp": 0, "headers": row}], schema=others)
        with pytest.raises(UnreadableBodyError, match="name of a header"):
            read_body(written(rows, others), 1)


@pytest.mark.parametrize("nulls", [1, 4, -1])
def test_another_number_of_null_values_is_refused(nulls: int) -> None:
    """Three rows, of which the metadata says that this many have no value, and two have none."""
    body = body_of([{"value": value, "timestamp": 1} for value in (b"v", None, None)])
    stated, wrong = struct.pack("<2q", 3, 2), struct.pack("<2q", 3, nulls)
    with pytest.raises(UnreadableBodyError):
        read_body(replaced(body, stated, wrong), 3)


def columns(**changed: Any) -> dict[str, Any]:
    rows = {name: pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA).column(name) for name in SCHEMA.names}
    return {**rows, **changed}


class Marked(pa.ExtensionType):
    """A type of its own."""

    def __init__(self) -> None:
        super().__init__(pa.list_(pa.binary()), "test.marked")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: Any, _data: bytes) -> Marked:
        return cls()


LISTS = pa.array([[b"a"], [], [b"b"]], pa.list_(pa.binary()))
OTHER_SCHEMAS = {
    "a dictionary": columns(key=pa.array([b"a", b"b", b"a"], pa.binary()).dictionary_encode()),
    "run ends": columns(tag=pa.RunEndEncodedArray.from_arrays([3], ["t"])),
    "views": columns(value=pa.array([b"a" * 40] * 3, pa.binary_view())),
    "large offsets": columns(value=pa.array([b"a", b"b", b"c"], pa.large_binary()), more=LISTS),
    "a list": columns(value=LISTS),
    "an extension": columns(value=pa.ExtensionArray.from_storage(Marked(), LISTS)),
    "a union": columns(tag=pa.UnionArray.from_sparse(pa.array([0, 0, 0], pa.int8()), [pa.array([1, 2, 3])])),
    "only nulls": columns(tag=pa.nulls(3)),
    "one column less": {name: column for name, column in columns().items() if name != "tag"},
    "one more": columns(more=pa.array([1, 2, 3])),
    "10,000 more": columns(**{f"c{number}": pa.array([1, 2, 3], pa.int8()) for number in range(10_000)}),
    "none": {},
}


@pytest.mark.parametrize("name", OTHER_SCHEMAS)
def test_record_batches_of_other_schemas_are_refused(name: str) -> None:
    rows = pa.RecordBatch.from_pydict(OTHER_SCHEMAS[name])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    source = pa.BufferReader(sink.getvalue())
    count = 0
    while True:
        try:
            message = pa.ipc.read_message(source)
        except EOFError:
            break
        count += 1
        with pytest.raises((UnreadableBodyError, BatchMismatchError)):
            read_body(message.serialize().to_pybytes(), 3)
    assert count >= 2, "its schema, dictionaries, and the record batch"


def test_values_with_short_ends_and_long_ones_are_not_mixed_up() -> None:
    """Large binary has the same nodes and buffers: only its offsets differ."""
    rows = columns(value=pa.array([b"a", b"b", b"c"], pa.large_binary()))
    body = written(pa.RecordBatch.from_pydict(rows), pa.RecordBatch.from_pydict(rows).schema)
    try:
        found = read_body(body, 3)
    except UnreadableBodyError:
        return
    assert all(len(value) <= 3 for value in found.column(1).to_pylist()), "nothing from outside the buffer"


def test_metadata_of_its_own_is_refused() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA), custom_metadata={"a": "b"})
    source = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(source)
    with pytest.raises(UnreadableBodyError, match="metadata of its own"):
        read_body(pa.ipc.read_message(source).serialize().to_pybytes(), 3)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_small_body_that_unpacks_to_much_is_refused_before(compression: str) -> None:
    body = body_of([{"key": bytes(UNPACKED_SIZE_BYTES_MAX), "value": b"", "timestamp": 0}], compression)
    assert len(body) < 30_000
    for read in (read_body, read_keys):
        with pytest.raises(UnreadableBodyError, match="unpacks to") as caught:
            read(body, 1)
        assert int(caught.value.details["size_bytes"]) > UNPACKED_SIZE_BYTES_MAX


@pytest.mark.parametrize("stated", [8, 1 << 20, -1, -2, 1 << 62])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_stated_length_that_lies_is_refused(stated: int, compression: str) -> None:
    body = body_of([{"key": b"k" * 4000, "value": b"", "timestamp": 0}], compression)
    with pytest.raises(UnreadableBodyError):
        read_body(replaced(body, begins_with(4000, compression), begins_with(stated, compression)), 1)


def test_a_body_is_compressed_as_its_header_says() -> None:
    with pytest.raises(UnreadableBodyError, match="another way"):
        read_body(body_of(ROWS, "lz4"), 3, FLAG_ZSTD)
    with pytest.raises(UnreadableBodyError, match="another way"):
        read_body(body_of(ROWS), 3, FLAG_LZ4)


def test_another_number_of_messages_is_a_mismatch() -> None:
    with pytest.raises(BatchMismatchError, match="says 2 messages, and its body has 3"):
        read_body(PLAIN, 2)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 100, -1])
def test_a_body_that_was_cut_or_has_more_is_refused(length: int) -> None:
    with pytest.raises(UnreadableBodyError):
        read_body(PLAIN[:length], 3)
    with pytest.raises(UnreadableBodyError):
        read_body(PLAIN + bytes(8), 3)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(PLAIN) - 8), st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]))
def test_numbers_anywhere_are_survived(at: int, number: int) -> None:
    body = PLAIN[:at] + struct.pack("<q", number) + PLAIN[at + 8 :]
    try:
        rows = read_body(body, 3)
    except (UnreadableBodyError, BatchMismatchError):
        return
    assert all(len(key or b"") <= 24 for key in rows.column(0).to_pylist())
