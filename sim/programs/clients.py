"""What all clients in the simulation share: their streams to brokers, and questions to them.

A stream to a broker is first in, first out in both directions. It breaks when the process ends, when a fault breaks it,
or when the path stays cut. The client notices later. Messages that were on their way may or may not have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from seriatim_api.ids import PartitionId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.delayed_messages import DelayedCancelled
from seriatim_broker.core.values.events import ConsumerGone, Event, ResolveConsumer
from seriatim_broker.core.values.keyed import ConsumerMode

from ..basics.distances import CLIENTS, Distances
from ..basics.interfaces import Broker, Network
from ..basics.schedule import Schedule
from ..faults import Options
from ..judge import Judge

RESOLVE_DEADLINE_US = 300_000
FAR_DEADLINE_US = 1_000_000
SILENCE_US = 250_000  # after this without a path a client treats its stream as dead
LOOK_US = 400_000
"""How often a client looks whether its topic is there, in worlds in which topics are deleted."""


class Served(Protocol):
    """A broker's process, as clients reach it."""

    name: str
    alive: bool
    frozen: bool

    @property
    def is_serving(self) -> bool:
        """Whether it listens already."""

    def deliver(self, event: Event) -> None:
        """Hand an event to it."""

    def to_mono(self, time_us: int) -> int:
        """A virtual time on its clock."""


@dataclass(slots=True, eq=False)
class Stream:
    """A client's stream to one process of a broker."""

    number: int
    process: Served
    on_reply: Callable[[Any], None]
    on_closed: Callable[[Stream], None]
    is_open: bool = True  # until it breaks; nothing is delivered after that
    seen_by_client: bool = True  # until the client has noticed
    arrivals: list[int] = field(default_factory=lambda: [0, 0])  # to the broker, to the client
    held: list[Callable[[], None]] | None = None  # messages that a silent cut holds back, in their order


