"""Order and outcomes of one producer's batches on one partition. Pure: no I/O, no clock, no randomness.

Here the client keeps its half of the promise. Batches are in the log in the order in which they were enqueued, and none
is there twice. The outcome that the application gets for a batch is true over *all* its send attempts. Bytes, headers,
connections and timers belong to the caller. Here a batch is an id, a count and a size.

Only `step(event, now_us, jitter)` changes state. It returns the effects to carry out, in their order. `producer_types`
has the events and the effects. After each step the caller calls again with `Timer()`, at `wake_at_us` at the latest
(None: not needed).

The parts are in other modules: the knowledge about a batch over all its send attempts in `send_attempts`, the batches
that are on their way together in `producer_runs`, order and numbers in `sequences`, the outcomes of batches without
acknowledgement in `abandonment`, the way to the master in `master`. This module says what an event means to all of
them, above all a reply:

*Late answers.* `ok` of any send attempt, in any producer run, settles the batch. An error ends only the send attempt
that it names. If it proves that this attempt was not stored, it also ends those after it in the producer run. Only an
error of the current producer run decides whether a new one is needed. Replies to a number that a batch no longer has
are ignored: after a batch got a new number, only replies to producer runs from `first_run` on are about it.
"""

from __future__ import annotations

from seriatim_api.errors import DeadlineExceededError, ProducerFencedError, SequenceGapError
from seriatim_api.exclusive import FIRST_SEQUENCE

