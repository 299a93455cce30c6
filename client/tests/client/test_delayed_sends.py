"""Delayed messages: what the header of their batches says, which share a batch, and what their receipts say."""

from __future__ import annotations

import time
from typing import Any

import pytest
from seriatim import CancelOutcome, SendFailedError, sync
from seriatim._bodies.arrow import decode
from seriatim._producing.deliveries import Deliveries, Delivery
from seriatim._producing.pending import Messages, Pending
from seriatim._recorder import Recorder
from seriatim.history import MemoryHistory
from seriatim_api import errors
from seriatim_api.batch import FLAG_DELAYED
from seriatim_api.errors import BadRequestError, IllegalMessageError
from seriatim_api.ids import make_offset

from ..fake_broker import FakeCluster, connected, until
from .test_pending import TIMEOUT_S, add, table
from .test_public import fake_in_a_thread

HOUR_MS = 3_600_000


def stored(cluster: FakeCluster, number: int = 0) -> list[tuple[int, int, list[bytes]]]:
    """Of each batch: whether it is delayed, when it is due after its append (0: at once), and its values."""
    found = []
    for batch in cluster.partition("t", number).open_segment.batches:
        header = batch.header
        delay_ms = header.due_time_ms and header.due_time_ms - header.append_time_ms
        values = decode(batch.body, header.message_count, header.body_crc).column(1).to_pylist()
        found.append((header.flags & FLAG_DELAYED, delay_ms, values))
    return found


async def test_a_delay_travels_as_a_duration_and_the_receipt_has_the_due_time_and_the_origin() -> None:
    async with connected() as (cluster, client), client.producer("t") as producer:
        receipt = await (await producer.send(b"a", key=b"k", delay_ms=HOUR_MS))
        [batch] = cluster.partition("t").open_segment.batches
        assert stored(cluster) == [(FLAG_DELAYED, HOUR_MS, [b"a"])]
        assert receipt.due_ms == batch.header.due_time_ms
        assert receipt.offset & 0xFF == 0
        due_ms = int(time.time() * 1000) + HOUR_MS
        assert (await producer.send_nowait(b"b", due_ms=due_ms)).due_ms == due_ms
        cluster.says_due = False
        assert (await (await producer.send(b"c", due_ms=due_ms))).due_ms is None


@pytest.mark.parametrize("when", [{"delay_ms": 0}, {"due_ms": 0}, {"due_ms": 1}, {}])
async def test_a_message_that_is_due_at_once_is_an_ordinary_one(when: Any) -> None:
    async with connected() as (cluster, client), client.producer("t") as producer:
        assert (await (await producer.send(b"a", **when))).due_ms == 0
        assert stored(cluster) == [(0, 0, [b"a"])]


async def test_the_messages_of_a_call_are_divided_by_due_time() -> None:
    async with connected(partitions=2) as (cluster, client), client.producer("t", partitioner=_by_letter) as producer:
        later_ms = int(time.time() * 1000) + HOUR_MS
        dues = [later_ms, None, later_ms, 0, later_ms + 1, later_ms]
        values = [b"0", b"1", b"2", b"3", b"4", b"5"]
        parts = await (await producer.send_many(values, [b"a", b"a", b"a", b"b", b"a", b"b"], due_ms=dues))
        assert sorted((part.partition, tuple(part.positions), part.due_ms) for part in parts) == [
            (0, (0, 2), later_ms), (0, (1,), 0), (0, (4,), later_ms + 1), (1, (3,), 0), (1, (5,), later_ms),
        ]  # fmt: skip
        assert sorted(values for _, _, values in stored(cluster)) == [[b"0", b"2"], [b"1"], [b"4"]]
        with pytest.raises(BadRequestError, match="2 values"):
            await producer.send_many([b"a", b"b"], due_ms=[1])
        assert not await (await producer.send_many([], due_ms=[]))


def _by_letter(key: bytes, _count: int) -> int:
    return key[0] - ord("a")


async def test_a_delay_that_the_topic_does_not_take_fails_its_own_messages_only() -> None:
    async with connected() as (cluster, client), client.producer("t") as producer:
        cluster.partition("t").refuse.append(errors.BadRequestError("the delay is too long"))
        delayed = await producer.send(b"a", delay_ms=HOUR_MS)
        with pytest.raises(SendFailedError, match="too long"):
            await delayed
        assert (await (await producer.send(b"b"))).due_ms == 0


