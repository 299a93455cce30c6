"""A firewall forgets the connections between brokers: calls to another broker end, and the next ones dial again.

Links have heartbeats on each lane: `test_link_contract` and `core/test_lanes` have the same for them.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import grpc
import pytest
from seriatim_api.errors import SeriatimError
from seriatim_api.network import grpc_options
from seriatim_api.v1 import broker_pb2
from seriatim_broker.rpc.calls import transport
from seriatim_broker.rpc.calls.limits import CHANNEL_OPTIONS, SERVER_OPTIONS
from seriatim_broker.rpc.calls.outbound import BrokerCalls
from seriatim_local.layout.plan import Address, Link
from seriatim_local.links.proxy import Proxy

PATHS = (("a", "b"), ("b", "a"))
QUICK = {"grpc.keepalive_time_ms": 150, "grpc.keepalive_timeout_ms": 150, "grpc.http2.ping_timeout_ms": 150}
IN_TIME_S = 10.0


class Other:
    """Another broker: it answers at once, or never."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        handlers: dict[str, Any] = {
            "ListTopics": grpc.unary_unary_rpc_method_handler(
                self._answer,
                request_deserializer=broker_pb2.ListTopicsRequest.FromString,
                response_serializer=broker_pb2.ListTopicsResponse.SerializeToString,
            )
        }
        self.server = grpc.aio.server(options=(*SERVER_OPTIONS, ("grpc.http2.min_ping_interval_without_data_ms", 10)))
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("seriatim.v1.Admin", handlers),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    async def _answer(self, request: broker_pb2.ListTopicsRequest, _context: Any) -> broker_pb2.ListTopicsResponse:
        if request.after == "never":
            self.is_asked.set()
            await asyncio.sleep(3600)
        return broker_pb2.ListTopicsResponse()


class Directory:
    """Knows one address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def peer_address(self, _broker: str) -> str:
        return self._address


async def _goes_on(other: Other, paths: tuple[tuple[str, str], ...], *, is_busy: bool) -> None:
    proxy = Proxy(())
    proxy.add([Link(*PATHS[0], Address("127.0.0.1", 0), Address("127.0.0.1", other.port))])
    directory: Any = Directory(f"127.0.0.1:{proxy._listeners[0].getsockname()[1]}")
    calls = BrokerCalls(directory, broker="a")
    waiting: asyncio.Future[Any] | None = None
    try:
        async with asyncio.timeout(IN_TIME_S):
            await calls.admin("b", "ListTopics", broker_pb2.ListTopicsRequest(), 5.0)
            if is_busy:
                never = broker_pb2.ListTopicsRequest(after="never")
                waiting = asyncio.ensure_future(calls.admin("b", "ListTopics", never, 3600.0))
                await other.is_asked.wait()
            assert proxy.forget(paths) == 1
            if waiting is not None:
                with pytest.raises(SeriatimError):
                    await waiting
            while True:
                try:
                    await calls.admin("b", "ListTopics", broker_pb2.ListTopicsRequest(), 5.0)
                    break
                except SeriatimError:
                    continue
            assert proxy.connection_count == 2
    finally:
        await calls.close()
        proxy.close()


async def test_calls_between_brokers_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**dict(CHANNEL_OPTIONS), **QUICK}
    monkeypatch.setattr(transport, "CHANNEL_OPTIONS", tuple(options.items()))
    other = Other()
    await other.server.start()
    try:
        ways = itertools.product((PATHS[:1], PATHS[1:], PATHS), (False, True))
        await asyncio.gather(*(_goes_on(other, paths, is_busy=is_busy) for paths, is_busy in ways))
    finally:
        await other.server.stop(None)


def test_brokers_answer_pings_as_often_as_they_come() -> None:
    options = dict(SERVER_OPTIONS)
    assert options["grpc.http2.min_ping_interval_without_data_ms"] < grpc_options.PING_AFTER_MS
    assert options["grpc.keepalive_permit_without_calls"] == 1
    assert dict(CHANNEL_OPTIONS)["grpc.http2.ping_timeout_ms"] == grpc_options.PONG_WITHIN_MS
