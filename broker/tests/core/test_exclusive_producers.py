"""Batches of exclusive producers: whose a master takes, and when it asks the coordinator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from seriatim_api import errors
from seriatim_api.batch import FLAG_CONTROL
from seriatim_api.exclusive import exclusive_producer
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.messages import FORM_EXCLUSIVE
from seriatim_broker.core.values.owners import OwnerRead, OwnerRecord, ReadOwner

from .support import M01, Bench, P, first_chain, header

OWNED = exclusive_producer(1, "loader")


class Owned(Bench):
    """All brokers know exclusive producers."""

    forms = FORM_EXCLUSIVE

    def send(self, epoch: int, sequence: int = 1, *, control: bool = False, forward: bool | None = None) -> Any:
        """A batch of an owner, or a control batch. Returns its error; None if it is stored or waits for the commit."""
        self.requests += 1
        sent = header(0 if control else sequence, 1, epoch, OWNED, flags=FLAG_CONTROL if control else 0)
        level = ev.AckLevel.REPLICATED_FLUSHED if control else ev.AckLevel.MASTER_RECEIVED
        self.do(
            ev.Append(
                self.requests, P, sent, b"body", self.requests, True, level,
                is_forward=control if forward is None else forward,
            )
        )  # fmt: skip
        return self.refused().get(self.requests)

    def has_read(self, epoch: int | None, *, topic: str = "t", failed: bool = False) -> None:
        """The coordinator answers what is asked."""
        record = OwnerRecord(topic, "loader", epoch, "host:1") if epoch is not None else None
        for asked in self.all(ReadOwner):
            self.do(OwnerRead(asked.serial, P, record, failed))
        self.clear()

    def looks(self) -> Any:
        """What was read of owners, or is being read."""
        log: Any = self.part.open_log()
        return log.heard.owners

    def sends_as_read(self, record: int | None, epoch: int, sequence: int = 1, *, control: bool = False) -> Any:
        """A batch of a producer that the master does not know; the record is read for it."""
        assert isinstance(self.send(epoch, sequence, control=control), errors.OverloadedError)
        self.has_read(record)
        return self.send(epoch, sequence, control=control)


def master(kind: type[Bench] = Owned) -> Any:
    """A master of topic t."""
    bench = kind()
    bench.open(replace(first_chain(), topic="t"))
    bench.follow(M01)
    bench.clear()
    return bench


def test_an_owner_sends_from_sequence_1_after_its_control_batch() -> None:
    bench = master()
    assert bench.sends_as_read(5, 5, control=True) is None
    assert [bench.send(5, sequence) for sequence in (1, 2, 3)] == [None] * 3
    assert not bench.all(ReadOwner), "a known owner waits for no coordinator"
    assert isinstance(bench.send(5, 5), errors.SequenceGapError)


def test_an_earlier_owner_is_refused_whatever_its_sequence_is() -> None:
    bench = master()
    assert bench.sends_as_read(6, 6, control=True) is None
    for sequence in (0, 1, 2):
        error = bench.send(5, sequence)
        assert isinstance(error, errors.ProducerFencedError)
        assert not error.retriable
        assert error.details["epoch"] == "6"
    assert isinstance(bench.send(5, control=True), errors.ProducerFencedError), "also a control batch that comes late"


def test_a_later_owner_is_taken_after_its_control_batch_only() -> None:
    bench = master()
    assert bench.sends_as_read(5, 5, control=True) is None
    assert isinstance(bench.send(6, 1), errors.ProducerFencedError)
    assert bench.send(6, control=True) is None
    assert bench.send(6, 1) is None
    assert isinstance(bench.send(5, 1), errors.ProducerFencedError)


def test_a_control_batch_that_comes_again_is_stored_once() -> None:
    bench = master()
    assert bench.sends_as_read(5, 5, control=True) is None
    bench.send(5, control=True)
    bench.persist()
    assert not bench.accepted(), "it is not committed yet"
    bench.ack(M01, 1)
    assert len(set(bench.accepted().values())) == 1
    assert len(bench.accepted()) == 2


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize(("record", "epoch"), [(None, 5), (6, 5), (5, 6)])
def test_an_unknown_producer_is_compared_with_the_record(record: int | None, epoch: int, control: bool) -> None:
    error = master().sends_as_read(record, epoch, control=control)
    assert isinstance(error, errors.ProducerFencedError)
    assert error.details["epoch"] == str(record or 0)
    assert error.details.get("owner") == ("host:1" if record else None)


def test_a_record_below_a_later_owner_is_read_again_once() -> None:
    bench = master()
    bench.send(4)  # its program ends, and does not send it again
    bench.has_read(4)
    assert bench.sends_as_read(5, 5, control=True) is None
    bench = master()
    bench.send(4)
    bench.has_read(4)
    error = bench.sends_as_read(4, 5, control=True)
    assert isinstance(error, errors.ProducerFencedError), "the coordinator has lost owner 5"
    assert not bench.all(ReadOwner)
    assert bench.send(4) is None


def test_a_record_of_another_topic_does_not_count() -> None:
    bench = master()
    bench.send(5)
    bench.has_read(5, topic="u")
    assert isinstance(bench.send(5), errors.ProducerFencedError)


def test_a_partition_that_grew_takes_the_owner_in_the_record() -> None:
    bench = master()
    assert isinstance(bench.sends_as_read(5, 5, 17), errors.SequenceGapError)
    assert bench.send(5, 1) is None


def test_a_silent_coordinator_is_asked_again() -> None:
    bench = master()
    bench.send(5)
    bench.send(5)
    assert len(bench.all(ReadOwner)) == 1
    bench.has_read(None, failed=True)
    assert bench.send(5).retriable
    bench.has_read(5)
    assert bench.send(5) is None


def test_what_was_read_does_not_count_in_the_next_segment_or_after_an_append() -> None:
    bench = master()
    assert bench.sends_as_read(5, 5) is None
    assert not bench.looks()
    bench = master()
    bench.send(5)
    bench.has_read(5)
    assert bench.looks()
    reading = master()
    reading.send(5)
    (asked,) = reading.all(ReadOwner)
    reading.part.open_log().heard.owners = {}
    reading.do(OwnerRead(asked.serial, P, OwnerRecord("t", "loader", 5, "host:1")))
    assert not reading.looks(), "the answer to a read of before"


def test_many_unknown_producers_are_bounded() -> None:
    bench = master()
    for number in range(100):
        sent = header(1, 1, 5, exclusive_producer(1, str(number)))
        bench.do(ev.Append(number + 1, P, sent, b"body", 1, True, ev.AckLevel.REPLICATED))
    assert len(bench.looks()) == 64


def test_a_client_may_not_send_a_control_batch() -> None:
    bench = master()
    assert bench.sends_as_read(5, 5, control=True) is None
    assert isinstance(bench.send(6, control=True, forward=False), errors.BadRequestError)


def test_brokers_that_do_not_know_it_refuse_it_finally() -> None:
    bench = master(Bench)
    bench.do(ev.Append(1, P, header(1, 1, 5, OWNED), b"body", 1, True, ev.AckLevel.REPLICATED))
    assert isinstance(bench.refused()[1], errors.BadRequestError)
    assert not bench.all(ReadOwner)
