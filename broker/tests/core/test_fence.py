"""Fence, start, open, truncate: what a member may say and do about a segment, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.ids import make_offset
from seriatim_broker.core.switching import fencing
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import trim
from seriatim_broker.core.values.log import (
    DropPreparation,
    DropSegment,
    PutBatch,
    PutPreparation,
    PutSegment,
    RecoveredPartition,
    TailCopy,
    Truncate,
)
from seriatim_broker.core.values.producers import NO_TABLE, ProducerTable, entries_of

from .support import (
    M00,
    M01,
    M10,
    M11,
    M20,
    M21,
    PRODUCER,
    SECOND,
    Bench,
    P,
    attempt,
    batches_of,
    checksum_of,
    first_chain,
    opened_master,
    opened_slave,
    prepared,
    recovered,
    replicate,
    sealed_chain,
    unsettled_chain,
)

SWITCH = b"s" * 16


def fence(bench: Bench, no: int = 1, sender: object = M10, name: bytes | None = None) -> None:
    """A switcher fences this member."""
    if M10.broker not in bench.sessions:
        bench.link(M10)
    bench.hear(M10, msg.FenceRequest(P, no, name or attempt(no), SWITCH))


def answer_of(bench: Bench) -> msg.FenceAnswer:
    """What the member answered."""
    (answer,) = bench.sent(msg.FenceAnswer, M10)
    return answer


def test_the_answer_leaves_only_when_fence_and_tail_are_durable() -> None:
    bench = opened_slave()
    replicate(bench, batches_of(1, [2]))
    fence(bench)
    assert bench.writes(PutSegment)[-1].segment.fenced
    assert not bench.sent(msg.FenceAnswer)
    bench.persist()
    assert answer_of(bench).length == 2


def test_a_second_fence_waits_for_the_first_ones_write_too() -> None:
    bench = opened_slave()
    fence(bench)
    fence(bench)
    assert not bench.sent(msg.FenceAnswer)
    bench.persist()
    assert len(bench.sent(msg.FenceAnswer)) == 2


def test_a_fence_freezes_the_commit() -> None:
    bench = opened_master()
    bench.append(0, starts=True)
    bench.persist()
    fence(bench)
    bench.persist()
    assert answer_of(bench).length == 0
    bench.ack(M01, 1)
    assert bench.part.logs[1].commit == 0
    assert not bench.accepted()


def test_without_a_flush_before_commit_the_uncertain_tail_begins_where_a_members_flushes_end() -> None:
    """The commit says that two memories have a batch. `replicated_flushed` is answered at the seal: two disks must."""
    bench = opened_master(flush=False)
    certain = bench.append(0, starts=True)
    bench.persist()
    bench.ack(M01, 1)
    doubtful = bench.append(1)
    bench.persist()
    bench.ack(M01, 2, durable=1)
    assert bench.part.logs[1].commit == 2
    assert list(bench.accepted()) == [certain]
    fence(bench)
    bench.persist()
    answer = answer_of(bench)
    assert (answer.length, answer.unbroken, answer.commit) == (2, True, 1)
    assert [batch.header.base_index for batch in answer.tail] == [1], "the other member's disk does not have it"
    chain = sealed_chain(first_chain(flush=False), 2, answer.checksum, tail_from=1)
    bench.hear(M10, msg.ChainUpdate(chain, 102))
    bench.persist()
    assert doubtful in bench.accepted(), "the members of the next segment have a copy"


def test_a_follower_is_told_how_far_every_member_has_flushed_and_begins_its_uncertain_tail_there() -> None:
    master = opened_master(flush=False)
    master.append(0, starts=True)
    master.append(1)
    master.persist()
    master.ack(M01, 2, durable=1)
    master.clear()
    master.wait(master.config.commit_late_us, (M01,))
    (told,) = master.sent(msg.Replicate, M01)
    assert (told.commit, told.batches) == (1, ())
    slave = opened_slave(flush=False)
    replicate(slave, batches_of(1, [1, 1]))
    slave.hear(M00, told)
    fence(slave)
    slave.persist()
    answer = answer_of(slave)
    assert (answer.length, answer.commit) == (2, 1)
    assert [batch.header.base_index for batch in answer.tail] == [1]


def test_each_batch_is_written_with_how_far_every_member_has_flushed() -> None:
    """A start begins its uncertain tail there, because it knows no more than its disk does."""
    bench = opened_master(flush=False)
    bench.append(0, starts=True)
    bench.ack(M01, 1, durable=0)
    assert bench.part.logs[1].commit == 1
    bench.append(1)
    bench.persist()
    bench.ack(M01, 2, durable=1)
    bench.append(2)
    assert [write.commit for write in bench.writes(PutBatch)] == [0, 0, 1]


def test_a_restarted_member_answers_with_the_append_time_of_its_last_batch() -> None:
    batches = batches_of(1, [1, 1])
    last_ms = 1_700_000_000_123
    found = replace(recovered(1, batches, commit=2), last_append_ms=last_ms)
    bench = Bench(M01, 2, (RecoveredPartition(P, (found,), (prepared(1, (M00, M01)),)),))
    fence(bench)
    bench.persist()
    assert answer_of(bench).last_append_ms == last_ms


def test_a_master_that_tells_no_length_answers_with_its_newest_append_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment will be opened over, and all that this member has may be settled in it later."""
    bench = opened_master()
    for sequence in range(2):
        bench.append(sequence, starts=not sequence)
        bench.persist()
        bench.ack(M01, 1)
        bench.wait(SECOND, (M01,))
    log = bench.part.logs[1]
    assert log.commit == 1 < log.tail
    assert log.append_time_at(1) < log.last_append_ms
    monkeypatch.setattr(fencing, "table_as_of", lambda *_: None)
    fence(bench)
    bench.persist()
    answer = answer_of(bench)
    assert answer.length is None
    assert answer.last_append_ms == log.last_append_ms


