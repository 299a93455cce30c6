"""Random histories of a keyed group that keeps every promise must pass; with one fault put in, it must be found.

The model is a server that grants runs of keys to consumers, which work on them, fail, die and are replaced. Servers
change; keys are parked and released; messages are skipped, dead-lettered and replayed.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from seriatim.history import MemoryHistory, check_events, render

Events = list[dict[str, Any]]
AT: dict[str, Any] = {"topic": "t", "partition": 0}
OF: dict[str, Any] = {"group": "g", **AT}


class Key:
    """The messages of a key that the group is not done with, the oldest first, and how often the first one failed."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.waiting: list[tuple[int, str]] = []  # (message, offset)
        self.attempts = 0
        self.given = 0  # this many of the first ones were given before, so they are flagged
        self.holder: tuple[str, int, list[tuple[int, str]]] | None = None  # consumer, token, its run
        self.parked = False


class Model:
    """Runs a random but faultless group, and records what its clients saw."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.history = MemoryHistory("model", self._tick)
        self.keys = [Key(b"k%d" % number) for number in range(random.randint(1, 4))]
        self.consumers = ["c1", "c2", "c3"]
        self.counter = 0
        self.term = 1
        self.index = 0
        self.next_id = 0
        self.dead: list[tuple[int, str, Key]] = []
        self.acked: list[tuple[str, str, int]] = []  # consumer, offset, token: not confirmed yet
        self.stored = 0

    def _tick(self) -> float:
        self.now += self.random.choice([0.0, 0.001, 1.0])
        return self.now

    def run(self, steps: int) -> Events:
        often = [self.send, self.grant, self.work, self.work]
        seldom = [self.fail, self.die, self.confirm, self.park, self.release, self.skip, self.bury, self.replay]
        for _ in range(steps):
            self.random.choice([*often, *often, *seldom, self.switch])()
        for key in self.keys:
            while key.waiting and not key.parked:
                if key.holder is None:
                    self.give(key)
                self.finish(key)
        for key in self.keys:
            if key.parked:
                first = key.waiting[0][1]
                self.history.parked(key=key.name, first=first, messages=len(key.waiting), **OF)
        self.history.end("g")
        return self.history.events

    def store(self, message: int, key: Key) -> str:
        offset = f"1:{self.index}"
        self.index += 1
        key.waiting.append((message, offset))
        return offset

    def send(self) -> None:
        key = self.random.choice(self.keys)
        message, self.next_id = self.next_id, self.next_id + 1
        self.history.send(message, producer="p", sequence=message, key=key.name, **AT)
        self.history.outcome(message, "ok", offset=self.store(message, key))

    def some(self, *, held: bool) -> Key | None:
        keys = [key for key in self.keys if key.waiting and not key.parked and (key.holder is not None) == held]
        return self.random.choice(keys) if keys else None

    def grant(self) -> None:
        key = self.some(held=False)
        if key is not None:
            self.give(key)

    def give(self, key: Key) -> None:
        self.counter += 1
        run = key.waiting[: self.random.randint(1, 3)]
        key.holder = self.random.choice(self.consumers), self.term << 40 | self.counter, run
        self.tell(key)

    def tell(self, key: Key) -> None:
        """The application gets the first message of the run."""
        assert key.holder is not None
        consumer, token, run = key.holder
        message, offset = run[0]
        self.history.deliver(
            message, consumer=consumer, offset=offset, token=token, key=key.name, group_epoch=1,
            attempt=key.attempts + 1, maybe_repeated=key.given > 0 or self.random.random() < 0.05, **OF,
        )  # fmt: skip
        key.given = max(key.given, 1)

    def work(self) -> None:
        key = self.some(held=True)
        if key is not None:
            self.finish(key)

    def finish(self, key: Key) -> None:
        assert key.holder is not None
        consumer, token, run = key.holder
        _message, offset = run.pop(0)
        self.history.ack_single(consumer=consumer, offsets=[offset], tokens=[token], **OF)
        self.acked.append((consumer, offset, token))
        self.pass_first(key)
        if run:
            self.tell(key)
        else:
            key.holder = None

    def pass_first(self, key: Key) -> None:
        key.waiting.pop(0)
        key.attempts = 0
        key.given = max(key.given - 1, 0)

    def confirm(self) -> None:
        for consumer, offset, token in self.acked:
            self.history.confirm(consumer=consumer, offsets=[offset], tokens=[token], group_epoch=1, **OF)
        self.acked = []

    def fail(self) -> None:
        key = self.some(held=True)
        if key is not None:
            self.end(key)
            key.attempts += 1

    def end(self, key: Key) -> None:
        assert key.holder is not None
        consumer, token, run = key.holder
        self.history.nack(consumer=consumer, offset=run[0][1], token=token, **OF)
        key.holder = None

    def die(self) -> None:
        """A consumer is gone, without a word. Another one has its name soon."""
        victim = self.random.choice(self.consumers)
        for key in self.keys:
            if key.holder is not None and key.holder[0] == victim:
                key.holder = None
                key.attempts += self.random.randint(0, 1)
        self.consumers[self.consumers.index(victim)] = f"{victim}+"

    def switch(self) -> None:
        """A new server voids all grants. It may have forgotten an attempt, and what was not confirmed."""
        self.term += 1
        self.acked = []
        for key in self.keys:
            key.holder = None
            key.attempts = max(key.attempts - self.random.randint(0, 1), 0)

    def park(self) -> None:
        key = self.some(held=False)
        if key is not None and key.attempts:
            key.parked = True
            self.history.parked(key=key.name, first=key.waiting[0][1], messages=len(key.waiting), **OF)

    def parked(self) -> Key | None:
        keys = [key for key in self.keys if key.parked]
        return self.random.choice(keys) if keys else None

    def ask(self, act: Any, key: Key) -> None:
        self.history.person(act, offset=key.waiting[0][1], key=key.name, **OF)
        self.history.person(act, offset=key.waiting[0][1], key=key.name, done=True, **OF)
        key.parked = False

    def release(self) -> None:
        key = self.parked()
        if key is not None:
            self.ask("release", key)
            key.attempts = 0

    def skip(self) -> None:
        key = self.parked()
        if key is not None:
            self.ask("skip", key)
            self.pass_first(key)

    def bury(self) -> None:
        """The first message of a key becomes a dead letter, after its last attempt or because an administrator said
        so."""
        key = self.parked() if self.random.random() < 0.5 else self.some(held=False)
        if key is None or not key.attempts:
            return
        if key.parked:
            self.ask("dead_letter", key)
        message, offset = key.waiting[0]
        self.dead.append((message, offset, key))
        self.history.dead_letter(message, offset=offset, stored_at=f"dead 1:{self.stored}", **OF)
        self.stored += 1
        self.pass_first(key)

    def replay(self) -> None:
        if not self.dead:
            return
        message, offset, key = self.dead.pop(self.random.randrange(len(self.dead)))
        self.history.person("replay", offset=offset, key=key.name, **OF)
        self.history.person("replay", offset=offset, key=key.name, done=True, **OF)
        self.store(message, key)


def of_kind(events: Events, *kinds: str) -> Events:
    return [event for event in events if event["k"] in kinds]


def pick(random: Random, events: Events) -> dict[str, Any]:
    assume(events)
    return random.choice(events)


def at_place(events: Events, event: dict[str, Any]) -> Events:
    return [other for other in of_kind(events, "deliver") if other["o"] == event["o"]]


def unflag(random: Random, events: Events) -> str:
    again = [event for event in of_kind(events, "deliver") if event is not at_place(events, event)[0]]
    victim = pick(random, again)
    victim.pop("r", None)
    victim.pop("a", None)
    return "repeated"


def forget_last_ack(random: Random, events: Events) -> str:
    victim = pick(random, of_kind(events, "ack"))
    assume(at_place(events, victim)[-1]["u"] == victim["u"])
    gone = {(event.get("o"), event.get("u")) for event in [victim]}
    events[:] = [event for event in events if event["k"] != "ack" or (event["o"], event["u"]) not in gone]
    passed = {event["o"] for event in of_kind(events, "confirm", "dead", "person")}
    assume(victim["o"] not in passed)  # what the brokers confirmed is done
    key = at_place(events, victim)[-1]["y"]
    moments = [{event["at"] for event in of_kind(events, kind) if event["y"] == key} for kind in ("parked", "person")]
    assume(
        not moments[0] & moments[1]
    )  # whether an administrator let the key continue before it was listed is not known
    return "unfinished"


def confirm_what_comes_again(random: Random, events: Events) -> str:
    first = pick(random, [event for event in of_kind(events, "deliver") if at_place(events, event)[-1] is not event])
    events.append({**first, "k": "confirm", "at": events[-1]["at"]})
    for name in ("m", "y", "a", "r"):
        events[-1].pop(name, None)
    return "acknowledged_again"


def old_token(random: Random, events: Events) -> str:
    mine: dict[tuple[str, str], Events] = {}
    for event in of_kind(events, "deliver"):
        mine.setdefault((event["c"], event["y"]), []).append(event)
    pairs = [(a, b) for row in mine.values() for a, b in pairwise(row) if a["u"] < b["u"]]
    assume(pairs)
    a, b = random.choice(pairs)
    b["u"] = a["u"] - 1
    return "stale_token"


def twice_dead(random: Random, events: Events) -> str:
    events.append({**pick(random, of_kind(events, "dead")), "w": "dead 9:9"})
    return "dead_twice"


def dead_elsewhere(random: Random, events: Events) -> str:
    victim = pick(random, of_kind(events, "dead"))
    other = pick(random, [event for event in of_kind(events, "deliver") if event["m"] != victim["m"]])
    events.append({**victim, "o": other["o"], "w": "dead 9:9"})
    return "dead_misplaced"


def lose(random: Random, events: Events) -> str:
    victim = pick(random, of_kind(events, "deliver"))
    assume(not [event for event in of_kind(events, "dead", "person", "parked") if event.get("o") == victim["o"]])
    assume(not [event for event in of_kind(events, "parked") if event["y"] == victim["y"]])
    assume(not [event for event in of_kind(events, "dead") if event["m"] == victim["m"]])
    events[:] = [event for event in events if event["k"] not in ("deliver", "ack") or event["o"] != victim["o"]]
    assume(of_kind(events, "deliver"))
    return "lost"


def delay_ack(random: Random, events: Events) -> str:
    """A message of a key comes although the one before it is acknowledged only afterwards."""
    seen: dict[str, dict[str, Any]] = {}
    pairs = []
    places: set[str] = set()
    for event in of_kind(events, "deliver"):
        before = seen.get(event["y"])
        if before is not None and before["u"] < event["u"] and event["o"] not in places and before["o"] != event["o"]:
            pairs.append((before, event))
        places.add(event["o"])
        seen[event["y"]] = event
    assume(pairs)
    before, event = random.choice(pairs)
    acks = [ack for ack in of_kind(events, "ack") if (ack["o"], ack["u"]) == (before["o"], before["u"])]
    assume(acks)
    acks[0]["at"] = event["at"] + 0.5
    assume(not [other for other in of_kind(events, "dead", "person") if other.get("o") == before["o"]])
    return "overlapped"


FAULTS = [
    unflag, forget_last_ack, confirm_what_comes_again, old_token, twice_dead, dead_elsewhere, lose, delay_ack,
]  # fmt: skip
RANDOMS = st.randoms(use_true_random=True, note_method_calls=False)


@settings(max_examples=300, deadline=None)
@given(random=RANDOMS, steps=st.integers(min_value=0, max_value=120))
def test_kept_promises_pass(random: Random, steps: int) -> None:
    report = check_events(Model(random).run(steps))
    assert report.ok, render(report)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(random=RANDOMS, steps=st.integers(min_value=60, max_value=140))
def test_one_fault_is_found(fault: Any, random: Random, steps: int) -> None:
    events = copy.deepcopy(Model(random).run(steps))
    kind = fault(random, events)
    report = check_events(events)
    assert report.counts[kind] > 0, f"{kind} not found\n{render(report)}"
