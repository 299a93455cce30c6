"""The reader of ranges against brokers that are lost, silent, of an older version, or say what is not true."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from seriatim import Client, RangeReader
from seriatim._transport import ranges as transport
from seriatim_api import errors
from seriatim_api.ids import make_offset, split_offset
from seriatim_api.v1 import ranges_pb2
from seriatim_api.wire.frames import write_delivery_frame

from ..fake_broker import FakeBroker, FakeCluster, running, until

TOPIC = "t"


class RangeScript:
    """Serves ranges of one broker: all segments that the cluster has, or less, or wrongly.

    Attributes:
        asked: From which offset on it was asked, each time.
        give: This many batches a stream; then it breaks.
        left: This many batches in all streams together; then each breaks.
        silent: It sends nothing.
        hole: It leaves out the second batch.
        done: It says at once that the range is read.
        elsewhere: It has nothing; addresses of those who have it.
        no_end: The stream ends in good order after two batches, without an end.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.asked: list[int] = []
        self.give = self.left = 1 << 30
        self.silent = self.hole = self.done = self.no_end = False
        self.elsewhere: list[str] = []

    def handler(self) -> grpc.GenericRpcHandler:
        offsets = grpc.unary_unary_rpc_method_handler(
            self.offsets,
            request_deserializer=ranges_pb2.GetOffsetsRequest.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        handlers = {"ReadRange": grpc.stream_stream_rpc_method_handler(self.read), "GetOffsets": offsets}
        return grpc.method_handlers_generic_handler("seriatim.v1.Ranges", handlers)

    async def offsets(self, request: ranges_pb2.GetOffsetsRequest, _context: Any) -> ranges_pb2.GetOffsetsResponse:
        partition = self.cluster.partition(TOPIC)
        open_segment = partition.open_segment
        is_end = request.at == ranges_pb2.OFFSET_AT_END
        offset = make_offset(open_segment.no, open_segment.length) if is_end else make_offset(1, 0)
        row = ranges_pb2.PartitionOffset(partition=0, partition_id=partition.id, offset=offset)
        return ranges_pb2.GetOffsetsResponse(incarnation="i", partitions=[row])

    async def read(self, _requests: object, context: Any) -> None:
        request = ranges_pb2.ReadRangeRequest.FromString(await context.read()).open
        self.asked.append(request.from_offset)
        if self.silent:
            await asyncio.sleep(3600)
        end = ranges_pb2.RangeEvent()
        end.end.is_complete = not self.elsewhere
        end.end.addresses.extend(self.elsewhere)
        if not (self.done or self.elsewhere):
            await self._give(request, context)
        if not self.no_end:
            await context.write(write_delivery_frame([end.SerializeToString()], []))

    async def _give(self, request: ranges_pb2.OpenRange, context: Any) -> None:
        no, index = split_offset(request.from_offset)
        count = 0
        for segment in self.cluster.partition(TOPIC).segments[no - 1 :]:
            for batch in segment.batches:
                if segment.no == no and batch.header.end_index <= index:
                    continue
                if self.no_end and count == 2:
                    return
                if count == self.give or not self.left:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "it breaks")
                count += 1
                self.left -= 1
                if self.hole and count == 2:
                    continue
                event = ranges_pb2.RangeEvent()
                event.batches.segment, event.batches.batch_count = segment.no, 1
                row = (batch.header.raw, batch.body)
                await context.write(write_delivery_frame([event.SerializeToString()], [row]))
            if segment.sealed and make_offset(segment.no, segment.length) < request.to_offset:
                event = ranges_pb2.RangeEvent()
                event.segment_end.segment, event.segment_end.sealed_len = segment.no, segment.length
                event.segment_end.sealed_checksum = segment.batches[-1].header.checksum
                await context.write(write_delivery_frame([event.SerializeToString()], []))


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[Client, FakeCluster, list[RangeScript], list[bytes]]]:
    """Two brokers, and a topic with two segments of five batches of four messages."""
    async with running(0) as cluster:
        scripts = []
        for number in range(2):
            broker = FakeBroker(cluster, f"fake-{number}")
            scripts.append(RangeScript(cluster))
            broker.ranges = scripts[-1].handler()
            await broker.start()
        cluster.create_topic(TOPIC)
        async with Client.connect(cluster.brokers[0].address) as client:
            values: list[bytes] = []
            async with client.producer(TOPIC) as producer:
                for number in range(10):
                    if number == 5:
                        cluster.switch(cluster.partition(TOPIC), cluster.brokers[1])
                    some = [b"%d-%d" % (number, place) for place in range(4)]
                    await (await producer.send_many(some))
                    values += some
            yield client, cluster, scripts, values


