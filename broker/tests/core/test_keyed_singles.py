"""Keys with one message, which are no objects: what they cost, and what makes objects of them."""

from __future__ import annotations

import gc
import tracemalloc
from collections import deque
from dataclasses import replace

from seriatim_broker.core.consumers.keyed import grants
from seriatim_broker.core.state.keyed.dispatcher import KeyedDispatcher
from seriatim_broker.core.state.keyed.key import Key
from seriatim_broker.core.state.window import Window
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev

from .keyed_support import QUICK, KeyedServing, indexes_of, offsets
from .support import GROUP, M01, MS, SECOND, STREAM

KEYS = 20_000
KEY_BYTES_MAX = 200
"""Of memory for each key that has a message which is not acknowledged. 113 to 137 bytes were seen, of which the key's
name takes 44: dicts grow in steps."""


def test_a_key_with_one_message_is_small() -> None:
    tracemalloc.start()
    try:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        keyed = KeyedDispatcher(1, Window(0, {}))
        for index in range(KEYS):
            keyed.take_in(b"kkey-%06d" % index, index, 1 << 40 | index)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(keyed.line.singles) == KEYS
    assert (after - before) / KEYS < KEY_BYTES_MAX


def test_keys_at_rest_cost_nothing() -> None:
    bench = KeyedServing("abcdef")
    bench.serve()
    for run in bench.runs():
        bench.acks(run)
    keyed = bench.keyed
    line, grants = keyed.line, keyed.grants
    assert not any((line.keys, line.singles, line.ready, grants.singles, grants.by_token))
    assert (keyed.live_count, bench.part.consumer_groups[GROUP].consumers[0].in_flight) == (0, 0)


def test_a_second_message_of_a_granted_key_comes_after_the_first_one() -> None:
    bench = KeyedServing("abca")
    bench.keys_read_max = 2
    bench.serve()
    first = bench.runs()
    assert [0] in [indexes_of(run) for run in first]
    assert all(3 not in indexes_of(run) for run in first)
    for run in first:
        bench.acks(run)
    bench.deliver()
    assert bench.granted() == [[3]]


def test_a_failed_single_comes_again_and_its_attempts_count() -> None:
    bench = KeyedServing("ab")
    bench.serve()
    run, _ = bench.runs()
    bench.nack(run, delay_ms=0)
    bench.deliver()
    (again,) = bench.runs()
    assert (indexes_of(again), again.attempt) == ([0], 2)
    bench.acks(run)
    assert bench.void() == [run.token]


def test_the_singles_of_a_consumer_that_left_are_granted_to_another_one() -> None:
    bench = KeyedServing("abc")
    bench.serve()
    assert bench.granted() == [[0], [1], [2]]
    bench.join(2)
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.deliver()
    assert bench.granted() == [[0], [1], [2]]
    assert bench.part.consumer_groups[GROUP].consumers[0].in_flight == 3


def test_the_singles_of_a_frame_end_at_its_deadline_unless_they_are_extended() -> None:
    bench = KeyedServing("ab", policy=replace(QUICK, grant_ms=1_000))
    bench.serve()
    late, kept = bench.runs()
    bench.wait(500 * MS, (M01,))
    bench.do(ev.ConsumerExtend(STREAM, 1, (kept.token,), 60_000))
    bench.wait(2 * SECOND, (M01,))
    assert bench.void() == [late.token]
    bench.acks(kept)
    assert bench.void() == [late.token]


def test_what_was_read_without_the_right_is_given_when_the_right_is_back() -> None:
    bench = KeyedServing("ab")
    bench.begin()
    while not bench.all(fx.ReadRows):
        bench.reads()
        bench.persist_everywhere()
    (read,) = bench.all(fx.ReadRows)
    bench.wait(350 * MS)  # the other member does not answer heartbeats
    bench.do(ev.RowsRead(read.serial, b"body"))
    bench.answered.add(read.serial)
    assert bench.granted() == []
    bench.wait(200 * MS, (M01,))
    assert bench.granted() == [[0], [1]]
    assert len(bench.all(fx.ReadRows)) == 1, "it was read once"


def test_a_key_that_becomes_ready_goes_to_another_consumer_if_the_one_that_acknowledged_asks_for_nothing() -> None:
    bench = KeyedServing("abca")
    bench.begin()
    keyed = bench.keyed
    keyed.handoff.rests_until_us = 1 << 60
    bench.join(2, on_demand=True)
    bench.part.consumer_groups[GROUP].consumers[0].in_flight_max = 1
    bench.deliver()
    (first,) = bench.runs()
    assert keyed.grants.is_sated, "two keys are ready, and no consumer has room"
    bench.do(ev.ConsumerDemand(STREAM, 2, 2, 1))
    bench.deliver()
    assert bench.granted() == [[1], [2]]
    assert not keyed.grants.is_sated
    bench.part.consumer_groups[GROUP].consumers[0].demand = 0
    bench.do(ev.ConsumerDemand(STREAM, 2, 1, 1))
    bench.acks(first)
    bench.deliver()
    assert bench.granted() == [[3]]


def test_a_consumer_that_acknowledges_is_given_more_while_the_others_have_no_room() -> None:
    bench = KeyedServing("abcdef")
    bench.begin()
    keyed = bench.keyed
    keyed.handoff.rests_until_us = 1 << 60
    bench.join(2)
    for consumer in bench.part.consumer_groups[GROUP].consumers:
        consumer.in_flight_max = 1
    bench.deliver()
    first, second = bench.runs()
    for run, expected in ((second, [2]), (first, [3])):
        assert keyed.grants.is_sated
        bench.acks(run, subscription=keyed.grants.singles[run.token].consumer.subscription)
        bench.deliver()
        assert bench.granted() == [expected]


def test_a_run_from_a_list_has_messages_of_one_segment() -> None:
    keyed, key = KeyedDispatcher(3, Window(0, {})), Key(b"ka")
    key.aside = deque([*offsets([5, 9]), *offsets([0], 2), *offsets([1, 7], 3)])
    assert grants._first_messages(keyed, key, 10, 5) == offsets([5, 9])
    key.aside = deque(offsets([1, 4, 7], 3))
    assert grants._first_messages(keyed, key, 10, 5) == offsets([1, 4], 3)
