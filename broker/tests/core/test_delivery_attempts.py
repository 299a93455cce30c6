"""The attempt of a delivery: how often this server gave a message, also if the group was forgotten in between."""

from __future__ import annotations

import pytest
from seriatim_broker.core.consumers.cursors import delivery_attempts
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev

from .support import GROUP, M01, STREAM, P, Serving, control_record


def attempts_by_index(bench: Serving) -> dict[int, int]:
    """Of the newest delivery of each message."""
    found: dict[int, int] = {}
    for event in bench.delivered(fx.Batches):
        for batch in event.batches:
            for index in range(max(event.from_index, batch.header.base_index), batch.header.end_index):
                found[index] = event.delivery_attempt
    return found


def come_again(bench: Serving) -> None:
    """The only consumer leaves, the group is forgotten, and a consumer comes again."""
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.persist_everywhere()
    assert GROUP not in bench.part.consumer_groups
    bench.clear()
    bench.join(1)
    bench.do(ev.ConsumerCredit(STREAM, 1 << 20))
    bench.look_up()
    bench.persist_everywhere()


def test_a_group_that_comes_again_is_given_the_second_and_third_attempt() -> None:
    bench = Serving()
    bench.begin()
    for attempt in (1, 2, 3):
        bench.deliver()
        assert attempts_by_index(bench) == dict.fromkeys(range(5), attempt)
        come_again(bench)


def test_each_message_has_its_own_count() -> None:
    bench = Serving()
    bench.serve()
    bench.ack(1)
    come_again(bench)
    read = bench.all(fx.ReadLog)[-1]
    bench.answered.add(read.serial)
    bench.do(ev.LogRead(read.serial, bench.batches[2:4]))  # 4 is not given a second time
    bench.wait(bench.config.heartbeat_us, (M01,))
    assert attempts_by_index(bench) == {2: 2, 3: 2}
    come_again(bench)
    bench.deliver()
    assert attempts_by_index(bench) == {2: 3, 3: 3, 4: 2}


def test_another_server_begins_anew_and_flags_what_may_have_been_given() -> None:
    bench = Serving(cursors=(control_record(1, GROUP, 1, 0, 5),))
    bench.serve()
    assert attempts_by_index(bench) == dict.fromkeys(range(5), 1), "another server knows nothing of it"
    assert {event.maybe_repeated_below for event in bench.delivered(fx.Batches)} == {5}, "and says so"


def test_the_number_of_ends_is_bounded_and_errs_downwards() -> None:
    bench = Serving()
    bench.begin()
    served = bench.part.consumer_groups[GROUP].served
    given = served.dispatcher.given
    for end in range(1, delivery_attempts.ENDS_MAX + 11):
        given.below = end
        delivery_attempts.begin_grant(served)
    assert len(given.ends) == delivery_attempts.ENDS_MAX
    assert delivery_attempts.delivery_attempt_of(served, 1) == delivery_attempts.ENDS_MAX + 11
    assert delivery_attempts.delivery_attempt_of(served, delivery_attempts.ENDS_MAX) == 12
    assert delivery_attempts.delivery_attempt_of(served, delivery_attempts.ENDS_MAX + 5) == 1


@pytest.mark.parametrize("acked", [3, 4])
def test_nothing_is_kept_of_a_group_that_has_acknowledged_all(acked: int) -> None:
    bench = Serving()
    bench.serve()
    bench.ack(acked)
    bench.persist_everywhere()
    if acked == 4:
        crossing = bench.all(fx.WriteCursor)[-1]
        bench.do(ev.CursorWritten(P, GROUP, crossing.serial, ev.WriteOutcome.DONE, 6))
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.persist_everywhere()
    assert (GROUP in bench.part.given) is (acked == 3)
