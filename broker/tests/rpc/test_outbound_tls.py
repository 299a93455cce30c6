"""Calls passed on to another broker follow a change of certificates, and what is under way ends as it began."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import pytest_asyncio
import trustme
from seriatim_api.network import tls
from seriatim_api.network.tls import TlsSource
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc
from seriatim_broker.process.tls import server_credentials
from seriatim_broker.rpc.calls.outbound import BrokerCalls
from seriatim_broker.rpc.calls.transport import TlsTransport

from .certificates import write

DEADLINE_S = 10.0


class Other(broker_pb2_grpc.AdminServicer):  # type: ignore[misc]
    """The broker that is called; holds its answer to a call about the topic `slow` back."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.released = asyncio.Event()

    async def ListTopics(self, request: Any, _context: Any) -> broker_pb2.ListTopicsResponse:  # noqa: N802
        if request.after == "slow":
            self.asked.set()
            await self.released.wait()
        return broker_pb2.ListTopicsResponse()


@pytest_asyncio.fixture(loop_scope="session")
async def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Other, str]]:
    """The other broker, with certificates in `b`."""
    monkeypatch.setattr(tls, "CHECK_INTERVAL_S", 0.0)
    other, server = Other(), grpc.aio.server()
    broker_pb2_grpc.add_AdminServicer_to_server(other, server)
    credentials = server_credentials(TlsSource(write(tmp_path / "b", trustme.CA(), "127.0.0.1")), "required")
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    yield other, f"127.0.0.1:{port}"
    await server.stop(None)


async def test_new_calls_use_new_certificates_and_old_ones_end(tmp_path: Path, serving: tuple[Other, str]) -> None:
    other, address = serving
    authority = trustme.CA()
    write(tmp_path / "b", authority, "127.0.0.1")
    transport = TlsTransport(TlsSource(write(tmp_path / "a", authority, "127.0.0.1")))
    directory: Any = SimpleNamespace(peer_address=lambda _broker: address)
    calls = BrokerCalls(directory, transport)

    async def ask(after: str) -> Any:
        return await calls.admin("b", "ListTopics", broker_pb2.ListTopicsRequest(after=after), DEADLINE_S)

    await ask("quick")
    slow = asyncio.create_task(ask("slow"))
    await asyncio.wait_for(other.asked.wait(), DEADLINE_S)
    new = trustme.CA()
    write(tmp_path / "b", new, "127.0.0.1")
    write(tmp_path / "a", new, "127.0.0.1")
    before = calls._channels[address]
    await ask("quick")
    assert calls._channels[address] is not before, "a channel that connects again would show the old certificate"
    assert not slow.done()
    other.released.set()
    await asyncio.wait_for(slow, DEADLINE_S)
    await calls.close()
