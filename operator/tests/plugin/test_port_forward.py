"""A port of a pod as a port of this machine, through a server that speaks the API's side of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import WSMsgType, web
from kubernetes import client
from seriatim_operator.cluster.port_forward import ForwardFailedError, forward

DATA = 0


class PodSide:
    """Answers what it is sent in capitals; ends the connection at `bye`."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(str(request.rel_url))
        if "secret" in request.path:
            return web.Response(status=403, text="forbidden")
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        port = int(request.query["ports"]).to_bytes(2, "little")
        for channel in (0, 1):  # each channel begins with the number of its port
            await socket.send_bytes(bytes([channel]) + port)
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[0] == DATA:
                if message.data[1:] == b"bye":
                    break
                await socket.send_bytes(bytes([DATA]) + message.data[1:].upper())
        await socket.close()
        return socket


@pytest.fixture
async def pod_side() -> AsyncIterator[tuple[PodSide, client.Configuration]]:
    side = PodSide()
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/{namespace}/pods/{pod}/portforward", side.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    [address] = runner.addresses
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{address[1]}"
    yield side, configuration
    await runner.cleanup()


async def test_bytes_go_both_ways_on_several_connections(pod_side: tuple[PodSide, client.Configuration]) -> None:
    side, configuration = pod_side
    async with forward(configuration, "shop", "orders-g0-0-aaaa", 7100) as address:
        host, _, port = address.partition(":")
        pairs = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        for number, (reader, writer) in enumerate(pairs):
            writer.write(b"hello %d" % number)
            assert await reader.readexactly(7) == b"HELLO %d" % number
        for _, writer in pairs:
            writer.close()
    assert all(url.startswith("/api/v1/namespaces/shop/pods/orders-g0-0-aaaa/portforward") for url in side.asked)


async def test_end_of_the_pods_side_is_seen_here(pod_side: tuple[PodSide, client.Configuration]) -> None:
    async with forward(pod_side[1], "shop", "p", 7100) as address:
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(b"bye")
        assert await reader.read() == b""
        writer.close()


async def test_connections_end_with_the_block(pod_side: tuple[PodSide, client.Configuration]) -> None:
    async with forward(pod_side[1], "shop", "p", 7100) as address:
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(b"x")
        assert await reader.readexactly(1) == b"X"
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection(*address.split(":"))


async def test_pod_that_may_not_be_reached_is_told_at_once(pod_side: tuple[PodSide, client.Configuration]) -> None:
    with pytest.raises(ForwardFailedError, match="no way to port 7100 of pod shop/secret"):
        async with forward(pod_side[1], "shop", "secret", 7100):
            pass
