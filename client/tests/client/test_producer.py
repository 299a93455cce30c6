"""The producer over real gRPC: outcomes, order over moves and losses, limits, back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import seriatim
from seriatim import Client, SendFailedError, SendUnknownError
from seriatim_api import errors
from seriatim_api.v1 import broker_pb2

from ..fake_broker import connected, running, until

pytestmark = pytest.mark.usefixtures("carriage")


async def test_a_message_gets_its_receipt() -> None:
    async with connected(2) as (cluster, client), client.producer("t") as producer:
        first = await (await producer.send(b"a", partition=1))
        second = await (await producer.send(b"b", partition=1, key=b"k", headers={"h": b"1"}, tag="x"))
    assert (first.partition, first.offset & 0xFF, first.timestamp_ms) == (1, 0, 7)
    assert second.offset == first.offset + 1
    assert cluster.values("t", 1) == [b"a", b"b"]


async def test_a_receipt_says_whether_its_place_is_final() -> None:
    async with running(2) as cluster:
        cluster.create_topic("t")
        partition = cluster.partition("t")
        address = cluster.brokers[0].address
        async with Client.connect(address) as client, client.producer("t") as producer:
            assert (await (await producer.send(b"once"))).is_final
            for says_final in (True, False):
                cluster.says_final = says_final
                partition.hold_commit = True
                again = await producer.send(b"again")
                await until(lambda: bool(partition.held))
                partition.hold_commit = False
                [(stream, entry, header, offset)], partition.held = partition.held, []
                stream.reply(partition, entry, header, offset, errors.OutcomeUnknownError("opened over"))
                assert (await again).is_final is says_final
                [part] = await (await producer.send_many([b"a", b"b"]))
                assert part.is_final
        weak_level = seriatim.AckLevel.MASTER_FLUSHED
        async with Client.connect(address) as client, client.producer("t", ack_level=weak_level) as weak:
            assert not (await (await weak.send(b"weak"))).is_final


async def test_messages_sent_in_one_turn_share_a_batch() -> None:
    async with connected() as (cluster, client), client.producer("t") as producer:
        deliveries = [producer.send_nowait(b"%d" % n) for n in range(100)]
        receipts = [await delivery for delivery in deliveries]
    assert len(cluster.partition("t").open_segment.batches) == 1
    assert [r.offset for r in receipts] == list(range(receipts[0].offset, receipts[0].offset + 100))


async def test_a_switch_keeps_the_order_and_loses_nothing() -> None:
    async with connected(brokers=3) as (cluster, client), client.producer("t", linger_ms=0) as producer:
        partition = cluster.partition("t")
        deliveries = []
        for n in range(600):
            deliveries.append(await producer.send(b"%d" % n))
            if n % 50 == 25:
                await asyncio.sleep(0.002)
                cluster.switch(partition, cluster.brokers[n // 50 % 3])
        receipts = [await delivery for delivery in deliveries]
    assert cluster.values("t") == [b"%d" % n for n in range(600)]
    assert [r.offset for r in receipts] == sorted({r.offset for r in receipts})


async def test_truncated_batches_are_sent_again() -> None:
    async with running(2) as cluster:
        cluster.create_topic("t")
        partition = cluster.partition("t")
        partition.hold_commit = True
        async with Client.connect(cluster.brokers[0].address) as client, client.producer("t", linger_ms=0) as producer:
            first = await producer.send(b"a")
            await until(lambda: partition.open_segment.length == 1)
            second = await producer.send(b"b")
            await until(lambda: partition.open_segment.length == 2)
            partition.hold_commit = False
            cluster.switch(partition, cluster.brokers[1], keep=1)
            assert (await first).offset >> 40 == 1
            assert (await second).offset >> 40 == 2
        assert cluster.values("t") == [b"a", b"b"]


async def test_a_dead_master_is_complained_of_and_left() -> None:
    async with running(2) as cluster:
        cluster.create_topic("t")
        partition = cluster.partition("t")
        async with Client.connect([b.address for b in cluster.brokers]) as client, client.producer("t") as producer:
            await (await producer.send(b"a"))
            await cluster.brokers[0].stop()
            delivery = await producer.send(b"b")
            await until(lambda: bool(cluster.complaints))
            cluster.switch(partition, cluster.brokers[1])
            await asyncio.wait_for(delivery, 60)
        assert cluster.values("t") == [b"a", b"b"]


async def test_a_silent_master_is_complained_of() -> None:
    async with running(2) as cluster:
        cluster.create_topic("t")
        partition = cluster.partition("t")
        partition.stall = True
        address = cluster.brokers[0].address
        async with Client.connect(address) as client, client.producer("t", reply_timeout_ms=50) as producer:
            delivery = await producer.send(b"a")
            await until(lambda: bool(cluster.complaints))
            partition.stall = False
            cluster.switch(partition, cluster.brokers[1])
            await asyncio.wait_for(delivery, 60)
        assert cluster.values("t") == [b"a"]


async def test_a_frozen_master_that_was_left_is_noticed_without_a_complaint() -> None:
    async with running(2) as cluster:
        cluster.create_topic("t", 6)
        address = cluster.brokers[1].address
        moved = [cluster.partition("t", number) for number in (0, 2, 4)]
        async with Client.connect(address) as client, client.producer("t", reply_timeout_ms=60_000) as producer:
            for partition in moved:
                await (await producer.send(b"a", partition=partition.number))
                partition.stall = True
            deliveries = [await producer.send(b"b", partition=partition.number) for partition in moved]
            await until(lambda: cluster.brokers[0].frame_count > 3)
            for partition in moved:
                partition.stall = False
                cluster.switch(partition, cluster.brokers[1])
            await asyncio.wait_for(asyncio.gather(*deliveries), 2)
        assert not cluster.complaints
        assert all(cluster.values("t", partition.number) == [b"a", b"b"] for partition in moved)


async def test_refused_for_good_is_failed_and_the_others_go_on() -> None:
    async with connected() as (cluster, client), client.producer("t") as producer:
        partition = cluster.partition("t")
        partition.refuse.append(errors.MessageTooLargeError("the topic's limit was lowered"))
        with pytest.raises(SendFailedError, match="lowered") as caught:
            await (await producer.send(b"a"))
        assert caught.value.outcome == "failed"
        assert caught.value.cause_number == 110
        await (await producer.send(b"b"))
        result = await producer.flush()
    assert (result.ok, result.failed, result.unknown) == (1, 1, 0)
    assert cluster.values("t") == [b"b"]


async def test_not_answered_until_the_deadline_is_unknown_and_the_next_goes_on() -> None:
    async with running() as cluster:
        cluster.create_topic("t")
        partition = cluster.partition("t")
        partition.hold_commit = True
        address = cluster.brokers[0].address
        async with Client.connect(address) as client, client.producer("t", delivery_timeout_ms=100) as producer:
            with pytest.raises(SendUnknownError):
                await (await producer.send(b"a"))
            partition.hold_commit = False
            await (await producer.send(b"b"))
        assert cluster.values("t") == [b"a", b"b"]
        assert [batch.header.producer_epoch for batch in partition.open_segment.batches] == [0, 1]


async def test_overloaded_is_tried_again() -> None:
    async with running() as cluster:
        cluster.create_topic("t")
        cluster.partition("t").refuse += [errors.OverloadedError("busy", retry_after_ms=5)] * 3
        async with Client.connect(cluster.brokers[0].address) as client, client.producer("t") as producer:
            await (await producer.send(b"a"))
        assert cluster.values("t") == [b"a"]


async def test_bad_input_is_refused_before_it_is_taken() -> None:
    async with running() as cluster:
        cluster.create_topic("t", 2, message_size_bytes_max=100)
        async with Client.connect(cluster.brokers[0].address) as client:
            with pytest.raises(errors.UnknownTopicError):
                await client.producer("nothing")
            with pytest.raises(errors.IllegalNameError):
                await client.producer("no/such")
            async with client.producer("t") as producer:
                with pytest.raises(errors.MessageTooLargeError):
                    await producer.send(b"x" * 101)
                with pytest.raises(errors.MessageTooLargeError):
                    await producer.send_many([b"", b"x" * 101])
                for number in (-1, 2):
                    with pytest.raises(errors.PartitionOutOfRangeError):
                        await producer.send(b"", partition=number)
                with pytest.raises(errors.BadRequestError):
                    await producer.send_many([b"", b""], [b""])
            with pytest.raises(errors.PreconditionError):
                await producer.send(b"")
        assert cluster.values("t", 0) == cluster.values("t", 1) == []


async def test_room_is_waited_for_in_line() -> None:
    async with running() as cluster:
        cluster.create_topic("t")
        partition = cluster.partition("t")
        partition.hold_commit = True
        address = cluster.brokers[0].address
        async with Client.connect(address) as client, client.producer("t", buffer_size_bytes=1000) as producer:
            await producer.send(b"0" * 900)
            waiting = [asyncio.create_task(producer.send(b"%d" % n + b"x" * 400)) for n in range(1, 6)]
            await until(lambda: partition.open_segment.length == 1)
            with pytest.raises(errors.OverloadedError):
                producer.send_nowait(b"x")
            assert not any(task.done() for task in waiting)
            partition.hold_commit = False
            held, partition.held = partition.held, []
            for stream, entry, header, offset in held:
                stream.reply(partition, entry, header, offset, None)
            for task in waiting:
                await (await task)
        assert [value[:1] for value in cluster.values("t")] == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_closing_sends_those_away_who_wait_for_room() -> None:
    async with running() as cluster:
        cluster.create_topic("t")
        partition = cluster.partition("t")
        partition.hold_commit = True
        address = cluster.brokers[0].address
        async with Client.connect(address) as client:
            producer = await client.producer("t", buffer_size_bytes=1000)
            taken = await producer.send(b"0" * 900)
            waiting = [asyncio.create_task(producer.send(b"x" * 400)), asyncio.create_task(producer.send_many([b"y"]))]
            await until(lambda: partition.open_segment.length == 1)
            result = await producer.close(0)
            for task in waiting:
                with pytest.raises(errors.PreconditionError):
                    await task
            with pytest.raises(errors.PreconditionError):
                await producer.send_table(pa.table({"value": [b"z"]}))
        assert (result, taken.outcome) == ((0, 0, 1), "unknown")
        assert cluster.values("t") == [b"0" * 900]


async def test_messages_without_a_key_go_on_with_the_next_partition_when_a_batch_has_left() -> None:
    async with running() as cluster:
        cluster.create_topic("t", 3)
        async with Client.connect(cluster.brokers[0].address) as client, client.producer("t") as producer:
            receipts = []
            for _ in range(6):
                together = [producer.send_nowait(b"a"), producer.send_nowait(b"b")]
                receipts.append([(await delivery).partition for delivery in together])
        assert all(first == second for first, second in receipts)
        turns = [first for first, _ in receipts]
        assert [(turn + 1) % 3 for turn in turns[:-1]] == turns[1:]


async def test_send_many_by_key_keeps_each_keys_order() -> None:
    async with running() as cluster:
        cluster.create_topic("t", 4)
        values = [b"%d" % n for n in range(1000)]
        keys = [b"key-%d" % (n % 37) for n in range(1000)]
        async with Client.connect(cluster.brokers[0].address) as client, client.producer("t") as producer:
            parts = await (await producer.send_many(values, keys))
        assert sorted(position for part in parts for position in part.positions) == list(range(1000))
        seen: dict[bytes, list[int]] = {}
        for number in range(4):
            for value in cluster.values("t", number):
                seen.setdefault(keys[int(value)], []).append(int(value))
                assert seriatim.partition_of_key(keys[int(value)], 4) == number
        assert all(numbers == sorted(numbers) for numbers in seen.values())
        assert sum(map(len, seen.values())) == 1000


async def test_send_many_is_cut_into_batches() -> None:
    async with running() as cluster:
        cluster.create_topic("t")
        values = [bytes([n % 256]) * 1000 for n in range(1000)]
        address = cluster.brokers[0].address
        async with Client.connect(address) as client, client.producer("t", batch_size_bytes=100_000) as producer:
            parts = await (await producer.send_many(values))
        assert cluster.values("t") == values
        assert len(cluster.partition("t").open_segment.batches) >= 10
        assert [part.positions.start for part in parts if isinstance(part.positions, range)] == sorted(
            part.positions[0] for part in parts
        )
        assert sum(len(part.positions) for part in parts) == 1000


async def test_send_table_takes_the_rows_as_they_are() -> None:
    async with running() as cluster:
        cluster.create_topic("t", 2)
        table = pa.table(
            {"value": [b"%d" % n * 100 for n in range(5000)], "aircraft": [f"N{n % 7}" for n in range(5000)]}
        )
        async with Client.connect(cluster.brokers[0].address) as client, client.producer("t") as producer:
            parts = await (await producer.send_table(table, key_column="aircraft"))
            with pytest.raises(TypeError):
                await producer.send_table(pa.table({"key": [b"a"]}))
        assert sum(len(part.positions) for part in parts) == 5000
        stored = [*cluster.values("t", 0), *cluster.values("t", 1)]
        assert sorted(stored) == sorted(table.column("value").to_pylist())


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
async def test_compressed_bodies_are_smaller_and_read_the_same(compression: str) -> None:
    async with connected() as (cluster, client), client.producer("t", compression=compression) as producer:
        await (await producer.send_many([b"abc" * 1000] * 50))
    assert cluster.values("t") == [b"abc" * 1000] * 50
    assert sum(len(batch.body) for batch in cluster.partition("t").open_segment.batches) < 50_000


async def test_closing_with_an_error_settles_what_is_left() -> None:
    deliveries: list[seriatim.Delivery] = []

    async def fails(address: str, frames: Callable[[], int]) -> None:
        async with Client.connect(address) as client, client.producer("t") as producer:
            deliveries.append(await producer.send(b"a"))
            await until(lambda: frames() > 0)
            raise ZeroDivisionError

    async with running() as cluster:
        cluster.create_topic("t")
        cluster.partition("t").stall = True
        broker = cluster.brokers[0]
        with pytest.raises(ZeroDivisionError):
            await fails(broker.address, lambda: broker.frame_count)
    assert deliveries[0].outcome == "unknown"


async def test_what_cannot_be_encoded_is_refused_alone() -> None:
    async with connected() as (cluster, client), client.producer("t") as producer:
        good = await producer.send(b"a")
        wrong: list[dict[str, Any]] = [
            {"value": "text"},
            {"value": b"", "key": 1},
            {"value": b"", "headers": {"h": "text"}},
            {"value": b"", "headers": {1: b""}},
            {"value": b"", "tag": b"bytes"},
        ]
        for arguments in wrong:
            with pytest.raises(TypeError):
                await producer.send(**arguments)
        with pytest.raises(TypeError):
            await producer.send_many([b"", "text"])  # type: ignore[list-item]
        await good
    assert cluster.values("t") == [b"a"]


async def test_nobody_there_is_unavailable() -> None:
    async with Client.connect("127.0.0.1:1") as client:
        with pytest.raises(errors.UnavailableError):
            await client._caller.routing("GetTopic", broker_pb2.GetTopicRequest(), 0.2)
