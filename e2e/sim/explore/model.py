"""The small world: what a state is, which actions it has, and what each of them does.

Everything big is a number of a table (`Numbers`): two states are the same if their numbers are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from seriatim._core import producer as producing
from seriatim_api.batch import make_header, parse_header
from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core import effects as fx
from seriatim_broker.core import events as ev
from seriatim_broker.core.chain import Chain
from seriatim_broker.core.log import PutBatch, Write
from seriatim_broker.core.messages import DATA, Heartbeat, HeartbeatAnswer
from seriatim_broker.core.state import freeze_value
from seriatim_broker.testing.memory_disk import DiskImage, MemoryDisk

from ..brokers import checksum
from ..schedule import Violation
from .cores import FAR_US, Numbers, QuietCore, core_key

PARTITION = PartitionId(2)  # its first segment has the first member of its group as master
NAMES = ("A1", "A2", "B1", "B2")
GROUPS = (("A", (0, 1)), ("B", (2, 3)))
PRODUCER = b"producer-of-four"
STRANGER = 1
"""The request number of a complaint whose answer nobody wants."""
QUESTION = 2
"""The request number of the producer's question."""
DOWN = -1

_DATA = frozenset(DATA)
_BEATS = (Heartbeat, HeartbeatAnswer)
_WALL_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How large the world is: what may happen, and how often at most.

    With `quick_disks`, what is written is durable at once. With `apart`, the ends of a link notice a crash one by one,
    and the links of a broker that starts come up one by one. `victims` may crash, `hearers` may be complained to.
    """

    messages: int = 2
    window: int = 2
    crashes: int = 1
    restarts: int = 1
    timeouts: int = 1
    complaints: int = 1
    timers: int = 1
    questions: int = 2
    quick_disks: int = 0
    apart: int = 0
    victims: str = ",".join(NAMES)
    hearers: str = ",".join(NAMES)


class Budget(NamedTuple):
    """What may still happen."""

    crashes: int
    restarts: int
    timeouts: int
    complaints: int
    timers: int
    questions: int


class Promise(NamedTuple):
    """A batch that a master acknowledged, and where."""

    segment: int
    base: int
    end: int
    batch_id: int


class Stream(NamedTuple):
    """The producer's stream to a broker: what is on its way on it, and whether the broker is still there."""

    number: int
    broker: int
    run: int
    out: tuple[int, ...]
    back: tuple[int, ...]


class State(NamedTuple):
    """All of the world. Numbers of tables, except for the small things."""

    cores: tuple[int, ...]
    runs: tuple[int, ...]
    images: tuple[int, ...]
    pending: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, ...], ...]  # of each broker, by peer: the session it knows, 0 for none
    lanes: tuple[tuple[tuple[int, int, int], tuple[int, ...]], ...]  # (from, to, lane): messages
    requests: tuple[tuple[int, ...], ...]
    late: tuple[int, ...]
    chain: int
    revision: int
    certificates: frozenset[tuple[int, int]]
    producer: int
    streams: tuple[Stream, ...]
    opened: int  # streams so far
    asks: int  # number of the question that nobody was asked yet, 0 for none
    asked: int  # the broker that was asked, or DOWN
    places: frozenset[tuple[int, int, int]]  # of each attempt: request, segment, base index
    promises: frozenset[Promise]
    budget: Budget


Action = tuple[Any, ...]


class Draft:
    """A state in the making."""

    def __init__(self, state: State) -> None:
        for name, value in zip(State._fields, state, strict=True):
            if name != "lanes":
                setattr(self, name, list(value) if name in _LISTS else value)  # type: ignore[call-overload]
        self.lanes = dict(state.lanes)
        self.ends = [list(ends) for ends in state.ends]
        self.seen: set[str] = set()

    cores: list[int]
    runs: list[int]
    images: list[int]
    pending: list[tuple[int, ...]]
    ends: list[list[int]]
    lanes: dict[tuple[int, int, int], tuple[int, ...]]
    requests: list[tuple[int, ...]]
    late: tuple[int, ...]
    chain: int
    revision: int
    certificates: frozenset[tuple[int, int]]
    producer: int
    streams: tuple[Stream, ...]
    opened: int
    asks: int
    asked: int
    places: frozenset[tuple[int, int, int]]
    promises: frozenset[Promise]
    budget: Budget

    def spend(self, what: str) -> None:
        """One less of it may happen from now on."""
        self.budget = self.budget._replace(**{what: getattr(self.budget, what) - 1})

    def done(self) -> State:
        """The state."""
        return State(
            tuple(self.cores),
            tuple(self.runs),
            tuple(self.images),
            tuple(self.pending),
            tuple(tuple(ends) for ends in self.ends),
            tuple(sorted(item for item in self.lanes.items() if item[1])),
            tuple(self.requests),
            self.late,
            self.chain,
            self.revision,
            self.certificates,
            self.producer,
            self.streams,
            self.opened,
            self.asks,
            self.asked,
            self.places,
            self.promises,
            self.budget,
        )


