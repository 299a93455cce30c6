"""Brokers in the test's own process: real servers over a log that is a list of batches.

They keep a master's rules (runs, sequences, repeats, bodies that match their headers) and an exclusive server's (one
active consumer, cumulative acks under a token, the end of a segment once all is acknowledged). A test moves
partitions, refuses, stalls, truncates and breaks streams. There is no replication: what is stored is committed, unless
`hold_commit`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import google_crc32c
import grpc
import grpc.aio
from seriatim import Client
from seriatim_api import errors
from seriatim_api.batch import FLAG_DELAYED, BatchHeader, place
from seriatim_api.ids import make_offset, split_offset
from seriatim_api.protocol import PROTOCOL
from seriatim_api.status import error_to_proto, to_status
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc, common_pb2, records_pb2
from seriatim_api.wire.frame_reader import with_prefix
from seriatim_api.wire.frames import AppendEntry, read_append_frame, write_delivery_frame
from seriatim_api.wire.stream_frames import END, FINISHED, HELLO, MESSAGE, OPENED

RESOLVE_WAIT_S = 0.3


class Carriage:
    """How new brokers take streams: `grpc`, or `tcp` as well; see the fixture `carriage`."""

    kind = "grpc"


CARRIAGE = Carriage()


@dataclass
class StoredBatch:
    header: BatchHeader
    body: bytes


@dataclass
class FakeSegment:
    no: int
    broker: FakeBroker
    batches: list[StoredBatch] = field(default_factory=list)
    sealed: bool = False
    start: int = 0
    """What lies below it was dropped by retention."""

    @property
    def length(self) -> int:
        return self.batches[-1].header.end_index if self.batches else 0


@dataclass
class FakeGroup:
    """A consumer group on a partition."""

    segment: int = 1
    acked: int = 0
    delivered: int = 0
    seen: int = 0
    counter: int = 0
    server_epoch: int = 1
    consumers: list[tuple[ConsumeStream, int, str]] = field(default_factory=list)

    @property
    def token(self) -> int:
        return self.server_epoch << 24 | self.counter


@dataclass
class FakePartition:
    id: int
    number: int
    topic: str
    epoch: int
    segments: list[FakeSegment]
    groups: dict[str, FakeGroup] = field(default_factory=dict)
    refuse: list[errors.SeriatimError] = field(default_factory=list)
    stall: bool = False
    hold_commit: bool = False
    held: list[tuple[AppendStream, AppendEntry, BatchHeader, int]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def open_segment(self) -> FakeSegment:
        return self.segments[-1]

    def route(self, brokers: list[FakeBroker]) -> common_pb2.Route:
        others = [broker.address for broker in brokers if broker is not self.open_segment.broker]
        return common_pb2.Route(
            partition_id=self.id,
            epoch=self.epoch,
            segment=self.open_segment.no,
            master_broker=self.open_segment.broker.name,
            master_address=self.open_segment.broker.address,
            next_addresses=others[:1],
        )


class FakeCluster:
    """Topics, partitions, and brokers that share them."""

    def __init__(self) -> None:
        self.id = "fakes"
        self.brokers: list[FakeBroker] = []
        self.topics: dict[str, records_pb2.TopicRecord] = {}
        self.partitions: dict[int, FakePartition] = {}
        self.deleted: set[int] = set()
        self.says_final = True
        self.says_due = True  # of delayed batches; a broker does not if it answers a repeat
        self.complaints: list[int] = []
        self.credit_stream_bytes = 8 << 20
        self.check_bodies = True
        self.keyed: Keyed | None = None
        self.is_old = False
        """Whether the brokers cannot wait for news of a topic, for example because they are stopping."""
        self.frozen_calls = 0
        """How many calls came to a frozen broker."""
        self.waiting = 0
        """How many calls wait for news of a topic."""
        self.news = asyncio.Event()
        self.behind_count = 0
        """How many questions are answered that the coordinator has lost decisions."""

    async def check_coordinator(self, context: Any) -> None:
        if self.behind_count:
            self.behind_count -= 1
            await abort(context, errors.CoordinatorBehindError("the coordinator has lost decisions"))

    def tell(self) -> None:
        """Wake the calls that wait for news of a topic."""
        news, self.news = self.news, asyncio.Event()
        news.set()

    def create_topic(self, name: str, partition_count: int = 1, **settings: Any) -> records_pb2.TopicRecord:
        ids = [len(self.partitions) + n + 1 for n in range(partition_count)]
        for number, partition_id in enumerate(ids):
            broker = self.brokers[number % len(self.brokers)]
            self.partitions[partition_id] = FakePartition(partition_id, number, name, 1, [FakeSegment(1, broker)])
        record = records_pb2.TopicRecord(
            name=name,
            incarnation="i",
            state=records_pb2.TOPIC_STATE_READY,
            partition_ids=ids,
            settings=records_pb2.TopicSettings(**settings),
        )
        self.topics[name] = record
        self.tell()
        return record

    def delete_topic(self, name: str) -> None:
        """Numbers of partitions are never used again."""
        self.tell()
        for number in self.topics.pop(name).partition_ids:
            self.deleted.add(number)
            for group in self.partitions[number].groups.values():
                for stream, subscription, _ in group.consumers:
                    event = broker_pb2.DeliveryEvent(subscription=subscription)
                    event.refused.error.CopyFrom(error_to_proto(errors.UnknownTopicError("deleted")))
                    stream.tell(event)
                group.consumers = []

    def grow_topic(self, name: str, partition_count: int) -> None:
        """Add partitions, so that there are this many."""
        ids = self.topics[name].partition_ids
        for number in range(len(ids), partition_count):
            partition_id = len(self.partitions) + 1
            broker = self.brokers[number % len(self.brokers)]
            self.partitions[partition_id] = FakePartition(partition_id, number, name, 1, [FakeSegment(1, broker)])
            ids.append(partition_id)
        self.tell()

    def partition(self, topic: str, number: int = 0) -> FakePartition:
        return self.partitions[self.topics[topic].partition_ids[number]]

    def switch(self, partition: FakePartition, to: FakeBroker, *, keep: int | None = None) -> None:
        """Seal the open segment at `keep` (None: all of it) and open the next one at another broker."""
        old = partition.open_segment
        length = old.length if keep is None else keep
        gone = [batch for batch in old.batches if batch.header.end_index > length]
        old.batches = [batch for batch in old.batches if batch.header.end_index <= length]
        old.sealed = True
        partition.epoch += 1
        partition.segments.append(FakeSegment(old.no + 1, to))
        for group in partition.groups.values():
            group.delivered = min(group.delivered, old.length) if group.segment == old.no else group.delivered
        held, partition.held = partition.held, []
        for stream, entry, header, offset in held:
            truncated = any(batch.header.base_sequence == header.base_sequence for batch in gone)
            error = errors.SegmentTruncatedError("above the sealed length") if truncated else None
            stream.reply(partition, entry, header, offset, error)
        partition.changed.set()
        partition.changed = asyncio.Event()
        for group in list(partition.groups.values()):
            cross(partition, group)

    def values(self, topic: str, number: int = 0) -> list[bytes]:
        """Everything stored in a partition, in order."""
        from seriatim._bodies.arrow import decode

        found: list[bytes] = []
        for segment in self.partition(topic, number).segments:
            for batch in segment.batches:
                rows = decode(batch.body, batch.header.message_count, batch.header.body_crc)
                found += rows.column(1).to_pylist()
        return found


class AppendStream:
    """The broker's end of an append stream."""

    def __init__(self, broker: FakeBroker, context: Any) -> None:
        self.broker = broker
        self.context = context
        self.runs: dict[tuple[int, bytes], tuple[int, bool]] = {}
        self.replies: list[broker_pb2.AppendReply] = []
        self.wake = asyncio.Event()

    async def serve(self) -> None:
        writer = asyncio.create_task(self._write())
        try:
            while (frame := await self.context.read()) is not grpc.aio.EOF:
                self.broker.frame_count += 1
                for entry, header, body in read_append_frame(frame).batches:
                    self._take(entry, header, body)
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            replies, self.replies = self.replies, []
            await self.context.write(broker_pb2.AppendReplies(replies=replies).SerializeToString())

    def _take(self, entry: AppendEntry, header: BatchHeader, body: memoryview) -> None:
        partition = self.broker.cluster.partitions[header.partition]
        if partition.stall:
            return
        key = (header.partition, header.producer)
        run, refused = self.runs.get(key, (0, True))
        error: errors.SeriatimError | None = None
        if partition.id in self.broker.cluster.deleted:
            error = errors.NotServingError("this broker is not the master of the open segment")
            self.reply(partition, entry, header, 0, error)
            return
        if not entry.starts_run and (run != entry.run or refused):
            error = errors.RunRefusedError("the run was refused, or did not begin here")
        elif partition.open_segment.broker is not self.broker:
            error = errors.SegmentMovedError("the segment is elsewhere")
        elif partition.refuse:
            error = partition.refuse.pop(0)
        offset = 0
        if error is None:
            try:
                offset = self._append(partition, header, body)
            except errors.SeriatimError as exc:
                error = exc
        self.runs[key] = (entry.run, error is not None)
        if error is None and partition.hold_commit:
            partition.held.append((self, entry, header, offset))
        else:
            self.reply(partition, entry, header, offset, error)

    def _append(self, partition: FakePartition, header: BatchHeader, body: memoryview) -> int:
        if self.broker.cluster.check_bodies and google_crc32c.value(bytes(body)) != header.body_crc:
            raise errors.ChecksumMismatchError("not the body that was sent")
        last: BatchHeader | None = None
        for segment in reversed(partition.segments):
            for batch in reversed(segment.batches):
                stored = batch.header
                if stored.producer != header.producer:
                    continue
                last = last or stored
                if (stored.producer_epoch, stored.base_sequence) == (header.producer_epoch, header.base_sequence):
                    return make_offset(segment.no, stored.base_index)
                if len(segment.batches) > 64:
                    break
            if last is not None:
                break
        if last is None or header.producer_epoch > last.producer_epoch:
            if header.base_sequence:
                raise errors.SequenceGapError("an unknown producer begins at 0")
        elif header.producer_epoch < last.producer_epoch:
            raise errors.ProducerFencedError("an older epoch")
        elif header.base_sequence != last.last_sequence + 1:
            raise errors.SequenceGapError(f"{header.base_sequence} after {last.last_sequence}")
        open_segment = partition.open_segment
        now_ms, due_ms = int(time.time() * 1000), header.due_time_ms
        due_ms = due_ms if due_ms >= 0 else now_ms - due_ms
        placed = place(
            header,
            segment=open_segment.no,
            base_index=open_segment.length,
            append_time_ms=now_ms,
            due_time_ms=due_ms if due_ms > now_ms else 0,
            previous_checksum=open_segment.batches[-1].header.checksum if open_segment.batches else 0,
            checksum=google_crc32c.extend,
        )
        open_segment.batches.append(StoredBatch(placed, bytes(body)))
        for group in partition.groups.values():
            pump(partition, group)
        return make_offset(open_segment.no, placed.base_index)

    def reply(
        self,
        partition: FakePartition,
        entry: AppendEntry,
        header: BatchHeader,
        offset: int,
        error: errors.SeriatimError | None,
    ) -> None:
        reply = broker_pb2.AppendReply(
            partition_id=partition.id,
            producer=header.producer,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            run=entry.run,
            offset=offset,
            append_time_ms=7,
            offset_is_final=self.broker.cluster.says_final,
        )
        if error is None and header.flags & FLAG_DELAYED and self.broker.cluster.says_due:
            reply.due_time_ms = partition.open_segment.batches[-1].header.due_time_ms
        if error is not None:
            reply.error.CopyFrom(error_to_proto(error))
            if isinstance(error, errors.RoutingError) and partition.id not in self.broker.cluster.deleted:
                reply.route.CopyFrom(partition.route(self.broker.cluster.brokers))
        self.replies.append(reply)
        self.wake.set()


