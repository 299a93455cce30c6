"""The driver of a broker's core: it takes events one at a time, and carries out the effects in the core's order.

`feed` is synchronous and may be called from anywhere in the event loop. If a servicer feeds a batch, the batch is in
the next write and on the slave's stream within the same turn. What leaves goes before what is written. So a write is
submitted one turn later, and with it all others of that turn, if anything leaves, or if writes came faster than the
disk took them. Otherwise it is submitted at once (a slave that writes one batch answers nothing before).

Nothing here decides anything. A step that fails is a bug of the product, and ends the process. So does every other
failure in a callback of the event loop: a submit, a timer, a report that writes are durable. Otherwise the loop would
log it and continue. Then writes would never be reported, and the core would wait for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, get_args

import structlog
from seriatim_api.errors import CorruptionError, NotServingError, SeriatimError
from seriatim_api.ids import PartitionId

from ...core.state.partition import Partition
from ...core.values import delayed_messages as dm
from ...core.values import effects as fx
from ...core.values.events import Event, ForwardsDone, LogRead, Moment, Persisted, StagedFetched, Tick
from ...core.values.log import Write, all_may_wait
from ...core.values.owners import ReadOwner
from ...counters.broker import Counters
from ...interfaces.bodies import Bodies
from ...interfaces.clock import Clock
from ...interfaces.storage import Storage
from . import retry_cache
from .coordinator_requests import CoordinatorRequests
from .delayed_reads import DelayedReads
from .keyed_reads import KeyedReads
from .links import Links

READS_IN_FLIGHT_MAX = 32
"""Reads of the log at once; others wait in order. Each is at most a delivery of 2 MiB or a copy of 1 MiB."""

SLICE_US = 4_000
"""Posted events are stepped for this long, and then everything else in the event loop has its turn. So a thousand
switches at once do not hold up a heartbeat or a batch of another partition."""

SLOW_STEP_US = 50_000
"""A step that took longer is logged: half of a heartbeat's period."""

STORY_EVENTS = 20
"""How many events the log line names when a step fails."""

ERROR_NOTES = frozenset({"older_disk", "disk_contradicts_chain"})
"""Notes that are logged as errors, because acknowledged messages are missing from the order. The others say what a
broker does."""

_log = structlog.get_logger(__name__)

Reply = (
    fx.AppendAccepted
    | fx.AppendRefused
    | fx.Resolved
    | fx.ConsumerResolved
    | fx.ConsumerGroupDescribed
    | fx.ConsumerGroupOperated
    | fx.KeysListed
    | fx.KeysOperated
    | fx.LogsListed
    | fx.LedListed
    | fx.CursorsListed
    | fx.CopiesTold
    | fx.RangeRead
    | fx.PartitionSurveyed
    | fx.CarriedOut
    | dm.DelayedCancelled
    | dm.FiringListed
    | dm.CompleteListed
    | dm.DelayedFiltered
    | dm.PendingFound
)
Deliver = Callable[[int, fx.DeliveryEvent], None]

_Reading = (
    fx.ReadLog
    | fx.ReadKeys
    | fx.ReadRows
    | fx.ReadDeadLetter
    | dm.ReadDue
    | dm.ReadPending
    | dm.ReadVolley
    | dm.FindDelayed
)


async def ask(driver: Driver, event_of: Callable[[int], Event], deadline_s: float) -> Reply:
    """Feed an event that has one reply, and wait for the reply.

    Raises:
        TimeoutError: It did not come in time.
    """
    answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    request = driver.new_request(lambda reply: None if answer.done() else answer.set_result(reply))
    try:
        driver.feed(event_of(request))
        async with asyncio.timeout(deadline_s):
            return await answer
    finally:
        driver.forget_request(request)


class Core(Protocol):
    """`core.broker.BrokerCore`, or a script in tests."""

    @property
    def partitions(self) -> Mapping[PartitionId, Partition]:
        """The partitions of which this disk has something."""

    @property
    def has_delayed(self) -> bool:
        """Whether a log here has delayed batches; perhaps all of them are fired."""

    def start(self, now: Moment) -> list[fx.Effect]:
        """Start. Returns the first effects."""

    def step(self, event: Event, now: Moment) -> list[fx.Effect]:
        """Take one event. Returns its effects."""

    def next_wake_us(self) -> int | None:
        """When to feed a `Tick`, on the monotonic clock."""


