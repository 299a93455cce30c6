"""Producers in the simulation: the client's core, and an application that sends batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from seriatim._core import producer as core
from seriatim_api.batch import FLAG_DELAYED
from seriatim_api.errors import UnknownTopicError
from seriatim_api.ids import PartitionId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import AckLevel, Append, Event, ResolveProducer

from ..basics.batches import header_of
from ..basics.interfaces import WALL_MS_START
from .clients import LOOK_US, Clients, Stream
from .suspicions import Suspicions

WINDOW_BYTES = 1 << 20
LATE_US = 1_000

DELAY_MS_MAX = 2_500
"""The longest delay. All are over soon after the faults."""

MOVED_MS_MAX = 9_000
"""The longest one where delayed messages are moved: only those are that are not due soon."""


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
        self._due_ms: dict[int, int] = {}  # delayed batch -> its due time, or less than 0: its delay
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
        """End without a word: its streams break, and its application is notified of nothing more."""
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
            share = self._clients.options.delayed_share
            if share and self._schedule.rng.random() < share:
                self._delay(messages)
            for message in messages:
                producer = message.to_bytes(16, "big") if batch_id in self._due_ms else self.producer
                self._clients.judge.sent(message, self.partition, producer, self._level_of(batch_id))
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

    def _delay(self, messages: list[int]) -> None:
        """The batch gets a delay, or a due time that may have passed."""
        rng = self._schedule.rng
        longest_ms = DELAY_MS_MAX if not self._clients.options.moves_delayed else MOVED_MS_MAX
        delay_ms = rng.choice((rng.randint(1, 60), rng.randint(60, 600), rng.randint(600, longest_ms)))
        due_ms = WALL_MS_START + self._schedule.now_us // 1000 + delay_ms - rng.choice((0, 0, 100))
        self._due_ms[messages[0]] = -delay_ms if rng.random() < 0.5 else due_ms
        self._clients.judge.seen.delayed.update(messages)

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
        is_delayed = effect.batch_id in self._due_ms
        is_final = effect.offset_is_final and self._level_of(effect.batch_id) >= AckLevel.REPLICATED and not is_delayed
        offset = effect.offset if ok else None
        self._clients.judge.settled(messages, effect.outcome.value, offset, is_final=is_final)
        if is_delayed and offset is not None:
            self._clients.on_delayed(self.partition, messages, offset)
        taken_us = self._schedule.now_us - self._taken_us.pop(effect.batch_id)
        if taken_us > self.config.delivery_timeout_ms * 1000 + LATE_US:
            self._clients.judge.fail("LATE", f"{self.name} is notified of {messages} after {taken_us / 1000:g} ms")

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
        due_ms = self._due_ms.get(effect.batch_id, 0)
        header = header_of(
            self.partition, self.producer, body,
            count=effect.message_count, epoch=effect.producer_epoch, sequence=effect.base_sequence,
            flags=FLAG_DELAYED if due_ms else 0, due_time_ms=due_ms,
        )  # fmt: skip
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
            Append(request, self.partition, header, body, effect.producer_run, effect.starts_run, level),
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
