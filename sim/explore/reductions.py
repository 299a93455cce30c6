"""Reductions: states that differ only in what can never matter again are made one.

After each action `forget` takes such things out of a state. Each rule says why they can change neither a later step of
a core or of the producer, nor a check. With `reduced=0` no rule is applied, and the tests compare the two. No rule
chooses between actions: in the states that are left, every possible action is explored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seriatim._core import producer as producing
from seriatim_broker.core.broker import BrokerCore
from seriatim_broker.core.state.switching import SwitchPhase
from seriatim_broker.core.values.messages import (
    CursorsReplicated,
    FenceAnswer,
    PrepareAnswer,
    ReplicateAck,
    ReplicateRefused,
    TailAnswer,
)

from .cores import FrozenState, core_key
from .state import DOWN, NAMES, PARTITION, Draft, Limits, Stream
from .steps import Steps

# ---- messages on their way ------------------------------------------------------------------------------


def _late_fence_answer(core: BrokerCore, sender: Any, message: FenceAnswer) -> bool:
    """A switch never uses an id again, asks no member twice under one id, and never goes back to FENCING."""
    switch = core.partitions[PARTITION].switch
    if switch is None or switch.id != message.switch:
        return True
    return switch.phase is not SwitchPhase.FENCING or sender not in switch.sealing.pending


def _late_prepare_answer(core: BrokerCore, sender: Any, message: PrepareAnswer) -> bool:
    """A switch never takes an attempt's id again, and PREPARING begins with a new one."""
    switch = core.partitions[PARTITION].switch
    return (
        switch is None
        or switch.phase is not SwitchPhase.PREPARING
        or switch.opening.switch_attempt != message.switch_attempt
    )


def _of_a_log_at_rest(core: BrokerCore, sender: Any, message: ReplicateAck | ReplicateRefused | TailAnswer) -> bool:
    """A log that takes no batches (fenced, sealed, or of an earlier run) never takes any again."""
    log = core.partitions[PARTITION].logs.get(message.segment_no)
    return log is not None and (not log.active or log.record.switch_attempt != message.switch_attempt)


def _late_cursors_replicated(core: BrokerCore, sender: Any, message: CursorsReplicated) -> bool:
    """There are no consumer groups here, and a member that asks again to be eligible is given another serial."""
    right = core.partitions[PARTITION].rights.get(message.segment_no)
    return right is None or right.joining.get(sender) != message.serial


_LATE: dict[type, Callable[[BrokerCore, Any, Any], bool]] = {
    FenceAnswer: _late_fence_answer,
    PrepareAnswer: _late_prepare_answer,
    ReplicateAck: _of_a_log_at_rest,
    ReplicateRefused: _of_a_log_at_rest,
    TailAnswer: _of_a_log_at_rest,
    CursorsReplicated: _late_cursors_replicated,
}
"""Whether a message changes nothing at this core, whenever it arrives in this run."""


