"""Waits end, and polls do not multiply: what one core does by itself as time goes by."""

from __future__ import annotations

import pytest
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.log import RecoveredPartition

from .support import (
    GROUP,
    M00,
    M01,
    M10,
    M20,
    MS,
    SECOND,
    TOPIC,
    Bench,
    P,
    Serving,
    batches_of,
    first_chain,
    opened_master,
    prepared,
    recovered,
)


def events_in(bench: Bench, us: int, beating: tuple[object, ...] = ()) -> int:
    """How many timers fire in a while."""
    fired = 0
    until = bench.now_us + us
    while (due := bench.core.next_wake_us()) is not None and due <= until:
        bench.now_us = max(bench.now_us, due)
        before = len(bench.core.state.timers.heap)
        bench.do(ev.Tick())
        fired += 1
        assert before < 2_000, "timers multiply"
        assert fired < 5_000, "timers multiply"
    bench.now_us = until
    return fired


def test_an_idle_broker_only_sends_heartbeats_and_now_and_then_a_probe() -> None:
    bench = opened_master()
    bench.wait(SECOND, (M01,))
    bench.clear()
    bench.wait(SECOND, (M01,))
    assert {type(effect) for effect in bench.effects} == {fx.Send}
    assert {type(effect.message) for effect in bench.all(fx.Send)} == {msg.Heartbeat, msg.LaneProbe}
    assert 8 <= len(bench.sent(msg.Heartbeat, M01)) <= 12
    assert len(bench.sent(msg.LaneProbe, M01)) <= 2


def test_several_groups_that_wait_for_the_right_poll_no_more_often_than_one() -> None:
    counts = []
    for groups in (1, 4):
        bench = Serving()
        bench.begin()
        for number in range(1, groups):
            name = f"{GROUP}{number}"
            bench.do(ev.ConsumerJoin(1, 10 + number, P, name, "c", ev.StartPosition.EARLIEST, False))
            bench.do(ev.CursorRead(P, name, ev.CursorRecord(1, 1, 0, TOPIC), 5))
        bench.persist_everywhere()
        bench.unlink(M01)
        counts.append(events_in(bench, 5 * SECOND))
    assert counts[1] < 2 * counts[0]


def test_a_standing_complaint_about_a_server_does_not_multiply_polls() -> None:
    bench = Serving(M01)
    bench.link(M10)
    for number in range(3):
        epoch = bench.chain.segments[0].server_epoch
        deadline_us = bench.now_us + 30 * SECOND
        earliest = ev.StartPosition.EARLIEST
        bench.do(ev.ResolveConsumer(number, P, f"{GROUP}{number}", epoch, earliest, deadline_us))
    for _ in range(30):
        bench.clear()
        assert events_in(bench, 100 * MS) < 100
        for read in bench.all(fx.ReadChain):
            assert read.partition == P
            bench.read_chain(bench.chain)
        for cursor in bench.all(fx.ReadCursor):
            bench.do(ev.CursorRead(P, cursor.consumer_group, ev.CursorRecord(1, 1, 0, TOPIC), 5))


def test_a_fenced_segment_is_looked_after_again_and_again_but_seldom() -> None:
    found = RecoveredPartition(P, (recovered(1, batches_of(1, [1])),), (prepared(1, (M00, M01)),))
    bench = Bench(M00, 2, (found,))
    bench.read_chain(None, failed=True)
    fired = events_in(bench, 10 * SECOND)
    assert bench.all(fx.ReadChain)
    assert fired < 500


def test_a_resolve_without_coordinator_is_answered_at_its_deadline() -> None:
    bench = Bench(M20)
    bench.do(ev.ResolveProducer(1, P, None, bench.now_us + 100 * MS))
    bench.read_chain(None, failed=True)
    bench.wait(100 * MS)
    (resolved,) = bench.all(fx.Resolved)
    assert resolved.error is not None


def test_a_consumers_resolve_without_coordinator_is_answered_at_its_deadline() -> None:
    bench = Bench(M20)
    bench.do(ev.ResolveConsumer(1, P, GROUP, None, ev.StartPosition.EARLIEST, bench.now_us + 100 * MS))
    bench.read_chain(None, failed=True)
    bench.do(ev.CursorRead(P, GROUP, None, 0, failed=True))
    bench.wait(SECOND)
    (resolved,) = bench.all(fx.ConsumerResolved)
    assert resolved.error is not None


@pytest.mark.parametrize("kind", ["resolve", "describe", "fence", "complaint"])
def test_a_partition_that_was_only_asked_about_is_forgotten(kind: str) -> None:
    bench = Bench(M20)
    bench.link(M10)
    if kind == "resolve":
        bench.do(ev.ResolveProducer(1, P, None, bench.now_us + 100 * MS))
        bench.read_chain(first_chain())
    elif kind == "describe":
        bench.do(ev.DescribeConsumerGroup(1, P, GROUP))
        bench.read_chain(first_chain())
        bench.do(ev.CursorRead(P, GROUP, ev.CursorRecord(1, 1, 0, TOPIC), 5))
    elif kind == "fence":
        bench.hear(M10, msg.FenceRequest(P, 1, b"x" * 16, b"s" * 16))
    else:
        bench.hear(M10, msg.TakeOver(P, 1, 1))
        bench.read_chain(first_chain())
    bench.wait(SECOND, (M10,))
    assert P not in bench.core.partitions


def test_a_dropped_partition_leaves_nothing() -> None:
    bench = opened_master()
    bench.do(ev.DropPartitionData(P))
    assert P not in bench.core.partitions
    assert not any(P in parts for parts in bench.core.state.links.watched.values())
    bench.wait(SECOND, (M01,))
    assert P not in bench.core.partitions
