"""The network between brokers in memory: `interfaces.link` with delays, cuts, breaks and half-open connections.

A connection has two lanes, control and data, each of them in order. Heartbeats overtake other messages on the control
lane, as in the real network. There is no order between lanes or between connections.

A cut holds messages, like packets that are sent again until they arrive. When a connection breaks, its two ends notice
it at different times. If the machine of one end goes down, the other end does not notice. Only when the machine is back
and gets a message, it answers that it does not know the connection. A stalled lane loses the messages of its sender,
and the other lane continues.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from seriatim_broker.core.values.messages import DATA, Heartbeat, HeartbeatAnswer, LaneProbe, Message
from seriatim_broker.interfaces.link import PeerIdentity, PeerRefusedError, PeerSilentError

from .paths import Paths
from .virtual_time import Timers

RESEND_US = 120_000
"""The time after which a hello or a notice that could not get through is tried again."""

PROBE_US = 500
"""The latency of a probe of a lane."""

CONTROL, REPLICATION, URGENT = range(3)
_LANES: dict[type, int] = {**dict.fromkeys(DATA, REPLICATION), Heartbeat: URGENT, HeartbeatAnswer: URGENT}

Carry = Callable[["MemoryConnection"], Awaitable[str]]


@dataclass(slots=True, eq=False)
class _Post:
    """A broker that accepts connections, with its identity and its event loop."""

    identity: PeerIdentity
    carry: Carry
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    accepted: set[asyncio.Task[str]] = field(default_factory=set)


@dataclass(slots=True)
class _Dial:
    """A dial that is under way."""

    source: MemoryDialer
    target: str
    answer: asyncio.Future[MemoryConnection]
    loop: asyncio.AbstractEventLoop
    is_over: bool = False


class _Bundle(NamedTuple):
    """The messages that one turn of an event loop sent on a lane."""

    sent_us: int
    arrival_us: int
    messages: list[Message]


class MemoryConnection:
    """One end of a connection, as an `interfaces.link.Connection`."""

    def __init__(
        self, network: MemoryNetwork, own: PeerIdentity, peer: PeerIdentity, own_at: str, peer_at: str, *, dialed: bool
    ) -> None:
        self.own = own
        self.peer = peer
        self.own_at = own_at  # the address of this end; `peer_at` is the other end's
        self.peer_at = peer_at
        self.dialed = dialed
        self.loop = asyncio.get_running_loop()
        self.is_closed = False
        self.is_silent = False  # the process of this end is gone, and this end sends nothing any more
        self.other: MemoryConnection = self
        self.bundles: tuple[deque[_Bundle], ...] = (deque(), deque(), deque())  # messages on their way, by lane
        self.arrivals = [0, 0, 0]  # when the last message that this end sent arrives, by lane
        self.held: list[tuple[int, list[Message]]] = []
        self.stalled: set[int] = set()  # lanes on which no message of this end arrives any more
        self._network = network
        self._inbox: list[Message] = []
        self._receive: Callable[[Message], None] | None = None
        self._ended: asyncio.Future[str] = self.loop.create_future()

    def send(self, message: Message) -> None:
        """See `Connection`."""
        if not self.is_closed:
            self._network.carry(self, _LANES.get(type(message), CONTROL), message)

    def close(self, reason: str) -> None:
        """See `Connection`."""
        if not self.is_closed and not self.is_silent:
            self.broken(reason)
            self._network.tell(self.other, "the peer ended the stream")

    def broken(self, reason: str) -> None:
        """Note that this end knows of the break."""
        self.is_closed = True
        if not self._ended.done():
            self._ended.set_result(reason)

    async def confirm(self) -> None:
        """See `Connection`."""
        assert self.dialed
        await self._network.pause()
        if self.is_closed:
            raise PeerSilentError("the connection has ended")
        self._network.confirm(self)

    async def abandon(self, reason: str) -> None:
        """See `Connection`."""
        self.close(reason)

    async def run(self, receive: Callable[[Message], None]) -> str:
        """See `Connection`."""
        assert self._receive is None, "run is called once"
        self._receive = receive
        inbox, self._inbox = self._inbox, []
        self.take(inbox)
        try:
            return await self._ended
        finally:
            self.close("the reader has gone")

    def take(self, messages: list[Message]) -> None:
        """Take messages that have arrived, in order."""
        if self._receive is None:
            self._inbox += messages
            return
        for message in messages:
            if self.is_closed:
                return
            self._receive(message)


class MemoryNetwork(Paths):
    """All connections of a cluster. The address of a broker is its name, unless another one is given.

    Args:
        timers: The time.
        latency_us: Draws the latency of a message from one process to another, in microseconds.
        chance: Decides which messages arrive before an end notices that its connection is broken.
    """

    def __init__(self, timers: Timers, latency_us: Callable[[], int], chance: Random) -> None:
        super().__init__()
        self.latency_us = latency_us
        self._timers = timers
        self._chance = chance
        self._posts: dict[str, _Post] = {}
        self._refuses: dict[str, bool] = {}
        self._connections: dict[MemoryConnection, None] = {}  # the dialers' ends
        self._dialers: dict[MemoryDialer, None] = {}

    # ---- processes ----------------------------------------------------------------------------------

    def listen(self, identity: PeerIdentity, carry: Carry, at: str = "") -> None:
        """Let this process accept connections from now on, on the running event loop."""
        self._posts[at or identity.member.broker] = _Post(identity, carry)

    def dialer(self, identity: PeerIdentity, at: str = "") -> MemoryDialer:
        """The dialer of a process."""
        dialer = MemoryDialer(self, identity, at or identity.member.broker)
        self._dialers[dialer] = None
        return dialer

    def move_away(self, address: str, to: str) -> None:
        """Let the address lead to another machine from now on.

        The process that had the address keeps its connections, now under the address `to`. New ones do not reach it.
        """
        self._posts.pop(address, None)
        self._refuses[address] = True
        for dialer in self._dialers:
            if dialer.at == address:
                dialer.at = to
        for connection in self._connections:
            for end in (connection, connection.other):
                end.own_at = to if end.own_at == address else end.own_at
                end.peer_at = to if end.peer_at == address else end.peer_at

    def ended(self, broker: str, *, silent: bool) -> None:
        """End the process at an address. With `silent` its machine goes down too, so that its peers are not
        notified."""
        self._posts.pop(broker, None)
        self._refuses[broker] = not silent
        for dialer in [dialer for dialer in self._dialers if dialer.at == broker]:
            del self._dialers[dialer]
        for connection in list(self._connections):
            for end in (connection, connection.other):
                if end.own_at == broker and not end.is_silent:
                    end.is_silent = end.is_closed = True
                    if not silent:
                        self.tell(end.other, "the peer reset the connection")

    def machine_is_up(self, broker: str) -> None:
        """Let the machine of a broker answer again, although no process may listen there yet."""
        self._refuses[broker] = True

    def break_link(self, first: str, second: str) -> bool:
        """Break the connections between two brokers. Returns whether there was one."""
        found = False
        for end in list(self._connections):
            if {end.own_at, end.peer_at} == {first, second} and not end.is_closed:
                self.tell(end, "the connection broke")
                self.tell(end.other, "the connection broke")
                found = True
        return found

    def stall_lane(self, source: str, target: str, lane: int) -> bool:
        """Let nothing more through on one lane (0: control, 1: data) of the open connections.

        Returns:
            Whether there was a connection.
        """
        found = False
        for connection in self._connections:
            for end in (connection, connection.other):
                if (end.own_at, end.peer_at) == (source, target) and not end.is_closed:
                    end.stalled |= {REPLICATION} if lane else {CONTROL, URGENT}
                    end.held = [held for held in end.held if held[0] not in end.stalled]
                    found = True
        return found

    def opened(self, source: str, target: str) -> None:
        """Let the messages that were held arrive now."""
        for connection in list(self._connections):
            for end in (connection, connection.other):
                if (end.own_at, end.peer_at) == (source, target):
                    held, end.held = end.held, []
                    for lane, messages in held:
                        self._hand_on(end, lane, messages)

    # ---- messages -----------------------------------------------------------------------------------

    def carry(self, end: MemoryConnection, lane: int, message: Message) -> None:
        """Put a message on its way. The messages that one turn sends on a lane arrive together."""
        now = self._timers.now_us
        bundles = end.bundles[lane]
        if bundles and bundles[-1].sent_us == now and bundles[-1].arrival_us == end.arrivals[lane]:
            bundles[-1].messages.append(message)
            return
        arrivals = end.arrivals
        # A probe draws no random latency, so that worlds continue as they would without the probe.
        arrival = now + (PROBE_US if isinstance(message, LaneProbe) else self.latency_us())
        if lane == URGENT:  # it may overtake others, and no later message overtakes it
            arrival = max(arrival, arrivals[URGENT])
            arrivals[CONTROL] = max(arrivals[CONTROL], arrival)
        else:
            arrival = max(arrival, arrivals[lane])
        arrivals[lane] = arrival
        bundles.append(_Bundle(now, arrival, [message]))
        self._timers.after(arrival - now, self._arrive, end, lane)

    def _arrive(self, end: MemoryConnection, lane: int) -> None:
        self._hand_on(end, lane, end.bundles[lane].popleft().messages)

    def _hand_on(self, end: MemoryConnection, lane: int, messages: list[Message]) -> None:
        source, target = end.own_at, end.peer_at
        if lane in end.stalled:
            return
        if self.is_cut(source, target) or any(held == lane for held, _ in end.held):
            end.held.append((lane, messages))
            return
        other = end.other
        if not other.is_silent:
            other.loop.call_soon(other.take, messages)
        elif self._refuses.get(target) or target in self._posts:
            self.tell(end, "the peer knows nothing of this connection")

    def tell(self, end: MemoryConnection, reason: str) -> None:
        """Let an end notice that its connection is gone, when no cut prevents it.

        Messages that were on their way may arrive before.
        """
        last = max(end.other.arrivals) if self._chance.random() < 0.5 else 0
        delay = max(last - self._timers.now_us, self.latency_us())
        self._timers.after(delay, self._notice, end, reason)

    def _notice(self, end: MemoryConnection, reason: str) -> None:
        if end.is_closed:
            self._forget(end)
        elif self.is_cut(end.peer_at, end.own_at):
            self._timers.after(RESEND_US, self._notice, end, reason)
        else:
            end.loop.call_soon(self._broken, end, reason)

    def _broken(self, end: MemoryConnection, reason: str) -> None:
        end.broken(reason)
        self._forget(end)

    def _forget(self, end: MemoryConnection) -> None:
        if end.is_closed and end.other.is_closed:
            self._connections.pop(end, None)
            self._connections.pop(end.other, None)

    # ---- making connections -------------------------------------------------------------------------

    async def pause(self) -> None:
        """Wait for a moment, in which other events may happen."""
        await asyncio.sleep(self.latency_us() / 1e6 if self._chance.random() < 0.3 else 0)

    def dial(self, attempt: _Dial) -> None:
        """Put a hello on its way."""
        self._timers.after(self.latency_us(), self._knock, attempt)

    def _knock(self, attempt: _Dial) -> None:
        source, target = attempt.source.at, attempt.target
        if attempt.is_over:
            return
        post = self._posts.get(target)
        if self.is_cut(source, target) or self.is_cut(target, source):
            self._timers.after(RESEND_US, self._knock, attempt)
        elif post is not None:
            post.loop.call_soon(self._greet, attempt, post)
        elif self._refuses.get(target, True):
            self._timers.after(self.latency_us(), self._answer, attempt, None)

    def _greet(self, attempt: _Dial, post: _Post) -> None:
        """Answer the hello, as the process that was dialed."""
        if attempt.source.identity.cluster_id != post.identity.cluster_id:
            return
        accepted = MemoryConnection(
            self, post.identity, attempt.source.identity, attempt.target, attempt.source.at, dialed=False
        )
        self._timers.after(self.latency_us(), self._answer, attempt, accepted)

    def _answer(self, attempt: _Dial, accepted: MemoryConnection | None) -> None:
        if attempt.is_over:
            return
        if self.is_cut(attempt.target, attempt.source.at):
            self._timers.after(RESEND_US, self._answer, attempt, accepted)
            return
        attempt.loop.call_soon(self._dialed, attempt, accepted)

    def _dialed(self, attempt: _Dial, accepted: MemoryConnection | None) -> None:
        """Give the dialer the answer to its hello, or the refusal."""
        if attempt.is_over or attempt.answer.done():
            return
        if accepted is None:
            attempt.answer.set_exception(PeerRefusedError("no process listens there"))
            return
        end = MemoryConnection(
            self, attempt.source.identity, accepted.own, attempt.source.at, accepted.own_at, dialed=True
        )
        end.other, accepted.other = accepted, end
        self._connections[end] = None
        if self._posts.get(attempt.target) is None or self._posts[attempt.target].identity != accepted.own:
            accepted.is_silent = accepted.is_closed = True  # its process ended while its hello was on the way
            self.tell(end, "the peer reset the connection")
        attempt.answer.set_result(end)

    def confirm(self, end: MemoryConnection) -> None:
        """Put the dialer's confirmation on its way. It arrives before all messages of the control lane."""
        now = self._timers.now_us
        arrival = now + self.latency_us()
        end.arrivals = [max(arrival, last) for last in end.arrivals]
        self._timers.after(arrival - now, self._confirmed, end)

    def _confirmed(self, end: MemoryConnection) -> None:
        accepted = end.other
        target = accepted.own_at
        post = self._posts.get(target)
        if accepted.is_closed or end.is_closed or post is None or post.identity != accepted.own:
            return
        if self.is_cut(end.own_at, target):
            self._timers.after(RESEND_US, self._confirmed, end)
            return
        accepted.loop.call_soon(self._accept, post, accepted)

    def _accept(self, post: _Post, accepted: MemoryConnection) -> None:
        if accepted.is_closed:
            return

        async def carry() -> str:
            return await post.carry(accepted)

        task = post.loop.create_task(carry(), name=f"accepted from {accepted.peer.member.broker}")
        post.accepted.add(task)
        task.add_done_callback(post.accepted.discard)


class MemoryDialer:
    """The `interfaces.link.Dialer` of one process."""

    def __init__(self, network: MemoryNetwork, identity: PeerIdentity, at: str) -> None:
        self.identity = identity
        self.at = at
        self._network = network

    async def dial(self, address: str, deadline_s: float) -> MemoryConnection:
        """See `Dialer`."""
        loop = asyncio.get_running_loop()
        attempt = _Dial(self, address, loop.create_future(), loop)
        self._network.dial(attempt)
        try:
            async with asyncio.timeout(deadline_s):
                return await attempt.answer
        except TimeoutError as exc:
            raise PeerSilentError(f"no hello within {deadline_s} s") from exc
        finally:
            attempt.is_over = True