def test_a_fence_freezes_weaker_replies_too() -> None:
    from seriatim_broker.core.values.events import AckLevel

    bench = opened_master()
    bench.append(0, starts=True, level=AckLevel.MASTER_FLUSHED)
    fence(bench)
    bench.persist()
    assert not bench.accepted()


def test_a_fenced_follower_takes_nothing_more() -> None:
    bench = opened_slave()
    fence(bench)
    replicate(bench, batches_of(1, [1]))
    assert not bench.writes(PutBatch)
    assert [refused.reason for refused in bench.sent(msg.ReplicateRefused, M00)] == ["fenced"]


def test_a_fenced_follower_learns_no_newer_commit() -> None:
    bench = opened_slave()
    replicate(bench, batches_of(1, [1]))
    fence(bench)
    replicate(bench, (), commit=1)
    assert bench.part.logs[1].commit == 0


def test_an_unbroken_master_answers_its_commit_with_the_table_as_of_it() -> None:
    bench = opened_master()
    bench.append(0, 2, starts=True)
    bench.persist()
    bench.ack(M01, 2)
    bench.append(2, 3)
    fence(bench)
    bench.persist()
    answer = answer_of(bench)
    assert (answer.length, answer.unbroken, answer.commit, answer.tail) == (2, True, 2, ())
    assert answer.checksum == bench.part.logs[1].uncertain[0].header.previous_checksum
    ((producer, window),) = answer.table
    assert producer == PRODUCER
    assert [entry.offset for entry in entries_of(window)] == [make_offset(1, 0)]


def test_a_second_switcher_is_told_the_table_that_was_made_for_the_first() -> None:
    """With 100,000 producers it takes 25 ms to make, and a frozen log has no other."""
    bench = opened_master()
    bench.append(0, 2, starts=True)
    bench.persist()
    bench.ack(M01, 2)
    for switcher in (M10, M20):
        bench.link(switcher)
        bench.hear(switcher, msg.FenceRequest(P, 1, attempt(1), switcher.broker.encode()))
        bench.persist()
    (first,), (second,) = (bench.sent(msg.FenceAnswer, switcher) for switcher in (M10, M20))
    assert first.table.row_count == 1
    assert second.table is first.table


def test_a_follower_answers_its_tail_with_what_lies_above_the_commit_it_knew() -> None:
    bench = opened_slave()
    batches = batches_of(1, [1, 1, 1])
    replicate(bench, batches, commit=1)
    fence(bench)
    bench.persist()
    answer = answer_of(bench)
    assert (answer.length, answer.unbroken, answer.commit) == (3, False, 1)
    assert answer.tail == batches[1:]
    assert answer.checksum == checksum_of(batches)


def _restarted(member: object = M00, **options: object) -> Bench:
    batches = batches_of(1, [1, 1, 1])
    found = recovered(1, batches, commit=1, opened_member_run=1)
    assert member in (M00, M01)
    return Bench(
        M00 if member == M00 else M01,
        2,
        (RecoveredPartition(P, (found,), (prepared(1, (M00, M01)),)),),
        **options,  # type: ignore[arg-type]
    )


