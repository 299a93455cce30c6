"""Histories drawn from a model that keeps every promise must pass; with one fault put in, that fault must be found.

The model is a broker in a few lines: producers with messages in flight, a log for each partition cut into segments,
groups that read it and sometimes go back a little, flagged.
"""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from seriatim.history import MemoryHistory, check_events, render

Events = list[dict[str, Any]]
TOPIC = "t"


class Model:
    """Runs a random but faultless cluster and records what its clients saw."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.history = MemoryHistory("model", self._tick)
        self.partitions = random.randint(1, 2)
        self.logs: list[list[tuple[int, str]]] = [[] for _ in range(self.partitions)]
        self.tails = [[1, 0] for _ in range(self.partitions)]  # segment, next index
        self.producers = [f"p{n}" for n in range(random.randint(1, 3))]
        lanes = [(producer, partition) for producer in self.producers for partition in range(self.partitions)]
        self.in_flight: dict[tuple[str, int], list[int]] = {lane: [] for lane in lanes}
        self.sequences = dict.fromkeys(self.in_flight, 0)
        self.epochs = dict.fromkeys(self.in_flight, 0)
        self.unanswered: list[tuple[int, str | None]] = []  # stored (or, None, never to be), not yet answered
        self.groups = [f"g{n}" for n in range(random.randint(1, 2))]
        self.read = {(g, q): 0 for g in self.groups for q in range(self.partitions)}
        self.seen = dict(self.read)
        self.next_id = 0

    def _tick(self) -> float:
        self.now += self.random.choice([0.0, 0.001, 1.0])  # moments may coincide
        return self.now

    def run(self, steps: int) -> Events:
        often = [self.send, self.store, self.deliver]
        moves = [*often, *often, self.answer, self.switch, self.back]
        for _ in range(steps):
            self.random.choice(moves)()
        while any(self.in_flight.values()):
            self.store()
        while self.unanswered:
            self.answer()
        for (group, partition), _ in sorted(self.read.items()):
            while self.read[group, partition] < len(self.logs[partition]):
                self.deliver_to(group, partition)
        self.history.end()
        return self.history.events

    def send(self) -> None:
        lane = self.random.choice(list(self.in_flight))
        producer, partition = lane
        self.history.send(
            self.next_id, producer=producer, topic=TOPIC, partition=partition, sequence=self.sequences[lane],
            epoch=self.epochs[lane],
        )  # fmt: skip
        self.sequences[lane] += 1
        self.in_flight[lane].append(self.next_id)
        self.next_id += 1

    def store(self) -> None:
        lanes = [lane for lane, pending in self.in_flight.items() if pending]
        if not lanes:
            return
        lane = self.random.choice(lanes)
        message = self.in_flight[lane].pop(0)
        fate = self.random.random()
        if fate < 0.1:
            self.history.outcome(message, "failed")
        elif fate < 0.2:
            self.unanswered.append((message, None))
            self.epochs[lane] += 1
            self.sequences[lane] = 0
        else:
            segment, index = self.tails[lane[1]]
            self.tails[lane[1]][1] += 1
            self.logs[lane[1]].append((message, f"{segment}:{index}"))
            self.unanswered.append((message, f"{segment}:{index}"))

    def answer(self) -> None:
        if not self.unanswered:
            return
        message, offset = self.unanswered.pop(self.random.randrange(len(self.unanswered)))
        if offset is None or self.random.random() < 0.1:
            self.history.outcome(message, "unknown")
        else:
            self.history.outcome(message, "ok", offset=offset)

    def deliver(self) -> None:
        group, partition = self.random.choice(list(self.read))
        if self.read[group, partition] < len(self.logs[partition]):
            self.deliver_to(group, partition)

    def deliver_to(self, group: str, partition: int) -> None:
        position = self.read[group, partition]
        message, offset = self.logs[partition][position]
        again = position < self.seen[group, partition]
        self.history.deliver(
            message, group=group, consumer="c", topic=TOPIC, partition=partition, offset=offset,
            maybe_repeated=again or self.random.random() < 0.05,
        )  # fmt: skip
        self.read[group, partition] = position + 1
        self.seen[group, partition] = max(self.seen[group, partition], position + 1)

    def switch(self) -> None:
        tail = self.random.choice(self.tails)
        tail[0] += self.random.randint(1, 2)
        tail[1] = 0

    def back(self) -> None:
        reader = self.random.choice(list(self.read))
        self.read[reader] = max(0, self.read[reader] - self.random.randint(0, 3))


def of_kind(events: Events, kind: str) -> Events:
    return [event for event in events if event["k"] == kind]


def pick(random: Random, events: Events) -> dict[str, Any]:
    assume(events)
    return random.choice(events)


def firsts(events: Events) -> Events:
    """First deliveries, as the events themselves."""
    seen: set[tuple[str, int]] = set()
    found = []
    for event in of_kind(events, "deliver"):
        if (event["g"], event["m"]) not in seen:
            seen.add((event["g"], event["m"]))
            found.append(event)
    return found


def two_firsts(random: Random, events: Events) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two first deliveries to one group from one partition, the earlier one first."""
    pairs = [
        (a, b)
        for n, a in enumerate(firsts(events))
        for b in firsts(events)[n + 1 :]
        if (a["g"], a["q"]) == (b["g"], b["q"])
    ]
    assume(pairs)
    return random.choice(pairs)


