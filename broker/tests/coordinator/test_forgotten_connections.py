"""A firewall forgets the connections to the coordinator: calls and watches notice it, and continue over new ones."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from pathlib import Path

import pytest
from seriatim_broker.adapters import etcd_channel
from seriatim_broker.adapters.etcd import EtcdConfig, EtcdCoordinator
from seriatim_broker.interfaces.coordinator import CoordinatorUnavailableError, Put
from seriatim_local.embedded import serve, server
from seriatim_local.layout.plan import Address, Link
from seriatim_local.links.proxy import Proxy

PATHS = (("broker", "coordinator"), ("coordinator", "broker"))
QUICK = {"grpc.keepalive_time_ms": 150, "grpc.keepalive_timeout_ms": 150, "grpc.http2.ping_timeout_ms": 150}
IN_TIME_S = 10.0


async def _goes_on(address: str, directory: str, paths: tuple[tuple[str, str], ...], *, is_busy: bool) -> None:
    proxy = Proxy(())
    proxy.add([Link(*PATHS[0], Address("127.0.0.1", 0), Address("127.0.0.1", int(address.rpartition(":")[2])))])
    client = EtcdCoordinator(EtcdConfig((f"127.0.0.1:{proxy._listeners[0].getsockname()[1]}",), deadline_s=1.0))
    key = f"{directory}/{paths}/{is_busy}"

    async def write_all_the_time() -> None:
        while True:
            try:
                await client.txn((), [Put(key + "/busy", b"x")])
            except CoordinatorUnavailableError:
                continue  # the outcome of a write that was under way is not known

    task = asyncio.create_task(write_all_the_time()) if is_busy else None
    try:
        async with asyncio.timeout(IN_TIME_S):
            before = await client.txn((), [Put(key, b"before")])
            async with aclosing(client.watch(key, start_revision=before.revision)) as watch:
                assert (await anext(watch)).events[0].item.value == b"before"
                assert proxy.forget(paths) > 0
                while True:
                    try:
                        await client.txn((), [Put(key, b"after")])
                        break
                    except CoordinatorUnavailableError:
                        continue
                assert (await anext(watch)).events[0].item.value == b"after"
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await client.close()
        proxy.close()


async def test_calls_and_watches_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PING_INTERVAL_MS_MIN", 10)
    options = {**dict(etcd_channel._CHANNEL_OPTIONS), **QUICK}
    monkeypatch.setattr(etcd_channel, "_CHANNEL_OPTIONS", tuple(options.items()))
    coordinator = await serve(tmp_path / "c", "127.0.0.1:0")
    try:
        ways = itertools.product((PATHS[:1], PATHS[1:], PATHS), (False, True))
        await asyncio.gather(*(_goes_on(coordinator.address, "k", paths, is_busy=is_busy) for paths, is_busy in ways))
    finally:
        await coordinator.stop()


def test_the_real_limits_are_noticed_in_time() -> None:
    options = dict(etcd_channel._CHANNEL_OPTIONS)
    assert options["grpc.keepalive_time_ms"] >= 5_000  # etcd ends a connection that pings more often
    assert options["grpc.keepalive_time_ms"] + options["grpc.http2.ping_timeout_ms"] < 15_000
