"""Keys and single messages out of the bodies that clients send."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from seriatim_api.batch import FLAG_KEYED, FLAG_LZ4, FLAG_ZSTD, parse_header
from seriatim_api.bodies import SCHEMA
from seriatim_api.dead_letters import DeadLetterOrigin, origin_of
from seriatim_api.errors import UnreadableBodyError
from seriatim_broker.adapters.arrow_bodies import ArrowBodies
from seriatim_broker.core.values.log import Batch

from broker.tests.headers import header_of

FLAGS = {"": 0, "lz4": FLAG_LZ4, "zstd": FLAG_ZSTD}


def body_of(keys: list[bytes | None], base: int, compression: str) -> bytes:
    rows = [
        {"key": key, "value": b"v%d" % (base + at), "timestamp": base + at, "headers": [("n", b"h")], "tag": "t"}
        for at, key in enumerate(keys)
    ]
    return written(rows, compression)


def written(rows: list[dict[str, Any]], compression: str) -> bytes:
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    if not compression:
        return bytes(batch.serialize().to_pybytes())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(batch)
    source = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(source)
    return bytes(pa.ipc.read_message(source).serialize().to_pybytes())


def batch_of(body: bytes, count: int, flags: int = FLAG_KEYED) -> Batch:
    header = header_of(body, message_count=count, flags=flags)
    return Batch(parse_header(header), body)


@pytest.mark.parametrize("compression", FLAGS)
def test_keys_and_messages_are_those_that_were_sent(compression: str) -> None:
    bodies = ArrowBodies()
    keys: list[bytes | None] = [b"a", None, b"", b"a"]
    one = batch_of(body_of(keys, 0, compression), 4, FLAG_KEYED | FLAGS[compression])
    other = batch_of(body_of([b"b"] * 3, 100, ""), 3)
    assert bodies.keys(one) == tuple(keys)
    first, second = bodies.open(one), bodies.open(other)
    places = [(first, 0, 1), (second, 2, 3), (first, 1, 2), (first, 3, 4), (second, 0, 1)]
    joined = bodies.join([(body, range(begin, end)) for body, begin, end in places])
    rows = pa.ipc.read_record_batch(pa.py_buffer(joined), SCHEMA)
    assert rows.column(1).to_pylist() == [b"v0", b"v102", b"v1", b"v3", b"v100"]
    assert rows.column(3).to_pylist() == [[("n", b"h")]] * 5
    part = pa.ipc.read_record_batch(pa.py_buffer(bodies.join([(first, range(1, 3))])), SCHEMA)
    assert part.column(0).to_pylist() == [None, b""]


@pytest.mark.parametrize("compression", FLAGS)
def test_messages_that_were_taken_out_are_a_body_of_their_own(compression: str) -> None:
    bodies = ArrowBodies()
    many = bodies.open(batch_of(body_of([b"a"] * 500, 0, compression), 500, FLAG_KEYED | FLAGS[compression]))
    few = bodies.join([(many, range(7, 8)), (many, range(400, 401))])
    assert len(few) < 2_000, "nothing of the others is in it"
    opened = bodies.open_joined(few)
    assert opened.size_bytes == len(few)
    rows = pa.ipc.read_record_batch(
        pa.py_buffer(bodies.join([(opened, range(1, 2)), (many, range(8, 9)), (opened, range(1))])), SCHEMA
    )
    assert rows.column(1).to_pylist() == [b"v400", b"v8", b"v7"]
    assert rows.column(3).to_pylist() == [[("n", b"h")]] * 3


def plain_body(first: int, count: int, *, is_keyed: bool) -> bytes:
    columns = [
        pa.array([b"k%d" % n if n % 5 else b"" for n in range(first, first + count)], pa.binary())
        if is_keyed
        else pa.nulls(count, pa.binary()),
        pa.array([b"v" * (n % 7) for n in range(first, first + count)], pa.binary()),
        pa.array(range(first, first + count), pa.int64()),
        pa.nulls(count, SCHEMA.field("headers").type),
        pa.nulls(count, pa.utf8()),
    ]
    return bytes(pa.RecordBatch.from_arrays(columns, schema=SCHEMA).serialize().to_pybytes())


@pytest.mark.parametrize("keyed", [(True, True), (False, False), (True, False)])
def test_messages_without_headers_are_put_together_in_any_order(keyed: tuple[bool, bool]) -> None:
    bodies = ArrowBodies()
    opened = [
        bodies.open(batch_of(plain_body(1_000 * at, 200, is_keyed=is_keyed), 200)) for at, is_keyed in enumerate(keyed)
    ]
    places = [(0, 7, 8), (1, 5, 8), (0, 199, 200), (0, 3, 5), (1, 0, 1), (0, 20, 50), (1, 9, 10), (1, 8, 9)]
    parts = [(which, range(begin, end)) for which, begin, end in places]
    rows = pa.ipc.read_record_batch(
        pa.py_buffer(bodies.join([(opened[which], wanted) for which, wanted in parts])), SCHEMA
    )
    rows.validate(full=True)
    numbers = [1_000 * which + row for which, wanted in parts for row in wanted]
    assert rows.column(2).to_pylist() == numbers
    assert rows.column(1).to_pylist() == [b"v" * (number % 7) for number in numbers]
    assert rows.column(0).to_pylist() == [
        (b"k%d" % number if number % 5 else b"") if keyed[number // 1_000] else None for number in numbers
    ]
    assert rows.column(3).null_count == rows.column(4).null_count == len(numbers)


@pytest.mark.parametrize("compression", ["", "zstd"])
@pytest.mark.parametrize("is_plain", [True, False])
def test_the_size_of_messages_is_about_that_of_a_body_with_them(compression: str, is_plain: bool) -> None:
    bodies = ArrowBodies()
    count = 50
    if is_plain:
        body, flags = plain_body(0, count, is_keyed=True), FLAG_KEYED
    else:
        body = body_of([b"key-%d" % number * (number + 1) for number in range(count)], 0, compression)
        flags = FLAG_KEYED | (FLAG_ZSTD if compression else 0)
    opened = bodies.open(batch_of(body, count, flags))
    empty = len(bodies.join([(opened, range(1))])) - bodies.size_of(opened, range(1))
    for rows in (range(count), range(1), range(7, 8), range(3, 41)):
        whole = len(bodies.join([(opened, rows)]))
        assert whole - empty - 256 <= bodies.size_of(opened, rows) <= whole
    parts = sum(bodies.size_of(opened, range(row, row + 1)) for row in range(count))
    assert abs(parts - bodies.size_of(opened, range(count))) <= 16 * count


def test_messages_without_keys_have_none() -> None:
    assert ArrowBodies().keys(batch_of(body_of([None, None], 0, ""), 2, 0)) is None
    assert ArrowBodies().keys(batch_of(body_of([None, None], 0, ""), 2)) is None


@pytest.mark.parametrize("flags", [FLAG_KEYED, FLAG_KEYED | FLAG_LZ4])
def test_a_body_of_another_form_or_length_is_an_error(flags: int) -> None:
    bodies = ArrowBodies()
    with pytest.raises(UnreadableBodyError):
        bodies.keys(batch_of(b"no body at all", 2, flags))
    with pytest.raises(UnreadableBodyError):
        bodies.keys(batch_of(body_of([b"a"], 0, "lz4" if flags & FLAG_LZ4 else ""), 2, flags))


def test_taking_a_body_apart_does_not_import_pandas() -> None:
    keys: list[bytes | None] = [b"a", b"b", b"a"]
    batch = batch_of(body_of(keys, 0, ""), 3)
    program = f"""
