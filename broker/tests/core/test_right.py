"""The serving right: one server at a time, by answered heartbeats, refusals and the chain record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from seriatim_api.ids import MemberId, PartitionId, make_offset
from seriatim_broker.core.peers import right
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import change_server
from seriatim_broker.core.values.delayed_messages import CancelDelayed, ListFiring
from seriatim_broker.core.values.log import RecoveredPartition

from .support import (
    CONFLICT,
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
    first_chain,
    opened_slave,
    prepared,
    recovered,
    sealed_chain,
    segment_of,
)


def ready() -> Serving:
    """All is there but the deliveries: the disk has not answered yet."""
    bench = Serving()
    bench.begin()
    bench.part.consumer_groups["readers"].served.ledger.safe_reserved = 100
    bench.clear()
    return bench


def beat(bench: Bench, member: object = M01, refused: tuple[object, ...] = ()) -> None:
    """The other member answers a heartbeat that was sent now."""
    bench.hear(member, msg.HeartbeatAnswer(bench.now_us, refused))  # type: ignore[arg-type]


def read(bench: Serving) -> None:
    """The disk answers at last."""
    consumer_group = bench.part.consumer_groups["readers"]
    bench.do(ev.LogRead(consumer_group.dispatcher.reading, bench.batches))


def test_a_server_whose_heartbeats_are_answered_delivers() -> None:
    bench = ready()
    beat(bench)
    read(bench)
    assert bench.indexes()


def test_a_server_without_answered_heartbeats_delivers_nothing() -> None:
    bench = ready()
    beat(bench)
    bench.now_us += bench.config.serve_lease_us
    read(bench)
    assert not bench.indexes()


def test_the_lease_counts_from_when_the_heartbeat_was_sent() -> None:
    bench = ready()
    sent_us = bench.now_us
    bench.now_us += bench.config.serve_lease_us
    bench.hear(M01, msg.HeartbeatAnswer(sent_us, ()))
    read(bench)
    assert not bench.indexes()


def test_a_server_that_is_refused_delivers_nothing_though_it_is_answered() -> None:
    bench = ready()
    beat(bench, refused=((P, 1),))
    read(bench)
    assert not bench.indexes()


def test_a_refusal_for_another_segment_does_not_matter() -> None:
    bench = ready()
    beat(bench, refused=((P, 2),))
    read(bench)
    assert bench.indexes()


def test_a_silent_member_is_removed_by_a_transaction_and_only_then_is_delivered() -> None:
    bench = ready()
    beat(bench)
    bench.unlink(M01)
    bench.now_us += bench.config.serve_lease_us
    read(bench)
    bench.wait(2 * SECOND)
    assert not bench.indexes()
    write = bench.all(fx.WriteChain)[-1]
    assert segment_of(write.chain, 1).eligible == (M00,)
    bench.written()
    bench.persist()
    bench.wait(100 * MS)
    assert bench.indexes()


def test_a_server_delivers_although_the_member_that_it_is_about_to_list_is_not_watched() -> None:
    """The coordinator is away, so the transaction that lists the member has no answer for long."""
    bench = Serving(eligible=(M00,))
    bench.begin(M10)
    bench.link(M10)
    bench.part.consumer_groups["readers"].served.ledger.safe_reserved = 100
    bench.wait(3 * SECOND, (M10,))
    bench.hear(M10, msg.EligibleRequest(P, 1))
    asked = bench.sent(msg.ReplicateCursors, M10)[-1]
    bench.hear(M10, msg.CursorsReplicated(P, 1, asked.server_epoch, asked.serial))
    assert bench.part.rights[1].listing == (M10,)
    bench.wait(bench.config.slow_heartbeat_us // 2, (M10,))  # its newest answered heartbeat is too old meanwhile
    read(bench)
    bench.wait(bench.config.heartbeat_us, (M10,))
    assert bench.indexes()


def test_a_restarted_server_takes_the_right_anew() -> None:
    bench = Serving(run=2)
    bench.link(M01)
    bench.join()
    bench.do(ev.ConsumerCredit(1, 1 << 20))
    bench.look_up()
    assert not bench.delivered(fx.Joined)
    write = bench.all(fx.WriteChain)[-1]
    segment = segment_of(write.chain, 1)
    assert (segment.server, segment.server_epoch) == (M00, bench.chain.epoch + 1)


def test_a_restarted_server_takes_the_right_anew_though_a_peer_that_is_behind_speaks_first() -> None:
    """Else it would continue under the old `server_epoch`, and a token of its last run would be valid again (I4)."""
    one = first_chain((M10, M11))
    two = sealed_chain(one, 0, 0, (M00, M01), server=M10)
    found = recovered(2, (), opened_member_run=1)
    bench = Bench(M00, 2, (RecoveredPartition(P, (found,), (prepared(2, (M00, M01)),), (), ()),))
    bench.link(M10)
    bench.hear(M10, msg.ChainUpdate(one, 101))
    bench.read_chain(two)
    assert not bench.part.rights[2].confirmed
    bench.do(ev.ConsumerCredit(STREAM, 1 << 20))
    bench.do(ev.ConsumerJoin(STREAM, 1, P, GROUP, "c", ev.StartPosition.EARLIEST, False))
    bench.do(ev.CursorRead(P, GROUP, ev.CursorRecord(2, 1, 0, TOPIC), 5))
    assert not bench.delivered(fx.Joined)
    taken = segment_of(bench.all(fx.WriteChain)[-1].chain, 2)
    assert (taken.server, taken.server_epoch) == (M00, two.epoch + 1)


def test_a_right_that_was_given_before_the_first_read_of_this_run_is_an_older_runs() -> None:
    """A peer reports two old records in turn: the second looks as if it gave the right just now."""
    chain = Serving(M01).chain
    given = change_server(chain, 1, M01, ())
    bench = Serving(M01, run=2, learn=False)
    bench.link(M00)
    bench.hear(M00, msg.ChainUpdate(chain, 101))
    bench.hear(M00, msg.ChainUpdate(given, 102))
    assert not bench.part.rights[1].confirmed
    bench.read_chain(given)
    assert not bench.part.rights[1].confirmed
    bench.hear(M00, msg.ChainUpdate(change_server(change_server(given, 1, M00, ()), 1, M01, ()), 104))
    assert bench.part.rights[1].confirmed, "what is newer than a read of this run was given in this run"


def test_a_member_that_prepared_the_segment_in_this_run_needs_no_other_proof() -> None:
    bench = opened_slave()
    chain = sealed_chain(first_chain(), 0, 0, server=M01, eligible=(M01,))
    bench.hear(M00, msg.ChainUpdate(chain, 102))
    held = bench.part.rights[1]
    assert (held.confirmed, held.old_server) == (True, M00)


def test_an_eligible_member_takes_over_from_a_silent_server_and_waits_its_lease_out() -> None:
    bench = Serving(M01)
    bench.link(M00)
    bench.link(M10)
    bench.wait(100 * MS, (M00, M10))
    bench.unlink(M00)
    bench.wait(SECOND, (M10,))
    bench.clear()
    bench.hear(M10, msg.TakeOver(P, 1, bench.chain.segments[0].server_epoch))
    segment = segment_of(bench.all(fx.WriteChain)[-1].chain, 1)
    assert (segment.server, segment.eligible) == (M01, (M01,))
    bench.written()
    learned_us = bench.now_us
    wait_us = bench.config.serve_lease_us + bench.config.serve_margin_us
    bench.now_us = learned_us + wait_us - 1
    bench.do(ev.Tick())
    assert not bench.may_deliver()
    bench.now_us += 1
    bench.do(ev.Tick())
    assert bench.may_deliver()


@pytest.mark.parametrize("question", [CancelDelayed(1, P, make_offset(1, 0)), ListFiring(1, P, (1,))])
def test_a_question_about_delayed_messages_replaces_a_dead_server(question: Any) -> None:
    """Also if nothing of its segment is left to be fired or read, so that nothing else asks for a server."""
    bench = Serving(M01)
    bench.link(M00)
    bench.wait(100 * MS, (M00,))
    bench.do(question)
    assert not bench.all(fx.WriteChain), "the server is there"
    bench.unlink(M00)
    bench.wait(SECOND)
    bench.clear()
    bench.do(question)
    assert segment_of(bench.all(fx.WriteChain)[-1].chain, 1).server == M01


def test_a_server_that_is_heard_is_not_taken_over_from() -> None:
    bench = Serving(M01)
    bench.link(M00)
    bench.link(M10)
    bench.wait(SECOND, (M00, M10))
    bench.clear()
    bench.hear(M10, msg.TakeOver(P, 1, bench.chain.segments[0].server_epoch))
    assert not bench.all(fx.WriteChain)


def test_a_complaint_about_an_older_server_is_ignored() -> None:
    bench = Serving(M01)
    bench.link(M10)
    bench.wait(SECOND, (M10,))
    bench.hear(M10, msg.TakeOver(P, 1, bench.chain.segments[0].server_epoch - 1))
    assert not bench.all(fx.WriteChain)


def test_a_member_that_is_not_eligible_takes_over_only_after_the_servers_certificate() -> None:
    from seriatim_api.ids import RunId

    bench = Serving(M01, eligible=(M00,))
    bench.link(M00, run=3)
    bench.link(M10)
    bench.unlink(M00, refused=True)
    bench.wait(SECOND, (M10,))
    complaint = msg.TakeOver(P, 1, bench.chain.segments[0].server_epoch)
    bench.clear()
    bench.hear(M10, complaint)
    bench.do(ev.CertificateSeen(RunId(M00, 2)))
    bench.hear(M10, complaint)
    assert not bench.all(fx.WriteChain), "the run that lives is another one"
    bench.do(ev.CertificateSeen(RunId(M00, 3)))
    bench.hear(M10, complaint)
    taken = segment_of(bench.all(fx.WriteChain)[-1].chain, 1)
    assert taken.server == M01
    assert taken.records_lost


def test_a_member_that_lacks_a_part_does_not_take_over() -> None:
    from seriatim_broker.core.values.log import RecoveredPartition

    from .support import batches_of, checksum_of, recovered

    batches = batches_of(1, [1, 1])
    found = recovered(1, batches[:1], fenced=True)
    bench = Bench(M01, 1, (RecoveredPartition(P, (found,)),))
    chain = sealed_chain(first_chain(), 2, checksum_of(batches), server=M00)
    bench.read_chain(chain)
    bench.link(M10)
    bench.wait(SECOND, (M10,))
    bench.clear()
    bench.hear(M10, msg.TakeOver(P, 1, segment_of(chain, 1).server_epoch))
    assert not bench.all(fx.WriteChain)


def test_who_seeks_the_right_stops_answering_the_server_first() -> None:
    bench = Serving(M01)
    bench.link(M00)
    bench.wait(50 * MS)
    bench.unlink(M00)
    bench.wait(SECOND)
    bench.link(M10)
    bench.hear(M10, msg.TakeOver(P, 1, bench.chain.segments[0].server_epoch))
    assert bench.all(fx.WriteChain)
    assert bench.core.state.links.refusals[M00.broker]


def test_a_fenced_member_answers_its_server_no_more() -> None:
    bench = opened_slave()
    bench.link(M10)
    bench.hear(M00, msg.Heartbeat(1))
    bench.hear(M10, msg.FenceRequest(P, 1, attempt(1), b"s" * 16))
    bench.hear(M00, msg.Heartbeat(2))
    first, second = bench.sent(msg.HeartbeatAnswer, M00)
    assert first.refused == ()
    assert second.refused == ((P, 1),)


def test_a_refused_server_is_answered_again_once_it_was_told_the_newer_record() -> None:
    bench = opened_slave()
    bench.link(M10)
    bench.hear(M10, msg.FenceRequest(P, 1, attempt(1), b"s" * 16))
    chain = sealed_chain(first_chain(), 0, 0)
    bench.hear(M10, msg.ChainUpdate(chain, 9))
    assert [update.chain for update in bench.sent(msg.ChainUpdate, M00)][-1:] == [chain]
    bench.wait(2 * bench.config.heartbeat_us, (M00,))
    bench.clear()
    bench.hear(M00, msg.Heartbeat(3))
    (answer,) = bench.sent(msg.HeartbeatAnswer, M00)
    assert answer.refused == ()


def restarted(server: MemberId) -> Bench:
    """M01 starts again, and cannot read the coordinator. Its disk says that this member serves segment 1."""
    before = Serving(learn=False)
    chain = change_server(before.chain, 1, server, ())
    found = recovered(1, before.batches, commit=before.length, sealed=True)
    bench = Bench(M01, 2, (RecoveredPartition(P, (found,), chain=chain),))
    bench.read_chain(None, failed=True)
    return bench


def test_a_member_that_restarted_refuses_the_server_before_until_it_has_told_it_the_newer_record() -> None:
    bench = restarted(M01)
    bench.link(M00)
    assert [update.chain for update in bench.sent(msg.ChainUpdate, M00)] == [bench.part.kept]
    bench.hear(M00, msg.Heartbeat(1))
    assert bench.sent(msg.HeartbeatAnswer, M00)[-1].refused == ((P, 1),)
    bench.wait(2 * bench.config.slow_heartbeat_us, (M00,))
    bench.hear(M00, msg.Heartbeat(2))
    assert bench.sent(msg.HeartbeatAnswer, M00)[-1].refused == ()


def test_a_refused_server_is_told_the_newer_record_in_each_session_until_it_has_answered() -> None:
    bench = restarted(M01)
    bench.link(M00)
    bench.unlink(M00)
    bench.clear()
    bench.link(M00)
    assert bench.sent(msg.ChainUpdate, M00)
    bench.hear(M00, msg.Heartbeat(1))
    assert bench.sent(msg.HeartbeatAnswer, M00)[-1].refused == ((P, 1),)


def test_a_member_that_restarted_answers_the_server_that_its_disk_names() -> None:
    bench = restarted(M00)
    bench.link(M00)
    bench.hear(M00, msg.Heartbeat(1))
    assert bench.sent(msg.HeartbeatAnswer, M00)[-1].refused == ()


def test_a_whole_member_is_listed_when_it_has_the_control_records() -> None:
    bench = Serving(eligible=(M00,))
    bench.begin()
    bench.link(M01)
    bench.clear()
    bench.hear(M01, msg.EligibleRequest(P, 1))
    (replication,) = bench.sent(msg.ReplicateCursors, M01)
    assert {cursor.consumer_group for cursor in replication.cursors} == {"readers"}
    assert not bench.all(fx.WriteChain)
    bench.hear(M01, msg.CursorsReplicated(P, 1, replication.server_epoch, replication.serial))
    assert segment_of(bench.all(fx.WriteChain)[-1].chain, 1).eligible == (M00, M01)


def test_only_the_server_lists() -> None:
    bench = Serving(M01, eligible=(M00,))
    bench.link(M10)
    bench.hear(M10, msg.EligibleRequest(P, 1))
    assert not bench.all(fx.WriteChain)
    assert not bench.sent(msg.ReplicateCursors)


def test_the_master_of_an_open_segment_serves_it_at_once() -> None:
    from .support import opened_master

    bench = opened_master()
    assert not bench.may_deliver()
    beat(bench)
    assert bench.may_deliver()


def test_a_server_that_was_replaced_lets_go() -> None:
    bench = ready()
    beat(bench)
    assert bench.may_deliver()
    assert bench.part.chain is not None
    bench.hear(M01, msg.ChainUpdate(change_server(bench.part.chain, 1, M01, [M00]), 999))
    assert not bench.may_deliver()


def test_a_reservation_waits_for_a_member_that_is_about_to_be_eligible() -> None:
    bench = Serving(eligible=(M00,))
    bench.begin()
    bench.link(M01)
    bench.hear(M01, msg.EligibleRequest(P, 1))
    replication = bench.sent(msg.ReplicateCursors, M01)[-1]
    bench.hear(M01, msg.CursorsReplicated(P, 1, replication.server_epoch, replication.serial))
    assert bench.all(fx.WriteChain), "it may be eligible from now on, whether this member heard of it or not"
    bench.reads()
    bench.persist()
    bench.wait(100 * MS, (M01,))
    assert not bench.indexes()
    bench.confirm_replications()
    bench.wait(100 * MS, (M01,))
    assert bench.indexes()


def test_a_member_that_may_be_listed_counts_as_eligible_until_a_newer_record_says_so_or_not() -> None:
    """The answer to the transaction did not come: the listed member may take over, and this one must not deliver."""
    bench = Serving(eligible=(M00,))
    bench.begin()
    bench.link(M01)
    bench.hear(M01, msg.EligibleRequest(P, 1))
    replication = bench.sent(msg.ReplicateCursors, M01)[-1]
    bench.hear(M01, msg.CursorsReplicated(P, 1, replication.server_epoch, replication.serial))
    beat(bench)
    bench.written(UNKNOWN)
    bench.unlink(M01)
    assert M01 in bench.part.rights[1].joining, "control records wait for it"
    bench.now_us += bench.config.serve_lease_us
    bench.do(ev.Tick())
    assert not bench.may_deliver()
    assert bench.part.chain is not None
    bench.read_chain(replace(bench.part.chain, epoch=bench.part.chain.epoch + 1))
    assert bench.may_deliver(), "it was not listed, and never will be by that one"
    assert M01 not in bench.part.rights[1].joining


# ---- several at once ------------------------------------------------------------------------------------

NOS = (1, 2, 3)


def member_of_three(member: MemberId = M00, run: int = 1) -> Bench:
    """A member of the first group, which holds three sealed segments; the open one is on the third group."""
    chain = first_chain()
    for no in NOS:
        chain = sealed_chain(chain, 1, checksum_of(batches_of(no, [1])), (M20, M21) if no == NOS[-1] else (M00, M01))
    logs = tuple(recovered(no, batches_of(no, [1]), commit=1, sealed=True) for no in NOS)
    bench = Bench(member, run, (RecoveredPartition(P, logs, tuple(prepared(no, (M00, M01)) for no in NOS)),))
    for other in (M00, M01, M10):
        if other != member:
            bench.link(other)
    bench.read_chain(chain)
    bench.persist()
    bench.clear()
    return bench


def joined_in(bench: Bench, *nos: int) -> None:
    """M10 asks the server to list it, which takes its rights again first, and confirms the control records."""
    for no in nos:
        bench.hear(M10, msg.EligibleRequest(P, no))
    while bench.part.writes:
        bench.written()
        pause(bench, M01, M10)
    bench.clear()
    for no in nos:
        bench.hear(M10, msg.EligibleRequest(P, no))
    for asked in bench.sent(msg.ReplicateCursors, M10):
        bench.hear(M10, msg.CursorsReplicated(P, asked.segment_no, asked.server_epoch, asked.serial))


def pause(bench: Bench, *beating: MemberId) -> None:
    """The pause after an amendment passes."""
    bench.wait(bench.config.amend_pause_us + bench.config.amend_spread_us, beating)


def servers(write: fx.WriteChain) -> list[MemberId]:
    """Who serves the three segments in that record."""
    return [segment_of(write.chain, no).server for no in NOS]


def refusals_of_m00(bench: Bench) -> tuple[tuple[PartitionId, int], ...]:
    """The segments for which the member refuses M00 now."""
    return right.refused_to(bench.core.state, M00.broker)


def test_members_that_join_several_segments_are_listed_together() -> None:
    """The first one is listed at once, and the others wait for that transaction."""
    bench = member_of_three()
    joined_in(bench, *NOS)
    (first,) = bench.all(fx.WriteChain)
    assert [M10 in segment_of(first.chain, no).eligible for no in NOS] == [True, False, False]
    assert [bench.part.rights[no].listing for no in NOS] == [(M10,), (), ()]
    bench.written()
    pause(bench, M01, M10)
    (_, second) = bench.all(fx.WriteChain)
    assert second.chain.epoch == first.chain.epoch + 1
    assert [M10 in segment_of(second.chain, no).eligible for no in NOS] == [True, True, True]
    assert [bench.part.rights[no].listing for no in NOS] == [(), (M10,), (M10,)]


def test_after_a_conflict_a_joined_member_is_listed_after_the_read_and_needs_nothing_again() -> None:
    bench = member_of_three()
    joined_in(bench, 1)
    bench.written(CONFLICT)
    bench.clear()
    bench.hear(M10, msg.EligibleRequest(P, 1))
    assert not bench.sent(msg.ReplicateCursors, M10)
    assert not bench.all(fx.WriteChain), "the record is being read"
    chain = bench.part.chain
    assert chain is not None
    bench.read_chain(replace(chain, epoch=chain.epoch + 1))
    bench.wait(bench.config.retry_us + bench.config.amend_spread_us, (M01, M10))
    (write,) = bench.all(fx.WriteChain)
    assert M10 in segment_of(write.chain, 1).eligible


def test_a_joined_member_that_is_cut_off_is_not_listed_with_the_others() -> None:
    bench = member_of_three()
    joined_in(bench, *NOS)
    bench.unlink(M10)
    bench.written()
    pause(bench, M01)
    assert len(bench.all(fx.WriteChain)) == 1


def test_a_joined_member_whose_disk_hangs_by_then_is_not_listed_with_the_others() -> None:
    bench = member_of_three()
    joined_in(bench, *NOS)
    stall_us = bench.config.disk_hang_us + 1
    bench.hear(M10, msg.HeartbeatAnswer(bench.now_us, (), disk_stall_us=stall_us, data_count=bench.data_counts["g1-0"]))
    bench.written()
    pause(bench, M01)
    assert len(bench.all(fx.WriteChain)) == 1


def test_a_joined_member_that_is_lost_during_a_transaction_without_success_must_ask_again() -> None:
    """Otherwise each control record would wait for it."""
    bench = member_of_three()
    joined_in(bench, *NOS)
    bench.unlink(M10)
    assert [tuple(bench.part.rights[no].joining) for no in NOS] == [(M10,), (), ()], "the first may be listed"
    bench.written(CONFLICT)
    chain = bench.part.chain
    assert chain is not None
    bench.read_chain(replace(chain, epoch=chain.epoch + 1))
    assert not any(bench.part.rights[no].joining for no in NOS)


def test_a_joined_member_that_is_not_linked_is_not_listed_again() -> None:
    """The transaction that lists it got no answer, and the record shows that it was not carried out."""
    bench = member_of_three()
    joined_in(bench, 1)
    bench.unlink(M10)
    bench.written(ev.WriteOutcome.UNKNOWN)
    bench.clear()
    bench.read_chain(bench.part.chain)
    bench.wait(SECOND, (M01,))
    assert not bench.all(fx.WriteChain)


def test_while_a_switch_runs_no_right_is_taken_and_no_server_refused() -> None:
    bench = member_of_three(M01)
    bench.link(M20)
    bench.unlink(M00, refused=True)
    chain = bench.part.chain
    assert chain is not None
    bench.do(ev.SwitchAwayFrom(P, 4))
    bench.read_chain(chain)
    for no in NOS:
        bench.hear(M10, msg.TakeOver(P, no, segment_of(chain, no).server_epoch))
    assert bench.part.switch is not None
    assert not bench.all(fx.WriteChain)
    assert not refusals_of_m00(bench)
    bench.hear(M20, msg.ChainUpdate(sealed_chain(chain, 0, 0, (M10, M11)), 300))
    (write,) = bench.all(fx.WriteChain)
    assert servers(write) == [M01, M01, M01]


def test_after_a_read_that_finds_no_record_no_right_is_taken_and_nobody_listed() -> None:
    bench = member_of_three(M01)
    bench.unlink(M00, refused=True)
    chain = bench.part.chain
    assert chain is not None
    for no in NOS:
        bench.hear(M10, msg.TakeOver(P, no, segment_of(chain, no).server_epoch))
    bench.written(CONFLICT)
    bench.clear()
    bench.do(ev.ChainRead(P, None, 0, deleted=True))
    bench.wait(5 * SECOND, (M10,))
    assert not bench.all(fx.WriteChain)
    bench = member_of_three()
    joined_in(bench, *NOS)
    bench.written(CONFLICT)
    bench.clear()
    bench.do(ev.ChainRead(P, None, 0, deleted=True))
    bench.wait(5 * SECOND, (M01, M10))
    assert not bench.all(fx.WriteChain)


def test_the_rights_of_a_server_that_is_gone_are_taken_together() -> None:
    bench = member_of_three(M01)
    bench.unlink(M00, refused=True)
    chain = bench.part.chain
    assert chain is not None
    for no in NOS:
        bench.hear(M10, msg.TakeOver(P, no, segment_of(chain, no).server_epoch))
    (first,) = bench.all(fx.WriteChain)
    assert servers(first) == [M01, M00, M00]
    bench.written()
    pause(bench, M10)
    (_, second) = bench.all(fx.WriteChain)
    assert servers(second) == [M01, M01, M01]
    assert {segment_of(second.chain, no).server_epoch for no in NOS[1:]} == {second.chain.epoch}
    assert all(M00 not in segment_of(second.chain, no).eligible for no in NOS)


def test_a_right_that_waits_is_not_taken_if_its_server_is_heard_again() -> None:
    bench = member_of_three(M01)
    bench.unlink(M00, refused=True)
    chain = bench.part.chain
    assert chain is not None
    for no in NOS:
        bench.hear(M10, msg.TakeOver(P, no, segment_of(chain, no).server_epoch))
    bench.link(M00)
    bench.wait(bench.config.heartbeat_us, (M00, M10))
    bench.written()
    pause(bench, M00, M10)
    assert len(bench.all(fx.WriteChain)) == 1
    assert [no for _, no in refusals_of_m00(bench)] == [1]


def test_while_the_coordinator_refuses_writes_no_right_that_waits_is_taken_and_no_server_refused() -> None:
    bench = member_of_three(M01)
    bench.unlink(M00, refused=True)
    chain = bench.part.chain
    assert chain is not None
    for no in NOS:
        bench.hear(M10, msg.TakeOver(P, no, segment_of(chain, no).server_epoch))
    bench.written(ev.WriteOutcome.REFUSED)
    bench.clear()
    bench.read_chain(chain)
    assert not bench.all(fx.WriteChain)
    assert [no for _, no in refusals_of_m00(bench)] == [1]


def test_a_restarted_server_takes_its_rights_anew_together() -> None:
    bench = member_of_three(M00, run=2)
    for no in NOS:
        bench.hear(M10, msg.EligibleRequest(P, no))
    (first,) = bench.all(fx.WriteChain)
    bench.written()
    pause(bench, M01, M10)
    (_, second) = bench.all(fx.WriteChain)
    assert [segment_of(second.chain, no).server_epoch for no in NOS] == [
        first.chain.epoch, second.chain.epoch, second.chain.epoch
    ]  # fmt: skip
    assert all(bench.part.rights[no].confirmed for no in NOS[:1])
