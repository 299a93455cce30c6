"""Two members of one segment, joined by links that break: what must hold in any order of events.

Hypothesis plays the producers, both disks, both links, crashes, the switcher and the coordinator. The switcher's rule
for the sealed length is written here once more, from the protocol and not from the code: the commit of an unbroken
master, otherwise an answered tail.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from seriatim_api.ids import MemberId, split_offset
from seriatim_broker.core.broker import BrokerCore
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.log import Batch
from seriatim_broker.core.values.producers import NO_TABLE, entries_of
from seriatim_broker.testing.memory_disk import MemoryDisk

from .support import (
    GROUPS,
    M00,
    M01,
    M20,
    NONCE,
    OTHER_PRODUCER,
    PRODUCER,
    SECOND,
    P,
    attempt,
    checksum,
    filled,
    first_chain,
    header,
    sealed_chain,
)

SWITCH = b"s" * 16
PRODUCERS = (PRODUCER, OTHER_PRODUCER)


class Side:
    """One member: its disk, its running core, and what is on the way from it to the other one."""

    def __init__(self, member: MemberId) -> None:
        self.member = member
        self.disk = MemoryDisk()
        self.run = 0
        self.tickets: list[tuple[int, int]] = []
        self.data: deque[msg.Message] = deque()
        self.control: deque[msg.Message] = deque()
        self.core: BrokerCore

    def image(self, durable: bool) -> tuple[Batch, ...]:
        """Segment 1 as the disk shows it, or as it would come back."""
        disk = self.disk
        if durable:
            disk = MemoryDisk()
            disk.durable = disk.visible = self.disk.durable.twin()
        return tuple(disk.read(P, 1, 0, 1 << 30, 1 << 30)) if P in disk.visible.partitions else ()


class Pair(RuleBasedStateMachine):
    """Master and slave of segment 1."""

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 10 * SECOND
        self.sides = {M00: Side(M00), M01: Side(M01)}
        self.session = 0
        self.is_linked = False
        self.chain: Chain = first_chain()
        self.answers: dict[MemberId, msg.FenceAnswer] = {}
        self.requests = 0
        self.sent: dict[int, tuple[bytes, int, int]] = {}  # request -> producer, sequence, count
        self.next_sequence = dict.fromkeys(PRODUCERS, 0)
        self.producer_run = dict.fromkeys(PRODUCERS, 0)
        self.accepted: dict[int, int] = {}
        self.failed: dict[int, int] = {}

    # ---- the machinery ----

    def _moment(self) -> ev.Moment:
        return ev.Moment(self.now_us, self.now_us // 1000)

    def _other(self, side: Side) -> Side:
        return self.sides[M01 if side.member == M00 else M00]

    def _do(self, side: Side, event: ev.Event | None) -> None:
        core = side.core
        effects = core.start(self._moment()) if event is None else core.step(event, self._moment())
        for effect in effects:
            self._carry_out(side, effect)

    def _carry_out(self, side: Side, effect: fx.Effect) -> None:
        if isinstance(effect, fx.Persist):
            side.tickets.append((side.disk.submit(effect.writes), effect.token))
        elif isinstance(effect, fx.Send) and effect.broker == self._other(side).member.broker:
            if self.is_linked:
                queue = side.data if isinstance(effect.message, msg.DATA) else side.control
                queue.append(effect.message)
        elif isinstance(effect, fx.Send) and isinstance(effect.message, msg.FenceAnswer):
            self.answers[side.member] = effect.message
        elif isinstance(effect, fx.AppendAccepted):
            self._on_accepted(effect)
        elif isinstance(effect, fx.AppendRefused) and effect.error.number == 302:
            self.failed[effect.request] = 1

    def _on_accepted(self, effect: fx.AppendAccepted) -> None:
        """I12 and I6, at the very moment of the reply."""
        no, index = split_offset(effect.offset)
        producer, sequence, count = self.sent[effect.request]
        assert no == 1
        for side in self.sides.values():
            found = [batch.header for batch in side.image(durable=True) if batch.header.base_index == index]
            assert found, f"{side.member} does not have {index} on its disk at the ack"
            assert (found[0].producer, found[0].base_sequence) == (producer, sequence)
        sealed_len = self.chain.segments[0].sealed_len
        assert sealed_len is None or index + count <= sealed_len, "acknowledged above the seal"
        self.accepted[effect.request] = index

    def _start(self, side: Side) -> None:
        side.run += 1
        side.core = BrokerCore(BrokerConfig(), side.member, side.run, NONCE, checksum, side.disk.recover())
        self._do(side, None)
        self._persist(side)
        self._do(side, ev.DirectoryChanged(GROUPS))
        self._do(side, ev.LinkUp(M20.broker, M20, 1, 1))

    def _persist(self, side: Side) -> None:
        if side.tickets:
            ticket, token = side.tickets[-1]
            side.tickets.clear()
            side.disk.flush(ticket)
            self._do(side, ev.Persisted(token))

    def _hear_switcher(self, side: Side, message: msg.Message) -> None:
        self._do(side, ev.Received(M20.broker, 1, message))

    # ---- the beginning ----

    @initialize()
    def open(self) -> None:
        """Both are prepared and learn that the segment is open."""
        for side in self.sides.values():
            self._start(side)
            request = filled(
                msg.PrepareRequest,
                partition=P,
                segment_no=1,
                switch_attempt=attempt(1),
                members=(M00, M01),
                flush=True,
                incomplete_table=False,
                table=NO_TABLE,
                tail=None,
            )
            self._hear_switcher(side, request)
            self._persist(side)
            self._hear_switcher(side, msg.ChainUpdate(self.chain, 101))
            self._persist(side)
        self.link()

    # ---- what happens ----

    @precondition(lambda self: not self.is_linked)
    @rule()
    def link(self) -> None:
        """The connection comes up."""
        self.session += 1
        self.is_linked = True
        for side in self.sides.values():
            other = self._other(side)
            self._do(side, ev.LinkUp(other.member.broker, other.member, other.run, self.session))
        self.flow()

    @rule()
    def flow(self) -> None:
        """All that is on the way arrives, and the answers to it; no disk has written anything more."""
        while any(side.data or side.control for side in self.sides.values()):
            for side in self.sides.values():
                for queue in (side.control, side.data):
                    if queue:
                        message = queue.popleft()
                        self._do(self._other(side), ev.Received(side.member.broker, self.session, message))

    @precondition(lambda self: self.is_linked)
    @rule()
    def cut(self) -> None:
        """It breaks, with all that was on the way."""
        self.is_linked = False
        for side in self.sides.values():
            side.data.clear()
            side.control.clear()
        for side in self.sides.values():
            self._do(side, ev.LinkDown(self._other(side).member.broker, self.session, False))

    @rule(
        producer=st.sampled_from(PRODUCERS),
        count=st.integers(1, 3),
        back=st.integers(0, 2),
        restart=st.booleans(),
    )
    def append(self, producer: bytes, count: int, back: int, restart: bool) -> None:
        """A producer sends its next batch, or one of its last ones again, or one that leaves a gap."""
        mine = [sent for sent in self.sent.values() if sent[0] == producer]
        again = mine[-back] if 0 < back <= len(mine) else None
        sequence = again[1] if again else self.next_sequence[producer]
        count = again[2] if again else count
        starts = restart or self.producer_run[producer] == 0
        if starts:
            self.producer_run[producer] += 1
        self.requests += 1
        self.sent[self.requests] = (producer, sequence, count)
        self.next_sequence[producer] = max(self.next_sequence[producer], sequence + count)
        event = ev.Append(
            self.requests,
            P,
            header(sequence, count, 0, producer),
            b"body",
            self.producer_run[producer],
            starts,
            ev.AckLevel.REPLICATED_FLUSHED,
        )
        self._do(self.sides[M00], event)

    @rule(first=st.booleans(), control=st.booleans(), count=st.integers(1, 4))
    def deliver(self, first: bool, control: bool, count: int) -> None:
        """Some messages of one stream arrive."""
        side = self.sides[M00 if first else M01]
        for _ in range(count):
            queue = side.control if control else side.data
            if not queue or not self.is_linked:
                return
            message = queue.popleft()
            self._do(self._other(side), ev.Received(side.member.broker, self.session, message))

    @rule(first=st.booleans())
    def persist(self, first: bool) -> None:
        """A disk has written all."""
        self._persist(self.sides[M00 if first else M01])

    @rule(ms=st.integers(1, 20))
    def wait(self, ms: int) -> None:
        """A little time passes: less than makes a member suspicious."""
        self.now_us += ms * 1000
        for side in self.sides.values():
            self._do(side, ev.Tick())

    @precondition(lambda self: len(self.sent) > 1)
    @rule(first=st.booleans(), kept=st.integers(0, 3))
    def crash(self, first: bool, kept: int) -> None:
        """A process ends and starts again; its disk keeps what was synced, and perhaps a little more."""
        side = self.sides[M00 if first else M01]
        if self.is_linked:
            self.cut()
        side.disk.crash(min(kept, side.disk.pending_count))
        side.tickets.clear()
        self._start(side)

    @precondition(lambda self: len(self.sent) > 1)
    @rule(first=st.booleans())
    def fence(self, first: bool) -> None:
        """The switcher fences a member."""
        side = self.sides[M00 if first else M01]
        self._hear_switcher(side, msg.FenceRequest(P, 1, attempt(1), SWITCH))

    @precondition(lambda self: bool(self.answers) and self.chain.epoch == 1)
    @rule(longer=st.booleans())
    def seal(self, longer: bool) -> None:
        """The switcher decides from what it was answered."""
        answers = list(self.answers.values())
        unbroken = [answer for answer in answers if answer.unbroken]
        by_length = sorted(answers, key=lambda answer: answer.length or 0)
        chosen = unbroken[0] if unbroken else by_length[-1 if longer else 0]
        assert chosen.length is not None
        assert all(
            entry.offset & ((1 << 40) - 1) < chosen.length for _, window in chosen.table for entry in entries_of(window)
        )
        holders = tuple(m for m, a in self.answers.items() if (a.length or 0) >= chosen.length)
        server = holders[0]
        self.chain = sealed_chain(self.chain, chosen.length, chosen.checksum, server=server, eligible=holders)

    @precondition(lambda self: self.chain.epoch > 1)
    @rule(first=st.booleans())
    def tell(self, first: bool) -> None:
        """A member learns what was decided."""
        self._hear_switcher(self.sides[M00 if first else M01], msg.ChainUpdate(self.chain, 100 + self.chain.epoch))

    @rule(first=st.booleans())
    def answer_read(self, first: bool) -> None:
        """The coordinator answers."""
        side = self.sides[M00 if first else M01]
        if P in side.core.partitions and side.core.partitions[P].reading:
            self._do(side, ev.ChainRead(P, self.chain, 100 + self.chain.epoch))

    # ---- what must hold ----

    @invariant()
    def copies_are_prefixes_of_one_another(self) -> None:
        """I5: the logs never fork, whatever was cut."""
        one, other = (side.image(durable=False) for side in self.sides.values())
        for mine, theirs in zip(one, other, strict=False):
            assert mine.header.checksum == theirs.header.checksum

    @invariant()
    def every_producers_batches_stand_once_and_in_order(self) -> None:
        """Sequences in a log have neither gap nor repeat."""
        for side in self.sides.values():
            expected = dict.fromkeys(PRODUCERS, 0)
            for batch in side.image(durable=False):
                assert batch.header.base_sequence == expected[batch.header.producer]
                expected[batch.header.producer] += batch.header.message_count

    @invariant()
    def what_was_acknowledged_is_below_the_seal(self) -> None:
        """I1: no acknowledged batch is cut off."""
        sealed_len = self.chain.segments[0].sealed_len
        if sealed_len is not None:
            for request, index in self.accepted.items():
                assert index + self.sent[request][2] <= sealed_len

    @invariant()
    def what_is_served_is_on_both_disks_and_below_the_seal(self) -> None:
        """I6 for readers."""
        sealed_len = self.chain.segments[0].sealed_len
        for side in self.sides.values():
            partition = getattr(side, "core", None) and side.core.partitions.get(P)
            log = partition.logs.get(1) if partition else None
            if log is None:
                continue
            assert sealed_len is None or log.readable_below <= sealed_len
            if log.record.sealed_len is None:
                for member in self.sides.values():
                    held = member.image(durable=True)
                    assert log.readable_below <= (held[-1].header.end_index if held else 0)

    @invariant()
    def a_failed_attempt_is_not_in_the_sealed_log(self) -> None:
        """I10, for a batch all of whose attempts failed."""
        sealed_len = self.chain.segments[0].sealed_len
        for request in self.failed:
            assert sealed_len is not None
            for side in self.sides.values():
                for batch in side.image(durable=False):
                    if (batch.header.producer, batch.header.base_sequence) == self.sent[request][:2]:
                        assert batch.header.end_index > sealed_len, "answered `failed`, and sealed in"


WEIGHTS = {
    "append": 12,
    "deliver": 8,
    "persist": 8,
    "flow": 3,
    "link": 3,
    "seal": 3,
    "tell": 3,
    "answer_read": 2,
    "wait": 1,
    "cut": 1,
    "fence": 2,
    "crash": 1,
}


def _possible(pair: Pair) -> list[str]:
    """What may happen now; members are left in peace until something was acknowledged."""
    quiet = not pair.accepted
    impossible = {
        "link": pair.is_linked,
        "cut": not pair.is_linked or quiet,
        "fence": quiet,
        "crash": quiet,
        "seal": not pair.answers or pair.chain.epoch > 1,
        "tell": pair.chain.epoch == 1,
    }
    return [name for name in WEIGHTS if not impossible.get(name)]


def walk(seed: int, steps: int) -> Pair:
    """A random story, all invariants checked after each of its steps."""
    rng = random.Random(seed)
    pair = Pair()
    pair.open()
    arguments: dict[str, Callable[[], dict[str, Any]]] = {
        "append": lambda: {
            "producer": rng.choice(PRODUCERS),
            "count": rng.randint(1, 3),
            "back": rng.choice((0, 0, 0, 1, 2)),
            "restart": rng.random() < 0.2,
        },
        "deliver": lambda: {"first": rng.random() < 0.5, "control": rng.random() < 0.3, "count": rng.randint(1, 4)},
        "wait": lambda: {"ms": rng.randint(1, 20)},
        "seal": lambda: {"longer": rng.random() < 0.5},
        "crash": lambda: {"first": rng.random() < 0.5, "kept": rng.randint(0, 3)},
        **dict.fromkeys(("persist", "fence", "tell", "answer_read"), lambda: {"first": rng.random() < 0.5}),
    }
    for _ in range(steps):
        names = _possible(pair)
        (name,) = rng.choices(names, [WEIGHTS[name] for name in names])
        getattr(pair, name)(**arguments.get(name, dict)())
        pair.copies_are_prefixes_of_one_another()
        pair.every_producers_batches_stand_once_and_in_order()
        pair.what_was_acknowledged_is_below_the_seal()
        pair.what_is_served_is_on_both_disks_and_below_the_seal()
        pair.a_failed_attempt_is_not_in_the_sealed_log()
    return pair


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_in_which_order(seed: int) -> None:
    accepted = sealed = 0
    for part in range(25):
        pair = walk(1000 * seed + part, 70)
        accepted += len(pair.accepted)
        sealed += pair.chain.epoch > 1
    assert accepted > 50, "the walks must get somewhere"
    assert sealed > 3


@pytest.mark.slow
def test_whatever_happens_with_the_shortest_story_that_fails() -> None:
    """The same by hypothesis, which goes fewer ways and shrinks what it finds."""
    run_state_machine_as_test(Pair, settings=settings(max_examples=500, stateful_step_count=60, deadline=None))