class Keyed(Protocol):
    """A consumer group that is not exclusive, in the place of the one that this module has; see `fake_keyed`."""

    def take(self, stream: ConsumeStream, request: broker_pb2.ConsumeRequest) -> None:
        """A consumer of it sent a request."""

    def leave(self, stream: ConsumeStream, subscription: int | None) -> None:
        """A consumer of it has left; None: all of the stream."""


class ConsumeStream:
    """The broker's end of a consume stream."""

    def __init__(self, broker: FakeBroker, context: Any) -> None:
        self.broker = broker
        self.context = context
        self.credit = 0
        self.outgoing: list[tuple[broker_pb2.DeliveryEvent, list[StoredBatch]]] = []
        self.wake = asyncio.Event()
        self.acks: list[broker_pb2.Ack] = []
        self.yielded: list[broker_pb2.Yielded] = []
        self.pings = 0
        self.many: list[int] = []  # how many requests came in each frame that had several

    async def serve(self) -> None:
        writer = asyncio.create_task(self._write())
        try:
            while (frame := await self.context.read()) is not grpc.aio.EOF:
                await self.broker.reads.wait()
                self._take(broker_pb2.ConsumeRequest.FromString(frame))
        finally:
            self.leave(None)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            outgoing, self.outgoing = self.outgoing, []
            for event, batches in outgoing:
                rows = [(batch.header.raw, batch.body) for batch in batches]
                await self.context.write(write_delivery_frame([event.SerializeToString()], rows))

    def tell(self, event: broker_pb2.DeliveryEvent, batches: list[StoredBatch] | None = None) -> None:
        self.outgoing.append((event, batches or []))
        self.wake.set()

    def _take(self, request: broker_pb2.ConsumeRequest) -> None:
        if request.HasField("many"):
            self.many.append(len(request.many.requests))
            for each in request.many.requests:
                self._take(each)
            return
        if self.broker.cluster.keyed is not None:
            self.broker.cluster.keyed.take(self, request)
        match request.WhichOneof("request"):
            case "hello":
                self.credit += request.hello.credit_bytes
            case "credit":
                self.credit += request.credit.bytes
                for partition in self.broker.cluster.partitions.values():
                    for group in partition.groups.values():
                        pump(partition, group)
            case "join":
                self._join(request.join)
            case "leave":
                self.leave(request.leave.subscription)
            case "ping":
                self.pings += 1
                if self.broker.answers_pings:
                    event = broker_pb2.DeliveryEvent()
                    event.pong.number = request.ping.number
                    event.pong.unserved.extend(self.broker.unserved)
                    self.tell(event)
            case "ack":
                self.acks.append(request.ack)
                self._ack(request.ack)
            case "yielded":
                self.yielded.append(request.yielded)

    def _join(self, join: broker_pb2.Join) -> None:
        if self.broker.cluster.keyed is not None:
            return
        partition = self.broker.cluster.partitions[join.partition_id]
        group = partition.groups.setdefault(join.group, FakeGroup())
        segment = partition.segments[group.segment - 1]
        if segment.broker is not self.broker:
            event = broker_pb2.DeliveryEvent(subscription=join.subscription)
            event.refused.error.CopyFrom(error_to_proto(errors.GroupHeadElsewhereError("elsewhere")))
            event.refused.server_address = segment.broker.address
            self.tell(event)
            return
        group.consumers.append((self, join.subscription, join.consumer))
        if len(group.consumers) == 1:
            activate(group)
            pump(partition, group)
        else:
            joined(group, self, join.subscription, active=False)

    def leave(self, subscription: int | None) -> None:
        if self.broker.cluster.keyed is not None:
            self.broker.cluster.keyed.leave(self, subscription)
        for partition in self.broker.cluster.partitions.values():
            for group in partition.groups.values():
                before = group.consumers[:1]
                group.consumers = [
                    row for row in group.consumers if row[0] is not self or subscription not in (None, row[1])
                ]
                if group.consumers and group.consumers[:1] != before:
                    activate(group)
                    pump(partition, group)

    def _ack(self, ack: broker_pb2.Ack) -> None:
        for partition in self.broker.cluster.partitions.values():
            for group in partition.groups.values():
                if group.consumers and group.consumers[0][:2] == (self, ack.subscription) and ack.token == group.token:
                    segment, index = split_offset(ack.offset)
                    assert segment == group.segment
                    assert index < group.delivered
                    group.acked = max(group.acked, index + 1)
                    event = broker_pb2.DeliveryEvent(subscription=ack.subscription)
                    event.ack_confirmed.segment = segment
                    event.ack_confirmed.index = group.acked
                    self.tell(event)
                    cross(partition, group)


