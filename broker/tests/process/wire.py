"""A bare client for tests: frames by hand, no retries, so that a test sees exactly what the broker says."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from typing import Any

import google_crc32c
import grpc
import pyarrow as pa
import pytest
from seriatim_api import errors
from seriatim_api.batch import make_header
from seriatim_api.bodies import SCHEMA
from seriatim_api.ids import make_offset
from seriatim_api.protocol import PROTOCOL
from seriatim_api.status import from_status
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc
from seriatim_api.wire.frames import AppendEntry, read_delivery_frame, write_append_frame, write_field

OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
DEADLINE_S = 40.0


def make_body(values: list[bytes]) -> bytes:
    """A body with these values."""
    rows = [{"value": value, "timestamp": 0} for value in values]
    return bytes(pa.RecordBatch.from_pylist(rows, schema=SCHEMA).serialize())


async def refusal(call: object) -> errors.SeriatimError:
    """The typed error that a unary call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return from_status(caught.value.code(), caught.value.details(), list(caught.value.trailing_metadata() or ()))


def values_of(body: bytes) -> list[bytes]:
    """What `make_body` was given."""
    return list(pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA).column(1).to_pylist())


class Producer:
    """One producer id on one stream."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.id = secrets.token_bytes(16)
        self.call: Any = None
        self.credit = broker_pb2.StreamCredit()
        self.replies: asyncio.Queue[broker_pb2.AppendReply] = asyncio.Queue()
        self.sequence = itertools.count()

    async def __aenter__(self) -> Producer:
        self.call = self.channel.stream_stream("/seriatim.v1.Producing/Append")()
        hello = broker_pb2.ClientHello(protocol=PROTOCOL, client="test").SerializeToString()
        await self.call.write(b"".join(write_field(1, [hello])))
        first = broker_pb2.AppendReplies.FromString(await asyncio.wait_for(self.call.read(), DEADLINE_S))
        self.credit = first.credit
        self.reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.reader.cancel()
        await asyncio.gather(self.reader, return_exceptions=True)
        self.call.cancel()
        await self.channel.close()

    async def _read(self) -> None:
        while (data := await self.call.read()) is not grpc.aio.EOF:
            for reply in broker_pb2.AppendReplies.FromString(data).replies:
                self.replies.put_nowait(reply)

    def row(
        self, partition: int, sequence: int, values: list[bytes], *, run: int = 1, starts: bool = False, level: int = 5,
        **changes: Any,
    ) -> tuple[AppendEntry, bytes, bytes]:  # fmt: skip
        """A row of a frame; `changes` falsify the header."""
        body = changes.pop("body", None) or make_body(values)
        fields: dict[str, Any] = {
            "partition": partition,
            "message_count": len(values),
            "producer": self.id,
            "producer_epoch": 1,
            "base_sequence": sequence,
            "first_timestamp_ms": 1,
            "last_timestamp_ms": 1,
            "body_length": len(body),
            "body_crc": google_crc32c.value(body),
            **changes,
        }
        return AppendEntry(run, level, starts, 0), make_header(**fields), body

    async def send(self, *rows: tuple[AppendEntry, bytes, bytes]) -> None:
        """One frame."""
        await self.call.write(write_append_frame(rows))

    async def reply(self) -> broker_pb2.AppendReply:
        """The next reply."""
        return await asyncio.wait_for(self.replies.get(), DEADLINE_S)

    async def append(self, *arguments: Any, **options: Any) -> broker_pb2.AppendReply:
        """One batch, and its reply."""
        await self.send(self.row(*arguments, **options))
        return await self.reply()


class Consumer:
    """One consumer's stream with one subscription."""

    def __init__(self, address: str, partition: int, group: str, name: str = "c1", credit: int = 64 << 20) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.partition = partition
        self.group = group
        self.name = name
        self.credit = credit
        self.events: list[broker_pb2.DeliveryEvent] = []
        self.values: list[bytes] = []
        self.offsets: list[int] = []  # of the values
        self.token = 0
        self.changed = asyncio.Event()

    async def __aenter__(self) -> Consumer:
        self.call = self.channel.stream_stream("/seriatim.v1.Consuming/Consume")()
        await self.request(hello=broker_pb2.ConsumerHello(protocol=PROTOCOL, client="test", credit_bytes=self.credit))
        await self.request(
            join=broker_pb2.Join(partition_id=self.partition, group=self.group, consumer=self.name, subscription=1)
        )
        self.reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.reader.cancel()
        await asyncio.gather(self.reader, return_exceptions=True)
        self.call.cancel()
        await self.channel.close()

    async def request(self, **fields: Any) -> None:
        """One request."""
        await self.call.write(broker_pb2.ConsumeRequest(**fields).SerializeToString())

    async def ack(self, offset: int) -> None:
        """All up to and including `offset`."""
        await self.request(ack=broker_pb2.Ack(subscription=1, token=self.token, offset=offset))

    async def _read(self) -> None:
        while (data := await self.call.read()) is not grpc.aio.EOF:
            frame = read_delivery_frame(data)
            batches = iter(frame.batches)
            for raw in frame.events:
                event = broker_pb2.DeliveryEvent.FromString(raw)
                self.events.append(event)
                if event.HasField("joined") and event.joined.active:
                    self.token = event.joined.token
                for _ in range(event.batches.batch_count):
                    header, body = next(batches)
                    values = values_of(bytes(body))
                    self.values += values
                    self.offsets += [make_offset(header.segment, header.base_index + at) for at in range(len(values))]
            self.changed.set()

    async def until(self, condition: Any) -> None:
        """Wait until the condition holds of this consumer."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()

    def kinds(self) -> list[str | None]:
        """The kinds of events so far."""
        return [event.WhichOneof("event") for event in self.events]


class Admin:
    """Stubs on one channel."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.admin = broker_pb2_grpc.AdminStub(self.channel)
        self.routing = broker_pb2_grpc.RoutingStub(self.channel)

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def create(self, name: str, partitions: int = 1) -> Any:
        """Make a topic."""
        request = broker_pb2.CreateTopicRequest(name=name, partition_count=partitions)
        return await self.admin.CreateTopic(request, timeout=DEADLINE_S)

    async def declare_dead(self, broker: str) -> None:
        """Write a death certificate for the member run of a broker that the cluster knows."""
        described = await self.admin.DescribeCluster(broker_pb2.DescribeClusterRequest(), timeout=DEADLINE_S)
        (run,) = (row.record.run for row in described.brokers if row.record.member.broker == broker)
        request = broker_pb2.DeclareDeadRequest(broker=broker, issuer="test", run=run)
        await self.admin.DeclareDead(request, timeout=DEADLINE_S)

    async def route(self, partition: int, failed: int | None = None) -> Any:
        """Where to append."""
        request = broker_pb2.ResolveProducerRequest(partition_id=partition, failed_segment=failed)
        return await self.routing.ResolveProducer(request, timeout=DEADLINE_S)

    async def consumer(self, partition: int, group: str, avoid: str = "") -> str:
        """The address of the broker that serves a group, once that is another one than `avoid`."""
        request = broker_pb2.ResolveConsumerRequest(partition_id=partition, group=group)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = await self.routing.ResolveConsumer(request, timeout=DEADLINE_S)
                if found.server_broker != avoid:
                    return str(found.server_address)
                request.failed_server_epoch = found.server_epoch
                await asyncio.sleep(0.05)  # between two questions
