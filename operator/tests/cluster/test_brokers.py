"""The brokers' client, over real gRPC servers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from seriatim_api.errors import CoordinatorBehindError, SeriatimError, UnavailableError, UnknownTopicError
from seriatim_api.network.grpc_options import PING_OPTIONS, PINGED_OPTIONS
from seriatim_api.status import to_status
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc, operations_pb2_grpc
from seriatim_local.layout.plan import Address, Link
from seriatim_local.links.proxy import Proxy
from seriatim_operator.cluster import brokers as module
from seriatim_operator.cluster.brokers import Brokers

PATHS = (("operator", "broker"), ("broker", "operator"))


class Admin(broker_pb2_grpc.AdminServicer):
    """Reports one topic, and then says that it is there as long as it is not frozen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_frozen = False
        self.lost = ""
        self.watches = 0
        self.questions = 0
        self.is_watched = asyncio.Event()
        self.is_asked = asyncio.Event()

    async def WatchTopics(self, _request: Any, _context: Any) -> AsyncIterator[broker_pb2.WatchTopicsResponse]:  # noqa: N802
        self.watches += 1
        self.is_watched.set()
        if not self.is_frozen:
            first = broker_pb2.WatchTopicsResponse(is_whole=True)
            first.changed.add().topic.name = self.name
            yield first
        while True:
            await asyncio.sleep(0.02)
            if not self.is_frozen:
                yield broker_pb2.WatchTopicsResponse()

    async def DescribeGroup(self, request: broker_pb2.DescribeGroupRequest, context: Any) -> None:  # noqa: N802
        assert not request.group, "what every broker refuses"
        self.questions += 1
        if self.is_frozen:
            await asyncio.Event().wait()
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no name")

    async def DescribeTopic(self, request: broker_pb2.DescribeTopicRequest, context: Any) -> None:  # noqa: N802
        assert request.name, "the name of a topic that was never made"
        if self.is_frozen:
            await asyncio.Event().wait()
        await context.abort(*to_status(CoordinatorBehindError(self.lost) if self.lost else UnknownTopicError("no")))

    async def ListConsumerGroups(self, _request: Any, _context: Any) -> broker_pb2.ListConsumerGroupsResponse:  # noqa: N802
        self.is_asked.set()
        if self.is_frozen:
            await asyncio.Event().wait()
        return broker_pb2.ListConsumerGroupsResponse(groups=[self.name])


@asynccontextmanager
async def served(*admins: Admin, options: Sequence[tuple[str, Any]] = ()) -> AsyncIterator[list[str]]:
    """A server for each; their addresses."""
    servers, addresses = [], []
    for admin in admins:
        server = grpc.aio.server(options=options)
        broker_pb2_grpc.add_AdminServicer_to_server(admin, server)  # type: ignore[no-untyped-call]
        addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        servers.append(server)
    try:
        yield addresses
    finally:
        await asyncio.gather(*(server.stop(None) for server in servers))


async def test_a_quiet_stream_goes_on_and_a_frozen_broker_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCH_SILENCE_S", 0.3)
    monkeypatch.setattr(module, "ATTEMPT_S", 0.3)
    one, other = Admin("one"), Admin("other")
    brokers = Brokers("orders", lambda: 1)
    async with served(one, other) as addresses:
        brokers.reach(addresses, None)
        told: list[str] = []

        async def follow() -> None:
            async for response in brokers.watch_topics():
                told.extend([summary.topic.name for summary in response.changed] or ["still there"])
                one.is_frozen = told.count("still there") >= 30

        with pytest.raises(UnavailableError, match="has reported nothing"):
            await follow()
        assert told[0] == "one"
        async for response in brokers.watch_topics():
            assert response.changed[0].topic.name == "other"
            break
        await brokers.close()
    assert (one.watches, other.watches) == (1, 1)