async def test_a_delayed_batch_is_sent_again_with_the_same_due_time() -> None:
    async with connected(brokers=2) as (cluster, client), client.producer("t") as producer:
        partition = cluster.partition("t")
        partition.hold_commit = True
        delivery = await producer.send(b"a", delay_ms=HOUR_MS)
        await until(lambda: bool(partition.held))
        partition.hold_commit = False
        cluster.switch(partition, cluster.brokers[1], keep=0)
        await delivery
        assert stored(cluster) == [(FLAG_DELAYED, HOUR_MS, [b"a"])]


def test_the_client_without_asyncio_delays_too() -> None:
    with fake_in_a_thread() as cluster, sync.Client.connect(cluster.brokers[0].address) as client:
        client.admin().create_topic("t")
        producer = client.producer("t")
        assert producer.send(b"a", delay_ms=HOUR_MS).result(60).due_ms
        [part] = producer.send_many([b"b"], due_ms=[1 << 60]).result(60)
        assert part.due_ms == 1 << 60
        with pytest.raises(IllegalMessageError, match="leave one of them out"):
            producer.send(b"c", delay_ms=1, due_ms=1)
        producer.close()


# ---- what shares a batch ----------------------------------------------------------------------------------


def one(pending: Pending, value: bytes, due_time_ms: int = 0) -> None:
    pending.add_one(value, None, 1, None, None, Delivery(), 33, due_time_ms)


def cuts(pending: Pending, size_bytes_max: int = 1 << 20) -> list[tuple[int, Any]]:
    """The due time and the values (of a table: none) of each batch that leaves."""
    found = []
    while pending:
        cut = pending.peek(size_bytes_max, None)
        found.append((cut.due_time_ms, cut.values and b"".join(value or b"" for value in cut.values)))
        pending.drop(cut)
    assert pending.payload_bytes == 0
    return found


def test_messages_share_a_batch_with_the_others_of_their_due_time_only() -> None:
    pending = Pending(100 * TIMEOUT_S, 0.005)
    for value, due in ((b"a", 0), (b"b", -5), (b"c", 9), (b"d", 0), (b"e", -5), (b"f", 9)):
        one(pending, value, due)
    pending.add_many(Messages([b"g"], None, [1], None, None), Deliveries(1).slice([0]), 33, 9)
    assert not pending.front_is_whole
    assert cuts(pending) == [(0, b"ad"), (-5, b"be"), (9, b"cfg")]
    one(pending, b"h", -5)
    assert cuts(pending) == [(-5, b"h")]


def test_ordinary_messages_do_not_pass_a_table_and_delayed_ones_may() -> None:
    pending = Pending(100 * TIMEOUT_S, 0.005)
    for value, due in ((b"a", 0), (b"b", -5)):
        one(pending, value, due)
    add(pending, table(0, [50]))
    assert pending.front_is_whole
    for value, due in ((b"c", 0), (b"d", -5)):
        one(pending, value, due)
    assert cuts(pending) == [(0, b"a"), (-5, b"bd"), (0, None), (0, b"c")]


def test_a_part_that_is_cut_in_pieces_keeps_its_due_time_and_grows() -> None:
    pending = Pending(100 * TIMEOUT_S, 0.005)
    for value in (b"a", b"b", b"c"):
        one(pending, value, 9)
    cut = pending.peek(66, None)
    assert (cut.due_time_ms, cut.values) == (9, [b"a", b"b"])
    pending.drop(cut)
    one(pending, b"d", 9)
    assert cuts(pending, 66) == [(9, b"cd")]


def test_a_history_has_when_messages_are_due_and_what_became_of_a_cancellation() -> None:
    history = MemoryHistory("test", lambda: 100.0)
    recorder = Recorder(history, bytes.decode)
    for number, due_ms in enumerate((-500, int(time.time() * 1000) + 60_000, 0)):
        recorder.sends([b"m%d" % number], None, "t", 0, "p", number, due_ms)
    recorder.cancels("t", 0, make_offset(1, 0))
    recorder.cancels("t", 0, make_offset(1, 0), CancelOutcome.TOO_LATE)
    first, second, third, asked, answered = history.events
    assert first["due"] == 100.5
    assert second["due"] == pytest.approx(160, abs=5)
    assert "due" not in third
    assert (asked["o"], asked.get("x"), answered["x"]) == ("1:0", None, "too_late")
