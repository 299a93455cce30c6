"""Owners that come and go, late messages, and tables that forget: whatever happens, owners stay in order.

A partition is led by one master after another. Brokers announce owners, also late ones; programs send, also those that
are owners no more. Each rule that one partition can show is left out once, and must be missed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from seriatim_broker.core.state.segment_log import SegmentLog
from seriatim_broker.core.values.log import PutBatch
from seriatim_broker.core.values.owners import OwnerRead, OwnerRecord, ReadOwner
from seriatim_broker.core.values.producers import NO_TABLE, ProducerTable
from seriatim_broker.core.writing import exclusive_producers

from .test_exclusive_producers import Owned, master

SEEDS = 150
STEPS = 60


class OutOfOrderError(AssertionError):
    """A promise about owners is broken."""


class OwnerWorld:
    """One partition, the record of its owner, and all programs that ever were owners."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench: Owned = master()
        self.epoch = 0  # in the record
        self.asked: list[tuple[int, int]] = []  # serial of a read, and the epoch when it was asked for
        self.newest = 0  # epoch in the log
        self.reported = 0  # the latest owner of which a broker reported that it is announced
        self.sequences: dict[int, int] = {}

    def run(self) -> None:
        acts = (
            self.raise_epoch,
            self.announce,
            self.send,
            self.send,
            self.answer,
            self.answer,
            self.switch,
            self.forget,
        )
        for _ in range(STEPS):
            self.random.choice(acts)()

    @property
    def log(self) -> SegmentLog:
        log = self.bench.part.open_log()
        assert log is not None
        return log

    def raise_epoch(self) -> None:
        self.epoch += 1

    def announce(self) -> None:
        """Mostly of the owner in the record; late messages of brokers announce earlier ones. None comes before it."""
        epoch = min(self._some_epoch(), self.epoch)
        if epoch and self._sent(epoch, 0, control=True) is None:
            self.newest = max(self.newest, epoch)
            self.reported = max(self.reported, epoch)
            self._check(epoch, "is announced")

    def send(self) -> None:
        epoch = self._some_epoch()
        sequence = self.sequences.get(epoch, 1)
        if self._sent(epoch, sequence, control=False) is None:
            self.sequences[epoch] = sequence + 1
            self._check(epoch, "sends")
            self.newest = epoch

    def _some_epoch(self) -> int:
        return max(1, self.epoch - self.random.choice((0, 0, 1, 1, 2, 3)) + (self.random.random() < 0.1))

    def _sent(self, epoch: int, sequence: int, *, control: bool) -> Any:
        self.bench.clear()
        error = self.bench.send(epoch, sequence, control=control)
        assert error is not None or control or self.bench.writes(PutBatch), "what is new is stored"
        self.asked += [(asked.serial, self.epoch) for asked in self.bench.all(ReadOwner)]
        return error

    def _check(self, epoch: int, what: str) -> None:
        if epoch < max(self.newest, self.reported):
            raise OutOfOrderError(f"owner {epoch} {what} after owner {max(self.newest, self.reported)}")

    def answer(self) -> None:
        """The coordinator answers with what it had when it was asked, or has now."""
        if not self.asked:
            return
        serial, epoch = self.asked.pop(self.random.randrange(len(self.asked)))
        epoch = self.random.choice((epoch, self.epoch))
        record = OwnerRecord("t", "loader", epoch, "host:1") if epoch else None
        self.bench.do(OwnerRead(serial, self.bench.part.id, record, self.random.random() < 0.1))

    def switch(self) -> None:
        """The next segment opens here, with the table of the one before, or over that of another broker."""
        if self.random.random() < 0.5:
            self._replace(self.log.live_table.as_of(1 << 62))
            return
        if self.random.random() < 0.5:
            self.epoch += 1
            self.newest = self.reported = self.epoch  # there
        self._replace(NO_TABLE)

    def _replace(self, table: Any) -> None:
        before = self.log
        log = SegmentLog(before.partition, before.record, table)
        log.active = log.unbroken = True
        self.bench.part.logs = {before.no: log}

    def forget(self) -> None:
        """Other producers push this one out."""
        self.log.table = ProducerTable()


def _let_unknown_owners_in(monkeypatch: pytest.MonkeyPatch) -> None:
    known = exclusive_producers.refusal

    def refusal(*given: Any) -> Any:
        return None if given[-1] is None else known(*given)

    monkeypatch.setattr(exclusive_producers, "refusal", refusal)


def _keep_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusive_producers, "note_append", lambda *_: None)


def _keep_what_was_read_before(monkeypatch: pytest.MonkeyPatch) -> None:
    replace = OwnerWorld._replace

    def replaced(self: OwnerWorld, table: Any) -> None:
        heard = self.log.heard
        replace(self, table)
        self.log.heard = heard

    monkeypatch.setattr(OwnerWorld, "_replace", replaced)


def _answer_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_announced(log: SegmentLog, event: Any) -> bool:
        last = log.live_table.last(event.header.producer)
        return last is not None and event.header.producer_epoch <= last.epoch

    monkeypatch.setattr(exclusive_producers, "is_announced", is_announced)


def run_all() -> int:
    """Run the world of each seed; returns how many messages were taken."""
    worlds = [OwnerWorld(seed) for seed in range(SEEDS)]
    for world in worlds:
        world.run()
    return sum(sequence - 1 for world in worlds for sequence in world.sequences.values())


def test_owners_stay_in_order() -> None:
    assert run_all() > SEEDS


@pytest.mark.parametrize(
    "leave_out",
    [_let_unknown_owners_in, _keep_what_was_read, _keep_what_was_read_before, _answer_first],
)
def test_a_rule_that_is_left_out_is_missed(
    leave_out: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch)
    with pytest.raises(OutOfOrderError):
        run_all()