class Reductions:
    """The rules, over the tables of one world."""

    def __init__(self, steps: Steps, limits: Limits) -> None:
        self._steps = steps
        self._limits = limits
        self._late: dict[tuple[int, int, int], bool] = {}
        self._frozen: dict[int, int] = {}
        self._idle: dict[int, bool] = {}
        self._silent: dict[tuple[int, tuple[Stream, ...]], bool] = {}
        self._nobody = steps.producers.of(None, "a producer to whom nothing can happen any more")

    def forget(self, draft: Draft, everywhere: bool = False) -> None:
        """Take out of a state what can never matter again, after an action or (`everywhere`) for the first time."""
        self._late_messages(draft, everywhere)
        if draft.late:
            self._lost_races(draft)
        if not draft.budget.timers:
            self._timers(draft)
        if not draft.budget.questions:
            draft.asks = 0
        self._producer(draft)

    def _late_messages(self, draft: Draft, everywhere: bool) -> None:
        """Take out answers that no core waits for, anywhere in a lane. The others arrive without them as well."""
        before = dict(draft.before.lanes)
        for lane, messages in draft.lanes.items():
            source, target, _ = lane
            core = draft.cores[target]
            if core == DOWN or not messages:
                continue
            if not everywhere and core == draft.before.cores[target] and messages == before.get(lane):
                continue  # looked at before
            if any(self._is_late(core, source, message) for message in messages):
                draft.lanes[lane] = tuple(m for m in messages if not self._is_late(core, source, m))

    def _is_late(self, core: int, source: int, message: int) -> bool:
        key = (core, source, message)
        known = self._late.get(key)
        if known is None:
            found = self._steps.messages.values[message]
            value: BrokerCore = self._steps.cores.values[core]
            rule = _LATE.get(type(found))
            known = self._late[key] = (
                rule is not None
                and value.ready
                and PARTITION in value.partitions
                and rule(value, self._steps.members[source], found)
            )
        return known

    def _lost_races(self, draft: Draft) -> None:
        """A transaction that compares with an older revision does nothing, whenever it is carried out."""
        writes = self._steps.messages.values
        draft.late = tuple(number for number in draft.late if writes[number].revision == draft.revision)

    def _timers(self, draft: Draft) -> None:
        """When no timer will fire any more, clocks stand still, and no core looks at timers for later."""
        cores = self._steps.cores
        for broker, number in enumerate(draft.cores):
            if number == DOWN:
                continue
            frozen = self._frozen.get(number)
            if frozen is None:
                core = cores.values[number]
                if not isinstance(core.state, FrozenState):
                    core = core.copy()
                    FrozenState.freeze_timers(core.state)
                frozen = cores.of(core, (broker, core_key(core)))
                self._frozen[number] = self._frozen[frozen] = frozen
            draft.cores[broker] = frozen

    def _producer(self, draft: Draft) -> None:
        """A producer that was notified of all its batches does nothing any more, nor does one to which nothing can
        happen.

        Its batches and its question stay on their way, because they may still change a broker.
        """
        if draft.producer != self._nobody:
            idle = self._idle.get(draft.producer)
            if idle is None:
                idle = self._steps.producers.values[draft.producer][0].is_idle
                self._idle[draft.producer] = idle
            if not idle and (draft.asks or draft.asked != DOWN or draft.budget.timers or draft.budget.questions):
                return
            if not idle and not self._ends_in_silence(draft.producer, draft.streams, draft):
                return
        draft.producer = self._nobody
        draft.asked = DOWN
        draft.opened = 0
        draft.streams = tuple(s._replace(back=()) for s in draft.streams if s.out)

    def _ends_in_silence(self, producer: int, streams: tuple[Stream, ...], draft: Draft) -> bool:
        """Whether all streams are dead, and no message from them makes the producer send or open anything.

        Its question does not count, because the budget has no `questions` left and no action carries it.
        """
        if any(draft.runs[s.broker] == s.run and draft.cores[s.broker] != DOWN for s in streams):
            return False
        key = (producer, streams)
        known = self._silent.get(key)
        if known is None:
            known = self._silent[key] = all(self._is_silent(producer, streams, stream, draft) for stream in streams)
        return known

    def _is_silent(self, producer: int, streams: tuple[Stream, ...], stream: Stream, draft: Draft) -> bool:
        others = tuple(s for s in streams if s is not stream)
        ended = producing.Disconnected(NAMES[stream.broker], stream.number)
        ways = [(("ended", stream.number), ended, others)]
        if stream.back:
            shorter = tuple(s._replace(back=s.back[1:]) if s is stream else s for s in streams)
            ways.append((("reply", stream.back[0]), self._steps.replies.values[stream.back[0]], shorter))
        for name, event, left in ways:
            after, effects = self._steps.produced_by(producer, name, event)
            if not all(isinstance(effect, producing.Settled | producing.Resolve) for effect in effects):
                return False
            if not self._ends_in_silence(after, left, draft):
                return False
        return True
