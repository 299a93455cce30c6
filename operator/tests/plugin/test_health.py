"""What brokers say at `/readyz`, through a server that speaks the API's side of a port-forward."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import cast

import pytest
from aiohttp import WSMsgType, web
from kubernetes import client
from seriatim_api.troubles import COORDINATOR_BEHIND, COORDINATOR_REFUSES, DISK_CONTRADICTS
from seriatim_operator.cluster.connection import Connection
from seriatim_operator.cluster.kube import Kube
from seriatim_operator.plugin.findings import Level
from seriatim_operator.plugin.health import Page, check_pages, draw_troubles, examine_pages
from seriatim_operator.plugin.look import Look

from .objects import cluster, healthy

NO_KUBE = cast(Kube, None)
PAGES = {
    "orders-g0-0-aaaa": (503, f"g0-0: {COORDINATOR_BEHIND.line('it has lost epoch 7')}\n"),
    "orders-g0-1-aaaa": (200, f"ready\nwarning: {COORDINATOR_REFUSES.line('no space')}\n"),
    "orders-g1-0-aaaa": (200, f"ready\nwarning: {DISK_CONTRADICTS.line('segment 4')}\n"),
}


async def _serve(request: web.Request) -> web.StreamResponse:
    pod = request.match_info["pod"]
    if pod.startswith("orders-g2"):
        return web.Response(status=403, text="forbidden")
    assert request.query["ports"] == "7101"
    socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
    await socket.prepare(request)
    for channel in (0, 1):
        await socket.send_bytes(bytes([channel]) + (7101).to_bytes(2, "little"))
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data.startswith(b"\0GET /readyz "):
            status, page = PAGES.get(pod, (200, "ready\n"))
            head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(page)}\r\nConnection: close\r\n\r\n"
            await socket.send_bytes(b"\0" + head.encode() + page.encode())
            break
    await socket.close()
    return socket


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/{namespace}/pods/{pod}/portforward", _serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    [address] = runner.addresses
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{address[1]}"
    yield Connection(configuration, "shop")
    await runner.cleanup()


def plain() -> Look:
    return healthy(cluster=cluster(tls={"enabled": False}))


async def test_each_broker_is_asked_and_what_it_says_is_named_with_a_remedy(connection: Connection) -> None:
    found = {finding.about: finding for finding in await examine_pages(connection, NO_KUBE, plain())}
    assert {about: finding.level for about, finding in found.items()} == {
        "broker orders-g0-0-aaaa": Level.BAD,
        "broker orders-g0-1-aaaa": Level.WARNING,
        "broker orders-g1-0-aaaa": Level.BAD,
        "broker orders-g2-0-aaaa": Level.UNKNOWN,
        "broker orders-g2-1-aaaa": Level.UNKNOWN,
    }
    behind = found["broker orders-g0-0-aaaa"]
    assert behind.text == "coordinator-behind (error 605): it has lost epoch 7"
    assert "seriatim coordinator rebuild" in behind.remedy
    assert "(error 604): no space" in found["broker orders-g0-1-aaaa"].text
    assert "seriatim chain recover" in found["broker orders-g1-0-aaaa"].remedy
    assert "403" in found["broker orders-g2-0-aaaa"].text
    lines = [line.plain for line in draw_troubles(list(found.values()))]
    assert "broker orders-g0-0-aaaa: coordinator-behind (error 605): it has lost epoch 7\n    to do: " in lines[0]


async def test_pods_that_do_not_run_are_not_asked(connection: Connection) -> None:
    look = plain()
    over = {name: dataclasses.replace(pod, is_running=False) for name, pod in look.pods.items()}
    (finding,) = await examine_pages(connection, NO_KUBE, dataclasses.replace(look, pods=over))
    assert (finding.level, finding.text) == (Level.WELL, "0 name no trouble")


def test_ready_brokers_without_warnings_are_well() -> None:
    (finding,) = check_pages({"a": Page("ready\n"), "b": Page("ready\n")})
    assert finding.level is Level.WELL
    assert draw_troubles([finding]) == []
