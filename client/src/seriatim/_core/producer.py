"""Order and outcomes of one producer's batches on one partition. Pure: no I/O, no clock, no randomness.

This is where the client keeps its half of the promise: batches stand in the log in the order in which they were
enqueued, none of them twice, and what the application is told of a batch is true over *all* its attempts. Bytes,
headers, connections and timers belong to the caller; here a batch is an id, a count and a size.

How to drive it
---------------
`step(event, now_us, jitter)` is the only method that changes state. It returns what must be done, in this order.
After each step, call again with `Timer()` no later than `wake_at_us` (None: not needed).

events (all frozen, all comparable)
    Enqueue(batch_id, message_count, size_bytes)    a new batch, behind all earlier ones; `batch_id` is the caller's
    Connected(address, stream, window_batches, window_bytes)
                                                    an append stream to `address` is up; `stream` is a number that the
                                                    caller never gives to another stream
    Disconnected(address, stream)                   that stream is over (no reply of it comes any more), or, with
                                                    stream None, it could not be opened
    Replied(producer_epoch, base_sequence, run, offset, append_time_ms, error, route)
                                                    an AppendReply; `error` is None for ok
    Resolved(route)                                 the answer to `Resolve`; None: nobody answered in time
    RouteKnown(route)                               a route learned in any other way
    Timer()                                         nothing but time has passed
    Abandon()                                       the application closes: settle everything now

effects
    OpenStream(address)                             answer with Connected (at once, if it is up) or Disconnected
    Send(stream, batch_id, message_count, producer_epoch, base_sequence, run, starts_run, route_epoch)
                                                    one attempt; of one stream, in the order given
    Resolve(failed_segment, known_epoch, avoid_address)
                                                    ask where the partition's master is; answer with Resolved, always.
                                                    With `failed_segment` it is a complaint, to any broker but
                                                    `avoid_address`
    Settled(batch_id, outcome, offset, append_time_ms, error)
                                                    the application may be told; once for each batch
    Ended(error)                                    the producer is over (fenced, or abandoned): nothing more is sent

How it decides
--------------
*Attempts.* Each Send is an attempt, named by its run. It ends as ok, as proven not stored (an error whose class says
`outcome_known`: refused or truncated), or as unknown (any other error, or its stream broke). Until then it is open. A
batch with an open or an unknown attempt is *doubtful*; only one that is not may be called `failed`.

*A refusal ends what stood behind it in the run.* The broker takes nothing of a run after a batch of it that it
refused, and what it truncated it truncated with everything above. So a proof for batch b in run r is one for each
later batch in run r, and needs no reply of its own. It follows that behind a batch that is not doubtful no batch is:
each of their attempts stood behind one of its attempts. (`_give_up` asserts this.)

*Runs.* After a refusal, a broken stream or a move, the next run begins with the oldest batch that is not settled, and
all others follow in order before any new one. A batch that was acknowledged while an earlier one was not stays in the
row and goes along, for a broker that has lost the table would find a gap in its place.

*Late answers.* `ok` of any attempt, of whatever run, settles the batch. An error ends only the attempt it names;
whether a new run is needed is decided by errors of the current run alone. Replies to numbers that a batch no longer
has are ignored: after it is numbered anew, only runs from `first_run` on speak of it.

*Giving up*, at the delivery deadline or on an error that no retry can mend:
    failed   if the batch is not doubtful. It and those behind it give back their sequences: the next one takes its
             number. They were never stored, so under their new numbers they are new batches, built anew.
    unknown  if it is. Nobody can say which sequence the broker has, so the producer goes on under the next epoch, from
             sequence 0. Behind it, batches that are doubtful too are settled as unknown with it: their numbers may be
             refused for ever, and under other numbers they might be stored twice. The others, proven not stored, are
             numbered anew in the new epoch, in their order. Order holds: what still arrives of the old epoch after
             the first batch of the new one is refused by its epoch; what arrived before it stands before it.
Batches of two epochs are never in flight together: those in front are settled first, or a batch of the old epoch
would be refused as fenced by our own new one.

*A sequence gap at the head of a run* means that the broker no longer knows our last batch: after idle days, or after
a switch with an acknowledgement level that promises nothing. If no batch is doubtful, all are numbered anew in the
next epoch and sent again; else the doubtful ones are given up as unknown.

*Complaints.* If the stream to the master breaks or cannot be opened while there is work, or the oldest attempt has no
reply for `reply_timeout_ms`, another broker is told (`Resolve` with `failed_segment`); its answer names the new
master. Meanwhile the old address is tried again and late replies are still taken: being wrong costs a switch, never
order. Routes with an epoch below the known one are ignored.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final

from seriatim_api.errors import (
    CATALOGUE,
    DeadlineExceededError,
    ProducerFencedError,
    RoutingError,
    SequenceGapError,
    UnavailableError,
)

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

_US_PER_MS: Final = 1000
_NEVER_SENT: Final = 0
_COMPLAIN_AFTER_FAILURES: Final = 3
"""Refusals in a row by a master that does not know where its segment went, after which the question is a complaint."""


# ---- state ----------------------------------------------------------------------------------------------


class _Batch(State):
    """A batch that is not settled, or was acknowledged out of its turn."""

    __slots__ = (
        "acked",
        "base_sequence",
        "batch_id",
        "deadline_us",
        "epoch",
        "first_run",
        "last_error",
        "message_count",
        "open_runs",
        "size_bytes",
        "unknown_end",
    )

    def __init__(self, event: Enqueue, deadline_us: int, epoch: int, base_sequence: int) -> None:
        self.batch_id = event.batch_id
        self.message_count = event.message_count
        self.size_bytes = event.size_bytes
        self.deadline_us = deadline_us
        self.epoch = epoch
        self.base_sequence = base_sequence
        self.first_run = _NEVER_SENT
        self.open_runs: tuple[int, ...] = ()
        self.unknown_end = False
        self.acked = False
        self.last_error: ReplyError | None = None

    @property
    def doubtful(self) -> bool:
        """Whether some attempt may have stored it, for all we know."""
        return self.unknown_end or bool(self.open_runs)

    def end_attempt(self, run: int, *, proven: bool) -> None:
        """Note that the attempt of `run` has ended, if it is open."""
        if run in self.open_runs:
            self.open_runs = tuple(other for other in self.open_runs if other != run)
            self.unknown_end = self.unknown_end or not proven

    def renumber(self, epoch: int, base_sequence: int) -> None:
        """Take another number. Only a batch that is nowhere may: under the new number it is a new batch."""
        assert not self.doubtful
        assert not self.acked
        self.epoch = epoch
        self.base_sequence = base_sequence
        self.first_run = _NEVER_SENT


class PartitionProducer(State):
    """Sends the batches of one producer id to one partition, in order. See the module's docstring."""

    __slots__ = (
        "_batches",
        "_broken",
        "_complain_at_us",
        "_config",
        "_ended",
        "_failures",
        "_in_flight_bytes",
        "_in_flight_count",
        "_next_sequence",
        "_opening",
        "_reply_due_us",
        "_resolving",
        "_retry_at_us",
        "_route_stale",
        "_run_alive",
        "_run_epoch",
        "_run_streams",
        "_sent_count",
        "_stream",
        "_window_batches",
        "_window_bytes",
        "epoch",
        "route",
        "run",
    )

    def __init__(self, config: ProducerConfig, route: Route | None = None) -> None:
        self._config = config
        self.route = route
        self.epoch = 0
        self.run = 0
        self._next_sequence = 0
        self._batches: deque[_Batch] = deque()
        self._sent_count = 0  # how many batches at the front went out in the current run
        self._in_flight_count = 0  # of those, not answered in this run
        self._in_flight_bytes = 0
        self._run_alive = False  # whether the current run may carry more
        self._run_epoch = 0  # the epoch of all its batches
        self._run_streams: dict[int, int] = {}  # runs that may have open attempts
        self._stream: int | None = None
        self._window_batches = config.window_batches_max
        self._window_bytes = config.window_bytes_max
        self._opening = False
        self._resolving = False
        self._broken = False  # the master's stream broke, or would not open, since it last was up
        self._route_stale = False  # the master says it is none
        self._failures = 0  # in a row, without any ok
        self._retry_at_us = 0  # nothing is opened or sent before
        self._complain_at_us = 0  # nobody is asked before
        self._reply_due_us = 0
        self._ended: ReplyError | None = None

    # ---- what the caller may look at -----------------------------------------------------------------

    @property
    def stream(self) -> int | None:
        """The stream that attempts go out on, if one is up."""
        return self._stream

    @property
    def unsettled_count(self) -> int:
        """Batches that the application has not been told of."""
        return sum(not batch.acked for batch in self._batches)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._batches

    @property
    def in_flight_count(self) -> int:
        """Attempts of the current run without an answer."""
        return self._in_flight_count

    @property
    def has_room(self) -> bool:
        """Whether a batch enqueued now would be sent now, or as soon as there is a stream."""
        return (
            len(self._batches) < self._window_batches
            and sum(batch.size_bytes for batch in self._batches) < self._window_bytes
            and self._ended is None
        )

    def has_batch(self, batch_id: int) -> bool:
        """Whether the batch may still go out: it is not settled, or was acknowledged before an earlier one."""
        return any(batch.batch_id == batch_id for batch in self._batches)

    @property
    def ended(self) -> ReplyError | None:
        """Why the producer is over, if it is."""
        return self._ended

    @property
    def wake_at_us(self) -> int | None:
        """When `Timer` is wanted at the latest."""
        if not self._batches:
            return None
        times = [self._next_deadline_us()]
        if not self._resolving:
            if self.route is None or self._broken or self._route_stale:
                times.append(max(self._complain_at_us, self._retry_at_us if self.route is None else 0))
            elif self._run_alive and self._in_flight_count:
                times.append(self._reply_due_us)
        if self.route is not None and not self._opening and not self._run_alive and not self._route_stale:
            times.append(self._retry_at_us)
        return min(times)

    # ---- the step ------------------------------------------------------------------------------------

    def step(self, event: Event, now_us: int, jitter: float = 0.5) -> list[Effect]:
        """Advance by one event and say what must be done, in this order.

        Args:
            event: What happened.
            now_us: Monotonic time; never less than at an earlier step.
            jitter: Random number in [0, 1), for the time until a retry.
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
                self._take_route(event.route, now_us)
            case Abandon():
                self._end(ReplyError(DeadlineExceededError.number, "closed before it was settled"), effects)
            case Timer():
                pass
        self._expire(now_us, effects)
        if self._batches:
            self._ask(now_us, effects)
            self._connect(now_us, effects)
            self._send(now_us, effects)
        return effects

    # ---- events --------------------------------------------------------------------------------------

    def _enqueue(self, event: Enqueue, now_us: int, effects: list[Effect]) -> None:
        assert event.message_count > 0
        if self._ended is not None:
            effects.append(Settled(event.batch_id, Outcome.FAILED, error=self._ended))
            return
        assert len(self._batches) < self._config.queue_batches_max, "the caller holds back at has_room"
        deadline_us = now_us + self._config.delivery_timeout_ms * _US_PER_MS
        self._batches.append(_Batch(event, deadline_us, self.epoch, self._next_sequence))
        self._next_sequence += event.message_count

    def _connected(self, event: Connected) -> None:
        if self.route is None or event.address != self.route.master_address or self._stream is not None:
            return
        self._stream = event.stream
        self._window_batches = max(1, min(self._config.window_batches_max, event.window_batches))
        self._window_bytes = max(1, min(self._config.window_bytes_max, event.window_bytes))
        self._opening = self._broken = self._run_alive = False

    def _disconnected(self, event: Disconnected, now_us: int, jitter: float) -> None:
        if event.stream is not None:
            self._end_stream(event.stream)
        if self.route is None or event.address != self.route.master_address:
            return
        would_not_open = event.stream is None and self._opening
        if would_not_open or (event.stream is not None and event.stream == self._stream):
            self._stream = None
            self._opening = self._run_alive = False
            self._broken = bool(self._batches)
            self._back_off(now_us, jitter)

    def _end_stream(self, stream: int) -> None:
        """No reply comes from there any more: its open attempts have an unknown end."""
        ended = [run for run, used in self._run_streams.items() if used == stream]
        for run in ended:
            del self._run_streams[run]
            if run == self.run:
                self._in_flight_count = self._in_flight_bytes = 0
            for batch in self._batches:
                batch.end_attempt(run, proven=False)

    def _resolved(self, event: Resolved, now_us: int, jitter: float) -> None:
        self._resolving = False
        moved = event.route is not None and self._take_route(event.route, now_us)
        if not moved:
            # Nothing new: give the master another chance before asking again.
            self._route_stale = False
            self._complain_at_us = now_us + self._backoff_us(jitter)
            self._failures += 1
            self._reply_due_us = now_us + self._config.reply_timeout_ms * _US_PER_MS

    def _take_route(self, route: Route, now_us: int) -> bool:
        """Adopt a route that is newer than the known one; whether the master is another (or its segment is)."""
        known = self.route
        if known is not None and route.epoch < known.epoch:
            return False
        if not route.master_address:
            return False
        if known is not None and (route.segment, route.master_broker) == (known.segment, known.master_broker):
            if route.master_address == known.master_address or self._stream is not None:
                # The same place as of a later epoch; attempts under way stay what they are.
                self.route = replace(route, master_address=known.master_address)
                return False
        elif known is not None and route.epoch == known.epoch:
            return False  # two places in one epoch cannot be; keep to the first
        if known is None or route.master_address != known.master_address:
            self._stream = None
            self._opening = False
        if known is None or route.epoch > known.epoch:
            self._failures = 0
        self.route = route
        self._broken = self._route_stale = self._run_alive = False
        self._retry_at_us = self._complain_at_us = now_us
        return True

    # ---- replies -------------------------------------------------------------------------------------

    def _reply(self, event: Replied, now_us: int, jitter: float, effects: list[Effect]) -> None:
        batch = self._find(event)
        if event.error is None:
            if batch is not None:
                self._acknowledge(batch, event, now_us, effects)
        else:
            self._refuse(batch, event, event.error, now_us, jitter, effects)
        if event.route is not None:
            self._take_route(event.route, now_us)

    def _find(self, event: Replied) -> _Batch | None:
        """The batch that the reply speaks of, if it still has that number."""
        for batch in self._batches:
            if batch.base_sequence == event.base_sequence and batch.epoch == event.producer_epoch:
                return batch if _NEVER_SENT < batch.first_run <= event.run else None
        return None

    def _acknowledge(self, batch: _Batch, event: Replied, now_us: int, effects: list[Effect]) -> None:
        if event.run == self.run and event.run in batch.open_runs:
            self._in_flight_count -= 1
            self._in_flight_bytes -= batch.size_bytes
            self._reply_due_us = now_us + self._config.reply_timeout_ms * _US_PER_MS
        batch.end_attempt(event.run, proven=True)
        self._failures = 0
        if batch.acked:
            return
        batch.acked = True
        effects.append(Settled(batch.batch_id, Outcome.OK, event.offset, event.append_time_ms))
        self._drop_acked()

    def _drop_acked(self) -> None:
        """Forget acknowledged batches at the front; behind one that is not, they may have to go out again."""
        while self._batches and self._batches[0].acked:
            self._forget(0)

    def _refuse(
        self,
        batch: _Batch | None,
        event: Replied,
        error: ReplyError,
        now_us: int,
        jitter: float,
        effects: list[Effect],
    ) -> None:
        was_open = batch is not None and event.run in batch.open_runs
        self._end_attempts(event, error)
        if was_open and error.number == ProducerFencedError.number:
            # Not by ourselves: of our own newer epoch nothing is sent before this batch is settled.
            self._end(error, effects)
            return
        if event.run == self.run and self._run_alive:
            self._end_run(error, now_us, jitter)
        if batch is None or batch.acked or not was_open:
            return
        batch.last_error = error
        if error.retriable or event.run != self.run:
            return  # if an earlier run was refused for good, the current one will say so itself
        if error.number != SequenceGapError.number:
            self._give_up(batch, error, effects)
        elif batch is self._batches[0]:
            self._answer_gap(batch, error, effects)
        # else a gap only says that one in front was not taken

    def _end_attempts(self, event: Replied, error: ReplyError) -> None:
        """End the named attempt; a proof holds for all that stood behind it in the run."""
        for batch in self._batches:
            if batch.epoch != event.producer_epoch:
                continue
            named = batch.base_sequence == event.base_sequence
            behind = batch.base_sequence > event.base_sequence and error.outcome_known
            if named or behind:
                if event.run == self.run and event.run in batch.open_runs:
                    self._in_flight_count -= 1
                    self._in_flight_bytes -= batch.size_bytes
                batch.end_attempt(event.run, proven=error.outcome_known)

    def _end_run(self, error: ReplyError, now_us: int, jitter: float) -> None:
        """The current run carries nothing more; say when and where the next may begin."""
        self._run_alive = False
        self._back_off(now_us, jitter)
        self._retry_at_us = max(self._retry_at_us, now_us + error.retry_after_ms * _US_PER_MS)
        if error.retriable and issubclass(CATALOGUE[error.number], (RoutingError, UnavailableError)):
            self._route_stale = True
            self._complain_at_us = now_us

    def _answer_gap(self, batch: _Batch, error: ReplyError, effects: list[Effect]) -> None:
        """The broker does not know our last batch: go on from 0 in the next epoch with what is surely nowhere."""
        if batch.doubtful or batch.base_sequence == 0:
            self._give_up(batch, error, effects)
        else:
            self._raise_epoch(0, error, effects)

    # ---- giving up -----------------------------------------------------------------------------------

    def _next_deadline_us(self) -> int:
        assert not self._batches[0].acked
        return self._batches[0].deadline_us

    def _expire(self, now_us: int, effects: list[Effect]) -> None:
        # Deadlines follow the order of the queue: where the first has time, all have.
        while self._batches and self._next_deadline_us() <= now_us:
            batch = self._batches[0]
            last = f": {batch.last_error.message}" if batch.last_error else ""
            message = f"not settled within {self._config.delivery_timeout_ms} ms{last}"
            self._give_up(batch, ReplyError(DeadlineExceededError.number, message), effects)

    def _give_up(self, batch: _Batch, error: ReplyError, effects: list[Effect]) -> None:
        at = self._batches.index(batch)
        behind = list(self._batches)[at + 1 :]
        # One behind it is stored: then so is this one, whatever was answered.
        doubtful = batch.doubtful or any(other.acked for other in behind)
        if doubtful:
            self._raise_epoch(at, error, effects)
            return
        assert not any(other.doubtful for other in behind), "what stood behind a refused batch was refused"
        effects.append(Settled(batch.batch_id, Outcome.FAILED, error=error))
        sequence = batch.base_sequence
        self._forget(at)
        for other in behind:
            if other.epoch == batch.epoch:
                other.renumber(batch.epoch, sequence)
                sequence += other.message_count
        if batch.epoch == self.epoch:
            self._next_sequence = sequence
        self._drop_acked()

    def _raise_epoch(self, at: int, error: ReplyError, effects: list[Effect]) -> None:
        """From position `at` on: settle the doubtful as unknown, and number the others from 0 in the next epoch."""
        self.epoch += 1
        self._run_alive = False
        sequence = 0
        for batch in list(self._batches)[at:]:
            if batch.acked:
                self._forget(self._batches.index(batch))
            elif batch.doubtful:
                effects.append(Settled(batch.batch_id, Outcome.UNKNOWN, error=batch.last_error or error))
                self._forget(self._batches.index(batch))
            else:
                batch.renumber(self.epoch, sequence)
                sequence += batch.message_count
        self._next_sequence = sequence
        self._drop_acked()

    def _end(self, error: ReplyError, effects: list[Effect]) -> None:
        for batch in self._batches:
            if not batch.acked:
                outcome = Outcome.UNKNOWN if batch.doubtful else Outcome.FAILED
                effects.append(Settled(batch.batch_id, outcome, error=error))
        self._batches.clear()
        self._sent_count = self._in_flight_count = self._in_flight_bytes = 0
        self._run_alive = False
        if self._ended is None:
            self._ended = error
            effects.append(Ended(error))

    def _forget(self, at: int) -> None:
        batch = self._batches[at]
        if self.run in batch.open_runs:
            self._in_flight_count -= 1
            self._in_flight_bytes -= batch.size_bytes
        del self._batches[at]
        if at < self._sent_count:
            self._sent_count -= 1

    # ---- asking, connecting, sending -----------------------------------------------------------------

    def _ask(self, now_us: int, effects: list[Effect]) -> None:
        if self._resolving:
            return
        route = self.route
        if route is None:
            if now_us >= max(self._retry_at_us, self._complain_at_us):
                self._resolving = True
                effects.append(Resolve(None, 0, None))
            return
        complain = self._broken or (self._route_stale and self._failures >= _COMPLAIN_AFTER_FAILURES)
        overdue = self._run_alive and self._in_flight_count > 0 and now_us >= self._reply_due_us
        if overdue or ((complain or self._route_stale) and now_us >= self._complain_at_us):
            self._resolving = True
            if complain or overdue:
                effects.append(Resolve(route.segment, route.epoch, route.master_address))
            else:
                effects.append(Resolve(None, route.epoch, None))

    def _connect(self, now_us: int, effects: list[Effect]) -> None:
        if self.route is not None and self._stream is None and not self._opening and now_us >= self._retry_at_us:
            self._opening = True
            effects.append(OpenStream(self.route.master_address))

    def _send(self, now_us: int, effects: list[Effect]) -> None:
        if self.route is None or self._stream is None or self._route_stale:
            return
        epoch = self._batches[0].epoch
        if not self._run_alive or self._run_epoch != epoch:
            if now_us < self._retry_at_us:
                return
            self._start_run(epoch)
        while self._sent_count < len(self._batches) and self._window_is_open():
            batch = self._batches[self._sent_count]
            if batch.epoch != epoch:
                return  # the next epoch begins when all of this one is settled, with a run of its own
            if self._in_flight_count == 0:
                self._reply_due_us = now_us + self._config.reply_timeout_ms * _US_PER_MS
            effects.append(self._attempt(batch, self._stream, self.route.epoch))

    def _window_is_open(self) -> bool:
        if self._in_flight_count == 0:
            return True
        size_bytes = self._batches[self._sent_count].size_bytes
        return self._in_flight_count < self._window_batches and self._in_flight_bytes + size_bytes <= self._window_bytes

    def _start_run(self, epoch: int) -> None:
        used = {run for batch in self._batches for run in batch.open_runs}
        self._run_streams = {run: on for run, on in self._run_streams.items() if run in used}
        self.run += 1
        self._run_alive = True
        self._run_epoch = epoch
        self._sent_count = self._in_flight_count = self._in_flight_bytes = 0

    def _attempt(self, batch: _Batch, stream: int, route_epoch: int) -> Send:
        starts_run = self.run not in self._run_streams
        self._run_streams[self.run] = stream
        if batch.first_run == _NEVER_SENT:
            batch.first_run = self.run
        assert self.run not in batch.open_runs
        batch.open_runs = (*batch.open_runs, self.run)
        self._sent_count += 1
        self._in_flight_count += 1
        self._in_flight_bytes += batch.size_bytes
        return Send(
            stream,
            batch.batch_id,
            batch.message_count,
            batch.epoch,
            batch.base_sequence,
            self.run,
            starts_run,
            route_epoch,
        )

    # ---- time ----------------------------------------------------------------------------------------

    def _backoff_us(self, jitter: float) -> int:
        assert 0 <= jitter < 1
        full_ms = min(self._config.backoff_ms_max, self._config.backoff_ms_min << min(self._failures, 16))
        return int(full_ms * _US_PER_MS * (1 + jitter) / 2)

    def _back_off(self, now_us: int, jitter: float) -> None:
        self._retry_at_us = now_us + self._backoff_us(jitter)
        self._failures += 1
