"""An active consumer that sends no heartbeats gives way to a standby, and not before it has let go itself."""

from __future__ import annotations

from seriatim_api import errors
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev

from .support import GROUP, M01, MS, SECOND, STREAM, Serving

STANDBY, THIRD = 8, 7
SESSION_MS = 2000


def broker_group_of(*standbys: int) -> Serving:
    """The consumer of `STREAM` is active and has been given everything."""
    bench = Serving()
    bench.begin()
    for number, stream in enumerate(standbys, 2):
        bench.join(number, stream=stream)
        bench.do(ev.ConsumerCredit(stream, 1 << 20))
    bench.deliver()
    return bench


def active_stream(bench: Serving) -> int:
    active = bench.part.consumer_groups[GROUP].dispatcher.active
    assert active is not None
    return active.stream


def pass_time(bench: Serving, half_seconds: int, *pinging: int) -> None:
    for _ in range(half_seconds):
        for stream in pinging:
            bench.do(ev.ConsumerPing(stream, 1, SESSION_MS))
        bench.wait(SECOND // 2, (M01,))


def test_a_silent_consumer_gives_way_after_twice_its_session() -> None:
    bench = broker_group_of(STANDBY)
    pass_time(bench, 4, STREAM, STANDBY)
    pass_time(bench, 7, STANDBY)
    assert active_stream(bench) == STREAM, "it may still give the old deliveries to its application"
    pass_time(bench, 7, STANDBY)
    assert active_stream(bench) == STANDBY
    (revoked,) = bench.delivered(fx.Revoked)
    assert isinstance(revoked.error, errors.NotServingError), "retriable: it may join again"
    bench.deliver()
    assert bench.delivered(fx.Batches)[-1].delivery_attempt == 2


def test_one_look_does_not_decide() -> None:
    """A broker that was frozen itself reads the heartbeats after its first look."""
    bench = broker_group_of(STANDBY)
    pass_time(bench, 4, STREAM, STANDBY)
    pass_time(bench, 9, STANDBY)
    pass_time(bench, 10, STREAM, STANDBY)
    assert active_stream(bench) == STREAM


def test_nobody_waits_for_a_consumer_without_a_standby_that_lives() -> None:
    bench = broker_group_of(STANDBY, THIRD)
    pass_time(bench, 4, STREAM, STANDBY, THIRD)
    pass_time(bench, 40)
    assert active_stream(bench) == STREAM, "all are silent: as likely it is this broker that hears nothing"
    pass_time(bench, 10, THIRD)
    assert active_stream(bench) == THIRD, "not the first in line, which is silent too"


def test_a_consumer_that_never_said_its_session_gives_way_after_twice_the_longest_one() -> None:
    """Its first heartbeat may be on its way, and it keeps its grant for as long as that says."""
    bench = broker_group_of(STANDBY)
    session_ms = bench.core.state.config.session_ms_max
    bench.wait(2 * MS * session_ms - 10 * SECOND, (M01,))
    pass_time(bench, 10, STANDBY)
    assert active_stream(bench) == STREAM
    pass_time(bench, 30, STANDBY)
    assert active_stream(bench) == STANDBY


def test_a_group_without_standbys_is_not_looked_at() -> None:
    bench = broker_group_of()
    pass_time(bench, 20, STREAM)
    assert not [timer for timer in bench.core.state.timers.heap if timer.kind == "session"]


def test_a_stream_that_has_ended_leaves_nothing() -> None:
    bench = broker_group_of(STANDBY)
    pass_time(bench, 1, STREAM, STANDBY)
    assert set(bench.core.state.streams.heard) == {STREAM, STANDBY}
    bench.do(ev.ConsumerGone(STREAM))
    bench.do(ev.ConsumerGone(STANDBY))
    assert not bench.core.state.streams.heard
