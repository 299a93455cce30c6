"""Real brokers: what bad input meets, topics and groups that change, what a broker reports itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from seriatim_api import errors
from seriatim_api.ids import make_offset
from seriatim_api.status import from_status
from seriatim_api.v1 import broker_pb2, operations_pb2, operations_pb2_grpc, records_pb2

from .cluster import READY_DEADLINE_S, Cluster, running_cluster
from .wire import Admin, Consumer, Producer, make_body, refusal


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Two groups of two; tests that break it have one of their own. No broker is suspected on a busy machine."""
    patient = ("--set", "silence_ms=30000", "--set", "planned_switch_ms=30000")
    async with running_cluster(tmp_path_factory.mktemp("cluster"), 2, *patient) as started:
        yield started


shared = pytest.mark.asyncio(loop_scope="module")


def any_address(cluster: Cluster) -> str:
    return next(iter(cluster.addresses.values()))


ENDS = struct.pack("<2i", 0, 77), struct.pack("<2i", 0x70000000, 0x70000008)
"""Where a value of 77 bytes begins and ends, and a place far behind it."""


@shared
async def test_bad_batches_are_refused_with_a_number_and_nothing_is_stored(cluster: Cluster) -> None:
    async with Admin(any_address(cluster)) as admin:
        partition = (await admin.create("bad")).partition_ids[0]
        route = await admin.route(partition)
        async with Producer(route.master_address) as producer:
            cases: list[tuple[dict[str, object], type[errors.SeriatimError]]] = [
                ({"body_crc": 7}, errors.ChecksumMismatchError),
                ({"message_count": 3}, errors.BatchMismatchError),
                ({"body": b"no arrow at all"}, errors.UnreadableBodyError),
                ({"body": make_body([b"x" * 77]).replace(*ENDS)}, errors.UnreadableBodyError),
                ({"body": bytes(producer.credit.batch_bytes_max + 1)}, errors.MessageTooLargeError),
                ({"level": 9}, errors.BadRequestError),
                ({"partition": 999_999}, errors.NotServingError),
                ({"base_sequence": 5}, errors.SequenceGapError),
            ]
            for run, (changes, expected) in enumerate(cases, 1):
                reply = await producer.append(
                    changes.pop("partition", partition), changes.pop("base_sequence", 0), [b"x"], run=run, starts=True,
                    **changes,
                )  # fmt: skip
                assert reply.error.number == expected.number, (changes, reply)
            follower = await producer.append(partition, 0, [b"x"], run=len(cases))
            assert follower.error.number == errors.RunRefusedError.number
            good = await producer.append(partition, 0, [b"good"], run=len(cases) + 1, starts=True)
            assert good.offset == make_offset(1, 0)
            stale = producer.row(partition, 0, [b"x"], run=20, starts=True, producer_epoch=0)
            await producer.send(stale)
            assert (await producer.reply()).error.number == errors.ProducerFencedError.number
        async with Consumer(route.master_address, partition, "g") as consumer:
            await consumer.until(lambda c: bool(c.values))
            assert consumer.values == [b"good"]


@shared
async def test_bad_requests_have_numbers(cluster: Cluster) -> None:
    async with Admin(any_address(cluster)) as admin:
        await admin.create("taken")
        call = broker_pb2.CreateTopicRequest
        assert (await refusal(admin.admin.CreateTopic(call(name="taken", partition_count=1)))).number == 121
        mine = call(name="again", partition_count=2, incarnation="5e" * 16)
        made = [await admin.admin.CreateTopic(mine) for _ in range(2)]  # the answer to the first may be lost
        assert made[0] == made[1]
        assert (await refusal(admin.admin.CreateTopic(call(name="again", partition_count=2)))).number == 121
        strange = call(name="new", partition_count=1, incarnation="not hex")
        assert (await refusal(admin.admin.CreateTopic(strange))).number == 100
        assert (await refusal(admin.admin.CreateTopic(call(name="a/b", partition_count=1)))).number == 102
        assert (await refusal(admin.admin.CreateTopic(call(name="none", partition_count=0)))).number == 100
        unknown = broker_pb2.GetTopicRequest(topic="no-such-topic")
        assert (await refusal(admin.routing.GetTopic(unknown))).number == errors.UnknownTopicError.number
        chain = broker_pb2.DescribeChainRequest(topic="taken", partition=1)
        outside = await refusal(admin.admin.DescribeChain(chain))
        assert outside.number == errors.PartitionOutOfRangeError.number
        assert outside.message == "topic 'taken' has 1 partition, and none with the number 1: the first one is 0"
        resolve = broker_pb2.ResolveProducerRequest(partition_id=999_999)
        assert (await refusal(admin.routing.ResolveProducer(resolve))).number == errors.UnknownTopicError.number


