"""The tables of the small world, and the steps of brokers, disks and producer: looked up, once they were taken.

Everything big is a number of a table (`Numbers`): two states are the same if their numbers are.
"""

from __future__ import annotations

from typing import Any

from seriatim._core import producer as producing
from seriatim_api.ids import MemberId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.log import PutBatch, Write
from seriatim_broker.core.values.messages import DATA, Heartbeat, HeartbeatAnswer
from seriatim_broker.core.values.states import freeze_value
from seriatim_broker.testing.memory_disk import DiskImage

from ..basics.batches import header_of
from ..basics.schedule import Violation
from .cores import Numbers, core_key
from .state import DOWN, NAMES, PARTITION, PRODUCER, QUESTION, WALL_MS, Draft, Limits, Place, Stream

_DATA = frozenset(DATA)
_BEATS = (Heartbeat, HeartbeatAnswer)


class Steps:
    """Takes and remembers steps. The judge (`checks`) says what must hold at a transaction or a reply."""

    def __init__(self, limits: Limits, judge: Any) -> None:
        self.limits = limits
        self.judge = judge
        self._victims = limits.victims.split(",")
        self._hearers = limits.hearers.split(",")
        slow = limits.slow_disks.split(",")
        self._quick = [bool(limits.quick_disks) and name not in slow for name in NAMES]
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

    # ---- the producer ----------------------------------------------------------------------------------

    def _append(self, send: int) -> ev.Append:
        effect = self.messages.values[send]
        body = effect.batch_id.to_bytes(8, "big")
        header = header_of(PARTITION, PRODUCER, body, epoch=effect.producer_epoch, sequence=effect.base_sequence)
        request = self._request(send)
        level = int(ev.AckLevel.REPLICATED_FLUSHED)
        return ev.Append(request, PARTITION, header, body, effect.producer_run, effect.starts_run, level)

    def _request(self, send: int) -> int:
        self._sends[send + 10] = self.messages.values[send]
        return send + 10

    def _replace(self, draft: Draft, old: Stream, new: Stream) -> None:
        draft.streams = tuple(new if s.number == old.number else s for s in draft.streams)

    def _produce(self, draft: Draft, key: tuple[Any, ...], event: producing.Event) -> None:
        if self.producers.values[draft.producer] is None:
            return  # nothing matters to it any more
        draft.producer, effects = self.produced_by(draft.producer, key, event)
        for effect in effects:
            self._carry_out_for_producer(draft, effect)

    def produced_by(self, number: int, key: tuple[Any, ...], event: producing.Event) -> tuple[int, tuple[Any, ...]]:
        """What an event would make of a producer, and the effects."""
        full = (number, *key)
        known = self._produced.get(full)
        if known is None:
            before, now_us = self.producers.values[number]
            core = before.copy()
            if isinstance(event, producing.Timer):
                now_us = max(now_us, core.wake_at_us or 0)
            effects = core.step(event, now_us)
            known = self._produced[full] = (self.producers.of((core, now_us), (core.freeze(), now_us)), tuple(effects))
        return known

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
            draft.seen.add(f"reported {effect.outcome.value}")
        else:
            raise Violation("CORE", f"the producer ended: {effect}")

    # ---- steps of cores -----------------------------------------------------------------------------

    def wake_us(self, core: int) -> int | None:
        """When the earliest timer of a core is due."""
        if core not in self._wakes:
            self._wakes[core] = self.cores.values[core].next_wake_us()
        return self._wakes[core]

    def _step(self, draft: Draft, broker: int, key: tuple[Any, ...], event: ev.Event | None) -> None:
        draft.cores[broker], effects = self._stepped_by(draft, broker, key, event)
        self._carry_out(draft, broker, effects)

    def _stepped_by(
        self, draft: Draft, broker: int, key: tuple[Any, ...], event: ev.Event | None
    ) -> tuple[int, tuple[Any, ...]]:
        """What an event would make of a core, and the effects; the state stays as it is."""
        number = draft.cores[broker]
        full = (number, *key)
        known = self._steps.get(full)
        if known is None:
            core = self.cores.values[number].copy()
            now = core.state.now.mono_us
            if key[0] == "timer":
                now = max(now, core.next_wake_us())
            if event is None:
                event = ev.Persisted(core.state.out.token)
            try:
                effects = core.step(event, ev.Moment(now, WALL_MS))
            except Exception as error:  # a core must not raise any error
                raise Violation("CORE", f"{NAMES[broker]} on {event}: {error!r}") from error
            known = self._steps[full] = self._stepped(broker, core, effects, event)
        return known

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
                _, request, segment, base = effect
                draft.places |= {Place(request, segment, base, broker)}
            elif kind == "note":
                draft.seen.add(effect[1])
            else:
                self._answer_client(draft, broker, effect[1])
        if draft.pending[broker] and self._quick[broker]:
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
            reply = producing.Replied(sent.producer_epoch, sent.base_sequence, sent.producer_run, effect.offset)
        else:
            self.judge.refused(self, draft, broker, sent, effect)
            error = producing.ReplyError(effect.error.number, "", effect.error.retry_after_ms or 0)
            reply = producing.Replied(
                sent.producer_epoch, sent.base_sequence, sent.producer_run, error=error, route=_route(effect.route)
            )
        if draft.places and self.limits.reduced:  # it answers once
            draft.places = frozenset(place for place in draft.places if place.request != effect.request)
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

    def _do_sync(self, draft: Draft, broker: int) -> None:
        draft.images[broker] = self.apply_writes(draft.images[broker], draft.pending[broker])
        draft.pending[broker] = ()
        self._step(draft, broker, ("sync",), None)


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
            freeze_value(found.blocks),
            freeze_value(found.chain),
        )
        for name, found in sorted(image.partitions.items())
    )


def _route(route: fx.RouteInfo | None) -> producing.Route | None:
    if route is None:
        return None
    return producing.Route(route.epoch, route.segment_no, route.master, route.master, ())
