"""Heartbeats of consumers: answered from memory, and honest about the serving right."""

from __future__ import annotations

from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev

from .support import GROUP, M01, SECOND, STREAM, Serving


def pong(bench: Serving, number: int) -> fx.Pong:
    """The answer to one heartbeat; nothing was asked of the coordinator for it."""
    bench.clear()
    bench.do(ev.ConsumerPing(STREAM, number, 5_000))
    assert not bench.all(fx.ReadCursor)
    assert not bench.all(fx.ReadChain)
    (found,) = bench.delivered(fx.Pong)
    assert found.number == number
    return found


def test_a_minute_of_idleness_costs_no_read_of_the_coordinator() -> None:
    bench = Serving()
    bench.serve()
    bench.clear()
    reads = 0
    for second in range(60):
        bench.wait(SECOND, (M01,))
        reads += len(bench.all(fx.ReadCursor)) + len(bench.all(fx.ReadChain))
        assert pong(bench, second).unserved == ()
    assert reads == 0


def test_a_server_whose_right_is_in_doubt_says_so() -> None:
    bench = Serving()
    bench.begin()
    bench.join(2)
    bench.wait(bench.config.serve_lease_us + bench.config.heartbeat_us)  # the other eligible member is silent
    assert pong(bench, 1).unserved == (1, 2)
    bench.wait(bench.config.heartbeat_us, (M01,))
    assert pong(bench, 2).unserved == ()


def test_a_group_that_is_not_found_yet_is_not_served() -> None:
    bench = Serving()
    bench.join()
    assert pong(bench, 1).unserved == (1,)


def test_subscriptions_that_have_ended_are_not_kept() -> None:
    bench = Serving()
    bench.begin()
    consumer_group = bench.part.consumer_groups[GROUP]
    consumer_group.consumers = []
    consumer_group.dispatcher.active = None
    assert pong(bench, 1).unserved == ()
    assert bench.core.state.streams.subscriptions[STREAM] == {}
