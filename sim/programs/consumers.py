"""Consumers of exclusive consumer groups in the simulation: the client's core, and an application that lags."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from seriatim._core import consumer as core
from seriatim._core import consumer_types as ct
from seriatim._core.joining import DROPPED
from seriatim_api.errors import OrderViolationError, SeriatimError, UnknownTopicError, UnsupportedModeError
from seriatim_api.ids import PartitionId, make_offset
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import (
    ConsumerAck,
    ConsumerCredit,
    ConsumerGroupOperation,
    ConsumerJoin,
    ConsumerLeave,
    ConsumerPing,
    ConsumerYielded,
    StartPosition,
)
from seriatim_broker.core.values.keyed import ConsumerMode
from seriatim_broker.core.values.log import Batch

from ..judge import Judge, messages_of
from .clients import LOOK_US, RESOLVE_DEADLINE_US, SILENCE_US, Clients, Stream, ask_consumer_route

PARTITIONS_SPREAD = range(4)
"""Servers spread as if the topic had four partitions, because most worlds have one."""

STALL_SHARE = 0.25
"""How often the answer to a question to yield is late."""

PING_US = 200_000
CONFIG = ct.ConsumerConfig(join_timeout_ms=250, ack_interval_ms=5, session_ms=1000, backoff_ms_min=2, backoff_ms_max=60)


def name_of(label: str) -> str:
    """The name of a consumer group. Each group that was made again under it has a label of its own."""
    return label.partition("#")[0]


class SimConsumer:
    """One consumer of a group on one partition. `group` is the label that the judge knows it by."""

    mode = ConsumerMode.EXCLUSIVE
    _core: Any
    _is_once = False  # in an at-most-once group

    def __init__(
        self,
        clients: Clients,
        judge: Judge,
        partition: PartitionId,
        group: str,
        name: str,
        start: StartPosition = StartPosition.EARLIEST,
    ) -> None:
        self.name = f"{name}/{partition}"
        self._start = start  # if the group has no cursor there
        self.group = group
        self.partition = partition
        self.alive = True
        self._clients = clients
        self._schedule = clients.schedule
        self._judge = judge
        self._config = ct.ConsumerConfig() if clients.options.far_us_max else CONFIG
        self._core = core.PartitionConsumer(self._config)
        self._in_flight_max, self._run_max = 1_000, 0
        self._streams: dict[str, Stream] = {}
        self._wake_at_us: int | None = None
        self._is_cut = False
        self._batches: tuple[Batch, ...] = ()
        self._taken_count = 0  # deliveries that reached the application
        self._group_epoch = 0
        self._begins = False  # the next batches are the first under this grant
        self._unacked: list[int] = []  # indexes after the messages that were handed out under this grant
        self._given = 0  # the end of the last message that was handed out,
        self._passed = 0  # of what is passed over after it,
        self._acked = 0  # and of what the application is done with
        self._is_spread = clients.options.spread_consumers > 0 and self.mode is ConsumerMode.EXCLUSIVE
        self._stalls = False
        self._unsent: list[tuple[int, Any]] = []
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # deliveries and skips of grants, in their order

    @property
    def is_active(self) -> bool:
        """Whether it holds the grant, as far as it knows."""
        return self.alive and self._core.phase is core.ConsumerPhase.ACTIVE

    def start(self) -> None:
        """Join the group."""
        self._judge.rules.told_once.begins(self.name, self.partition)
        self._step(ct.Timer())
        self._ping()
        self._look_later()

    def _look_later(self) -> None:
        if self._clients.look is not None:
            self._schedule.after(LOOK_US, self._look)

    def _look(self) -> None:
        """Look whether the topic is there."""
        if self.alive and self._clients.look is not None:
            if not self._is_cut:
                self._clients.look(self.partition, self._topic_gone)
            self._look_later()

    def _topic_gone(self) -> None:
        """The application is told that the topic was deleted, and reads no more."""
        if self.alive:
            self._tell("the topic was deleted")
            self._judge.seen.states.add("consumer notified of a deleted topic")
            self.crash()

    def _ping(self) -> None:
        """Heartbeats of all streams, as the client sends them."""
        if self.alive:
            for stream in self._streams.values():
                self._clients.send(stream, ConsumerPing(stream.number, self._schedule.now_us, self._config.session_ms))
            self._schedule.after(PING_US, self._ping)

    def cut_off(self) -> None:
        """The consumer's machine reaches no broker and gets no error: streams hold what it sends, unanswered."""
        self._is_cut = True
        for stream in self._streams.values():
            self._clients.hold(stream)

    def forget_what_is_held(self) -> None:
        """The cut heals, and the consumer finds its connections broken: held messages are lost."""
        if self._is_cut:
            for stream in list(self._streams.values()):
                self._clients.drop_held(stream)
            self._is_cut = False

    def reach_again(self) -> None:
        """The cut heals, and held messages arrive at once."""
        self._is_cut = False
        for stream in list(self._streams.values()):
            self._clients.let_go(stream)

    def has(self, stream: Stream) -> bool:
        """Whether the stream is one of this consumer."""
        return stream in self._streams.values()

    @property
    def server(self) -> str:
        """The broker that serves it, as far as the consumer knows; empty if it knows none."""
        place = self._core.place
        return place.address if place is not None and self.is_active else ""

    def crash(self) -> None:
        """End without a word: its streams break."""
        self.alive = False
        self.reach_again()
        for stream in self._streams.values():
            self._clients.break_stream(stream)
        self._streams.clear()

    def leave(self) -> None:
        """End, and say so to the server."""
        self._step(ct.Leave())
        self._schedule.after(50_000, self.crash)

    def _tell(self, text: str) -> None:
        self._schedule.tell(self.name, text)

    # ---- the core -----------------------------------------------------------------------------------

    def _step(self, event: ct.Event) -> None:
        if not self.alive:
            return
        try:
            effects = self._core.step(event, self._schedule.now_us, self._schedule.rng.random())
        except OrderViolationError as error:
            self._judge.fail("I2", f"{self.name}: {error}")
        self._schedule.mark(self.name, f"{type(event).__name__} {len(effects)}")
        if self._schedule.trace and not isinstance(event, ct.Timer):
            self._tell(f"◀ {event}")
        for effect in effects:
            if self._schedule.trace:
                self._tell(f"    ▶ {effect}")
            self._carry_out(effect)
        if isinstance(event, ct.Dropped) and self.is_active and self._core.next_index == event.to_index:
            self._soon(lambda: self._pass(event.segment, event.to_index))
        wake = self._core.wake_at_us
        if wake is not None:
            at = max(wake, self._schedule.now_us + 1)
            if self._wake_at_us is None or at < self._wake_at_us:
                self._wake_at_us = at
                self._schedule.at(at, self._wake, at)

    def _wake(self, at: int) -> None:
        if self._wake_at_us == at:
            self._wake_at_us = None
            self._step(ct.Timer())

    def _carry_out(self, effect: ct.Effect) -> None:
        if isinstance(effect, ct.Deliver):
            self._taken_count += 1
            batches = self._batches
            self._soon(lambda: self._take_batches(effect, batches))
        elif isinstance(effect, ct.Resolve):
            self._resolve(effect)
        elif isinstance(effect, ct.OpenStream):
            self._open(effect.address)
        elif isinstance(effect, ct.SendJoin):
            self._join(effect)
        elif isinstance(effect, ct.SendLeave):
            self._send(effect.stream, ConsumerLeave(effect.stream, effect.subscription))
        elif isinstance(effect, ct.SendAck):
            self._send(effect.stream, ConsumerAck(effect.stream, effect.subscription, effect.token, effect.offset))
        elif isinstance(effect, ct.AskedToYield):
            self._judge.seen.states.add("asked to yield")
            if self._schedule.rng.random() < STALL_SHARE:
                self._stall()
            self._yield(effect.number)
        elif isinstance(effect, ct.SendYielded):
            self._send(
                effect.stream,
                ConsumerYielded(effect.stream, effect.subscription, effect.token, effect.number, effect.offset),
            )
        elif isinstance(effect, ct.YieldEnded):
            self._judge.seen.states.add("an attempt to yield ended")
            self._go_on_taking()
        elif isinstance(effect, ct.Assigned):
            self._waiting.clear()
            self._unacked = []
            self._begins = effect.active
            self._given = self._passed = self._acked = effect.index
        elif isinstance(effect, ct.Passed):
            self._soon(lambda: self._skip(effect))
        elif isinstance(effect, ct.ConsumerGroupChanged):
            self._judge.seen.states.add(f"consumer notified of {effect.what}")
            if effect.what not in ("pause", "resume"):
                place = make_offset(effect.segment, effect.index)
                self._judge.rules.told_once.moved(self.name, self.partition, effect.what, effect.group_epoch, place)
        elif isinstance(effect, ct.GapFound):
            first = make_offset(effect.segment, effect.from_index)
            end = effect.end_offset or make_offset(effect.segment + 1, 0)
            self._judge.rules.told_once.told(self.name, self.partition, first, end)
            if effect.reason == DROPPED and effect.end_offset:
                self._judge.dropped_told(self.group, self.partition, first, end)
            else:
                self._judge.gap_told(self.group, self.partition, effect.segment)
        elif isinstance(effect, ct.AckedDurably):
            epoch = self._group_epoch
            self._judge.confirmed(self.group, self.partition, epoch, effect.segment, effect.index)
        elif (
            isinstance(effect, ct.Ended)
            and isinstance(effect.error, core.ReplyError)
            and (effect.error.number == UnknownTopicError.number and self.partition in self._judge.seen.gone)
        ):
            self._topic_gone()
        elif isinstance(effect, ct.Ended) and effect.error is not None:
            is_other = effect.error.number == UnsupportedModeError.number
            if not (is_other and self._clients.other_mode(self.group, self.partition)):
                self._judge.fail("CORE", f"{self.name} ended: {effect}")
            self._tell("asked for another mode than its group has now")
            self.crash()

    # ---- the way to the server ----------------------------------------------------------------------

    def _resolve(self, effect: ct.Resolve) -> None:
        def answered(answer: fx.ConsumerResolved | None) -> None:
            place = None
            if answer is not None and answer.error is None:
                place = ct.Place(answer.segment_no, answer.server, answer.server_epoch, answer.confirmed)
            self._step(ct.Resolved(place))

        if self._is_cut:
            self._schedule.after(RESOLVE_DEADLINE_US, answered, None)
            return
        make = ask_consumer_route(
            self.partition, name_of(self.group), effect.failed_server_epoch, self._start, self.mode
        )
        self._clients.unary(effect.avoid_address, make, answered)

    def _open(self, address: str) -> None:
        known = self._streams.get(address)
        if known is not None:
            self._schedule.after(0, self._step, ct.Connected(address, known.number))
            return

        def opened(stream: Stream | None) -> None:
            if stream is None or not self.alive:
                self._step(ct.Disconnected(address, None))
                return
            self._streams[address] = stream
            self._clients.send(stream, ConsumerCredit(stream.number, self._clients.options.credit_bytes))
            self._step(ct.Connected(address, stream.number))
            if not stream.is_open:
                closed(stream)

        def closed(stream: Stream) -> None:
            if self._streams.get(address) is stream:
                del self._streams[address]
                self._step(ct.Disconnected(address, stream.number))

        if self._is_cut:
            self._schedule.after(SILENCE_US, opened, None)
            return
        self._clients.open(address, opened, self._arrived, closed)

    def _stall(self) -> None:
        """What it sends waits for a moment, and what is sent to it arrives."""
        if not self._stalls:
            self._stalls = True
            self._schedule.after(self._schedule.rng.randint(50_000, 500_000), self._send_all)

    def _send_all(self) -> None:
        self._stalls = False
        unsent, self._unsent = self._unsent, []
        for number, event in unsent if self.alive else ():
            self._send(number, event)

    def _send(self, number: int, event: Any) -> None:
        if self._stalls:
            self._unsent.append((number, event))
            return
        for stream in self._streams.values():
            if stream.number == number:
                self._clients.send(stream, event)

    def _join(self, effect: ct.SendJoin) -> None:
        self._judge.subscribed(effect.stream, effect.subscription, self.group, self.partition)
        self._send(
            effect.stream,
            ConsumerJoin(
                effect.stream,
                effect.subscription,
                self.partition,
                name_of(self.group),
                self.name,
                self._start,
                effect.was_active,
                self.mode,
                self._in_flight_max,
                self._run_max,
                spread_over=len(PARTITIONS_SPREAD) if self._is_spread else 0,
                number=self.partition % len(PARTITIONS_SPREAD) if self._is_spread else 0,
                was_standby=self._is_spread and effect.was_standby,
            ),
        )

    def _arrived(self, effect: fx.Deliver) -> None:
        event = effect.event
        if isinstance(event, fx.Pong):
            for stream in self._streams.values():
                if stream.number == effect.stream:
                    self._step(ct.Answered(stream.number, event.number))
            return
        if isinstance(event, fx.Batches):
            self._batches = event.batches
        if isinstance(event, fx.Joined):
            self._group_epoch = max(self._group_epoch, event.group_epoch)
        taken = self._taken_count
        is_standby = isinstance(event, fx.Joined) and not event.active and self.is_active
        if is_standby and self._core.yielding and self._core.subscription == effect.subscription:
            self._yielded()
        self._step(_translated(effect.subscription, event))
        self._judge.rules.told_once.joined(self.name, self.partition, self._core.group_epoch)
        if isinstance(event, fx.Batches) and self._clients.options.take_us and self._taken_count == taken:
            # As in the client: the broker gets the credit back for what is dropped, because the consumer has left.
            size_bytes = sum(batch.size_bytes for batch in event.batches)
            for stream in self._streams.values():
                if stream.number == effect.stream:
                    self._take_more(stream, size_bytes)

    # ---- the application ----------------------------------------------------------------------------

    def _soon(self, step: Callable[[], None]) -> None:
        """The application takes it: at once, or where partitions are spread, some time later."""
        if not self._is_spread:
            step()
            return
        self._waiting.append((self._core.grant, step))
        self._go_on_taking()

    def _go_on_taking(self) -> None:
        self._schedule.after(self._schedule.rng.choice((0, 1_000, 20_000)), self._take_next)

    def _take_next(self) -> None:
        """The application takes what came first, unless it is to get nothing because the consumer yields."""
        if not self.alive or not self._waiting or (self._core.yielding and not self._is_once):
            return
        grant, step = self._waiting.popleft()
        if grant == self._core.grant:
            step()
        if self._waiting:
            self._go_on_taking()
        elif self._is_once and self._core.yielding:
            self._yield(self._core.yielding)

    def _yield(self, number: int) -> None:
        if self._is_once and self._waiting:
            return  # when the application has all of it
        index = self._given_or_begun() if self._waiting else self._core.next_index
        self._step(ct.Yield(number, index))

    def _given_or_begun(self) -> int:
        return max(self._given, int(self._core.begun_index))

    def _yielded(self) -> None:
        """The server made another consumer active, as planned: this one's application is done with all that it has.

        Rule `yields-when-done`.
        """
        self._judge.seen.states.add("yielded")
        if self._is_once and self._waiting:
            self._judge.fail(
                "O1", f"{self.name} has yielded, and its application did not get {len(self._waiting)} steps"
            )
        if not self._is_once and self._acked < self._given:
            self._judge.fail(
                "I9",
                f"{self.name} has yielded, and its application was given all below {self._given} and is done with "
                f"all below {self._acked}",
            )

    def _take_batches(self, effect: ct.Deliver, batches: tuple[Batch, ...]) -> None:
        self._batches = batches
        self._deliver(effect)

    def _skip(self, effect: ct.Passed) -> None:
        self._judge.skipped(
            self.group, self.partition, effect.segment, effect.from_index, effect.to_index, self._group_epoch
        )
        self._pass(effect.segment, effect.to_index)

    def _deliver(self, effect: ct.Deliver) -> None:
        if self._begins and effect.delivery_attempt == 1 and effect.from_index >= effect.maybe_repeated_below:
            self._judge.begun(self.group, self.partition, self._group_epoch, effect.segment, effect.from_index)
        self._begins = False
        for batch in self._batches:
            for place, message in enumerate(messages_of(batch)):
                index = batch.header.base_index + place
                if index < effect.from_index:
                    continue
                flagged = effect.delivery_attempt > 1 or index < effect.maybe_repeated_below
                self._tell(f"is given {message} at {effect.segment}:{index}{' (maybe again)' if flagged else ''}")
                offset = make_offset(effect.segment, index)
                epoch = self._group_epoch
                self._judge.delivered(self.group, self.partition, offset, message, flagged=flagged, group_epoch=epoch)
                self._given = self._passed = index + 1
                self._done_later(index + 1)
        take_us = self._clients.options.take_us
        if take_us and self._place_stream is not None:
            size_bytes = sum(batch.size_bytes for batch in self._batches)
            self._schedule.after(take_us, self._take_more, self._place_stream, size_bytes)

    @property
    def _place_stream(self) -> Stream | None:
        place = self._core.place
        return self._streams.get(place.address) if place is not None else None

    def _take_more(self, stream: Stream, size_bytes: int) -> None:
        """A slow application has finished the messages that it got."""
        if self.alive:
            self._clients.send(stream, ConsumerCredit(stream.number, size_bytes))

    def _done_later(self, index: int) -> None:
        """The application is done with a message some messages, or some time, later."""
        self._unacked.append(index)
        lag = self._clients.options.ack_lag
        grant, segment = self._core.grant, self._core.segment
        if len(self._unacked) > lag:
            self._schedule.after(0, self._acknowledge, grant, segment, self._unacked[-1 - lag])
            self._unacked = self._unacked[len(self._unacked) - lag :] if lag else []
        if lag:
            delay = self._schedule.rng.randint(2_000, 60_000)
            self._schedule.after(delay, self._acknowledge, grant, segment, index)

    def _acknowledge(self, grant: int, segment: int, index: int) -> None:
        if not self.is_active or grant != self._core.grant or segment != self._core.segment:
            return
        self._acked = max(self._acked, index)
        self._acknowledged(segment, self._passed if index >= self._given else index)
        self._step(ct.Acknowledge(grant, segment, index))

    def _pass(self, segment: int, index: int) -> None:
        """There is nothing up to there for the application: it is done with that when it is with all before."""
        self._passed = index
        if index and self._acked >= self._given:
            self._acknowledged(segment, index)

    def _acknowledged(self, segment: int, index: int) -> None:
        self._judge.acknowledged(self.group, self.partition, make_offset(segment, index - 1), self._group_epoch)