def test_a_restarted_master_answers_its_tail_not_the_commit_it_remembers() -> None:
    bench = _restarted()
    fence(bench)
    bench.persist()
    answer = answer_of(bench)
    assert (answer.length, answer.unbroken, answer.commit) == (3, False, 1)
    assert [batch.header.base_index for batch in answer.tail] == [1, 2]


def test_a_suspect_fences_but_gives_no_length() -> None:
    found = recovered(1, batches_of(1, [1]), flush=False)
    bench = Bench(M01, 2, (RecoveredPartition(P, (found,), (prepared(1, (M00, M01)),)),), suspect=True)
    fence(bench)
    bench.persist()
    answer = answer_of(bench)
    assert answer.fenced
    assert answer.length is None


def test_a_suspect_is_trusted_where_the_topic_flushes() -> None:
    bench = _restarted(M01, suspect=True)
    fence(bench)
    bench.persist()
    assert answer_of(bench).length == 3


def test_a_member_that_does_not_know_the_segment_cannot_say() -> None:
    bench = Bench(M10)
    bench.link(M21)
    bench.hear(M21, msg.FenceRequest(P, 1, attempt(1), SWITCH))
    (answer,) = bench.sent(msg.FenceAnswer, M21)
    assert not answer.fenced
    assert answer.length is None
    assert P not in bench.core.partitions, "and keeps nothing of it"


def test_a_prepared_member_that_has_not_opened_is_fenced_at_nothing_and_never_opens() -> None:
    bench = Bench(M00)
    bench.link(M21)
    bench.prepare(1, (M00, M01), M21)
    bench.persist()
    fence(bench)
    bench.persist()
    assert answer_of(bench).length == 0
    bench.hear(M21, msg.ChainUpdate(first_chain(), 9))
    assert not bench.part.logs[1].active


def test_a_late_switcher_is_told_the_newer_record() -> None:
    bench = opened_master()
    bench.link(M10)
    bench.hear(M10, msg.ChainUpdate(sealed_chain(first_chain(), 0, 0), 9))
    bench.clear()
    fence(bench)
    assert not bench.sent(msg.FenceAnswer)
    assert bench.sent(msg.ChainUpdate, M10)


# ---- start ----------------------------------------------------------------------------------------------


def test_a_start_fences_and_voids_before_anything_is_answered() -> None:
    found = RecoveredPartition(
        P,
        (recovered(1, batches_of(1, [1]), opened_member_run=1),),
        (prepared(1, (M00, M01)), prepared(2, (M00, M01), name=b"x" * 16)),
    )
    bench = Bench(M00, 2, (found,), start=False)
    effects = bench._note(bench.core.start(bench._moment()))
    assert [type(effect) for effect in effects] == [fx.Persist], "nothing else before it is durable"
    assert all(write.segment.fenced for write in bench.writes(PutSegment))
    assert len(bench.writes(PutSegment)) == 1
    assert {write.preparation.switch_attempt for write in bench.writes(PutPreparation)} == {attempt(1), b"x" * 16}
    assert all(write.preparation.voided for write in bench.writes(PutPreparation))
    bench.clear()
    bench.link(M10)
    bench.hear(M10, msg.FenceRequest(P, 1, attempt(1), SWITCH))
    bench.hear(M10, msg.Heartbeat(1))
    assert not bench.effects
    bench.persist()
    assert bench.sent(msg.FenceAnswer, M10)
    assert bench.sent(msg.HeartbeatAnswer, M10)


def test_voiding_keeps_what_was_prepared() -> None:
    tail = TailCopy(1, 0, 1, batches_of(1, [1]))
    table = ProducerTable().at_rest()
    found = RecoveredPartition(P, (), (prepared(2, (M10, M11), tail=tail, table=table),))
    bench = Bench(M10, 2, (found,))
    (kept,) = bench.part.preparations.values()
    assert kept.voided
    assert kept.tail == tail


def test_a_slaves_preparation_is_not_voided() -> None:
    found = RecoveredPartition(P, (), (prepared(2, (M10, M11)),))
    bench = Bench(M11, 2, (found,))
    assert not next(iter(bench.part.preparations.values())).voided