import sys
from seriatim_api.batch import parse_header
from seriatim_broker.adapters.arrow_bodies import ArrowBodies
from seriatim_broker.core.values.log import Batch
bodies = ArrowBodies()
bodies.prepare()
batch = Batch(parse_header({batch.header.raw!r}), {batch.body!r})
one, other = bodies.open(batch), bodies.open(batch)
bodies.join([(one, range(1)), (one, range(2, 3)), (other, range(1, 2)), (one, range(1, 2))])
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_dead_letter_has_all_that_its_message_has_and_where_it_comes_from() -> None:
    bodies = ArrowBodies()
    opened = bodies.open(batch_of(body_of([b"a", None], 5, "lz4"), 2, FLAG_KEYED | FLAG_LZ4))
    origin = DeadLetterOrigin("orders", 3, 1 << 40 | 7, "billing", 5, "no such account \N{EURO SIGN}", 99)
    for row, key in enumerate((b"a", None)):
        letter = bodies.dead_letter(opened, row, origin)
        assert (letter.timestamp_ms, letter.is_keyed) == (5 + row, key is not None)
        (found,) = pa.ipc.read_record_batch(pa.py_buffer(letter.body), SCHEMA).to_pylist()
        headers = dict(found["headers"])
        assert (found["key"], found["value"], found["timestamp"], found["tag"]) == (
            key,
            b"v%d" % (5 + row),
            5 + row,
            "t",
        )
        assert headers["n"] == b"h"
        assert origin_of(headers) == origin


