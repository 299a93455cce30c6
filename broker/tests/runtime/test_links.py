"""When links dial, and how long they wait for an answer; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from seriatim_api.ids import MemberId, RunId
from seriatim_broker.core.values.events import Event
from seriatim_broker.core.values.messages import Heartbeat, HeartbeatAnswer, Message
from seriatim_broker.interfaces.link import Connection, PeerIdentity, PeerSilentError
from seriatim_broker.runtime.driver.links import DIAL_DEADLINE_S, Links
from seriatim_broker.testing.virtual_time import ProcessClock, ProcessLoop, VirtualTime


def _ignore(_: Event) -> None:
    pass


def _no_run(_: RunId) -> bool:
    return False


class Silence:
    """Dials a peer that never answers; the peer is known again when it was dialled so often."""

    def __init__(self, known_anew_after: int) -> None:
        self._known_anew_after = known_anew_after
        self.links: Links | None = None
        self.deadlines_s: list[float] = []

    async def dial(self, address: str, deadline_s: float) -> Connection:
        self.deadlines_s.append(deadline_s)
        if len(self.deadlines_s) == self._known_anew_after:
            assert self.links is not None
            asyncio.get_running_loop().call_later(0.001, self.links.hasten, "b")  # between two tries
        raise PeerSilentError(address)


def test_a_peer_that_is_known_anew_is_tried_as_if_for_the_first_time() -> None:
    time = VirtualTime()
    clock = ProcessClock(time, 0, 0)
    process = ProcessLoop(time, clock, "a")
    dialer = Silence(known_anew_after=3)

    async def live() -> None:
        dialer.links = Links("a", dialer, lambda _: "nowhere:1", _ignore, _ignore, clock, Random(1))
        dialer.links.connect("b")

    process.create_task(live())
    while len(dialer.deadlines_s) < 5:
        assert time.run_until(time.now_us + 100_000, 100_000)
        assert time.now_us < 60_000_000, dialer.deadlines_s
    process.kill()
    assert [deadline_s / DIAL_DEADLINE_S for deadline_s in dialer.deadlines_s] == [1, 2, 4, 1, 2]


def test_a_bug_in_the_upkeep_of_a_link_is_told_to_who_ends_the_process() -> None:
    time = VirtualTime()
    clock = ProcessClock(time, 0, 0)
    process = ProcessLoop(time, clock, "a")
    told: list[BaseException] = []

    def fails(_broker: str) -> str | None:
        raise AssertionError("a rule is broken")

    async def live() -> None:
        links = Links("a", Silence(known_anew_after=9), fails, _ignore, _ignore, clock, Random(1), _no_run, told.append)
        links.connect("b")

    process.create_task(live())
    while not told:
        assert time.run_until(time.now_us + 100_000, 100_000)
        assert time.now_us < 60_000_000
    process.kill()
    assert [type(error) for error in told] == [AssertionError]


# ---- runs that were dismissed, and runs that answer -----------------------------------------------------

PEER = PeerIdentity("cluster", MemberId("b", "1" * 32), 4)
RUN = RunId(PEER.member, PEER.member_run)


class FakeConnection:
    """A connection to run 4 of `b`; its peer answers heartbeats after `answers_after_s`, if at all."""

    def __init__(self, *, dialed: bool = False, answers_after_s: float | None = None) -> None:
        self.peer = PEER
        self.dialed = dialed
        self.answers_after_s = answers_after_s
        self.closed: list[str] = []
        self.sent: list[Message] = []
        self._receive: Callable[[Message], None] | None = None
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def send(self, message: Message) -> None:
        self.sent.append(message)
        if isinstance(message, Heartbeat) and self.answers_after_s is not None:
            answer = HeartbeatAnswer(message.sent_us, ())
            asyncio.get_running_loop().call_later(self.answers_after_s, self.say, answer)

    def say(self, message: Message) -> None:
        assert self._receive is not None
        self._receive(message)

    def close(self, reason: str) -> None:
        self.closed.append(reason)
        if not self._ended.done():
            self._ended.set_result(reason)

    async def confirm(self) -> None:
        pass

    async def abandon(self, reason: str) -> None:
        self.close(reason)

    async def run(self, receive: Callable[[Message], None]) -> str:
        self._receive = receive
        return await self._ended


class OneAddress:
    """Dials run 4 of `b`, again and again."""

    def __init__(self) -> None:
        self.dialed: list[FakeConnection] = []

    async def dial(self, address: str, deadline_s: float) -> Connection:
        self.dialed.append(FakeConnection(dialed=True))
        return self.dialed[-1]


def _in_virtual_time(live: Callable[[ProcessClock], Coroutine[Any, Any, None]], until_us: int = 20_000_000) -> None:
    time = VirtualTime()
    clock = ProcessClock(time, 5_000_000, 0)
    process = ProcessLoop(time, clock, "a")
    task = process.create_task(live(clock))
    while not task.done():
        assert time.run_until(time.now_us + 100_000, 100_000)
        assert time.now_us < until_us
    task.result()
    process.kill()


def test_a_dismissed_run_is_refused_by_both_sides_and_dialled_ever_more_seldom() -> None:
    events: list[Event] = []
    dialer = OneAddress()

    async def live(clock: ProcessClock) -> None:
        links = Links(
            "a", dialer, lambda _: "somewhere:1", events.append, _ignore, clock, Random(1), lambda run: run == RUN
        )
        accepted = FakeConnection()
        assert await links.carry_accepted(accepted)
        assert accepted.closed
        links.connect("b")
        await asyncio.sleep(10)
        assert not links.is_up("b")
        await links.close()

    _in_virtual_time(live)
    assert not events
    assert 2 <= len(dialer.dialed) <= 8
    assert all(connection.closed for connection in dialer.dialed)


@pytest.mark.parametrize(
    ("answers_after_s", "breaks_after_s", "asked", "is_alive"),
    [
        (0.01, None, RUN, True),
        (None, 0.05, RUN, False),
        (None, None, RUN, True),
        (0.01, None, RunId(PEER.member, 3), False),
        (0.01, None, RunId(MemberId("b", "2" * 32), 4), False),
        (0.01, None, RunId(MemberId("c", "2" * 32), 1), False),
    ],
    ids=["it answers", "its link breaks", "silent, and its link stands", "an earlier run", "another disk", "unknown"],
)
def test_whether_a_run_is_alive(
    answers_after_s: float | None, breaks_after_s: float | None, asked: RunId, is_alive: bool
) -> None:
    async def live(clock: ProcessClock) -> None:
        links = Links("a", OneAddress(), lambda _: None, _ignore, _ignore, clock, Random(1))
        connection = FakeConnection(answers_after_s=answers_after_s)
        carrier = asyncio.get_running_loop().create_task(links.carry_accepted(connection))
        await asyncio.sleep(0.01)
        connection.say(HeartbeatAnswer(clock.monotonic_us() - 1, ()))  # of an earlier heartbeat: it proves nothing
        if breaks_after_s is not None:
            asyncio.get_running_loop().call_later(breaks_after_s, connection.close, "its process ended")
        assert await links.is_alive(asked, 1.0) is is_alive
        connection.close("done")
        await carrier
        await links.close()

    _in_virtual_time(live)