@pytest.mark.parametrize("paths", [PATHS[:1], PATHS[1:], PATHS], ids=["there", "back", "both"])
async def test_a_forgotten_connection_is_dialled_again(
    paths: tuple[tuple[str, str], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(PING_OPTIONS) <= set(module._OPTIONS)
    # Quick enough for a test, and yet patient: on a busy machine a ping of a good connection takes tenths of a second.
    quick = {"grpc.keepalive_time_ms": 100, "grpc.keepalive_timeout_ms": 1000, "grpc.http2.ping_timeout_ms": 1000}
    monkeypatch.setattr(module, "_OPTIONS", tuple({**dict(module._OPTIONS), **quick}.items()))
    monkeypatch.setattr(module, "ATTEMPT_S", 0.5)
    brokers = Brokers("orders", lambda: 1)
    pinged = (*PINGED_OPTIONS, ("grpc.http2.min_ping_interval_without_data_ms", 10))
    async with served(Admin("one"), options=pinged) as [address]:
        proxy = Proxy(())
        proxy.add([Link(*PATHS[0], Address("127.0.0.1", 0), Address("127.0.0.1", int(address.rpartition(":")[2])))])
        brokers.reach([f"127.0.0.1:{proxy._listeners[0].getsockname()[1]}"], None)
        try:
            stream = brokers.watch_topics()
            assert (await anext(stream)).changed[0].topic.name == "one"
            assert await brokers.list_consumer_groups("t") == ["one"]
            assert proxy.forget(paths) == 1
            async with asyncio.timeout(20):
                with pytest.raises(UnavailableError):
                    async for _ in stream:
                        pass
                assert await _watched_again(brokers) == "one"
                assert await brokers.list_consumer_groups("t") == ["one"]
        finally:
            await brokers.close()
            proxy.close()


async def _watched_again(brokers: Brokers) -> str:
    """Watch until a broker answers, as the operator does: gRPC may fail one more call before it dials again."""
    while True:
        with suppress(UnavailableError):
            return str((await anext(brokers.watch_topics())).changed[0].topic.name)


async def test_a_broker_that_is_not_there_is_asked_last() -> None:
    there = Admin("there")
    brokers = Brokers("orders", lambda: 1)
    async with served(there) as addresses:
        brokers.reach(["127.0.0.1:1", *addresses], None)
        with pytest.raises(UnavailableError):
            await anext(brokers.watch_topics())
        response = await anext(brokers.watch_topics())
        assert response.changed[0].topic.name == "there"
        await brokers.close()


async def test_a_call_goes_on_with_another_broker_when_its_connection_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    leaves, stays = Admin("leaves"), Admin("stays")
    leaves.is_frozen = True
    brokers = Brokers("orders", lambda: 1)
    async with served(leaves, stays) as (old, new):
        brokers.reach([old], None)
        asked = asyncio.create_task(brokers.list_consumer_groups("orders"))
        watched = asyncio.create_task(anext(brokers.watch_topics()))  # type: ignore[arg-type]
        await leaves.is_asked.wait()
        await leaves.is_watched.wait()
        brokers.reach([new], None)
        assert await asked == ["stays"]
        with pytest.raises(UnavailableError, match="was closed"):
            await watched
        await brokers.close()


class SilentOperations(operations_pb2_grpc.OperationsServicer):
    """A broker that etcd does not answer."""

    def __init__(self) -> None:
        self.questions = 0

    async def ListBrokerGroups(self, _request: Any, _context: Any) -> None:  # noqa: N802
        self.questions += 1
        await asyncio.Event().wait()


@pytest.mark.parametrize(("limit", "with_counts"), [("MEMBERS_S", False), ("CALL_S", True)])
async def test_two_brokers_are_asked_for_the_members_before_they_count_as_silent(
    limit: str, with_counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module.MEMBERS_S <= 4.0  # administrators are notified within 10 s that etcd is silent
    for name in ("MEMBERS_S", "CALL_S"):
        monkeypatch.setattr(module, name, 0.4 if name == limit else 60.0)
    silent = [SilentOperations() for _ in range(3)]
    servers, addresses = [], []
    for each in silent:
        server = grpc.aio.server()
        operations_pb2_grpc.add_OperationsServicer_to_server(each, server)  # type: ignore[no-untyped-call]
        addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        servers.append(server)
    brokers = Brokers("orders", lambda: 1)
    brokers.reach(addresses, None)
    try:
        async with asyncio.timeout(20):
            with pytest.raises(SeriatimError):
                await brokers.list_broker_groups(with_counts=with_counts)
    finally:
        await brokers.close()
        await asyncio.gather(*(server.stop(None) for server in servers))
    assert sum(each.questions for each in silent) == 2


async def test_each_broker_is_asked_what_the_coordinator_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ATTEMPT_S", 0.5)
    well, behind, frozen = Admin("well"), Admin("behind"), Admin("frozen")
    behind.lost, frozen.is_frozen = "the coordinator has lost decisions", True
    brokers = Brokers("orders", lambda: 1)
    async with served(well, behind, frozen) as addresses:
        brokers.reach([*addresses, "127.0.0.1:1"], None)
        answers = await brokers.ask_for_losses()
        await brokers.close()
    assert list(answers) == addresses[:2]
    assert answers[addresses[0]] == ""
    assert "the coordinator has lost decisions" in answers[addresses[1]]


@pytest.mark.parametrize(
    "at",
    [
        broker_pb2.GroupTarget(position=broker_pb2.START_POSITION_EARLIEST),
        broker_pb2.GroupTarget(position=broker_pb2.START_POSITION_LATEST),
        broker_pb2.GroupTarget(time_ms=5),
    ],
)
async def test_a_group_begins_at_an_end_as_it_does_by_the_command(
    at: broker_pb2.GroupTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[broker_pb2.CreateConsumerGroupRequest] = []

    async def admin(_self: Brokers, _method: str, request: Any) -> broker_pb2.CreateConsumerGroupResponse:
        asked.append(request)
        return broker_pb2.CreateConsumerGroupResponse(created=True)

    monkeypatch.setattr(Brokers, "_admin", admin)
    assert await Brokers.__new__(Brokers).create_consumer_group("t", "g", at)
    (request,) = asked
    assert (request.start, request.HasField("at")) == (at.position, not at.HasField("position"))
