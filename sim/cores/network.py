"""The network between brokers: links with sessions, two lanes each, cuts, breaks, half-open ends and stalled lanes.

A link joins two processes. Each end has a session number of its own and two lanes (control, data), each first in, first
out, with random delays. There is no order between the lanes.

A cut holds messages back, like a connection whose packets are repeated until they get through. A break ends the link,
and the two ends notice at different times. A message that arrives at an end that has not noticed yet is still
delivered. A lane that stalls loses all that its end sends until the link ends, and the other lane continues.

If the world draws a part size, messages with producer tables are encoded and travel in parts, as large messages do
between processes. Each part takes its own time, and other messages go between the parts. When either end lets go of the
link, parts that are on their way are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from seriatim_api.errors import BadRequestError
from seriatim_broker.core.values.events import LinkDown, LinkUp, Received
from seriatim_broker.core.values.messages import (
    DATA,
    FORMS,
    FenceAnswer,
    LaneProbe,
    Message,
    PrepareRequest,
    TableAnswer,
)
from seriatim_broker.rpc.links import peer_frames
from seriatim_broker.testing.paths import Paths

from ..basics.distances import Distances
from ..basics.schedule import Schedule
from ..faults import Options, draw_latency_us

if TYPE_CHECKING:
    from .brokers import Broker, Process

RECONNECT_US_MIN = 20_000
RECONNECT_US_MAX = 120_000

_DATA = frozenset(DATA)

_WITH_TABLE = frozenset((FenceAnswer, PrepareRequest, TableAnswer))

Part = bytes
"""A frame with a part of a message."""


class End:
    """One process's end of a link."""

    __slots__ = ("arrivals", "held", "is_open", "peer", "process", "reader", "session", "stalled")

    def __init__(self, process: Process, session: int) -> None:
        self.process = process
        self.session = session
        self.is_open = False  # from LinkUp to LinkDown, as the process sees it
        self.peer: End = self
        self.arrivals = [0, 0]  # arrival time of the last message that this end sent, by lane
        self.held: tuple[list[Message | Part], list[Message | Part]] = ([], [])
        self.reader = peer_frames.ControlReader()  # reads the parts that arrive at this end
        self.stalled: set[int] = set()  # lanes on which nothing of this end arrives any more


