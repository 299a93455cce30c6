"""A link with one stalled lane counts as silent, and one that is only busy or slow does not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from seriatim_api.ids import MemberId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg

from .support import M00, M01, M10, MS, SECOND, Bench, P, first_chain, opened_master

CONFIG = Bench().config
NOTICED_US = CONFIG.lane_probe_us + CONFIG.lane_stall_us + 3 * CONFIG.heartbeat_us
LONG_US = 3 * NOTICED_US
ACK = msg.ReplicateAck(P, 1, bytes(16), 0, 0)
"""Something on the data lane; of no segment that is open."""


def live(
    bench: Bench, us: int, member: MemberId = M01, *, count_step: int | None = None, speaks: msg.Message | None = None
) -> None:
    """Let time pass while the member answers each heartbeat.

    Args:
        bench: The broker.
        us: How long.
        member: Who answers.
        count_step: By how much the number that it received on the data lane grows from answer to answer; None: all that
            it was sent has arrived.
        speaks: What it says all the time. It answers no heartbeat then.
    """
    until_us, count = bench.now_us + us, 0
    while bench.now_us < until_us and not cut(bench):
        for effect in bench.wait(CONFIG.heartbeat_us):
            if not isinstance(effect, fx.Send) or not isinstance(effect.message, msg.Heartbeat):
                continue
            if effect.broker != member.broker or cut(bench):
                continue
            if speaks is not None:
                bench.hear(member, speaks)
            elif count_step is None:
                bench.answer(member, effect.message)
            else:
                count += count_step
                bench.hear(member, msg.HeartbeatAnswer(effect.message.sent_us, (), data_count=count))


def cut(bench: Bench, member: MemberId = M01) -> bool:
    """Whether this broker has ended its link to that member."""
    return fx.Disconnect(member.broker, bench.sessions[member.broker]) in bench.effects


def stalled(bench: Bench, member: MemberId = M01) -> list[object]:
    """The lanes of the link to that member of which the operator was notified."""
    fields = [dict(note.fields) for note in bench.all(fx.Note) if note.name == "lane_stalled"]
    return [found["lane"] for found in fields if found["peer"] == member.broker]


def test_a_stalled_data_lane_ends_the_link_and_the_segment_moves_on() -> None:
    bench = opened_master()
    began_us = bench.now_us
    live(bench, LONG_US, count_step=0)
    assert cut(bench)
    assert stalled(bench) == ["data"]
    assert bench.now_us - began_us <= NOTICED_US
    assert bench.part.switch is not None
    assert bench.part.switch.reason == "peer dead"


def test_a_lane_that_carried_before_and_stops_is_noticed_as_well() -> None:
    bench = opened_master()
    live(bench, LONG_US, count_step=1)
    assert not cut(bench)
    began_us = bench.now_us
    live(bench, LONG_US, count_step=0)
    assert cut(bench)
    assert bench.now_us - began_us <= NOTICED_US


def test_a_stalled_control_lane_ends_the_link_though_data_comes() -> None:
    bench = opened_master()
    live(bench, LONG_US, speaks=ACK)
    assert cut(bench)
    assert stalled(bench) == ["control"]
    assert bench.part.switch is not None


def test_a_lane_that_carries_is_left_alone_and_probed_seldom() -> None:
    bench = opened_master()
    live(bench, 10_000 * MS)
    assert not cut(bench)
    assert 10 <= len(bench.sent(msg.LaneProbe, M01)) <= 20


def test_a_busy_lane_is_not_probed() -> None:
    bench = opened_master()
    live(bench, LONG_US, count_step=1)
    assert not cut(bench)
    assert not bench.sent(msg.LaneProbe, M01)


def test_progress_now_and_then_is_enough() -> None:
    """The probe waits behind megabytes; a large message arrives every two seconds."""
    bench = opened_master()
    for count in range(1, 8):
        until_us = bench.now_us + 2_000 * MS
        while bench.now_us < until_us:
            bench.wait(CONFIG.heartbeat_us)
            bench.hear(M01, msg.HeartbeatAnswer(bench.now_us, (), data_count=count))
    assert not cut(bench)


def test_a_link_that_nothing_is_watched_by_is_looked_after_too() -> None:
    bench = opened_master()
    bench.link(M10)
    bench.clear()
    until_us = bench.now_us + LONG_US
    while bench.now_us < until_us and not cut(bench, M10):
        bench.wait(CONFIG.heartbeat_us, (M01,))
        bench.hear(M10, msg.HeartbeatAnswer(bench.now_us, ()))
    assert stalled(bench, M10) == ["data"]
    assert not cut(bench)


def test_a_new_connection_begins_anew() -> None:
    bench = opened_master()
    live(bench, NOTICED_US - CONFIG.lane_probe_us, count_step=0)
    bench.link(M01)
    bench.clear()
    live(bench, CONFIG.lane_stall_us, count_step=0)
    assert not cut(bench)


@pytest.mark.parametrize("slept_us", [700 * MS, 60_000 * MS])
def test_what_did_not_arrive_while_this_process_slept_proves_nothing(slept_us: int) -> None:
    bench = opened_master()
    live(bench, CONFIG.lane_probe_us + 2_900 * MS, count_step=0)
    assert not cut(bench)
    bench.now_us += slept_us
    live(bench, CONFIG.lane_stall_us - CONFIG.heartbeat_us)
    assert not cut(bench)


def test_an_answer_says_how_much_arrived_on_the_data_lane() -> None:
    bench = opened_master()

    def said() -> int:
        bench.clear()
        bench.hear(M01, msg.Heartbeat(bench.now_us))
        return bench.sent(msg.HeartbeatAnswer, M01)[0].data_count

    bench.link(M01)
    assert said() == 0
    bench.hear(M01, msg.LaneProbe())
    bench.hear(M01, ACK)
    assert said() == 2
    bench.hear(M01, msg.CursorsReplicated(P, 1, 1, 1))
    assert said() == 2
    bench.link(M01)
    assert said() == 0


def test_a_probe_is_no_news_for_any_partition() -> None:
    bench = opened_master()
    bench.clear()
    assert bench.hear(M01, msg.LaneProbe()) == []
    assert M00 in bench.part.chain.open_segment.members  # type: ignore[union-attr]


def test_a_heartbeat_leaves_with_an_answer_if_half_of_its_period_has_passed() -> None:
    bench = opened_master()
    bench.link(M01)
    bench.wait(CONFIG.heartbeat_us, (M01,))
    bench.clear()
    bench.wait(CONFIG.heartbeat_us // 2 - 1)
    bench.hear(M01, msg.Heartbeat(1))
    assert not bench.sent(msg.Heartbeat, M01), "the last one left a moment ago"
    bench.wait(1)
    bench.hear(M01, msg.Heartbeat(2))
    assert len(bench.sent(msg.Heartbeat, M01)) == 1
    bench.wait(CONFIG.heartbeat_us // 2)
    assert len(bench.sent(msg.Heartbeat, M01)) == 1, "the look at heartbeats needs to send none"
    bench.wait(CONFIG.heartbeat_us)
    assert len(bench.sent(msg.Heartbeat, M01)) == 2, "the other end is silent, so this end sends by itself"


def test_a_broker_that_is_not_watched_gets_heartbeats_and_probes_seldom() -> None:
    bench = Bench()
    bench.link(M10)
    bench.wait(CONFIG.heartbeat_us, (M10,))
    bench.clear()
    bench.wait(10 * CONFIG.slow_heartbeat_us, (M10,))
    assert len(bench.sent(msg.Heartbeat, M10)) == 10
    assert len(bench.sent(msg.LaneProbe, M10)) <= 10 * CONFIG.slow_heartbeat_us // CONFIG.lane_stall_us
    bench.wait(CONFIG.slow_silence_us)
    assert not cut(bench, M10)
    bench.wait(CONFIG.slow_heartbeat_us)
    assert cut(bench, M10), "it was silent for too long"


def test_a_broker_that_is_watched_from_now_on_gets_a_heartbeat_soon() -> None:
    bench = Bench()
    bench.wait(10 * CONFIG.slow_heartbeat_us)
    bench.clear()
    bench.open(first_chain())
    bench.link(M01)
    bench.wait(CONFIG.heartbeat_us, (M01,))
    assert bench.sent(msg.Heartbeat, M01)


def test_a_watched_broker_that_is_silent_is_found_at_once() -> None:
    bench = opened_master()
    bench.wait(7 * MS)
    bench.hear(M01, msg.Heartbeat(1))  # between two looks
    bench.clear()
    bench.wait(CONFIG.silence_us)
    assert not cut(bench)
    bench.wait(1)
    assert cut(bench)


def test_a_broker_that_is_watched_from_now_on_is_not_silent_before_it_could_answer() -> None:
    """It sends a heartbeat every second while nothing is shared. So it may have been silent for 500 ms already."""
    bench = Bench()
    bench.link(M01)
    bench.wait(CONFIG.heartbeat_us, (M01,))
    while bench.now_us - bench.core.state.links.by_broker[M01.broker].heard_us < CONFIG.silence_us:
        due = bench.core.next_wake_us()
        assert due is not None
        bench.wait(due - bench.now_us - 1)  # until just before a look
        if bench.now_us - bench.core.state.links.by_broker[M01.broker].heard_us > CONFIG.silence_us:
            break
        bench.wait(1)
    bench.open(first_chain())
    assert bench.sent(msg.Heartbeat, M01)
    bench.wait(5 * MS)
    assert not cut(bench)
    bench.wait(CONFIG.silence_us - 5 * MS)
    assert not cut(bench)
    bench.wait(1)
    assert cut(bench), "it answered nothing since"


@pytest.mark.parametrize("silence_us", [CONFIG.silence_us, 5_000 * MS])
@pytest.mark.parametrize("is_watched", [True, False])
def test_a_process_that_was_frozen_finds_no_other_silent(silence_us: int, is_watched: bool) -> None:
    """However long it was frozen, and in whatever moment: the messages of the others are read only afterwards."""
    for frozen_us, moment_us in product(
        (400 * MS, 1_000 * MS, 1_900 * MS, 2_400 * MS, 7_000 * MS), range(0, 1_000_000, 250_000)
    ):
        bench = Bench(config=replace(CONFIG, silence_us=silence_us))
        bench.link(M01)
        if is_watched:
            bench.open(first_chain())
        bench.wait(2 * SECOND + moment_us, (M01,))
        bench.now_us += frozen_us
        bench.do(ev.Tick())
        assert not cut(bench), (frozen_us, moment_us)
        bench.wait(CONFIG.heartbeat_us, (M01,))
        assert not cut(bench), (frozen_us, moment_us)