class Driver:
    """Runs one core.

    Args:
        core: Not started yet.
        storage: Recovered already.
        clock: This process's clocks. The core is sent their times.
        counters: Take the counts.
        die: Called once with the error when a step fails. It must end the process. Nothing is fed afterwards.
        bodies: Looks into the bodies of batches.
        retry_cache_bytes_max: Memory for messages on which consumers failed, and that come again.
    """

    def __init__(
        self,
        core: Core,
        storage: Storage,
        clock: Clock,
        counters: Counters,
        die: Callable[[BaseException], None],
        bodies: Bodies,
        retry_cache_bytes_max: int = retry_cache.CACHE_BYTES_MAX,
    ) -> None:
        self._clock = clock
        self._core = core
        self._storage = storage
        self._counters = counters
        self._die = die
        self._loop = asyncio.get_running_loop()
        self._perform: dict[type, Callable[[Any], None]] = {}
        self._queue: deque[Event] = deque()
        self._story: deque[Event] = deque(maxlen=STORY_EVENTS)
        self._lane: deque[Event] = deque()
        self._slice_us = 0
        self._slice_is_counted = False
        self._stepping = False
        self._dead = False
        self._writes: list[Write] = []
        self._persists = 0  # how many are in the next submit
        self._submit_is_due = False
        self._leaves = False  # something was sent, replied or delivered since the outermost `feed` began
        self._joins = False  # the last submit was not alone
        self._token = 0
        self._tickets: deque[tuple[int, int, int | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = 0
        self._timer_due_us = 0
        self._waiting_reads: deque[_Reading] = deque()
        self._reads: dict[asyncio.Task[None], None] = {}
        self._requests: dict[int, Callable[[Reply], None]] = {}
        self._request = 0
        self._streams: dict[int, Deliver] = {}
        self._stream = 0
        self._notes: list[Callable[[fx.Note], None]] = []
        self._fetch: Callable[[fx.FetchStaged], Awaitable[StagedFetched]] | None = None
        self._fetches: dict[asyncio.Task[None], None] = {}
        self._forward: Callable[[fx.ForwardBatches], Awaitable[ForwardsDone]] | None = None
        self._keyed_reads = KeyedReads(
            storage, bodies, retry_cache_bytes_max=retry_cache_bytes_max, is_needed=self._serves_by_key
        )
        delayed_reads = DelayedReads(storage, bodies)
        self._fire: Callable[[dm.FireVolleys], Awaitable[dm.VolleysStored]] | None = None
        self._read_fired: Callable[[dm.ReadFired], Awaitable[dm.FiredRead]] | None = None
        self._carry_out: dict[type, Callable[[Any], Awaitable[Event]]] = {
            fx.ReadKeys: self._keyed_reads.keys,
            fx.ReadRows: self._keyed_reads.rows,
            fx.ReadDeadLetter: self._keyed_reads.dead_letter,
            dm.ReadDue: delayed_reads.due,
            dm.ReadPending: delayed_reads.pending,
            dm.ReadVolley: delayed_reads.volley,
            dm.FindDelayed: delayed_reads.find,
        }
        storage.on_durable(self._durable)

    # ---- life ----

    def start(self, links: Links, work: CoordinatorRequests) -> None:
        """Start the core, and carry out its first effects."""
        assert not self._perform, "started twice"
        self._perform = self._performers(links, work)
        self._step(None)
        self._drain()  # the events that the start itself caused

    @property
    def is_dead(self) -> bool:
        """Whether a step failed, or the driver was stopped. Nothing is done any more."""
        return self._dead

    async def stop(self) -> None:
        """Feed nothing more. Submitted writes stay with the storage. Replies that were not given are never given."""
        self._submit()
        self._dead = True
        if self._timer is not None:
            self._timer.cancel()
        for task in (*self._reads, *self._fetches):
            task.cancel()
        await asyncio.gather(*self._reads, *self._fetches, return_exceptions=True)
        self._keyed_reads.retry_cache.close()

    # ---- events ----

    def feed(self, event: Event) -> None:
        """Step the core with an event, and carry out its effects."""
        self._queue.append(event)
        if not self._stepping:
            self._drain()

    def post(self, event: Event) -> None:
        """Feed an event of a kind that comes in thousands. These events keep their order among themselves.

        It is fed at once unless the slice is used up. Otherwise it waits, and `feed` overtakes it.
        """
        if self._lane or self._slice_us > SLICE_US:
            self._lane.append(event)
        else:
            self._feed_counted(event)
        if not self._slice_is_counted:
            self._slice_is_counted = True
            self._loop.call_soon(self._next_slice)

    def _next_slice(self) -> None:
        with self._ending():
            self._slice_us = 0
            while self._lane and self._slice_us <= SLICE_US:
                self._feed_counted(self._lane.popleft())
            self._slice_is_counted = bool(self._lane)
            if self._lane:
                self._loop.call_soon(self._next_slice)

    def _feed_counted(self, event: Event) -> None:
        began_us = self._clock.monotonic_us()
        self.feed(event)
        self._slice_us += self._clock.monotonic_us() - began_us

    @property
    def posted_count(self) -> int:
        """Posted events that wait."""
        return len(self._lane)

    def _drain(self) -> None:
        self._leaves = False
        while self._queue and not self._dead:
            event = self._queue.popleft()
            self._story.append(event)
            self._step(event)
        try:
            self._submit_in_time()
            self._set_timer()
        except Exception as exc:
            self.fail(exc)

    def _step(self, event: Event | None) -> None:
        """One step with its effects; without an event, the start. Events that come meanwhile wait in the queue."""
        self._stepping = True
        began_us = self._clock.monotonic_us()
        now = Moment(began_us, self._clock.wall_ms())
        try:
            for effect in self._core.start(now) if event is None else self._core.step(event, now):
                self._perform[type(effect)](effect)
        except Exception as exc:
            self.fail(exc)
        finally:
            self._stepping = False
        took_us = self._clock.monotonic_us() - began_us
        self._counters.events += 1
        self._counters.step_s.observe(took_us / 1e6)
        if took_us > SLOW_STEP_US:
            kind = "start" if event is None else type(event).__name__
            _log.warning("slow_step", event_kind=kind, took_ms=took_us // 1000)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End the process if anything fails in a callback of the event loop."""
        try:
            yield
        except Exception as exc:
            if self._dead:
                raise  # this ends the process
            self.fail(exc)

    def fail(self, exc: BaseException) -> None:
        """End the process, because something that the core depends on failed in a way that no code expects."""
        was_dead, self._dead = self._dead, True
        if was_dead:
            return  # it ends, or was stopped, already
        try:
            story = [repr(event)[:500] for event in self._story]
            _log.critical("step_failed", error=repr(exc), story=story, exc_info=exc)
        except Exception as untold:
            _log.critical("step_failed", error=repr(exc), story=f"cannot be told: {untold!r}")
        finally:
            self._die(exc)

    def _end_run(self, effect: fx.EndMemberRun) -> None:
        """The core says that this member run has ended: nothing more is written, sent or answered."""
        self._dead = True
        _log.critical("run_over", error=str(effect.error))
        self._die(effect.error)

    def _set_timer(self) -> None:
        if self._dead:
            return
        wake_us = self._core.next_wake_us()
        if wake_us is None or (self._timer is not None and self._timer_us <= wake_us):
            return  # the earlier timer comes here again
        if self._timer is not None:
            self._timer.cancel()
        self._timer_us = wake_us
        now_us = self._clock.monotonic_us()
        self._timer_due_us = max(wake_us, now_us)
        self._timer = self._loop.call_later((self._timer_due_us - now_us) / 1e6, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._counters.loop_lag_s.observe(max(self._clock.monotonic_us() - self._timer_due_us, 0) / 1e6)
        self.feed(Tick())

    # ---- clients ----

    def new_request(self, reply: Callable[[Reply], None]) -> int:
        """A number for a request. `reply` is called once, with the reply."""
        self._request += 1
        self._requests[self._request] = reply
        return self._request

    def forget_request(self, request: int) -> None:
        """Drop the reply to this request, if it comes."""
        self._requests.pop(request, None)

    def new_stream(self, deliver: Deliver) -> int:
        """A number for a consumer's stream. `deliver` takes its deliveries."""
        self._stream += 1
        self._streams[self._stream] = deliver
        return self._stream

    def forget_stream(self, stream: int) -> None:
        """The stream has ended. What is still delivered to it is dropped."""
        self._streams.pop(stream, None)

    def on_note(self, take: Callable[[fx.Note], None]) -> None:
        """Also call `take` with each note of the core, which are events for humans."""
        self._notes.append(take)

    def on_fetch(self, fetch: Callable[[fx.FetchStaged], Awaitable[StagedFetched]]) -> None:
        """`fetch` gets staged batches, from this disk or other brokers. If it raises, the batch cannot be had now."""
        self._fetch = fetch

    def on_forward(
        self,
        forward: Callable[[fx.ForwardBatches], Awaitable[ForwardsDone]],
        fire: Callable[[dm.FireVolleys], Awaitable[dm.VolleysStored]],
        read_fired: Callable[[dm.ReadFired], Awaitable[dm.FiredRead]],
    ) -> None:
        """Have masters of partitions append: `forward` dead letters, `fire` delayed messages that are due.

        If one raises, nothing counts as stored. `read_fired` has other brokers read what was fired.
        """
        self._forward, self._fire, self._read_fired = forward, fire, read_fired

    # ---- effects ----

    def _forward_batches(self, effect: fx.ForwardBatches) -> None:
        error = NotServingError("this broker does not forward")
        failed = ForwardsDone(effect.partition, effect.consumer_group, effect.serial, 0, error)
        self._ask(self._forward, effect, failed, "dead_letters_not_forwarded")

    def _fire_volleys(self, effect: dm.FireVolleys) -> None:
        error = NotServingError("this broker does not fire")
        failed = dm.VolleysStored(effect.partition, effect.segment_no, effect.serial, 0, error)
        self._ask(self._fire, effect, failed, "delayed_messages_not_fired")

    def _look_for_fired(self, effect: dm.ReadFired) -> None:
        error = NotServingError("this broker does not read what was fired")
        failed = dm.FiredRead(effect.serial, effect.partition, effect.segment_no, (), 0, error)
        self._ask(self._read_fired, effect, failed, "fired_messages_not_read")

    def _fetch_staged(self, effect: fx.FetchStaged) -> None:
        failed = StagedFetched(effect.serial, effect.partition, None)
        self._ask(self._fetch, effect, failed, "staged_batch_not_fetched")

    def _ask(
        self, carry_out: Callable[[Any], Awaitable[Event]] | None, effect: Any, failed: Event, complaint: str
    ) -> None:
        """Have other brokers carry out an effect. If that raises, the core gets `failed`, and the log `complaint`."""

        async def carried_out() -> None:
            done = failed
            try:
                if carry_out is not None:
                    done = await carry_out(effect)
            except Exception as exc:  # data of other brokers and clients caused it: nothing is known to be done
                _log.exception(complaint, partition=effect.partition, error=str(exc))
            if not self._dead:
                self.feed(done)

        task = self._loop.create_task(carried_out(), name=type(effect).__name__)
        self._fetches[task] = None
        task.add_done_callback(self._fetches.pop)

    def _deliver(self, effect: fx.Deliver) -> None:
        deliver = self._streams.get(effect.stream)
        if deliver is not None:
            self._leaves = True
            deliver(effect.subscription, effect.event)

    def _performers(self, links: Links, work: CoordinatorRequests) -> dict[type, Callable[[Any], None]]:
        """The function for each kind of effect."""

        def send(effect: fx.Send) -> None:
            self._leaves = True
            links.send(effect.broker, effect.message)

        return {
            fx.Persist: lambda effect: self._persist(effect.token, effect.writes),
            fx.Send: send,
            fx.Deliver: self._deliver,
            fx.ReadLog: self._read_log,
            fx.ReadKeys: self._read,
            fx.ReadRows: self._read,
            fx.KeepMessage: self._keyed_reads.keep,
            fx.ReadDeadLetter: self._read,
            fx.ForwardBatches: self._forward_batches,
            dm.ReadDue: self._read,
            dm.ReadPending: self._read,
            dm.ReadVolley: self._read,
            dm.FindDelayed: self._read,
            dm.FireVolleys: self._fire_volleys,
            dm.ReadFired: self._look_for_fired,
            fx.ReadChain: work.read_chain,
            fx.WriteChain: work.write_chain,
            fx.ReadCertificate: work.read_certificate,
            fx.ReadCursor: work.read_cursor,
            fx.WriteCursor: work.write_cursor,
            fx.ReadWriter: work.read_writer,
            ReadOwner: work.read_owner,
            fx.FetchStaged: self._fetch_staged,
            fx.Connect: lambda effect: links.connect(effect.broker),
            fx.Disconnect: lambda effect: links.disconnect(effect.broker, effect.session),
            fx.Note: self._note,
            fx.EndMemberRun: self._end_run,
            **dict.fromkeys(get_args(Reply), self._reply),
        }

    def _reply(self, effect: Reply) -> None:
        reply = self._requests.pop(effect.request, None)
        if reply is not None:
            self._leaves = True
            reply(effect)

    def _note(self, note: fx.Note) -> None:
        self._counters.add(self._counters.notes, note.name)
        log = _log.error if note.name in ERROR_NOTES else _log.info
        log(note.name, partition=note.partition, **{name: _plain(value) for name, value in note.fields})
        for take in self._notes:
            take(note)

    # ---- disk ----

    def _persist(self, token: int, writes: Sequence[Write]) -> None:
        assert token > self._token, "tokens grow"
        assert writes, "an empty write is never reported as durable"
        self._persists += 1
        self._writes.extend(writes)
        self._token = token

    def is_overtaken(self, partition: PartitionId, epoch: int) -> bool:
        """Whether the core knows a chain record of that epoch by now, or a later one, or was told that there is one."""
        found = self._core.partitions.get(partition)
        if found is None:
            return False
        return found.awaited.epoch >= epoch or (found.decided is not None and found.decided.epoch >= epoch)

    def _serves_by_key(self, partition: PartitionId) -> bool:
        """Whether this broker serves a consumer group with order by key on a partition."""
        found = self._core.partitions.get(partition)
        return found is not None and any(group.keyed is not None for group in found.consumer_groups.values())

    def _submit_in_time(self) -> None:
        """Submit the writes of this `feed` at once, or with all others of this turn of the event loop.

        A submit takes longer than a message takes to leave, and the other end waits for the message. So a write waits
        one turn if anything leaves. It also waits while writes come faster than one by one, because a flush of many
        costs hardly more than a flush of one.
        """
        if not self._writes or self._submit_is_due:
            return
        if self._leaves or self._joins or self._tickets or self._persists > 1:
            self._submit_is_due = True
            self._loop.call_soon(self._submit)
        else:
            self._submit()

    def _submit(self) -> None:
        """Submit all writes that wait as one: they become durable together, in order.

        Rule `durable-early` (I12): a write counts only when the storage has reported it. Without it: 1. The slave tells
        the master that it has a, from memory. 2. The master answers the producer. 3. The slave loses power, and a is on
        one disk.
        """
        self._submit_is_due = False
        if not self._writes:
            return
        with self._ending():
            self._joins = self._persists > 1 or bool(self._tickets)
            self._persists = 0
            writes, self._writes = self._writes, []
            ticket = self._storage.submit(writes)
            began_us = None if all_may_wait(writes) else self._clock.monotonic_us()  # a late flush is no slow one
            self._tickets.append((ticket, self._token, began_us))

    def _durable(self, ticket: int) -> None:
        """The storage has flushed all submits up to this ticket.

        Rule `durable-latest` (I12): later submits do not count. Without it: 1. Batch a is in a submit that is durable,
        and batch b in the next one. 2. The report about a counts for b, too. 3. b is acknowledged, and power is lost.
        """
        with self._ending():
            token = 0
            now_us = self._clock.monotonic_us()
            while self._tickets and self._tickets[0][0] <= ticket:
                _, token, began_us = self._tickets.popleft()
                if began_us is not None:
                    self._counters.flush_s.observe((now_us - began_us) / 1e6)
            if token and not self._dead:
                self.feed(Persisted(token))

    @property
    def unflushed_count(self) -> int:
        """Submits that are not durable yet."""
        return len(self._tickets)

    def _read_log(self, effect: fx.ReadLog) -> None:
        found = self._storage.read_at_once(
            effect.partition, effect.segment_no, effect.from_index, effect.until_index, effect.max_bytes
        )
        if found is not None:
            self.feed(LogRead(effect.serial, tuple(found)))
        else:
            self._read(effect)

    def _read(self, effect: _Reading) -> None:
        if len(self._reads) >= READS_IN_FLIGHT_MAX:
            self._waiting_reads.append(effect)
            return
        carry_out = self._carry_out_read if isinstance(effect, fx.ReadLog) else self._carry_out_other_read
        task = self._loop.create_task(carry_out(effect), name="log read")  # type: ignore[arg-type]
        self._reads[task] = None
        task.add_done_callback(self._read_ended)

    def _read_ended(self, task: asyncio.Task[None]) -> None:
        del self._reads[task]
        while self._waiting_reads and len(self._reads) < READS_IN_FLIGHT_MAX and not self._dead:
            self._read(self._waiting_reads.popleft())

    async def _carry_out_read(self, effect: fx.ReadLog) -> None:
        batches = None
        is_damaged = False
        try:
            batches = tuple(
                await self._storage.read(
                    effect.partition,
                    effect.segment_no,
                    effect.from_index,
                    effect.until_index,
                    effect.max_bytes,
                    sequential=True,
                )
            )
        except SeriatimError as exc:
            is_damaged = isinstance(exc, CorruptionError)
            _log.error("log_read_failed", partition=effect.partition, segment=effect.segment_no, error=str(exc))
        except Exception as exc:
            self.fail(exc)
        if not self._dead:
            self.feed(LogRead(effect.serial, batches, is_damaged))

    async def _carry_out_other_read(self, effect: _Reading) -> None:
        found: Event | None = None
        try:
            found = await self._carry_out[type(effect)](effect)
        except Exception as exc:
            self.fail(exc)
        if found is not None and not self._dead:
            self.feed(found)


def _plain(value: object) -> object:
    return value if isinstance(value, (int, str, float, bool, type(None))) else str(value)
