"""One link for each pair of brokers that talk: which connection is used, and when another one is made.

Either side may dial. These rules make both sides use the same connection. The dialer applies them when it has the
peer's hello (then it confirms), and the acceptor when it has the confirmation.

    dialer     If it has accepted a connection of the peer meanwhile, it keeps that one if the peer's name is lower.
               Otherwise it uses its own.
    acceptor   If the peer dialed its present link too, it uses the newer connection.
               If it dialed its present link itself, it keeps that link if its own name is lower and the link is young:
               the two dials crossed, and the peer decides the same. Otherwise it uses the new connection, because the
               peer lost the link and dialed again.

A connection of another run of the peer always replaces the link, because the old process is gone. Both sides refuse a
run that was dismissed (its end is certified, or its slot has another disk). Otherwise it would take the place of the
process that has the slot now. The core sees `LinkUp` with a session number that grows, messages of that session only,
and one `LinkDown`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import structlog
from seriatim_api.ids import RunId

from ...core.values.events import Event, LinkDown, LinkUp, Received
from ...core.values.messages import DATA, Heartbeat, HeartbeatAnswer, Message
from ...interfaces.clock import Clock
from ...interfaces.link import Connection, Dialer, PeerIdentity, PeerRefusedError, PeerSilentError

BACKOFF_S_MIN = 0.02
BACKOFF_S_MAX = 0.2
"""Pauses while the peer's address refuses connections. A refusal costs nothing, and a peer that starts is needed at
once."""

DIAL_DEADLINE_S = 1.0
"""Time for connecting and the hello, at the first try. It doubles with each try that got no answer."""

DIAL_DEADLINE_S_MAX = 4.0
SILENT_BACKOFF_S_MAX = 4.0
"""Longest pause between two tries at a peer that does not answer. On a starved machine every try takes time from the
processes that should answer it. Without this pause, brokers that were silent once kept one another silent."""

POLITE_S = 0.03
"""How long the broker with the higher name waits before its very first dial, so that two dials seldom cross. After a
break neither waits, because both must know whether the other one still listens."""

YOUNG_US = 1_000_000
"""Two dials that cross are no further apart than this, the time that a dial takes."""

AT_ONCE = (*DATA, Heartbeat, HeartbeatAnswer)
"""Messages that go to the core at once. The connection's flow control bounds data frames, and heartbeats must not
wait."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Peer:
    """What is known of one other broker. `ended` is set while no connection is in use."""

    broker: str
    connection: Connection | None = None
    session: int = 0
    since_us: int = 0
    maintainer: asyncio.Task[None] | None = None
    dial: asyncio.Task[Connection] | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)  # set at each answered heartbeat
    answered_us: int = -1  # when the newest heartbeat that the peer answered was sent

    def __post_init__(self) -> None:
        self.ended.set()


