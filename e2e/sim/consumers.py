"""Consumers of exclusive groups in the simulation: they ask, join, take deliveries, and acknowledge with a lag."""

from __future__ import annotations

from seriatim_api.ids import PartitionId, make_offset
from seriatim_broker.core import effects as fx
from seriatim_broker.core.events import ConsumerAck, ConsumerCredit, ConsumerJoin, Event, StartPosition

from .checkers import Judge, messages_of
from .clients import Clients, Stream, ask_consumer_route

PAUSE_US = 15_000
PATIENCE_US = 400_000
"""A consumer that heard nothing for so long asks where it should be; the answer mostly tells it to stay."""

CREDIT_BYTES = 1 << 20
SUBSCRIPTION = 1


class SimConsumer:
    """One consumer of a group on one partition."""

    def __init__(self, clients: Clients, judge: Judge, partition: PartitionId, group: str, name: str) -> None:
        self.name = f"{name}/{partition}"
        self.group = group
        self.partition = partition
        self.alive = True
        self.is_active = False
        self._clients = clients
        self._schedule = clients.schedule
        self._judge = judge
        self._stream: Stream | None = None
        self._server_epoch: int | None = None
        self._token = 0
        self._next = (0, 0)  # segment and index that must come next
        self._was_active = False
        self._waiting_acks: list[int] = []
        self._asking = False
        self._generation = 0
        self._heard_us = 0

    def start(self) -> None:
        """Join the group."""
        self._ask(None)
        self._schedule.after(PATIENCE_US, self._look_around)

    def crash(self) -> None:
        """End without a word: the stream breaks."""
        self.alive = False
        self.is_active = False
        self._generation += 1
        if self._stream is not None:
            self._clients.break_stream(self._stream)
            self._stream = None

    def _tell(self, text: str) -> None:
        self._schedule.tell(self.name, text)

    # ---- finding the server -------------------------------------------------------------------------

    def _ask(self, failed_server_epoch: int | None) -> None:
        if not self.alive or self._asking:
            return
        self._asking = True
        self._tell(f"asks for the group's head, complaint {failed_server_epoch}")
        avoid = self._stream.process.name if self._stream is not None else None
        make = ask_consumer_route(self.partition, self.group, failed_server_epoch, StartPosition.EARLIEST)
        self._clients.unary(avoid, make, self._answered)

    def _answered(self, answer: fx.ConsumerResolved | None) -> None:
        self._asking = False
        if not self.alive:
            return
        if answer is None or answer.error is not None or not answer.server:
            if self._stream is None:
                self._schedule.after(PAUSE_US, self._ask, None)
            return
        self._tell(f"is told {answer.segment_no} at {answer.server}, epoch {answer.server_epoch}")
        if self._stream is not None:
            if self._stream.process.name == answer.server:
                return  # stay
            self._let_go()
        self._server_epoch = answer.server_epoch
        self._join(answer.server)

    def _let_go(self) -> None:
        self._was_active = self._was_active or self.is_active
        self.is_active = False
        self._generation += 1
        if self._stream is not None:
            self._clients.close(self._stream)
            self._stream = None

    def _join(self, server: str) -> None:
        self._generation += 1
        generation = self._generation

        def opened(stream: Stream | None) -> None:
            if generation != self._generation or not self.alive:
                if stream is not None:
                    self._clients.close(stream)
                return
            if stream is None:
                self._ask(self._server_epoch)
                return
            self._stream = stream
            self._heard_us = self._schedule.now_us
            self._clients.send(stream, ConsumerCredit(stream.number, CREDIT_BYTES))
            self._clients.send(
                stream,
                ConsumerJoin(
                    stream.number,
                    SUBSCRIPTION,
                    self.partition,
                    self.group,
                    self.name,
                    StartPosition.EARLIEST,
                    self._was_active,
                ),
            )
            if not stream.is_open:
                closed(stream)

        def closed(stream: Stream) -> None:
            if self._stream is stream:
                self._stream = None
                self._was_active = self._was_active or self.is_active
                self.is_active = False
                self._ask(self._server_epoch)

        def arrived(effect: fx.Deliver) -> None:
            if self._stream is not None and self._stream.number == effect.stream and self.alive:
                self._take(effect.event)

        self._clients.open(server, opened, arrived, closed)

    def _look_around(self) -> None:
        if not self.alive:
            return
        if self._stream is not None and self._schedule.now_us - self._heard_us > PATIENCE_US:
            self._ask(None)
        self._schedule.after(PATIENCE_US, self._look_around)

    # ---- deliveries ---------------------------------------------------------------------------------

    def _take(self, event: fx.DeliveryEvent) -> None:
        self._heard_us = self._schedule.now_us
        self._schedule.mark(self.name, type(event).__name__)
        if self._schedule.trace and not isinstance(event, fx.Batches):
            from .story import brief

            self._tell(f"◀ {brief(event)}")
        if isinstance(event, fx.Joined):
            self._joined(event)
        elif isinstance(event, fx.Batches):
            self._batches(event)
        elif isinstance(event, fx.Skip):
            self._expect(event.segment_no, event.from_index, "a skip")
            self._next = (event.segment_no, event.to_index)
            self._judge.skipped(self.group, self.partition, event.segment_no, event.from_index, event.to_index)
            self._ack_later(make_offset(event.segment_no, event.to_index - 1))
        elif isinstance(event, fx.EndOfSegment):
            if self.is_active:
                self._expect(event.segment_no, event.sealed_len, "the end of the segment")
            self._was_active = self.is_active
            self._again()
        elif isinstance(event, fx.SubscriptionRefused | fx.Revoked):
            self._again()

    def _again(self) -> None:
        self._let_go()
        self._schedule.after(self._schedule.rng.randint(0, PAUSE_US), self._ask, None)

    def _joined(self, event: fx.Joined) -> None:
        self.is_active = event.active
        self._server_epoch = event.server_epoch
        if event.active:
            self._token = event.token
            self._next = (event.segment_no, event.index)
            self._waiting_acks = []

    def _expect(self, segment_no: int, index: int, what: str) -> None:
        if (segment_no, index) != self._next:
            self._judge.fail("I2", f"{self.name} gets {what} at {segment_no}:{index} and expects {self._next}")

    def _batches(self, event: fx.Batches) -> None:
        self._expect(event.segment_no, event.from_index, "batches")
        for batch in event.batches:
            for place, message in enumerate(messages_of(batch)):
                index = batch.header.base_index + place
                if index < event.from_index:
                    continue
                offset = make_offset(event.segment_no, index)
                flagged = event.attempt > 1 or index < event.maybe_repeated_below
                self._tell(f"gets {message} at {event.segment_no}:{index}{' (maybe again)' if flagged else ''}")
                self._judge.delivered(self.group, self.partition, offset, message, flagged=flagged)
                self._ack_later(offset)
            self._next = (event.segment_no, batch.header.end_index)

    # ---- acknowledging ------------------------------------------------------------------------------

    def _ack_later(self, offset: int) -> None:
        self._waiting_acks.append(offset)
        lag = self._clients.options.ack_lag
        if len(self._waiting_acks) > lag:
            self._acknowledge(self._waiting_acks[-1 - lag])
        else:
            self._schedule.after(self._schedule.rng.randint(2_000, 60_000), self._ack_all, self._generation)

    def _ack_all(self, generation: int) -> None:
        if generation == self._generation and self._waiting_acks:
            self._acknowledge(self._waiting_acks[-1])

    def _acknowledge(self, offset: int) -> None:
        if self._stream is None or not self.alive:
            return
        self._waiting_acks = [later for later in self._waiting_acks if later > offset]
        self._judge.acknowledged(self.group, self.partition, offset)
        event: Event = ConsumerAck(self._stream.number, SUBSCRIPTION, self._token, offset)
        self._clients.send(self._stream, event)