@shared
@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (b"\xff\xffgarbage", errors.BadRequestError),
        (broker_pb2.AppendFrame().SerializeToString(), errors.BadRequestError),
        (
            broker_pb2.AppendFrame(hello=broker_pb2.ClientHello(protocol=77)).SerializeToString(),
            errors.UnsupportedVersionError,
        ),
    ],
)
async def test_streams_that_begin_badly_end_alone(
    cluster: Cluster, first: bytes, expected: type[errors.SeriatimError]
) -> None:
    address = any_address(cluster)
    host, _, port = address.rpartition(":")
    async with Producer(address) as good, grpc.aio.insecure_channel(address) as channel:
        for path in ("/seriatim.v1.Producing/Append", "/seriatim.v1.Consuming/Consume"):
            call = channel.stream_stream(path)()
            await call.write(first)
            code = await call.code()
            error = from_status(code, await call.details(), list(await call.trailing_metadata() or ()))
            assert error.number in (expected.number, errors.BadRequestError.number)
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x00" * 100)
        await writer.drain()
        writer.close()
        assert (await good.append(999_999, 0, [b"x"], starts=True)).error.number == errors.NotServingError.number


@shared
async def test_a_planned_switch_moves_the_partition_and_loses_nothing(cluster: Cluster) -> None:
    async with Admin(any_address(cluster)) as admin:
        partition = (await admin.create("planned")).partition_ids[0]
        before = await admin.route(partition)
        async with Producer(before.master_address) as producer:
            assert not (await producer.append(partition, 0, [b"a"], starts=True)).HasField("error")
        after = await admin.admin.SwitchPartition(broker_pb2.SwitchPartitionRequest(partition_id=partition), timeout=60)
        assert after.segment == 2
        assert after.master_address != before.master_address
        async with Producer(after.master_address) as producer:
            assert (await producer.append(partition, 0, [b"b"], starts=True)).offset == make_offset(2, 0)
        async with Consumer(before.master_address, partition, "g") as consumer:
            await consumer.until(lambda c: bool(c.values))
            assert consumer.values == [b"a"]
            await consumer.ack(make_offset(1, 0))
            await consumer.until(lambda c: "end_of_segment" in c.kinds())
            end = consumer.events[-1].end_of_segment
            assert (end.sealed_len, end.next_segment) == (1, 2)
        async with Consumer(end.next_server_address, partition, "g") as consumer:
            await consumer.until(lambda c: bool(c.values))
            assert consumer.values == [b"b"]


@shared
async def test_a_topic_grows_and_who_watches_is_told(cluster: Cluster) -> None:
    async with Admin(any_address(cluster)) as admin:
        made = await admin.create("growing", 2)
        watch = admin.admin.WatchTopics(broker_pb2.WatchTopicsRequest(), timeout=40)
        chains: dict[int, str] = {}
        topics: dict[str, int] = {}

        async def until(condition: Callable[[], bool]) -> None:
            async for response in watch:
                for entry in response.changed:
                    topics[entry.topic.name] = len(entry.topic.partition_ids)
                    chains.update({chain.partition_id: chain.master for chain in entry.chains})
                for name in response.deleted:
                    del topics[name]
                if condition():
                    return

        await until(lambda: topics.get("growing") == 2)
        settings = records_pb2.TopicSettings(retention_ms=5000)
        call = broker_pb2.UpdateTopicRequest
        grown = await admin.admin.UpdateTopic(
            call(name="growing", incarnation=made.incarnation, partition_count=5, settings=settings), timeout=20
        )
        assert list(grown.partition_ids)[:2] == list(made.partition_ids)
        assert (len(grown.partition_ids), grown.settings.retention_ms, grown.settings.flush) == (5, 5000, True)
        await until(lambda: topics["growing"] == 5 and set(grown.partition_ids) <= set(chains))
        for partition in grown.partition_ids:
            assert (await admin.route(partition)).master_broker == chains[partition]
        forever = call(name="growing", settings_mask=["retention_ms"])
        assert (await admin.admin.UpdateTopic(forever)).settings.retention_ms == 0
        unflushed = call(name="growing", settings_mask=["flush"])
        assert (await refusal(admin.admin.UpdateTopic(unflushed))).number == errors.PreconditionError.number
        for bad in (call(name="growing", partition_count=4), call(name="growing", settings_mask=["colour"])):
            assert (await refusal(admin.admin.UpdateTopic(bad))).number == errors.BadRequestError.number
        await admin.admin.DeleteTopic(broker_pb2.DeleteTopicRequest(name="growing"))
        await until(lambda: "growing" not in topics)