def test_a_restarted_master_never_goes_on() -> None:
    bench = _restarted()
    bench.read_chain(first_chain())
    bench.link(M01)
    assert not bench.part.logs[1].active
    bench.append(3, starts=True)
    assert not bench.accepted()
    assert bench.refused()


def test_a_segment_does_not_stay_fenced_the_member_switches_itself() -> None:
    bench = opened_slave()
    fence(bench)
    bench.persist()
    bench.wait(bench.config.fenced_us - 1, (M00,))
    assert bench.part.switch is None
    bench.wait(2, (M00,))
    assert bench.part.switch is not None


# ---- prepare and open -----------------------------------------------------------------------------------


def test_prepare_is_answered_when_it_is_durable_and_names_the_run() -> None:
    bench = Bench(M10, 5)
    bench.link(M00)
    bench.prepare(2, (M10, M11), M00)
    assert not bench.sent(msg.PrepareAnswer)
    bench.persist()
    (answer,) = bench.sent(msg.PrepareAnswer, M00)
    assert (answer.member_run, answer.refusal) == (5, "")


def test_two_switchers_preparations_stand_side_by_side_and_only_the_chosen_one_opens() -> None:
    bench = Bench(M10)
    bench.link(M00)
    bench.link(M01)
    one = ProducerTable()
    one.record(batches_of(1, [1])[0].header)
    bench.prepare(2, (M10, M11), M00, name=b"x" * 16, table=one.at_rest())
    bench.prepare(2, (M10, M11), M01, name=attempt(2))
    bench.persist()
    assert [answer.refusal for answer in bench.sent(msg.PrepareAnswer)] == ["", ""]
    bench.hear(M00, msg.ChainUpdate(sealed_chain(first_chain(), 0, 0), 9))
    log = bench.part.logs[2]
    assert log.active
    assert log.table.at_rest() == NO_TABLE, "the table of the attempt that the record names"
    assert not bench.part.preparations
    assert log.opened_with is not None
    assert log.opened_with.switch_attempt == attempt(2)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_a_segment_was_opened_with_goes_when_retention_drops_the_segment(restarted: bool) -> None:
    chain = sealed_chain(first_chain(), 0, 0)
    if restarted:
        found = RecoveredPartition(P, (recovered(1, (), sealed=True),), (prepared(1, (M00, M01)),))
        bench = Bench(M00, 2, (found,))
    else:
        bench = opened_master()
    bench.read_chain(chain)
    assert not bench.writes(DropPreparation)
    bench.clear()
    bench.read_chain(trim(chain, 2, None, 2))
    assert bench.writes(DropSegment) == [DropSegment(P, 1)]
    assert bench.writes(DropPreparation) == [DropPreparation(P, 1, attempt(1))]
    assert not bench.part.logs, "nothing is left of it here but the record"


def test_a_record_that_names_another_attempt_opens_nothing() -> None:
    bench = Bench(M10)
    bench.link(M00)
    bench.prepare(2, (M10, M11), M00, name=b"x" * 16)
    bench.persist()
    bench.hear(M00, msg.ChainUpdate(sealed_chain(first_chain(), 0, 0), 9))
    assert not bench.part.logs[2].active
    assert bench.part.logs[2].record.fenced


def test_a_voided_attempt_does_not_open() -> None:
    bench = Bench(M10, 2, (RecoveredPartition(P, (), (prepared(2, (M10, M11)),)),))
    bench.read_chain(sealed_chain(first_chain(), 0, 0))
    assert not bench.part.logs[2].active


def test_a_voided_attempt_is_refused_and_another_one_is_not() -> None:
    bench = Bench(M10, 2, (RecoveredPartition(P, (), (prepared(2, (M10, M11)),)),))
    bench.link(M00)
    bench.prepare(2, (M10, M11), M00)
    bench.prepare(2, (M10, M11), M00, name=b"x" * 16)
    bench.persist()
    assert [answer.refusal for answer in bench.sent(msg.PrepareAnswer)] == ["voided", ""]


def test_a_master_opens_only_in_the_run_that_the_record_names() -> None:
    bench = Bench(M10, 3)
    bench.link(M00)
    bench.prepare(2, (M10, M11), M00)
    bench.persist()
    bench.hear(M00, msg.ChainUpdate(sealed_chain(first_chain(), 0, 0, master_run=2), 9))
    assert not bench.part.logs[2].active


