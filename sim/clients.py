"""Clients in the simulation: their streams to brokers, and the producers; consumers are in `consumers`.

A stream to a broker is first in, first out in both directions. It breaks when the process ends, when a fault breaks it,
or when the path stays cut. The client notices later. Messages that were on their way may or may not have arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from seriatim._core import producer as core
from seriatim_api.batch import make_header, parse_header
from seriatim_api.errors import UnknownTopicError
from seriatim_api.ids import PartitionId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import AckLevel, Append, ConsumerGone, Event, ResolveConsumer, ResolveProducer
from seriatim_broker.core.values.keyed import ConsumerMode

from .cluster import checksum
from .distances import CLIENTS, Distances
from .faults import Options
from .schedule import Schedule
from .suspicions import Suspicions

if TYPE_CHECKING:
    from .cluster import Broker, Network
    from .judge import Judge

RESOLVE_DEADLINE_US = 300_000
FAR_DEADLINE_US = 1_000_000
SILENCE_US = 250_000  # after this without a path a client treats its stream as dead
WINDOW_BYTES = 1 << 20
LATE_US = 1_000
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
        """Put something on the stream, behind all before it."""
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
        """End a stream now; the client notices a little later, the broker is told if it consumed there."""
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
        if isinstance(effect, fx.AppendAccepted):
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


class SimProducer:
    """A process that sends batches to one partition through the client's ordering core."""

    def __init__(
        self,
        clients: Clients,
        partition: PartitionId,
        name: str,
        config: core.ProducerConfig,
        left: int | None = None,
    ) -> None:
        self.name = name
        self.partition = partition
        self.producer = clients.schedule.rng.randbytes(16)
        self.config = config
        self.left = clients.options.batches_per_producer if left is None else left
        self.alive = True
        self.is_asking = False
        self._clients = clients
        self._schedule = clients.schedule
        self.level = clients.draw_level()
        self._levels: dict[int, int] = {}  # batch -> its ack level, if each batch has its own
        self._core = core.PartitionProducer(config)
        self._bodies: dict[int, bytes] = {}
        self._messages: dict[int, list[int]] = {}
        self._taken_us: dict[int, int] = {}  # batch -> when the application gave it, until it is settled
        self._waiting: deque[tuple[int, int]] = deque()  # batches, and their messages, that the core does not have yet
        self._streams: dict[int, Stream] = {}
        self._wake_at_us: int | None = None
        self._suspicions: Suspicions | None = None  # in worlds in which producers ask about silent masters

    @property
    def is_done(self) -> bool:
        """Everything was sent, and everything has an outcome."""
        return self.left == 0 and not self._messages

    @property
    def unsettled_count(self) -> int:
        """Batches that are not sent, or have no outcome yet."""
        return self.left + len(self._messages)

    def crash(self) -> None:
        """End without a word: its streams break, and its application is told nothing more."""
        self.alive = False
        for stream in list(self._streams.values()):
            self._clients.break_stream(stream)
        self._streams.clear()
        self._messages.clear()

    def start(self, within_us: int = 20_000) -> None:
        """Begin to send, at some time within that."""
        self._schedule.after(self._schedule.rng.randint(0, within_us), self._send_next)
        if self._clients.options.suspicious_us:
            self._suspicions = Suspicions(
                self._clients, self.partition, self.name, lambda: self._core.route, self._learned,
                lambda: self.is_done or not self.alive,
            )  # fmt: skip
        if self._clients.look is not None:
            self._look_later(self._clients.look)

    def _look_later(self, look: Callable[[PartitionId, Callable[[], None]], None]) -> None:
        """Look from time to time whether the topic is there, while messages are left to send."""

        def again() -> None:
            if self.alive and not self.is_done and self._core.ended is None:
                look(self.partition, self._topic_gone)
                self._look_later(look)

        self._schedule.after(LOOK_US, again)

    def _topic_gone(self) -> None:
        """The topic was deleted: the application sends nothing more, and all open outcomes are settled."""
        if self.alive and self._core.ended is None:
            self._tell("the topic was deleted")
            self.left = 0
            error = UnknownTopicError("the topic was deleted")
            self._step(core.Abandon(core.ReplyError(error.number, error.message)))
            if self._messages:
                self._clients.judge.fail("GONE", f"{self.name} has ended, and {list(self._messages)} are not settled")

    def _send_next(self) -> None:
        if self.left == 0 or not self.alive:
            return
        waits = self._clients.options.producers_wait
        if len(self._taken_us) < (6 if waits else 2) * self._clients.options.window_batches:
            self.left -= 1
            count = self._schedule.rng.randint(1, self._clients.options.messages_per_batch_max)
            messages = [self._clients.number() for _ in range(count)]
            batch_id = messages[0]
            self._messages[batch_id] = messages
            self._bodies[batch_id] = batch_id.to_bytes(8, "big")
            if self._clients.options.mixed_levels:
                self._levels[batch_id] = self._clients.draw_level()
            for message in messages:
                self._clients.judge.sent(message, self.partition, self.producer, self._level_of(batch_id))
            self._tell(f"application sends {messages}")
            self._taken_us[batch_id] = self._schedule.now_us
            if waits:
                self._waiting.append((batch_id, count))
                self._schedule.after(self.config.delivery_timeout_ms * 1000, self._fill)
                self._fill()
            else:
                self._step(core.Enqueue(batch_id, count, 8))
        gap = self._clients.options.send_gap_us
        self._schedule.after(self._schedule.rng.randint(gap // 4, gap), self._send_next)

    def _fill(self) -> None:
        """Give the core what it would send at once. What has waited for too long was never sent."""
        while self._waiting and self.alive:
            batch_id, count = self._waiting[0]
            waited_us = self._schedule.now_us - self._taken_us[batch_id]
            if waited_us >= self.config.delivery_timeout_ms * 1000:
                self._waiting.popleft()
                self._settle(core.Settled(batch_id, core.Outcome.FAILED))
            elif self._core.has_room:
                self._waiting.popleft()
                self._step(core.Enqueue(batch_id, count, 8, waited_us))
            else:
                return

    def _level_of(self, batch_id: int) -> int:
        return self._levels.get(batch_id, self.level)

    def _tell(self, text: str) -> None:
        self._schedule.tell(self.name, text)

    def _step(self, event: core.Event) -> None:
        if not self.alive:
            return
        effects = self._core.step(event, self._schedule.now_us, self._schedule.rng.random())
        self._schedule.mark(self.name, f"{type(event).__name__} {len(effects)}")
        if self._schedule.trace and not isinstance(event, core.Timer):
            self._tell(f"◀ {event}")
        for effect in effects:
            if self._schedule.trace:
                self._tell(f"    ▶ {effect}")
            self._carry_out(effect)
        if self._suspicions is not None:
            self._suspicions.stepped()
        self._set_timer()
        if self._waiting and not isinstance(event, core.Enqueue):
            self._fill()

    def _set_timer(self) -> None:
        wake = self._core.wake_at_us
        if wake is None:
            return
        at = max(wake, self._schedule.now_us + 1)
        if self._wake_at_us is None or at < self._wake_at_us:
            self._wake_at_us = at
            self._schedule.at(at, self._wake, at)

    def _wake(self, at: int) -> None:
        if self._wake_at_us == at:
            self._wake_at_us = None
            self._step(core.Timer())

    def _carry_out(self, effect: core.Effect) -> None:
        if isinstance(effect, core.Send):
            self._attempt(effect)
        elif isinstance(effect, core.OpenStream):
            self._open(effect.address)
        elif isinstance(effect, core.Resolve):
            self._resolve(effect)
        elif isinstance(effect, core.Settled):
            self._settle(effect)
        elif isinstance(effect, core.Ended) and effect.error.number == UnknownTopicError.number:
            self.left = 0
        else:
            self._clients.judge.fail("CORE", f"{self.name} ended: {effect}")

    def _settle(self, effect: core.Settled) -> None:
        messages = self._messages.pop(effect.batch_id)
        self._tell(f"application is told: {messages} {effect.outcome.value}")
        ok = effect.outcome is core.Outcome.OK
        is_final = effect.offset_is_final and self._level_of(effect.batch_id) >= AckLevel.REPLICATED
        offset = effect.offset if ok else None
        self._clients.judge.settled(messages, effect.outcome.value, offset, is_final=is_final)
        taken_us = self._schedule.now_us - self._taken_us.pop(effect.batch_id)
        if taken_us > self.config.delivery_timeout_ms * 1000 + LATE_US:
            self._clients.judge.fail("LATE", f"{self.name} is told of {messages} after {taken_us / 1000:g} ms")

    def _open(self, address: str) -> None:
        def opened(stream: Stream | None) -> None:
            if stream is None:
                self._step(core.Disconnected(address, None))
                return
            self._streams[stream.number] = stream
            window = self._clients.options.window_batches
            self._step(core.Connected(address, stream.number, window, WINDOW_BYTES))
            if not stream.is_open:
                closed(stream)

        def closed(stream: Stream) -> None:
            if self._suspicions is not None:
                self._suspicions.closed(stream.number)
            if self._streams.pop(stream.number, None) is not None:
                self._step(core.Disconnected(address, stream.number))

        self._clients.open(address, opened, self._came_back, closed)

    def _attempt(self, effect: core.Send) -> None:
        stream = self._streams.get(effect.stream)
        if stream is None:
            return
        body = self._bodies[effect.batch_id]
        header = make_header(
            partition=self.partition,
            message_count=effect.message_count,
            producer=self.producer,
            producer_epoch=effect.producer_epoch,
            base_sequence=effect.base_sequence,
            first_timestamp_ms=0,
            last_timestamp_ms=0,
            body_length=len(body),
            body_crc=checksum(0, body),
        )
        messages = list(range(effect.batch_id, effect.batch_id + effect.message_count))
        level = self._level_of(effect.batch_id)

        def answered(answer: Any) -> None:
            if isinstance(answer, tuple):
                who, accepted = answer
                self._clients.judge.accepted(who, self.partition, messages, accepted.offset, level)
            else:
                if self._suspicions is not None:
                    self._suspicions.answered(request)
                self._replied(effect, answer)

        request = self._clients.ask(stream, answered)
        if self._suspicions is not None:
            self._suspicions.sent(request, stream.number)
        self._clients.send(
            stream,
            Append(request, self.partition, parse_header(header), body, effect.producer_run, effect.starts_run, level),
        )

    def _came_back(self, what: Any) -> None:
        answered, effect = what
        answered(effect)

    def _replied(self, sent: core.Send, effect: fx.AppendAccepted | fx.AppendRefused) -> None:
        if isinstance(effect, fx.AppendAccepted):
            self._step(
                core.Replied(
                    sent.producer_epoch, sent.base_sequence, sent.producer_run, effect.offset, effect.append_time_ms,
                    offset_is_final=effect.is_final,
                )
            )  # fmt: skip
            return
        error = core.ReplyError(effect.error.number, effect.error.message, effect.error.retry_after_ms or 0)
        self._step(
            core.Replied(
                sent.producer_epoch, sent.base_sequence, sent.producer_run, error=error, route=_route(effect.route)
            )
        )

    def _learned(self, route: fx.RouteInfo) -> None:
        known = _route(route)
        assert known is not None
        self._step(core.RouteKnown(known))

    def _resolve(self, effect: core.Resolve) -> None:
        def make(request: int, deadline_us: int) -> Event:
            return ResolveProducer(request, self.partition, effect.failed_segment, deadline_us)

        def answered(answer: fx.Resolved | None) -> None:
            if answer is not None and isinstance(answer.error, UnknownTopicError) and self._clients.look is not None:
                self._clients.look(self.partition, self._topic_gone)
            self._step(core.Resolved(_route(answer.route) if answer is not None else None))

        self._clients.unary(effect.avoid_address, make, answered)


def _route(route: fx.RouteInfo | None) -> core.Route | None:
    if route is None:
        return None
    return core.Route(route.epoch, route.segment_no, route.master, route.master, ())


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
