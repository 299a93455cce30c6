"""What every network between brokers must do for `runtime.driver.links`: the same cases over TCP and simulated.

A module that has a `peers` fixture takes up `CASES`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import pytest
from seriatim_api.batch import parse_header
from seriatim_api.ids import MemberId
from seriatim_broker.adapters.system_clock import SystemClock
from seriatim_broker.core.broker import BrokerCore
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import messages as m
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.events import Event, LinkDown, LinkUp, Moment, Received, Tick
from seriatim_broker.core.values.log import Batch
from seriatim_broker.interfaces.link import Connection, Dialer, PeerIdentity
from seriatim_broker.runtime.driver.links import Links

from broker.tests.headers import header_of

DEADLINE_S = 30.0


class Peer:
    """One broker's links, and the events they gave."""

    def __init__(self, identity: PeerIdentity, dialer: Dialer, resolve: Callable[[str], str | None]) -> None:
        self.identity = identity
        self.dialer = dialer
        self.events: list[Event] = []
        self._arrived = asyncio.Event()
        broker = identity.member.broker
        self.hears: Callable[[Event], None] = lambda _event: None
        self.links = Links(broker, dialer, resolve, self._take, self._take, SystemClock(), Random(1))

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self._arrived.set()
        self.hears(event)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a state."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._arrived.clear()
                await self._arrived.wait()

    def ups(self) -> list[LinkUp]:
        """Links that came up."""
        return [event for event in self.events if isinstance(event, LinkUp)]

    def downs(self, *, refused: bool) -> list[LinkDown]:
        """Links that went down."""
        return [event for event in self.events if isinstance(event, LinkDown) and event.refused == refused]

    def messages(self) -> list[m.Message]:
        """What was received."""
        return [event.message for event in self.events if isinstance(event, Received)]


class Watching:
    """A core that watches over the peer's links, as in a broker, with times that are short and still bear a busy
    machine."""

    CONFIG = BrokerConfig(
        slow_heartbeat_us=150_000, slow_silence_us=600_000, lane_probe_us=50_000, lane_stall_us=500_000
    )

    def __init__(self, peer: Peer) -> None:
        who = peer.identity
        self.stalled: list[object] = []
        self._core = BrokerCore(self.CONFIG, who.member, who.member_run, bytes(12), lambda *_: 0)
        self._clock = SystemClock()
        self._loop = asyncio.get_running_loop()
        self._links = peer.links
        self._queue: deque[Event] = deque()
        self._turns = False
        self._timer: asyncio.TimerHandle | None = None
        self._perform(self._core.start(self._now()))
        peer.hears = self.feed
        self.feed(Tick())

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._turns = True

    def feed(self, event: Event) -> None:
        """One step, and all that follow from it."""
        self._queue.append(event)
        if self._turns:
            return
        self._turns = True
        while self._queue:
            self._perform(self._core.step(self._queue.popleft(), self._now()))
        self._turns = False
        due_us = self._core.next_wake_us()
        if self._timer is not None:
            self._timer.cancel()
        if due_us is not None:
            delay_s = max(0.001, (due_us - self._clock.monotonic_us()) / 1e6)
            self._timer = self._loop.call_later(delay_s, self.feed, Tick())

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic_us(), 1)

    def _perform(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, fx.Send):
                self._links.send(effect.broker, effect.message)
            elif isinstance(effect, fx.Connect):
                self._links.connect(effect.broker)
            elif isinstance(effect, fx.Disconnect):
                self._links.disconnect(effect.broker, effect.session)
            elif isinstance(effect, fx.Note) and effect.name == "lane_stalled":
                self.stalled.append(dict(effect.fields)["lane"])


class Peers(Protocol):
    """A network under test."""

    async def start(self, name: str, run: int) -> Peer:
        """A broker that listens."""

    async def stop(self, peer: Peer) -> None:
        """End it: its connections break, and its address refuses."""

    def address(self, name: str) -> str:
        """Where a broker is reached."""

    def stall(self, source: str, target: str, lane: int) -> None:
        """Let nothing through any more on one lane of the link that `source` dialed; a new link is not concerned."""


def identity(name: str, run: int, cluster: str = "c1") -> PeerIdentity:
    """Who a broker of that name is."""
    return PeerIdentity(cluster, MemberId(name, f"{name}-disk"), run)


def make_batch(body: bytes) -> Batch:
    """A batch of one message."""
    raw = header_of(body, partition=7, producer_epoch=1, body_crc=5)
    return Batch(parse_header(raw), body)


async def test_messages_of_a_stream_arrive_in_order(peers: Peers) -> None:
    a, b = await peers.start("a", 1), await peers.start("b", 4)
    a.links.connect("b")
    await a.until(lambda: bool(a.ups()))
    await b.until(lambda: bool(b.ups()))
    assert a.ups() == [LinkUp("b", b.identity.member, 4, 1)]
    assert b.ups() == [LinkUp("a", a.identity.member, 1, 1)]
    data = [m.Replicate(7, 1, bytes(16), at, (make_batch(bytes(100_000)),)) for at in range(50)]
    beats = [m.Heartbeat(at) for at in range(50)]
    for datum, beat in zip(data, beats, strict=True):
        a.links.send("b", datum)
        b.links.send("a", beat)
    await b.until(lambda: len(b.messages()) == 50)
    await a.until(lambda: len(a.messages()) == 50)
    assert b.messages() == data
    assert a.messages() == beats


