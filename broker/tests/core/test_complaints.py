"""Complaints of consumers about a server: each ends, with another server, or with the same one as confirmed."""

from __future__ import annotations

from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain, change_server
from seriatim_broker.core.values.kinds import SwitchReason

from .support import GROUP, M00, M01, M10, M11, MS, SECOND, TOPIC, Bench, P, Serving, opened_slave

ASKED = 7
BEAT_US = 100 * MS


def _complain(bench: Bench, epoch: int, within_us: int = 10 * SECOND) -> None:
    """A consumer complains of the server; the broker reads the chain and the cursor for it."""
    assert bench.part.chain is not None
    chain = bench.part.chain
    bench.clear()
    bench.now_us += MS  # later than the last heartbeat
    bench.do(ev.ResolveConsumer(ASKED, P, GROUP, epoch, ev.StartPosition.EARLIEST, bench.now_us + within_us))
    bench.do(ev.CursorRead(P, GROUP, ev.CursorRecord(1, 1, 0, TOPIC), 5))
    _read(bench, chain)


def _read(bench: Bench, chain: Chain) -> None:
    bench.do(ev.ChainRead(P, chain, 100))


def _answers(bench: Bench) -> list[fx.ConsumerResolved]:
    return bench.all(fx.ConsumerResolved)


def _sealed() -> tuple[Serving, int]:
    """A member that could become the server of segment 1, and hears all others."""
    bench = Serving(M01)
    for member in (M00, M10, M11):
        bench.link(member)
    bench.wait(SECOND, (M00, M10, M11))
    return bench, bench.chain.segments[0].server_epoch


def test_an_unfounded_complaint_is_answered_when_the_server_was_heard() -> None:
    bench, epoch = _sealed()
    _complain(bench, epoch)
    assert not _answers(bench), "a heartbeat that was answered before proves nothing"
    bench.wait(2 * BEAT_US, (M00, M10, M11))
    (answer,) = _answers(bench)
    assert (answer.server, answer.server_epoch, answer.confirmed, answer.error) == (M00.broker, epoch, True, None)
    assert not bench.all(fx.WriteChain)


def test_a_complaint_waits_while_the_server_is_silent_and_no_longer() -> None:
    bench, epoch = _sealed()
    _complain(bench, epoch)
    bench.wait(bench.config.silence_us - BEAT_US, (M10, M11))
    assert not _answers(bench), "rule suspicion-waits: this silence proves nothing"
    assert not bench.all(fx.WriteChain)
    bench.wait(2 * BEAT_US, (M10, M11))
    (write,) = bench.all(fx.WriteChain)
    assert write.chain.segments[0].server == M01
    bench.written()
    (answer,) = _answers(bench)
    assert (answer.server, answer.confirmed) == (M01.broker, False)


def test_a_complaint_about_this_broker_is_unfounded() -> None:
    bench = Serving(M00)
    bench.link(M01)
    bench.wait(SECOND, (M01,))
    _complain(bench, bench.chain.segments[0].server_epoch)
    (answer,) = _answers(bench)
    assert (answer.server, answer.confirmed) == (M00.broker, True)


def test_a_complaint_about_a_server_whose_disk_hangs_is_not_unfounded() -> None:
    bench, epoch = _sealed()
    _complain(bench, epoch, within_us=SECOND)
    stalled_us = 10 * SECOND
    for beat in bench.sent(msg.Heartbeat, M00):
        bench.hear(M00, msg.HeartbeatAnswer(beat.sent_us, (), disk_stall_us=stalled_us))
    for _ in range(4):
        bench.clear()
        bench.wait(BEAT_US, (M10, M11))
        for beat in bench.sent(msg.Heartbeat, M00):
            bench.hear(M00, msg.HeartbeatAnswer(beat.sent_us, (), disk_stall_us=stalled_us))
        assert not any(answer.confirmed for answer in _answers(bench))


