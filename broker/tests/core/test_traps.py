"""Traces that once went wrong, each as short as it could be made."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api import errors
from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_broker.core.switching import switch_attempts
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import remove_eligible
from seriatim_broker.core.values.deleted import NONE_DELETED
from seriatim_broker.core.values.log import DropPartition, RecoveredPartition, TailCopy
from seriatim_broker.core.values.producers import NO_TABLE

from .support import (
    DONE,
    GROUP,
    M00,
    M01,
    M10,
    M11,
    M20,
    M21,
    MS,
    SECOND,
    STREAM,
    TOPIC,
    UNKNOWN,
    Bench,
    P,
    Serving,
    attempt,
    batches_of,
    checksum_of,
    control_record,
    filled,
    first_chain,
    opened_master,
    opened_slave,
    prepared,
    recovered,
    sealed_chain,
    segment_of,
)

BATCHES = batches_of(1, [1] * 5)
SEALED = sealed_chain(first_chain(), 5, checksum_of(BATCHES), members=(M20, M21))
SWITCH = b"s" * 16


def copy_from(bench: Bench) -> None:
    """The source gives all that it was asked for."""
    asked = [effect for effect in bench.all(fx.Send) if isinstance(effect.message, msg.CopyRequest)][-1]
    source = M00 if asked.broker == M00.broker else M01
    given = {"from_index": 0, "available": True, "batches": BATCHES, "table": NO_TABLE}
    bench.hear(source, filled(msg.CopyAnswer, partition=P, segment_no=1, **given))


def healing() -> Bench:
    """A broker that is to become a copy, and has been told how long the segment is."""
    bench = Bench(M10)
    bench.link(M00)
    bench.link(M01)
    bench.do(ev.Heal(P, 1, M10, None))
    bench.read_chain(SEALED)
    return bench


def refused(bench: Bench, member: MemberId) -> bool:
    """Whether that server's heartbeats are answered without segment 1."""
    bench.clear()
    bench.hear(member, msg.Heartbeat(1))
    return (P, 1) in bench.sent(msg.HeartbeatAnswer, member)[0].refused


def test_a_partition_that_exists_is_not_made_again_and_nobody_is_asked_for_ever() -> None:
    bench = Bench(M10)
    bench.open(sealed_chain(first_chain(), 0, 0))
    bench.link(M11)
    bench.do(ev.CreatePartition(9, P, "orders", 0, True, ("g1",)))
    assert [(effect.request, effect.error) for effect in bench.all(fx.Resolved)] == [(9, None)]
    assert not bench.sent(msg.PrepareRequest)


def test_a_dead_eligible_member_does_not_stop_a_group_that_waits_for_its_reservation() -> None:
    bench = Serving()
    bench.begin()
    bench.reads()
    bench.persist()
    bench.unlink(M01, refused=True)
    bench.clear()
    bench.wait(5 * SECOND)
    assert segment_of(bench.all(fx.WriteChain)[-1].chain, 1).eligible == (M00,)


def test_a_dead_eligible_member_does_not_stop_a_crossing() -> None:
    bench = Serving()
    bench.serve()
    bench.ack(4)
    bench.persist()
    bench.unlink(M01, refused=True)
    bench.clear()
    bench.wait(5 * SECOND)
    assert segment_of(bench.all(fx.WriteChain)[-1].chain, 1).eligible == (M00,)
    bench.written()
    bench.wait(SECOND)
    bench.persist()
    assert bench.all(fx.WriteCursor)


def test_served_segment_is_of_the_newest_record_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Serving()
    bench.serve()
    (group,) = bench.part.consumer_groups.values()
    assert group.served is not None
    assert bench.part.chain is not None
    seen: list[tuple[MemberId, ...]] = []
    monkeypatch.setattr(switch_attempts, "on_learned", lambda *_: seen.append(group.served.segment.eligible))
    bench.read_chain(remove_eligible(bench.part.chain, 1, [M01]))
    assert seen == [(M00,)], "this part is the first that follows the record"


