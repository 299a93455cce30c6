"""Replication between master and follower: contiguity, resuming, the commit and who hears of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.ids import MemberId, make_offset
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.log import PutBatch

from .support import (
    M00,
    M01,
    M20,
    MS,
    SECOND,
    Bench,
    P,
    attempt,
    batches_of,
    checksum_of,
    first_chain,
    opened_master,
    opened_slave,
    replicate,
)


def test_a_follower_acknowledges_only_what_its_disk_has() -> None:
    bench = opened_slave()
    replicate(bench, batches_of(1, [2, 1]))
    assert not bench.sent(msg.ReplicateAck)
    bench.persist()
    (ack,) = bench.sent(msg.ReplicateAck, M00)
    assert (ack.received, ack.durable) == (3, 3)


def test_without_flush_a_follower_says_what_it_has_in_memory_and_what_on_disk() -> None:
    bench = opened_slave(flush=False)
    replicate(bench, batches_of(1, [2, 1]))
    (ack,) = bench.sent(msg.ReplicateAck, M00)
    assert (ack.received, ack.durable) == (3, 0)
    bench.persist()
    assert bench.sent(msg.ReplicateAck, M00)[-1].durable == 3


@pytest.mark.parametrize(
    ("flush", "level", "waits"),
    [
        (False, ev.AckLevel.NONE, True),
        (False, ev.AckLevel.MASTER_RECEIVED, True),
        (False, ev.AckLevel.MASTER_FLUSHED, False),
        (False, ev.AckLevel.REPLICATED, True),
        (False, ev.AckLevel.REPLICATED_FLUSHED, False),
        (True, ev.AckLevel.NONE, False),
        (True, ev.AckLevel.REPLICATED, False),
    ],
)
def test_disks_may_flush_later_what_neither_the_commit_nor_the_producer_waits_for(
    flush: bool, level: ev.AckLevel, waits: bool
) -> None:
    bench = opened_master(flush=flush)
    bench.append(0, starts=True, level=level)
    (written,) = bench.writes(PutBatch)
    (sent,) = bench.sent(msg.Replicate, M01)
    assert (written.may_wait, sent.may_wait) == (waits, waits)


@pytest.mark.parametrize("waits", [False, True])
def test_a_follower_flushes_later_what_its_master_says_may_wait(waits: bool) -> None:
    bench = opened_slave(flush=False)
    bench.hear(M00, msg.Replicate(P, 1, attempt(1), 0, batches_of(1, [1]), may_wait=waits))
    (written,) = bench.writes(PutBatch)
    assert written.may_wait is waits


def test_a_follower_takes_only_the_next_index() -> None:
    bench = opened_slave()
    replicate(bench, batches_of(1, [1, 1, 1])[1:])
    assert [refused.reason for refused in bench.sent(msg.ReplicateRefused, M00)] == ["gap"]
    assert not bench.writes(PutBatch)


def test_a_follower_takes_only_what_continues_its_checksums() -> None:
    bench = opened_slave()
    replicate(bench, batches_of(1, [1]))
    bench.clear()
    other = batches_of(1, [1, 1], producer=b"z" * 16)
    replicate(bench, other[1:])
    assert bench.sent(msg.ReplicateRefused, M00)
    assert not bench.writes(PutBatch)


def test_a_follower_checks_the_headers_own_checksum() -> None:
    bench = opened_slave()
    (batch,) = batches_of(1, [1])
    raw = bytearray(batch.header.raw)
    raw[40] ^= 1
    replicate(bench, (batch._replace(header=batch.header._replace(raw=bytes(raw))),))
    assert bench.sent(msg.ReplicateRefused, M00)
    assert not bench.writes(PutBatch)


def test_what_was_sent_again_is_not_written_again() -> None:
    bench = opened_slave()
    batches = batches_of(1, [1, 1])
    replicate(bench, batches)
    replicate(bench, batches)
    assert len(bench.writes(PutBatch)) == 2
    assert bench.part.logs[1].tail == 2


def test_frames_of_another_attempt_are_refused() -> None:
    bench = opened_slave()
    bench.hear(M00, msg.Replicate(P, 1, b"another attempt!", 0, batches_of(1, [1])))
    assert bench.sent(msg.ReplicateRefused, M00)
    assert not bench.writes(PutBatch)


def test_only_the_master_of_the_segment_is_followed() -> None:
    from .support import M10

    bench = opened_slave()
    bench.link(M10)
    bench.hear(M10, msg.Replicate(P, 1, attempt(1), 0, batches_of(1, [1])))
    assert bench.sent(msg.ReplicateRefused, M10)
    assert not bench.writes(PutBatch)


def test_a_follower_knows_the_commit_that_it_was_told_and_serves_below_it_only() -> None:
    bench = opened_slave()
    replicate(bench, batches_of(1, [1, 1]), commit=1)
    assert bench.part.logs[1].readable_below == 1
    replicate(bench, (), commit=2)
    assert bench.part.logs[1].readable_below == 2


def test_a_commit_above_the_followers_tail_is_not_believed() -> None:
    bench = opened_slave()
    replicate(bench, batches_of(1, [1]), commit=9)
    assert bench.part.logs[1].commit == 1


def test_each_write_stores_the_commit_then_known() -> None:
    bench = opened_slave()
    batches = batches_of(1, [1, 1])
    replicate(bench, batches[:1])
    replicate(bench, (), commit=1)
    replicate(bench, batches[1:])
    assert [write.commit for write in bench.writes(PutBatch)] == [0, 1]


def test_the_commit_rides_on_the_next_frame() -> None:
    bench = opened_master()
    bench.append(0, starts=True)
    bench.persist()
    bench.ack(M01, 1)
    bench.clear()
    bench.append(1)
    assert [frame.commit for frame in bench.sent(msg.Replicate, M01)] == [1]


@pytest.mark.parametrize("server", [M00, M01])
def test_the_commit_goes_alone_when_no_frame_carries_it(server: MemberId) -> None:
    """It goes late if this member serves all consumers, and at once if a slave serves them."""
    chain = first_chain()
    bench = Bench()
    bench.open(replace(chain, segments=(replace(chain.open_segment, server=server),)))
    bench.follow(M01)
    bench.append(0, starts=True)
    bench.persist()
    bench.ack(M01, 1)
    bench.clear()
    bench.wait((bench.config.commit_late_us if server == M00 else bench.config.commit_idle_us) - 1)
    assert not bench.sent(msg.Replicate, M01)
    bench.wait(1)
    (frame,) = bench.sent(msg.Replicate, M01)
    assert (frame.commit, frame.batches) == (1, ())
    bench.clear()
    bench.wait(100 * MS, (M01,))
    assert not bench.sent(msg.Replicate, M01), "reported once"


def test_every_slave_is_told_the_commit_though_another_one_resumes_meanwhile() -> None:
    """The one that does not resume serves the consumers, and no further batch comes."""
    chain = first_chain((M00, M01, M20))
    bench = Bench()
    bench.open(replace(chain, segments=(replace(chain.open_segment, server=M20),)))
    for member in (M01, M20):
        bench.follow(member)
    bench.append(0, starts=True)
    bench.persist()
    for member in (M01, M20):
        bench.ack(member, 1)
    bench.clear()
    bench.unlink(M01)
    bench.follow(M01, tail=1, tail_checksum=bench.part.logs[1].tail_checksum)
    bench.ack(M01, 1)
    bench.wait(bench.config.commit_idle_us)
    assert [frame.commit for frame in bench.sent(msg.Replicate, M20)] == [1]


def test_a_commit_that_frames_carry_is_not_told_alone() -> None:
    bench = opened_master()
    bench.append(0, starts=True)
    for index in range(1, 20):  # the frames come faster than the commit goes alone
        bench.persist()
        bench.ack(M01, index)
        bench.clear()
        bench.wait(bench.config.commit_late_us // 2, (M01,))
        assert not bench.sent(msg.Replicate, M01)
        bench.append(index)
        assert [frame.commit for frame in bench.sent(msg.Replicate, M01)] == [index]


def test_acknowledgements_of_an_old_connection_do_not_count() -> None:
    bench = opened_master()
    request = bench.append(0, starts=True)
    bench.persist()
    bench.unlink(M01)
    bench.link(M01)
    bench.ack(M01, 1)
    assert not bench.accepted()
    bench.hear(M01, msg.TailAnswer(P, 1, attempt(1), 1, bench.part.logs[1].tail_checksum, 1))
    assert bench.accepted() == {request: make_offset(1, 0)}


HOUR_MS = 3_600_000


def append_times(bench: Bench) -> list[int]:
    """The append times of what this master wrote."""
    return [write.batch.header.append_time_ms for write in bench.writes(PutBatch)]


def opened_at_floor(ahead_ms: int) -> Bench:
    """A master whose segment begins at an append time that is so far ahead of its clock."""
    bench = Bench()
    chain = first_chain()
    floor_ms = bench.wall_ms + ahead_ms
    bench.open(replace(chain, segments=(replace(chain.segments[0], append_floor_ms=floor_ms),)))
    bench.follow(M01)
    bench.clear()
    return bench


def test_append_time_stands_still_while_the_clock_is_behind_the_last_one() -> None:
    bench = opened_at_floor(HOUR_MS)
    floor_ms = bench.part.logs[1].last_append_ms
    for sequence in range(2):
        bench.append(sequence, starts=not sequence)
        bench.wait(SECOND, (M01,))
    assert append_times(bench) == [floor_ms, floor_ms]
    bench.now_us += 2 * HOUR_MS * MS
    bench.append(2)
    assert append_times(bench)[-1] == bench.wall_ms


def test_append_time_that_is_too_far_ahead_to_be_true_is_set_back_and_said() -> None:
    """Else one jump of one clock would stop append time until that moment is really there."""
    ten_years_ms = 10 * 365 * 24 * HOUR_MS
    bench = opened_at_floor(ten_years_ms)
    first_ms = bench.wall_ms
    bench.append(0, starts=True)
    bench.wait(SECOND, (M01,))
    bench.append(1)
    assert append_times(bench) == [first_ms, bench.wall_ms]
    (note,) = [note for note in bench.all(fx.Note) if note.name == "append_time_set_back"]
    assert dict(note.fields)["ahead_ms"] == ten_years_ms


def test_a_connection_is_resumed_from_the_followers_tail() -> None:
    bench = opened_master()
    bench.append(0, starts=True)
    bench.append(1)
    bench.append(2)
    first = bench.part.logs[1].uncertain[0]
    bench.unlink(M01)
    bench.clear()
    bench.link(M01)
    assert bench.sent(msg.TailRequest, M01)
    assert not bench.sent(msg.Replicate, M01), "nothing before it is known where the follower stands"
    bench.hear(M01, msg.TailAnswer(P, 1, attempt(1), 1, first.header.checksum, 1))
    (frame,) = bench.sent(msg.Replicate, M01)
    assert [batch.header.base_index for batch in frame.batches] == [1, 2]


def test_what_is_appended_while_the_connection_is_down_goes_with_the_resume() -> None:
    bench = opened_master()
    bench.unlink(M01)
    bench.append(0, starts=True)
    bench.link(M01)
    assert not bench.sent(msg.Replicate, M01)
    bench.hear(M01, msg.TailAnswer(P, 1, attempt(1), 0, 0, 0))
    assert [len(frame.batches) for frame in bench.sent(msg.Replicate, M01)] == [1]


@pytest.mark.parametrize(("tail", "checksum"), [(9, 0), (1, 12345)])
def test_a_follower_that_disagrees_means_a_switch(tail: int, checksum: int) -> None:
    bench = opened_master()
    bench.append(0, starts=True)
    bench.append(1)
    bench.unlink(M01)
    bench.link(M01)
    bench.hear(M01, msg.TailAnswer(P, 1, attempt(1), tail, checksum, tail))
    assert bench.part.switch is not None
    assert not bench.part.logs[1].followers[0].in_step


def test_a_follower_that_was_restarted_refuses_and_means_a_switch() -> None:
    bench = opened_master()
    bench.unlink(M01)
    bench.link(M01, run=2)
    bench.hear(M01, msg.ReplicateRefused(P, 1, attempt(1), "fenced"))
    assert bench.part.switch is not None
    assert bench.all(fx.ReadChain)


def test_a_connection_that_comes_back_in_time_costs_nothing() -> None:
    bench = opened_master()
    bench.unlink(M01)
    bench.wait(bench.config.resume_us - 1)
    bench.link(M01)
    bench.wait(10 * MS, (M01,))
    assert bench.part.switch is None


def test_a_connection_that_stays_broken_means_a_switch() -> None:
    bench = opened_master()
    bench.unlink(M01)
    bench.wait(bench.config.resume_us + 2)
    assert bench.part.switch is not None


def test_a_refused_connection_means_a_switch_at_once() -> None:
    bench = opened_slave()
    bench.unlink(M00, refused=True)
    assert bench.part.switch is not None


@pytest.mark.parametrize("silent", [M00, M20])
def test_slave_switches_without_its_master_but_not_without_another_slave(silent: MemberId) -> None:
    bench = Bench(M01)
    bench.open(first_chain((M00, M01, M20)))
    for member in (M00, M20):
        bench.link(member)
    bench.unlink(silent, refused=True)
    assert (bench.part.switch is not None) == (silent == M00)


def test_a_silent_member_means_a_switch_and_an_answering_one_does_not() -> None:
    bench = opened_master()
    bench.wait(2 * bench.config.silence_us, (M01,))
    assert bench.part.switch is None
    bench.wait(bench.config.silence_us + 2 * bench.config.heartbeat_us)
    assert bench.part.switch is not None
    assert bench.all(fx.Disconnect)


def test_a_process_that_slept_does_not_take_the_others_for_dead() -> None:
    bench = opened_master()
    bench.wait(200 * MS, (M01,))
    bench.now_us += 30 * bench.config.silence_us
    bench.wait(10 * MS, (M01,))
    assert bench.part.switch is None


def test_messages_of_an_old_connection_are_ignored() -> None:
    from seriatim_broker.core.values.events import Received

    bench = opened_slave()
    bench.unlink(M00)
    bench.link(M00)
    old = msg.Replicate(P, 1, attempt(1), 0, batches_of(1, [1]))
    bench.do(Received(M00.broker, 1, old))
    assert not bench.writes(PutBatch)


def test_a_follower_answers_where_it_stands() -> None:
    bench = opened_slave()
    batches = batches_of(1, [2, 2])
    replicate(bench, batches)
    bench.hear(M00, msg.TailRequest(P, 1, attempt(1)))
    (tail,) = bench.sent(msg.TailAnswer, M00)
    assert (tail.tail, tail.checksum, tail.durable) == (4, checksum_of(batches), 0)
    bench.persist()
    bench.hear(M00, msg.TailRequest(P, 1, attempt(1)))
    assert bench.sent(msg.TailAnswer, M00)[-1].durable == 4
