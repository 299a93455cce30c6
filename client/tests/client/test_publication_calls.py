"""Questions about publications: brokers that are frozen, and calls that wait for long beside others that must not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from seriatim import Client
from seriatim._transport import unary
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc, publications_pb2, publications_pb2_grpc


class Broker(publications_pb2_grpc.PublicationsServicer, broker_pb2_grpc.RoutingServicer):
    """Answers at once, unless it is frozen; what it publishes waits."""

    def __init__(self) -> None:
        self.address = ""
        self.is_frozen = False
        self.asked: list[str] = []
        self.published: list[publications_pb2.PublishRequest] = []
        self.has_two = asyncio.Event()
        self.go_on = asyncio.Event()

    async def _answer(self, method: str, answer: Any) -> Any:
        self.asked.append(method)
        if self.is_frozen:
            await asyncio.Event().wait()
        return answer

    async def OpenWriter(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return await self._answer("OpenWriter", publications_pb2.OpenWriterResponse(epoch=7))

    async def PrepareStaging(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return await self._answer("PrepareStaging", publications_pb2.PrepareStagingResponse())

    async def DescribeWriter(self, request: Any, _context: Any) -> Any:  # noqa: N802
        return await self._answer("DescribeWriter", publications_pb2.WriterDescription(writer=request.writer))

    async def ListWriters(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return await self._answer("ListWriters", publications_pb2.ListWritersResponse())

    async def Publish(self, request: Any, _context: Any) -> Any:  # noqa: N802
        self.published.append(request)
        if len(self.published) == 2:
            self.has_two.set()
        await self.go_on.wait()
        return publications_pb2.PublishResponse()

    async def GetTopic(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return broker_pb2.GetTopicResponse()


@asynccontextmanager
async def running(count: int) -> AsyncIterator[list[Broker]]:
    """This many brokers."""
    brokers, servers = [], []
    for _ in range(count):
        broker, server = Broker(), grpc.aio.server()
        publications_pb2_grpc.add_PublicationsServicer_to_server(broker, server)
        broker_pb2_grpc.add_RoutingServicer_to_server(broker, server)
        broker.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        brokers.append(broker)
        servers.append(server)
    try:
        yield brokers
    finally:
        for broker in brokers:
            broker.go_on.set()
        await asyncio.gather(*(server.stop(0) for server in servers))


@pytest.mark.parametrize("method", ["DescribeWriter", "ListWriters", "PrepareStaging"])
async def test_what_only_reads_does_not_wait_for_a_frozen_broker(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(unary, "READ_PATIENCE_S", 0.05)
    async with running(2) as brokers, Client.connect([broker.address for broker in brokers]) as client:
        brokers[0].is_frozen = True
        request = getattr(publications_pb2, f"{method}Request")()
        await client._caller.publications(method, request, 5.0)
        assert (brokers[0].asked, brokers[1].asked) == ([method], [method])


async def test_a_writer_that_a_frozen_broker_was_to_open_is_opened_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("seriatim._publishing.writer.ATTEMPT_DEADLINE_S", 0.2)
    async with running(2) as brokers, Client.connect([broker.address for broker in brokers]) as client:
        brokers[0].is_frozen = True
        async with client.writer("orders", "nightly") as writer:
            await writer.open()
        assert writer.epoch == 7
        assert (brokers[0].asked, brokers[1].asked) == (["OpenWriter"], ["OpenWriter"])


async def test_publications_that_wait_keep_no_producer_from_its_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unary, "ASKED_AT_ONCE_MAX", 2)
    async with running(1) as (broker,), Client.connect([broker.address]) as client:
        writers = [await client.writer("orders", f"w{number}") for number in range(3)]
        publishing = [asyncio.create_task(writer.publish(1, [])) for writer in writers]
        await broker.has_two.wait()
        await client._caller.routing("GetTopic", broker_pb2.GetTopicRequest(topic="orders"), 5.0)
        assert len(broker.published) == 2
        broker.go_on.set()
        await asyncio.gather(*publishing)


async def test_a_publication_without_rows_is_asked_for_without_a_manifest() -> None:
    async with running(1) as (broker,), Client.connect([broker.address]) as client:
        broker.go_on.set()
        async with client.writer("orders", "nightly") as writer:
            published = await writer.publish(5, [])
        assert (published.rows, published.was_done) == (0, False)
        (request,) = broker.published
        assert (request.writer, request.sequence, request.HasField("manifest")) == ("nightly", 5, False)
        assert len(request.digest) == 16