def test_a_joining_member_that_is_lost_does_not_stop_a_group() -> None:
    bench = Serving(eligible=(M00,))
    bench.begin()
    bench.link(M01)
    bench.hear(M01, msg.EligibleRequest(P, 1))
    bench.reads()
    bench.persist()
    bench.unlink(M01, refused=True)
    bench.wait(5 * SECOND)
    bench.persist()
    bench.wait(SECOND)
    assert bench.indexes()


def test_a_copy_is_listed_only_when_it_is_durable_whatever_happens_meanwhile() -> None:
    bench = healing()
    copy_from(bench)
    bench.link(M20)
    bench.hear(M00, msg.ChainUpdate(remove_eligible(SEALED, 1, [M01]), 0))
    bench.wait(3 * SECOND, (M00, M01, M20))
    assert not bench.all(fx.WriteChain)
    bench.persist()
    assert bench.all(fx.WriteChain)


def test_a_copy_whose_listing_failed_tries_again() -> None:
    bench = healing()
    copy_from(bench)
    bench.persist()
    bench.wait(3 * SECOND, (M00, M01))
    bench.written(UNKNOWN)
    bench.clear()
    bench.read_chain(SEALED)
    bench.wait(20 * SECOND, (M00, M01))
    assert bench.all(fx.WriteChain)


def test_a_refused_server_is_refused_until_it_surely_knows() -> None:
    bench = Serving(M01)
    bench.link(M00)
    bench.unlink(M00, refused=True)
    bench.link(M10)
    bench.wait(SECOND, (M10,))
    bench.hear(M10, msg.TakeOver(P, 1, bench.chain.segments[0].server_epoch))
    bench.written()
    bench.link(M00)  # it is sent on this connection, which breaks before it arrives
    bench.unlink(M00)
    bench.link(M00)
    assert refused(bench, M00)
    bench.wait(2 * bench.config.slow_heartbeat_us, (M00, M10))
    assert not refused(bench, M00), "it answered what was sent after the record"


def test_a_restarted_server_refuses_whoever_may_think_that_it_serves() -> None:
    bench = Serving(M01, server=M01, eligible=(M01,), learn=False, run=2)
    bench.link(M00)
    bench.wait(400 * MS)
    bench.read_chain(bench.chain)
    bench.join()
    bench.cursor()
    bench.written()
    bench.persist()
    assert not bench.may_deliver(), "it answered the other one until now"
    told = bench.sent(msg.ChainUpdate, M00)
    assert refused(bench, M00) or told


def test_a_member_fenced_before_it_knows_the_chain_refuses_the_server() -> None:
    found = RecoveredPartition(P, (recovered(1, BATCHES, commit=5),), (prepared(1, (M00, M01)),))
    bench = Bench(M01, 2, (found,))
    bench.link(M00)
    bench.link(M10)
    bench.hear(M10, msg.FenceRequest(P, 1, attempt(1), SWITCH))
    bench.persist()
    assert refused(bench, M00)


def test_a_write_may_end_after_its_partition_was_dropped() -> None:
    bench = Serving()
    bench.join()
    bench.look_up()
    assert bench.all(fx.WriteChain)
    bench.do(ev.DropPartitionData(P))
    bench.written()
    assert P not in bench.core.partitions


def test_a_partition_is_dropped_by_ranges_as_by_its_tombstone() -> None:
    bench = opened_master()
    under_way = bench.append(0, starts=True)
    bench.do(ev.DropDeleted(NONE_DELETED.with_ids([PartitionId(P + 1)])))
    assert P in bench.core.partitions
    bench.do(ev.DropDeleted(NONE_DELETED.with_ids([P])))
    assert bench.writes(DropPartition) == [DropPartition(P)]
    assert under_way in bench.refused()
    assert P not in bench.core.partitions


