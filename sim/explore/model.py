"""The small world in motion: how it begins, which actions a state has, and what each of them does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seriatim._core import producer as producing
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.messages import ChainUpdate
from seriatim_broker.testing.memory_disk import DiskImage, MemoryDisk

from ..basics.interfaces import checksum
from ..basics.schedule import Violation
from .cores import FAR_US, QuietCore, core_key
from .reductions import Reductions
from .state import (
    DOWN,
    GROUPS,
    NAMES,
    PARTITION,
    QUESTION,
    STRANGER,
    WALL_MS,
    Action,
    Budget,
    Draft,
    Limits,
    State,
    session_of,
)
from .steps import Steps


class Model(Steps):
    """All actions. Those that need no more than a step of one core are in `Steps`."""

    def __init__(self, limits: Limits, judge: Any) -> None:
        super().__init__(limits, judge)
        self._reductions = Reductions(self, limits)
        self.reducing = False
        self._link_actions: dict[tuple[Any, ...], list[Action]] = {}

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
        self.reducing = bool(limits.reduced)
        state = self.reduced(draft.done()) if self.reducing else draft.done()
        for step in filter(None, limits.prelude.split(",")):
            state = self._prelude(state, *step.split(":"))
        return state

    def _prelude(self, state: State, kind: str, name: str) -> State:
        """The first action of that kind at that broker."""
        found = [a for a in self.actions(state) if a[0] == kind and NAMES[self._where(state, a)] == name]
        if not found:
            raise ValueError(f"the prelude cannot happen: no {kind} at {name}")
        draft = Draft(state)
        self.take(draft, found[0])
        return draft.done()

    def _where(self, state: State, action: Action) -> int:
        if action[0] == "append":
            return next(s.broker for s in state.streams if s.number == action[1])
        return int(action[2] if action[0] == "deliver" else action[1])

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
                    self.cores.values[core].state.timers.heap.clear()
                return self._forget_timers(state)
            draft = Draft(state)
            self.take(draft, action)
            state = draft.done()

    def _forget_timers(self, state: State) -> State:
        """The timers of the creation have nothing to do any more."""
        draft = Draft(state)
        for broker, number in enumerate(state.cores):
            core = self.cores.values[number].copy()
            core.state.timers.heap.clear()
            core.state.timers.polls.clear()
            draft.cores[broker] = self.cores.of(core, (broker, core_key(core)))
        return draft.done()

    # ---- actions ------------------------------------------------------------------------------------

    def actions(self, state: State) -> Iterator[Action]:
        """All that may happen next."""
        budget = state.budget
        yield from self._links(state)
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
        if budget.timers and self.producers.values[state.producer] is not None:
            wake_us = self.producers.values[state.producer][0].wake_at_us
            if wake_us is not None and wake_us < FAR_US:
                yield ("producer timer",)

    def _links(self, state: State) -> list[Action]:
        """The actions on links, as their ends see them."""
        key = (state.ends, *[core == DOWN for core in state.cores])
        known = self._link_actions.get(key)
        if known is None:
            up = [broker for broker, core in enumerate(state.cores) if core != DOWN]
            known = self._link_actions[key] = [action for broker in up for action in self._links_of(state, broker)]
        return known

    def _links_of(self, state: State, broker: int) -> Iterator[Action]:
        """The actions on the links of a broker that is up."""
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
            peer, run = NAMES.index(request.member_run.member.broker), request.member_run.run
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
        """Carry out one action, and then all steps that change nothing."""
        getattr(self, "_do_" + action[0].replace(" ", "_"))(draft, *action[1:])
        if self.reducing:
            self._reductions.forget(draft)
        if not self.limits.old_news:
            self._drop_old_news(draft)

    def reduced(self, state: State) -> State:
        """The reduced form of this state, if states are reduced."""
        draft = Draft(state)
        self._reductions.forget(draft, everywhere=True)
        if not self.limits.old_news:
            self._drop_old_news(draft)
        return draft.done()

    def _drop_old_news(self, draft: Draft) -> None:
        """Let chain records arrive whose receivers know them already."""
        for lane in list(draft.lanes):
            source, target, _ = lane
            while draft.lanes[lane] and draft.cores[target] != DOWN and draft.ends[target][source]:
                message = draft.lanes[lane][0]
                if type(self.messages.values[message]) is not ChainUpdate:
                    break
                try:
                    core, effects = self._stepped_by(draft, *self._received(draft, source, target, message))
                except Violation:
                    break  # that is for the step in which it arrives to say
                if core != draft.cores[target] or effects:
                    break
                draft.lanes[lane] = draft.lanes[lane][1:]

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
            effects = [*core.start(ev.Moment(1_000_000, WALL_MS))]
            groups = tuple((group, tuple(self.members[i] for i in slots)) for group, slots in GROUPS)
            effects += core.step(ev.DirectoryChanged(groups), ev.Moment(1_000_000, WALL_MS))
            known = self._steps[key] = self._stepped(broker, core, effects, None)
        draft.cores[broker] = known[0]
        self._carry_out(draft, broker, known[1])

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
        for peer in range(len(NAMES)):
            draft.set_end(broker, peer, 0)
        for lane in [lane for lane in draft.lanes if lane[1] == broker]:
            del draft.lanes[lane]
        draft.streams = tuple(s._replace(out=()) if s.broker == broker else s for s in draft.streams)
        if self.limits.reduced:  # the broker has ended and answers no request
            draft.places = frozenset(place for place in draft.places if place.broker != broker)
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
        session = draft.ends[broker][peer]
        draft.set_end(broker, peer, 0)
        for lane in (0, 1):
            draft.lanes.pop((peer, broker, lane), None)
        self._step(draft, broker, ("down", peer, session), ev.LinkDown(NAMES[peer], session, True))

    def _do_connect(self, draft: Draft, first: int, *others: int) -> None:
        for other in others:
            self._connect(draft, first, other)

    def _connect(self, draft: Draft, first: int, second: int) -> None:
        session = session_of(draft.runs[first], draft.runs[second])
        for broker, peer in ((first, second), (second, first)):
            draft.set_end(broker, peer, session)
            for lane in (0, 1):
                draft.lanes.pop((broker, peer, lane), None)
        for broker, peer in ((first, second), (second, first)):
            run = draft.runs[peer]
            up = ev.LinkUp(NAMES[peer], self.members[peer], run, session)
            self._step(draft, broker, ("up", peer, run, session), up)

    def _do_deliver(self, draft: Draft, source: int, target: int, lane: int) -> None:
        message, *rest = draft.lanes[source, target, lane]
        draft.lanes[source, target, lane] = tuple(rest)
        if draft.ends[target][source]:
            self._step(draft, *self._received(draft, source, target, message))

    def _received(self, draft: Draft, source: int, target: int, message: int) -> tuple[int, tuple[Any, ...], ev.Event]:
        session = draft.ends[target][source]
        event = ev.Received(NAMES[source], session, self.messages.values[message])
        return target, ("received", source, session, message), event

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
                run = request.member_run
                draft.certificates |= {(NAMES.index(run.member.broker), run.run)}
            event = ev.CertificateRead(PARTITION, request.member_run, exists)
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


def _is_stale(state: State, broker: int, peer: int) -> bool:
    """Whether this end has not noticed yet that the other is gone."""
    return state.ends[broker][peer] not in (0, state.ends[peer][broker])
