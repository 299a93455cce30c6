"""When links dial, and how long they wait for an answer; in virtual time."""

from __future__ import annotations

import asyncio
from random import Random

from seriatim_broker.core.events import Event
from seriatim_broker.interfaces.link import Connection, PeerSilentError
from seriatim_broker.runtime.links import DIAL_DEADLINE_S, Links
from seriatim_broker.testing.virtual_time import ProcessClock, ProcessLoop, VirtualTime


def _ignore(_: Event) -> None:
    pass


class Silence:
    """Dials a peer that never answers; the peer is known anew when it was dialled so often."""

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
