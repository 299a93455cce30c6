"""One partition of a producer: its pending messages, its core, and the core's effects.

Methods that the event loop and the transport call are marked with `@entry`. If one of them raises, the whole producer
ends (see `_runtime.failure`), and `break_off` settles the messages that are left. `break_off` must find every message,
whatever raised. So a message is in its next place before it leaves the one before: a batch is in `_batches` before its
messages leave `pending`, and it leaves `_batches` after its messages are settled.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from seriatim_api.batch import FLAG_DELAYED, FLAG_STAGED, HEADER_SIZE_BYTES, make_header
from seriatim_api.errors import DeadlineExceededError, RunRefusedError, SeriatimError
from seriatim_api.v1 import broker_pb2
from seriatim_api.wire.frames import AppendEntry

from seriatim._bodies.arrow import Body
from seriatim._core.distance import PARTITION_BYTES_NEAR, WINDOW_BATCHES
from seriatim._core.producer import (
    Abandon,
    Connected,
    Disconnected,
    Ended,
    Enqueue,
    Event,
    OpenStream,
    Outcome,
    PartitionProducer,
    ProducerConfig,
    Replied,
    ReplyError,
    Resolve,
    Resolved,
    Route,
    RouteKnown,
    Send,
    Settled,
    Timer,
)
from seriatim._producing.backlog import Backlog
from seriatim._producing.batching import Batching
from seriatim._producing.deliveries import Settlement, Sink
from seriatim._producing.pending import Pending
from seriatim._producing.routes import Routes, route_of
from seriatim._producing.turns import Turns
from seriatim._recorder import Recorder
from seriatim._runtime.failure import Failure, attempt, entry
from seriatim._transport.append import AppendLink, AppendLinks
from seriatim._values.records import AckLevel
from seriatim._values.settings import ProducerSettings

_NOT_SENT: Final = (-1, -1)

NO_STAGE: Final = bytes(16)

TOGETHER_S: Final = 0.001
"""Messages that wait for a batch are given up with the older ones of their call, which the core gives up. Its clock
counts µs, so it may be a little earlier."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the partitions of one producer share."""

    topic: str
    producer_id: bytes
    settings: ProducerSettings
    links: AppendLinks
    turns: Turns
    routes: Routes
    backlog: Backlog
    batching: Batching
    batch_bytes_max: int  # the payload of a full batch, however far the broker is
    recorder: Recorder | None
    failure: Failure
    epoch: int  # of the owner of a name; 0: the producer has no owner
    ended: Callable[[ReplyError, dict[str, str]], None]  # an owner's producer has ended, because of this reply
    stage: bytes  # the id of the chunk that is staged; empty: the producer does not stage


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch until it is settled.

    Its bytes change only with its number, and its number changes only while no broker can have it.
    """

    body: Body
    sinks: list[Sink]
    payload_bytes: int
    due_time_ms: int  # as in the header
    ids: Sequence[Any] | None = None  # the messages' ids in the history, until they have an outcome
    number: tuple[int, int] = _NOT_SENT  # epoch, base sequence
    header: bytes = b""


class PartitionSender:
    """Sends the messages of one producer to one partition."""

    def __init__(self, shared: Shared, number: int, partition_id: int, config: ProducerConfig, route: Route) -> None:
        self._shared = shared
        self.failure = shared.failure
        self._turns = shared.turns
        self._ack_level = int(shared.settings.ack_level)
        self.number = number
        self.partition_id = partition_id
        self.core = PartitionProducer(config, route if route.master_address else None)
        timeout_s, linger_s = shared.settings.delivery_timeout_ms / 1000, shared.settings.linger_ms / 1000
        self.pending = Pending(timeout_s, linger_s, joins_tables=not shared.stage)
        self.is_ready = False  # queued for the next turn
        self.batch_count = 0
        self._links: dict[int, AppendLink] = {}  # by stream; there may be several while the partition moves
        self._batches: dict[int, _Batch] = {}
        self._kept: list[int] = []
        self._position = 0  # how many messages this producer has put into batches here
        self._refusal_details: dict[str, str] = {}
        self._refusal = ""  # what the newest refusal said; empty since a batch was accepted

    @property
    def route(self) -> Route | None:
        """The route to the partition's master; None: not known."""
        return self.core.route

    @property
    def full_batch_bytes(self) -> int:
        """Payload of a full batch: more over a distance, unless the application chose it."""
        settings, stream = self._shared.settings, self.core.stream
        if settings.batch_size_bytes is not None or stream is None:
            return settings.full_batch_bytes
        link = self._links[stream]
        fits = self._shared.batch_bytes_max if link.credits is None else link.credits.partition_bytes // WINDOW_BATCHES
        far = min(settings.full_batch_bytes + link.distance.batch_bytes, self._shared.batch_bytes_max, fits)
        return max(settings.full_batch_bytes, far)

    # ---- from the application ------------------------------------------------------------------------

    @entry
    def pump(self) -> None:
        """Cut and send the batches that may be sent now."""
        batching = self._shared.batching
        self._give_up_overdue()
        while self.pending:
            stream = self.core.stream
            if not batching.may_cut(self, None if stream is None else self._links[stream]):
                self._turns.wake_at(self, self.pending.deadline_at)
                return
            self._cut()

    def _cut(self) -> None:
        shared = self._shared
        full_bytes = self.full_batch_bytes
        is_far = full_bytes > shared.settings.full_batch_bytes
        cut = self.pending.peek(full_bytes, shared.settings.compression, fills=is_far)
        waited_us = int((time.monotonic() - self.pending.begun_at) * 1e6)
        batch = _Batch(cut.body, cut.sinks, cut.payload_bytes, cut.due_time_ms)
        batch_id, count = self.batch_count + 1, cut.body.message_count
        self._batches[batch_id] = batch
        self.batch_count = batch_id
        self.pending.drop(cut)
        if shared.recorder is not None:
            batch.ids = shared.recorder.sends(
                *cut.rows(), shared.topic, self.number, shared.producer_id.hex(), self._position, cut.due_time_ms
            )
        self._position += count
        self._step(Enqueue(batch_id, count, len(cut.body.data) + HEADER_SIZE_BYTES, waited_us))

    def _give_up_overdue(self) -> None:
        """Settle the messages that waited for a batch until their deadline. None was sent, so all of them are failed.

        Batches that were cut are older. The core gives them up.
        """
        while self.pending and self.pending.deadline_at <= time.monotonic() + TOGETHER_S:
            because = f": {self._refusal}" if self._refusal else ""
            message = f"not sent within {self._shared.settings.delivery_timeout_ms} ms{because}"
            error = ReplyError(DeadlineExceededError.number, message)
            sinks, count, before = self.pending.front_sinks(), self.pending.front_count, self.pending.payload_bytes
            settlement = Settlement(Outcome.FAILED, self.number, 0, 0, error)
            for sink in sinks:
                sink.settle(0, settlement)
            self.pending.drop_front()
            self._shared.backlog.settle(count, before - self.pending.payload_bytes, Outcome.FAILED)

    @entry
    def abandon(self, error: ReplyError | None = None) -> None:
        """Settle everything now: as failed if no broker can have stored it, else as unknown.

        Args:
            error: Why; None: the application closes the producer.
        """
        self._step(Abandon(error))
        if self.pending:
            pending = self.pending
            settlement = Settlement(Outcome.FAILED, self.number, 0, 0, self.core.ended)
            self._shared.backlog.settle(pending.message_count, pending.payload_bytes, Outcome.FAILED)
            for sink in pending.all_sinks():
                sink.settle(0, settlement)
            self.pending.clear()

    def break_off(self, error: ReplyError) -> None:
        """The producer's own code failed: settle as unknown all messages that are not settled.

        It uses only the lists of messages, because any other state may be wrong now.
        """
        settlement = Settlement(Outcome.UNKNOWN, self.number, 0, 0, error)
        for batch in list(self._batches.values()):
            if self._shared.recorder is not None and batch.ids is not None:
                attempt(self._shared.recorder.outcomes, batch.ids, settlement)
            for sink in batch.sinks:
                attempt(sink.break_off, settlement)
        for sink in self.pending.all_sinks():
            attempt(sink.break_off, settlement)
        self._batches.clear()
        self._links.clear()
        self.pending.clear()

    @entry
    def timer_due(self) -> None:
        """The time for which the core asked has come, or the deadline of messages that wait for a batch."""
        if self.pending:
            self._turns.make_ready(self)
        wanted_us = self.core.wake_at_us
        if wanted_us is not None and wanted_us <= time.monotonic_ns() // 1000:
            self._step(Timer())
        else:
            self._turns.wake_core(self, wanted_us)

    # ---- from the transport --------------------------------------------------------------------------

    @entry
    def link_up(self, link: AppendLink) -> None:
        """The link for which this partition asked is up."""
        self._link_up(link)

    def _link_up(self, link: AppendLink) -> None:
        assert link.credits is not None
        if link.stream not in self._links:
            self._links[link.stream] = link
        allowed = link.credits
        window_bytes = min(allowed.partition_bytes, PARTITION_BYTES_NEAR + link.distance.link_bytes)
        self._step(Connected(link.address, link.stream, allowed.window_batches, window_bytes))

    @entry
    def link_down(self, address: str, stream: int | None) -> None:
        """The link has ended, or could not be opened."""
        self._step(Disconnected(address, stream))
        if stream is not None:
            self._links.pop(stream, None)

    def link_refused(self, error: SeriatimError) -> None:
        """The broker speaks another protocol: the producer ends.

        Rule `refused-is-told` (I13). Without it:
          1. A client speaks a protocol that the brokers do not. The broker refuses its stream, and says so.
          2. The producer takes this for a broker that is gone, and complains. Each complaint opens another segment.
          3. The application is told that its messages were not settled in time, and not why.
        """
        self._shared.routes.refused(error)

    @entry
    def link_has_room(self) -> None:
        """Other batches of the link were answered, so this partition may send."""
        self._turns.make_ready(self)

    @entry
    def link_is_silent(self, link: AppendLink) -> None:
        """Answers are due on the link, and none comes: ask for the partition's master, unless it has moved already."""
        route = self.core.route
        if route is not None and route.master_address == link.address and not self.core.is_idle:
            self._shared.routes.suspect(self, link)

    @entry
    def replied(self, reply: broker_pb2.AppendReply) -> None:
        """A send attempt was answered."""
        error = None
        if reply.HasField("error"):
            error = ReplyError(reply.error.number, reply.error.message, reply.error.retry_after_ms)
        if error is None:
            self._refusal = ""
        elif error.number != RunRefusedError.number:  # it only means that an earlier batch was refused
            self._refusal, self._refusal_details = error.message, dict(reply.error.details)
        route = route_of(reply.route) if reply.HasField("route") else None
        event = Replied(
            reply.producer_epoch, reply.base_sequence, reply.run, reply.offset, reply.append_time_ms, error, route,
            reply.offset_is_final, reply.due_time_ms if reply.HasField("due_time_ms") else None,
        )  # fmt: skip
        if route is None:
            self._step(event)
        else:
            self._step_with_route(event)

    @entry
    def resolved(self, route: Route | None) -> None:
        """The core's question was answered; None: no broker answered."""
        self._step_with_route(Resolved(route))

    @entry
    def route_known(self, route: Route) -> None:
        """A question about a silent link was answered."""
        self._step_with_route(RouteKnown(route))

    def has_left(self, before: Route | None) -> bool:
        """Whether the partition is no longer at the master that the route names."""
        after = self.core.route
        return before is None or after is None or (before.segment, before.master_address) != (
            after.segment, after.master_address
        )  # fmt: skip

    # ---- the core ------------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        """Give the core an event and carry out its effects."""
        now_us = time.monotonic_ns() // 1000
        for effect in self.core.step(event, now_us, random.random()):  # noqa: S311 - spreads retries, hides nothing
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Settled):
                self._settle(effect)
            elif isinstance(effect, OpenStream):
                self._open(effect.address)
            elif isinstance(effect, Resolve):
                self._shared.routes.resolve(self, effect)
            elif isinstance(effect, Ended) and self._shared.epoch:
                self._shared.ended(effect.error, self._refusal_details)
        if self._kept:
            self._drop_kept()
        self._turns.wake_core(self, self.core.wake_at_us)
        if self.pending:
            self._turns.make_ready(self)

    def _step_with_route(self, event: Event) -> None:
        before = self.core.route
        self._step(event)
        route = self.core.route
        if route is not None and route is not before:
            self._shared.routes.learned(route)

    def _open(self, address: str) -> None:
        if self.core.route is not None:  # perhaps the first one, which came with the topic
            self._shared.routes.learned(self.core.route)
        link = self._shared.links.open(address, self)
        if link is not None:
            self._link_up(link)

    def _send(self, effect: Send) -> None:
        batch = self._batches[effect.batch_id]
        number = (effect.producer_epoch, effect.base_sequence)
        producer = self._shared.producer_id
        if batch.number != number:
            batch.number = number
            batch.header = make_header(
                partition=self.partition_id,
                message_count=effect.message_count,
                producer=producer,
                producer_epoch=effect.producer_epoch,
                base_sequence=effect.base_sequence,
                first_timestamp_ms=batch.body.first_timestamp_ms,
                last_timestamp_ms=batch.body.last_timestamp_ms,
                body_length=len(batch.body.data),
                body_crc=batch.body.crc,
                flags=batch.body.flags
                | (FLAG_STAGED if self._shared.stage else 0)
                | (FLAG_DELAYED if batch.due_time_ms else 0),
                due_time_ms=batch.due_time_ms,
                stage=self._shared.stage or NO_STAGE,
            )
        entry = AppendEntry(effect.producer_run, self._ack_level, effect.starts_run, effect.route_epoch)
        link = self._links[effect.stream]
        link.write(entry, self.partition_id, producer, effect.base_sequence, batch.header, batch.body.data)

    def _settle(self, effect: Settled) -> None:
        batch = self._batches[effect.batch_id]
        is_final = effect.offset_is_final and self._ack_level >= AckLevel.REPLICATED
        due_ms = effect.due_time_ms if batch.due_time_ms else 0
        settlement = Settlement(
            effect.outcome, self.number, effect.offset, effect.append_time_ms, effect.error, is_final, due_ms
        )
        shared = self._shared
        if shared.recorder is not None and batch.ids is not None:
            ids, batch.ids = batch.ids, None
            # before the application gets the outcome and can act on it
            shared.recorder.outcomes(ids, effect.outcome, effect.offset)
        shared.backlog.settle(batch.body.message_count, batch.payload_bytes, effect.outcome)
        at = 0
        for sink in batch.sinks:
            at += sink.settle(at, settlement)
        if self.core.has_batch(effect.batch_id):
            self._kept.append(effect.batch_id)  # an earlier batch is not acknowledged, so it may be sent again
        else:
            del self._batches[effect.batch_id]

    def _drop_kept(self) -> None:
        for batch_id in [kept for kept in self._kept if not self.core.has_batch(kept)]:
            self._kept.remove(batch_id)
            del self._batches[batch_id]