from .abandonment import answer_gap, give_up, give_up_all, give_up_overdue
from .master import US_PER_MS, Master
from .producer_runs import ProducerRun
from .producer_types import (
    Abandon,
    Connected,
    Disconnected,
    Effect,
    Ended,
    Enqueue,
    Event,
    OpenStream,
    Outcome,
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
from .send_attempts import Batch
from .sequences import BatchQueue
from .state import State

__all__ = [
    "Abandon",
    "Connected",
    "Disconnected",
    "Effect",
    "Ended",
    "Enqueue",
    "Event",
    "OpenStream",
    "Outcome",
    "PartitionProducer",
    "ProducerConfig",
    "Replied",
    "ReplyError",
    "Resolve",
    "Resolved",
    "Route",
    "RouteKnown",
    "Send",
    "Settled",
    "Timer",
]


class PartitionProducer(State):
    """Sends the batches of one producer id to one partition, in order. The module's docstring says how."""

    __slots__ = ("_config", "_ended", "_master", "_queue")

    def __init__(self, config: ProducerConfig, route: Route | None = None) -> None:
        self._config = config
        self._master = Master(config, route)
        self._queue = BatchQueue(ProducerRun(config.window_batches_max, config.window_bytes_max))
        if config.epoch:
            self._queue.epoch, self._queue.next_sequence, self._queue.is_owned = config.epoch, FIRST_SEQUENCE, True
        self._ended: ReplyError | None = None

    # ---- what the caller may look at -----------------------------------------------------------------

    @property
    def route(self) -> Route | None:
        """The route to the master; None: not known."""
        return self._master.route

    @property
    def stream(self) -> int | None:
        """The stream on which send attempts go out; None: no stream is up."""
        return self._master.stream

    @property
    def epoch(self) -> int:
        """The producer epoch of the next batch."""
        return self._queue.epoch

    @property
    def producer_run(self) -> int:
        """The number of the current producer run."""
        return self._queue.producer_run.number

    @property
    def unsettled_count(self) -> int:
        """The number of batches whose outcome the application does not have yet."""
        return sum(not batch.acked for batch in self._queue.batches)

    @property
    def is_idle(self) -> bool:
        """Whether there is no batch to send or to wait for."""
        return not self._queue.batches

    @property
    def in_flight_count(self) -> int:
        """The number of send attempts of the current producer run without an answer."""
        return self._queue.producer_run.in_flight_count

    @property
    def has_room(self) -> bool:
        """Whether a batch that is enqueued now would be sent at once, or as soon as a stream is up."""
        queue = self._queue
        run = queue.producer_run
        return len(queue.batches) < run.window_batches and queue.size_bytes < run.window_bytes and self._ended is None

    def has_batch(self, batch_id: int) -> bool:
        """Whether the batch may still be sent: it is not settled, or it was acknowledged before an earlier batch."""
        return batch_id in [batch.batch_id for batch in self._queue.batches]

    @property
    def ended(self) -> ReplyError | None:
        """Why the producer has ended; None: it has not."""
        return self._ended

    @property
    def wake_at_us(self) -> int | None:
        """The latest time for the next `Timer`, in µs; None: not needed."""
        master, run, batches = self._master, self._queue.producer_run, self._queue.batches
        if not batches:
            return None
        wake_at_us = batches[0].deadline_us
        ask_at_us = master.ask_at_us(run.silence_due_us)
        if ask_at_us is not None and ask_at_us < wake_at_us:
            wake_at_us = ask_at_us
        if not run.alive and master.awaits_retry:
            wake_at_us = min(wake_at_us, master.retry_at_us)
        return wake_at_us

    # ---- the step ------------------------------------------------------------------------------------

    def step(self, event: Event, now_us: int, jitter: float = 0.5) -> list[Effect]:
        """Take in one event, and return the effects to carry out, in their order.

        Args:
            event: The event.
            now_us: The monotonic time in µs; never less than at an earlier step.
            jitter: A random number in [0, 1), for the time until a retry.
        """
        effects: list[Effect] = []
        match event:
            case Enqueue():
                self._enqueue(event, now_us, effects)
            case Replied():
                self._reply(event, now_us, jitter, effects)
            case Connected():
                self._connected(event)
            case Disconnected():
                self._disconnected(event, now_us, jitter)
            case Resolved():
                self._resolved(event, now_us, jitter)
            case RouteKnown():
                self._learn(event.route, now_us)
            case Abandon():
                closed = ReplyError(DeadlineExceededError.number, "closed before it was settled")
                self._end(event.error or closed, effects)
            case Timer():
                pass
        give_up_overdue(self._queue, now_us, self._config.delivery_timeout_ms, effects)
        if self._queue.ended is not None and self._ended is None:
            self._end(self._queue.ended, effects)
        if self._queue.batches:
            self._go_on(now_us, effects)
        return effects

    def _go_on(self, now_us: int, effects: list[Effect]) -> None:
        """Ask, connect and send, as far as that is possible now."""
        master, run = self._master, self._queue.producer_run
        silence_due_us = run.silence_due_us
        ask_at_us = master.ask_at_us(silence_due_us)
        if ask_at_us is not None and now_us >= ask_at_us:
            is_silence = ask_at_us == silence_due_us
            if not (is_silence and run.excuse(now_us, self._reply_due_us(now_us))):
                effects.append(master.ask())
        if master.stream is None:
            opening = master.connect(now_us)
            if opening is not None:
                effects.append(opening)
        self._send(now_us, effects)

    def _send(self, now_us: int, effects: list[Effect]) -> None:
        master, queue, run = self._master, self._queue, self._queue.producer_run
        route, stream = master.route, master.stream
        if route is None or stream is None or master.is_stale:
            return
        epoch = queue.batches[0].epoch
        if not run.alive or run.epoch != epoch:
            if now_us < master.retry_at_us:
                return
            run.start(epoch, queue.batches)
        while run.sent_count < len(queue.batches):
            # Rule `client-resend-order` (GAP): batches are resent in the order in which they were enqueued. Without it:
            # 1. P sends a with sequence 7, then b with sequence 8. The stream breaks before the master has either.
            # 2. P resends b first, then a.
            # 3. The master expects sequence 7. It refuses b as a gap, although P has lost nothing.
            batch = queue.batches[run.sent_count]
            # The next producer epoch begins with its own producer run, when all batches of this one are settled.
            if batch.epoch != epoch or not run.has_room(batch):
                return
            if not run.in_flight_count:
                run.expect_reply(self._reply_due_us(now_us))
            effects.append(run.begin_send_attempt(batch, stream, route.epoch))

    def _reply_due_us(self, now_us: int) -> int:
        return now_us + self._config.reply_timeout_ms * US_PER_MS

    # ---- events --------------------------------------------------------------------------------------

    def _enqueue(self, event: Enqueue, now_us: int, effects: list[Effect]) -> None:
        assert event.message_count > 0
        if self._ended is not None:
            effects.append(Settled(event.batch_id, Outcome.FAILED, error=self._ended))
            return
        assert len(self._queue.batches) < self._config.queue_batches_max, "the caller holds back at has_room"
        # Rule `client-counts-the-wait` (LATE): the deadline counts from when the application gave the message. Without
        # it:
        # 1. No broker answers, and 16 batches fill the window. The messages of a hundred more wait behind them.
        # 2. At its deadline the window is given up, and the next 16 batches are cut.
        # 3. Their deadline begins only now. The last message is settled after six times the delivery timeout.
        self._queue.append(event, now_us - event.waited_us + self._config.delivery_timeout_ms * US_PER_MS)

    def _connected(self, event: Connected) -> None:
        if self._master.connected(event):
            run = self._queue.producer_run
            run.alive = False
            run.window_batches = max(1, min(self._config.window_batches_max, event.window_batches))
            run.window_bytes = max(1, min(self._config.window_bytes_max, event.window_bytes))

    def _disconnected(self, event: Disconnected, now_us: int, jitter: float) -> None:
        queue = self._queue
        if event.stream is not None:
            queue.producer_run.end_stream(event.stream, queue.batches)
        if self._master.disconnected(event, now_us, jitter, has_work=bool(queue.batches)):
            queue.producer_run.alive = False

    def _resolved(self, event: Resolved, now_us: int, jitter: float) -> None:
        if self._master.resolved(event.route, now_us, jitter):
            self._queue.producer_run.alive = False
        else:
            self._queue.producer_run.expect_reply(self._reply_due_us(now_us))

    def _learn(self, route: Route, now_us: int) -> None:
        if self._master.learn(route, now_us):
            self._queue.producer_run.alive = False

    # ---- replies -------------------------------------------------------------------------------------

    def _reply(self, event: Replied, now_us: int, jitter: float, effects: list[Effect]) -> None:
        batch = self._queue.find(event)
        if event.error is not None:
            self._refuse(batch, event, event.error, now_us, jitter, effects)
        elif batch is not None:
            self._acknowledge(batch, event, now_us, effects)
        if event.route is not None:
            self._learn(event.route, now_us)

    def _acknowledge(self, batch: Batch, event: Replied, now_us: int, effects: list[Effect]) -> None:
        run = self._queue.producer_run
        if run.end_send_attempt(batch, event.producer_run, proven=True) and event.producer_run == run.number:
            run.expect_reply(self._reply_due_us(now_us))
        self._master.accepted()
        if not batch.acked:
            # A send attempt of an earlier producer run may be in front of this one, in an UNSETTLED segment, where no
            # broker can see it yet.
            is_final = event.offset_is_final or event.producer_run == batch.first_producer_run
            effects.append(
                Settled(
                    batch.batch_id,
                    Outcome.OK,
                    event.offset,
                    event.append_time_ms,
                    offset_is_final=is_final,
                    due_time_ms=event.due_time_ms,
                )
            )
            self._queue.acknowledge(batch)

    def _refuse(
        self,
        batch: Batch | None,
        event: Replied,
        error: ReplyError,
        now_us: int,
        jitter: float,
        effects: list[Effect],
    ) -> None:
        queue = self._queue
        was_open = batch is not None and event.producer_run in batch.open_producer_runs
        queue.end_send_attempts(event, error)
        if was_open and error.number == ProducerFencedError.number:
            # Our own newer producer epoch is not the cause: we send nothing in it before this batch is settled.
            self._end(error, effects)
            return
        is_current = event.producer_run == queue.producer_run.number
        if is_current and queue.producer_run.alive:
            queue.producer_run.alive = False
            self._master.refused(error, now_us, jitter)
        if batch is None or batch.acked or not was_open:
            return
        batch.last_error = error
        if error.retriable or not is_current:
            return  # if an error of an earlier producer run is final, the current one gets it too
        if error.number != SequenceGapError.number:
            give_up(queue, batch, error, effects)
        elif batch is queue.batches[0]:
            answer_gap(queue, error, effects)
        # else the gap only means that the broker did not take an earlier batch

    def _end(self, error: ReplyError, effects: list[Effect]) -> None:
        give_up_all(self._queue, error, effects)
        if self._ended is None:
            self._ended = error
            effects.append(Ended(error))