def test_a_follower_opens_only_in_the_run_in_which_it_prepared() -> None:
    bench = Bench(M11, 2, (RecoveredPartition(P, (), (prepared(2, (M10, M11)),)),))
    bench.read_chain(sealed_chain(first_chain(), 0, 0))
    assert not bench.part.logs[2].active


@pytest.mark.parametrize("how", ["holds a batch", "fenced", "not a member"])
def test_a_preparation_that_could_only_harm_is_refused(how: str) -> None:
    bench = opened_master()
    bench.link(M21)
    if how == "holds a batch":
        bench.prepare(1, (M00, M01), M21, name=b"x" * 16)
    elif how == "fenced":
        bench.prepare(2, (M00, M01), M21)
        bench.persist()
        bench.hear(M21, msg.FenceRequest(P, 2, attempt(2), SWITCH))
        bench.persist()
        bench.clear()
        bench.prepare(2, (M00, M01), M21, name=b"x" * 16)
    else:
        bench.prepare(2, (M10, M11), M21)
    bench.persist()
    (answer,) = bench.sent(msg.PrepareAnswer, M21)
    assert answer.refusal
    assert len([key for key in bench.part.preparations if key[1] == b"x" * 16]) == 0


def test_a_preparation_of_a_segment_that_was_decided_elsewhere_is_refused() -> None:
    bench = Bench(M10)
    bench.link(M00)
    bench.prepare(2, (M10, M11), M00, name=b"w" * 16)
    bench.persist()
    bench.hear(M00, msg.ChainUpdate(sealed_chain(first_chain(), 0, 0, members=(M20, M21)), 9))
    bench.clear()
    bench.prepare(2, (M10, M11), M00, name=b"x" * 16)
    bench.persist()
    assert [answer.refusal for answer in bench.sent(msg.PrepareAnswer)] == ["decided"]
    assert P not in bench.core.partitions, "and nothing of it is kept"


def test_nothing_is_accepted_before_the_record_says_so() -> None:
    bench = Bench(M00)
    bench.link(M21)
    bench.prepare(1, (M00, M01), M21)
    bench.persist()
    bench.append(0, starts=True)
    assert bench.refused()


# ---- seal -----------------------------------------------------------------------------------------------


def test_a_member_truncates_to_the_sealed_length_only_and_durably() -> None:
    bench = opened_slave()
    batches = batches_of(1, [1, 1, 1])
    replicate(bench, batches, commit=1)
    bench.hear(M00, msg.ChainUpdate(sealed_chain(first_chain(), 2, checksum_of(batches[:2])), 9))
    (cut,) = bench.writes(Truncate)
    assert cut.length == 2
    assert [entry.offset for _, window in cut.windows for entry in entries_of(window)] == [
        make_offset(1, 0),
        make_offset(1, 1),
    ]
    assert bench.part.logs[1].is_in_sync


def test_a_fenced_member_cuts_nothing_before_the_record_says_where() -> None:
    bench = _restarted()
    fence(bench)
    bench.read_chain(first_chain())
    bench.persist()
    bench.wait(bench.config.fenced_us, ())
    assert not bench.writes(Truncate)
    assert bench.part.logs[1].tail == 3


def test_a_restarted_member_cuts_at_the_seal_it_was_not_there_for() -> None:
    bench = _restarted()
    batches = batches_of(1, [1, 1, 1])
    bench.read_chain(sealed_chain(first_chain(), 1, checksum_of(batches[:1])))
    assert [cut.length for cut in bench.writes(Truncate)] == [1]


def test_unsettled_cuts_nothing() -> None:
    bench = _restarted()
    bench.read_chain(unsettled_chain(first_chain()))
    assert not bench.writes(Truncate)


def test_an_older_record_says_nothing() -> None:
    bench = opened_master()
    newer = sealed_chain(first_chain(), 0, 0)
    bench.link(M10)
    bench.hear(M10, msg.ChainUpdate(newer, 9))
    bench.hear(M10, msg.ChainUpdate(replace(first_chain(), epoch=1), 8))
    assert bench.part.chain == newer


def test_a_seal_below_the_commit_cuts_nothing() -> None:
    bench = opened_master()
    bench.append(0, starts=True)
    bench.persist()
    bench.ack(M01, 1)
    bench.link(M10)
    bench.clear()
    bench.hear(M10, msg.ChainUpdate(sealed_chain(first_chain(), 0, 0), 9))
    assert not bench.writes(Truncate)
    assert bench.part.logs[1].record.quarantined
