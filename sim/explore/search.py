"""Breadth-first search through the small world, and the story of what it finds."""

from __future__ import annotations

import time
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from seriatim_broker.core.values.chain import Chain
from seriatim_broker.testing.memory_disk import DiskImage

from ..basics.schedule import Violation
from ..basics.story import brief
from .checks import Checks, batches_of
from .model import Model
from .state import NAMES, Action, Draft, Limits, State

STATES_DEFAULT = 100_000


class Outcome(NamedTuple):
    """What a world came to, without what is only counted or named."""

    chain: tuple[Any, ...]
    disks: tuple[Any, ...]
    promises: tuple[Any, ...]


@dataclass(slots=True)
class Found:
    """What a search saw."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    exhausted: bool = False
    seen: Counter[str] = field(default_factory=Counter)
    core_count: int = 0
    ends: set[Outcome] = field(default_factory=set)
    violation: str = ""
    rule: str = ""
    trace: list[str] = field(default_factory=list)


class _Search:
    """One exploration: the known states, and how each was reached."""

    def __init__(self, limits: Limits, found: Found) -> None:
        self.checks = Checks()
        self.model = Model(limits, self.checks)
        self.found = found
        start = self.model.start()
        self.checks.state(self.model, start)
        self.known = {hash(start)}
        self.parents = array("l", [-1])
        self.actions: list[Action] = [()]
        self.frontier: deque[tuple[State, int, int]] = deque([(start, 0, 0)])
        self._action_numbers: dict[Action, Action] = {}

    def expand(self, state: State, number: int, depth: int) -> None:
        """Take all actions of a state."""
        actions = list(self.model.actions(state))
        if not actions:
            self.found.ends.add(outcome(self.model, state))
            return
        for action in actions:
            self._take(state, number, depth, action)
            if self.found.violation:
                return

    def _take(self, state: State, number: int, depth: int, action: Action) -> None:
        """One action; a state that was not known before is looked at, and waits for its turn."""
        found = self.found
        found.transitions += 1
        draft = Draft(state)
        try:
            self.model.take(draft, action)
            after = draft.done()
            key = hash(after)
            if key in self.known:
                return
            self.checks.state(self.model, after)
        except AssertionError as error:
            found.violation, found.exhausted = str(error), False
            found.rule = error.rule if isinstance(error, Violation) else "CORE"
        else:
            self.known.add(key)
            self.frontier.append((after, len(self.actions), depth + 1))
        finally:
            found.seen.update(draft.seen)
        self.parents.append(number)
        self.actions.append(self._action_numbers.setdefault(action, action))

    def path(self) -> list[Action]:
        """The actions that lead to the newest state."""
        actions: list[Action] = []
        number = len(self.actions) - 1
        while number > 0:
            actions.append(self.actions[number])
            number = self.parents[number]
        return actions[::-1]


def explore(limits: Limits, states_max: int = STATES_DEFAULT) -> Found:
    """Visit states breadth first until there are no more, this many were found, or a promise is broken."""
    found = Found()
    began, cpu_began = time.perf_counter(), time.process_time()
    search = _Search(limits, found)
    found.exhausted = True
    while search.frontier and not found.violation:
        state, number, found.depth = search.frontier.popleft()
        search.expand(state, number, found.depth)
        if len(search.known) >= states_max and search.frontier and not found.violation:
            found.exhausted = False
            break
    found.states = len(search.known)
    found.core_count = len(search.model.cores)
    found.seconds, found.cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    if found.violation:
        found.trace = story(limits, search.path())
    return found


def outcome(model: Model, state: State) -> Outcome:
    """The end of a state in which nothing more can happen: the record, its messages on disks, the promises."""
    return Outcome(
        describe_chain(model.chains.values[state.chain]),
        tuple(describe_disk(model.images.values[image]) for image in state.images),
        tuple(sorted(state.promises)),
    )


def describe_chain(chain: Chain) -> tuple[Any, ...]:
    """Its segments, without ids."""
    return tuple(
        (s.no, s.broker_group, s.state.value, s.sealed_len, s.tail_from, len(s.tail_copies), s.incomplete_table)
        for s in chain.segments
    )


def describe_disk(image: DiskImage) -> tuple[Any, ...]:
    """Which batch is where, in logs and tail copies."""
    return tuple(sorted({(no, base, batch.body) for no, base, batch in batches_of(image)}))


def story(limits: Limits, actions: list[Action]) -> list[str]:
    """The steps of a path, numbered, with what arrives in each."""
    checks = Checks()
    model = Model(limits, checks)
    state = model.start()
    lines = []
    for number, action in enumerate(actions, 1):
        lines.append(f"{number:3}  {describe(model, state, action)}")
        draft = Draft(state)
        try:
            model.take(draft, action)
            checks.state(model, draft.done())
        except AssertionError as error:
            lines.append(f"     {error}")
            break
        state = draft.done()
    return lines


def describe(model: Model, state: State, action: Action) -> str:
    """An action in words."""
    kind, *rest = action
    if kind == "deliver":
        source, target, lane = rest
        message = dict(state.lanes)[source, target, lane][0]
        return f"{NAMES[source]} → {NAMES[target]}: {brief(model.messages.values[message])}"
    if kind in ("append", "reply", "ended"):
        stream = next(s for s in state.streams if s.number == rest[0])
        name = NAMES[stream.broker]
        if kind == "append":
            return f"producer → {name}: {brief(model.messages.values[stream.out[0]])}"
        if kind == "reply":
            return f"{name} → producer: {brief(model.replies.values[stream.back[0]])}"
        return f"the producer's stream to {name} ends"
    if kind == "late":
        return f"carried out late: {brief(model.messages.values[state.late[rest[0]]])}"
    if kind == "producer timer":
        return "the producer's timer fires"
    name = NAMES[rest[0]]
    if kind in ("answer", "untold"):
        request = brief(model.messages.values[state.requests[rest[0]][0]])
        told = "" if len(rest) == 1 else f": {rest[1]}"
        return (
            f"coordinator answers {name}{told}: {request}"
            if kind == "answer"
            else f"{name} is not notified of {request}"
        )
    if kind == "ask":
        return f"the producer asks {name}: {brief(model.questions.values[state.asks])}"
    if kind == "timer":
        core = model.cores.values[state.cores[rest[0]]]
        return f"{name}: the timer '{core.state.timers.heap[0].kind}' fires"
    words = {
        "sync": "what was written is durable",
        "complain": "hears a complaint about the open segment",
        "restart": "starts again",
    }
    if kind in words:
        return f"{name} {words[kind]}" if kind != "sync" else f"{name}: {words[kind]}"
    if kind == "crash":
        return f"{name} crashes, and keeps {rest[1]} of {len(state.pending[rest[0]])} pending writes"
    if kind == "notice":
        return f"{name} notices that {NAMES[rest[1]]} is gone" if len(rest) == 2 else f"all notice that {name} is gone"
    assert kind == "connect", action
    return f"{name} is linked with {', '.join(NAMES[other] for other in rest[1:])}"


RARE = (
    "switched", "opened over", "settled", "tail copied", "restarted", "transaction without answer",
    "transaction carried out late",
)  # fmt: skip


def report(found: Found) -> str:
    """The numbers of a search."""
    end = "the frontier was exhausted" if found.exhausted else "bound reached: not exhausted"
    if found.violation:
        end = "a violation ended it"
    lines = [
        (
            f"states {found.states:,}, transitions {found.transitions:,}, depth {found.depth}, "
            f"{len(found.ends):,} outcomes in which nothing more can happen"
        ),
        (
            f"{found.seconds:.1f} s ({found.cpu_s:.1f} s of a core), "
            f"{found.states / max(found.seconds, 1e-9):,.0f} states/s, "
            f"{found.core_count:,} different broker states; {end}"
        ),
        "transitions with: " + ", ".join(f"{name} {found.seen[name]:,}" for name in RARE),
    ]
    other = sorted(set(found.seen) - set(RARE))
    lines.append("also seen: " + ", ".join(f"{name} {found.seen[name]:,}" for name in other))
    if found.violation:
        lines += [f"VIOLATION {found.violation}", f"a shortest trace, {len(found.trace)} lines:", *found.trace]
    return "\n".join(lines)