class Network(Paths):
    """All links, and the cuts between brokers."""

    def __init__(
        self,
        schedule: Schedule,
        options: Options,
        brokers: dict[str, Broker],
        distances: Distances,
        seen_states: set[str] | None = None,
        forms: int = FORMS,
    ) -> None:
        super().__init__()
        self._schedule = schedule
        self._options = options
        self._brokers = brokers
        self._session = 0
        self.slow_us: dict[tuple[str, str], int] = {}  # extra delay from one broker to another
        self.on_sent: Callable[[str, str, Message], None] | None = None  # after a message has left: source, target
        self._seen_states = seen_states if seen_states is not None else set()  # rare ones that a run reached
        self._dialling: dict[tuple[str, str], Process] = {}
        self.distances = distances
        self._forms = forms

    def latency_us(self) -> int:
        """How long something takes from one process to another."""
        return draw_latency_us(self._schedule.rng, self._options)

    def heal_all(self) -> None:
        """Undo all cuts and delays."""
        super().heal_all()
        self.slow_us.clear()

    # ---- cuts ---------------------------------------------------------------------------------------

    def opened(self, source: str, target: str) -> None:
        """Held messages arrive now."""
        process = self._brokers[source].process
        end = process.links.get(target) if process is not None else None
        if end is not None:
            self._release(end)

    def _release(self, end: End) -> None:
        for messages in end.held:
            for message in messages:
                self._schedule.after(0, self._arrive, end, message)
            messages.clear()

    # ---- messages -----------------------------------------------------------------------------------

    def send(self, process: Process, target: str, message: Message) -> None:
        """Put a message on the process's link, or drop it and dial if no link is open."""
        end = process.links.get(target)
        if end is None or not end.is_open:
            process.wanted[target] = True
            self.dial(process, target)
            return
        lane = 1 if type(message) in _DATA else 0
        if lane in end.stalled:
            return
        slow_us = self.slow_us.get((process.name, target), 0)
        # A probe has no chance of its own, so that worlds continue as they would without it.
        latency_us = self._options.latency_us_min if isinstance(message, LaneProbe) else self.latency_us()
        self._depart(end, lane, message, latency_us + slow_us + self.distances.us(process.name, target))
        if self.on_sent is not None:
            self.on_sent(process.name, target, message)

    def _depart(self, end: End, lane: int, message: Message, after_us: int) -> None:
        travelling: list[Message | Part] = [message]
        if self._options.part_bytes and type(message) in _WITH_TABLE:
            travelling = list(peer_frames.write_control_frames([message], self._options.part_bytes))
        for number, piece in enumerate(travelling):
            after_us += self.latency_us() if number else 0
            arrival = max(end.arrivals[lane], self._schedule.now_us + after_us)
            end.arrivals[lane] = arrival
            self._schedule.at(arrival, self._arrive, end, piece)

    def _take_part(self, end: End, part: Part) -> None:
        """Take a part, and hand over the message that it completes. A part out of order ends the link."""
        receiver, source = end.peer.process, end.process.name
        if not end.is_open or not end.peer.is_open:
            self._seen_states.add("part lost")
            return
        self._seen_states.add("part taken")
        try:
            messages = end.peer.reader.read(part)
        except BadRequestError:
            self.break_link(receiver.name, source)
            return
        for message in messages:
            receiver.deliver(Received(source, end.peer.session, message))

    def _arrive(self, end: End, message: Message | Part) -> None:
        source = end.process.name
        target = end.peer.process.name
        number = 1 if type(message) in _DATA else 0
        if number in end.stalled:
            return
        lane = end.held[number]
        if lane or self.is_cut(source, target):
            lane.append(message)
            return
        receiver = end.peer.process
        if isinstance(message, Part):
            if receiver.alive:
                self._take_part(end, message)
                return
        elif receiver.alive:
            # A closed end gets it, too, like a message that waited in the receiver's own queue: under a
            # session that is over.
            receiver.deliver(Received(source, end.peer.session, message))
            return
        slot = self._brokers[target]
        if slot.process is not None or slot.refuses:
            self._notice(end, slot.process is None)  # the machine is up and knows nothing of this connection

    # ---- links --------------------------------------------------------------------------------------

    def dial(self, process: Process, target: str) -> None:
        """Try to connect soon, unless an attempt is under way."""
        if self._dialling.get((process.name, target)) is process or target not in self._brokers:
            return
        self._dialling[process.name, target] = process
        far_us = self.distances.us(process.name, target)
        self._schedule.after(self.latency_us() + far_us, self._attempt, process, target)

    def _again(self, process: Process, target: str) -> None:
        self._schedule.after(
            self._schedule.rng.randint(RECONNECT_US_MIN, RECONNECT_US_MAX), self._attempt, process, target
        )

    def _attempt(self, process: Process, target: str) -> None:
        current = process.links.get(target)
        if not process.alive or (current is not None and current.is_open):
            self._dialled(process, target)
            return
        if process.frozen or self.is_cut(process.name, target) or self.is_cut(target, process.name):
            self._again(process, target)
            return
        other = self._brokers[target].process
        if other is None:
            if self._brokers[target].refuses:
                process.deliver(LinkDown(target, 0, True))
            self._again(process, target)
            return
        if other.frozen:
            self._again(process, target)
            return
        self._dialled(process, target)
        self._connect(process, other)

    def _dialled(self, process: Process, target: str) -> None:
        """The attempt is over, unless a later process of the broker has one of its own."""
        if self._dialling.get((process.name, target)) is process:
            del self._dialling[process.name, target]

    def _connect(self, caller: Process, callee: Process) -> None:
        near, far = self._end(caller), self._end(callee)
        near.peer, far.peer = far, near
        self._replace(callee, caller.name, far)
        self._replace(caller, callee.name, near)
        when = self._schedule.now_us + self.latency_us() + self.distances.us(caller.name, callee.name)
        far.arrivals = [when, when]  # messages that the acceptor sends at once arrive after the news that it accepted
        self._schedule.at(when, self._up, near)
        self._up(far)

    def _end(self, process: Process) -> End:
        self._session += 1
        return End(process, self._session)

    def _replace(self, process: Process, other: str, end: End) -> None:
        """A half-open old link is superseded; its end is notified first."""
        old = process.links.get(other)
        if old is not None and old.is_open:
            self._down(old, False)
        process.links[other] = end

    def _up(self, end: End) -> None:
        process, other = end.process, end.peer.process
        if not process.alive or process.links.get(other.name) is not end:
            return
        if not other.alive:
            self._again(process, other.name)
            return
        end.is_open = True
        process.deliver(LinkUp(other.name, other.member, other.run, end.session, self._forms))

    def _down(self, end: End, refused: bool) -> None:
        if not end.is_open:
            return
        end.is_open = False
        process, other = end.process, end.peer.process.name
        if not process.alive:
            return
        process.deliver(LinkDown(other, end.session, refused))
        if process.wanted.get(other) and process.links.get(other) is end:
            self.dial(process, other)

    def disconnect(self, process: Process, target: str, session: int) -> None:
        """The process lets go of its end; the other notices later, if anything gets through."""
        end = process.links.get(target)
        if end is None or end.session != session:
            return
        self._schedule.after(0, self._down, end, False)
        self._notice(end.peer, False)

    def break_link(self, first: str, second: str) -> bool:
        """End the link between two brokers; whether there was one."""
        process = self._brokers[first].process
        end = process.links.get(second) if process is not None else None
        if end is None or not end.is_open:
            return False
        self._notice(end, False)
        self._notice(end.peer, False)
        return True

    def stall_lane(self, source: str, target: str, lane: int) -> bool:
        """Let nothing more through on one lane (0: control, 1: data) of the open link; return whether there was one."""
        process = self._brokers[source].process
        end = process.links.get(target) if process is not None else None
        if end is None or not end.is_open:
            return False
        end.stalled.add(lane)
        end.held[lane].clear()
        return True

    def process_ended(self, process: Process, *, silent: bool) -> None:
        """All links of a process end. With `silent` (its machine went down) its peers are not notified."""
        for name in sorted(process.links):
            end = process.links[name]
            end.is_open = False
            if not silent:
                self._notice(end.peer, True)

    def _notice(self, end: End, refused: bool) -> None:
        """An end learns that its link is gone, when the path allows, and after all messages on their way."""
        source = end.peer.process.name
        if self.is_cut(source, end.process.name):
            self._schedule.after(RECONNECT_US_MAX, self._notice, end, refused)
            return
        last = max(end.peer.arrivals) if self._schedule.rng.random() < 0.5 else 0
        when = max(last, self._schedule.now_us + self.latency_us() + self.distances.us(source, end.process.name))
        self._schedule.at(when, self._down, end, refused)