def test_a_member_that_hears_the_server_says_since_when() -> None:
    bench, epoch = _sealed()
    answered_us = max(beat.sent_us for beat in bench.sent(msg.Heartbeat, M00))
    bench.clear()
    bench.hear(M10, msg.TakeOver(P, 1, epoch, 4711))
    (told,) = bench.sent(msg.ServerHeard, M10)
    assert told == msg.ServerHeard(P, 1, epoch, 4711, bench.now_us - answered_us)
    bench.clear()
    bench.hear(M10, msg.TakeOver(P, 1, epoch))
    assert not bench.sent(msg.ServerHeard), "the sender does not wait for it"
    bench.unlink(M00)
    bench.wait(2 * SECOND, (M10, M11))
    bench.clear()
    bench.hear(M10, msg.TakeOver(P, 1, epoch, 4712))
    assert not bench.sent(msg.ServerHeard)


def test_what_another_member_heard_ends_the_complaints_before_it() -> None:
    bench = Serving(M11)  # cut off from the server
    for member in (M01, M10):
        bench.link(member)
    bench.wait(SECOND, (M01, M10))
    epoch = bench.chain.segments[0].server_epoch
    _complain(bench, epoch)
    asked_us = bench.now_us
    bench.wait(2 * BEAT_US, (M01, M10))
    sent_us = [message.sent_us for message in bench.sent(msg.TakeOver, M01)][-1]
    assert sent_us is not None
    assert sent_us > asked_us
    bench.hear(M01, msg.ServerHeard(P, 1, epoch, sent_us, sent_us - asked_us + 1))
    assert not _answers(bench), "the server was heard before the complaint"
    bench.hear(M01, msg.ServerHeard(P, 1, epoch - 1, sent_us, 0))
    assert not _answers(bench), "that was about another server"
    bench.hear(M01, msg.ServerHeard(P, 1, epoch, sent_us, sent_us - asked_us))
    (answer,) = _answers(bench)
    assert (answer.server, answer.confirmed) == (M00.broker, True)


def test_a_complaint_that_no_proof_ends_is_answered_at_its_deadline() -> None:
    bench = Serving(M11)
    bench.link(M01)
    bench.wait(SECOND, (M01,))
    epoch = bench.chain.segments[0].server_epoch
    _complain(bench, epoch, within_us=SECOND)
    bench.wait(SECOND - 1, (M01,))
    assert not _answers(bench)
    bench.wait(1, (M01,))
    (answer,) = _answers(bench)
    assert (answer.server_epoch, answer.confirmed) == (epoch, False)


def test_the_master_of_an_open_segment_is_heard_before_it_is_switched_away() -> None:
    bench = opened_slave()
    assert bench.part.chain is not None
    epoch = bench.part.chain.segments[0].server_epoch
    bench.wait(SECOND, (M00,))
    _complain(bench, epoch)
    bench.wait(2 * BEAT_US, (M00,))
    (answer,) = _answers(bench)
    assert answer.confirmed
    assert bench.part.switch is None
    _complain(bench, epoch)
    bench.wait(bench.config.probe_us + BEAT_US)
    assert bench.part.switch is not None
    assert bench.part.switch.reason is SwitchReason.SILENT_TO_A_CLIENT


def test_a_master_without_a_link_is_switched_away_at_once() -> None:
    bench = opened_slave()
    bench.wait(SECOND, (M00,))
    assert bench.part.chain is not None
    bench.unlink(M00)
    assert bench.part.switch is None
    _complain(bench, bench.part.chain.segments[0].server_epoch)
    assert bench.part.switch is not None
    assert bench.part.switch.reason is SwitchReason.CONSUMER_COMPLAINT


def test_a_newer_server_answers_a_complaint() -> None:
    bench, epoch = _sealed()
    _complain(bench, epoch)
    _read(bench, change_server(bench.chain, 1, M01, (M00,)))
    (answer,) = _answers(bench)
    assert (answer.server, answer.confirmed) == (M01.broker, False)
