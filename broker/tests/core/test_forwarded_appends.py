"""What a master does with a forwarder's batches: repeats by their number, and what clients may not send."""

from __future__ import annotations

from dataclasses import replace

from seriatim_api import errors
from seriatim_api.dead_letters import FORWARDER_MARK, group_hash
from seriatim_api.ids import make_offset
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev

from .support import M01, Bench, P, header, opened_master

PRODUCER = b"producer" + FORWARDER_MARK


def letter(request: int, number: int, producer: bytes = PRODUCER, for_group: int = 0) -> ev.Append:
    """A forwarder's batch with that number, alone in its request."""
    sent = header(0, 1, number, producer, b"x", for_group=for_group)
    return ev.Append(request, P, sent, b"x", request, True, ev.AckLevel.REPLICATED_FLUSHED, is_forward=True)


def refusals(bench: Bench) -> list[errors.SeriatimError]:
    """The errors with which batches were refused."""
    return [effect.error for effect in bench.all(fx.AppendRefused)]


def test_a_number_above_the_last_one_is_stored_whatever_lies_between() -> None:
    bench = opened_master()
    bench.do(letter(1, 3))
    bench.do(letter(2, 9))
    bench.persist()
    bench.ack(M01, 2)
    assert bench.accepted() == {1: make_offset(1, 0), 2: make_offset(1, 1)}


def test_a_number_below_the_last_one_is_stored_and_answered_once_that_is_committed() -> None:
    bench = opened_master()
    bench.do(letter(1, 3))
    bench.do(letter(2, 4))
    bench.do(letter(3, 3))
    bench.persist()
    assert not bench.accepted(), "the other member has none of them"
    bench.ack(M01, 1)
    assert set(bench.accepted()) == {1}, "number 4, which shows that 3 is stored, may still be cut off"
    bench.ack(M01, 2)
    assert set(bench.accepted()) == {1, 2, 3}
    assert not refusals(bench)


def test_a_client_may_not_send_as_a_forwarder_or_for_one_group() -> None:
    bench = opened_master()
    bench.do(replace(letter(1, 0), is_forward=False))
    bench.do(replace(letter(2, 0, b"p" * 16, group_hash("g")), is_forward=False))
    assert [type(error) for error in refusals(bench)] == [errors.BadRequestError] * 2


def test_copies_of_several_dead_letters_are_each_stored_once() -> None:
    bench = opened_master()
    for request, producer in enumerate((b"replay 1", b"replay 2", b"replay 1")):
        bench.do(letter(request + 1, 0, producer + FORWARDER_MARK, group_hash("g")))
    bench.persist()
    bench.ack(M01, 2)
    assert bench.accepted() == {1: make_offset(1, 0), 2: make_offset(1, 1), 3: make_offset(1, 0)}