async def _read(client: Client, **options: Any) -> list[bytes]:
    async with client.read_range(TOPIC, 0, read_timeout_s=2.0, **options) as reader:
        return [message.value async for message in reader]


async def test_a_range_is_read_across_segments() -> None:
    async with scripted() as (client, _cluster, _scripts, values):
        assert await _read(client) == values
        assert await _read(client, start=make_offset(1, 6), end=make_offset(2, 3)) == values[6:23]
        async with client.read_range(TOPIC, 0) as reader:
            rows = [value async for found in reader.tables() for value in found.table.column("value").to_pylist()]
        assert rows == values


async def test_a_stream_that_breaks_is_gone_on_with_exactly_there() -> None:
    async with scripted() as (client, _cluster, scripts, values):
        scripts[0].give = scripts[1].give = 2
        assert await _read(client) == values
        asked = sorted(offset for script in scripts for offset in script.asked)
        assert asked == sorted(set(asked)), "nothing was asked for twice"


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_reader_over_a_rebuild_of_the_coordinator(is_replaced: bool) -> None:
    """Rule `rebuilt-is-the-same`: the coordinator had lost the topic's record. A replaced cluster has another id."""
    async with scripted() as (client, cluster, scripts, values):
        scripts[0].left = scripts[1].left = 2
        async with client.read_range(TOPIC, 0, read_timeout_s=60.0) as reader:
            found = [message.value for message in await reader.fetch()]  # what is left then, no broker gives
            cluster.topics[TOPIC].incarnation = "rebuilt"
            rest = asyncio.create_task(_rest_of(reader))
            if is_replaced:
                cluster.id = "another"
                with pytest.raises(errors.PreconditionError, match="made again"):
                    await rest
                return
            cluster.behind_count = 2
            await until(lambda: cluster.behind_count == 0)
            scripts[0].left = scripts[1].left = 1 << 30
            assert found + await rest == values


async def _rest_of(reader: RangeReader) -> list[bytes]:
    return [message.value async for message in reader]


async def test_a_silent_broker_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SILENCE_S", 0.2)
    async with scripted() as (client, _cluster, scripts, values):
        scripts[1].silent = True
        assert await _read(client) == values
        assert scripts[1].asked


async def test_a_broker_that_has_nothing_says_who_has() -> None:
    async with scripted() as (client, cluster, scripts, values):
        scripts[1].elsewhere = [cluster.brokers[0].address]
        assert await _read(client) == values


@pytest.mark.parametrize("wrong", ["hole", "done", "no_end"])
async def test_what_is_not_true_is_not_believed(wrong: str) -> None:
    async with scripted() as (client, _cluster, scripts, values):
        setattr(scripts[1], wrong, True)
        assert await _read(client) == values
        setattr(scripts[0], wrong, True)
        if wrong == "done":
            with pytest.raises(errors.UnavailableError):
                await _read(client)
        else:  # what came before is good: asked again from there, nothing is missing
            assert await _read(client) == values


async def test_a_call_that_is_cancelled_leaves_the_reader_where_it_was() -> None:
    async with scripted() as (client, _cluster, scripts, values):
        async with client.read_range(TOPIC, 0) as reader:
            first = [message.value for message in await reader.fetch()]
            scripts[0].silent = scripts[1].silent = True
            found = list(first)
            for _ in range(20):
                try:
                    async with asyncio.timeout(0.05):
                        while messages := await reader.fetch():
                            found += [message.value for message in messages]
                except TimeoutError:
                    break
            scripts[0].silent = scripts[1].silent = False
            while messages := await reader.fetch():
                found += [message.value for message in messages]
        assert found == values


async def test_a_closed_reader_refuses_and_leaves_nothing_behind() -> None:
    async with scripted() as (client, _cluster, _scripts, _values):
        reader = await client.read_range(TOPIC, 0)
        assert (await anext(reader)).offset == make_offset(1, 0)
        assert reader.offset == make_offset(1, 1)
        await reader.close()
        await reader.close()
        with pytest.raises(errors.PreconditionError):
            await anext(reader)
