"""Numbered sending: reads, answers, drops and crashes in any order, against a master's producer table."""

from __future__ import annotations

from collections import Counter
from random import Random
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from seriatim_broker.core.state import numbered_sending
from seriatim_broker.core.state.numbered_sending import Item, Limits, NumberedSending, producer_epoch_of, term_of_number
from seriatim_broker.core.values.keyed import DeadLetterRow

BYTES_MAX = 20
LIMITS = Limits(items_max=4, pause_us=5_000, pause_us_max=200_000, held_up_us=10_000)


class World:
    """A server and its successors, the master of the other partition, and what is on its way between them.

    The methods are what may happen, and `n` chooses. `records` are the control records of the server: the number of
    each body, the next number, and the bodies that are done. `newest` is the table; a producer is a term.
    """

    def __init__(self) -> None:
        self.now_us = self.serial = self.confirmed = self.count = self.term = 0
        self.bodies: dict[bytes, bytes] = {}
        self.records: dict[int, tuple[dict[bytes, int], int, frozenset[bytes]]] = {0: ({}, 1, frozenset())}
        self.requests: list[tuple[int, dict[int, bytes]]] = []
        self.answers: list[tuple[int, int, bool]] = []
        self.newest: Counter[int] = Counter()
        self.stored: list[bytes] = []
        self.sent: dict[int, bytes] = {}
        self.sending: NumberedSending[Item] = NumberedSending(LIMITS)

    def come(self, n: int, name: bytes = b"") -> None:
        self.count += 1
        name = name or b"%d" % self.count
        self.bodies[name] = b"%d " % self.count * (1 + n)
        self.sending.waiting[name] = Item(name)

    def drop(self, n: int) -> None:
        """Retention drops one, on all disks. Something else comes under its name."""
        for name in list(self.sending.waiting)[n : n + 1]:
            del self.sending.waiting[name]
            self.come(n, name)

    def read(self, n: int) -> None:
        wanted = [item for item in self.sending.to_read(self.now_us) if item.from_us <= self.now_us]
        for item in wanted[n % 4 : n % 4 + 1]:
            if n == 5:
                assert LIMITS.pause_us <= self.sending.read_failed(item, self.now_us) <= LIMITS.pause_us_max
                continue
            item.row = DeadLetterRow(self.bodies[item.name], 0, is_keyed=True)
            if not item.number:
                self.sending.give_number(item, self.term)
                item.written = self.write()
        assert sum(bool(item.number) for item in self.sending.waiting.values()) <= LIMITS.items_max

    def write(self, done: frozenset[bytes] = frozenset()) -> int:
        self.serial += 1
        numbers = {self.bodies[item.name]: item.number for item in self.sending.waiting.values() if item.number}
        done |= self.records[max(self.records)][2]
        self.records[self.serial] = numbers, self.sending.next_number, done
        return self.serial

    def confirm(self, n: int) -> None:
        later = sorted(serial for serial in self.records if serial > self.confirmed)
        self.confirmed = max(later[: n + 1], default=self.confirmed)

    def send(self, _n: int) -> None:
        ready = self.sending.ready(lambda serial: serial <= self.confirmed)
        if self.now_us < self.sending.send_from_us or not ready:
            return
        batches = {item.number: item.row.body for item in ready if item.row is not None}
        numbers = sorted(item.number for item in self.sending.waiting.values() if item.number)
        assert list(batches) == numbers[: len(ready)], "in the order of numbers, none left out"
        assert len(set(map(term_of_number, batches))) == 1
        assert len(ready) == 1 or sum(map(len, batches.values())) <= BYTES_MAX
        assert {**self.sent, **batches} == {**batches, **self.sent}, "never two bodies under one number"
        self.sent |= batches
        self.serial += 1
        self.sending.begin(self.serial, ready, self.now_us)
        self.requests.append((self.serial, batches))

    def arrive(self, n: int) -> None:
        """A request arrives, perhaps late, or a second time. The master stores a part of it."""
        for serial, batches in self.requests[-1 - n // 2 :][:1]:
            for number, body in list(batches.items())[:n]:
                term, epoch = term_of_number(number), producer_epoch_of(number)
                if epoch > self.newest[term]:
                    self.newest[term] = epoch
                    self.stored.append(body)
            self.answers.append((serial, n, n >= len(batches)))

    def answer(self, n: int) -> None:
        serial, count, is_all = self.answers[-1 - n // 2 :][0] if self.answers else (0, 0, False)
        items = self.sending.answered(serial, count)
        if items is None:
            return
        done = frozenset(self.bodies[item.name] for item in items)
        assert done <= set(self.stored), "only what is stored is done"
        for item in items:
            del self.sending.waiting[item.name]
        self.write(done)
        if is_all:
            self.sending.taken()
        elif self.sending.refused("full", self.now_us):
            assert not any(item.row for item in self.sending.waiting.values())
        assert (self.sending.send_from_us > self.now_us) != is_all

    def wait(self, n: int) -> None:
        self.now_us += 1 << (8 + 3 * n)

    def crash(self, n: int) -> None:
        """Another member continues, with what it has: all that is confirmed, and perhaps more."""
        serial = next(serial for serial in sorted(self.records)[n - 6 :] if serial >= self.confirmed)
        self.records = {serial: self.records[serial]}
        numbers, next_number, done = self.records[serial]
        waiting = {name: Item(name, numbers.get(body, 0)) for name, body in self.bodies.items() if body not in done}
        self.term, self.answers = self.term + n % 2, []
        self.sending = NumberedSending(LIMITS, waiting, next_number)
        self.sending.taken_up()
        first = self.write()
        for item in waiting.values():
            item.written = first


ACTIONS = (
    *[World.come] * 3, *[World.read] * 4, *[World.confirm] * 2, *[World.send] * 2, *[World.arrive] * 2,
    *[World.answer] * 2, *[World.wait] * 2, World.drop, World.crash,
)  # fmt: skip


@mock.patch.object(numbered_sending, "REQUEST_BYTES_MAX", BYTES_MAX)
@given(st.integers(0, 1 << 32))
@settings(max_examples=150, deadline=None)
def test_reads_answers_and_crashes_in_any_order(seed: int) -> None:
    world, rng = World(), Random(seed)
    for _ in range(300):
        rng.choice(ACTIONS)(world, rng.randrange(6))
    for _ in range(3 * len(world.sending.waiting)):  # nothing fails any more
        world.wait(6)
        world.requests, world.answers = [], []
        for action in (World.read, World.confirm, World.send, World.arrive, World.answer):
            action(world, 4)
    assert max(Counter(world.stored).values(), default=1) == 1, "each one once"
    assert set(world.bodies.values()) <= set(world.stored), "none is left out"


def test_pauses_double_up_to_the_longest_one() -> None:
    sending: NumberedSending[Item] = NumberedSending(LIMITS)
    found = [(sending.refused("full", 0), sending.send_from_us // 1_000) for _ in range(8)]
    assert [pause for _, pause in found] == [5, 10, 20, 40, 80, 160, 200, 200]
    assert [at for at, (is_news, _) in enumerate(found) if is_news] == [1], "once"
    assert (sending.taken(), sending.taken()) == (True, False)
