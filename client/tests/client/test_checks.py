"""What a message cannot hold is refused at the call that sends it, and nothing of the call is taken."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from seriatim import Client, Producer, sync
from seriatim._bodies.arrow import HEADERS_TYPE, SCHEMA, row_sizes
from seriatim._core.distance import distance_of
from seriatim._producing.checks import Limits, check_rows
from seriatim._producing.pending import attached_bytes, split_rows
from seriatim._transport import append
from seriatim_api import errors
from seriatim_api.delay_limits import DELAY_MAX_MS_MAX
from seriatim_api.errors import IllegalMessageError, MessageTooLargeError, PartitionOutOfRangeError

from ..fake_broker import FakeCluster, running, until
from .test_public import fake_in_a_thread

PI = "\N{GREEK SMALL LETTER PI}"

FLOAT_MS = 1_700_000_000_123.5
"""What `time.time() * 1000` is like."""

WRONG: list[dict[str, Any]] = [
    {"value": "text"},
    {"value": 5},
    {"value": [1, 2]},
    {"key": "text"},
    {"key": 1},
    {"timestamp_ms": FLOAT_MS},
    {"timestamp_ms": 2**70},
    {"timestamp_ms": -(2**63) - 1},
    {"timestamp_ms": "now"},
    {"timestamp_ms": True},
    {"headers": {"h": "text"}},
    {"headers": {None: b""}},
    {"headers": {1: b""}},
    {"headers": {"\ud800": b""}},
    {"headers": [(None, b"")]},
    {"headers": [("h", b"", 1)]},
    {"headers": ["hv"]},
    {"headers": [("h", "text")]},
    {"headers": [("h", b""), None]},
    {"headers": "hv"},
    {"headers": {"h": b""}.items()},
    {"tag": b"bytes"},
    {"tag": "\udcff"},
    {"delay_ms": -1},
    {"delay_ms": 1.5},
    {"delay_ms": math.nan},
    {"delay_ms": True},
    {"delay_ms": "1s"},
    {"delay_ms": DELAY_MAX_MS_MAX + 1},
    {"delay_ms": 0, "due_ms": 0},
    {"due_ms": -1},
    {"due_ms": FLOAT_MS},
    {"due_ms": math.nan},
    {"due_ms": False},
    {"due_ms": 2**63},
    {"partition": "0"},
    {"partition": 0.0},
    {"partition": True},
]

PLURALS = {
    "value": "values", "key": "keys", "timestamp_ms": "timestamps_ms", "headers": "headers", "tag": "tags",
    "due_ms": "due_ms",
}  # fmt: skip


@asynccontextmanager
async def producing(**options: Any) -> AsyncIterator[tuple[FakeCluster, Producer]]:
    async with running() as cluster:
        cluster.create_topic("t", 1, message_size_bytes_max=1000)
        async with Client.connect(cluster.brokers[0].address) as client, client.producer("t", **options) as producer:
            yield cluster, producer


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
async def test_a_wrong_message_is_refused_at_the_call_and_the_others_are_not_touched(wrong: dict[str, Any]) -> None:
    async with producing() as (cluster, producer):
        before = await producer.send(b"before")
        with pytest.raises(IllegalMessageError) as caught:
            await producer.send(**{"value": b"bad", **wrong})
        assert caught.value.number == 113
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, ValueError)
        with pytest.raises(IllegalMessageError):
            producer.send_nowait(**{"value": b"bad", **wrong})
        if not {"partition", "delay_ms"} & wrong.keys():
            [(name, item)] = wrong.items()
            columns = {"values": [b"good", b"bad"], PLURALS[name]: [{"value": b"v"}.get(name), item]}
            if name == "timestamp_ms":
                columns["timestamps_ms"] = [1, item]
            with pytest.raises(IllegalMessageError):
                await producer.send_many(**columns)
        after = await producer.send(b"after")
        result = await asyncio.wait_for(producer.flush(), 60)
        assert result == (2, 0, 0)
        first, second = await before, await after
        assert second.offset == first.offset + 1
        assert cluster.values("t") == [b"before", b"after"]


async def test_what_may_be_given_for_bytes_and_integers() -> None:
    async with producing() as (cluster, producer):
        value, headers = bytearray(b"a"), {"h": bytearray(b"1")}
        first = await producer.send(
            value, memoryview(b"k"), np.int32(0), np.int64(5), MappingProxyType(headers), PI,  # type: ignore[arg-type]
        )  # fmt: skip
        value[:] = b"x"  # copied by now
        headers["h"], headers["other"] = bytearray(b"2"), bytearray(b"3")
        values: list[Any] = [b"b", bytearray(b"c")]
        many = await producer.send_many(values, None, None, np.array([6, 7]))  # type: ignore[arg-type]
        await first
        await many
        assert cluster.values("t") == [b"a", b"b", b"c"]
        async with client_of(cluster) as client, client.consumer("t", "g") as consumer:
            messages = await consumer.fetch(1, 5)
            while len(messages) < 3:
                messages += await consumer.fetch(3, 5)
        assert [message.timestamp_ms for message in messages] == [5, 6, 7]
        assert (messages[0].key, messages[0].headers, messages[0].tag) == (b"k", {"h": b"1"}, PI)


async def test_nulls_and_repeated_names_come_as_they_were_sent() -> None:
    pairs: list[tuple[str, Any]] = [("n", None), ("", b""), ("n", b"2"), ("a", bytearray(b"1")), ("n", b"1")]
    sent = [(name, value and bytes(value)) for name, value in pairs]
    async with producing() as (cluster, producer):
        await producer.send(None, b"k", headers=pairs)
        pairs[0] = ("other", b"copied by now")
        producer.send_nowait(b"", b"k", headers={"a": None, "b": b"2"})
        await producer.send_many([None, b"v", None], headers=[sent, None, {"b": b"1"}])
        maps = pa.array([sent, []], HEADERS_TYPE)
        await producer.send_table(pa.table({"value": pa.array([b"t", None], pa.binary()), "headers": maps}))
        await producer.flush()
        assert cluster.values("t") == [None, b"", None, b"v", None, b"t", None]
        async with client_of(cluster) as client, client.consumer("t", "g") as consumer:
            messages: list[Any] = []
            while len(messages) < 7:
                messages += await consumer.fetch(7, 5)
    assert [message.value for message in messages] == [b"", b"", b"", b"v", b"", b"t", b""]
    assert [message.value_is_null for message in messages] == [True, False, True, False, True, False, True]
    assert [list(message.header_list) for message in messages] == [
        sent, [("a", None), ("b", b"2")], sent, [], [("b", b"1")], sent, [],
    ]  # fmt: skip
    assert messages[0].headers == {"n": b"1", "": b"", "a": b"1"}
    assert messages[1].headers == {"a": b"", "b": b"2"}


def client_of(cluster: FakeCluster) -> Any:
    return Client.connect(cluster.brokers[0].address)


@pytest.mark.parametrize("values", [b"abc", "abc", memoryview(b"abc"), 5, None])
async def test_columns_are_sequences(values: Any) -> None:
    async with producing() as (_cluster, producer):
        with pytest.raises(IllegalMessageError):
            await producer.send_many(values)
        with pytest.raises(errors.BadRequestError):
            await producer.send_many([b""], tags=["a", "b"])
        assert await producer.flush() == (0, 0, 0)


async def test_headers_and_tag_count_for_the_size_of_a_batch() -> None:
    async with producing() as (cluster, producer):
        large = 2 << 20
        for headers, tag in (({"h": bytes(large)}, None), (None, "t" * large), ({"h" * large: b""}, None)):
            with pytest.raises(MessageTooLargeError):
                await producer.send(b"", headers=headers, tag=tag)
            with pytest.raises(MessageTooLargeError):
                await producer.send_many([b"", b""], headers=[None, headers], tags=[None, tag])
        await (await producer.send(b"", headers={"h": bytes(100_000)}))
        assert producer.buffered_bytes == 0
        assert cluster.values("t") == [b""]


async def test_many_messages_with_headers_are_cut_by_their_whole_size() -> None:
    async with producing(batch_size_bytes=10_000) as (cluster, producer):
        headers = [{"h": bytes(n * 100)} for n in range(50)]
        await (await producer.send_many([b"v"] * 50, headers=headers, tags=["tag"] * 50))
        assert producer.buffered_bytes == producer.unsettled_count == 0
        assert all(len(batch.body) < 20_000 for batch in cluster.partition("t").open_segment.batches)
        assert len(cluster.values("t")) == 50


PAIRS = pa.list_(pa.struct([("name", pa.utf8()), ("value", pa.binary())]))


@pytest.mark.parametrize(
    "table",
    [
        [b"a"],
        pa.table({"key": [b"a"]}),
        pa.table({"value": [b"a"], "other": [1]}),
        pa.table({"value": [b"a"], "timestamp": [1.5]}),
        pa.table({"value": [b"a"], "timestamp": pa.array([2**63], pa.uint64())}),
        pa.table({"value": [b"a"], "headers": pa.array([[{"name": None, "value": b""}]], PAIRS)}),
        pa.table({"value": [b"a"], "headers": pa.array([[None]], PAIRS)}),
        pa.table([[b"a"], [b"b"]], ["value", "value"]),
        pa.table({"value": [b"a"], "tag": [b"\xff"]}),
    ],
    ids=str,
)
async def test_a_wrong_table_is_refused_whole(table: Any) -> None:
    async with producing() as (cluster, producer):
        with pytest.raises(IllegalMessageError):
            await producer.send_table(table)
        with pytest.raises(IllegalMessageError):
            await producer.send_table(pa.table({"value": [b"a"]}), key_column="nothing")
        with pytest.raises(PartitionOutOfRangeError):
            await producer.send_table(pa.table({"value": [b"a"]}), partition=1)
        assert await producer.flush() == (0, 0, 0)
        assert cluster.values("t") == []


async def test_a_row_over_the_limit_refuses_the_whole_table() -> None:
    async with producing(batch_size_bytes=5000) as (cluster, producer):
        rows = [bytes(900)] * 100 + [bytes(1001)]
        with pytest.raises(MessageTooLargeError):
            await producer.send_table(pa.table({"value": rows}))
        with pytest.raises(MessageTooLargeError):
            await producer.send_table(pa.table({"value": [bytes(990)], "key": [bytes(11)]}))
        assert await producer.flush() == (0, 0, 0)
        assert cluster.values("t") == []


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
async def test_arrow_timestamps_become_milliseconds(unit: str) -> None:
    async with producing() as (cluster, producer):
        times = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")).cast(pa.timestamp(unit), safe=False)
        await (await producer.send_table(pa.table({"value": [b"a"], "timestamp": times})))
        [batch] = cluster.partition("t").open_segment.batches
        assert batch.header.first_timestamp_ms == (1_700_000_000_000 if unit == "s" else 1_700_000_000_123)


async def test_a_table_that_is_cut_short_by_close_settles_all_its_rows() -> None:
    async with producing(buffer_size_bytes=3000, batch_size_bytes=1000) as (cluster, producer):
        cluster.partition("t").hold_commit = True
        sending = asyncio.create_task(producer.send_table(pa.table({"value": [bytes(500)] * 20})))
        await until(lambda: bool(cluster.values("t")))
        await producer.close(0)
        parts = await (await sending).settled()
        assert sorted(at for part in parts for at in part.positions) == list(range(20))
        assert {part.outcome for part in parts} == {"unknown", "failed"}
        failed = sum(len(part.positions) for part in parts if part.outcome == "failed")
        assert len(cluster.values("t")) <= 20 - failed


async def test_cancelling_a_send_takes_nothing() -> None:
    """Also in the turn of the loop that a sender gives to others from time to time."""
    async with producing() as (cluster, producer):
        taken = 0
        for _n in range(3000):
            task = asyncio.create_task(producer.send(bytes(900)))
            await asyncio.sleep(0)
            if not task.done():
                task.cancel()
            try:
                await task
                taken += 1
            except asyncio.CancelledError:
                break
        else:
            pytest.fail("no send has waited")
        await producer.flush()
        assert len(cluster.values("t")) == taken


async def test_a_partitioner_that_raises_takes_nothing_and_breaks_nothing() -> None:
    def partitioner(key: bytes, _count: int) -> Any:
        if key == b"index":
            return 1.5
        if key == b"range":
            return 7
        return 0 if key == b"good" else {}[key]

    async with producing(partitioner=partitioner) as (cluster, producer):
        for key, kind in ((b"bad", KeyError), (b"index", IllegalMessageError), (b"range", PartitionOutOfRangeError)):
            with pytest.raises(kind):
                await producer.send(b"", key=key)
        await (await producer.send(b"a", key=b"good"))
        assert cluster.values("t") == [b"a"]


def test_the_synchronous_client_refuses_the_same() -> None:
    with fake_in_a_thread() as cluster, sync.Client.connect(cluster.brokers[0].address) as client:
        client.admin().create_topic("t")
        with client.producer("t") as producer:
            before = producer.send(b"before")
            for wrong in WRONG:
                with pytest.raises(IllegalMessageError):
                    producer.send(**{"value": b"bad", **wrong})
            with pytest.raises(IllegalMessageError):
                producer.send_many([b"a"], timestamps_ms=[FLOAT_MS])  # type: ignore[list-item]
            with pytest.raises(IllegalMessageError):
                producer.send_table(pa.table({"key": [None]}))
            after = producer.send(b"after")
            assert (before.result(5).offset + 1, producer.flush()) == (after.result(5).offset, (2, 0, 0))


ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=9),
        st.none() | st.binary(max_size=9),
        st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=9),
        st.none() | st.text(max_size=4),
    ),
    min_size=1,
    max_size=12,
)


def table_of(rows: list[Any]) -> Any:
    keys, values, headers, tags = zip(*rows, strict=True)
    return pa.table([keys, values, [1] * len(rows), headers, tags], schema=SCHEMA)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(rows=ROWS, begin=st.integers(0, 12))
def test_row_sizes_are_those_of_the_messages(rows: list[Any], begin: int) -> None:
    [batch] = table_of(rows).to_batches()
    payload, whole = row_sizes(batch.slice(begin))
    assert payload.tolist() == [len(value or b"") + len(key or b"") for key, value, _, _ in rows[begin:]]
    assert (whole - payload).tolist() == [attached_bytes(row, tag) for _, _, row, tag in rows[begin:]]


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(rows=ROWS, begin=st.integers(0, 11), limit=st.integers(0, 20), more=st.integers(0, 250))
@example(rows=[(None, b"", [(str(n), b"") for n in range(90)], None)], begin=0, limit=1500, more=0)  # 1,521 bytes
@example(rows=[(b"k" * 500, b"v" * 501, None, "t")], begin=0, limit=1001, more=0)
@example(rows=[(b"k" * 500, b"v" * 501, None, None)] * 9, begin=0, limit=1001, more=0)
@example(rows=[(b"k" * 500, b"v" * 501, None, None)], begin=0, limit=2000, more=0)
def test_rows_are_refused_if_one_is_over_a_limit(rows: list[Any], begin: int, limit: int, more: int) -> None:
    limits = Limits(limit, limit + more)
    [batch] = table_of(rows).to_batches()
    rest = rows[begin:]
    payloads = [len(value or b"") + len(key or b"") for key, value, _, _ in rest]
    wholes = [size + attached_bytes(row, tag) for size, (_, _, row, tag) in zip(payloads, rest, strict=True)]
    is_over = any(size > limits.message_bytes for size in payloads) or any(size > limits.body_bytes for size in wholes)
    for piece, size in split_rows(batch.slice(begin), 1 << 20):
        with pytest.raises(MessageTooLargeError) if is_over else nullcontext():
            check_rows(piece, size, limits)


@pytest.mark.parametrize(("chosen", "fits"), [(None, 7 << 16), (256 << 10, 260 << 10)])
async def test_a_full_batch_is_larger_over_a_distance(
    chosen: int | None, fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "distance_of", lambda _round_trip_us: distance_of(50_000))
    values = [bytes(1 << 10)] * 4_000
    async with running() as cluster:
        cluster.create_topic("t", 1)
        async with client_of(cluster) as client, client.producer("t", batch_size_bytes=chosen) as producer:
            await (await producer.send(b"first"))  # the link is up, and its distance is known
            batches, largest = cluster.partition("t").open_segment.batches, []
            for send in (producer.send_table(pa.table({"value": values})), producer.send_many(values)):
                count = len(batches)
                await (await send)
                largest.append(max(len(batch.body) for batch in batches[count:]))
        assert all(fits * 3 // 4 < size < fits + (8 << 10) for size in largest), largest
        assert len(cluster.values("t")) == 8_001