def of_message(events: Events, kind: str, message: int) -> dict[str, Any]:
    return next(event for event in events if event["k"] == kind and event["m"] == message)


def lose(random: Random, events: Events) -> str:
    victim = pick(random, [e for e in of_kind(events, "deliver") if of_message(events, "outcome", e["m"])["x"] == "ok"])
    gone = [e for e in of_kind(events, "deliver") if (e["g"], e["m"]) == (victim["g"], victim["m"])]
    for event in gone:
        events.remove(event)
    # A group of which no delivery is left is not known to read the topic, unless it says so.
    events.append({"k": "end", "at": events[-1]["at"], "g": victim["g"], "t": TOPIC, "drained": True})
    return "lost"


def repeat(random: Random, events: Events) -> str:
    victim = pick(random, [e for e in of_kind(events, "deliver") if not e.get("r")])
    events.insert(random.randint(events.index(victim) + 1, len(events)), dict(victim))
    return "repeated"


def swap_deliveries(random: Random, events: Events) -> str:
    a, b = two_firsts(random, events)
    for key in ("m", "o"):
        a[key], b[key] = b[key], a[key]
    return "reordered_offset"


def swap_deliveries_to_one_of_two_groups(random: Random, events: Events) -> str:
    assume(len({event["g"] for event in of_kind(events, "deliver")}) == 2)
    swap_deliveries(random, events)
    return "reordered_group"


def swap_sequences(random: Random, events: Events) -> str:
    arrived = {event["m"] for event in of_kind(events, "deliver")}
    sends = [event for event in of_kind(events, "send") if event["m"] in arrived]
    lanes = ("p", "q", "e")
    pairs = [(a, b) for a in sends for b in sends if a["m"] < b["m"] and all(a.get(k) == b.get(k) for k in lanes)]
    assume(pairs)
    a, b = random.choice(pairs)
    a["s"], b["s"] = b["s"], a["s"]
    return "reordered_producer"


def send_after_ack(random: Random, events: Events) -> str:
    a, b = two_firsts(random, events)
    answer = of_message(events, "outcome", b["m"])
    assume(answer["x"] == "ok")
    of_message(events, "send", a["m"])["at"] = answer["at"] + 0.5
    return "reordered_realtime"


def fail(random: Random, events: Events) -> str:
    victim = of_message(events, "outcome", pick(random, of_kind(events, "deliver"))["m"])
    victim["x"] = "failed"
    victim.pop("o", None)
    return "failed_delivered"


def forget_outcome(random: Random, events: Events) -> str:
    events.remove(pick(random, of_kind(events, "outcome")))
    return "stuck"


def do_not_drain(random: Random, events: Events) -> str:
    assume(of_kind(events, "deliver"))
    events[-1]["drained"] = False
    return "stuck"


def move(random: Random, events: Events) -> str:
    arrived = {event["m"] for event in of_kind(events, "deliver")}
    victim = pick(random, [e for e in of_kind(events, "outcome") if "o" in e and e["m"] in arrived])
    victim["o"] = "7777:7"
    return "misplaced"


def contradict(random: Random, events: Events) -> str:
    victim = pick(random, of_kind(events, "outcome"))
    events.append({**victim, "x": "failed" if victim["x"] == "unknown" else "unknown"})
    return "contradicted"


def forget_send(random: Random, events: Events) -> str:
    events.remove(of_message(events, "send", pick(random, of_kind(events, "deliver"))["m"]))
    return "unsent"


FAULTS = [
    lose, repeat, swap_deliveries, swap_deliveries_to_one_of_two_groups, swap_sequences, send_after_ack, fail,
    forget_outcome, do_not_drain, move, contradict, forget_send,
]  # fmt: skip

RANDOMS = st.randoms(use_true_random=True, note_method_calls=False)
STEPS = st.integers(min_value=0, max_value=80)


@settings(max_examples=300, deadline=None)
@given(random=RANDOMS, steps=STEPS)
def test_kept_promises_pass(random: Random, steps: int) -> None:
    report = check_events(Model(random).run(steps))
    assert report.ok, render(report)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(random=RANDOMS, steps=st.integers(min_value=30, max_value=80))
def test_one_fault_is_found(fault: Any, random: Random, steps: int) -> None:
    events = copy.deepcopy(Model(random).run(steps))
    kind = fault(random, events)
    report = check_events(events)
    assert report.counts[kind] > 0, f"{kind} not found\n{render(report)}"
    shown = [finding for finding in report.findings if finding.kind == kind]
    assert shown
    assert all(finding.events or kind == "stuck" for finding in shown)