@dataclass(slots=True, eq=False)
class Clients:
    """The desks where requests of clients and answers of brokers meet."""

    schedule: Schedule
    options: Options
    brokers: Mapping[str, Broker]
    network: Network
    judge: Judge
    _distances: Distances
    cut: dict[str, int] = field(default_factory=dict)  # brokers that clients cannot reach
    other_mode: Callable[[str, PartitionId], bool] = lambda _group, _partition: False
    """A consumer asked for another mode than its group has: whether another one begins for it."""
    look: Callable[[PartitionId, Callable[[], None]], None] | None = None  # for the topic; None: it stays
    on_told: Callable[[str, Stream, fx.DeliveryEvent], None] | None = None  # after a broker has sent it
    on_delayed: Callable[[PartitionId, list[int], int], None] = lambda _partition, _messages, _offset: None
    """A delayed batch with these messages is acknowledged at an offset."""
    _serial: int = 0
    _asked: dict[int, tuple[Stream | None, Callable[[Any], None]]] = field(default_factory=dict)
    _streams: dict[int, Stream] = field(default_factory=dict)

    def number(self) -> int:
        """A number that was not used before."""
        self._serial += 1
        return self._serial

    def draw_level(self) -> int:
        """The ack level that a new producer asks for."""
        levels = self.options.levels
        return levels[0] if len(levels) == 1 else self.schedule.rng.choice(levels)

    def _latency_us(self, name: str) -> int:
        """How long something takes from a client to a broker, or back."""
        return self.network.latency_us() + self._distances.us(CLIENTS, name)

    @property
    def _wait_us(self) -> int:
        """How long a broker may wait before it answers a question: over a distance as in production."""
        return FAR_DEADLINE_US if self.options.far_us_max else RESOLVE_DEADLINE_US

    def _patience_us(self, name: str) -> int:
        """How long a client waits for the answer: longer than the broker may, by a round trip."""
        return self._wait_us + 20_000 + 2 * self._distances.us(CLIENTS, name)

    # ---- streams ------------------------------------------------------------------------------------

    def open(
        self,
        address: str,
        on_open: Callable[[Stream | None], None],
        on_reply: Callable[[Any], None],
        on_closed: Callable[[Stream], None],
    ) -> None:
        """Connect; `on_open` gets the stream, or None if the broker cannot be reached."""
        self.schedule.after(self._latency_us(address), self._connect, address, on_open, on_reply, on_closed)

    def _connect(self, address: str, on_open: Any, on_reply: Any, on_closed: Any) -> None:
        broker = self.brokers[address]
        process = broker.process
        if process is None or not process.is_serving or process.frozen or self.cut.get(address):
            refuses = broker.refuses if process is None else not process.is_serving
            patience = self._latency_us(address) if refuses else SILENCE_US
            self.schedule.after(patience, on_open, None)
            return
        stream = Stream(self.number(), process, on_reply, on_closed)
        self._streams[stream.number] = stream
        self.schedule.after(self._latency_us(address), on_open, stream)

    def send(self, stream: Stream, event: Event) -> None:
        """Put something on the stream, after all before it."""
        arrival = max(stream.arrivals[0], self.schedule.now_us + self._latency_us(stream.process.name))
        stream.arrivals[0] = arrival
        self.schedule.at(arrival, self._arrive, stream, event)

    def hold(self, stream: Stream) -> None:
        """Cut a stream without an error: messages in both directions arrive only when `let_go` is called."""
        stream.held = []

    def let_go(self, stream: Stream) -> None:
        """The cut heals: held messages arrive in their order, and then the end of the stream if it has ended."""
        held, stream.held = stream.held or [], None
        for arrive in held:
            arrive()

    def drop_held(self, stream: Stream) -> None:
        """The client finds the connection broken: the held messages are lost."""
        stream.held = None
        if stream.is_open:
            self.break_stream(stream)
        else:
            self._noticed(stream)

    def _arrive(self, stream: Stream, event: Event) -> None:
        if stream.held is not None:
            stream.held.append(partial(self._arrive, stream, event))
            return
        if not stream.is_open or not stream.process.alive:
            return
        if self.cut.get(stream.process.name):
            self.break_stream(stream)
            return
        stream.process.deliver(event)

    def reply(self, stream: Stream, what: Any) -> None:
        """Put something on the stream's way back."""
        arrival = max(stream.arrivals[1], self.schedule.now_us + self._latency_us(stream.process.name))
        stream.arrivals[1] = arrival
        self.schedule.at(arrival, self._came_back, stream, what)

    def _came_back(self, stream: Stream, what: Any) -> None:
        if stream.held is not None:
            stream.held.append(partial(self._bring, stream, what))
            return
        if not stream.is_open or not stream.seen_by_client:
            return
        if self.cut.get(stream.process.name):
            self.break_stream(stream)
            return
        stream.on_reply(what)

    def _bring(self, stream: Stream, what: Any) -> None:
        """Messages that were under way before the stream ended arrive before its end."""
        if stream.seen_by_client:
            stream.on_reply(what)

    def break_stream(self, stream: Stream, *, silent: bool = False) -> None:
        """End a stream now; the client notices a little later, the broker is notified if it consumed there."""
        if not stream.is_open:
            return
        stream.is_open = False
        self._streams.pop(stream.number, None)
        delay = SILENCE_US if silent or self.cut.get(stream.process.name) else self._latency_us(stream.process.name)
        self.schedule.after(delay, self._noticed, stream)
        self.schedule.after(delay, stream.process.deliver, ConsumerGone(stream.number))

    def _noticed(self, stream: Stream) -> None:
        if stream.held is not None:
            stream.held.append(partial(self._noticed, stream))
            return
        if stream.seen_by_client:
            stream.seen_by_client = False
            stream.on_closed(stream)

    def close(self, stream: Stream) -> None:
        """The client lets go of a stream."""
        stream.seen_by_client = False
        if stream.is_open:
            stream.is_open = False
            self._streams.pop(stream.number, None)
            self.schedule.after(
                self._latency_us(stream.process.name), stream.process.deliver, ConsumerGone(stream.number)
            )

    def process_ended(self, process: Served, *, silent: bool) -> None:
        """All streams to a process end with it."""
        for stream in list(self._streams.values()):
            if stream.process is process:
                self.break_stream(stream, silent=silent)

    def break_some(self, share: float) -> None:
        """Break streams by chance."""
        for stream in list(self._streams.values()):
            if self.schedule.rng.random() < share:
                self.break_stream(stream)

    # ---- requests -----------------------------------------------------------------------------------

    def ask(self, stream: Stream | None, on_answer: Callable[[Any], None]) -> int:
        """A new request number. The broker's answer to it comes back on the stream, or alone."""
        request = self.number()
        self._asked[request] = (stream, on_answer)
        return request

    def answer(self, process: Served, request: int, effect: Any) -> None:
        """An answer leaves a broker; `request` is the number that `ask` gave."""
        asked = self._asked.pop(request, None)
        if asked is None:
            return
        stream, on_answer = asked
        if isinstance(effect, fx.AppendAccepted | DelayedCancelled):
            on_answer((process.name, effect))
        elif isinstance(effect, fx.AppendRefused):
            self.judge.denied(process.name, request, effect.error)
        if stream is not None:
            if stream.is_open:
                self.reply(stream, (on_answer, effect))
        elif not self.cut.get(process.name):
            self.schedule.after(self._latency_us(process.name), on_answer, effect)

    def unary(self, avoid: str | None, make: Callable[[int, int], Event], on_answer: Callable[[Any], None]) -> None:
        """Ask any broker that answers; `on_answer(None)` if none does in time. `make(request, deadline_us)`."""
        names = [name for name in sorted(self.brokers) if name != avoid]
        name = self.schedule.rng.choice(names)
        once = _Once(on_answer)
        self.schedule.after(self._latency_us(name), self._unary_arrives, name, make, once)
        self.schedule.after(self._patience_us(name), once, None)

    def ask_at(self, name: str, make: Callable[[int, int], Event], on_answer: Callable[[Any], None]) -> None:
        """Ask that broker; `on_answer(None)` if it does not answer in time. `make(request, deadline_us)`."""
        once = _Once(on_answer)
        self.schedule.after(self._latency_us(name), self._unary_arrives, name, make, once)
        self.schedule.after(self._patience_us(name), once, None)

    def _unary_arrives(self, name: str, make: Callable[[int, int], Event], once: _Once) -> None:
        broker = self.brokers[name]
        process = broker.process
        if broker.refuses if process is None else not process.is_serving:
            self.schedule.after(self._latency_us(name), once, None)
        if process is None or not process.is_serving or self.cut.get(name):
            return
        request = self.ask(None, once)
        process.deliver(make(request, process.to_mono(self.schedule.now_us + self._wait_us)))

    def delivery(self, process: Served, effect: fx.Deliver) -> None:
        """Something for a consumer leaves a broker."""
        stream = self._streams.get(effect.stream)
        if stream is None or stream.process is not process:
            return
        if isinstance(effect.event, fx.Batches):
            self.judge.served(process.name, effect.event.batches, effect.event.server_epoch)
        if isinstance(effect.event, fx.Granted):
            self.judge.granted(process.name, effect.stream, effect.subscription, effect.event)
        self.judge.told(process.name, effect.stream, effect.subscription, effect.event)
        self.reply(stream, effect)
        if self.on_told is not None:
            self.on_told(process.name, stream, effect.event)


class _Once:
    """Calls through the first time only."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[Any], None]) -> None:
        self._call: Callable[[Any], None] | None = call

    def __call__(self, value: Any) -> None:
        call, self._call = self._call, None
        if call is not None:
            call(value)


def ask_consumer_route(
    partition: PartitionId,
    group: str,
    failed_server_epoch: int | None,
    start: Any,
    mode: ConsumerMode = ConsumerMode.EXCLUSIVE,
) -> Callable[[int, int], Event]:
    """Make the question which broker serves a consumer group's cursor segment."""

    def make(request: int, deadline_us: int) -> Event:
        return ResolveConsumer(request, partition, group, failed_server_epoch, start, deadline_us, mode)

    return make