def activate(group: FakeGroup) -> None:
    group.counter += 1
    group.delivered = group.acked
    stream, subscription, _ = group.consumers[0]
    joined(group, stream, subscription, active=True)


def joined(group: FakeGroup, stream: ConsumeStream, subscription: int, *, active: bool) -> None:
    event = broker_pb2.DeliveryEvent(subscription=subscription)
    event.joined.active = active
    event.joined.segment = group.segment
    event.joined.index = group.acked
    event.joined.token = group.token if active else 0
    event.joined.group_epoch = 1
    event.joined.server_epoch = group.server_epoch
    stream.tell(event)


def pump(partition: FakePartition, group: FakeGroup) -> None:
    """Deliver what there is to the active consumer, within its credit."""
    if not group.consumers:
        return
    stream, subscription, _ = group.consumers[0]
    segment = partition.segments[group.segment - 1]
    if group.delivered < segment.start:
        event = broker_pb2.DeliveryEvent(subscription=subscription)
        event.dropped.from_offset = make_offset(segment.no, group.delivered)
        event.dropped.segment, event.dropped.to_index = segment.no, segment.start
        event.dropped.messages = segment.start - group.delivered
        stream.tell(event)
        group.delivered = segment.start
    batches = [batch for batch in segment.batches if batch.header.end_index > group.delivered]
    taken: list[StoredBatch] = []
    for batch in batches:
        if stream.credit <= 0 or len(taken) >= 64:
            break
        stream.credit -= len(batch.header.raw) + len(batch.body)
        taken.append(batch)
    if taken:
        event = broker_pb2.DeliveryEvent(subscription=subscription)
        told = event.batches
        told.segment = segment.no
        told.batch_count = len(taken)
        told.from_index = max(group.delivered, taken[0].header.base_index)
        told.maybe_repeated_below = 0
        told.attempt = 2 if taken[0].header.base_index < group.seen else 1
        told.server_epoch = group.server_epoch
        group.delivered = taken[-1].header.end_index
        group.seen = max(group.seen, group.delivered)
        stream.tell(event, taken)
        if len(taken) == 64:
            pump(partition, group)
    cross(partition, group)


