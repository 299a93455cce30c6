"""The brokers' client, over real gRPC servers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from seriatim_api.errors import UnavailableError
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc
from seriatim_operator.cluster import brokers as module
from seriatim_operator.cluster.brokers import Brokers


class Admin(broker_pb2_grpc.AdminServicer):
    """Tells one topic, and then says that it is there as long as it is not frozen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_frozen = False
        self.watches = 0

    async def WatchTopics(self, _request: Any, _context: Any) -> AsyncIterator[broker_pb2.WatchTopicsResponse]:  # noqa: N802
        self.watches += 1
        if not self.is_frozen:
            first = broker_pb2.WatchTopicsResponse(is_whole=True)
            first.changed.add().topic.name = self.name
            yield first
        while True:
            await asyncio.sleep(0.02)
            if not self.is_frozen:
                yield broker_pb2.WatchTopicsResponse()


@asynccontextmanager
async def served(*admins: Admin) -> AsyncIterator[list[str]]:
    """A server for each; their addresses."""
    servers, addresses = [], []
    for admin in admins:
        server = grpc.aio.server()
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
    one, other = Admin("one"), Admin("other")
    brokers = Brokers("orders", lambda: 1)
    async with served(one, other) as addresses:
        brokers.reach(addresses, None)
        told: list[str] = []

        async def follow() -> None:
            async for response in brokers.watch_topics():
                told.extend([summary.topic.name for summary in response.changed] or ["still there"])
                one.is_frozen = told.count("still there") >= 30

        with pytest.raises(UnavailableError, match="tells nothing"):
            await follow()
        assert told[0] == "one"
        async for response in brokers.watch_topics():
            assert response.changed[0].topic.name == "other"
            break
        await brokers.close()
    assert (one.watches, other.watches) == (1, 1)


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