async def test_a_peer_that_ends_is_noticed_and_its_next_run_found(peers: Peers) -> None:
    a, b = await peers.start("a", 1), await peers.start("b", 4)
    a.links.connect("b")
    await a.until(lambda: bool(a.ups()))
    await peers.stop(b)
    await a.until(lambda: bool(a.downs(refused=True)))
    assert [down.session for down in a.downs(refused=False)] == [1]
    again = await peers.start("b", 5)
    await a.until(lambda: len(a.ups()) == 2)
    assert a.ups()[1] == LinkUp("b", again.identity.member, 5, 2)


async def test_a_dialer_that_ends_is_noticed_by_the_acceptor(peers: Peers) -> None:
    a, b = await peers.start("a", 1), await peers.start("b", 4)
    a.links.connect("b")
    await b.until(lambda: bool(b.ups()))
    await peers.stop(a)
    await b.until(lambda: bool(b.downs(refused=False)))
    assert not b.links.is_up("a")


async def test_a_newer_connection_of_the_same_dialer_takes_the_place_of_the_older(peers: Peers) -> None:
    a, b = await peers.start("a", 1), await peers.start("b", 4)
    carried: list[asyncio.Task[str]] = []
    for count in (1, 2):
        connection = await a.dialer.dial(peers.address("b"), DEADLINE_S)
        await connection.confirm()
        carried.append(asyncio.create_task(connection.run(lambda _message: None)))
        await b.until(lambda count=count: len(b.ups()) == count)  # type: ignore[misc]
    assert [down.session for down in b.downs(refused=False)] == [1]
    assert not carried[1].done()
    await asyncio.wait_for(carried[0], DEADLINE_S)
    carried[1].cancel()
    await asyncio.gather(carried[1], return_exceptions=True)
    await b.until(lambda: len(b.downs(refused=False)) == 2)  # a cancelled run closes its connection


async def test_a_connection_that_was_not_confirmed_is_never_used(peers: Peers) -> None:
    a, b = await peers.start("a", 1), await peers.start("b", 4)
    connection = await a.dialer.dial(peers.address("b"), DEADLINE_S)
    assert connection.peer == b.identity
    await connection.abandon("changed our mind")
    a.links.connect("b")
    await b.until(lambda: bool(b.ups()))
    assert len(b.ups()) == 1


class _OnceStuck:
    """A dialer whose first try ends at an address at which no broker listens any more."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self.is_stuck = asyncio.Event()

    async def dial(self, address: str, deadline_s: float) -> Connection:
        if self.is_stuck.is_set():
            return await self._dialer.dial(address, deadline_s)
        self.is_stuck.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_dial_under_way_makes_room_when_the_peer_is_known_anew(peers: Peers) -> None:
    listening, b = await peers.start("a", 1), await peers.start("b", 4)
    dialer = _OnceStuck(listening.dialer)
    a = Peer(listening.identity, dialer, peers.address)
    a.links.connect("b")
    await dialer.is_stuck.wait()
    a.links.hasten("b")
    await a.until(lambda: bool(a.ups()))
    await b.until(lambda: bool(b.ups()))
    await a.links.close()


async def test_dials_that_cross_end_in_one_link(peers: Peers) -> None:
    a, b = await peers.start("a", 1), await peers.start("b", 4)
    for count in range(1, 6):
        a.links.connect("b")
        b.links.connect("a")
        await a.until(lambda: a.links.is_up("b"))
        await b.until(lambda: b.links.is_up("a"))
        marker = m.Heartbeat(count)
        async with asyncio.timeout(DEADLINE_S):  # a crossing may break one link before both settle on the other
            while marker not in b.messages():
                a.links.send("b", marker)
                await asyncio.sleep(0.02)
        downs = len(b.downs(refused=False))
        a.links.disconnect("b", a.ups()[-1].session)
        await b.until(lambda downs=downs: len(b.downs(refused=False)) > downs)  # type: ignore[misc]


@pytest.mark.parametrize("lane", [0, 1])
async def test_a_link_with_a_stalled_lane_ends_and_is_made_anew(peers: Peers, lane: int) -> None:
    a, b = await peers.start("a", 1), await peers.start("b", 4)
    a.links.connect("b")
    await a.until(lambda: bool(a.ups()))
    await b.until(lambda: bool(b.ups()))
    watching = Watching(a), Watching(b)
    for peer, other in ((a, b), (b, a)):  # they were not watched when it came up
        peer.hears(LinkUp(other.identity.member.broker, other.identity.member, other.identity.member_run, 1))
    assert len(a.ups()) == len(b.ups()) == 1
    peers.stall("a", "b", lane)
    await a.until(lambda: len(a.ups()) > 1)
    await b.until(lambda: len(b.ups()) > 1)
    assert {name for watcher in watching for name in watcher.stalled} <= {"control", "data"}
    assert any(watcher.stalled for watcher in watching)
    for watcher in watching:
        watcher.stop()
    before = len(b.messages())
    async with asyncio.timeout(DEADLINE_S):
        while not {m.LaneProbe(), m.Heartbeat(77)} <= set(b.messages()[before:]):
            a.links.send("b", m.LaneProbe())
            a.links.send("b", m.Heartbeat(77))
            await asyncio.sleep(0.02)


CASES: dict[str, Any] = {name: case for name, case in list(globals().items()) if name.startswith("test_")}
"""Every case, for a module to take up."""