_LISTS = ("cores", "runs", "images", "pending", "requests")


def session_of(first_run: int, second_run: int) -> int:
    """The number of the link between two runs, at both ends."""
    return 100 * min(first_run, second_run) + max(first_run, second_run) + 1


class Model:
    """The tables, and the steps from state to state. `check(before, after, ...)` is in `checks`."""

    def __init__(self, limits: Limits, judge: Any) -> None:
        self.limits = limits
        self.judge = judge
        self._victims = limits.victims.split(",")
        self._hearers = limits.hearers.split(",")
        self.members = [MemberId(name, f"disk-{name}") for name in NAMES]
        self.cores = Numbers()
        self.images = Numbers()
        self.messages = Numbers()
        self.chains = Numbers()
        self.producers = Numbers()
        self.replies = Numbers()
        self.questions = Numbers()
        self.questions.of(None, "none")
        self._steps: dict[tuple[Any, ...], tuple[int, tuple[Any, ...]]] = {}
        self._produced: dict[tuple[Any, ...], tuple[int, tuple[Any, ...]]] = {}
        self._wakes: dict[int, int | None] = {}
        self._applied: dict[tuple[int, tuple[int, ...]], int] = {}
        self._sends: dict[int, Any] = {}

    # ---- the beginning ------------------------------------------------------------------------------

    def start(self) -> State:
        """Four brokers, all linked, and a partition that was just created; everything is quiet."""
        producer = producing.PartitionProducer(
            producing.ProducerConfig(
                window_batches_max=self.limits.window,
                delivery_timeout_ms=FAR_US // 100,
                reply_timeout_ms=1000,
                backoff_ms_min=1,
                backoff_ms_max=1,
            )
        )
        empty = self.image_of(DiskImage())
        none: tuple[int, ...] = ()
        count = len(NAMES)
        limits = self.limits
        draft = Draft(
            State(
                (DOWN,) * count, (0,) * count, (empty,) * count, (none,) * count, ((0,) * count,) * count, (),
                (none,) * count, (), self.chains.of(None, "none"), 0, frozenset(),
                self.producers.of((producer, 0), (producer.freeze(), 0)), (), 0, 0, DOWN, frozenset(), frozenset(),
                Budget(limits.crashes, limits.restarts, limits.timeouts, limits.complaints, 0, 1 << 20),
            )
        )  # fmt: skip
        for broker in range(count):
            self._start_broker(draft, broker)
        for first in range(count):
            for second in range(first + 1, count):
                self._connect(draft, first, second)
        self._step(draft, 0, ("create",), ev.CreatePartition(STRANGER, PARTITION, "topic", 0, True, ("A", "B")))
        state = self._quieten(draft.done())
        assert self.chains.values[state.chain] is not None
        draft = Draft(state)
        for message in range(limits.messages):
            self._produce(draft, ("enqueue", message), producing.Enqueue(message, 1, 8))
            if not message:
                draft = Draft(self._ask(draft))
        draft.budget = draft.budget._replace(timers=limits.timers, questions=limits.questions)
        return draft.done()

    def _ask(self, draft: Draft) -> State:
        """The producer learns where the master is before the exploration begins."""
        self.take(draft, ("ask", 0))
        return draft.done()

    def _quieten(self, state: State) -> State:
        quiet = ("deliver", "sync", "answer")
        while True:
            action = next((a for a in self.actions(state) if a[0] in quiet), None)
            if action is None:
                for core in set(state.cores):
                    self.cores.values[core].outbox.timers.clear()
                return self._forget_timers(state)
            draft = Draft(state)
            self.take(draft, action)
            state = draft.done()

    def _forget_timers(self, state: State) -> State:
        """The timers of the creation have nothing to do any more."""
        draft = Draft(state)
        for broker, number in enumerate(state.cores):
            core = self.cores.values[number].copy()
            core.outbox.timers.clear()
            core.outbox.polls.clear()
            draft.cores[broker] = self.cores.of(core, (broker, core_key(core)))
        return draft.done()

    # ---- actions ------------------------------------------------------------------------------------

    def actions(self, state: State) -> Iterator[Action]:
        """All that may happen next."""
        budget = state.budget
        for broker, core in enumerate(state.cores):
            if core == DOWN:
                if budget.restarts:
                    yield ("restart", broker)
                continue
            if state.pending[broker]:
                yield ("sync", broker)
            if state.requests[broker]:
                request = self.messages.values[state.requests[broker][0]]
                yield from self._answers(state, broker, request)
            if budget.timers and self.wake_us(core) is not None:
                yield ("timer", broker)
            if budget.complaints and NAMES[broker] in self._hearers:
                yield ("complain", broker)
            if budget.crashes and NAMES[broker] in self._victims:
                for kept in range(len(state.pending[broker]) + 1):
                    yield ("crash", broker, kept)
            yield from self._links(state, broker)
            if state.asks and budget.questions:
                question = self.questions.values[state.asks]
                if question.avoid_address != NAMES[broker]:
                    yield ("ask", broker)
        for (source, target, lane), _ in state.lanes:
            if state.cores[target] != DOWN:
                yield ("deliver", source, target, lane)
        for place in range(len(state.late)):
            yield ("late", place)
        for stream in state.streams:
            alive = state.cores[stream.broker] != DOWN and state.runs[stream.broker] == stream.run
            if alive and stream.out:
                yield ("append", stream.number)
            if stream.back:
                yield ("reply", stream.number)
            if not alive:
                yield ("ended", stream.number)
        wake_us = self.producers.values[state.producer][0].wake_at_us
        if budget.timers and wake_us is not None and wake_us < FAR_US:
            yield ("producer timer",)

    def _links(self, state: State, broker: int) -> Iterator[Action]:
        """What may happen to the links of a broker that is up."""
        others = [peer for peer in range(len(NAMES)) if peer != broker and state.cores[peer] != DOWN]
        if self.limits.apart:
            for peer, session in enumerate(state.ends[broker]):
                if session and session != state.ends[peer][broker]:
                    yield ("notice", broker, peer)
                elif peer > broker and peer in others and not session and not state.ends[peer][broker]:
                    yield ("connect", broker, peer)
            return
        unlinked = [peer for peer in others if not state.ends[broker][peer]]
        if unlinked and not any(state.ends[broker]):
            yield ("connect", broker, *unlinked)
        for peer in range(len(NAMES)):
            holders = [other for other in [*others, broker] if _is_stale(state, other, peer)]
            if holders and broker == min(holders):
                yield ("notice", peer)

    def _answers(self, state: State, broker: int, request: Any) -> Iterator[Action]:
        if isinstance(request, fx.ReadCertificate):
            peer, run = NAMES.index(request.run.member.broker), request.run.run
            ended = state.runs[peer] > run or state.cores[peer] == DOWN
            if ended:
                yield ("answer", broker, True)
            if (peer, run) not in state.certificates:
                yield ("answer", broker, False)
            return
        yield ("answer", broker)
        if isinstance(request, fx.WriteChain) and state.budget.timeouts:
            yield ("untold", broker)

    def take(self, draft: Draft, action: Action) -> None:
        """Carry out one action."""
        getattr(self, "_do_" + action[0].replace(" ", "_"))(draft, *action[1:])

    def _do_restart(self, draft: Draft, broker: int) -> None:
        draft.spend("restarts")
        draft.seen.add("restarted")
        self._start_broker(draft, broker)

    def _start_broker(self, draft: Draft, broker: int) -> None:
        draft.runs[broker] += 1
        run, image = draft.runs[broker], draft.images[broker]
        key = (broker, "start", run, image)
        known = self._steps.get(key)
        if known is None:
            disk = MemoryDisk()
            disk.durable = self.images.values[image]
            core = QuietCore(self.members[broker], run, bytes((broker, run)).ljust(12, b"\0"), checksum, disk.recover())
            effects = [*core.start(ev.Moment(1_000_000, _WALL_MS))]
            groups = tuple((group, tuple(self.members[i] for i in slots)) for group, slots in GROUPS)
            effects += core.step(ev.DirectoryChanged(groups), ev.Moment(1_000_000, _WALL_MS))
            known = self._steps[key] = self._stepped(broker, core, effects, None)
        draft.cores[broker] = known[0]
        self._carry_out(draft, broker, known[1])

    def _do_sync(self, draft: Draft, broker: int) -> None:
        draft.images[broker] = self.apply_writes(draft.images[broker], draft.pending[broker])
        draft.pending[broker] = ()
        self._step(draft, broker, ("sync",), None)

    def _do_timer(self, draft: Draft, broker: int) -> None:
        draft.spend("timers")
        self._step(draft, broker, ("timer",), ev.Tick())

    def _do_complain(self, draft: Draft, broker: int) -> None:
        draft.spend("complaints")
        chain: Chain = self.chains.values[draft.chain]
        no = chain.open_segment.no
        self._step(draft, broker, ("complain", no), ev.ResolveProducer(STRANGER, PARTITION, no, FAR_US))

    def _do_crash(self, draft: Draft, broker: int, kept: int) -> None:
        draft.spend("crashes")
        draft.images[broker] = self.apply_writes(draft.images[broker], draft.pending[broker][:kept])
        draft.pending[broker] = ()
        draft.cores[broker] = DOWN
        writes = [r for r in draft.requests[broker] if isinstance(self.messages.values[r], fx.WriteChain)]
        draft.late = tuple(sorted((*draft.late, *writes)))
        draft.requests[broker] = ()
        draft.ends[broker] = [0] * len(NAMES)
        for lane in [lane for lane in draft.lanes if lane[1] == broker]:
            del draft.lanes[lane]
        draft.streams = tuple(s._replace(out=()) if s.broker == broker else s for s in draft.streams)
        if draft.asked == broker:
            draft.asked = DOWN
            self._produce(draft, ("resolved", None), producing.Resolved(None))

    def _do_notice(self, draft: Draft, *who: int) -> None:
        """One end notices that its peer is gone, or all at once."""
        peer = who[-1]
        holders = who[:1] if len(who) == 2 else range(len(NAMES))
        for broker in holders:
            if draft.ends[broker][peer] and draft.ends[broker][peer] != draft.ends[peer][broker]:
                self._notice(draft, broker, peer)

    def _notice(self, draft: Draft, broker: int, peer: int) -> None:
        session, draft.ends[broker][peer] = draft.ends[broker][peer], 0
        for lane in (0, 1):
            draft.lanes.pop((peer, broker, lane), None)
        self._step(draft, broker, ("down", peer, session), ev.LinkDown(NAMES[peer], session, True))

    def _do_connect(self, draft: Draft, first: int, *others: int) -> None:
        for other in others:
            self._connect(draft, first, other)

    def _connect(self, draft: Draft, first: int, second: int) -> None:
        session = session_of(draft.runs[first], draft.runs[second])
        for broker, peer in ((first, second), (second, first)):
            draft.ends[broker][peer] = session
            for lane in (0, 1):
                draft.lanes.pop((broker, peer, lane), None)
        for broker, peer in ((first, second), (second, first)):
            run = draft.runs[peer]
            up = ev.LinkUp(NAMES[peer], self.members[peer], run, session)
            self._step(draft, broker, ("up", peer, run, session), up)

    def _do_deliver(self, draft: Draft, source: int, target: int, lane: int) -> None:
        message, *rest = draft.lanes[source, target, lane]
        draft.lanes[source, target, lane] = tuple(rest)
        session = draft.ends[target][source]
        if session:
            event = ev.Received(NAMES[source], session, self.messages.values[message])
            self._step(draft, target, ("received", source, session, message), event)

    # ---- the coordinator ----------------------------------------------------------------------------

    def _do_answer(self, draft: Draft, broker: int, exists: bool = False) -> None:
        number, *rest = draft.requests[broker]
        draft.requests[broker] = tuple(rest)
        request = self.messages.values[number]
        if isinstance(request, fx.ReadChain):
            event: ev.Event = ev.ChainRead(PARTITION, self.chains.values[draft.chain], draft.revision)
            key: tuple[Any, ...] = ("chain", draft.chain, draft.revision)
        elif isinstance(request, fx.WriteChain):
            done = self._write(draft, broker, request)
            outcome = ev.WriteOutcome.DONE if done else ev.WriteOutcome.CONFLICT
            event = ev.ChainWritten(PARTITION, request.serial, outcome, draft.revision if done else 0)
            key = ("written", request.serial, done, draft.revision if done else 0)
        elif isinstance(request, fx.ReadCertificate):
            if exists:
                run = request.run
                draft.certificates |= {(NAMES.index(run.member.broker), run.run)}
            event = ev.CertificateRead(PARTITION, request.run, exists)
            key = ("certificate", number, exists)
        else:
            assert isinstance(request, fx.ReadLog), request
            disk = MemoryDisk()
            disk.visible = self.images.values[self.apply_writes(draft.images[broker], draft.pending[broker])]
            batches = disk.read(
                PARTITION, request.segment_no, request.from_index, request.until_index, request.max_bytes
            )
            event = ev.LogRead(request.serial, tuple(batches))
            key = ("read", number, tuple(batches))
        self._step(draft, broker, key, event)

    def _do_untold(self, draft: Draft, broker: int) -> None:
        draft.spend("timeouts")
        draft.seen.add("transaction without answer")
        number, *rest = draft.requests[broker]
        draft.requests[broker] = tuple(rest)
        draft.late = tuple(sorted((*draft.late, number)))
        serial = self.messages.values[number].serial
        event = ev.ChainWritten(PARTITION, serial, ev.WriteOutcome.UNKNOWN, 0)
        self._step(draft, broker, ("untold", serial), event)

    def _do_late(self, draft: Draft, place: int) -> None:
        number = draft.late[place]
        draft.late = draft.late[:place] + draft.late[place + 1 :]
        if self._write(draft, DOWN, self.messages.values[number]):
            draft.seen.add("transaction carried out late")

    def _write(self, draft: Draft, broker: int, request: fx.WriteChain) -> bool:
        """One compare-and-swap."""
        run = request.certificate
        if request.revision != draft.revision:
            return False
        if run is not None and (NAMES.index(run.member.broker), run.run) not in draft.certificates:
            return False
        before = self.chains.values[draft.chain]
        draft.chain = self.chains.of(request.chain)
        draft.revision += 1
        self.judge.chain_written(self, draft, broker, before, request.chain, run)
        return True

    # ---- the producer -------------------------------------------------------------------------------

    def _do_ask(self, draft: Draft, broker: int) -> None:
        draft.spend("questions")
        question, draft.asks = self.questions.values[draft.asks], 0
        draft.asked = broker
        no = question.failed_segment
        self._step(draft, broker, ("ask", no), ev.ResolveProducer(QUESTION, PARTITION, no, FAR_US))

    def _do_append(self, draft: Draft, number: int) -> None:
        stream = next(s for s in draft.streams if s.number == number)
        send = stream.out[0]
        self._replace(draft, stream, stream._replace(out=stream.out[1:]))
        self._step(draft, stream.broker, ("append", send), self._append(send))

    def _append(self, send: int) -> ev.Append:
        effect = self.messages.values[send]
        body = effect.batch_id.to_bytes(8, "big")
        header = make_header(
            partition=PARTITION,
            message_count=1,
            producer=PRODUCER,
            producer_epoch=effect.producer_epoch,
            base_sequence=effect.base_sequence,
            first_timestamp_ms=0,
            last_timestamp_ms=0,
            body_length=len(body),
            body_crc=0,
        )
        request = self._request(send)
        level = int(ev.AckLevel.REPLICATED_FLUSHED)
        return ev.Append(request, PARTITION, parse_header(header), body, effect.run, effect.starts_run, level)

    def _request(self, send: int) -> int:
        self._sends[send + 10] = self.messages.values[send]
        return send + 10

    def _do_reply(self, draft: Draft, number: int) -> None:
        stream = next(s for s in draft.streams if s.number == number)
        reply = stream.back[0]
        self._replace(draft, stream, stream._replace(back=stream.back[1:]))
        self._produce(draft, ("reply", reply), self.replies.values[reply])

    def _do_ended(self, draft: Draft, number: int) -> None:
        stream = next(s for s in draft.streams if s.number == number)
        draft.streams = tuple(s for s in draft.streams if s.number != number)
        self._produce(draft, ("ended", number), producing.Disconnected(NAMES[stream.broker], number))

    def _do_producer_timer(self, draft: Draft) -> None:
        draft.spend("timers")
        self._produce(draft, ("timer",), producing.Timer())

    def _replace(self, draft: Draft, old: Stream, new: Stream) -> None:
        draft.streams = tuple(new if s.number == old.number else s for s in draft.streams)

    def _produce(self, draft: Draft, key: tuple[Any, ...], event: producing.Event) -> None:
        key = (draft.producer, *key)
        known = self._produced.get(key)
        if known is None:
            before, now_us = self.producers.values[draft.producer]
            core = before.copy()
            if isinstance(event, producing.Timer):
                now_us = max(now_us, core.wake_at_us or 0)
            effects = core.step(event, now_us)
            known = self._produced[key] = (self.producers.of((core, now_us), (core.freeze(), now_us)), tuple(effects))
        draft.producer = known[0]
        for effect in known[1]:
            self._carry_out_for_producer(draft, effect)

    def _carry_out_for_producer(self, draft: Draft, effect: producing.Effect) -> None:
        if isinstance(effect, producing.OpenStream):
            broker = NAMES.index(effect.address)
            if draft.cores[broker] == DOWN:
                self._produce(draft, ("refused", broker), producing.Disconnected(effect.address, None))
                return
            draft.opened = number = draft.opened + 1
            draft.streams = (*draft.streams, Stream(number, broker, draft.runs[broker], (), ()))
            window = self.limits.window
            event = producing.Connected(effect.address, number, window, 1 << 20)
            self._produce(draft, ("connected", broker, number), event)
        elif isinstance(effect, producing.Send):
            send = self.messages.of(effect)
            stream = next((s for s in draft.streams if s.number == effect.stream), None)
            if stream is not None and draft.runs[stream.broker] == stream.run and draft.cores[stream.broker] != DOWN:
                self._replace(draft, stream, stream._replace(out=(*stream.out, send)))
        elif isinstance(effect, producing.Resolve):
            draft.asks = self.questions.of(effect)
        elif isinstance(effect, producing.Settled):
            draft.seen.add(f"told {effect.outcome.value}")
        else:
            raise Violation("CORE", f"the producer ended: {effect}")

    # ---- steps of cores -----------------------------------------------------------------------------

    def wake_us(self, core: int) -> int | None:
        """When the earliest timer of a core is due."""
        if core not in self._wakes:
            self._wakes[core] = self.cores.values[core].next_wake_us()
        return self._wakes[core]

    def _step(self, draft: Draft, broker: int, key: tuple[Any, ...], event: ev.Event | None) -> None:
        number = draft.cores[broker]
        full = (number, *key)
        known = self._steps.get(full)
        if known is None:
            core = self.cores.values[number].copy()
            now = core.outbox.now.mono_us
            if key[0] == "timer":
                now = max(now, core.next_wake_us())
            if event is None:
                event = ev.Persisted(core.outbox.token)
            try:
                effects = core.step(event, ev.Moment(now, _WALL_MS))
            except Exception as error:  # whatever it is, a core must not raise it
                raise Violation("CORE", f"{NAMES[broker]} on {event}: {error!r}") from error
            known = self._steps[full] = self._stepped(broker, core, effects, event)
        draft.cores[broker] = known[0]
        self._carry_out(draft, broker, known[1])

    def _stepped(self, broker: int, core: Any, effects: list[Any], event: Any) -> tuple[int, tuple[Any, ...]]:
        """The core's number, and its effects in short."""
        short: list[Any] = []
        for effect in effects:
            if isinstance(effect, fx.Persist):
                short.append(("persist", self.messages.of(effect.writes)))
                if isinstance(event, ev.Append):
                    short.extend(
                        ("place", event.request, write.batch.header.segment, write.batch.header.base_index)
                        for write in effect.writes
                        if isinstance(write, PutBatch) and write.batch.body == event.body
                    )
            elif isinstance(effect, fx.Send):
                if not isinstance(effect.message, _BEATS):
                    lane = 1 if type(effect.message) in _DATA else 0
                    short.append(("send", NAMES.index(effect.broker), lane, self.messages.of(effect.message)))
            elif isinstance(effect, fx.ReadChain | fx.WriteChain | fx.ReadCertificate | fx.ReadLog):
                short.append(("request", self.messages.of(effect)))
            elif isinstance(effect, fx.AppendAccepted | fx.AppendRefused | fx.Resolved):
                short.append(("answer", effect))
            elif isinstance(effect, fx.Note):
                short.append(("note", effect.name))
            elif not isinstance(effect, fx.Connect):
                raise Violation("CORE", f"{NAMES[broker]} wants {effect}, of which this world knows nothing")
        return self.cores.of(core, (broker, core_key(core))), tuple(short)

    def _carry_out(self, draft: Draft, broker: int, effects: tuple[Any, ...]) -> None:
        for effect in effects:
            kind = effect[0]
            if kind == "persist":
                draft.pending[broker] = (*draft.pending[broker], effect[1])
            elif kind == "send":
                _, target, lane, message = effect
                if draft.ends[broker][target]:
                    key = (broker, target, lane)
                    if draft.cores[target] != DOWN and draft.ends[target][broker] == draft.ends[broker][target]:
                        draft.lanes[key] = (*draft.lanes.get(key, ()), message)
            elif kind == "request":
                draft.requests[broker] = (*draft.requests[broker], effect[1])
            elif kind == "place":
                draft.places |= {effect[1:]}
            elif kind == "note":
                draft.seen.add(effect[1])
            else:
                self._answer_client(draft, broker, effect[1])
        if self.limits.quick_disks and draft.pending[broker]:
            self._do_sync(draft, broker)

    def _answer_client(self, draft: Draft, broker: int, effect: Any) -> None:
        if isinstance(effect, fx.Resolved):
            if effect.request == QUESTION and draft.asked == broker:
                draft.asked = DOWN
                route = _route(effect.route)
                self._produce(draft, ("resolved", route), producing.Resolved(route))
            return
        sent = self._sends[effect.request]
        if isinstance(effect, fx.AppendAccepted):
            self.judge.accepted(self, draft, broker, sent, effect)
            reply = producing.Replied(sent.producer_epoch, sent.base_sequence, sent.run, effect.offset)
        else:
            self.judge.refused(self, draft, broker, sent, effect)
            error = producing.ReplyError(effect.error.number, "", effect.error.retry_after_ms or 0)
            reply = producing.Replied(
                sent.producer_epoch, sent.base_sequence, sent.run, error=error, route=_route(effect.route)
            )
        stream = next((s for s in draft.streams if s.number == sent.stream), None)
        if stream is not None and stream.run == draft.runs[broker]:
            self._replace(draft, stream, stream._replace(back=(*stream.back, self.replies.of(reply))))

    # ---- disks --------------------------------------------------------------------------------------

    def image_of(self, image: DiskImage) -> int:
        """The number of a disk's content."""
        return self.images.of(image, _image_key(image))

    def apply_writes(self, image: int, pending: tuple[int, ...]) -> int:
        """What a disk holds after some writes."""
        if not pending:
            return image
        known = self._applied.get((image, pending))
        if known is None:
            found: DiskImage = self.images.values[image].twin()
            for number in pending:
                writes: tuple[Write, ...] = self.messages.values[number]
                for write in writes:
                    try:
                        found.apply(write)
                    except AssertionError as error:
                        raise Violation("CORE", f"{write}: {error}") from error
            known = self._applied[image, pending] = self.image_of(found)
        return known


def _image_key(image: DiskImage) -> Any:
    return tuple(
        (
            name,
            tuple(
                (no, s.record, tuple(s.batches), s.commit, freeze_value(s.windows))
                for no, s in sorted(found.segments.items())
            ),
            freeze_value(found.preparations),
            freeze_value(found.tails),
            freeze_value(found.cursors),
        )
        for name, found in sorted(image.partitions.items())
    )


def _is_stale(state: State, broker: int, peer: int) -> bool:
    """Whether this end has not noticed yet that the other is gone."""
    return state.ends[broker][peer] not in (0, state.ends[peer][broker])


def _route(route: fx.RouteInfo | None) -> producing.Route | None:
    if route is None:
        return None
    return producing.Route(route.epoch, route.segment_no, route.master, route.master, ())
