"""Connections: one that is lost is not taken up again where its name once led; a warm one comes back by itself."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc
import grpc.aio
import pytest
from seriatim._transport import channels as module
from seriatim._transport.channels import Channels

from ..fake_broker import until


async def server(port: int = 0) -> tuple[Any, str]:
    """Something that accepts connections."""
    result = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    port = result.add_insecure_port(f"127.0.0.1:{port}")
    await result.start()
    return result, f"127.0.0.1:{port}"


async def reach(channel: Any, wanted: grpc.ChannelConnectivity) -> None:
    async with asyncio.timeout(10):
        while (state := channel.get_state()) is not wanted:
            await channel.wait_for_state_change(state)


async def another(channels: Channels, address: str, than: Any) -> Any:
    """The channel that takes a lost one's place, while no call asks for it."""
    await until(lambda: channels._channels.get((address, "append")) not in (None, than))
    return channels._channels[address, "append"]


async def test_a_warm_connection_that_is_lost_is_made_anew() -> None:
    channels = Channels()
    first, address = await server()
    channels.warm(address)
    channel = channels.get(address, "append")
    await reach(channel, grpc.ChannelConnectivity.READY)
    await first.stop(None)
    following = await another(channels, address, channel)
    second, _ = await server(int(address.rpartition(":")[2]))
    await reach(following, grpc.ChannelConnectivity.READY)
    await channels.close()
    await second.stop(None)


class Idle:
    """A channel that is not connected whenever one looks; the first one was, between two looks."""

    opened: list[Idle]

    def __init__(self) -> None:
        self._news = asyncio.Event()
        if not self.opened:
            self._news.set()
        self.opened.append(self)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.IDLE

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._news.wait()
        self._news.clear()

    async def close(self, grace: float | None) -> None:
        self._news.set()


async def test_a_warm_connection_that_came_and_went_unseen_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    # Found where four other processes kept two processors busy: it was waited for as one that was never tried.
    monkeypatch.setattr(Idle, "opened", [], raising=False)
    monkeypatch.setattr(Channels, "_open", lambda _channels, _address: Idle())
    channels = Channels()
    channels.warm("nowhere:1")
    await until(lambda: len(Idle.opened) == 2)
    assert channels.get("nowhere:1", "append") is Idle.opened[1]
    await channels.close()


async def test_a_lost_connection_that_nobody_needs_is_given_up() -> None:
    channels = Channels()
    first, address = await server()
    channel = channels.get(address, "ask")
    await asyncio.sleep(0)  # it is watched from the next turn of the loop on
    channel.get_state(try_to_connect=True)
    await reach(channel, grpc.ChannelConnectivity.READY)
    await first.stop(None)
    await until(lambda: not channels._channels)
    assert channels.get(address, "ask") is not channel
    await channels.close()


async def test_a_connection_that_does_not_come_about_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COLD_S", 0.05)
    channels = Channels()
    gone, address = await server()
    await gone.stop(None)
    channels.warm(address)
    await until(lambda: not channels._channels and not channels._warm)
    await channels.close()


async def test_a_connection_that_is_slow_is_made_anew_by_who_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOW_S", 0.05)
    mute = socket.create_server(("127.0.0.1", 0))  # takes connections and says nothing
    address = f"127.0.0.1:{mute.getsockname()[1]}"
    channels = Channels()
    channel = channels.get(address, "append")
    channel.get_state(try_to_connect=True)
    await reach(channel, grpc.ChannelConnectivity.CONNECTING)
    assert channels.get(address, "append") is channel, "it has just begun"
    await until(lambda: channels.get(address, "append") is not channel)
    await channels.close()
    mute.close()


async def test_a_connection_that_stands_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOW_S", 0.0)
    standing, address = await server()
    channels = Channels()
    channel = channels.get(address, "append")
    channel.get_state(try_to_connect=True)
    await reach(channel, grpc.ChannelConnectivity.READY)
    assert channels.get(address, "append") is channel
    await channels.close()
    await standing.stop(None)


async def test_giving_up_a_connection_leaves_the_one_that_took_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOW_S", -1.0)
    channels = Channels()
    former = channels.get("127.0.0.1:1", "append")
    following = channels.get("127.0.0.1:1", "append")
    assert following is not former
    monkeypatch.setattr(module, "SLOW_S", 60.0)
    channels.drop("127.0.0.1:1", "append", former)
    assert channels.get("127.0.0.1:1", "append") is following
    channels.drop("127.0.0.1:1", "append", following)
    assert channels.get("127.0.0.1:1", "append") is not following
    await channels.close()


async def test_of_many_warm_connections_those_named_longest_ago_make_room() -> None:
    channels = Channels()
    names = [f"127.0.0.1:{port}" for port in range(1, module.WARM_MAX + 2)]
    for name in names[:-1]:
        channels.warm(name)
    channels.warm(names[0])
    channels.warm(names[-1])
    assert list(channels._warm) == [*names[2:-1], names[0], names[-1]]
    await channels.close()