@dataclass(slots=True, eq=False)
class Links:
    """All links of one broker.

    Args:
        broker: The name of this broker.
        dialer: Makes connections.
        resolve: The address of a broker, or None if it is not known (yet).
        emit: Takes `LinkUp`, `LinkDown`, and `Received` for heartbeats and data, at once.
        post: Takes `Received` for everything else, in order, but perhaps later. A switch of a thousand partitions is
            thousands of messages, and must not make this broker look silent.
        clock: This process's clocks.
        chance: Spreads the pauses between tries.
        is_dismissed: Whether a run may not take part any more. No link to it is made or kept.
        failed: Called with an exception that is a bug here. It must end the process, because a link whose task has
            ended is never recreated.
    """

    _broker: str
    _dialer: Dialer
    _resolve: Callable[[str], str | None]
    _emit: Callable[[Event], None]
    _post: Callable[[Event], None]
    _clock: Clock
    _chance: Random
    _is_dismissed: Callable[[RunId], bool] = lambda _: False
    _failed: Callable[[BaseException], None] = lambda _: None
    _peers: dict[str, _Peer] = field(default_factory=dict)
    _session: int = 0
    _closing: bool = False
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _carriers: set[asyncio.Task[None]] = field(default_factory=set)

    # ---- what the core asks for ----

    def connect(self, broker: str) -> None:
        """Keep a link to this broker from now on."""
        assert broker != self._broker, "a broker has no link to itself"
        if self._closing:
            return
        peer = self._peer(broker)
        if peer.maintainer is None:
            peer.maintainer = self._loop.create_task(self._maintain(peer), name=f"link to {broker}")
            peer.maintainer.add_done_callback(self._maintainer_ended)

    def _maintainer_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def send(self, broker: str, message: Message) -> None:
        """Send on the current link. If there is none the message is dropped, and a link is made."""
        peer = self._peers.get(broker)
        if peer is None or peer.connection is None:
            self.connect(broker)
            return
        peer.connection.send(message)

    def disconnect(self, broker: str, session: int) -> None:
        """Break the link if it still has that session. It is recreated if it is wanted."""
        peer = self._peers.get(broker)
        if peer is not None and peer.connection is not None and peer.session == session:
            self._drop(peer, "silent")

    def hasten(self, broker: str) -> None:
        """Try to connect at once: the broker is new, or at another address. A try at the old address is given up."""
        peer = self._peers.get(broker)
        if peer is not None:
            peer.wake.set()
            if peer.dial is not None:
                peer.dial.cancel()

    def is_up(self, broker: str) -> bool:
        """Whether there is a link to this broker."""
        peer = self._peers.get(broker)
        return peer is not None and peer.connection is not None

    def is_linked_to(self, run: RunId) -> bool:
        """Whether there is a link to exactly that run."""
        peer = self._peers.get(run.member.broker)
        connection = peer.connection if peer is not None else None
        return connection is not None and RunId(connection.peer.member, connection.peer.member_run) == run

    async def is_alive(self, run: RunId, deadline_s: float) -> bool:
        """Whether exactly that run is linked, and answers a heartbeat or keeps its link until the deadline.

        A link does not prove that the process lives, because data that it sent before its end may not be read yet. An
        answer to a heartbeat that is sent after this call proves it. The result is False at once if there is no link
        to that run, or as soon as the link ends. A process that is silent for `silence_us` loses its link.
        """
        peer = self._peers.get(run.member.broker)
        connection = peer.connection if peer is not None else None
        if peer is None or connection is None or not self.is_linked_to(run):
            return False
        sent_us = self._clock.monotonic_us()
        connection.send(Heartbeat(sent_us))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while peer.connection is connection and peer.answered_us < sent_us:
                    peer.answered.clear()
                    await peer.answered.wait()
        return peer.connection is connection

    @property
    def up_count(self) -> int:
        """Number of links."""
        return sum(1 for peer in self._peers.values() if peer.connection is not None)

    # ---- connections ----

    async def carry_accepted(self, connection: Connection) -> str:
        """Use a confirmed connection that a peer dialed, in the caller's task, until it ends. Returns why it ended."""
        if self._closing:
            connection.close("this broker is stopping")
            return "this broker is stopping"
        peer = self._peer(connection.peer.member.broker)
        if not self._accepts(peer, connection):
            connection.close("the other connection is used")
            return "the other connection is used"
        self._install(peer, connection)
        return await self._carry(peer, connection)

    async def close(self) -> None:
        """Break all links and end all tasks."""
        self._closing = True
        tasks = [peer.maintainer for peer in self._peers.values() if peer.maintainer is not None]
        tasks += self._carriers
        for peer in self._peers.values():
            if peer.connection is not None:
                peer.connection.close("this broker is stopping")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _peer(self, broker: str) -> _Peer:
        peer = self._peers.get(broker)
        if peer is None:
            peer = self._peers[broker] = _Peer(broker)
        return peer

    def _may_take_part(self, peer: PeerIdentity) -> bool:
        if not self._is_dismissed(RunId(peer.member, peer.member_run)):
            return True
        _log.warning(
            "dismissed_run_refused",
            peer=peer.member.broker,
            incarnation=peer.member.incarnation,
            run=peer.member_run,
            note="its end is certified, or its slot has another disk, and its process lives: end that process",
        )
        return False

    def _accepts(self, peer: _Peer, connection: Connection) -> bool:
        if not self._may_take_part(connection.peer):
            return False
        current = peer.connection
        if current is None or not current.dialed or current.peer != connection.peer:
            return True
        is_young = self._clock.monotonic_us() - peer.since_us < YOUNG_US
        return not (self._broker < peer.broker and is_young)

    def _install(self, peer: _Peer, connection: Connection) -> None:
        if peer.connection is not None:
            self._drop(peer, "replaced by a newer connection")
        self._session += 1
        peer.connection = connection
        peer.session = self._session
        peer.since_us = self._clock.monotonic_us()
        peer.ended.clear()
        _log.info(
            "link_up", peer=peer.broker, run=connection.peer.member_run, session=peer.session, dialed=connection.dialed
        )
        who = connection.peer
        self._emit(LinkUp(peer.broker, who.member, who.member_run, peer.session, who.forms))

    def _drop(self, peer: _Peer, reason: str) -> None:
        """Stop using the connection, and notify the core at once."""
        assert peer.connection is not None
        connection, peer.connection = peer.connection, None
        peer.ended.set()
        peer.answered.set()
        connection.close(reason)
        _log.info("link_down", peer=peer.broker, session=peer.session, reason=reason)
        self._emit(LinkDown(peer.broker, peer.session, refused=False))

    async def _carry(self, peer: _Peer, connection: Connection) -> str:
        session = peer.session

        def receive(message: Message) -> None:
            # A message of a connection that was replaced is dropped here (rule `old-acks` in the core, I12).
            if peer.connection is connection:
                if isinstance(message, HeartbeatAnswer):
                    peer.answered_us = max(peer.answered_us, message.sent_us)
                    peer.answered.set()
                take = self._emit if isinstance(message, AT_ONCE) else self._post
                take(Received(peer.broker, session, message))

        reason = "the call was cancelled"  # gRPC cancels the acceptor's call if its peer has gone
        try:
            reason = await connection.run(receive)
        except AssertionError as exc:
            self._failed(exc)
            raise
        finally:
            connection.close(reason)
            if peer.connection is connection and self._closing:
                peer.connection = None
            elif peer.connection is connection:
                self._drop(peer, reason)
        return reason

    async def _maintain(self, peer: _Peer) -> None:
        backoff_s = BACKOFF_S_MIN
        silent_count = 0
        if self._broker > peer.broker:
            await asyncio.sleep(POLITE_S)  # the other one probably wants the link as well
        while True:
            await peer.ended.wait()
            peer.wake.clear()
            deadline_s = min(DIAL_DEADLINE_S * 2**silent_count, DIAL_DEADLINE_S_MAX)
            try:
                stands = await self._dial(peer, deadline_s)
            except PeerSilentError as exc:
                _log.debug("dial_failed", peer=peer.broker, reason=str(exc))
                stands = peer.connection is not None
                silent_count = min(silent_count + 1, 8)
                backoff_s = min(SILENT_BACKOFF_S_MAX, BACKOFF_S_MAX * 2**silent_count)
            else:
                silent_count = 0
            if stands:
                backoff_s = BACKOFF_S_MIN
                silent_count = 0
                continue
            pause_s = backoff_s * self._chance.uniform(0.5, 1.5)
            if not silent_count:
                backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(peer.wake.wait(), pause_s)
                backoff_s, silent_count = BACKOFF_S_MIN, 0  # hastened: the failures before do not count

    async def _dial(self, peer: _Peer, deadline_s: float) -> bool:
        """Try to connect once. Returns whether there is a link afterwards.

        Raises:
            PeerSilentError: No answer in time, or the peer's run was dismissed.
        """
        address = self._resolve(peer.broker)
        if address is None:
            return peer.connection is not None
        peer.dial = self._loop.create_task(self._dialer.dial(address, deadline_s), name=f"dial {peer.broker}")
        try:
            connection = await peer.dial
        except asyncio.CancelledError:
            if _is_cancelled_itself():
                if peer.dial.done() and not peer.dial.cancelled() and peer.dial.exception() is None:
                    await peer.dial.result().abandon("this broker is stopping")
                raise
            return peer.connection is not None  # hastened: the next try follows at once
        except PeerRefusedError:
            if peer.connection is None:
                self._emit(LinkDown(peer.broker, 0, refused=True))
            return peer.connection is not None
        finally:
            peer.dial = None
        if connection.peer.member.broker != peer.broker:
            _log.error("wrong_broker", peer=peer.broker, address=address, answered=connection.peer.member.broker)
            await connection.abandon("another broker was meant")
            return False
        if not self._may_take_part(connection.peer):
            await connection.abandon("its run was dismissed")
            raise PeerSilentError("its run was dismissed")
        accepted = peer.connection
        if accepted is not None and accepted.peer == connection.peer and peer.broker < self._broker:
            await connection.abandon("the other connection is used")
            return True
        try:
            await connection.confirm()
        except PeerSilentError:
            return peer.connection is not None
        if peer.connection is not accepted and peer.connection is not None and peer.broker < self._broker:
            await connection.abandon("the other connection is used")
            return True
        self._install(peer, connection)
        carrier = self._loop.create_task(self._carry_dialed(peer, connection), name=f"carrier of {peer.broker}")
        self._carriers.add(carrier)
        carrier.add_done_callback(self._carriers.discard)
        return True

    async def _carry_dialed(self, peer: _Peer, connection: Connection) -> None:
        await self._carry(peer, connection)


def _is_cancelled_itself() -> bool:
    """Whether the current task is being cancelled, and not only one that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