@pytest.mark.parametrize("is_asked", [False, True], ids=["quiet", "asked"])
def test_a_dropped_partition_is_read_when_a_member_reports_it(*, is_asked: bool) -> None:
    """Rule `reported-is-read` (GONE): the member has not heard yet that the topic was deleted."""
    bench = opened_slave()
    bench.do(ev.DropPartitionData(P))
    bench.clear()
    if is_asked:
        bench.do(ev.ResolveProducer(1, P, 1, bench.now_us + 10 * SECOND))
    bench.hear(M00, msg.ChainUpdate(first_chain(), 100))
    reads = bench.all(fx.ReadChain)
    assert not bench.all(fx.Persist), "nothing of it is stored again"
    if is_asked:
        assert reads == [fx.ReadChain(P)], "a read is under way"
        bench.do(ev.ChainRead(P, None, 0))
        reads = bench.all(fx.ReadChain)[1:]
    assert reads == [fx.ReadChain(P, known=True)], "the tombstone is looked up"
    bench.do(ev.ChainRead(P, None, 0, deleted=True))
    answers = [type(answer.error) for answer in bench.all(fx.Resolved)]
    assert answers == [errors.UnknownTopicError] * is_asked
    assert P not in bench.core.partitions


def test_reported_partition_without_a_record_is_read_again() -> None:
    """The coordinator was restored from a copy that is older than the topic, and no tombstone names it."""
    bench = Bench(M01)
    bench.link(M00)
    bench.do(ev.ResolveProducer(1, P, None, bench.now_us + 10 * SECOND))
    bench.hear(M00, msg.ChainUpdate(first_chain(), 100))
    bench.do(ev.ChainRead(P, None, 0))  # this read had begun before
    for _ in range(3):
        bench.clear()
        bench.do(ev.ChainRead(P, None, 0))
        bench.wait(SECOND, (M00,))
        assert bench.all(fx.ReadChain) == [fx.ReadChain(P, known=True)]
        assert not bench.all(fx.Resolved), "the topic is not unknown: its record is lost"
    bench.do(ev.ChainRead(P, first_chain(), 100))
    assert [answer.error for answer in bench.all(fx.Resolved)] == [None]


def test_route_of_a_lost_record_is_answered_at_the_deadline() -> None:
    bench = Bench(M01)
    bench.link(M00)
    bench.do(ev.ResolveProducer(1, P, None, bench.now_us + SECOND))
    bench.hear(M00, msg.ChainUpdate(first_chain(), 100))
    bench.do(ev.ChainRead(P, None, 0))
    bench.do(ev.ChainRead(P, None, 0))
    bench.wait(SECOND, (M00,))
    assert [type(answer.error) for answer in bench.all(fx.Resolved)] == [errors.CoordinatorUnavailableError]


def test_tail_copy_of_a_deleted_partition_is_dropped() -> None:
    """Rule `tombstone-read` (GONE): the member that settles has not heard yet that the topic was deleted."""
    bench = Bench(M01)
    bench.link(M00)
    bench.hear(M00, msg.StoreTail(P, SWITCH, TailCopy(1, 0, 0, ())))
    bench.do(ev.ChainRead(P, None, 0, failed=True))
    bench.wait(SECOND, (M00,))
    assert bench.all(fx.ReadChain) == [fx.ReadChain(P, known=True)] * 2
    bench.do(ev.ChainRead(P, None, 0, deleted=True))
    assert bench.writes(DropPartition) == [DropPartition(P)]
    assert P not in bench.core.partitions


def test_a_reported_partition_is_taken_up_when_it_is_read() -> None:
    bench = Bench(M01)
    bench.link(M00)
    bench.hear(M00, msg.ChainUpdate(first_chain(), 100))
    bench.do(ev.ChainRead(P, first_chain(), 100))
    assert bench.part.chain == first_chain()


def test_a_read_that_finds_a_tombstone_drops_the_partition() -> None:
    """Rule `tombstone-read` (GONE)."""
    bench = opened_master()
    under_way = bench.append(0, starts=True)
    bench.do(ev.ChainRead(P, None, 0, deleted=True))
    assert bench.writes(DropPartition) == [DropPartition(P)]
    assert under_way in bench.refused()
    assert P not in bench.core.partitions


def test_a_preparation_of_a_deleted_partition_is_dropped() -> None:
    """The switcher did not know that the topic was deleted."""
    bench = Bench(M10)
    bench.link(M00)
    bench.prepare(2, (M10, M11), M00)
    bench.wait(SECOND, (M00,))
    assert bench.all(fx.ReadChain) == [fx.ReadChain(P, known=True)], "the tombstone is looked up"
    bench.do(ev.ChainRead(P, None, 0, deleted=True))
    assert bench.writes(DropPartition) == [DropPartition(P)]
    assert P not in bench.core.partitions