PAIRS = [("n", None), ("", b""), ("n", b"2"), ("a", None), ("n", b"1")]


def nulls_body(first: int, compression: str) -> bytes:
    """Three messages. The second and the third have no value, and each has all of `PAIRS`."""
    rows = [
        {"key": b"k", "value": b"v%d" % first if not at else None, "timestamp": first + at, "headers": PAIRS}
        for at in range(3)
    ]
    return written(rows, compression)


@pytest.mark.parametrize("compression", FLAGS)
def test_a_master_takes_nulls_and_counts_the_keys_of_such_messages(compression: str) -> None:
    bodies, body = ArrowBodies(), nulls_body(0, compression)
    bodies.check(body, 3, FLAGS[compression])
    assert bodies.largest_message(body, 3) == 3
    rows = [{"key": b"long key", "value": None, "timestamp": 1}, {"key": b"k", "value": b"v", "timestamp": 1}]
    for part in (rows, rows[:1]):
        one = pa.RecordBatch.from_pylist(part, schema=SCHEMA).serialize().to_pybytes()
        assert bodies.largest_message(one, len(part)) == 8


@pytest.mark.parametrize("compression", FLAGS)
def test_joined_messages_keep_nulls_and_headers_in_order(compression: str) -> None:
    bodies = ArrowBodies()
    flags = FLAG_KEYED | FLAGS[compression]
    opened = [bodies.open(batch_of(nulls_body(at, compression), 3, flags)) for at in (10, 20)]
    plain = bodies.open(batch_of(plain_body(30, 3, is_keyed=True), 3))
    parts = [(opened[0], range(1, 3)), (opened[1], range(1)), (plain, range(3)), (opened[0], range(1))]
    body = bodies.join(parts)
    bodies.check(body, 7, 0)
    rows = pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA).to_pylist()
    assert [row["value"] for row in rows] == [None, None, b"v20", b"vv", b"vvv", b"vvvv", b"v10"]
    assert [row["headers"] for row in rows] == [PAIRS] * 3 + [None] * 3 + [PAIRS]


def test_messages_without_values_and_headers_are_joined() -> None:
    bodies = ArrowBodies()
    values = [b"", None, b"v", None]
    rows = [{"key": b"k", "value": value, "timestamp": at} for at, value in enumerate(values)]
    body = pa.RecordBatch.from_pylist(rows, schema=SCHEMA).serialize().to_pybytes()
    opened = bodies.open(batch_of(bytes(body), 4))
    joined = bodies.join([(opened, range(3, 4)), (opened, range(2))])
    assert pa.ipc.read_record_batch(pa.py_buffer(joined), SCHEMA).column(1).to_pylist() == [None, b"", None]


def test_a_dead_letter_keeps_a_null_value_and_its_headers() -> None:
    bodies = ArrowBodies()
    opened = bodies.open(batch_of(nulls_body(0, ""), 3))
    origin = DeadLetterOrigin("orders", 3, 1 << 40 | 7, "billing", 5, "no", 99)
    letter = bodies.dead_letter(opened, 1, origin)
    bodies.check(letter.body, 1, 0)
    (found,) = pa.ipc.read_record_batch(pa.py_buffer(letter.body), SCHEMA).to_pylist()
    assert found["value"] is None
    assert found["headers"] == [*PAIRS, *origin.headers()]


def test_a_body_with_one_message() -> None:
    body = ArrowBodies().single(None, b"v", -1, [])
    (found,) = pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA).to_pylist()
    assert (found["key"], found["value"], found["timestamp"], found["headers"]) == (None, b"v", -1, None)