def cross(partition: FakePartition, group: FakeGroup) -> None:
    """Everything of a sealed segment is acknowledged: the group continues in the next."""
    segment = partition.segments[group.segment - 1]
    if not segment.sealed or group.acked != segment.length:
        return
    consumers, group.consumers = group.consumers, []
    following = partition.segments[group.segment]
    group.segment += 1
    group.acked = group.delivered = group.seen = group.counter = 0
    group.server_epoch += 1
    for stream, subscription, _ in consumers:
        event = broker_pb2.DeliveryEvent(subscription=subscription)
        event.end_of_segment.segment = segment.no
        event.end_of_segment.sealed_len = segment.length
        event.end_of_segment.next_segment = following.no
        event.end_of_segment.next_server_address = following.broker.address
        stream.tell(event)


class FakeBroker(broker_pb2_grpc.RoutingServicer, broker_pb2_grpc.AdminServicer):
    """One server on a port of its own."""

    names_ports = True
    """Whether others name its port for streams."""

    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.address = ""
        self.frame_count = 0
        self.append_streams: list[AppendStream] = []
        self.consume_streams: list[ConsumeStream] = []
        self.is_frozen = False  # it takes requests about topics, and never answers them
        self.reads = asyncio.Event()  # what comes on consume streams; else it waits there
        self.reads.set()
        self.answers_pings = True
        self.unserved: list[int] = []
        self.credentials: Any = None  # for TLS
        self.tls: Callable[[], ssl.SSLContext] | None = None  # the same, for streams over TCP
        self.stream_port = 0
        self.asked_for_port = 0
        self.takes_tcp = CARRIAGE.kind == "tcp"
        self.ranges: grpc.GenericRpcHandler | None = None  # None: it serves none
        self.connections: set[str] = set()  # as the other side's address, of streams
        self._server: Any = None
        self._streams: asyncio.Server | None = None
        self.connected: set[_Connected] = set()
        cluster.brokers.append(self)

    @property
    def has_streams_over_tcp(self) -> bool:
        """Whether there was one."""
        return not all(peer.startswith("ipv") for peer in self.connections)

    async def start(self, port: int = 0) -> None:
        self._server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", 32 << 20),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 10),
            )
        )
        broker_pb2_grpc.add_RoutingServicer_to_server(self, self._server)
        broker_pb2_grpc.add_AdminServicer_to_server(self, self._server)
        for service, method, handler in (
            ("seriatim.v1.Producing", "Append", self._append),
            ("seriatim.v1.Consuming", "Consume", self._consume),
        ):
            handlers = {method: grpc.stream_stream_rpc_method_handler(handler)}
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        if self.ranges is not None:
            self._server.add_generic_rpc_handlers((self.ranges,))
        if self.credentials is None:
            port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        else:
            port = self._server.add_secure_port(f"127.0.0.1:{port}", self.credentials)
        self.address = f"127.0.0.1:{port}"
        if self.takes_tcp:
            tls = self.tls() if self.tls is not None else None
            loop = asyncio.get_running_loop()
            self._streams = await loop.create_server(lambda: _Connected(self), "127.0.0.1", 0, ssl=tls)
            self.stream_port = self._streams.sockets[0].getsockname()[1]
        await self._server.start()

    async def stop(self) -> None:
        """As a kill: all streams break at once."""
        server, self._server = self._server, None
        streams, self._streams = self._streams, None
        if streams is not None:
            streams.close()
        for connection in list(self.connected):
            await connection.stop()
        if server is not None:
            await server.stop(None)

    async def GetStreamPort(  # noqa: N802
        self, _request: broker_pb2.GetStreamPortRequest, _context: Any
    ) -> broker_pb2.GetStreamPortResponse:
        self.asked_for_port += 1
        return broker_pb2.GetStreamPortResponse(port=self.stream_port, broker=self.name, cluster_id=self.cluster.id)

    async def restart(self) -> None:
        await self.start(int(self.address.rpartition(":")[2]))

    async def _append(self, _requests: object, context: Any) -> None:
        self.connections.add(context.peer())
        await context.read()
        credit = broker_pb2.StreamCredit(
            protocol=PROTOCOL,
            stream_bytes_max=self.cluster.credit_stream_bytes,
            partition_bytes_max=7 << 20,
            batch_bytes_max=1 << 20,
            window_batches_max=16,
            broker=self.name,
        )
        await context.write(broker_pb2.AppendReplies(credit=credit).SerializeToString())
        stream = AppendStream(self, context)
        self.append_streams.append(stream)
        try:
            await stream.serve()
        finally:
            self.append_streams.remove(stream)

    async def _consume(self, _requests: object, context: Any) -> None:
        self.connections.add(context.peer())
        stream = ConsumeStream(self, context)
        self.consume_streams.append(stream)
        try:
            await stream.serve()
        finally:
            self.consume_streams.remove(stream)

    async def GetTopic(self, request: broker_pb2.GetTopicRequest, context: Any) -> broker_pb2.GetTopicResponse:  # noqa: N802
        await self.cluster.check_coordinator(context)
        record = self.cluster.topics.get(request.topic)
        if record is None:
            await abort(context, errors.UnknownTopicError(f"no topic {request.topic}"))
        assert record is not None
        if request.wait_ms and not self.cluster.is_old:
            known = request.known_incarnation, request.known_partition_count
            self.cluster.waiting += 1
            try:
                async with asyncio.timeout(request.wait_ms / 1000):
                    while (record.incarnation, len(record.partition_ids)) == known:
                        await self.cluster.news.wait()
                        if request.topic not in self.cluster.topics:
                            await abort(context, errors.UnknownTopicError(f"no topic {request.topic}"))
                        record = self.cluster.topics[request.topic]
            except TimeoutError:
                return broker_pb2.GetTopicResponse(waited=True, brokers=self._addresses())
            finally:
                self.cluster.waiting -= 1
        elif len(record.partition_ids) == request.known_partition_count:
            return broker_pb2.GetTopicResponse()
        brokers = self.cluster.brokers
        return broker_pb2.GetTopicResponse(
            topic=record,
            routes=[self.cluster.partitions[n].route(brokers) for n in record.partition_ids],
            brokers=self._addresses(),
            cluster_id=self.cluster.id,
        )

    def _addresses(self) -> list[broker_pb2.BrokerAddress]:
        return [
            broker_pb2.BrokerAddress(
                broker=b.name, address=b.address, group=b.name, stream_port=b.stream_port if b.names_ports else 0
            )
            for b in self.cluster.brokers
        ]

    async def ResolveProducer(self, request: broker_pb2.ResolveProducerRequest, context: Any) -> common_pb2.Route:  # noqa: N802
        partition = self.cluster.partitions[request.partition_id]
        if partition.id in self.cluster.deleted:
            await abort(context, errors.UnknownTopicError(f"there is no partition {partition.id}"))
        if request.HasField("failed_segment"):
            self.cluster.complaints.append(request.partition_id)
            if partition.open_segment.no <= request.failed_segment:
                try:
                    async with asyncio.timeout(RESOLVE_WAIT_S):
                        await partition.changed.wait()
                except TimeoutError:
                    pass
        return partition.route(self.cluster.brokers)

    async def ResolveConsumer(  # noqa: N802
        self, request: broker_pb2.ResolveConsumerRequest, context: Any
    ) -> broker_pb2.ResolveConsumerResponse:
        await self.cluster.check_coordinator(context)
        partition = self.cluster.partitions[request.partition_id]
        if partition.id in self.cluster.deleted:
            await abort(context, errors.UnknownTopicError(f"there is no partition {partition.id}"))
        group = partition.groups.setdefault(request.group, FakeGroup())
        segment = partition.segments[group.segment - 1]
        return broker_pb2.ResolveConsumerResponse(
            partition_id=partition.id,
            segment=segment.no,
            server_broker=segment.broker.name,
            server_address=segment.broker.address,
            server_epoch=group.server_epoch,
            group_epoch=1,
        )

    async def CreateTopic(self, request: broker_pb2.CreateTopicRequest, context: Any) -> records_pb2.TopicRecord:  # noqa: N802
        await self._while_frozen()
        if request.name in self.cluster.topics:
            await abort(context, errors.TopicExistsError("there already"))
        return self.cluster.create_topic(request.name, request.partition_count, flush=request.settings.flush)

    async def ListTopics(self, request: broker_pb2.ListTopicsRequest, _context: Any) -> broker_pb2.ListTopicsResponse:  # noqa: N802
        await self._while_frozen()
        names = sorted(name for name in self.cluster.topics if name > request.after)[: request.limit]
        return broker_pb2.ListTopicsResponse(topics=[self.cluster.topics[name] for name in names])

    async def _while_frozen(self) -> None:
        if self.is_frozen:
            self.cluster.frozen_calls += 1
            await asyncio.Event().wait()