def test_a_topic_that_is_deleted_leaves_nobody_unanswered() -> None:
    """Else batches under way keep their share of the broker's memory until the producer's stream ends."""
    bench = opened_master()
    under_way = bench.append(0, starts=True)
    bench.link(M10)
    bench.hear(M10, msg.QuiesceRequest(P, 1, SWITCH))
    held_back = bench.append(1)
    asks = 90
    bench.do(ev.ResolveProducer(asks, P, 1, bench.now_us + 10 * SECOND))
    plans = 91
    bench.do(ev.PlanSwitch(plans, P))
    gap = 92
    bench.do(ev.DeclareGap(gap, P, 1))
    bench.do(ev.DropPartitionData(P))
    bench.persist()
    refused = bench.refused()
    assert isinstance(refused[under_way], errors.OutcomeUnknownError), "consumers may have been given it"
    assert isinstance(refused[held_back], errors.UnknownTopicError), "it was never stored"
    resolved = {effect.request: effect.error for effect in bench.all(fx.Resolved)}
    assert {asks, plans, gap} <= set(resolved)
    assert all(isinstance(resolved[request], errors.SeriatimError) for request in (asks, plans, gap))


def test_the_last_acks_of_a_consumer_that_leaves_are_kept() -> None:
    bench = Serving()
    bench.serve()
    bench.ack(2)
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.wait(SECOND, (M01,))
    bench.persist_everywhere()
    assert bench.part.cursors[GROUP].acked == 3


def test_a_complaint_during_an_outage_of_the_coordinator_does_not_spin() -> None:
    bench = opened_slave()
    bench.do(ev.ResolveProducer(1, P, 1, bench.now_us + 10 * SECOND))
    reads = 0
    for _ in range(20):
        bench.clear()
        bench.read_chain(None, failed=True)
        assert not bench.all(fx.ReadChain)
        bench.wait(100 * MS, (M00,))
        reads += len(bench.all(fx.ReadChain))
    assert 0 < reads < 20


def test_a_segment_opened_in_this_run_is_not_suspect() -> None:
    bench = opened_master(flush=False, suspect=True)
    bench.append(0, starts=True)
    bench.ack(M01, 1)
    bench.hear(M21, msg.FenceRequest(P, 1, attempt(1), SWITCH))
    bench.persist()
    assert [answer.length for answer in bench.sent(msg.FenceAnswer)] == [1]


def test_a_planned_switch_whose_master_dies_asks_the_others_and_opens_nothing_over() -> None:
    bench = Bench(M10)
    others = (M01, M11, M20, M21)
    for member in (M00, *others):
        bench.link(member)
    bench.do(ev.PlanSwitch(1, P))
    bench.read_chain(first_chain())
    for member in (M11, M20, M21):
        for prepare in bench.sent(msg.PrepareRequest, member):
            bench.hear(member, msg.PrepareAnswer(P, 2, prepare.switch_attempt, 1, ""))
    bench.persist()
    (request,) = bench.sent(msg.QuiesceRequest)
    bench.hear(M00, msg.QuiesceAnswer(P, 1, request.switch, True))
    bench.unlink(M00, refused=True)
    bench.clear()
    bench.wait(2 * SECOND, others)
    for read in bench.all(fx.ReadCertificate):
        bench.do(ev.CertificateRead(P, read.member_run, True))
    bench.read_chain(first_chain())
    assert bench.sent(msg.FenceRequest, M01)
    assert not [prepare for prepare in bench.sent(msg.PrepareRequest) if prepare.incomplete_table]


