"""The place of a consumer group, as its server reports it: never less than before, and an error instead of a guess."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api import errors
from seriatim_api.errors import OverloadedError
from seriatim_broker.core.consumers.groups import questions
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.keyed import ConsumerMode

from .support import GROUP, M01, MS, P, Serving, control_record


def described(bench: Serving) -> fx.ConsumerGroupDescribed:
    before = len(bench.all(fx.ConsumerGroupDescribed))
    bench.do(ev.DescribeConsumerGroup(9, P, GROUP))
    bench.look_up()
    (found,) = bench.all(fx.ConsumerGroupDescribed)[before:]
    return found


def test_what_the_server_alone_has_is_not_shown() -> None:
    bench = Serving()
    bench.serve()
    bench.ack(2)
    bench.wait(bench.config.ack_replication_us, ())
    bench.persist()
    assert described(bench).position == 0, "the other eligible member does not have it"
    bench.confirm_replications()
    found = described(bench)
    assert (found.acked, found.position, found.error) == (3, 3, None)


def test_a_new_server_does_not_know_what_was_confirmed_before_it_has_asked() -> None:
    """It found 3 on its disk: all of it, or only some of it, may have been confirmed to a consumer."""
    bench = Serving(cursors=(control_record(1, GROUP, 1, 3, 5),))
    bench.link(M01)
    bench.join()
    bench.look_up()
    bench.written()
    bench.persist()
    bench.wait(bench.config.serve_lease_us + bench.config.serve_margin_us + bench.config.heartbeat_us, (M01,))
    bench.cursor()
    found = described(bench)
    assert found.position is None
    assert found.active, "who reads is known all the same"
    bench.persist_everywhere()
    assert described(bench).position == 3


def test_a_server_without_readers_tells_what_is_on_its_disk() -> None:
    bench = Serving(cursors=(control_record(1, GROUP, 1, 3, 5),))
    assert described(bench).position == 3


def test_a_broker_that_does_not_serve_says_so_and_shows_no_zeros() -> None:
    bench = Serving(server=M01)
    found = described(bench)
    assert isinstance(found.error, errors.NotServingError)


def test_behind_an_unsettled_segment_the_position_is_not_known() -> None:
    bench = Serving()
    segment = replace(bench.chain.segments[0], base=None)
    bench.chain = replace(bench.chain, segments=(segment, *bench.chain.segments[1:]), epoch=bench.chain.epoch + 1)
    found = described(bench)
    assert found.position is None
    assert found.error is None


def test_so_many_descriptions_are_asked_for_at_once_and_the_next_one_is_refused() -> None:
    bench = Serving()
    for request in range(questions.DESCRIPTIONS_MAX + 1):
        bench.do(ev.DescribeConsumerGroup(request, P, GROUP))
    (refused,) = bench.all(fx.ConsumerGroupDescribed)
    assert refused.request == questions.DESCRIPTIONS_MAX
    assert isinstance(refused.error, OverloadedError)
    assert refused.error.retry_after_ms
    bench.do(ev.ResolveConsumer(1_000, P, GROUP, None, ev.StartPosition.EARLIEST, bench.now_us + MS))
    assert not bench.all(fx.ConsumerResolved), "consumers have room of their own"
    bench.look_up()
    assert len(bench.all(fx.ConsumerGroupDescribed)) == 1 + questions.DESCRIPTIONS_MAX
    assert described(bench).error is None, "there is room again"


def test_questions_of_consumers_have_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "QUESTIONS_MAX", 2)
    bench = Serving()
    for request in range(3):
        bench.do(ev.ResolveConsumer(request, P, GROUP, None, ev.StartPosition.EARLIEST, bench.now_us + MS))
    (refused,) = bench.all(fx.ConsumerResolved)
    assert (refused.request, type(refused.error)) == (2, OverloadedError)


@pytest.mark.parametrize("mode", [ConsumerMode.EXCLUSIVE, ConsumerMode.KEY_ORDERED])
def test_beginning_of_a_group_that_a_person_asked_about_first(mode: ConsumerMode) -> None:
    """Its consumer says how it begins: the administrator's question says nothing of that."""
    bench = Serving()
    bench.do(ev.DescribeConsumerGroup(9, P, GROUP))
    until_us = bench.now_us + 2_000 * MS
    bench.do(ev.ResolveConsumer(10, P, GROUP, None, ev.StartPosition.LATEST, until_us, mode))
    bench.read_chain(bench.chain)
    bench.do(ev.CursorRead(P, GROUP, None, 0))
    assert not bench.all(fx.WriteCursor), "it begins at the end of the open segment, which this member does not have"
    assert [answer.request for answer in bench.all(fx.ConsumerResolved)] == [10]
