"""Consumer groups in which order is by key: grants, acknowledgements, failures, parked keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api import errors
from seriatim_broker.core.consumers.cursors import control_records
from seriatim_broker.core.consumers.groups import subscriptions
from seriatim_broker.core.consumers.keyed import outcomes
from seriatim_broker.core.state.consumers import ConsumerGroupPhase
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.keyed import BackOff, ConsumerMode, Exhausted, KeyGrant, RetryPolicy
from seriatim_broker.core.values.ledger_rows import CarriedGrant, read_rows, write_forwarder, write_grant
from seriatim_broker.core.values.log import HandOverId, HandOverState, LedgerChange, PutHandOver, PutLedger
from seriatim_broker.core.values.tokens import term_of

from .keyed_support import QUICK, KeyedServing, indexes_of, offsets
from .support import GROUP, M00, M01, M10, MS, SECOND, STREAM, TOPIC, P, control_record

SHORT = replace(QUICK, grant_ms=1_000)


def served(keys: str = "abcab", policy: RetryPolicy = QUICK) -> KeyedServing:
    bench = KeyedServing(keys, policy=policy)
    bench.serve()
    return bench


def test_messages_of_a_key_are_granted_together_and_in_order() -> None:
    assert served("abcab").granted() == [[0, 3], [1, 4], [2]]


def test_messages_without_a_key_are_keys_of_their_own() -> None:
    assert served("...").granted() == [[0], [1], [2]]


def test_a_key_is_with_one_consumer_at_a_time() -> None:
    bench = KeyedServing("aaab")
    bench.begin()
    bench.join(2)
    bench.deliver()
    (run_a, run_b) = sorted(bench.runs(), key=indexes_of)
    assert (indexes_of(run_a), indexes_of(run_b)) == ([0, 1, 2], [3])
    bench.deliver()
    assert bench.granted() == []
    assert len({run_a.token, run_b.token}) == 2


def test_what_is_granted_was_reserved_on_both_disks_first() -> None:
    bench = KeyedServing("ab")
    bench.begin()
    bench.reads()
    bench.persist()
    assert bench.writes(PutLedger)[-1].cursor.reserved > 2
    assert not bench.all(fx.ReadRows), "the other eligible member does not have the reservation"
    bench.confirm_replications()
    assert bench.all(fx.ReadRows)


def test_a_message_is_passed_when_its_only_valid_grant_acknowledges_it() -> None:
    bench = served("ab")
    run_a, run_b = bench.runs()
    bench.acks(run_a._replace(token=run_b.token))
    bench.acks(run_a, subscription=2)
    bench.acks(run_a._replace(offsets=offsets([1])))
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 0
    assert bench.void() == [run_b.token, run_a.token]
    bench.acks(run_a)
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 1


def test_within_a_grant_only_the_next_message_can_be_acknowledged() -> None:
    bench = served("aaa")
    (run,) = bench.runs()
    bench.do(ev.ConsumerAcks(STREAM, 1, 1, (run.token,), run.offsets[1:2]))
    assert bench.void() == [run.token]
    bench.acks(run, upto=2)
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 2


def test_requests_are_confirmed_when_both_disks_have_them() -> None:
    bench = served("ab")
    (run, _) = bench.runs()
    bench.acks(run, number=7)
    bench.wait(50 * MS, (M01,))
    bench.persist()
    assert not bench.delivered(fx.AcksConfirmed)
    bench.confirm_replications()
    assert [event.number for event in bench.delivered(fx.AcksConfirmed)] == [7]


def test_a_failed_message_stays_the_first_of_its_key() -> None:
    bench = served("aab")
    run, other = bench.runs()
    bench.acks(run, upto=1)
    bench.nack(run, 1, delay_ms=500)
    bench.acks(other)
    bench.deliver()
    assert bench.granted() == []
    bench.deliver(SECOND)
    (again,) = bench.runs()
    assert (indexes_of(again), again.attempt) == ([1], 2)
    assert again.token > run.token


def test_delays_follow_the_policy() -> None:
    exponential = RetryPolicy(delays_ms=(100, 1_000), jitter_percent=0)
    assert [exponential.delay_ms(n, b"k") for n in (1, 2, 3, 4, 5, 99)] == [100, 200, 400, 800, 1_000, 1_000]
    listed = RetryPolicy(back_off=BackOff.LIST, delays_ms=(5, 50), jitter_percent=0)
    assert [listed.delay_ms(n, b"k") for n in (1, 2, 3)] == [5, 50, 50]
    fixed = RetryPolicy(back_off=BackOff.FIXED, delays_ms=(70,), jitter_percent=10)
    delays = {fixed.delay_ms(1, b"k%d" % n) for n in range(200)}
    assert 63 <= min(delays) < 70 < max(delays) <= 77


def test_a_grant_ends_at_its_deadline_and_its_token_is_void() -> None:
    bench = served("a", SHORT)
    (run,) = bench.runs()
    bench.wait(SHORT.grant_ms * MS + SECOND, (M01,))
    bench.deliver()
    assert bench.void() == [run.token]
    (again,) = bench.runs()
    assert again.token > run.token
    assert again.attempt == 1, "the consumer had not begun"
    bench.acks(run)
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 0


def test_an_extended_grant_lives_on() -> None:
    bench = served("a", SHORT)
    (run,) = bench.runs()
    bench.wait(600 * MS, (M01,))
    bench.do(ev.ConsumerExtend(STREAM, 1, (run.token,), 1_000))
    bench.wait(900 * MS, (M01,))
    assert bench.void() == []
    bench.acks(run)
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 1


def test_a_grant_that_is_given_back_ends_at_once_and_is_no_late_one() -> None:
    bench = served("ab")
    run_a, _ = bench.runs()
    bench.do(ev.ConsumerExtend(STREAM, 1, (run_a.token,), 0))
    bench.deliver()
    (again,) = bench.runs()
    assert (indexes_of(again), again.attempt) == ([0], 1)
    assert bench.void() == []
    assert not [note for note in bench.all(fx.Note) if note.name == "grants_expired"]


def test_an_attempt_counts_only_if_the_consumer_had_begun() -> None:
    bench = served("ab")
    begun, _ = bench.runs()
    bench.do(ev.ConsumerAcks(STREAM, 1, 1, (), (), (begun.token,)))
    bench.join(2)
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.deliver(SECOND)
    bench.deliver()
    assert {tuple(indexes_of(run)): run.attempt for run in bench.runs()} == {(0,): 2, (1,): 1}


def test_what_a_consumer_was_given_and_said_nothing_about_comes_again_with_the_flag() -> None:
    bench = served("aabcc")
    first, single, other = bench.runs()
    bench.acks(first, upto=1)
    bench.nack(other, delay_ms=0)
    bench.join(2)
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.deliver(SECOND)
    bench.deliver()
    again = {tuple(indexes_of(run)): (run.maybe_repeated, run.attempt) for run in bench.runs()}
    assert again[1,] == again[2,] == (True, 1), "it may have worked on them"
    assert again[3,] == (True, 2), "it failed on the first one"
    assert not any(run.maybe_repeated for run in (first, single, other))


def test_a_shorter_grant_forgets_nothing_that_was_given_before() -> None:
    bench = served("aaa")
    for leaving in (1, 2):
        bench.join(leaving + 1)
        bench.part.consumer_groups[GROUP].consumers[-1].run_max = 1
        bench.runs()
        bench.do(ev.ConsumerLeave(STREAM, leaving))
        bench.deliver(SECOND)
    for index in range(3):
        (run,) = bench.runs()
        assert (indexes_of(run), run.maybe_repeated) == ([index], True), "the first consumer was given all three"
        bench.acks(run, number=index + 1, subscription=3)
        bench.deliver()


def test_who_sends_too_much_during_a_hand_over_is_ended_and_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "FROZEN_ROWS_MAX", 2)
    bench = served("abc")
    first, second, third = bench.runs()
    bench.join(2)
    keyed = bench.keyed
    keyed.handoff.frozen = []
    bench.do(ev.ConsumerExtend(STREAM, 2, (first.token, second.token), 1_000))
    bench.acks(first, number=1)
    outcomes.thaw(bench.served)
    bench.acks(second, number=2)
    bench.acks(third, number=3)
    bench.deliver()
    assert not bench.delivered(fx.AcksConfirmed)
    assert isinstance(bench.delivered(fx.Revoked)[0].error, errors.OverloadedError)
    bench.deliver(SECOND)
    assert sorted(index for run in bench.runs() for index in indexes_of(run)) == [0, 1, 2], "another consumer has them"


def test_a_group_has_a_largest_number_of_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "CONSUMERS_MAX", 2)
    bench = served("ab")
    bench.join(2)
    bench.join(3)
    (refused,) = bench.delivered(fx.SubscriptionRefused)
    assert isinstance(refused.error, errors.OverloadedError)
    assert [consumer.name for consumer in bench.part.consumer_groups[GROUP].consumers] == ["consumer-1", "consumer-2"]
    bench.join(3, "consumer-2")
    assert len(bench.part.consumer_groups[GROUP].consumers) == 2, "one that joins again takes its own place"


def test_what_was_forgotten_is_not_confirmed() -> None:
    bench = served("ab")
    (run, _) = bench.runs()
    bench.acks(run, number=7)
    consumer_group = bench.part.consumer_groups[GROUP]
    consumer_group.look_again()
    bench.cursor()
    bench.deliver(SECOND)
    assert sorted(bench.granted()) == [[0], [1]], "it comes again"
    assert not bench.delivered(fx.AcksConfirmed)


def test_what_is_behind_a_failed_message_of_a_batch_comes_again_with_the_flag() -> None:
    bench = served("aaab")
    run, single = bench.runs()
    bench.acks(run, upto=1)
    bench.nack(run, at=1, delay_ms=0)
    bench.nack(single, delay_ms=0)
    bench.deliver(SECOND)
    again = {tuple(indexes_of(run)): run for run in bench.runs()}
    assert again[1,].maybe_repeated
    assert not again[3,].maybe_repeated, "nothing is after it, and the number of its attempt says the rest"
    bench.acks(again[1,])
    bench.deliver(SECOND)
    (last,) = bench.runs()
    assert (indexes_of(last), last.maybe_repeated) == ([2], True)


def test_a_message_that_failed_comes_alone_until_it_is_done_and_should_stay_in_memory_until_then() -> None:
    bench = served("aaab")
    run, single = bench.runs()
    bench.nack(run, delay_ms=250)
    kept = bench.all(fx.KeepMessage)
    assert kept == [fx.KeepMessage(P, run.offsets[0], 250)]
    bench.deliver(SECOND)
    (again,) = bench.runs()
    assert indexes_of(again) == [0], "the others may have to be read from the disk, and it may fail again"
    bench.acks(again)
    bench.deliver()
    assert bench.granted() == [[1, 2]]
    bench.acks(single)
    assert bench.all(fx.KeepMessage) == kept, "nothing else has failed"


def test_a_message_that_is_not_tried_again_need_not_stay_in_memory() -> None:
    bench = served("ab")
    run, _ = bench.runs()
    bench.nack(run, is_last=True)
    assert "key_parked" in [note.name for note in bench.all(fx.Note)]
    assert bench.all(fx.KeepMessage) == []


def test_what_comes_after_messages_that_came_again_has_no_flag() -> None:
    bench = served("ab")
    run, _ = bench.runs()
    bench.join(2)
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.deliver(SECOND)
    bench.deliver()
    runs = bench.runs()
    assert all(run.maybe_repeated for run in runs)
    for number, run in enumerate(runs, 1):
        bench.acks(run, number=number, subscription=2)
    keyed = bench.keyed
    assert not any((keyed.line.keys, keyed.line.singles)), "nothing is kept of keys that are done"


def test_after_the_last_attempt_the_key_is_parked_and_others_go_on() -> None:
    bench = served("aab", replace(QUICK, attempts_max=1))
    run, other = bench.runs()
    bench.nack(run)
    bench.acks(other)
    bench.deliver(SECOND)
    assert bench.granted() == []
    assert [note.name for note in bench.all(fx.Note) if note.name == "key_parked"] == ["key_parked"]
    keyed = bench.keyed
    assert keyed.window.floor == 3, "the messages of the parked key are in its list"
    assert list(keyed.line.keys[b"ka"].aside) == list(offsets([0, 1]))


def test_a_blocking_policy_tries_for_ever() -> None:
    policy = replace(QUICK, attempts_max=2, exhausted=Exhausted.BLOCK)
    bench = served("ab", policy)
    run, other = bench.runs()
    bench.acks(other)
    for attempt in range(1, 6):
        bench.nack(run)
        bench.deliver(20 * SECOND)
        (run,) = bench.runs()[:1]
        assert (indexes_of(run), run.attempt) == ([0], attempt + 1)


def test_another_member_goes_on_where_the_rows_end() -> None:
    bench = served("aabbc", replace(QUICK, attempts_max=1))
    run_a, run_b, run_c = bench.runs()
    bench.nack(run_a)
    bench.acks(run_b, upto=1)
    bench.nack(run_c, delay_ms=60_000)
    bench.deliver()
    assert sorted(read_rows(bench.rows().items()).keys) == [b"ka", b"kc"]
    follower = KeyedServing("aabbc", M01)
    follower.link(M00)
    for change in bench.sent(msg.ReplicateLedger, M01):
        follower.hear(M00, change)
    assert follower.rows() == bench.rows()
    assert follower.part.cursors[GROUP].acked == bench.part.cursors[GROUP].acked == 3


def test_a_member_that_lacks_a_change_asks_for_all_rows() -> None:
    bench = served("ab")
    run, _ = bench.runs()
    bench.clear()
    bench.acks(run)
    bench.wait(50 * MS, (M01,))
    (change,) = bench.sent(msg.ReplicateLedger, M01)
    assert not change.change.is_full
    bench.persist()
    follower = KeyedServing("ab", M01)
    follower.link(M00)
    follower.hear(M00, change)
    (wanted,) = follower.sent(msg.LedgerWanted, M00)
    assert not follower.rows()
    bench.hear(M01, wanted)
    full = bench.sent(msg.ReplicateLedger, M01)[-1]
    assert full.change.is_full
    follower.hear(M00, full)
    assert follower.rows() == bench.rows()


def test_all_rows_are_sent_again_only_if_they_are_missing() -> None:
    """Each new link got all rows: those of 100,000 keys made the link silent, and it was recreated."""
    bench = served("abcd")
    follower = KeyedServing("abcd", M01)
    follower.link(M00)
    for change in bench.sent(msg.ReplicateLedger, M01):
        follower.hear(M00, change)

    def acknowledged(run: KeyGrant) -> msg.ReplicateLedger:
        bench.clear()
        bench.acks(run)
        bench.wait(50 * MS, (M01,))
        bench.persist()
        return bench.sent(msg.ReplicateLedger, M01)[-1]

    first, *others = bench.runs()
    bench.unlink(M01)
    bench.link(M01)
    change = acknowledged(first)
    assert not change.change.is_full
    follower.hear(M00, change)
    lost, *late = [acknowledged(run) for run in others]
    assert not lost.change.is_full
    for change in late:
        follower.hear(M00, change)
    (wanted,) = follower.sent(msg.LedgerWanted, M00)  # for the first of the two
    follower.unlink(M00)
    follower.link(M00)
    follower.hear(M00, late[-1])
    assert follower.sent(msg.LedgerWanted, M00) == [wanted, wanted], "the first question may be lost with the link"
    bench.clear()
    group = bench.part.consumer_groups[GROUP]
    group.phase = ConsumerGroupPhase.CROSSING
    bench.hear(M01, wanted)
    assert not bench.sent(msg.ReplicateLedger, M01)
    group.phase = ConsumerGroupPhase.SERVING  # the cursor was not written; the member does not ask again
    control_records.replicate(bench.served)
    bench.persist()
    (full,) = bench.sent(msg.ReplicateLedger, M01)
    assert full.change.is_full
    follower.hear(M00, full)
    assert follower.rows() == bench.rows()


def test_a_full_state_replaces_what_was_there() -> None:
    follower = KeyedServing("ab", M01)
    follower.link(M00)
    epoch = follower.chain.segments[0].server_epoch
    bench = served("ab")
    state = bench.part.cursors[GROUP]
    old = LedgerChange(((b"kx", b"old"),), is_full=True)
    new = LedgerChange(((b"ky", b"new"),), is_full=True)
    follower.hear(M00, msg.ReplicateLedger(P, 1, epoch, 1, 0, state, old))
    follower.hear(M00, msg.ReplicateLedger(P, 1, epoch, 2, 7, state, new))
    assert follower.rows() == {b"ky": b"new"}
    follower.hear(M00, msg.ReplicateLedger(P, 1, epoch, 3, 8, state, LedgerChange(((b"kz", b"more"),), (b"ky",))))
    assert follower.rows() == {b"kz": b"more"}


def test_a_consumer_of_another_mode_is_refused() -> None:
    bench = served("ab")
    bench.do(ev.ConsumerJoin(STREAM, 9, P, GROUP, "other", ev.StartPosition.EARLIEST, False))
    (refused,) = bench.delivered(fx.SubscriptionRefused)
    assert "key_ordered" in str(refused.error)
    assert [consumer.name for consumer in bench.part.consumer_groups[GROUP].consumers] == ["consumer-1"]


def test_a_person_is_told_all_consumers_and_no_standbys() -> None:
    bench = served("ab")
    bench.join(2)
    bench.do(ev.DescribeConsumerGroup(9, P, GROUP))
    bench.look_up()
    bench.wait(SECOND, (M01,))
    described = bench.all(fx.ConsumerGroupDescribed)[-1]
    assert (described.active, described.standbys) == ("consumer-1, consumer-2", ())


def test_a_group_is_not_served_at_an_older_place_than_this_disk_knows() -> None:
    """Rule `further-waits`: the coordinator was restored from an older copy."""
    bench = KeyedServing("ab", cursors=(control_record(3, GROUP, 1, 0, 0),))
    bench.begin()
    bench.deliver()
    assert bench.granted() == []
    bench.do(ev.DescribeConsumerGroup(9, P, GROUP))
    bench.look_up()
    (described,) = bench.all(fx.ConsumerGroupDescribed)
    assert isinstance(described.error, errors.CoordinatorBehindError)
    bench.wait(2 * SECOND, (M01,))
    bench.cursor(epoch=2, revision=6)
    bench.deliver()
    assert bench.granted(), "an administrator has rewound it"


def test_server_serves_on_while_the_coordinator_lacks_the_group() -> None:
    """Rule `serves-on`: a server that reads an older copy of the coordinator continues in its term."""
    bench = served("aa")
    (run,) = bench.runs()
    bench.do(ev.CursorRead(P, GROUP, None, 0, known_revision=5))
    assert not bench.all(fx.WriteCursor)
    bench.nack(run)
    bench.deliver(SECOND)
    (again,) = bench.runs()
    assert term_of(again.token) == term_of(run.token)
    assert again.token > run.token


def test_group_that_is_deleted_under_its_server_begins_anew() -> None:
    """The answer to the write of its new cursor is not taken for that of the next term."""
    bench = served("aa")
    bench.runs()
    deleted = ev.CursorRecord(1, 1, 0, TOPIC, deleted=True, mode=ConsumerMode.KEY_ORDERED, term_base=6)
    bench.do(ev.CursorRead(P, GROUP, deleted, 9, known_revision=5))
    (write,) = bench.all(fx.WriteCursor)
    assert (write.record.segment_no, write.record.group_epoch) == (1, 2)
    bench.clear()
    bench.do(ev.CursorWritten(P, GROUP, write.serial, ev.WriteOutcome.DONE, 10))
    assert bench.all(fx.ReadCursor), "it begins with what is written"
    bench.do(ev.CursorRead(P, GROUP, write.record, 10, known_revision=10))
    bench.deliver()
    (run,) = bench.runs()
    group = bench.part.consumer_groups[GROUP]
    assert (group.group_epoch, term_of(run.token)) == (2, write.record.term_base + group.served.server_epoch)


def test_tokens_of_a_group_that_is_made_again_are_above_all_of_the_deleted_one() -> None:
    """Rule `begins-above`."""
    bench = KeyedServing("ab")
    bench.join()
    bench.read_chain(bench.chain)
    deleted = ev.CursorRecord(9, 4, 0, TOPIC, deleted=True, mode=ConsumerMode.KEY_ORDERED, term_base=6)
    bench.do(ev.CursorRead(P, GROUP, deleted, 5))
    (write,) = bench.all(fx.WriteCursor)
    assert (write.record.segment_no, write.record.group_epoch) == (1, 5)
    first = bench.chain.segment(1)
    assert first is not None
    assert write.record.term_base + first.server_epoch == 6 + bench.chain.epoch + 1, "segment 9 is not known here"


def test_nothing_begins_before_all_members_know_that_the_next_server_has_begun() -> None:
    """Rule `begun-first`."""
    named = HandOverId(7, 3)
    bench = KeyedServing("ab", handoff=named, policy=SHORT)
    late = CarriedGrant(5 << 40, b"kz", "gone", 1, 10, True, True)
    rows = (write_forwarder(2), write_grant(late))
    bench.part.handoffs = {GROUP: HandOverState(1, GROUP, 1, named, rows)}
    bench.begin_unconfirmed()
    keyed = bench.keyed
    bench.wait(SECOND, (M01,))
    assert list(keyed.grants.by_token) == [5 << 40], "its deadline has passed, and it does not end yet"
    assert not bench.all(fx.ReadKeys)
    bench.persist_everywhere()
    bench.wait(SECOND, (M01,))
    assert not keyed.grants.by_token
    assert bench.all(fx.ReadKeys)


def test_a_server_that_begins_again_with_its_own_record_waits_for_all_members_too() -> None:
    """Rule `begun-first`: its record has no carried grant, and the other member would begin with one."""
    named = HandOverId(7, 3)
    bench = KeyedServing("ab", handoff=named, policy=SHORT)
    carried = CarriedGrant(5 << 40, b"kz", "consumer-1", 1, 60_000, True, True)
    bench.part.handoffs = {GROUP: HandOverState(1, GROUP, 1, named, (write_forwarder(2), write_grant(carried)))}
    bench.begin_unconfirmed()
    bench.persist()
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.join(2)
    bench.cursor()
    keyed = bench.keyed
    assert not keyed.grants.by_token, "this disk has the record, so the grant is over here"
    bench.persist()
    bench.wait(50 * MS, (M01,))
    assert not bench.all(fx.ReadKeys)
    bench.confirm_replications()
    bench.wait(50 * MS, (M01,))
    assert bench.all(fx.ReadKeys)


# ---- consumers that leave during a handoff ---------------------------------------------------------------


def handing_over() -> KeyedServing:
    """Both messages are granted to the first consumer, and the next server was sent that. A second one is there."""
    bench = served("ab")
    bench.join(2)
    bench.link(bench.chain.segments[1].server)
    keyed = bench.keyed
    bench.runs()
    keyed.handoff.rests_until_us = 0
    for _ in range(4):
        bench.deliver()
    assert keyed.handoff.frozen is not None
    return bench


def handed(bench: KeyedServing) -> list[msg.HandOver]:
    return bench.sent(msg.HandOver, bench.chain.segments[1].server)


def test_a_consumer_that_dies_during_a_hand_over_leaves_its_keys_to_others_at_once() -> None:
    bench = handing_over()
    first = handed(bench)[-1].handover
    assert len(read_rows(first.rows).grants) == 2
    bench.do(ev.ConsumerLeave(STREAM, 1))
    for _ in range(4):
        bench.deliver()
    assert sorted(bench.granted()) == [[0], [1]], "the other consumer has them"
    second = handed(bench)[-1].handover
    assert second.id > first.id
    assert {grant.consumer for grant in read_rows(second.rows).grants} == {"consumer-2"}


def test_when_the_cursor_is_being_written_a_consumer_that_dies_changes_nothing() -> None:
    bench = handing_over()
    state = handed(bench)[-1].handover
    following = bench.chain.segments[1].server
    bench.hear(following, msg.HandOverKept(P, state.segment_no, GROUP, state.group_epoch, state.id))
    assert bench.all(fx.WriteCursor)
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.deliver()
    assert bench.granted() == [], "the next server may have begun"
    assert handed(bench)[-1].handover.id == state.id


def test_a_consumer_without_grants_that_leaves_does_not_disturb_a_hand_over() -> None:
    bench = handing_over()
    before = handed(bench)[-1].handover.id
    bench.do(ev.ConsumerLeave(STREAM, 2))
    bench.deliver()
    assert handed(bench)[-1].handover.id == before


def test_a_member_that_is_not_the_server_answers_a_hand_over_of_the_server_only() -> None:
    bench = KeyedServing("ab", M01)
    bench.link(M00)
    bench.link(M10)
    assert bench.chain.segments[0].server == M00
    handoff = msg.HandOver(P, HandOverState(1, GROUP, 1, HandOverId(2, 1), ()))
    told = len(bench.sent(msg.ChainUpdate, M10))
    bench.hear(M10, handoff)  # it knows that this member is the server by now, and would take an answer for all's
    bench.persist()
    assert bench.writes(PutHandOver)
    assert bench.all(fx.ReadChain)
    assert not bench.sent(msg.HandOverKept)
    assert len(bench.sent(msg.ChainUpdate, M10)) > told, "or M10, if it is the one that knows too little, asks for ever"
    bench.hear(M00, handoff)
    bench.persist()
    assert [kept.id for kept in bench.sent(msg.HandOverKept, M00)] == [HandOverId(2, 1)]


def test_chain_is_read_if_the_next_server_is_gone() -> None:
    bench = handing_over()
    following = bench.chain.segments[1].server
    bench.unlink(following)
    before = len(bench.all(fx.ReadChain))
    bench.wait(3_000 * MS, (M01,))
    assert len(bench.all(fx.ReadChain)) > before, "another member may serve the segment now"


# ---- what counts as an attempt ------------------------------------------------------------------------------------


def test_a_message_behind_one_that_was_begun_is_not_begun() -> None:
    bench = KeyedServing("aaa", policy=QUICK)
    bench.serve()
    (run,) = bench.runs()
    bench.do(ev.ConsumerAcks(STREAM, 1, 1, (run.token,), (run.offsets[0],)))
    bench.do(ev.ConsumerAcks(STREAM, 1, 2, (), (), (run.token,)))  # the second one is begun,
    bench.do(ev.ConsumerAcks(STREAM, 1, 3, (run.token,), (run.offsets[1],)))  # and done
    bench.join(2, stream=STREAM + 1)
    bench.do(ev.ConsumerCredit(STREAM + 1, 1 << 20))
    bench.do(ev.ConsumerGone(STREAM))
    bench.deliver(300 * MS)
    (again,) = bench.runs()
    assert (again.attempt, again.maybe_repeated, indexes_of(again)) == (1, True, [2])


def test_the_message_behind_the_acknowledgements_of_a_request_is_begun() -> None:
    bench = KeyedServing("aaa", policy=QUICK)
    bench.serve()
    (run,) = bench.runs()
    bench.do(ev.ConsumerAcks(STREAM, 1, 1, (run.token,), (run.offsets[0],), (run.token,)))
    bench.join(2, stream=STREAM + 1)
    bench.do(ev.ConsumerCredit(STREAM + 1, 1 << 20))
    bench.do(ev.ConsumerGone(STREAM))
    for _ in range(6):
        bench.deliver(300 * MS)
    (again,) = bench.runs()
    assert (again.attempt, indexes_of(again)) == (2, [1])


def test_messages_given_back_unseen_are_no_repeats() -> None:
    bench = KeyedServing("aab", policy=QUICK)
    bench.serve()
    first, second = bench.runs()
    bench.do(ev.ConsumerExtend(STREAM, 1, (first.token, second.token), 0, is_unseen=True))
    bench.deliver()
    again = bench.runs()
    assert sorted(indexes_of(run) for run in again) == [[0, 1], [2]]
    assert not any(run.maybe_repeated or run.attempt > 1 for run in again)


def test_a_message_that_was_begun_is_not_given_back_unseen() -> None:
    bench = KeyedServing("a", policy=QUICK)
    bench.serve()
    (run,) = bench.runs()
    bench.do(ev.ConsumerAcks(STREAM, 1, 1, (), (), (run.token,)))
    bench.do(ev.ConsumerExtend(STREAM, 1, (run.token,), 0, is_unseen=True))
    for _ in range(6):
        bench.deliver(300 * MS)
    (again,) = bench.runs()
    assert again.attempt == 2