def _error(error: SeriatimError) -> core.ReplyError:
    return core.ReplyError(error.number, error.message, error.retry_after_ms or 0)


BEGINNINGS: dict[ConsumerGroupOperation | None, Literal["rewind", "skip"]] = {
    ConsumerGroupOperation.REWIND: "rewind",
    ConsumerGroupOperation.SKIP: "skip",
}


def _translated(subscription: int, event: fx.DeliveryEvent) -> ct.Event:
    """The messages that the frame layer reads from a delivery."""
    if isinstance(event, fx.Joined):
        return ct.Joined(
            subscription, event.active, event.segment_no, event.index, event.token, event.group_epoch,
            event.server_epoch, paused=event.paused, begun_by=BEGINNINGS.get(event.begun_by),
            at_most_once=event.at_most_once,
        )  # fmt: skip
    if isinstance(event, fx.Batches):
        places = tuple((batch.header.base_index, batch.header.message_count) for batch in event.batches)
        return ct.Delivered(
            subscription, event.segment_no, places, event.from_index, event.maybe_repeated_below,
            event.delivery_attempt, event.server_epoch,
        )  # fmt: skip
    if isinstance(event, fx.YieldAsked):
        return ct.YieldAsked(subscription, event.number, event.is_over)
    if isinstance(event, fx.Paused):
        return ct.Paused(subscription, event.paused)
    if isinstance(event, fx.Skip):
        return ct.Skipped(subscription, event.segment_no, event.from_index, event.to_index)
    if isinstance(event, fx.EndOfSegment):
        return ct.SegmentEnded(
            subscription, event.segment_no, event.sealed_len, event.next_segment_no, event.next_server
        )
    if isinstance(event, fx.Gap):
        return ct.GapDeclared(subscription, event.segment_no, event.from_index, event.reason, event.to_index)
    if isinstance(event, fx.Dropped):
        return ct.Dropped(subscription, event.from_offset, event.segment_no, event.to_index, event.messages)
    if isinstance(event, fx.AckConfirmed):
        return ct.AckConfirmed(subscription, event.segment_no, event.index)
    if isinstance(event, fx.SubscriptionRefused):
        return ct.Refused(subscription, _error(event.error), event.server)
    assert isinstance(event, fx.Revoked)
    return ct.Refused(subscription, _error(event.error))