def test_an_answer_to_an_earlier_run_or_another_segment_confirms_no_control_record() -> None:
    bench = Serving()
    bench.begin()
    bench.reads()
    bench.persist()
    consumer_group = bench.part.consumer_groups[GROUP]
    assert consumer_group.served.ledger.replications
    bench.hear(M01, msg.CursorsReplicated(P, 1, 1, 1_000_000))
    bench.hear(
        M01,
        msg.CursorsReplicated(
            P, 1, consumer_group.served.server_epoch - 1, max(consumer_group.served.ledger.replications)
        ),
    )
    bench.hear(
        M01,
        msg.CursorsReplicated(P, 2, consumer_group.served.server_epoch, max(consumer_group.served.ledger.replications)),
    )
    assert consumer_group.served.ledger.replications


def test_a_member_that_becomes_eligible_has_the_newest_control_records() -> None:
    bench = Serving(eligible=(M00,))
    bench.begin()
    bench.link(M01)
    bench.hear(M01, msg.EligibleRequest(P, 1))
    replication = bench.sent(msg.ReplicateCursors, M01)[-1]
    bench.hear(M01, msg.CursorsReplicated(P, 1, replication.server_epoch, replication.serial))
    write = bench.all(fx.WriteChain)[-1]
    assert M01 in segment_of(write.chain, 1).eligible
    bench.unlink(M01)  # what follows does not reach it
    bench.reads()
    bench.persist()
    bench.wait(30 * MS)
    bench.link(M01)
    delivered = bool(bench.indexes())
    reserved = bench.part.cursors[GROUP].reserved
    bench.do(ev.ChainWritten(P, write.serial, DONE, 500))
    known = [cursor for replication in bench.sent(msg.ReplicateCursors, M01) for cursor in replication.cursors]
    assert any(cursor.reserved >= reserved for cursor in known) or not delivered


def test_a_certificate_of_an_earlier_run_does_not_end_a_later_one() -> None:
    bench = Serving(M01, eligible=(M00,))
    bench.do(ev.CertificateSeen(RunId(M00, 4)))
    bench.link(M10)
    bench.wait(SECOND, (M10,))
    bench.clear()
    bench.hear(M10, msg.TakeOver(P, 1, bench.chain.segments[0].server_epoch))
    assert not bench.all(fx.WriteChain)


def test_an_older_record_is_answered_with_the_newer() -> None:
    bench = opened_master()
    bench.link(M10)
    bench.hear(M10, msg.ChainUpdate(sealed_chain(first_chain(), 0, 0), 200))
    bench.clear()
    bench.hear(M01, msg.ChainUpdate(first_chain(), 100))
    assert [update.chain.epoch for update in bench.sent(msg.ChainUpdate, M01)] == [2]


def test_a_follower_that_thaws_learns_what_was_decided_meanwhile() -> None:
    bench = opened_master()
    bench.link(M10)
    bench.hear(M10, msg.ChainUpdate(sealed_chain(first_chain(), 0, 0), 200))
    bench.unlink(M01)
    bench.clear()
    bench.link(M01)
    assert [update.chain.epoch for update in bench.sent(msg.ChainUpdate, M01)] == [2]


def test_a_stale_master_and_a_member_that_knows_nothing_do_not_talk_without_a_pause() -> None:
    bench = opened_master()
    bench.unlink(M01)
    bench.link(M01)
    bench.clear()
    bench.hear(M01, msg.ReplicateRefused(P, 1, attempt(1), "not opened"))
    assert not bench.sent(msg.TailRequest)
    assert bench.all(fx.ReadChain)
    bench.wait(10 * MS, (M01,))
    assert bench.sent(msg.TailRequest, M01)


def test_a_prepared_member_looks_what_became_of_the_attempt() -> None:
    bench = Bench(M10)
    bench.link(M00)
    bench.prepare(2, (M10, M11), M00)
    bench.persist()
    bench.unlink(M00)  # the switcher dies right after its transaction
    bench.wait(2 * SECOND)
    assert bench.all(fx.ReadChain)
    bench.read_chain(sealed_chain(first_chain(), 0, 0))
    assert bench.part.logs[2].active


def test_to_describe_a_group_does_not_make_it() -> None:
    bench = Serving()
    bench.do(ev.DescribeConsumerGroup(1, P, GROUP))
    bench.read_chain(bench.chain)
    bench.do(ev.CursorRead(P, GROUP, None, 0))
    assert not bench.all(fx.WriteCursor)
    assert bench.all(fx.ConsumerGroupDescribed)[0].error is not None