class TcpContext:
    """The broker's end of a stream over TCP, as gRPC would give it."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._frames: asyncio.Queue[Any] = asyncio.Queue()

    async def frame(self) -> tuple[int, bytes]:
        head = await self._reader.readexactly(5)
        return head[4], await self._reader.readexactly(int.from_bytes(head[:4], "little"))

    def send(self, kind: int, content: bytes = b"") -> None:
        self._writer.write(b"".join(with_prefix(kind, (content,))))

    def feed(self, frame: Any) -> None:
        """What is read next."""
        self._frames.put_nowait(frame)

    def peer(self) -> str:
        return str(self._writer.get_extra_info("peername"))

    async def read(self) -> Any:
        return await self._frames.get()

    async def write(self, data: bytes) -> None:
        self.send(MESSAGE, data)
        await self._writer.drain()


class _Connected(asyncio.Protocol):
    """A connection to the port for streams."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._reader = asyncio.StreamReader(limit=64 << 20)
        self._lost = asyncio.Event()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._broker.connected.add(self)
        self._task = asyncio.create_task(serve_tcp(self._broker, self._reader, self))

    def data_received(self, data: bytes) -> None:
        self._reader.feed_data(data)

    def eof_received(self) -> None:
        self._reader.feed_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._reader.feed_eof()
        self._broker.connected.discard(self)
        self._lost.set()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def get_extra_info(self, name: str) -> Any:
        return self.transport.get_extra_info(name)

    async def drain(self) -> None:
        """What waits has no limit here."""

    async def stop(self) -> None:
        """As a kill."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._lost.wait()


async def serve_tcp(broker: FakeBroker, reader: Any, writer: Any) -> None:
    """Serve one connection to the port for streams."""
    context = TcpContext(reader, writer)
    serving: asyncio.Task[None] | None = None
    try:
        kind, content = await context.frame()
        hello = broker_pb2.StreamHello.FromString(content)
        assert (kind, hello.broker, hello.cluster_id) == (HELLO, broker.name, broker.cluster.id)
        context.send(OPENED)
        if hello.WhichOneof("stream") == "append":
            context.feed(hello.append.SerializeToString())
            serving = asyncio.create_task(broker._append(None, context))
        else:
            context.feed(broker_pb2.ConsumeRequest(hello=hello.consume).SerializeToString())
            serving = asyncio.create_task(broker._consume(None, context))
        serving.add_done_callback(lambda _task: context.send(END))
        while True:
            kind, content = await context.frame()
            assert kind in (MESSAGE, FINISHED)
            context.feed(content if kind == MESSAGE else grpc.aio.EOF)
    except (asyncio.IncompleteReadError, OSError):
        pass  # the client has gone
    finally:
        if serving is not None:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        writer.transport.abort()


async def abort(context: Any, error: errors.SeriatimError) -> None:
    code, text, metadata = to_status(error)
    await context.abort(code, text, metadata)


@asynccontextmanager
async def running(
    broker_count: int = 1, credentials: Any = None, tls: Callable[[], ssl.SSLContext] | None = None
) -> AsyncIterator[FakeCluster]:
    """A cluster of this many brokers, on free ports; with TLS if there are credentials.

    Streams over TCP then need the same as `tls`.
    """
    cluster = FakeCluster()
    for number in range(broker_count):
        broker = FakeBroker(cluster, f"fake-{number}")
        broker.credentials = credentials
        broker.tls = tls
        await broker.start()
    try:
        yield cluster
    finally:
        for broker in cluster.brokers:
            await broker.stop()


@asynccontextmanager
async def connected(partitions: int = 1, *, brokers: int = 1) -> AsyncIterator[tuple[FakeCluster, Client]]:
    """A cluster with a topic `t`, and a client of its first broker."""
    async with running(brokers) as cluster:
        cluster.create_topic("t", partitions)
        async with Client.connect(cluster.brokers[0].address) as client:
            yield cluster, client


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait for a state, looking at it on each turn of the loop."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the states are those of many objects
            await asyncio.sleep(0.001)
