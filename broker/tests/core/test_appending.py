"""What a producer is answered, and when: one test for each rule of appending."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api import errors
from seriatim_api.ids import make_offset
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.events import AckLevel
from seriatim_broker.core.values.log import Batch, PutBatch
from seriatim_broker.core.values.producers import WINDOW_BATCHES

from .support import (
    M01,
    M10,
    OTHER_PRODUCER,
    PRODUCER,
    Bench,
    attempt,
    batches_of,
    checksum_of,
    first_chain,
    log_of,
    opened_master,
    opened_slave,
    sealed_chain,
    unsettled_chain,
)
from .support import P as PARTITION


def test_the_reply_leaves_only_when_every_member_has_the_batch_on_its_disk() -> None:
    bench = opened_master()
    request = bench.append(0, 3, starts=True)
    assert bench.writes(PutBatch)
    assert bench.sent(msg.Replicate, M01)
    assert not bench.accepted()
    bench.ack(M01, 3)
    assert not bench.accepted(), "this member's disk does not have it yet"
    bench.persist()
    assert bench.accepted() == {request: make_offset(1, 0)}


def test_the_reply_waits_for_the_other_members_disk_too() -> None:
    bench = opened_master()
    request = bench.append(0, 3, starts=True)
    bench.persist()
    assert not bench.accepted()
    bench.ack(M01, 3, durable=0)
    assert not bench.accepted(), "the other member has it in memory only"
    bench.ack(M01, 3)
    assert request in bench.accepted()


def test_a_topic_that_does_not_flush_still_flushes_for_a_reply_that_promises_it() -> None:
    bench = opened_master(flush=False)
    flushed = bench.append(0, starts=True)
    replicated = bench.append(1, level=AckLevel.REPLICATED)
    bench.ack(M01, 2, durable=0)
    assert bench.accepted() == {replicated: make_offset(1, 1)}
    bench.ack(M01, 2)
    assert flushed not in bench.accepted()
    bench.persist()
    assert flushed in bench.accepted()


def test_more_than_a_switch_may_copy_is_refused_as_overloaded() -> None:
    """A topic that does not flush before it commits acknowledges what slow disks do not have yet: that has a limit."""
    size = batches_of(1, [1])[0].size_bytes
    bench = opened_master(flush=False, config=BrokerConfig(unflushed_bytes_max=2 * size))
    first = bench.append(0, starts=True, level=AckLevel.REPLICATED)
    second = bench.append(1, level=AckLevel.REPLICATED)
    bench.ack(M01, 2, durable=0)
    assert sorted(bench.accepted()) == [first, second]
    third = bench.append(2, level=AckLevel.REPLICATED)
    error = bench.refused()[third]
    assert isinstance(error, errors.OverloadedError)
    assert error.retry_after_ms == 20
    again = bench.append(1, run=2, starts=True, level=AckLevel.REPLICATED)
    assert again in bench.accepted(), "a repeat takes no room"
    bench.persist()
    bench.ack(M01, 2)
    later = bench.append(2, run=2)
    assert later not in bench.refused()


@pytest.mark.parametrize(
    ("level", "when"),
    [
        (AckLevel.NONE, "at once"),
        (AckLevel.MASTER_RECEIVED, "at once"),
        (AckLevel.MASTER_FLUSHED, "own disk"),
        (AckLevel.REPLICATED, "other member"),
    ],
)
def test_a_weaker_level_decides_only_when_the_reply_leaves(level: AckLevel, when: str) -> None:
    bench = opened_master(flush=False)
    request = bench.append(0, starts=True, level=level)
    assert (request in bench.accepted()) == (when == "at once")
    bench.persist()
    assert (request in bench.accepted()) == (when in ("at once", "own disk"))
    bench.ack(M01, 1, durable=0)
    assert request in bench.accepted()


def test_consumers_level_is_not_the_producers_commit_moves_only_with_every_member() -> None:
    bench = opened_master()
    bench.append(0, starts=True, level=AckLevel.MASTER_RECEIVED)
    bench.persist()
    assert bench.part.logs[1].readable_below == 0
    bench.ack(M01, 1)
    assert bench.part.logs[1].readable_below == 1


def test_a_repeat_is_answered_with_its_first_offset_only_once_that_is_committed() -> None:
    bench = opened_master()
    bench.append(0, 2, starts=True)
    bench.append(2, 2)
    again = bench.append(2, 2, run=2, starts=True)
    assert len(bench.writes(PutBatch)) == 2, "a repeat is not written again"
    assert not bench.accepted()
    bench.persist()
    assert again not in bench.accepted()
    bench.ack(M01, 4)
    assert bench.accepted()[again] == make_offset(1, 2)


def test_a_repeat_of_a_batch_of_an_earlier_segment_is_answered_with_its_offset_there() -> None:
    table = log_of(1, [2, 2]).table_as_of(4)
    bench = Bench()
    bench.open(sealed_chain(first_chain(), 4, 0, members=(bench.member, M01)), table=table)
    bench.follow(M01, 2)
    request = bench.append(0, 2, starts=True)
    assert bench.accepted() == {request: make_offset(1, 0)}
    following = bench.append(4, 1)
    assert following not in bench.refused()


def _final(bench: Bench) -> list[bool]:
    return [effect.is_final for effect in bench.all(fx.AppendAccepted)]


def test_a_place_is_final_where_the_tables_of_all_segments_before_are_known() -> None:
    for bench, no, is_final in ((opened_master(), 1, True), (_incomplete(), 2, False)):
        bench.append(0, starts=True)
        bench.persist()
        bench.ack(M01, 1, no)
        bench.append(0, run=2, starts=True)
        assert _final(bench) == [is_final, is_final], "of the batch, and of its repeat"


def test_a_repeat_is_as_final_as_the_segment_in_which_it_stands() -> None:
    for incomplete in (False, True):
        table = log_of(1, [2, 2]).table_as_of(4)
        bench = Bench()
        before = replace(first_chain(), segments=(replace(first_chain().segments[0], incomplete_table=incomplete),))
        bench.open(sealed_chain(before, 4, 0, members=(bench.member, M01)), table=table)
        bench.follow(M01, 2)
        bench.append(0, 2, starts=True)
        assert _final(bench) == [not incomplete]


def test_a_gap_is_refused_and_so_is_the_rest_of_the_run() -> None:
    bench = opened_master()
    bench.append(0, starts=True)
    gap = bench.append(2)
    rest = bench.append(1)
    bench.persist()
    bench.ack(M01, 1)
    assert isinstance(bench.refused()[gap], errors.SequenceGapError)
    assert isinstance(bench.refused()[rest], errors.RunRefusedError), "a run refused once stays refused"
    assert len(bench.writes(PutBatch)) == 1


def test_overload_refuses_the_rest_of_the_run_as_well() -> None:
    bench = opened_master()
    bench.append(0, starts=True)
    overloaded = bench.append(1, refuse=errors.OverloadedError("full", retry_after_ms=5))
    rest = bench.append(2)
    late = bench.append(1)
    assert isinstance(bench.refused()[overloaded], errors.OverloadedError)
    assert isinstance(bench.refused()[rest], errors.RunRefusedError)
    assert isinstance(bench.refused()[late], errors.RunRefusedError)
    again = bench.append(1, run=2, starts=True)
    assert again not in bench.refused()


def test_a_batch_over_a_limit_is_refused_unless_it_is_stored_already() -> None:
    """The limit was lowered between the first time and the repeat."""
    too_large = errors.MessageTooLargeError("too large")
    bench = opened_master()
    first = bench.append(0, starts=True)
    repeat = bench.append(0, refuse_new=too_large)
    bench.persist()
    bench.ack(M01, 1)
    assert {first, repeat} <= set(bench.accepted())
    large = bench.append(1, refuse_new=too_large)
    rest = bench.append(2)
    assert isinstance(bench.refused()[large], errors.MessageTooLargeError)
    assert isinstance(bench.refused()[rest], errors.RunRefusedError)
    assert len(bench.writes(PutBatch)) == 1


def test_one_producers_refusal_is_not_anothers() -> None:
    bench = opened_master()
    bench.append(5, starts=True)
    request = bench.append(0, starts=True, producer=OTHER_PRODUCER)
    assert request not in bench.refused()


def test_a_run_begins_with_its_first_batch_and_an_older_run_is_over() -> None:
    bench = opened_master()
    headless = bench.append(0, run=3)
    assert isinstance(bench.refused()[headless], errors.RunRefusedError)
    bench.append(0, run=4, starts=True)
    assert isinstance(bench.refusal(1, run=3), errors.RunRefusedError)
    assert isinstance(bench.refusal(1, run=5), errors.RunRefusedError)
    assert bench.append(1, run=5, starts=True) not in bench.refused()


def test_an_older_producer_epoch_is_refused() -> None:
    bench = opened_master()
    bench.append(0, epoch=2, starts=True)
    old = bench.append(1, epoch=1, run=2, starts=True)
    assert isinstance(bench.refused()[old], errors.ProducerFencedError)


def test_a_new_epoch_begins_at_sequence_0() -> None:
    bench = opened_master()
    bench.append(0, 4, starts=True)
    assert isinstance(bench.refusal(4, epoch=1, run=2, starts=True), errors.SequenceGapError)
    assert bench.append(0, epoch=1, run=3, starts=True) not in bench.refused()


def test_an_unknown_producer_begins_at_sequence_0_where_the_table_is_complete() -> None:
    bench = opened_master()
    assert isinstance(bench.refusal(7, starts=True), errors.SequenceGapError)


def test_refused_sequence_says_what_is_expected_of_which_producer() -> None:
    bench = opened_master()
    unknown = bench.refusal(7, starts=True)
    bench.append(0, 2, run=2, starts=True)
    known = bench.refusal(5, run=3, starts=True)
    assert [error.details for error in (unknown, known)] == [
        {"expected": expected, "producer": PRODUCER.hex()} for expected in ("0", "2")
    ]


def _incomplete() -> Bench:
    bench = Bench()
    bench.open(unsettled_chain(first_chain((M10, M01)), members=(bench.member, M01)))
    bench.follow(M01, 2)
    bench.clear()
    return bench


def test_only_a_batch_that_starts_a_run_sets_a_sequence_where_the_table_is_incomplete() -> None:
    bench = _incomplete()
    assert bench.append(7, starts=True) not in bench.refused()
    assert bench.append(8) not in bench.refused()
    gap = bench.append(11, run=2, starts=True)
    assert isinstance(bench.refused()[gap], errors.SequenceGapError), "set once, the sequence is set"


def test_a_batch_within_a_run_sets_no_sequence_even_there() -> None:
    bench = _incomplete()
    bench.append(0, starts=True)
    later_epoch = bench.append(5, epoch=1)
    assert isinstance(bench.refused()[later_epoch], errors.SequenceGapError)


def test_a_sequence_that_was_sent_in_another_batch_is_a_mismatch() -> None:
    bench = opened_master()
    bench.append(0, 4, starts=True)
    assert isinstance(bench.refusal(2, 2, run=2, starts=True), errors.BatchMismatchError)


def test_what_fell_out_of_the_window_is_too_old_and_never_written_twice() -> None:
    bench = opened_master()
    for sequence in range(3 * WINDOW_BATCHES):
        bench.append(sequence, starts=sequence == 0)
        bench.persist()
        bench.ack(M01, sequence + 1)
    written = len(bench.writes(PutBatch))
    assert isinstance(bench.refusal(0, run=2, starts=True), errors.SequenceTooOldError)
    assert len(bench.writes(PutBatch)) == written


def test_more_batches_than_the_window_wait_for_nobody() -> None:
    bench = opened_master()
    requests = [bench.append(sequence, starts=sequence == 0) for sequence in range(WINDOW_BATCHES + 1)]
    assert list(bench.refused()) == requests[-1:]
    assert isinstance(bench.refused()[requests[-1]], errors.OverloadedError)


def test_a_slave_takes_nothing_from_producers() -> None:
    bench = opened_slave()
    request = bench.append(0, starts=True)
    assert isinstance(bench.refused()[request], errors.NotServingError)
    assert not bench.writes(PutBatch)


def test_a_fenced_master_takes_nothing() -> None:
    bench = opened_master()
    bench.link(M10)
    bench.hear(M10, msg.FenceRequest(PARTITION, 1, attempt(1), b"s" * 16))
    request = bench.append(0, starts=True)
    assert isinstance(bench.refused()[request], errors.SegmentMovedError)
    assert not bench.writes(PutBatch)


def _with_three_waiting() -> tuple[Bench, list[int]]:
    bench = opened_master()
    requests = [bench.append(sequence, starts=sequence == 0) for sequence in range(3)]
    bench.persist()
    return bench, requests


def test_a_seal_answers_ok_below_its_length_and_failed_above() -> None:
    bench, requests = _with_three_waiting()
    bench.link(M10)
    bench.hear(M10, msg.ChainUpdate(sealed_chain(first_chain(), 2, checksum_of(batches_of_bench(bench)[:2])), 9))
    assert not bench.accepted(), "the cut is not on the disk yet"
    assert not bench.refused()
    bench.persist()
    assert bench.accepted() == {requests[0]: make_offset(1, 0), requests[1]: make_offset(1, 1)}
    error = bench.refused()[requests[2]]
    assert isinstance(error, errors.SegmentTruncatedError)
    assert error.outcome_known


def batches_of_bench(bench: Bench) -> tuple[Batch, ...]:
    """What the log under test holds above its commit."""
    return tuple(bench.part.logs[1].uncertain)


def test_unsettled_answers_unknown_and_truncates_nothing() -> None:
    bench, requests = _with_three_waiting()
    bench.link(M10)
    bench.hear(M10, msg.ChainUpdate(unsettled_chain(first_chain()), 9))
    assert set(bench.refused()) == set(requests)
    assert not any(error.outcome_known for error in bench.refused().values())
    assert bench.part.logs[1].tail == 3
    assert bench.part.logs[1].record.sealed_len is None


def test_batches_of_the_slave_and_of_the_master_agree() -> None:
    expected = batches_of(1, [2, 3])
    bench = opened_master()
    bench.append(0, 2, starts=True)
    bench.append(2, 3)
    sent = [batch for frame in bench.sent(msg.Replicate, M01) for batch in frame.batches]
    assert [batch.header.base_index for batch in sent] == [batch.header.base_index for batch in expected]
    assert sent[1].header.previous_checksum == sent[0].header.checksum
    assert {batch.header.producer for batch in sent} == {PRODUCER}