def test_a_server_that_is_known_to_be_replaced_gets_no_control_record_confirmed() -> None:
    bench = Serving(M01, server=M10, eligible=(M10, M01))
    bench.link(M00)
    stale = bench.chain.segments[0].server_epoch - 1
    bench.clear()
    bench.hear(M00, msg.ReplicateCursors(P, 1, stale, 3, (control_record(1, GROUP, 1, 4, 4),)))
    bench.persist()
    assert not bench.sent(msg.CursorsReplicated)
    assert bench.part.cursor_in(1, GROUP) is None


def test_silence_of_a_broker_of_another_group_is_noticed() -> None:
    bench = opened_master()
    bench.link(M10)
    bench.wait(5 * SECOND, (M01,))
    assert M10.broker in [effect.broker for effect in bench.all(fx.Disconnect)]
    assert bench.part.switch is None


def test_consumers_and_questions_of_a_deleted_topic_are_answered_and_nothing_is_asked_for_ever() -> None:
    bench = Serving()
    bench.begin()
    bench.join(2)
    bench.do(ev.DropPartitionData(P))
    refused = bench.delivered(fx.SubscriptionRefused)
    assert [type(event.error) for event in refused] == [errors.UnknownTopicError] * 2
    bench.clear()
    bench.do(ev.ResolveConsumer(7, P, GROUP, 1, ev.StartPosition.EARLIEST, bench.now_us + 10 * SECOND))
    bench.do(ev.DescribeConsumerGroup(8, P, GROUP))
    bench.join(3)
    bench.do(ev.CursorRead(P, GROUP, None, 0))
    bench.read_chain(None)
    (resolved,) = bench.all(fx.ConsumerResolved)
    assert isinstance(resolved.error, errors.UnknownTopicError)
    assert isinstance(bench.all(fx.ConsumerGroupDescribed)[0].error, errors.UnknownTopicError)
    assert isinstance(bench.delivered(fx.SubscriptionRefused)[0].error, errors.UnknownTopicError)
    bench.clear()
    bench.wait(10 * SECOND, (M01,))
    assert not bench.all(fx.ReadChain)
    assert not bench.all(fx.ReadCursor)
    assert P not in bench.core.partitions


def test_a_server_that_gave_up_its_right_confirms_nothing() -> None:
    """Rule `no-right-confirms-nothing`: the member that took the right over may have been joining, or listed."""
    bench = Serving(eligible=(M00,))
    bench.serve()
    bench.ack(1)
    bench.clear()
    taken = replace(segment_of(bench.chain, 1), server=M01, server_epoch=9, eligible=(M01,))
    newer = replace(bench.chain, epoch=9, segments=(taken, *bench.chain.segments[1:]))
    bench.link(M01)
    bench.hear(M01, msg.ChainChanges(replace(newer, segments=(taken,)), 0, newer.epoch, (), newer.parts.digest))
    bench.persist()
    bench.wait(SECOND)
    bench.persist()
    assert not bench.delivered(fx.AckConfirmed)
    bench.read_chain(newer)
    assert bench.delivered(fx.Revoked)


def test_a_cursor_read_before_a_group_was_forgotten_counts_no_more() -> None:
    """Rule `left-is-known`: the answer comes after the cursor has moved and the consumer group is forgotten."""
    bench = Serving(eligible=(M00,))
    bench.serve()
    bench.ack(4)
    bench.persist()
    (move,) = bench.all(fx.WriteCursor)
    bench.do(ev.CursorWritten(P, GROUP, move.serial, DONE, 9))
    bench.cursor(no=2, revision=9)
    bench.join(subscription=2)
    bench.clear()
    bench.do(ev.CursorRead(P, GROUP, ev.CursorRecord(1, 1, 0, TOPIC), 5, known_revision=5))
    assert not bench.delivered(fx.Joined)
    bench.do(ev.CursorRead(P, GROUP, ev.CursorRecord(2, 1, 0, TOPIC), 9, known_revision=9))
    (refused,) = bench.delivered(fx.SubscriptionRefused)
    assert refused.segment_no == 2
