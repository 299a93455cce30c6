"""Some clients have streams over gRPC only. A broker with a port for TCP serves them too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import grpc
import pytest
import pytest_asyncio
from seriatim_api.batch import FLAG_HELD, FLAG_LATE, FLAG_NAMES, FLAG_RELEASED, MAGIC
from seriatim_api.errors import BadRequestError, SeriatimError
from seriatim_api.protocol import PROTOCOL
from seriatim_api.status import error_from_proto, from_status
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc, common_pb2
from seriatim_api.wire.frames import read_delivery_frame, write_field
from seriatim_api.wire.stream_frames import FINISHED, HELLO, MESSAGE
from seriatim_broker.rpc.calls.limits import SERVER_OPTIONS
from seriatim_broker.rpc.calls.services import Services
from seriatim_broker.rpc.servicers.routing import RoutingServicer
from seriatim_broker.rpc.streams.over_grpc import GrpcStreams

from .test_producing import QuietCore, core, release, services
from .test_tcp_streams import Nowhere, Place, batches, listening

__all__ = ["core", "services"]

PATHS = {"append": "/seriatim.v1.Producing/Append", "consume": "/seriatim.v1.Consuming/Consume"}
DEADLINE_S = 30.0
FLAGS_AT = 4  # in a batch header


class Broker:
    """One broker with both ports."""

    def __init__(self, place: Place, services: Services) -> None:
        nowhere = cast(Any, Nowhere())
        self.place = place
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        self.server.add_generic_rpc_handlers(GrpcStreams(services, nowhere).handlers())
        routing = RoutingServicer(services, nowhere, nowhere, place.port)
        broker_pb2_grpc.add_RoutingServicer_to_server(routing, self.server)
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}")


@pytest_asyncio.fixture(loop_scope="session")
async def broker(services: Services) -> AsyncIterator[Broker]:
    """It serves on both."""
    async with listening(services) as place:
        made = Broker(place, services)
        await made.server.start()
        yield made
        await made.channel.close()
        await made.server.stop(None)


async def over_grpc(broker: Broker, kind: str, sent: bytes, served: Callable[[], Any]) -> list[Any]:
    """What a client gets over gRPC: the frames, and how the stream ends."""
    call = broker.channel.stream_stream(PATHS[kind])()
    if kind == "append":
        hello = b"".join(write_field(1, [broker_pb2.ClientHello(protocol=PROTOCOL).SerializeToString()]))
    else:
        begins = broker_pb2.ConsumerHello(protocol=PROTOCOL, credit_bytes=1 << 20)
        hello = broker_pb2.ConsumeRequest(hello=begins).SerializeToString()
    found: list[Any] = []
    try:
        await call.write(hello)
        if kind == "append":
            found.append(await call.read())
        await call.write(sent)
        await served()
        await call.done_writing()
        while (frame := await call.read()) is not grpc.aio.EOF:
            found.append(frame)
        ended: SeriatimError | None = None
    except grpc.aio.AioRpcError as exc:
        ended = from_status(exc.code(), exc.details(), exc.trailing_metadata())
    return [*found, (type(ended), str(ended))]


async def over_tcp(broker: Broker, kind: str, sent: bytes, served: Callable[[], Any]) -> list[Any]:
    """The same of a new client. It begins with what the broker says about its port."""
    said = await broker_pb2_grpc.RoutingStub(broker.channel).GetStreamPort(broker_pb2.GetStreamPortRequest())
    assert (said.port, said.broker, said.cluster_id) == (broker.place.port, "g0-0", "c")
    raw = await broker.place.raw()
    hello = broker_pb2.StreamHello(cluster_id=said.cluster_id, broker=said.broker)
    if kind == "append":
        hello.append.protocol = PROTOCOL
    else:
        hello.consume.protocol = PROTOCOL
        hello.consume.credit_bytes = 1 << 20
    raw.send(HELLO, hello.SerializeToString())
    raw.send(MESSAGE, sent)
    await served()
    raw.send(FINISHED)
    found: list[Any] = []
    await raw.read()  # it is open
    while (frame := await raw.read())[0] == MESSAGE:
        found.append(frame[1])
    ended = None if not frame[1] else error_from_proto(common_pb2.Error.FromString(frame[1]))
    return [*found, (type(ended), str(ended))]


@pytest.mark.parametrize("way", [over_grpc, over_tcp])
async def test_batches_are_taken_and_answered(broker: Broker, core: QuietCore, services: Services, way: Any) -> None:
    async def served() -> None:
        await core.until_count(2)
        release(services)

    *frames, ended = await way(broker, "append", batches(1, 2), served)
    assert ended == (type(None), "None")
    first, *others = [broker_pb2.AppendReplies.FromString(frame) for frame in frames]
    assert (first.credit.protocol, first.credit.broker) == (PROTOCOL, "g0-0")
    assert [(reply.partition_id, reply.offset) for more in others for reply in more.replies] == [(1, 5), (2, 5)]
    await broker.place.idle()


@pytest.mark.parametrize("way", [over_grpc, over_tcp])
@pytest.mark.parametrize("kind", ["append", "consume"])
async def test_what_cannot_be_read_ends_a_stream_with_the_same_error(broker: Broker, way: Any, kind: str) -> None:
    async def served() -> None:
        pass

    *_, (kind_of_error, text) = await way(broker, kind, b"\xff\xff no message", served)
    assert kind_of_error.__name__ == "BadRequestError"
    assert "not a" in text
    await broker.place.idle()


@pytest.mark.parametrize("way", [over_grpc, over_tcp])
async def test_a_frame_with_a_flag_of_brokers_ends_a_stream_with_its_name(
    broker: Broker, core: QuietCore, way: Any
) -> None:
    async def served() -> None:
        pass

    for flag in (FLAG_HELD, FLAG_RELEASED, FLAG_LATE):
        sent = bytearray(batches(1, 2))
        at = sent.rindex(MAGIC) + FLAGS_AT
        sent[at : at + 4] = flag.to_bytes(4, "little")
        *_, (kind_of_error, text) = await way(broker, "append", bytes(sent), served)
        assert kind_of_error is BadRequestError
        assert FLAG_NAMES[flag] in text
        assert "nothing of it was stored" in text
    assert not core.appends, "no batch of such a frame is taken"
    await broker.place.idle()


@pytest.mark.parametrize("way", [over_grpc, over_tcp])
async def test_a_consumer_that_is_refused_is_told_in_a_delivery(broker: Broker, way: Any) -> None:
    join = broker_pb2.Join(subscription=3, partition_id=1, group="g", consumer="", mode=0)
    request = broker_pb2.ConsumeRequest(join=join).SerializeToString()
    found: list[bytes] = []  # a consumer that has finished is notified of nothing more
    if way is over_tcp:
        raw = await broker.place.raw()
        await raw.opened("consume")
        raw.send(MESSAGE, request)
        found.append((await raw.read())[1])
        raw.send(FINISHED)
        assert await raw.end() is None
    else:
        call = broker.channel.stream_stream(PATHS["consume"])()
        await call.write(
            broker_pb2.ConsumeRequest(hello=broker_pb2.ConsumerHello(protocol=PROTOCOL)).SerializeToString()
        )
        await call.write(request)
        found.append(await asyncio.wait_for(call.read(), DEADLINE_S))
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
    [delivery] = [read_delivery_frame(frame) for frame in found]
    [event] = [broker_pb2.DeliveryEvent.FromString(raw) for raw in delivery.events]
    assert (event.subscription, event.refused.error.number) == (3, 100)
    await broker.place.idle()


async def test_without_a_port_for_streams_a_broker_says_so(services: Services) -> None:
    routing = RoutingServicer(services, cast(Any, None), cast(Any, None))
    answer = await routing.GetStreamPort(broker_pb2.GetStreamPortRequest(), None)
    assert (answer.port, answer.broker) == (0, "g0-0")


async def test_batches_in_the_first_frame_over_grpc_are_taken_too(
    broker: Broker, core: QuietCore, services: Services
) -> None:
    call = broker.channel.stream_stream(PATHS["append"])()
    hello = b"".join(write_field(1, [broker_pb2.ClientHello(protocol=PROTOCOL).SerializeToString()]))
    await call.write(hello + batches(1, 2))
    await core.until_count(2)
    assert [append.partition for append in core.appends] == [1, 2]
    release(services)
    await call.done_writing()
    async with asyncio.timeout(DEADLINE_S):
        while await call.read() is not grpc.aio.EOF:
            pass


class _Driver:
    """Counts the streams of consumers that have begun and ended."""

    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.begins: asyncio.Queue[None] = asyncio.Queue()
        self.gone = asyncio.Event()

    def new_stream(self, _deliver: object) -> int:
        self.begun += 1
        self.begins.put_nowait(None)
        return self.begun

    def forget_stream(self, _stream: int) -> None:
        self.ended += 1
        self.gone.set()

    def feed(self, _event: object) -> None:
        pass


@pytest.mark.parametrize("is_half_closed", [False, True])
async def test_a_stream_over_grpc_ends_however_its_client_goes(
    broker: Broker, services: Services, is_half_closed: bool
) -> None:
    """gRPC cancels the call of a client that has gone, at whatever it awaits just then."""
    driver = services.driver = cast(Any, _Driver())
    for _ in range(20):
        call = broker.channel.stream_stream(PATHS["consume"])()
        begins = broker_pb2.ConsumerHello(protocol=PROTOCOL, credit_bytes=1 << 20)
        await call.write(broker_pb2.ConsumeRequest(hello=begins).SerializeToString())
        async with asyncio.timeout(DEADLINE_S):
            await driver.begins.get()
        if is_half_closed:
            await call.done_writing()
        call.cancel()
    async with asyncio.timeout(DEADLINE_S):
        while driver.ended < driver.begun:
            driver.gone.clear()
            await driver.gone.wait()
    assert driver.begun == 20