@shared
async def test_consumer_group_is_made_before_its_first_consumer_joins(cluster: Cluster) -> None:
    async with Admin(any_address(cluster)) as admin:
        topic = await admin.create("grouped", 4)
        routes = [await admin.route(partition) for partition in topic.partition_ids]
        sent = [b"a", b"b"]
        partition, route = topic.partition_ids[0], routes[0]
        group = {"topic": "grouped", "group": "late"}
        late = broker_pb2.CreateConsumerGroupRequest(**group, start=broker_pb2.START_POSITION_LATEST)
        forget = broker_pb2.DeleteConsumerGroupRequest(**group)
        describe = broker_pb2.DescribeGroupRequest(**group)
        assert (await refusal(admin.admin.DeleteConsumerGroup(forget))).number == errors.UnknownGroupError.number
        async with Producer(route.master_address) as producer:
            await producer.append(partition, 0, [sent[0]], starts=True)
            assert (await admin.admin.CreateConsumerGroup(late)).created
            assert not (await admin.admin.CreateConsumerGroup(late)).created
            rows = (await admin.admin.DescribeGroup(describe)).partitions
            assert [(row.has_cursor, row.position, row.end_position) for row in rows] == [
                (True, 1, 1), (True, 0, 0), (True, 0, 0), (True, 0, 0),
            ]  # fmt: skip
            await producer.append(partition, 1, [sent[1]])
        async with Consumer(route.master_address, partition, "late") as consumer:
            await consumer.until(lambda c: bool(c.values))
            assert consumer.values == sent[1:]
            await consumer.ack(make_offset(1, 1))
            await consumer.until(lambda c: "ack_confirmed" in c.kinds())
            refused = await refusal(admin.admin.DeleteConsumerGroup(forget))
            assert refused.number == errors.PreconditionError.number
        async with asyncio.timeout(20):
            while True:  # until the server has seen that the consumer is gone
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await admin.admin.DeleteConsumerGroup(forget)
                    break
                await asyncio.sleep(0.05)
        assert (await refusal(admin.admin.DescribeGroup(describe))).number == errors.UnknownGroupError.number
        async with Consumer(route.master_address, partition, "late") as consumer:  # again: what it acknowledged is gone
            await consumer.until(lambda c: len(c.values) == 2)
            assert consumer.values == sent


@shared
async def test_masters_say_what_they_took_and_any_broker_tells_the_plan(cluster: Cluster) -> None:
    async with Admin(any_address(cluster)) as admin:
        partition = (await admin.create("traffic")).partition_ids[0]
        is_accepted = False
        while not is_accepted:  # on a busy machine it may move between the question and the batch
            route = await admin.route(partition)
            async with Producer(route.master_address) as producer:
                is_accepted = not (await producer.append(partition, 0, [b"x" * 100], starts=True)).HasField("error")
        async with grpc.aio.insecure_channel(route.master_address) as channel:
            master = operations_pb2_grpc.BalancingStub(channel)
            told = await master.MeasureTraffic(operations_pb2.MeasureTrafficRequest(), timeout=20)
        (row,) = [row for row in told.partitions if row.partition_id == partition]
        assert row.batches >= 1
        assert row.bytes > 100 + 192
        for address in cluster.addresses.values():
            async with grpc.aio.insecure_channel(address) as channel:
                plan = await operations_pb2_grpc.BalancingStub(channel).Balance(
                    operations_pb2.BalanceRequest(run=True), timeout=20
                )
            assert not plan.moves
            assert plan.reason


@shared
async def test_metrics_and_health(cluster: Cluster) -> None:
    name = next(iter(cluster.brokers))
    assert await cluster.get(name, "/healthz") == (200, "live\n")
    status, page = await cluster.get(name, "/metrics")
    assert status == 200
    assert f'seriatim_ready{{broker="{name}"}} 1.0' in page
    assert "seriatim_loop_lag_seconds_count" in page
    assert (await cluster.get(name, "/other"))[0] == 404


@shared
async def test_a_broker_writes_its_log_and_nothing_else(cluster: Cluster) -> None:
    for broker in cluster.brokers.values():
        lines = [json.loads(line) for line in broker.log_text().splitlines()]  # no complaint of gRPC among them
        assert "serving" in [line["event"] for line in lines]


async def test_a_broker_that_waits_for_the_coordinator_says_so_when_it_is_asked(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    broker = cluster.brokers["g0-0"]
    try:
        await broker.start()
        async with asyncio.timeout(READY_DEADLINE_S):
            while (told := await cluster.get("g0-0", "/readyz"))[0] == 0:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)  # there is nothing to wait on but the port itself
        assert told == (503, f"g0-0 waits for the coordinator at {cluster.coordinator_address}\n")
        assert (await cluster.get("g0-0", "/healthz"))[0] == 200
        await cluster.coordinator.start()
        await cluster.ready("g0-0")
    finally:
        await cluster.stop()
